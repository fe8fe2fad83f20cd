"""The run directory: what one `capture` leaves behind, and its manifest `run.json`.

    RUN/run.json                               the manifest, written last
    RUN/<variant>/hlo/<module>.hlo.pb          xla.HloProto: optimised module and buffer assignment
    RUN/<variant>/hlo/<module>.txt             the same module as text
    RUN/<variant>/round_<r>/plugins/profile/<session>/<host>.xplane.pb
                                               one profiling session, in the layout XProf opens

All paths in the manifest are relative to RUN, so a run can be moved, archived and compared elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from analyzers.errors import UserError
from analyzers.reading.decoding import MalformedError, decode

SCHEMA_VERSION = 1
KIND = "moe-prof run"
MANIFEST = "run.json"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One trace file of a session: path relative to the run, and what it must weigh and hash to."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Session:
    """One profiling session: one variant in one round."""

    round: int
    variant: str
    order: int
    """Place of the session among all of the run, from 0, in the order they were taken."""
    profile_dir: str
    """Folder, relative to the run, that XProf and TensorBoard open."""
    xplane_files: tuple[TraceFile, ...]
    steps: int
    step_wall_ns: tuple[int, ...]
    """Host wall time of each step, dispatch to ready, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """What the compiler says one device needs, in bytes (`CompiledMemoryStats` of jaxlib)."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int
    generated_code_bytes: int


@dataclass(frozen=True, slots=True)
class CompiledVariant:
    """One variant as it was compiled."""

    name: str
    summary: str
    module: str
    """Name of the HLO module, as in the trace's `hlo_module`."""
    fingerprint: str
    """Hash of the program without names and metadata: equal in two variants that compile to one program."""
    compile_seconds: float
    memory: MemoryAnalysis | None
    """None where the backend does not say."""
    hlo_proto: str
    hlo_text: str
    buffer_assignment: bool
    """Whether `hlo_proto` holds the buffer assignment; TPU backends keep it to themselves."""
    dispatch_input_bytes: int
    top_k_buffer_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """What the steps ran on. `simulated`: several devices that are threads of one CPU."""

    platform: str
    kind: str
    count: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """The host, and how busy it was when the capture started."""

    cpu_count: int
    cpu_model: str
    load_average: tuple[float, ...]
    """Over 1, 5 and 15 minutes; empty where the system does not say."""
    pinned_cpus: tuple[int, ...] | None = None
    """The CPUs that the capture was kept to, if it was."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why there were no more rounds, and how precise the saving of a step was then."""

    reason: str
    """`rounds`: as many as were asked for; `precision`: reached; `time`: the next would have taken too long."""
    seconds: float
    """Of all rounds: warm-ups and sessions."""
    half_width: float | None
    """Of the 95 % interval of the saving of a step, as a share of the baseline's step time, by the host's clock; the
    widest of several variants; of a single variant that of its step time. None before two rounds."""
    precision: float | None
    """The half-width that was asked for."""
    max_seconds: float | None


@dataclass(frozen=True, slots=True)
class Flags:
    """What steered compiler and profiler. Folders of this machine are cut from paths."""

    xla_flags: str | None
    libtpu_init_args: str | None
    profiler_options: dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `run.json`, less the keys that say what the file is."""

    created: str
    """UTC, ISO 8601."""
    workload: str
    mode: str
    config: dict[str, Any]
    """The fields of `workloads.Config`."""
    variants: tuple[CompiledVariant, ...]
    rounds: int
    steps: int
    sessions: tuple[Session, ...]
    device: DeviceRecord
    versions: dict[str, str | None]
    flags: Flags
    machine: MachineRecord
    argv: tuple[str, ...]
    stopped: Stopped | None = None

    def to_json(self) -> str:
        """The text of `run.json`."""
        head = {"schema_version": SCHEMA_VERSION, "kind": KIND, "complete": True}
        return json.dumps(head | asdict(self), indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Manifest:
        """The manifest in a parsed `run.json`. Raises MalformedError naming the first wrong field."""
        return decode(Manifest, content)


@dataclass(frozen=True, slots=True)
class Run:
    """A complete run on disk."""

    path: Path
    manifest: Manifest

    def variant(self, name: str) -> CompiledVariant:
        """The named variant. Raises UserError that lists those the run has."""
        for candidate in self.manifest.variants:
            if candidate.name == name:
                return candidate
        names = ", ".join(candidate.name for candidate in self.manifest.variants)
        raise UserError(f"{self.path} has no variant {name!r}; choose one of {names}.")

    def sessions_of(self, variant: str) -> tuple[Session, ...]:
        """The sessions of one variant, by round."""
        return tuple(session for session in self.manifest.sessions if session.variant == variant)

    def one_program(self) -> tuple[tuple[str, ...], ...]:
        """Groups of two or more variants that compiled to the same program (TRACE_FACTS trap 16)."""
        groups: dict[str, list[str]] = {}
        for variant in self.manifest.variants:
            groups.setdefault(variant.fingerprint, []).append(variant.name)
        return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def is_run(path: Path) -> bool:
    """Whether `path` is a folder with a `run.json`, so that `load_run` is what should read it."""
    return (path / MANIFEST).is_file()


def load_run(path: Path) -> Run:
    """The run at `path`, its files checked for presence and size.

    Raises UserError if `path` is no run, an interrupted or newer one, or if files of it are missing or cut.
    """
    manifest = _read_manifest(path)
    for variant in manifest.variants:
        _check_file(path, variant.hlo_proto, None)
        _check_file(path, variant.hlo_text, None)
    for session in manifest.sessions:
        for file in session.xplane_files:
            _check_file(path, file.path, file.size_bytes)
    return Run(path, manifest)


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not path.exists():
        raise UserError(f"{path} does not exist; give the folder that `moe-prof capture` wrote.")
    if not file.is_file():
        left_over = path.name.startswith(".") and ".partial-" in path.name
        what = "is what an interrupted capture left behind" if left_over else f"is not a run: it holds no {MANIFEST}"
        raise UserError(f"{path} {what}; give the folder that `moe-prof capture` wrote.")
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}); capture the run again.") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise UserError(f'{file} is not the manifest of a run: its "kind" is not "{KIND}".')
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UserError(f"{file} has schema version {version}, newer than {SCHEMA_VERSION}; upgrade moe-prof.")
    if version != SCHEMA_VERSION:
        raise UserError(f"{file} has schema version {version!r}, which no moe-prof wrote; capture the run again.")
    if content.get("complete") is not True:
        raise UserError(f"{path} is an incomplete run: its capture was interrupted; capture it again.")
    try:
        return Manifest.from_json(content)
    except MalformedError as error:
        raise UserError(f"{file} is damaged: {error}; capture the run again.") from error


def _check_file(run: Path, relative: str, size_bytes: int | None) -> None:
    parts = PurePosixPath(relative)
    # A manifest is input like any other: it must not lead a reader to files outside the run.
    if parts.is_absolute() or ".." in parts.parts:
        raise UserError(f"{run / MANIFEST} names {relative!r}, which is outside the run; it was not read.")
    file = run / relative
    if not file.is_file():
        raise UserError(f"{run} is missing {relative}, which its {MANIFEST} names; copy the run again, whole.")
    found = file.stat().st_size
    if size_bytes is not None and found != size_bytes:
        raise UserError(
            f"{file} has {found:,} bytes, its run was written with {size_bytes:,}; copy the run again, whole."
        )

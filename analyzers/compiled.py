"""The result of `moe-prof compile`: a directory that says what each variant became, readable without jax.

DIR/compile.json                           what was compiled, for what, and what the first two levels hold
DIR/<variant>/<module>.hlo.pb              xla.HloProto: optimised module and buffer assignment
DIR/<variant>/<module>.txt                 the same module as text
DIR/<variant>/memory-usage-report.txt      the compiler's own report, empty where it wrote none
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from analyzers.counting.buffers import Buffer, Buffers, buffers
from analyzers.counting.hlo import Module
from analyzers.counting.liveness import Peak, live_peak
from analyzers.counting.sites import Site, compiled_sites
from analyzers.errors import UserError
from analyzers.reading.decoding import MalformedError, decode
from analyzers.reading.run import CompiledVariant

SCHEMA_VERSION = 1
KIND = "moe-prof compile"
MANIFEST = "compile.json"


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One program, compiled for one target."""

    compiled: CompiledVariant
    memory_report: str
    """Path of the compiler's own report of memory, relative to the directory."""
    live_ranges: str
    """Path of its live ranges of buffers, likewise."""
    traced: tuple[Site, ...]
    lowered: tuple[Site, ...]


@dataclass(frozen=True, slots=True)
class CompileManifest:
    """The content of `compile.json`, less the keys that say what the file is."""

    created: str
    """UTC, ISO 8601."""
    target: str
    """`cpu`, or a TPU topology such as `tpu7x:2x2x1`."""
    device_kind: str
    num_devices: int
    workload: str
    """Name of the workload, or `FILE.py:FUNCTION` of a user's own."""
    mode: str
    """Empty for a user's own function."""
    config: dict[str, Any]
    """The fields of `workloads.Config`, empty for a user's own function."""
    xla_flags: str
    libtpu_init_args: str
    versions: dict[str, str | None]
    programs: tuple[CompileRecord, ...]

    def to_json(self) -> str:
        """The text of `compile.json`."""
        head = {"schema_version": SCHEMA_VERSION, "kind": KIND}
        return json.dumps(head | asdict(self), indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class CompiledProgram:
    """One compiled program with what its module says."""

    name: str
    folder: Path
    manifest: CompileManifest
    record: CompileRecord

    @cached_property
    def module(self) -> Module:
        """The optimised module."""
        return Module((self.folder / self.record.compiled.hlo_proto).read_bytes())

    @cached_property
    def buffers(self) -> Buffers | None:
        """Its buffers, None where the compiler gave no assignment."""
        return buffers(self.module)

    @cached_property
    def levels(self) -> dict[str, tuple[Site, ...]]:
        """Counted work by level: `traced`, `lowered`, `compiled`."""
        return {"traced": self.record.traced, "lowered": self.record.lowered, "compiled": compiled_sites(self.module)}

    @property
    def memory_report(self) -> str:
        """The compiler's own report of memory."""
        return (self.folder / self.record.memory_report).read_text()

    @cached_property
    def peak(self) -> Peak | None:
        """The moment at which most bytes are alive, None if the compiler says nothing of it."""
        return live_peak(self.module, (self.folder / self.record.live_ranges).read_text())

    @property
    def peak_bytes(self) -> int | None:
        """Memory that one device must have to run it: all allocations, see `Buffers.allocated_bytes`."""
        return self.buffers.allocated_bytes if self.buffers else None

    @property
    def text(self) -> str:
        """The optimised module as text."""
        return (self.folder / self.record.compiled.hlo_text).read_text()


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What one `moe-prof compile` made."""

    path: Path
    manifest: CompileManifest

    @property
    def programs(self) -> tuple[CompiledProgram, ...]:
        """The compiled programs, in the order they were asked for."""
        return tuple(CompiledProgram(r.compiled.name, self.path, self.manifest, r) for r in self.manifest.programs)

    def program(self, name: str) -> CompiledProgram:
        """The named one. Raises UserError that lists those there are."""
        for candidate in self.programs:
            if candidate.name == name:
                return candidate
        names = ", ".join(p.name for p in self.programs)
        raise UserError(f"{self.path} has no variant {name!r}; choose one of {names}.")


def repeated_buffers(program: CompiledProgram) -> tuple[Buffer, ...]:
    """Return the buffers of the forward pass, first run or recomputed, that `top_k` copies of the tokens fill."""
    size = program.record.compiled.top_k_buffer_bytes
    if program.buffers is None or not size:
        return ()
    return program.buffers.repeats(size)


def is_compile_result(path: Path) -> bool:
    """Whether `path` is a folder that `moe-prof compile -o` wrote."""
    return (path / MANIFEST).is_file()


def load_compiled(path: str | os.PathLike[str]) -> CompileResult:
    """The result at `path`. Raises UserError if it is none, of another version, damaged, or lacks files."""
    path = Path(path)
    file = path / MANIFEST
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{path} holds no {MANIFEST}; give the folder that `moe-prof compile -o` wrote.") from error
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}); compile again.") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise UserError(f'{file} is no result of `moe-prof compile`: its "kind" is not "{KIND}".')
    if content.get("schema_version") != SCHEMA_VERSION:
        raise UserError(
            f"{file} has schema version {content.get('schema_version')!r}, not {SCHEMA_VERSION}; compile again."
        )
    try:
        manifest = decode(CompileManifest, content)
    except MalformedError as error:
        raise UserError(f"{file} is damaged: {error}; compile again.") from error
    for record in manifest.programs:
        for name in (record.compiled.hlo_proto, record.compiled.hlo_text, record.memory_report, record.live_ranges):
            _check(path, name)
    return CompileResult(path, manifest)


def _check(folder: Path, name: str) -> None:
    parts = PurePosixPath(name)
    # A manifest is input like any other: it must not lead a reader to files outside its folder.
    if parts.is_absolute() or ".." in parts.parts:
        raise UserError(f"{folder / MANIFEST} names {name!r}, which is outside the folder; it was not read.")
    if not (folder / name).is_file():
        raise UserError(f"{folder} is missing {name}, which its {MANIFEST} names; compile again.")

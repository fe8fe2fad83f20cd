"""Runs a workload's variants under the profiler and leaves a run directory behind.

Variants are compiled and warmed up outside the session and profiled in alternating order (A B B A …), one
session per variant and round, so that a drift of the machine falls on both sides alike. Everything is written
into a hidden folder beside the run and renamed at the very end: what has the run's name is whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from analyzers.errors import UserError
from analyzers.files import open_permissions, sync_folder, write_whole
from analyzers.reading.run import MANIFEST, CompiledVariant, Manifest, Run, Session, Stopped, load_run
from profiler import backends
from profiler.compiled import Compiled, compile_program, keep_embedded
from profiler.interrupts import noticed_interrupts
from profiler.readback import check_session
from profiler.recording import bare_paths, device_record, flags_record, machine_record, trace_file
from profiler.session import profile
from profiler.stopping import Progressed, Until, progressed, seconds_left, stopped
from profiler.versions import installed_versions
from workloads.program import Program
from workloads.registry import Config, build

if TYPE_CHECKING:
    import jax

SAFETY = 1.1
"""An estimate of memory is multiplied by this before it is compared with what is free."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What to capture and where to put it."""

    workload: str
    variants: tuple[str, ...]
    config: Config
    mode: str
    steps: int
    rounds: int | Until
    output: Path
    argv: tuple[str, ...] = ()
    rescale: Callable[[Fraction], Config] | None = None
    """The same configuration at another scale, to suggest one when this is too big for the machine."""
    pinned_cpus: tuple[int, ...] | None = None
    """The CPUs that the caller keeps this process to, for the record."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a capture is about to do: `stage` is `compile`, `warm up`, `profile`, `read back` or `write`."""

    stage: str
    variant: str = ""
    round: int | None = None
    done: int = 0
    """Units of work done so far, of `total`: one per compilation and one per session."""
    total: int | None = 0
    """None where nobody knows how many rounds there will be."""
    known: Progressed | None = None
    """What the whole rounds so far say."""
    seconds_left: float | None = None


Report = Callable[[Progress], None]


def capture(request: CaptureRequest, progress: Report | None = None) -> Run:
    """Profile the variants and return the run, written and read back.

    Raises UserError if the run exists, does not fit in memory, or comes out of the profiler incomplete, and
    WorkloadError if it cannot be built. On any exception, KeyboardInterrupt included, nothing stays behind.
    """
    _check_request(request)
    backends.check_versions()
    devices = backends.find_devices(request.config.num_devices)
    programs = [_build(request, name, request.config, devices) for name in request.variants]
    _check_memory(request, programs, devices)
    machine = machine_record(request.pinned_cpus)
    with noticed_interrupts() as check_interrupt, _partial_folder(request.output) as folder:

        def report(now: Progress) -> None:
            if progress:
                progress(now)
            check_interrupt()

        variants, sessions, ended = _measure(request, programs, devices, folder, report)
        manifest = Manifest(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            workload=request.workload,
            mode=request.mode,
            config=asdict(programs[0].config),
            variants=variants,
            rounds=len(sessions) // len(variants),
            steps=request.steps,
            sessions=sessions,
            device=device_record(devices),
            versions=installed_versions(),
            flags=flags_record(backends.profiler_options(devices[0].platform)),
            machine=machine,
            argv=tuple(bare_paths(argument) for argument in request.argv),
            stopped=ended,
        )
        write_whole(folder / MANIFEST, manifest.to_json().encode())
        _publish(folder, request.output)
    return load_run(request.output)


def in_turn(number: int, variants: Sequence[_T]) -> Iterator[_T]:
    """The variants in the order they are profiled in round `number`, from 0: forward and reversed in turn."""
    return iter(variants) if number % 2 == 0 else reversed(variants)


def _measure(
    request: CaptureRequest,
    programs: Sequence[Program],
    devices: Sequence[jax.Device],
    folder: Path,
    report: Report,
) -> tuple[tuple[CompiledVariant, ...], tuple[Session, ...], Stopped]:
    rounds = request.rounds
    total = len(programs) * (1 + rounds) if isinstance(rounds, int) else None
    variants: list[Compiled] = []
    for program in programs:
        report(Progress("compile", program.variant, None, len(variants), total))
        variants.append(compile_program(program, folder))
    records = {variant.record.name: variant.record for variant in variants}
    options = backends.profiler_options(devices[0].platform)
    sessions: list[Session] = []
    walls: dict[str, list[tuple[int, ...]]] = {name: [] for name in records}
    known: Progressed | None = None
    left: float | None = None
    started = time.monotonic()
    number, ended = 0, None
    while ended is None:
        for variant in in_turn(number, variants):
            name, module = variant.record.name, variant.record.module
            place = folder / name / f"round_{number}"
            now = Progress("warm up", name, number, len(variants) + len(sessions), total, known, left)
            # Only the variant that runs has its arguments in memory; all are made from the same seed.
            report(now)
            step = variant.warmed_up()
            report(replace(now, stage="profile"))
            walls[name].append(profile(step, request.steps, place, options))
            del step
            report(replace(now, stage="read back"))
            files = sorted(place.glob("plugins/profile/*/*.xplane.pb"))
            records[name] = keep_embedded(records[name], check_session(files, module, request.steps), folder)
            sessions.append(
                Session(
                    round=number,
                    variant=name,
                    order=len(sessions),
                    profile_dir=place.relative_to(folder).as_posix(),
                    xplane_files=tuple(trace_file(file, folder) for file in files),
                    steps=request.steps,
                    step_wall_ns=walls[name][-1],
                )
            )
        number += 1
        known, seconds = progressed(walls), time.monotonic() - started
        ended = stopped(rounds, number, seconds, known)
        left = seconds_left(rounds, number, seconds, known)
    report(Progress("write", done=len(variants) + len(sessions), total=total))
    return tuple(records.values()), tuple(sessions), ended


def _check_request(request: CaptureRequest) -> None:
    for name, count in (("steps", request.steps), ("rounds", request.rounds)):
        if isinstance(count, int) and count < 1:
            raise UserError(f"--{name} is {count}; it must be at least 1.")
    if not request.variants:
        raise UserError("no variant was asked for; name at least one.")
    _refuse_existing(request.output)


def _refuse_existing(output: Path) -> None:
    if os.path.lexists(output):
        raise UserError(f"{output} exists and is not overwritten; give another name with -o, or remove it.")


def _build(request: CaptureRequest, variant: str, config: Config, devices: Sequence[jax.Device]) -> Program:
    return build(request.workload, variant, config, request.mode, devices)


def _check_memory(request: CaptureRequest, programs: Sequence[Program], devices: Sequence[jax.Device]) -> None:
    have = backends.available_bytes(devices)
    need = max(program.estimated_bytes for program in programs) * SAFETY
    if have is None or need <= have:
        return
    scale = _fitting_scale(request, devices, have)
    hint = f"try --scale {scale}" if scale else "take a smaller preset, or fewer layers"
    raise UserError(
        f"{request.workload} at this size needs about {_gib(need)} of memory, {_gib(have)} are free; {hint}."
    )


def _fitting_scale(request: CaptureRequest, devices: Sequence[jax.Device], have: int) -> Fraction | None:
    """The largest scale 1/2, 1/4, … at which all variants fit, None if none does."""
    for power in range(1, 15):
        scale = Fraction(1, 1 << power)
        config = request.rescale(scale) if request.rescale else None
        if config is None:
            return None
        programs = [_build(request, name, config, devices) for name in request.variants]
        if max(program.estimated_bytes for program in programs) * SAFETY <= have:
            return scale
    return None


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


@contextmanager
def _partial_folder(output: Path) -> Iterator[Path]:
    """A hidden folder beside `output` to write into; whatever is left of it at the end is removed."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror}); give another place with -o.") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, output: Path) -> None:
    open_permissions(folder)
    # Renaming onto an empty folder would succeed, so look once more.
    _refuse_existing(output)
    folder.rename(output)
    sync_folder(output.parent)

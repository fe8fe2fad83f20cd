"""The last level of the funnel: the sorts that a run, or a trace, shows of a program that was compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from analyzers.compiled import CompiledProgram
from analyzers.counting.sites import Site, path_of
from analyzers.errors import UserError
from analyzers.reading.run import Manifest, is_run
from analyzers.trace import Trace, load


@dataclass(frozen=True, slots=True)
class Executed:
    """Sorts per step, and what is to be known of where they were seen."""

    sites: tuple[Site, ...]
    notes: tuple[str, ...]


def executed(path: str, program: CompiledProgram, *, alone: bool = True) -> Executed:
    """Return what the run or trace at `path` executed of the program; `alone` says that no other was compiled with it.

    Raises UserError for a run of another workload, mode or configuration, one that lacks the variant, and a trace
    (which names no variants) beside several programs.
    """
    if "://" not in path and is_run(Path(path)):
        trace = load(path, variant=program.name)
        assert trace.manifest is not None
        _check(path, trace.manifest, program)
    elif alone:
        trace = load(path)
    else:
        raise UserError(f"{path} is a trace of one program, and several were compiled; name one with --variants.")
    ran_on = trace.manifest.device.kind if trace.manifest else ", ".join(trace.sessions[0][0].device_types)
    notes = []
    if ran_on and ran_on != program.manifest.device_kind:
        notes.append(
            f"executed on {ran_on}, compiled for {program.manifest.device_kind}: other compilers, other counts"
        )
    if trace.at_least:
        notes.append("executed counts are lower bounds: the trace is cut short")
    return Executed(executed_sites(trace), tuple(notes))


def _check(path: str, run: Manifest, program: CompiledProgram) -> None:
    about = program.manifest
    ours = {"workload": about.workload, "mode": about.mode, **about.config}
    theirs = {"workload": run.workload, "mode": run.mode, **run.config}
    different = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    if different or not about.config:
        name = (different or ["workload"])[0]
        raise UserError(
            f"{path} was captured with {name} {theirs[name]}, and {program.name} was compiled with {name} "
            f"{ours[name]}; give compile and capture the same options."
        )


def executed_sites(trace: Trace) -> tuple[Site, ...]:
    """Return the sorts that a trace shows per step, by pass and kind and the scopes of their ops.

    The most over devices and steps; a step of a whole trace executes equally many on each.
    """
    found: dict[tuple[str, str, str], int] = {}
    file = trace.sessions[0][0]
    table = file.by_op
    for number, op in enumerate(file.ops):
        mine = table.keys["op"] == number
        if not op.kind.is_sort or not mine.any():
            continue
        key = op.kind.value, op.pass_.value, path_of(op.scope)
        found[key] = found.get(key, 0) + int(table.executions[mine].max()) * op.sorts
    return tuple(Site(kind, "", pass_, path, (), times, "") for (kind, pass_, path), times in found.items())

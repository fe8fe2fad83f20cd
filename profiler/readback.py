"""Reads back what the profiler wrote, because a profile can be written empty and called a success."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analyzers.errors import UserError
from analyzers.reading.columns import LineKind, PlaneKind, XSpaceColumns
from analyzers.reading.xspace import read_xspace

STEP_NAME = "step"
"""Name of the host annotation around each step."""


def check_session(files: Sequence[Path], module: str, steps: int) -> bytes | None:
    """Check that the session's files hold ops of `module` in each of its `steps` steps; every host's file must.

    Returns the serialized xla.HloProto that a trace embeds of the program that ran, None if none does.
    Raises UserError naming the first step without ops.
    """
    embedded = None
    if not files:
        raise UserError(f"the profiler wrote no trace of {module}; capture again, with fewer steps.")
    for file in files:
        if file.stat().st_size == 0:
            raise UserError(f"the profiler wrote an empty trace of {module}; capture again, with fewer steps.")
        columns = read_xspace(file)
        found = ops_per_step(columns, module)
        for step in range(steps):
            if not found.get(step):
                raise UserError(
                    f"the trace of {module} has no device op in step {step} of {steps}: the profiler dropped "
                    "them; capture again, with fewer --steps."
                )
        if len(found) != steps:
            raise UserError(f"the trace of {module} has {len(found)} steps instead of {steps}; capture again.")
        embedded = embedded or embedded_program(columns, module)
    return embedded


def embedded_program(columns: XSpaceColumns, module: str) -> bytes | None:
    """The HloProto of the program called `module` that ran; None unless the trace has exactly one.

    A trace embeds every program of the process, several of one name among them, told apart by their id.
    """
    events = columns.events
    ids = events.ints.get("program_id")
    modules = events.strings.get("hlo_module")
    ran = {metadata.name for plane in columns.planes if plane.kind is PlaneKind.TPU for metadata in plane.metadata}
    if ids is not None and modules is not None and module in columns.strings:
        ran |= {f"{module}({number})" for number in np.unique(ids[modules == columns.strings.index(module)])}
    protos = [proto for name, proto in columns.hlo_protos.items() if name in ran and name.startswith(f"{module}(")]
    return protos[0] if len(protos) == 1 else None


def ops_per_step(columns: XSpaceColumns, module: str) -> dict[int, int]:
    """Number of op events of `module` in each step.

    On a TPU a step is an execution of the module, on the clock of its device, and the count is that of the
    device with the fewest. Elsewhere it is the host's step annotation, within which the host waited for them.
    """
    if any(line.kind is LineKind.MODULES for line in columns.lines):
        return _by_module_execution(columns, module)
    return _by_annotation(columns, module)


def _by_annotation(columns: XSpaceColumns, module: str) -> dict[int, int]:
    events = columns.events
    numbers = events.ints.get("step_num")
    modules = events.strings.get("hlo_module")
    if numbers is None:
        return {}
    planes = np.array([line.plane for line in columns.lines])[events.line]
    origins = np.array([plane.origin_ns for plane in columns.planes])[planes]
    # Relative to the first plane's origin: nanoseconds since 1970 times 1000 do not fit 64 bits.
    start = events.event_start_ps + (origins - origins.min(initial=origins[0])) * 1000
    ops = np.zeros(len(events), bool)
    if modules is not None and module in columns.strings:
        ops = modules == columns.strings.index(module)
    op_starts = np.sort(start[ops])
    rows = [int(row) for row in np.flatnonzero(numbers >= 0) if _name(columns, int(row)) == STEP_NAME]
    return {
        int(numbers[row]): _count(op_starts, int(start[row]), int(start[row] + events.event_duration_ps[row]))
        for row in rows
    }


def _name(columns: XSpaceColumns, row: int) -> str:
    plane = columns.planes[columns.lines[int(columns.events.line[row])].plane]
    metadata = int(columns.events.metadata[row])
    return plane.metadata[metadata].name if metadata >= 0 else ""


def _by_module_execution(columns: XSpaceColumns, module: str) -> dict[int, int]:
    fewest: dict[int, int] = {}
    for line in columns.lines:
        plane = columns.planes[line.plane]
        if line.kind is not LineKind.MODULES or plane.kind is not PlaneKind.TPU:
            continue
        counts = _ops_per_execution(columns, line.plane, line.first, line.last, module)
        for step, count in enumerate(counts):
            fewest[step] = min(count, fewest.get(step, count))
    return fewest


def _ops_per_execution(columns: XSpaceColumns, plane: int, first: int, last: int, module: str) -> list[int]:
    events, metadata = columns.events, columns.planes[plane].metadata
    op_lines = [line for line in columns.lines if line.plane == plane and line.kind is LineKind.OPS]
    starts = [events.start_ps[line.first : line.last] for line in op_lines]
    ops = np.sort(np.concatenate([np.empty(0, np.int64), *starts]))
    return [
        _count(ops, int(events.start_ps[row]), int(events.start_ps[row] + events.duration_ps[row]))
        for row in range(first, last)
        if events.metadata[row] >= 0 and metadata[int(events.metadata[row])].name.startswith(f"{module}(")
    ]


def _count(sorted_starts: NDArray[np.int64], start: int, end: int) -> int:
    return int(np.searchsorted(sorted_starts, end, "right") - np.searchsorted(sorted_starts, start, "left"))

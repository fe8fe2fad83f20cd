"""SparseCore work, joined to the TensorCore op that launched it.

A TensorCore hands work to a SparseCore with an op (`….call-start`) whose event carries `tc_offload_start_id`
and `offload_core_id`; the SparseCore shows it as a module event with the same two numbers around its op
events. The pair names the launching instruction, not the execution of it, so the n-th launch is joined to the
n-th module event. Source: openxla/xla and openxla/xprof (`kTcOffloadStartId`, sparse core module line).

    TensorCore   |call-start|  other ops …  |call-done: waits|
    SparseCore                |== module ==|
                              |op|op|  op  |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.counting.arrays import dense, sums
from analyzers.counting.ops import OpEvents, device_names
from analyzers.reading.columns import ABSENT, Line, LineKind, PlaneKind, XSpaceColumns

_TOLERANCE_PS = 2000

Offload = tuple[int, int]
"""(offload_core_id, tc_offload_start_id)."""


@dataclass(frozen=True)
class _Modules:
    """Module events of one SparseCore, in time order."""

    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    offload: list[Offload]


@dataclass(frozen=True)
class Offloaded:
    """SparseCore op events (`rows` of `OpEvents`) and the TensorCore op event that launched each (`launcher`)."""

    rows: NDArray[np.intp]
    launcher: NDArray[np.intp]


def find_offloaded(columns: XSpaceColumns, events: OpEvents) -> Offloaded:
    """Return the SparseCore op events whose launching TensorCore op is told."""
    parts = [Offloaded(np.zeros(0, np.intp), np.zeros(0, np.intp))]
    for index, line in _op_lines(columns, PlaneKind.SPARSE_CORE):
        rows = np.flatnonzero(events.line == index)
        modules = _modules(columns, line.plane)
        if len(modules.offload) == 0:
            continue
        launches = _launches(columns, events, device_names(columns)[line.plane])
        launcher = np.array(_join(modules, launches, events.start_ps), np.intp)
        module = np.searchsorted(modules.start_ps, events.start_ps[rows] + _TOLERANCE_PS, side="right") - 1
        end = events.start_ps[rows] + events.duration_ps[rows]
        inside = (module >= 0) & (end <= modules.end_ps[module] + _TOLERANCE_PS)
        inside &= launcher[module] >= 0
        parts.append(Offloaded(rows[inside], launcher[module[inside]]))
    return Offloaded(np.concatenate([p.rows for p in parts]), np.concatenate([p.launcher for p in parts]))


def of_slowest_core(events: OpEvents, offloaded: Offloaded, self_ps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `self_ps` with one launch's work on several SparseCores counted once, on the core it took longest.

    The cores work side by side, and a TensorCore waits for the last of them.
    """
    rows = offloaded.rows
    if len(rows) == 0:
        return self_ps
    launch, _ = dense(offloaded.launcher, events.op[rows])
    on_core, cores = dense(launch, events.line[rows])
    time = sums(on_core, self_ps[rows], len(cores))
    launch_of = np.array([launch for launch, _ in cores], np.int64)
    order = np.lexsort((time, launch_of))
    slowest = np.zeros(len(cores), bool)
    slowest[order[np.append(np.diff(launch_of[order]) > 0, True)]] = True
    result = self_ps.copy()
    result[rows[~slowest[on_core]]] = 0
    return result


def _op_lines(columns: XSpaceColumns, plane: PlaneKind) -> Iterator[tuple[int, Line]]:
    for index, line in enumerate(columns.lines):
        if line.kind is LineKind.OPS and columns.planes[line.plane].kind is plane:
            yield index, line


def _modules(columns: XSpaceColumns, plane: int) -> _Modules:
    rows = np.concatenate(
        [np.zeros(0, np.intp)]
        + [
            np.arange(line.first, line.last)
            for line in columns.lines
            if line.plane == plane and line.kind is LineKind.MODULES
        ]
    )
    events = columns.events
    rows = rows[np.argsort(events.start_ps[rows], kind="stable")]
    start = events.start_ps[rows]
    return _Modules(start, start + events.duration_ps[rows], _offloads(columns, rows))


def _offloads(columns: XSpaceColumns, rows: NDArray[np.intp]) -> list[Offload]:
    absent = np.full(len(rows), ABSENT, np.int64)
    core, start_id = (
        column[rows] if (column := columns.events.ints.get(name)) is not None else absent
        for name in ("offload_core_id", "tc_offload_start_id")
    )
    return list(zip(core.tolist(), start_id.tolist(), strict=True))


def _launches(columns: XSpaceColumns, events: OpEvents, tensor_core: str) -> dict[Offload, list[int]]:
    """Return the rows of the launches on the device `tensor_core` in time order, by offload."""
    result: dict[Offload, list[int]] = defaultdict(list)
    for index, line in _op_lines(columns, PlaneKind.TPU):
        if device_names(columns)[line.plane] != tensor_core:
            continue
        rows = np.flatnonzero(events.line == index)
        offloads = _offloads(columns, np.arange(line.first, line.last))
        for row in rows[np.argsort(events.start_ps[rows], kind="stable")].tolist():
            offload = offloads[row - int(rows[0])]
            if offload[1] != ABSENT:
                result[offload].append(row)
    return result


def _join(modules: _Modules, launches: dict[Offload, list[int]], start_ps: NDArray[np.int64]) -> list[int]:
    """Return the launching row of each module event: the n-th of the n-th where both sides are whole."""
    occurrences: dict[Offload, int] = defaultdict(int)
    for offload in modules.offload:
        occurrences[offload] += 1
    seen: dict[Offload, int] = defaultdict(int)
    result = []
    for offload, start in zip(modules.offload, modules.start_ps.tolist(), strict=True):
        rows = launches.get(offload, [])
        if len(rows) == occurrences[offload]:
            result.append(rows[seen[offload]])
        else:  # one side was cut: the last launch before it
            before = [row for row in rows if start_ps[row] <= start + _TOLERANCE_PS]
            result.append(before[-1] if before else -1)
        seen[offload] += 1
    return result

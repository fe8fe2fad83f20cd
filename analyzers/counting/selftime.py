"""Self time: what is left of an op's time when the ops that ran inside it are taken away.

Only control flow (`while`, `call`, `conditional`) contains other ops. On a device line its events enclose
theirs; on a CPU the body may run on other threads, so there a control-flow op keeps the part of its window in
which no op of the same module run was busy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyzers.counting.arrays import covered, sums
from analyzers.counting.ops import Op, OpEvents
from analyzers.reading.columns import XSpaceColumns
from analyzers.reading.nesting import enclosing

NESTING_TOLERANCE_PS = 2000
"""Events of one line nest only to about 2 ns: clocks are rounded."""

_CONTAINERS = frozenset({"while", "call", "conditional"})


def contains_others(op: Op) -> bool:
    """Say whether events of `op` can enclose those of other ops."""
    return op.opcode in _CONTAINERS or op.category in _CONTAINERS


def self_times(columns: XSpaceColumns, events: OpEvents, run: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the self time of each op event in ps. Same length as `events.op`."""
    container_of_op = np.array([contains_others(op) for op in events.ops], bool)
    if not container_of_op.any():
        return events.duration_ps
    container = container_of_op[events.op]
    result = events.duration_ps.copy()
    on_cpu = np.array([name.startswith("CPU") for name in events.devices], bool)[events.device]
    if on_cpu.any():
        _by_coverage(events, run, np.flatnonzero(on_cpu), container, result)
    if not on_cpu.all():
        _by_nesting(events, np.flatnonzero(~on_cpu), container, result)
    return result


def _by_nesting(
    events: OpEvents, rows: NDArray[np.intp], container: NDArray[np.bool_], result: NDArray[np.int64]
) -> None:
    order = _line_order(events, rows)
    if order is not None:
        rows = rows[order]
    line = events.line[rows]
    bounds = np.concatenate(([0], np.flatnonzero(line[1:] != line[:-1]) + 1, [len(line)]))
    start, duration = events.start_ps[rows], events.duration_ps[rows]
    parent = enclosing(bounds[:-1], bounds[1:], start, duration, NESTING_TOLERANCE_PS)
    # Rounding can make a neighbour look nested; only a control-flow op has children.
    while True:
        wrong = np.flatnonzero((parent >= 0) & ~container[rows[parent]])
        if len(wrong) == 0:
            break
        parent[wrong] = parent[parent[wrong]]
    result[rows] -= sums(parent, duration, len(rows))


def _line_order(events: OpEvents, rows: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return the order by line, start and falling duration, or None if the rows are in it already."""
    line, start, duration = events.line[rows], events.start_ps[rows], events.duration_ps[rows]
    same = line[1:] == line[:-1]
    later = start[1:] - start[:-1]
    shorter = duration[1:] <= duration[:-1]
    if np.all(line[1:] >= line[:-1]) and not np.any(same & ((later < 0) | ((later == 0) & ~shorter))):
        return None
    return np.lexsort((-duration, start, line))


def _by_coverage(
    events: OpEvents,
    run: NDArray[np.int32],
    rows: NDArray[np.intp],
    container: NDArray[np.bool_],
    result: NDArray[np.int64],
) -> None:
    if not container[rows].any():
        return
    start = events.start_ps[rows]
    end = start + events.duration_ps[rows]
    # Runs of different devices and modules overlap in time: each gets a stretch of the axis of its own.
    span = int(end.max() - start.min()) + 1
    shift = run[rows].astype(np.int64) * span - int(start.min())
    start, end = start + shift, end + shift
    is_container = container[rows]
    depth = _depths(start, end, np.flatnonzero(is_container), len(rows))
    for level in np.unique(depth[is_container]):
        mine = np.flatnonzero(is_container & (depth == level))
        others = ~is_container | (depth > level)
        inside = covered(start[others], end[others], start[mine], end[mine])
        result[rows[mine]] -= inside


def _depths(
    start: NDArray[np.int64], end: NDArray[np.int64], containers: NDArray[np.intp], size: int
) -> NDArray[np.int32]:
    """Return for each container how many containers enclose it in time, 0 elsewhere."""
    depth = np.zeros(size, np.int32)
    order = containers[np.lexsort((-end[containers], start[containers]))]
    open_ends: list[tuple[int, int]] = []
    for row in order.tolist():
        while open_ends and open_ends[-1][0] < int(end[row]) - NESTING_TOLERANCE_PS:
            open_ends.pop()
        depth[row] = len(open_ends)
        open_ends.append((int(end[row]), row))
    return depth

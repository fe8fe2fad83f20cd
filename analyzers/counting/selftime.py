"""Self time: what is left of an op's time when the ops that ran inside it are taken away.

Only control flow (`while`, `call`, `conditional`) contains other ops. On a device line its events enclose
theirs; on a CPU the body may run on other threads, so there a control-flow op keeps the part of its window in
which no op of the same module run was busy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyzers.counting.arrays import covered, sums, unique
from analyzers.counting.ops import Op, OpEvents
from analyzers.reading.nesting import enclosing

try:
    from analyzers.counting import _groupby
except ImportError:  # The extension is optional; then this is slower.
    _groupby = None  # type: ignore[assignment]

NESTING_TOLERANCE_PS = 2000
"""Events of one line nest only to about 2 ns: clocks are rounded."""

_CONTAINERS = frozenset({"while", "call", "conditional"})


def contains_others(op: Op) -> bool:
    """Say whether events of `op` can enclose those of other ops."""
    return op.opcode in _CONTAINERS or op.category in _CONTAINERS


def device_self_times(events: OpEvents) -> NDArray[np.int64]:
    """Return the self time of each op event on a device line in ps, and the duration of those on host threads.

    Same length as `events.op`.
    """
    container = _containers(events)
    if not container.any():
        return events.duration_ps
    result = events.duration_ps.copy()
    for span in events.spans:
        if span.device is not None:
            _by_nesting(events, slice(span.first, span.last), container, result)
    return result


def self_times(events: OpEvents, run: NDArray[np.int32], of_devices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the self time of each op event in ps; `of_devices` is what `device_self_times` returns."""
    rows = np.concatenate(
        [np.zeros(0, np.intp), *(np.arange(s.first, s.last) for s in events.spans if s.device is None)]
    )
    container = _containers(events)[events.op[rows]]
    if not container.any():
        return of_devices
    result = of_devices.copy()
    _by_coverage(events, run, rows, container, result)
    return result


def _containers(events: OpEvents) -> NDArray[np.bool_]:
    return np.array([contains_others(op) for op in events.ops], bool)


def _by_nesting(events: OpEvents, span: slice, container: NDArray[np.bool_], result: NDArray[np.int64]) -> None:
    """Take from `result` what lies in each container of one line; `container` says it of each op."""
    start, duration, op, own = events.start_ps[span], events.duration_ps[span], events.op[span], result[span]
    if _take_away_nested(start, duration, op, container, own):
        return
    order = np.lexsort((~duration, start))  # ~d falls as d rises, and has no overflow.
    own_in_order = own[order]
    _take_away_nested(start[order], duration[order], op[order], container, own_in_order)
    own[order] = own_in_order


def _take_away_nested(
    start: NDArray[np.int64],
    duration: NDArray[np.int64],
    op: NDArray[np.int32],
    container: NDArray[np.bool_],
    own: NDArray[np.int64],
) -> bool:
    """Take from `own` the durations of the rows for which a container is the nearest around them.

    Return False, with nothing done, where the rows are not in order: by start, those that start together longest
    first.
    """
    if _groupby is not None:
        start, duration, op = np.ascontiguousarray(start), np.ascontiguousarray(duration), np.ascontiguousarray(op)
        return _groupby.take_away_nested(start, duration, op, container.view(np.uint8), NESTING_TOLERANCE_PS, own)
    if np.any((start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (duration[1:] > duration[:-1]))):
        return False
    parent = enclosing(np.array([0]), np.array([len(start)]), start, duration, NESTING_TOLERANCE_PS)
    # Rounding can make a neighbour look nested; only a control-flow op has children.
    while True:
        wrong = np.flatnonzero((parent >= 0) & ~container[op[parent]])
        if len(wrong) == 0:
            break
        parent[wrong] = parent[parent[wrong]]
    own -= sums(parent, duration, len(own))
    return True


def _by_coverage(
    events: OpEvents,
    run: NDArray[np.int32],
    rows: NDArray[np.intp],
    is_container: NDArray[np.bool_],
    result: NDArray[np.int64],
) -> None:
    start = events.start_ps[rows]
    end = start + events.duration_ps[rows]
    # Runs of different devices and modules overlap in time: each gets a stretch of the axis of its own.
    span = int(end.max() - start.min()) + 1
    shift = run[rows].astype(np.int64) * span - int(start.min())
    start, end = start + shift, end + shift
    depth = _depths(start, end, np.flatnonzero(is_container), len(rows))
    for level in unique(depth[is_container]):
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

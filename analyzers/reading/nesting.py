"""Which row encloses which: the nesting of the executions on a line.

Intervals on one line nest (a `while` around its body), but only to within a tolerance: device clocks are
rounded to ticks, so that neighbours may overlap by a picosecond and a body may outlast its loop a little.
tune-jax allows 2 ns when it asks whether one event lies inside another. The middle of an interval decides
the rest: one shorter than the tolerance that begins where its neighbour ends lies beside it, not in it.

          outer  |-----------------------|
          inner     |-----|  |-----------|-|       end within tolerance: inside
          beside                         |-|       middle past outer's end: beside it
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyzers.reading.columns import ABSENT

try:
    from analyzers.reading import _walker
except ImportError:  # The extension is optional; then this is slower.
    _walker = None  # type: ignore[assignment]

TOLERANCE_PS = 2000
_MAX = 2**63 - 1


def enclosing(
    line_first: NDArray[np.int64],
    line_last: NDArray[np.int64],
    start_ps: NDArray[np.int64],
    duration_ps: NDArray[np.int64],
    tolerance_ps: int = TOLERANCE_PS,
) -> NDArray[np.int32]:
    """Return for each row the row that immediately encloses it, -1 for none.

    Args:
        line_first: First row of each line.
        line_last: Row after the last of each line; rows of different lines never enclose each other.
        start_ps: Start of each row, ascending within a line; rows that start together longest first. Rows
            with start `ABSENT` have no place in time: nothing encloses them and they enclose nothing.
        duration_ps: Duration of each row; a negative one counts as zero.
        tolerance_ps: By how much an inner interval may reach over its outer one at either end.

    """
    parent = np.full(len(start_ps), -1, np.int32)
    if _walker is not None:
        _walker.nest(
            np.ascontiguousarray(line_first, np.int64),
            np.ascontiguousarray(line_last, np.int64),
            np.ascontiguousarray(start_ps, np.int64),
            np.ascontiguousarray(duration_ps, np.int64),
            tolerance_ps,
            parent,
        )
        return parent
    return _enclosing_in_python(line_first, line_last, start_ps, duration_ps, tolerance_ps, parent)


def _enclosing_in_python(
    line_first: NDArray[np.int64],
    line_last: NDArray[np.int64],
    start_ps: NDArray[np.int64],
    duration_ps: NDArray[np.int64],
    tolerance_ps: int,
    parent: NDArray[np.int32],
) -> NDArray[np.int32]:
    for first, last in zip(line_first.tolist(), line_last.tolist(), strict=True):
        parent[first:last] = _line_parents(
            first, start_ps[first:last].tolist(), duration_ps[first:last].tolist(), tolerance_ps
        )
    return parent


def _line_parents(first: int, starts: list[int], durations: list[int], tolerance: int) -> list[int]:
    """Return the parents (absolute rows) of one line's rows, which begin at row `first`."""
    parents = [-1] * len(starts)
    ends = [min(start + max(duration, 0), _MAX) for start, duration in zip(starts, durations, strict=True)]
    stack: list[int] = []
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if start == ABSENT:
            continue
        left: list[int] = []
        while stack and not _inside(start, end, ends[stack[-1]], tolerance):
            left.append(stack.pop())
        enclosing_row = stack[-1] + first if stack else -1
        parents[row] = enclosing_row
        # A child may begin a little before its parent does; it then came first in the order.
        for early in left:
            if (
                parents[early] == enclosing_row
                and start - starts[early] <= tolerance
                and ends[early] - end <= tolerance
                and (ends[early] - start) > (ends[early] - starts[early]) // 2
            ):
                parents[early] = row + first
        stack.append(row)
    return parents


def _inside(start: int, end: int, outer_end: int, tolerance: int) -> bool:
    """Tell whether an interval lies in one that began no later: by its end, and its middle."""
    return end - outer_end <= tolerance and outer_end - start > (end - start) // 2

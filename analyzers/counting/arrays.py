"""Group-by arithmetic on numpy columns: exact int64 sums, occurrence numbers, covered time.

Kept apart from pandas because these run over every event of a trace; tables come after.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.signedinteger]
Int64s = NDArray[np.int64]

_EXACT_FLOAT = 2**53


def sums(ids: Ids, values: Int64s, size: int) -> Int64s:
    """Return the exact sum of `values` per id, for ids 0 … size-1; rows with a negative id are left out."""
    if len(ids) and int(ids.min()) < 0:
        keep = ids >= 0
        ids, values = ids[keep], values[keep]
    # bincount adds in float64, which is exact as long as no partial sum can pass 2**53.
    if len(values) == 0 or float(np.abs(values, dtype=np.float64).sum()) < _EXACT_FLOAT:
        return np.bincount(ids, weights=values, minlength=size)[:size].astype(np.int64)
    result = np.zeros(size, np.int64)
    np.add.at(result, ids, values)
    return result


def counts(ids: Ids, size: int) -> Int64s:
    """Return how often each id 0 … size-1 occurs; rows with a negative id are left out."""
    if len(ids) and int(ids.min()) < 0:
        ids = ids[ids >= 0]
    return np.bincount(ids, minlength=size)[:size].astype(np.int64)


def occurrence_numbers(ids: Ids, size: int) -> NDArray[np.int32]:
    """Return for each row how many earlier rows have the same id (0 for the first one). Ids are 0 … size-1."""
    order = np.argsort(ids, kind="stable")
    first = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(ids, minlength=size)[:size], out=first[1:])
    result = np.empty(len(ids), np.int32)
    result[order] = np.arange(len(ids), dtype=np.int64) - first[ids[order]]
    return result


def dense(*columns: NDArray[np.signedinteger]) -> tuple[NDArray[np.int32], list[tuple[int, ...]]]:
    """Number the distinct rows of several columns: return each row's number and the distinct rows in order."""
    if len(columns[0]) == 0:
        return np.zeros(0, np.int32), []
    stacked = np.stack([np.asarray(c, np.int64) for c in columns], axis=1)
    rows, inverse = np.unique(stacked, axis=0, return_inverse=True)
    return inverse.reshape(-1).astype(np.int32), [tuple(int(v) for v in row) for row in rows]


def covered(starts: Int64s, ends: Int64s, window_starts: Int64s, window_ends: Int64s) -> Int64s:
    """Return how much of each window the union of the intervals [start, end) covers.

    Intervals may overlap each other and come in any order.
    """
    if len(starts) == 0:
        return np.zeros(len(window_starts), np.int64)
    order = np.argsort(starts, kind="stable")
    begin, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(begin), bool)
    opens[1:] = begin[1:] > reach[:-1]
    left = begin[opens]
    last = np.append(np.flatnonzero(opens)[1:] - 1, len(begin) - 1)
    right = np.maximum(reach[last], left)
    before = np.concatenate(([0], np.cumsum(right - left)))

    def up_to(moment: Int64s) -> Int64s:
        k = np.searchsorted(left, moment, side="right")
        inside = np.where(k > 0, np.minimum(moment, right[k - 1]) - left[k - 1], 0)
        return np.where(k > 0, before[np.maximum(k - 1, 0)] + inside, 0)

    return up_to(window_ends) - up_to(window_starts)

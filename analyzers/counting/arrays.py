"""Group-by arithmetic on numpy columns: exact int64 sums, occurrence numbers, covered time.

Kept apart from pandas because these run over every event of a trace; tables come after. Where the C extension
was built, a question is one pass over the events; else numpy answers it, in several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

try:
    from analyzers.counting import _groupby
except ImportError:  # The extension is optional; then this is slower.
    _groupby = None  # type: ignore[assignment]

Ids = NDArray[np.signedinteger]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
_T = TypeVar("_T")
_First = TypeVar("_First")
_Second = TypeVar("_Second")
_Number = TypeVar("_Number", bound=np.generic)

_EXACT_FLOAT = 2**53
_SMALL_TABLE = 4_000_000
_WORTH_THREADS = 200_000


def side_by_side(rows: int, *questions: Callable[[], _T]) -> list[_T]:
    """Return the answers to several questions about so many rows, asked at once: passes leave the GIL free."""
    if rows < _WORTH_THREADS:  # The import below costs more.
        return [question() for question in questions]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        return [answer.result() for answer in [pool.submit(question) for question in questions]]


def both(rows: int, first: Callable[[], _First], second: Callable[[], _Second]) -> tuple[_First, _Second]:
    """Return the answers to two questions about so many rows, asked at once."""
    if rows < _WORTH_THREADS:
        return first(), second()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        meanwhile = pool.submit(first)
        answer = second()
        return meanwhile.result(), answer


def _is_plain(*columns: NDArray) -> bool:  # type: ignore[type-arg]
    """Say whether the extension can read these as int32 columns."""
    return all(column.dtype == np.int32 and column.flags.c_contiguous for column in columns)


def sums(ids: Ids, values: Int64s, size: int) -> Int64s:
    """Return the exact sum of `values` per id, for ids 0 … size-1; rows with a negative id are left out."""
    if _groupby is not None and _is_plain(ids):
        result = np.zeros(size, np.int64)
        _groupby.sums(ids, np.ascontiguousarray(values, np.int64), result)
        return result
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
    if _groupby is not None and _is_plain(ids):
        result = np.zeros(size, np.int64)
        _groupby.sums(ids, None, result)
        return result
    if len(ids) and int(ids.min()) < 0:
        ids = ids[ids >= 0]
    return np.bincount(ids, minlength=size)[:size].astype(np.int64)


def take(table: Int32s, ids: Int32s) -> Int32s:
    """Return `table[id]` for each row, -1 for an id of -1."""
    if _groupby is not None and _is_plain(table, ids):
        result = np.empty(len(ids), np.int32)
        _groupby.take(table, ids, result)
        return result
    return np.append(table, np.int32(-1))[ids]


def occurrence_numbers(ids: Ids, size: int) -> Int32s:
    """Return for each row how many earlier rows have the same id (0 for the first one). Ids are 0 … size-1."""
    result = np.empty(len(ids), np.int32)
    if _groupby is not None and _is_plain(ids):
        _groupby.number(ids, None, 1, np.zeros(size, np.int32), result)
        return result
    order = np.argsort(ids, kind="stable")
    first = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(ids, minlength=size)[:size], out=first[1:])
    result[order] = np.arange(len(ids), dtype=np.int64) - first[ids[order]]
    return result


def dealt(ids: Int32s, first: Int32s, each: Int32s) -> Int32s:
    """Deal the rows of every id, `each[id]` at a time, to the numbers from `first[id]` on; -1 where that is negative.

    Ids index `first` and `each`; `each` is at least 1.
    """
    if _groupby is not None and _is_plain(ids, first, each):
        result = np.empty(len(ids), np.int32)
        _groupby.deal(ids, first, each, np.zeros(len(first), np.int32), result)
        return result
    numbers = first[ids] + occurrence_numbers(ids, len(first)) // each[ids]
    return np.where(first[ids] < 0, np.int32(-1), numbers).astype(np.int32)


@dataclass(frozen=True)
class Cells:
    """How many rows each combination of an id and a part has, those that occur, ordered by id and part."""

    id: NDArray[np.int64]
    part: NDArray[np.int64]
    """-1 for rows whose part is negative."""
    count: NDArray[np.int64]


def numbered(ids: Int32s, parts: Int32s, num_ids: int, num_parts: int) -> tuple[Int32s, Cells]:
    """Return for each row how many earlier rows have the same id and part, and how many rows each pair has.

    Ids are 0 … num_ids-1, parts -1 … num_parts-1.
    """
    width = num_parts + 1
    if num_ids * width <= max(_SMALL_TABLE, 2 * len(ids)):
        if _groupby is not None and _is_plain(ids, parts):
            counters, numbers = np.zeros(num_ids * width, np.int32), np.empty(len(ids), np.int32)
            _groupby.number(ids, parts, width, counters, numbers)
        else:
            cell = ids.astype(np.int64) * width + np.where(parts < 0, num_parts, parts)
            counters, numbers = (
                counts(cell, num_ids * width).astype(np.int32),
                occurrence_numbers(cell, num_ids * width),
            )
        used = np.flatnonzero(counters)
        count = counters[used].astype(np.int64)
    else:  # Most pairs never occur: number those that do.
        cell = ids.astype(np.int64) * width + np.where(parts < 0, num_parts, parts)
        used, pair, count = np.unique(cell, return_inverse=True, return_counts=True)
        numbers = occurrence_numbers(pair.reshape(-1).astype(np.int32), max(len(used), 1))
    part = used % width
    return numbers, Cells(used // width, np.where(part == num_parts, -1, part), count)


def unique(values: NDArray[_Number]) -> NDArray[_Number]:
    """Return the different values, sorted: np.unique, which imports all of numpy.ma unless it counts them, too."""
    found: NDArray[_Number] = np.unique(values, return_counts=True)[0]
    return found


def dense(*columns: Ids) -> tuple[Int32s, list[tuple[int, ...]]]:
    """Number the distinct rows of several columns: return each row's number and the distinct rows in order."""
    if len(columns[0]) == 0:
        return np.zeros(0, np.int32), []
    code, values = _distinct(np.asarray(columns[0], np.int64))
    rows = [values]
    for column in columns[1:]:
        position, values = _distinct(np.asarray(column, np.int64))
        code, pairs = _distinct(code * len(values) + position)
        rows = [*(row[pairs // len(values)] for row in rows), values[pairs % len(values)]]
    return code.astype(np.int32), list(zip(*(row.tolist() for row in rows), strict=True))


def _distinct(column: Int64s) -> tuple[Int64s, Int64s]:
    """Return each row's position among the distinct values, and those in order."""
    low, high = int(column.min()), int(column.max())
    if high - low > 16 * len(column) + 1024:
        values, position = np.unique(column, return_inverse=True)
        return position.reshape(-1), values
    shifted = column - low
    present = np.zeros(high - low + 1, bool)
    present[shifted] = True
    values = np.flatnonzero(present)
    position = np.zeros(len(present), np.int64)
    position[values] = np.arange(len(values))
    return position[shifted], values + low


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

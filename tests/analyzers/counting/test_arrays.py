"""Group-by arithmetic against naive Python, which never rounds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analyzers.counting.arrays import counts, covered, dense, occurrence_numbers, sums

SIZE = 5
ids = st.lists(st.integers(-1, SIZE - 1), max_size=40)
big = st.integers(-(2**57), 2**57)


@given(ids.flatmap(lambda i: st.tuples(st.just(i), st.lists(big, min_size=len(i), max_size=len(i)))))
def test_sums_are_exact_beyond_what_a_float_holds(rows) -> None:
    keys, values = rows
    truth = [sum(v for k, v in zip(keys, values, strict=True) if k == n) for n in range(SIZE)]
    assert sums(np.array(keys, np.int32), np.array(values, np.int64), SIZE).tolist() == truth


def test_a_sum_that_a_float_would_round() -> None:
    assert sums(np.zeros(2, np.int32), np.array([2**53, 1], np.int64), 1).tolist() == [2**53 + 1]


@given(ids)
def test_counts_leave_out_negative_ids(keys) -> None:
    assert counts(np.array(keys, np.int32), SIZE).tolist() == [keys.count(n) for n in range(SIZE)]


@given(st.lists(st.integers(0, SIZE - 1), max_size=40))
def test_occurrence_numbers_count_earlier_equals(keys) -> None:
    truth = [keys[:k].count(keys[k]) for k in range(len(keys))]
    assert occurrence_numbers(np.array(keys, np.int32), SIZE).tolist() == truth


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)), max_size=30))
def test_dense_numbers_distinct_rows(rows) -> None:
    columns = [np.array([row[k] for row in rows], np.int64) for k in range(2)]
    number, distinct = dense(*columns)
    assert [distinct[k] for k in number.tolist()] == rows
    assert distinct == sorted(set(rows))


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


@given(intervals, intervals)
def test_covered_time_is_counted_once_however_much_overlaps(busy, windows) -> None:
    moments = {t for start, end in busy for t in range(start, end)}
    truth = [sum(t in moments for t in range(start, end)) for start, end in windows]

    def column(pairs, k):
        return np.array([pair[k] for pair in pairs], np.int64)

    found = covered(column(busy, 0), column(busy, 1), column(windows, 0), column(windows, 1))
    assert found.tolist() == truth

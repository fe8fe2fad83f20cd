"""The C passes against numpy's answers to the same questions, and ids that point outside."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.counting import arrays, selftime, totals
from analyzers.counting.executions import executions
from analyzers.counting.steps import find_steps
from analyzers.reading.columns import ABSENT
from analyzers.reading.xspace import read_xspace
from tests.analyzers.counting.nest import nest_program
from tests.builders.play import play
from tests.builders.spaces import Offload, cpu_space, gpu_space, tpu_space, trace_file

_groupby = pytest.importorskip("analyzers.counting._groupby", reason="the extension was not built here")

SIZE = 5


def without_extension(module):
    return mock.patch.object(module, "_groupby", None)


def rows(*columns):
    return st.lists(st.tuples(*columns), max_size=40).map(
        lambda table: [np.array([row[k] for row in table], np.int64) for k in range(len(columns))]
    )


big = st.integers(-(2**57), 2**57)
some_id = st.integers(0, SIZE - 1)


@given(rows(st.integers(-1, SIZE - 1), big))
def test_sums_and_counts_are_numpys(columns) -> None:
    ids, values = columns[0].astype(np.int32), columns[1]
    found = arrays.sums(ids, values, SIZE).tolist(), arrays.counts(ids, SIZE).tolist()
    with without_extension(arrays):
        assert found == (arrays.sums(ids, values, SIZE).tolist(), arrays.counts(ids, SIZE).tolist())


@given(rows(some_id, st.integers(-1, 2)), st.booleans())
def test_rows_are_numbered_as_numpy_does(columns, sparse) -> None:
    ids, parts = (column.astype(np.int32) for column in columns)
    seen: dict[tuple[int, int], int] = {}
    truth = []
    for pair in zip(ids.tolist(), parts.tolist(), strict=True):
        truth.append(seen.get(pair, 0))
        seen[pair] = truth[-1] + 1
    # Of very many possible pairs, only those that occur are numbered.
    with mock.patch.object(arrays, "_SMALL_TABLE", 0 if sparse else arrays._SMALL_TABLE):
        numbers, cells = arrays.numbered(ids, parts, SIZE, 3)
        with without_extension(arrays):
            assert arrays.numbered(ids, parts, SIZE, 3)[0].tolist() == numbers.tolist() == truth
    pairs = zip(cells.id.tolist(), cells.part.tolist(), cells.count.tolist(), strict=True)
    assert [(pair, n) for *pair, n in pairs] == [
        (list(pair), n) for pair, n in sorted(seen.items(), key=lambda item: (item[0][0], item[0][1] % 4))
    ]


@given(
    rows(some_id),
    st.lists(st.integers(-1, 3), min_size=SIZE, max_size=SIZE),
    st.lists(st.integers(1, 3), min_size=SIZE, max_size=SIZE),
)
def test_rows_are_dealt_and_looked_up_as_numpy_does(columns, first, each) -> None:
    ids = columns[0].astype(np.int32)
    tables = np.array(first, np.int32), np.array(each, np.int32)
    found = arrays.dealt(ids, *tables).tolist(), arrays.take(tables[0], ids - np.int32(1)).tolist()
    assert found[1] == [first[k - 1] if k else -1 for k in ids.tolist()]
    with without_extension(arrays):
        assert found == (arrays.dealt(ids, *tables).tolist(), arrays.take(tables[0], ids - np.int32(1)).tolist())


# Distances around the tolerance of 2000, so that all its cases come up; what has no place in time; no overflow.
moments = st.integers(0, 12).map(lambda k: k * 900)
starts = st.one_of(moments, moments, st.just(ABSENT))
durations = st.one_of(moments, moments, st.sampled_from([-900, 2**63 - 1, -(2**63)]))


@given(rows(starts, durations, some_id), st.lists(st.booleans(), min_size=SIZE, max_size=SIZE))
def test_nested_time_is_taken_away_as_numpy_does(columns, container) -> None:
    start, duration, op = columns
    order = np.lexsort((~duration, start))
    events = start[order], duration[order], op[order].astype(np.int32), np.array(container)
    found, truth = duration[order], duration[order]
    assert selftime._take_away_nested(*events, found)
    with without_extension(selftime):
        assert selftime._take_away_nested(*events, truth)
    assert found.tolist() == truth.tolist()


def _traces():
    program = nest_program()
    runs = play(program, devices=2, steps=3)
    in_pieces = play(program, devices=2, steps=3, pieces=lambda name: 1 + len(name) % 3)
    leaf = next(e.instruction for e in runs[0].executions if len(e.loops) == 2 and not e.container)
    return {
        "tpu": tpu_space(program, runs),
        "tpu with SparseCores": tpu_space(program, runs, offloads=(Offload(leaf, "sc.1", 11, 1000, (0, 1)),)),
        "gpu": gpu_space(program, in_pieces, copies=2),
        "cpu": cpu_space(program, in_pieces),
    }


@pytest.mark.parametrize("layout", ["tpu", "tpu with SparseCores", "gpu", "cpu"])
@pytest.mark.parametrize("by", [("op",), ("pass", "layer", "chunk"), ("op", "layer", "chunk"), ("chunk", "op")])
def test_totals_are_those_of_single_columns(tmp_path, layout, by) -> None:
    columns = read_xspace(trace_file(tmp_path, _traces()[layout]))
    done = executions(columns)
    steps = find_steps(columns, done)
    wanted = np.arange(len(done.ops)) % 3 > 0
    found = totals.totals(done, steps, by, wanted)
    with without_extension(totals):
        truth = totals.totals(done, steps, by, wanted)
    assert len(found) > 0
    assert list(found.keys) == list(truth.keys) == ["device", "step", *by]
    for one, other in zip(_columns(found), _columns(truth), strict=True):
        assert one.tolist() == other.tolist()


def _columns(table):
    return [*table.keys.values(), table.executions, table.duration_ps, table.self_ps]


def _int32(*values):
    return np.array(values, np.int32)


def _int64(*values):
    return np.array(values, np.int64)


def _tally(op=(0,), run=(0,), first_cell=(0,), slots=(0, 1, 1, 1, 1), group=(0,), cells=1):
    rows = len(op)
    out = [np.zeros(cells, np.int64) for _ in range(3)]
    columns = (
        _int32(*op),
        _int32(*run),
        np.zeros(rows, np.int32),
        None,
        np.ones(rows, np.int64),
        np.ones(rows, np.int64),
    )
    _groupby.tally(*columns, _int64(*first_cell), _int32(*slots), _int32(*group), *out)
    return [column.tolist() for column in out]


def test_a_tally_of_one_row() -> None:
    assert _tally() == [[1], [1], [1]]


@pytest.mark.parametrize(
    "outside",
    [
        {"op": (1,)},
        {"op": (-1,)},
        {"run": (1,)},
        {"first_cell": (1,)},
        {"first_cell": (2**62,)},
        {"slots": (0, 1, 2, 1, 1)},
        {"slots": (1, 1, 1, 1, 1)},
        {"slots": (0, 0, 1, 1, 1)},
        {"slots": (0, 1, 2**31 - 1, 1, 2**31 - 1)},
        {"group": (1,)},
        {"cells": 0},
    ],
    ids=str,
)
def test_a_tally_refuses_what_points_outside(outside) -> None:
    with pytest.raises(ValueError, match="outside its table"):
        _tally(**outside)


@pytest.mark.parametrize("wrong", [-1, SIZE, 2**31 - 1])
def test_ids_outside_are_refused(wrong) -> None:
    ids, out, table = _int32(0, wrong), _int32(0, 0), np.ones(SIZE, np.int32)
    with pytest.raises(ValueError, match="outside its table"):
        _groupby.number(ids, None, 1, table.copy(), out)
    with pytest.raises(ValueError, match="outside its table"):
        _groupby.deal(ids, table, table, table.copy(), out)
    with pytest.raises(ValueError, match="outside its table"):
        _groupby.take_away_nested(_int64(0, 1), _int64(1, 1), ids, np.ones(SIZE, np.uint8), 0, _int64(1, 1))
    _groupby.take(table, ids, out)
    assert out.tolist() == [1, -1]
    if wrong > 0:
        with pytest.raises(ValueError, match="outside its table"):
            _groupby.sums(ids, None, np.zeros(SIZE, np.int64))


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        _groupby.take(_int32(1), _int32(0, 0), _int32(0))
    with pytest.raises(ValueError, match="different lengths"):
        _groupby.number(_int32(0), _int32(), 1, _int32(0), _int32(0))
    with pytest.raises(ValueError, match="not an array"):
        _groupby.sums(b"abc", None, _int64(0))

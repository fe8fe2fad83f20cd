"""What encloses what, against cases drawn by hand and against a slow definition of the same thing."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers.reading import nesting
from analyzers.reading.columns import ABSENT
from analyzers.reading.nesting import enclosing
from analyzers.reading.xspace import read_xspace


def parents(rows, lines=None, tolerance=2000):
    start, duration = np.array(rows, np.int64).reshape(-1, 2).T
    lines = lines or [(0, len(rows))]
    first, last = (np.array(ends, np.int64) for ends in zip(*lines, strict=True))
    return enclosing(first, last, np.ascontiguousarray(start), np.ascontiguousarray(duration), tolerance).tolist()


@pytest.fixture(autouse=True, params=["c", "python"])
def implementation(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(nesting, "_walker", None)
    else:
        assert nesting._walker is not None


def test_a_while_encloses_its_body_and_not_what_follows():
    assert parents([(0, 100_000), (0, 30_000), (10_000, 5_000), (50_000, 50_000), (100_000, 9)]) == [
        -1,
        0,
        1,
        0,
        -1,
    ]


def test_neighbours_that_overlap_by_a_tick_are_beside_each_other():
    assert parents([(0, 10_001), (10_000, 5_000), (14_999, 1_250)]) == [-1, -1, -1]


def test_a_body_may_outlast_its_loop_by_the_tolerance():
    assert parents([(0, 10_000), (5_000, 7_000)]) == [-1, 0]
    assert parents([(0, 10_000), (5_000, 7_001)]) == [-1, -1]


def test_a_body_may_begin_before_its_loop_by_the_tolerance():
    assert parents([(0, 50_000), (1_000, 9_000), (3_000, 30_000)]) == [-1, 2, 0]
    assert parents([(0, 50_000), (1_000, 9_000), (3_001, 30_000)]) == [-1, 0, 0]


def test_short_neighbours_are_not_mistaken_for_bodies():
    assert parents([(0, 1_000), (1_000, 1_000), (2_000, 0), (2_000, 500)]) == [-1] * 4


def test_empty_executions_lie_inside_but_enclose_nothing():
    assert parents([(0, 10_000), (5_000, 0), (5_000, 0), (6_000, 0), (10_000, 0)]) == [-1, 0, 0, 0, -1]


def test_lines_do_not_enclose_each_other():
    assert parents([(0, 100_000), (1, 9_000), (5, 6_000)], lines=[(0, 1), (1, 3)]) == [-1, -1, 1]


def test_rows_without_a_place_in_time_stand_alone():
    assert parents([(ABSENT, 5), (ABSENT, 9), (0, 9_000), (1, 100)]) == [-1, -1, -1, 2]


def test_extreme_values_do_not_overflow():
    rows = [(-(2**63) + 1, 2**63 - 1), (-(2**62), 2**63 - 1), (2**62, 2**63 - 1), (2**63 - 1, 2**63 - 1)]
    assert len(parents(rows)) == 4
    assert parents([(0, -5), (0, -9)]) == [-1, -1]


@st.composite
def nests(draw):
    """Rows that nest exactly, with their parents: intervals cut again and again into parts."""
    rows = []

    def cut(start, duration, parent, depth):
        row = len(rows)
        rows.append((start, duration, parent))
        points = sorted(draw(st.lists(st.integers(0, duration // 10_000), max_size=6 - depth, unique=True)))
        for left, right in zip(points[::2], points[1::2], strict=False):
            cut(start + left * 10_000, (right - left) * 10_000, row, depth + 1)

    for number in range(draw(st.integers(1, 3))):
        cut(number * 10_000_000, 10_000_000, -1, 0)
    return rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nests(), st.randoms(use_true_random=False))
def test_a_nest_shaken_within_half_the_tolerance_is_found_again(rows, random):
    """Ends are moved by up to half a tick, as a rounded clock does; starts keep their order."""
    start = np.array([row[0] for row in rows], np.int64)
    end = np.array([row[0] + row[1] + random.randint(-600, 600) for row in rows], np.int64)
    same = [i for i, row in enumerate(rows) if row[2] >= 0 and rows[row[2]][:2] == row[:2]]
    end[same] = [end[rows[i][2]] for i in same]  # One that fills its parent stays second in order.
    order = np.lexsort((np.arange(len(rows)), -(end - start), start))
    shuffled = [(int(start[i]), int(end[i] - start[i])) for i in order]
    found = parents(shuffled)
    where = {int(old): new for new, old in enumerate(order)}
    expected = [where.get(rows[i][2], -1) for i in order]
    ambiguous = {
        new for new, old in enumerate(order) if any(rows[old][0] == r[0] for j, r in enumerate(rows) if j != old)
    }
    for new, (got, want) in enumerate(zip(found, expected, strict=True)):
        if new not in ambiguous and want not in ambiguous and got not in ambiguous:
            assert got == want


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 30), st.integers(-(2**63), 2**63 - 1)),
            st.one_of(st.integers(-3, 30), st.integers(-(2**63), 2**63 - 1)),
        )
    ),
    st.integers(0, 10),
)
def test_both_implementations_agree_on_anything(rows, tolerance):
    rows.sort(key=lambda row: (row[0], -row[1]))
    walker = nesting._walker
    nesting._walker = None
    try:
        slow = parents(rows, tolerance=tolerance)
    finally:
        nesting._walker = walker
    assert parents(rows, tolerance=tolerance) == slow


def test_no_op_of_the_real_tpu_trace_nests(real_traces):
    columns = read_xspace(real_traces / "tpu-v6e-4chip-psum-offload.xplane.pb")
    for line in columns.lines:
        if line.name == "XLA Ops":
            rows = slice(line.first, line.last)
            start, duration = columns.events.start_ps[rows], columns.events.duration_ps[rows]
            order = np.lexsort((-duration, start))
            assert len(order) > 1500
            lines = (np.array([0]), np.array([len(order)]))
            assert set(enclosing(*lines, start[order], duration[order]).tolist()) == {-1}


@pytest.mark.parametrize("line", ["tf_XLAExecute/-6550367021700328273", "tf_XLAExecute/-7966097109650117934"])
def test_a_while_of_the_real_cpu_trace_encloses_four_scatters(real_traces, line):
    columns = read_xspace(real_traces / "cpu-two-sorts-per-step.xplane.pb")
    found = next(entry for entry in columns.lines if entry.name == line)
    rows = slice(found.first, found.last)
    start, duration = columns.events.start_ps[rows], columns.events.duration_ps[rows]
    order = np.lexsort((-duration, start))
    parent = enclosing(np.array([0]), np.array([len(order)]), start[order], duration[order])
    names = [columns.strings[i] for i in columns.events.strings["hlo_op"][rows][order]]
    loops = [row for row, name in enumerate(names) if name == "while.16"]
    assert loops
    for loop in loops:
        inside = [names[row] for row in np.flatnonzero(parent == loop)]
        assert sum(name.startswith("wrapped_scatter") for name in inside) == 4

"""Rows and leftovers are all there is, whatever matches and whatever there is room for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.comparing.deltas import ReconciliationError, added, reconcile
from analyzers.comparing.diff import diff
from analyzers.comparing.matching import match, samples_by_op
from analyzers.counting.scopes import Pass
from analyzers.reading.run import load_run
from analyzers.trace import load, load_variants

SHAPE = (3, 2)
"""Steps of each session."""


def key(number):
    return Pass.FORWARD, f"op{number}", "f32[8]", "layer/router"


@st.composite
def sides(draw):
    """Samples of two sides by op, with ops that one side alone has."""
    times = st.integers(1, 10**9)

    def side(ops):
        return {key(op): tuple(np.array([draw(times) for _ in range(n)], float) for n in SHAPE) for op in ops}

    ops = st.sets(st.integers(0, 12), min_size=1)
    return side(draw(ops)), side(draw(ops)), draw(st.integers(0, 8))


@settings(max_examples=80, deadline=None)
@given(sides())
def test_rows_and_leftovers_add_up_to_the_totals(case):
    a, b, top = case
    like = tuple(np.zeros(n) for n in SHAPE)
    found = match(a, b, added(a.values(), like), added(b.values(), like), top)
    times = [*(row.time for row in found.rows), *found.rest]
    for side, ops in (("a", a), ("b", b)):
        parts = [getattr(row, side) for row in times]
        assert sum(part.mean for part in parts if part) == pytest.approx(getattr(found.total, side).mean)
        # The mean over all steps, added up here without the code under test.
        by_hand = sum(float(np.concatenate(blocks).sum()) for blocks in ops.values()) / sum(SHAPE)
        assert getattr(found.total, side).mean == pytest.approx(by_hand)
    shared, only_a, only_b = a.keys() & b.keys(), a.keys() - b.keys(), b.keys() - a.keys()
    shown = {(row.pass_, row.opcode, row.shape, row.scope): row.time for row in found.rows}
    assert len(shown) == min(top, len(a.keys() | b.keys()))
    for name, time in shown.items():
        assert ((time.a is None), (time.b is None)) == (name in only_b, name in only_a)
    left = {
        f"{n} more {where}"
        for where, ops in (("on both sides", shared), ("only in A", only_a), ("only in B", only_b))
        if (n := len(ops - shown.keys()))
    }
    assert {row.label for row in found.rest} == left


def test_the_largest_changes_come_first():
    a = {key(k): (np.array([100.0 * k, 100.0 * k]),) for k in range(1, 6)}
    b = {key(k): (np.array([100.0, 100.0]),) for k in range(1, 6)}
    total = [added(ops.values(), (np.zeros(2),)) for ops in (a, b)]
    assert [row.opcode for row in match(a, b, *total, 3).rows] == ["op5", "op4", "op3"]


def test_an_op_that_got_lost_is_an_error_and_no_table():
    a = {key(k): (np.array([5.0e6, 7.0e6]),) for k in range(3)}
    total = added(a.values(), (np.zeros(2),))
    match(a, a, total, total, 2)
    lost = {k: v for k, v in a.items() if k != key(1)}
    with pytest.raises(
        ReconciliationError, match="ops of B of step 0 in session 0 add up to 10000000 ps, not 15000000"
    ):
        match(a, lost, total, total, 2)


def test_rounding_of_a_mean_over_devices_is_no_fault():
    whole = (np.array([1e12 / 3]),)
    reconcile("ops", [(np.array([1e12 / 6]),), (np.array([1e12 / 6 + 0.4]),)], whole)
    with pytest.raises(ReconciliationError):
        reconcile("ops", [(np.array([1e12 / 6]),), (np.array([1e12 / 6 - 2000]),)], whole)


def test_a_layer_that_got_lost_is_noticed_in_a_comparison(ring_run, monkeypatch):
    a, b = load_variants(load_run(ring_run), ("recompute", "cached"))
    broken = replace(b)
    broken.__dict__["layers"] = b.layers[1:]
    with pytest.raises(ReconciliationError, match="layers of step 0"):
        diff(a, broken)


def test_ops_of_a_real_pair_reconcile_with_raw_sums(real_traces):
    pair = [load(real_traces / f"cpu-maxtext-deepseek-tiny-{v}.xplane.pb") for v in ("repeat", "gather")]
    found = diff(*pair, top=7)
    for side, trace in zip("ab", pair, strict=True):
        (session,) = trace.sessions
        raw = sum(file.by_op.self_ps.sum() for file in session) / trace.num_steps
        parts = [getattr(row, side) for row in (*(row.time for row in found.ops), *found.other_ops)]
        assert sum(part.mean for part in parts if part) == pytest.approx(raw)
    keys = [samples_by_op(trace).keys() for trace in pair]
    only = {"only in A": len(keys[0] - keys[1]), "only in B": len(keys[1] - keys[0])}
    shown = {"only in A": 0, "only in B": 0}
    for row in found.ops:
        shown["only in A"] += row.time.b is None
        shown["only in B"] += row.time.a is None
    labels = [row.label for row in found.other_ops]
    assert all(f"{only[w] - shown[w]} more {w}" in labels for w in only)

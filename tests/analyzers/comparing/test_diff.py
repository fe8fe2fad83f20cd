"""The comparison on a small real run and on real traces; expected values are worked out from the raw HLO."""

import numpy as np
import pytest

from analyzers.comparing.diff import Unknown, diff, hidden_saving
from analyzers.comparing.noise import noise_warnings
from analyzers.comparing.statistics import Verdict, saving
from analyzers.counting.kinds import Kind
from analyzers.counting.scopes import Pass
from analyzers.reading.run import load_run
from analyzers.trace import load, load_variants


@pytest.fixture(scope="module")
def ring(ring_run):
    return diff(*load_variants(load_run(ring_run), ("recompute", "cached")), top=10_000)


def test_sorts_that_caching_removes(ring):
    # Per layer, from the optimised HLO: `recompute` sorts experts, inverse and validity in the forward, experts and
    # inverse and the router's top-k again under remat, inverse and validity in the backward; `cached` only the first.
    found = {
        (row.pass_, row.kind): (row.a.executed if row.a else (0, 0), row.b.executed if row.b else (0, 0))
        for row in ring.sorts
    }
    assert found == {
        (Pass.FORWARD, Kind.ARGSORT): ((6, 6), (6, 6)),
        (Pass.FORWARD, Kind.TOP_K): ((2, 2), (2, 2)),
        (Pass.RECOMPUTE, Kind.ARGSORT): ((4, 4), (0, 0)),
        (Pass.RECOMPUTE, Kind.TOP_K): ((2, 2), (0, 0)),
        (Pass.BACKWARD, Kind.ARGSORT): ((4, 4), (0, 0)),
    }


def test_sorts_executed_are_those_compiled(ring):
    for trace in (ring.a, ring.b):
        assert all(row.executed == (row.compiled, row.compiled) for row in trace.sorts)


def test_every_row_of_time_adds_up_to_the_step(ring):
    for trace in (ring.a, ring.b):
        whole = np.concatenate(trace.self_ps())
        by_pass = sum(np.concatenate(trace.self_ps(pass_=p)) for p in trace.passes)
        by_layer = sum(np.concatenate(trace.self_ps(layer=k)) for k in (*trace.layers, -1))
        by_chunk = sum(np.concatenate(trace.self_ps(chunk=k)) for k in (*trace.chunks, -1))
        np.testing.assert_array_equal(by_pass, whole)
        np.testing.assert_array_equal(by_layer, whole)
        np.testing.assert_array_equal(by_chunk, whole)


def test_all_ops_reconcile_with_the_step(ring):
    saved_by_op = sum(row.time.saving.value for row in ring.ops)
    medians_of_sums = ring.self_time.saving.value
    # Medians do not add up; the ops' means must.
    for side in ("a", "b"):
        trace = getattr(ring, side)
        assert sum(np.concatenate(trace.self_ps_of_ops(lambda op: True))) == pytest.approx(
            sum(np.concatenate(trace.self_ps()))
        )
    assert np.isfinite(saved_by_op)
    assert np.isfinite(medians_of_sums)


def test_a_trace_against_itself_is_no_difference(ring_run):
    trace = load_variants(load_run(ring_run), ("cached",))[0]
    found = diff(trace, trace)
    assert found.one_program
    assert all(row.a.executed == row.b.executed for row in found.sorts)
    rows = [found.step_wall, found.self_time, found.sort_time, *found.by_pass, *found.by_layer, *found.by_chunk]
    assert {row.saving.verdict for row in rows} == {Verdict.NO_DIFFERENCE}
    assert {row.saving.value for row in rows} == {0.0}
    assert found.buffer_changes == ()


def test_the_saving_per_chunk_and_layer_is_that_of_the_step_in_equal_parts(ring):
    assert not isinstance(ring.per_chunk_per_layer, Unknown)
    assert ring.per_chunk_per_layer["step"].value == pytest.approx(ring.self_time.saving.value / 4)


def test_the_top_k_buffer_is_fused_away_on_this_backend(ring):
    found = ring.top_k_buffers
    assert not isinstance(found, Unknown)
    assert found.size_bytes == 4 * found.dispatch_input_bytes
    assert found.a_repeats == found.b_repeats == 0


def test_traces_of_two_compilations_are_matched_by_what_ops_are(real_traces):
    a = load(real_traces / "cpu-maxtext-deepseek-tiny-repeat.xplane.pb")
    b = load(real_traces / "cpu-maxtext-deepseek-tiny-gather.xplane.pb")
    found = diff(a, b)
    changed = {
        (row.pass_, row.kind): row.b.executed[0] - row.a.executed[0]
        for row in found.sorts
        if row.a.executed != row.b.executed
    }
    # One argsort more in the forward loop body, 4 layers.
    assert changed == {(Pass.FORWARD, Kind.ARGSORT): 4}
    assert isinstance(found.per_chunk_per_layer, Unknown)
    assert isinstance(found.top_k_buffers, Unknown)
    # The dots are the same ops under other names: none may be missing on a side.
    dots = [row for row in found.ops if row.opcode == "dot"]
    assert dots
    assert all(row.time.a and row.time.b for row in dots)


def measured(before, after, spread):
    """A saving of steps that take `before` and `after`, 6 rounds of 5 steps."""
    rng = np.random.default_rng(9)
    return saving(*([what + rng.normal(0, spread, 5) for _ in range(6)] for what in (before, after)))


def test_a_saving_that_does_not_shorten_the_step_is_said_to_be_hidden():
    device = measured(1000, 900, 2)
    assert [c.name for c in hidden_saving(device, measured(2000, 2000, 2))] == ["hidden-saving"]
    # A step that got longer hides it, too.
    assert [c.name for c in hidden_saving(device, measured(2000, 2050, 2))] == ["hidden-saving"]
    # Steps that vary by more than was saved prove nothing.
    assert [c.name for c in hidden_saving(device, measured(2000, 1900, 900))] == ["unseen-saving"]
    assert hidden_saving(device, measured(2000, 1900, 2)) == ()
    assert hidden_saving(measured(1000, 1000, 2), measured(2000, 2000, 2)) == ()
    assert hidden_saving(None, measured(2000, 2000, 2)) == ()


def test_steps_in_warnings_are_called_as_in_the_run(ring_run):
    a, b = load_variants(load_run(ring_run), ("recompute", "cached"))
    steps = [np.array([1000.0, 1001.0, 999.0, 1002.0, 998.0]) * 1e6 for _ in range(2)]
    steps[1][3] *= 3
    for trace in (a, b):
        trace.__dict__["step_wall_ps"] = tuple(steps)
        for session in trace.sessions:
            for file in session:
                object.__setattr__(file, "step_labels", (0, 1, 2, 3, 4))
    assert [(c.name, "round_1 step 3" in c.message) for c in noise_warnings(a, b)] == [("outlier-steps", True)] * 2

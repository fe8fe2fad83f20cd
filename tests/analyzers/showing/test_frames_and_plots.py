"""Frames add up to what the trace says by another way; charts show the numbers of the tables."""

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest

import analyzers
from analyzers.comparing.places import place_savings, places

mpl.use("Agg")


@pytest.fixture(scope="module")
def sides(ring_run):
    return [analyzers.load(ring_run, variant=name) for name in ("recompute", "cached")]


@pytest.fixture(autouse=True)
def _close():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def test_the_public_names_cost_nothing_until_used():
    script = "import sys, analyzers; print(sorted({'numpy', 'pandas', 'matplotlib', 'jax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_times_add_up_to_each_step(sides):
    for trace in sides:
        frame = analyzers.frames.times(trace)
        per_step = frame.groupby(["session", "step"]).self_ps.sum().to_numpy() / len(trace.devices)
        np.testing.assert_allclose(per_step, np.concatenate(trace.self_ps()))
        assert frame.layer.dropna().unique().tolist() == [0, 1]
        assert frame.chunk.isna().any()


def test_sorts_have_the_counts_of_the_optimised_program(sides):
    # From the optimised HLO of both variants, as in tests/analyzers/comparing/test_diff.py.
    totals = [analyzers.frames.sorts(trace)[["executed_max", "compiled"]].sum().tolist() for trace in sides]
    assert totals == [[18, 18], [8, 8]]


def test_buffers_and_steps(sides):
    frame = analyzers.frames.buffers(sides[0])
    assert frame.size_bytes.is_monotonic_decreasing
    np.testing.assert_allclose(frame.size_bytes / frame.dispatch_input_ratio, sides[0].variant.dispatch_input_bytes)
    assert analyzers.frames.steps(sides[0])[["session", "step"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_a_trace_without_a_buffer_assignment_has_no_rows_but_the_columns(real_traces):
    trace = analyzers.load(real_traces / "tpu-v6e-4chip-psum-offload.xplane.pb")
    frame = analyzers.frames.buffers(trace)
    assert len(frame) == 0 or trace.buffers is not None
    assert "size_bytes" in frame.columns


def test_bars_are_the_executed_sorts(sides):
    ax = analyzers.plots.sorts_by_pass(sides)
    assert [[bar.get_height() for bar in group] for group in ax.containers] == [[8, 6, 4], [8, 0, 0]]
    assert "per step" in ax.get_ylabel()


def test_dots_are_the_steps_and_the_bar_their_median(sides):
    ax = analyzers.plots.step_times(sides)
    dots = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(np.concatenate(dots), np.concatenate([b for t in sides for b in t.step_wall_ps]) / 1e6)
    assert ax.get_xlabel().endswith("µs")


def test_the_map_is_the_savings(sides):
    found = analyzers.diff(*sides)
    ax = analyzers.plots.layer_chunk(found)
    expected = place_savings(*(places(t, (0, 1), (0, 1)) for t in sides))
    np.testing.assert_allclose(ax.images[0].get_array(), [[s.value / 1e6 for s in row] for row in expected])
    (bar,) = [other for other in ax.figure.axes if other is not ax]
    assert "µs" in bar.get_ylabel()


def test_buffers_are_in_mib_beside_the_dispatch_input(sides):
    ax = analyzers.plots.buffer_sizes(sides, top=3)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [b.size_bytes / 2**20 for b in sides[0].buffers.buffers[:3]])
    assert ax.lines[2].get_ydata()[0] == sides[0].variant.dispatch_input_bytes / 2**20
    assert ax.get_ylabel() == "size, MiB"

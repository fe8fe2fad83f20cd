"""Frames add up to what the trace says by another way; charts show the numbers of the tables."""

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import analyzers
from analyzers.comparing.places import place_savings, places
from analyzers.errors import UserError

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


def test_executions_add_up_to_each_step_and_to_the_sorts(sides):
    for trace, sorts in zip(sides, (18, 8), strict=True):
        frame = trace.executions
        per_step = frame.groupby(["session", "step"]).self_ps.sum().to_numpy() / len(trace.devices)
        np.testing.assert_allclose(per_step, np.concatenate(trace.self_ps()))
        assert frame.device.unique().tolist() == ["CPU:0", "CPU:1"]
        # Every sort is an op of its own here: 18 and 8 per step and device, as in the optimised HLO.
        of_sorts = frame[frame.kind.isin(["sort", "argsort", "top_k"])]
        assert set(of_sorts.groupby(["session", "device", "step"]).executions.sum()) == {sorts}
        assert (frame.duration_ps >= frame.self_ps).all()
        assert set(frame.columns[4:10]) == {"op", "opcode", "kind", "pass", "shape", "scope"}


def test_what_hangs_on_a_trace_are_the_frames(sides):
    trace = sides[0]
    assert trace.routing.equals(analyzers.frames.sorts(trace))
    assert trace.to_frame().equals(analyzers.frames.times(trace))
    assert trace.to_frame("steps").equals(analyzers.frames.steps(trace))
    with pytest.raises(ValueError, match="no frame 'walls'; choose one of times, executions, steps, sorts, buffers"):
        trace.to_frame("walls")


def test_a_comparison_as_rows(sides):
    found = analyzers.diff(*sides)
    layers = found.to_frame(by="layer")
    assert layers.layer.tolist() == [0, 1, pd.NA]
    # The other way: medians of the frame of times.
    times = [trace.to_frame() for trace in sides]
    for side, frame in zip("ab", times, strict=True):
        own = frame[frame.layer == 1].groupby(["session", "step"]).self_ps.sum() / 2
        assert layers[f"{side}_median_ps"][1] == pytest.approx(own.median(), abs=1)
    assert found.to_frame()["a_mean_ps"].sum() == pytest.approx(layers["a_mean_ps"].sum(), rel=1e-6)
    assert str(layers.saving_low_ps.dtype) == "Int64"


def test_a_report_is_written_once(sides, tmp_path):
    found = analyzers.diff(*sides)
    assert found.report(tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert found.report(tmp_path / "report.md").read_text().startswith("### recompute → cached")
    (tmp_path / "report.md").write_text("mine")
    with pytest.raises(UserError, match=r"report\.md exists; give overwrite=True"):
        found.report(tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text() == "mine"
    both = analyzers.report([found, found], tmp_path / "report.md", overwrite=True)
    assert both.read_text().count("### recompute → cached") == 2
    with pytest.raises(UserError, match=r"ends in neither \.html nor \.md"):
        found.report(tmp_path / "report.pdf")


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

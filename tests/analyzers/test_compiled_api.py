"""What the public API says of a compile result, against counts taken from the text of the compiled module."""

import re

import matplotlib as mpl
import pytest

import analyzers
from analyzers.errors import UserError

mpl.use("Agg")


@pytest.fixture(scope="module")
def compiled(compiled_ring):
    return analyzers.load_compiled(compiled_ring)


@pytest.fixture(autouse=True)
def _close():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def _sorts_in_text(text):
    """Sorts per step without top-k, in all and in chunk loops, by following loop bodies in the text of the module.

    The outer loops run over 2 layers, those inside them over 4 chunks (compile.json: num_layers, num_chunks).
    """
    depth, sorts, bodies, own = {}, {}, {}, ""
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%(\S+) \(.*\{$", line):
            own = header[1]
            sorts[own], bodies[own] = 0, []
            if line.startswith("ENTRY"):
                depth[own] = 0
        elif own:
            sorts[own] += bool(re.search(r" sort\(", line)) and "/top_k" not in line
            bodies[own] += re.findall(r" while\(.*body=%([^\s,]+)", line)
    todo = list(depth)
    while todo:
        name = todo.pop()
        for body in bodies[name]:
            depth[body] = depth[name] + 1
            todo.append(body)
    total = sum(sorts[name] * (1, 2, 8)[depth[name]] for name in depth)
    return total, sum(sorts[name] * 8 for name in depth if depth[name] == 2)


def test_compiled_sorts_are_those_of_the_text(compiled):
    assert [_sorts_in_text(program.text) for program in compiled.programs] == [(32, 16), (8, 0)]


def test_the_funnel_as_rows(compiled):
    frame = analyzers.frames.funnel(compiled)
    own = frame[frame.kind.isin(["sort", "argsort"])].groupby(["program", "level"]).executions.sum()
    # README, "Sorts that survive compilation", less the top-k of each layer and pass.
    assert own["recompute"].to_dict() == {"traced": 26, "lowered": 26, "compiled": 32}
    assert own["cached"].to_dict() == {"traced": 6, "lowered": 6, "compiled": 8}
    assert not frame.unknown.any()


def test_the_funnel_as_bars(compiled):
    ax = analyzers.plots.funnel(compiled, "backward")
    heights = {group.get_label(): [bar.get_height() for bar in group] for group in ax.containers}
    assert heights == {"recompute": [16, 16, 22], "of these in chunk loops": [16], "cached": [0, 0, 2]}
    assert ax.get_ylabel() == "sorts per step and device"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["traced", "lowered", "compiled"]


def test_the_buffers_at_the_peak_add_up_to_it(compiled):
    for program in compiled.programs:
        frame = analyzers.frames.alive_at_peak(program)
        assert frame.size_bytes.is_monotonic_decreasing
        assert int(frame.size_bytes.sum()) == program.peak.size_bytes
        ax = analyzers.plots.peak([program])
        drawn = sum(bar.get_width() for group in ax.containers for bar in group)
        assert drawn == pytest.approx(program.peak.size_bytes / 2**20)
        assert ax.get_xlabel() == "alive at the peak, MiB per device"


def test_a_first_budget_is_kept_and_a_tighter_one_is_not(compiled, tmp_path):
    budget = tmp_path / "budget.toml"
    text = analyzers.first_budget(compiled)
    budget.write_text(text)
    assert {c.outcome.name for c in analyzers.check(budget, compiled)} == {"KEPT"}
    assert "sorts_in_chunk_loops = 16" in text
    budget.write_text(text.replace("sorts_in_chunk_loops = 16", "sorts_in_chunk_loops = 15"))
    found = analyzers.frames.checks(analyzers.check(budget, compiled))
    assert found[found.outcome == "broken"].limit.tolist() == ["ring.recompute.backward.sorts_in_chunk_loops"]


def test_traces_are_held_against_a_budget_too(ring_run, tmp_path):
    traces = [analyzers.load(ring_run, variant=name) for name in ("recompute", "cached")]
    budget = tmp_path / "budget.toml"
    budget.write_text("[ring.cached.backward]\nsorts = 6\n[ring.recompute.backward]\nsorts = 13\n")
    # 8 and 18 sorts less 2 and 4 top-k.
    assert [(c.measured, c.outcome.name) for c in analyzers.check(budget, traces)] == [("6", "KEPT"), ("14", "BROKEN")]


def test_a_folder_that_is_no_compile_result(tmp_path):
    with pytest.raises(UserError, match=r"holds no compile\.json; give the folder that `moe-prof compile -o` wrote"):
        analyzers.load_compiled(str(tmp_path))

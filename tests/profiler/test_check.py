"""`moe-prof check`: whole outputs on a run that is the same everywhere, and a cached variant broken on purpose."""

import dataclasses
import json
from xml.etree import ElementTree

import pytest

from analyzers.compiled import load_compiled
from profiler import compile_worker
from profiler.cli.main import main
from profiler.compile import CompileRequest, Workload, merged
from workloads import ring
from workloads.registry import preset_config

BUDGETS = {
    "kept": """
[ring.cached.backward]
sorts = 6
sorts_per_layer = 3
sorts_in_chunk_loops = 0
sorts_by_pass = {forward = 6, recompute = 0, backward = 0}
peak_bytes = {max_ratio_to = "recompute", value = 1.05}
saving_us_per_chunk_per_layer = {against = "recompute", min = 0}
removed_buffer = "top_k"
""",
    "broken": """
[ring.cached.backward]
sorts = 5
peak_bytes = {max_ratio_to = "recompute", value = 1.0}
saving_us_per_chunk_per_layer = {against = "recompute", min = 1000, confident = true}

[ring.recompute.backward]
sorts_by_pass = {recompute = 0, backward = 4}
""",
    "cannot-tell": """
[ring.cached.backward]
sorts = 6
temp_bytes = {max_ratio_to = "saved", value = 1.0}

[ring.cached.forward]
sorts = 6
""",
}
EXIT_CODES = {"kept": 0, "broken": 1, "cannot-tell": 2}


@pytest.fixture
def run(capsys):
    """Run the command line; return exit code, standard output and standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.mark.parametrize("color", ["never", "always"])
@pytest.mark.parametrize("name", BUDGETS)
def test_a_run_against_budgets(run, golden, ring_run, tmp_path, name, color):
    budget = tmp_path / "budget.toml"
    budget.write_text(BUDGETS[name])
    code, out, err = run("--color", color, "check", budget, ring_run)
    assert (code, err) == (EXIT_CODES[name], "")
    golden(f"check-{name}-{color}.txt", out)


def test_annotations_and_junit_beside_the_lines(run, ring_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    budget = tmp_path / "budget.toml"
    budget.write_text(BUDGETS["broken"] + "[ring.cached.forward]\nsorts = 6\n")
    code, out, _ = run("check", "budget.toml", ring_run, "--github", "--junit", "report.xml")
    annotations = [line for line in out.splitlines() if line.startswith("::")]
    assert code == 1
    assert [line.split("::")[1].split(" ")[0] for line in annotations].count("error") == 4
    assert "::error file=budget.toml,title=ring.cached.backward.sorts::BROKEN: measured 6, limit ≤ 5" in annotations
    assert any(
        a.startswith("::warning file=budget.toml,title=ring.cached.forward.sorts::cannot tell") for a in annotations
    )
    suite = ElementTree.parse("report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "4", "1")


def test_json_says_what_the_lines_say(run, ring_run, tmp_path):
    budget = tmp_path / "budget.toml"
    budget.write_text(BUDGETS["broken"] + "[ring.cached.forward]\nsorts = 6\n")
    code, out, err = run("check", budget, ring_run, "--json")
    assert (code, err) == (1, "")
    found = {(".".join(c["section"]), c["limit"], c["detail"]): c for c in json.loads(out)["checks"]}
    assert {key: c["outcome"] for key, c in found.items()} == {
        ("ring.cached.backward", "sorts", None): "broken",
        ("ring.cached.backward", "peak_bytes", None): "broken",
        ("ring.cached.backward", "saving_us_per_chunk_per_layer", "recompute"): "broken",
        ("ring.recompute.backward", "sorts_by_pass", "recompute"): "broken",
        ("ring.recompute.backward", "sorts_by_pass", "backward"): "ok",
        ("ring.cached.forward", "sorts", None): "cannot_tell",
    }
    sorts = found["ring.cached.backward", "sorts", None]
    assert (sorts["value"], sorts["min"], sorts["max"]) == (6, None, 5)
    peak = found["ring.cached.backward", "peak_bytes", None]
    assert (peak["ratio_to"], peak["value"]) == ("recompute", 518_804 / 508_668)
    assert found["ring.cached.forward", "sorts", None]["value"] is None
    assert run("check", budget, ring_run, "--json", "--github")[0] == 2


def test_a_first_budget_is_kept_by_its_run_and_never_overwritten(run, ring_run, tmp_path):
    budget = tmp_path / "budget.toml"
    assert run("check", budget, ring_run, "--write") == (0, f"wrote {budget}\n", "")
    code, out, _ = run("check", budget, ring_run)
    assert (code, "BROKEN" in out, "cannot tell" in out) == (0, False, False)
    code, out, err = run("check", budget, ring_run, "--write")
    assert (code, out) == (2, "")
    assert "exists and is not overwritten" in err


def compiled(variant, folder):
    """Compile in this process, so that what the test broke is what is compiled."""
    config = preset_config("tiny", 1, ep=2)
    request = CompileRequest(Workload("ring", variant, "backward", dataclasses.asdict(config)), num_devices=2)
    compile_worker.compile_one(request, folder, folder / "no-dump")
    return load_compiled(folder)


@pytest.mark.parametrize("broken", [False, True])
def test_a_cached_variant_that_does_not_pass_its_cache_on_breaks_the_budget(run, tmp_path, monkeypatch, broken):
    recompute = compiled("recompute", tmp_path / "a")
    if broken:
        route = ring.route_ring
        monkeypatch.setattr(ring, "route_ring", lambda *a: route(*a)._replace(sorted_by_validity=None))
    merged([recompute, compiled("cached", tmp_path / "b")], tmp_path / "both")
    budget = tmp_path / "budget.toml"
    budget.write_text(
        "[ring.cached.backward]\nsorts_per_layer = 3\nsorts_by_pass = {backward = 0}\n"
        'removed_buffer = "top_k"\n[ring.recompute.backward]\nsorts_per_layer = 7\n'
    )
    code, out, err = run("check", budget, tmp_path / "both")
    verdicts = [line.split()[1].rstrip(":") for line in out.splitlines()[:-1]]
    assert err == ""
    # Each gather-reduce then sorts for itself: one more per layer, in the backward.
    if broken:
        assert (code, verdicts) == (1, ["BROKEN", "BROKEN", "ok", "ok"])
        assert "ring.cached.backward.sorts_per_layer" in out.splitlines()[0]
        assert "measured 4, limit ≤ 3" in out.splitlines()[0]
        assert "measured 2, limit ≤ 0" in out.splitlines()[1]
    else:
        assert (code, verdicts) == (0, ["ok"] * 4)

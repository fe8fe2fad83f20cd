"""Whole outputs of `moe-prof show` and `moe-prof diff`, and every way to call them wrongly."""

import gzip
import json
import shutil

import pytest

from profiler.cli.main import main


@pytest.fixture
def run(capsys):
    """Run the command line; return exit code, standard output and standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.mark.parametrize("command", ["show", "diff"])
@pytest.mark.parametrize("color", ["never", "always"])
def test_a_run(run, golden, ring_run, monkeypatch, command, color):
    monkeypatch.chdir(ring_run.parent)
    code, out, err = run("--color", color, command, "ring-run")
    assert (code, err) == (0, "")
    golden(f"{command}-ring-run-{color}.txt", out)


def test_the_baseline_turns_the_comparison_round(run, ring_run):
    code, out, _ = run("diff", ring_run, "--baseline", "cached")
    assert code == 0
    assert "recompute executes 10 more sorts per step than cached: 8 → 18" in out


def test_of_several_variants_a_table_of_all_comes_first(run, ring_run, tmp_path):
    """The third variant is the first under another name, so nothing may differ between them."""
    three = tmp_path / "three"
    shutil.copytree(ring_run, three)
    manifest = json.loads((three / "run.json").read_text())
    (again,) = [v for v in manifest["variants"] if v["name"] == "recompute"]
    manifest["variants"].append({**again, "name": "again"})
    manifest["sessions"] += [{**s, "variant": "again"} for s in manifest["sessions"] if s["variant"] == "recompute"]
    (three / "run.json").write_text(json.dumps(manifest))
    for command in (("diff", three), ("report", three, "--markdown")):
        code, out, _ = run(*command)
        assert code == 0
        lines = out.splitlines()
        assert lines[0].removeprefix("### ") == "2 variants against recompute"
        table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[3:12] if line.startswith("|")]
        rows = {row[0]: row[1:] for row in table}
        assert [rows[name][:2] for name in ("recompute", "cached", "again")] == [["18", ""], ["8", "−10"], ["18", "0"]]
        assert rows["again"][-1].startswith("~ +0.000")
        assert lines[2].startswith("0 of 2 variants shorten the step of recompute, 2 are not to be told from it.")
        headings = [line.removeprefix("### ") for line in lines]
        assert headings.index("recompute → cached") < headings.index("recompute → again")


def test_two_traces(run, golden, real_traces, monkeypatch):
    monkeypatch.chdir(real_traces)
    names = [f"cpu-maxtext-deepseek-tiny-{v}.xplane.pb" for v in ("repeat", "gather")]
    code, out, err = run("diff", *names)
    assert (code, err) == (0, "")
    golden("diff-maxtext.txt", out)


@pytest.mark.parametrize(
    "name",
    [
        "cpu-maxtext-deepseek-tiny-repeat",
        "cpu-two-sorts-per-step",
        "gpu-mi300-conv-jax08",
        "gpu-mi355-fused-attention",
        "tpu-v6e-4chip-psum-offload",
    ],
)
def test_every_kind_of_trace(run, golden, real_traces, monkeypatch, name):
    monkeypatch.chdir(real_traces)
    code, out, err = run("show", f"{name}.xplane.pb")
    assert (code, err) == (0, "")
    golden(f"show-{name}.txt", out)


def test_json_has_whole_picoseconds_and_reproduces_the_table(run, real_traces):
    code, out, _ = run("show", real_traces / "cpu-two-sorts-per-step.xplane.pb", "--json")
    assert code == 0
    trace = json.loads(out)["traces"][0]
    # The two events of `sort.20` in each of the 3 steps, added by hand from the raw protobuf.
    assert trace["sorts"] == [
        {
            "pass": "forward",
            "kind": "argsort",
            "executed_min": 1,
            "executed_max": 1,
            "compiled": 1,
            "self_ps": [[9_297_000 + 211_528_000, 1_974_000 + 242_165_000, 8_978_000 + 217_867_000]],
        }
    ]
    assert trace["steps"] == [[0, 1, 2]]


def test_json_of_a_comparison_parses_and_carries_both_sides(run, ring_run):
    code, out, _ = run("diff", ring_run, "--json")
    assert code == 0
    (found,) = json.loads(out)["diffs"]
    assert [found["a"]["name"], found["b"]["name"]] == ["recompute", "cached"]
    assert found["sort_time"]["saving"]["value_ps"] == pytest.approx(
        _mean_of_median_differences(found["a"], found["b"]), abs=1
    )


def _mean_of_median_differences(a, b):
    def sorts(side):
        sessions = zip(*(row["self_ps"] for row in side["sorts"]), strict=True)
        return [[sum(step) for step in zip(*rows, strict=True)] for rows in sessions]

    def median(values):
        ordered = sorted(values)
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    differences = [median(x) - median(y) for x, y in zip(sorts(a), sorts(b), strict=True)]
    return sum(differences) / len(differences)


def test_what_cannot_be_read_is_said_in_one_sentence(run, golden, tmp_path, ring_run, real_traces, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = real_traces / "cpu-two-sorts-per-step.xplane.pb"
    whole = real.read_bytes()
    (tmp_path / "empty.xplane.pb").touch()
    (tmp_path / "cut.xplane.pb").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.xplane.pb").write_text("not a trace, but a letter to the reader\n" * 9)
    (tmp_path / "no-traces").mkdir()
    (tmp_path / "garbage.xplane.pb.gz").write_bytes(gzip.compress(b"\x07" * 1000))
    shutil.copytree(ring_run, tmp_path / "ring-run")
    calls = [
        ("show", "missing.xplane.pb"),
        ("show", "no-traces"),
        ("show", "empty.xplane.pb"),
        ("show", "cut.xplane.pb"),
        ("show", "text.xplane.pb"),
        ("show", "garbage.xplane.pb.gz"),
        ("show", "ring-run", "--variant", "cahced"),
        ("show", "text.xplane.pb", "--variant", "cached"),
        ("show", "ring-run", "--layer-scope", "("),
        ("show", "ring-run", "--module", "jit_other"),
        ("show", "ring-run", "--top", "0"),
        ("diff", "ring-run", "--baseline", "nothing"),
        ("diff", "ring-run", "--variant", "cached"),
        ("diff", "ring-run", "ring-run"),
        ("diff", "ring-run", "a", "b"),
        ("diff", "a", "b", "--baseline", "cached"),
    ]
    lines = []
    for call in calls:
        code, out, err = run(*call)
        assert (code, out) == (2, ""), call
        assert err.count("\n") == 1, err
        lines.append(f"$ moe-prof {' '.join(call)}\n{err}")
    golden("bad-input.txt", "".join(lines))


def test_a_trace_without_device_ops_is_refused(run, tmp_path):
    from analyzers.reading.protos import xplane_pb2

    space = xplane_pb2.XSpace()
    space.planes.add(name=b"/host:CPU").lines.add(name=b"python", timestamp_ns=5)
    (tmp_path / "host.xplane.pb").write_bytes(space.SerializeToString())
    code, out, err = run("show", tmp_path / "host.xplane.pb")
    assert (code, out) == (2, "")
    assert "holds no device ops (its planes are /host:CPU)" in err


def test_a_torso_is_read_on_request_and_says_at_least(run, tmp_path, real_traces):
    whole = (real_traces / "tpu-v6e-4chip-psum-offload.xplane.pb").read_bytes()
    (tmp_path / "cut.xplane.pb").write_bytes(whole[: len(whole) // 2])
    code, out, _ = run("show", tmp_path / "cut.xplane.pb", "--partial")
    assert code == 0
    assert "every count and total is at least what is shown" in out


def test_strict_refuses_sides_that_differ_in_more_than_the_variant(run, ring_run, tmp_path):
    for side, wanted in (("a", "recompute"), ("b", "cached")):
        shutil.copytree(ring_run, tmp_path / side)
        manifest = json.loads((tmp_path / side / "run.json").read_text())
        manifest["variants"] = [v for v in manifest["variants"] if v["name"] == wanted]
        manifest["sessions"] = [s for s in manifest["sessions"] if s["variant"] == wanted]
        if side == "b":
            manifest["versions"]["jax"] = "0.12.0"
        (tmp_path / side / "run.json").write_text(json.dumps(manifest))
    # The difference is the first thing said, and red.
    code, out, err = run("--color", "always", "diff", tmp_path / "a", tmp_path / "b")
    assert (code, err) == (0, "")
    first = out.split("\n\n")[1]
    assert "The sides differ in jax: recompute has 0.1" in first
    assert "\x1b[31m" in first
    for command in (("diff",), ("report", "--markdown")):
        code, out, err = run(*command, tmp_path / "a", tmp_path / "b", "--strict")
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert "recompute and cached differ in more than the variant: jax (0.1" in err
    code, out, err = run("diff", ring_run, "--strict")
    assert (code, err) == (0, "")
    assert "The sides differ" not in out

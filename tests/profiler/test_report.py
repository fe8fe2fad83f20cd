"""`moe-prof report` as a person calls it: what it prints, what it writes, what it refuses."""

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


def test_markdown_of_a_run(run, golden, ring_run, monkeypatch):
    monkeypatch.chdir(ring_run.parent)
    code, out, err = run("report", "ring-run", "--markdown", "--top", "5")
    assert (code, err) == (0, "")
    golden("report-ring-run.md", out)


def test_markdown_of_two_traces(run, golden, real_traces, monkeypatch):
    monkeypatch.chdir(real_traces)
    names = [f"cpu-maxtext-deepseek-tiny-{v}.xplane.pb" for v in ("repeat", "gather")]
    code, out, err = run("report", *names, "--markdown", "--top", "5")
    assert (code, err) == (0, "")
    golden("report-maxtext.md", out)


def test_what_is_not_the_variant_stands_on_top(run, ring_run, tmp_path):
    for side, wanted in (("a", "recompute"), ("b", "cached")):
        shutil.copytree(ring_run, tmp_path / side)
        manifest = json.loads((tmp_path / side / "run.json").read_text())
        manifest["variants"] = [v for v in manifest["variants"] if v["name"] == wanted]
        manifest["sessions"] = [s for s in manifest["sessions"] if s["variant"] == wanted]
        if side == "b":
            manifest["versions"]["jax"] = "0.12.0"
            manifest["config"]["num_tokens"] = 1 << 20
        (tmp_path / side / "run.json").write_text(json.dumps(manifest))
    code, out, _ = run("report", tmp_path / "a", tmp_path / "b", "--markdown")
    assert code == 0
    box = out.split("\n\n")[1].splitlines()
    assert box[0] == "> [!CAUTION]"
    assert "jax: recompute has 0.1" in box[1]
    assert "cached has 0.12.0" in box[1]
    assert "config num_tokens" in box[2]
    assert len(box) == 3


def test_a_page_is_written_whole_and_replaced_only_by_force(run, ring_run, tmp_path):
    page = tmp_path / "report.html"
    page.write_text("mine")
    code, out, err = run("report", ring_run, "-o", page)
    assert (code, out) == (2, "")
    assert "report.html exists; add --force" in err
    assert page.read_text() == "mine"
    code, out, err = run("report", ring_run, "-o", page, "--force")
    assert (code, out) == (0, "")
    assert page.read_text().startswith("<!doctype html>")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say where the page goes with -o report.html"),
        (("-o", "."), "is a folder; name the file"),
        (("-o", "missing/report.html"), "missing is no folder"),
        (("--markdown", "--variant", "cached"), "has one side only"),
    ],
)
def test_refusals_are_one_sentence(run, ring_run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("report", ring_run, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1

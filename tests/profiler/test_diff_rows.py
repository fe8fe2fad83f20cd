"""`moe-prof diff --by`, and the rows of `diff` and `show` as CSV and Parquet."""

import json
from io import StringIO

import pandas as pd
import pytest

import analyzers
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


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("layer", ("--by", "layer")),
        ("device", ("--by", "device", "--sort", "b")),
        ("op-filtered", ("--filter", "argsort|scatter", "--sort", "a", "--top", "4")),
        ("scope", ("--by", "scope", "--top", "3")),
    ],
)
def test_one_table(run, golden, ring_run, monkeypatch, name, arguments):
    monkeypatch.chdir(ring_run.parent)
    code, out, err = run("diff", "ring-run", *arguments)
    assert (code, err) == (0, "")
    golden(f"diff-ring-run-by-{name}.txt", out)


def test_json_has_the_table_beside_all_else(run, ring_run):
    code, out, _ = run("diff", ring_run, "--by", "layer", "--filter", "layer", "--json")
    assert code == 0
    (found,) = json.loads(out)["diffs"]
    table = found["table"]
    assert [table["by"], table["sort"], table["filter"]] == ["layer", "name", "layer"]
    assert [row["layer"] for row in table["rows"]] == [0, 1, None]
    assert table["rows"][1]["saving"]["value_ps"] == found["by_layer"][1]["saving"]["value_ps"]
    assert (table["filter_leaves_out"], table["rest"]) == (None, [])
    assert table["total"] == found["self_time"] | {"label": "all layers"}
    code, out, _ = run("diff", ring_run, "--json")
    assert "table" not in json.loads(out)["diffs"][0]


def test_csv_has_every_row_in_picoseconds(run, ring_run, tmp_path):
    file = tmp_path / "ops.csv"
    code, out, err = run("diff", ring_run, "--csv", file)
    assert (code, err) == (0, f"wrote {file} (213 rows)\n")
    assert out.startswith("recompute → cached")
    table = pd.read_csv(file)
    assert table.columns[:6].tolist() == ["a", "b", "pass", "opcode", "shape", "scope"]
    assert all(name.endswith("_ps") for name in table.columns[6:-1])
    # All ops of both sides: their means are those of the step.
    for side, variant in (("a", "recompute"), ("b", "cached")):
        trace = analyzers.load(ring_run, variant=variant)
        mean = sum(float(block.sum()) for block in trace.self_ps()) / trace.num_steps
        assert table[f"{side}_mean_ps"].sum() == pytest.approx(mean, abs=len(table))
    only = table.set_index(["opcode", "pass"])[["a_mean_ps", "b_mean_ps"]].isna().sum()
    assert only.tolist() == [15, 22]
    # What caching removes: both sorts of the backward pass are of one side only.
    removed = table[(table.opcode == "sort") & (table["pass"] == "backward")]
    assert (len(removed), removed.b_mean_ps.isna().all()) == (2, True)


def test_rows_of_csv_follow_the_table(run, ring_run, tmp_path):
    code, _, _ = run("diff", ring_run, "--by", "chunk", "--sort", "a", "--top", "2", "--csv", tmp_path / "chunks.csv")
    assert code == 0
    table = pd.read_csv(tmp_path / "chunks.csv", dtype={"chunk": "Int64"})
    assert table.chunk.isna().tolist() == [True, False]
    assert table.a_median_ps.is_monotonic_decreasing


def test_parquet_is_the_same_table(run, ring_run, tmp_path):
    files = [tmp_path / "times.csv", tmp_path / "times.parquet"]
    code, _, err = run("show", ring_run, "--csv", files[0], "--parquet", files[1])
    assert code == 0
    assert [line.split(" (")[0] for line in err.splitlines()] == [f"wrote {file}" for file in files]
    kept = pd.read_parquet(files[1])
    again = pd.read_csv(StringIO(kept.to_csv(index=False)))
    pd.testing.assert_frame_equal(pd.read_csv(files[0]), again)
    assert kept.self_ps.dtype == "int64"
    for variant, rows in kept.groupby("variant"):
        trace = analyzers.load(ring_run, variant=variant)
        assert rows.self_ps.sum() == sum(float(b.sum()) for b in trace.self_ps()) * len(trace.devices)


@pytest.mark.parametrize("frame", ["executions", "steps", "sorts", "buffers"])
def test_show_writes_the_frame_that_is_asked_for(run, ring_run, tmp_path, frame):
    code, _, _ = run("show", ring_run, "--variant", "cached", "--frame", frame, "--csv", tmp_path / "rows.csv")
    assert code == 0
    expected = analyzers.load(ring_run, variant="cached").to_frame(frame)
    expected.insert(0, "variant", "cached")
    assert (tmp_path / "rows.csv").read_text() == expected.to_csv(index=False)


def test_a_file_is_never_replaced(run, ring_run, tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("mine")
    for command in ("diff", "show"):
        code, out, err = run(command, ring_run, "--csv", file)
        assert (code, out) == (2, "")
        assert err == f"moe-prof: {file} exists; name another file.\n"
    assert file.read_text() == "mine"
    code, _, err = run("diff", ring_run, "--csv", tmp_path / "missing" / "x.csv")
    assert code == 2
    assert "missing is no folder" in err


def test_without_pyarrow_one_sentence_says_what_to_install(run, ring_run, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = run("diff", ring_run, "--parquet", tmp_path / "x.parquet")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "pip install 'moe-prof[parquet]'" in err


def test_a_bad_filter_is_one_sentence(run, ring_run):
    code, out, err = run("diff", ring_run, "--filter", "(")
    assert (code, out) == (2, "")
    assert "--filter '(' is not a regular expression" in err
    assert err.count("\n") == 1

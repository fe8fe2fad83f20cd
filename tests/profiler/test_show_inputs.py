"""One trace in every place and wrapping that `show` takes says the same."""

import gzip
import json
import shutil

import fsspec
import pytest
import zstandard

from profiler.cli.main import main
from tests.analyzers.counting.nest import nest_program
from tests.builders.play import play
from tests.builders.spaces import tpu_space, trace_file

EARLIER, LATEST = "2026_01_01_00_00_00", "2026_01_02_00_00_00"


@pytest.fixture
def show(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["show", *(str(a) for a in arguments)])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log directory of two sessions: three steps, then two."""
    folder = tmp_path_factory.mktemp("inputs") / "log"
    for session, steps in ((EARLIER, 3), (LATEST, 2)):
        trace_file(folder, tpu_space(nest_program(), play(nest_program(), steps=steps)), "host", session)
    return folder


def _told(show, *arguments):
    """What is said of the trace, without where it was read."""
    code, out, err = show("--json", *arguments)
    assert (code, err) == (0, "")
    (trace,) = json.loads(out)["traces"]
    assert trace["caveats"] == []
    return {key: value for key, value in trace.items() if key not in ("name", "path", "hosts")}


def test_a_file_a_profile_directory_and_a_log_directory(show, log):
    latest = log / "plugins" / "profile" / LATEST
    expected = _told(show, latest / "host.xplane.pb")
    assert [len(steps) for steps in expected["steps"]] == [2]
    for path in (latest, log, log / "plugins" / "profile", f"{log}/"):
        assert _told(show, path) == expected
    assert _told(show, log, "--session", LATEST) == expected
    assert [len(s) for s in _told(show, log, "--session", EARLIER)["steps"]] == [3]


def test_a_wrong_session_lists_those_there_are(show, log):
    assert show(log, "--session", "last") == (
        2,
        "",
        f"moe-prof: {log} holds no session 'last': it holds {EARLIER}, {LATEST}.\n",
    )


def test_a_run_has_no_sessions_to_choose_from(show, ring_run):
    code, out, err = show(ring_run, "--session", "x")
    assert (code, out) == (2, "")
    assert err.startswith(f"moe-prof: --session chooses among the sessions of a log directory, but {ring_run} is a run")


@pytest.mark.parametrize(
    ("ending", "compress"),
    [("gz", gzip.compress), ("zst", zstandard.ZstdCompressor().compress), ("", gzip.compress)],
    ids=["gzip", "zstd", "gzip that is not called so"],
)
def test_compressed_files(show, log, tmp_path, ending, compress):
    plain = log / "plugins" / "profile" / LATEST / "host.xplane.pb"
    path = tmp_path / f"host.xplane.pb{'.' * bool(ending)}{ending}"
    path.write_bytes(compress(plain.read_bytes()))
    assert _told(show, path) == _told(show, plain)


def test_what_fsspec_opens(show, log):
    """`memory://` stands for `gs://`, `s3://` and the others: one interface serves them all."""
    files = fsspec.filesystem("memory")
    files.put(str(log), "/inputs", recursive=True)
    for url in ("memory://inputs", f"memory://inputs/plugins/profile/{LATEST}/host.xplane.pb"):
        assert _told(show, url) == _told(show, log)
    code, out, err = show("memory://inputs", "--session", "x")
    assert (code, out) == (2, "")
    assert err == f"moe-prof: memory://inputs holds no session 'x': it holds {EARLIER}, {LATEST}.\n"


def test_a_moved_directory_is_the_same(show, log, tmp_path):
    shutil.copytree(log / "plugins" / "profile" / LATEST, tmp_path / "elsewhere")
    assert _told(show, tmp_path / "elsewhere") == _told(show, log)

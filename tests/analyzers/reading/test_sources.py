"""Which files a path names: a file, a profile directory, a log directory, here or elsewhere."""

import fsspec
import pytest

from analyzers.errors import UserError
from analyzers.reading.sources import find_sources, source
from analyzers.reading.xspace import read_xspace
from tests.analyzers.reading.test_bad_files import two_planes


@pytest.fixture
def log(tmp_path):
    def make(*files: str):
        for name in files:
            path = tmp_path / "plugins" / "profile" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        return tmp_path

    return make


def names(found) -> list[str]:
    return [file.path.rsplit("profile/", 1)[-1] for file in found.files]


def test_a_file_is_itself(log):
    path = log("s/a.xplane.pb") / "plugins/profile/s/a.xplane.pb"
    found = find_sources(path)
    assert [file.path for file in found.files] == [str(path)]
    assert found.files[0].hostname == "a"


def test_a_profile_directory_gives_the_files_of_all_hosts(log):
    path = log("s/a.xplane.pb", "s/b.xplane.pb.gz", "s/c.xplane.pb.zst", "s/notes.txt") / "plugins/profile/s"
    found = find_sources(str(path) + "/")
    assert names(found) == ["s/a.xplane.pb", "s/b.xplane.pb.gz", "s/c.xplane.pb.zst"]
    assert [file.hostname for file in found.files] == ["a", "b", "c"]
    assert found.session == "s"
    with pytest.raises(UserError, match="is itself the session 's', not 't'"):
        find_sources(path, session="t")


def test_a_log_directory_gives_its_latest_session(log):
    path = log("2026_01_02_00_00_00/a.xplane.pb", "2026_01_01_00_00_00/a.xplane.pb")
    for directory in (path, path / "plugins", path / "plugins" / "profile"):
        found = find_sources(directory)
        assert names(found) == ["2026_01_02_00_00_00/a.xplane.pb"]
        assert found.sessions == ("2026_01_01_00_00_00", "2026_01_02_00_00_00")
    assert names(find_sources(path, session="2026_01_01_00_00_00")) == ["2026_01_01_00_00_00/a.xplane.pb"]
    with pytest.raises(UserError, match="holds no session 'x': it holds 2026_01_01_00_00_00, 2026_01_02"):
        find_sources(path, session="x")


def test_hosts_that_start_seconds_apart_are_one_run(log):
    path = log(
        "2026_01_01_00_00_00/a.xplane.pb",
        "2026_01_01_00_00_59/b.xplane.pb",
        "2026_01_01_00_01_01/c.xplane.pb",
        "2026_01_01_00_01_02/c.xplane.pb",
    )
    assert names(find_sources(path)) == ["2026_01_01_00_01_02/c.xplane.pb"]
    for session in ("2026_01_01_00_00_00", "2026_01_01_00_00_59"):
        found = find_sources(path, session=session)
        assert names(found) == ["2026_01_01_00_00_00/a.xplane.pb", "2026_01_01_00_00_59/b.xplane.pb"]
        assert found.session == "2026_01_01_00_00_00"


def test_sessions_with_names_of_their_own_are_not_joined(log):
    assert names(find_sources(log("one/a.xplane.pb", "two/b.xplane.pb"))) == ["two/b.xplane.pb"]


def test_chrome_json_is_taken_only_where_no_xplane_is_beside_it(log):
    path = log("s/a.xplane.pb", "s/a.trace.json.gz", "t/a.trace.json.gz", "t/perfetto_trace.json.gz")
    assert names(find_sources(path, session="s")) == ["s/a.xplane.pb"]
    found = find_sources(path, session="t")
    assert names(found) == ["t/a.trace.json.gz"]
    assert found.files[0].format == "chrome"
    named = find_sources(path / "plugins/profile/s/a.trace.json.gz")
    assert named.files[0].format == "chrome"
    assert source("x/perfetto_trace.json.gz").format == "chrome"


def test_what_holds_no_trace_is_refused(log, tmp_path):
    with pytest.raises(UserError, match="does not exist: name a trace file"):
        find_sources(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no trace"):
        find_sources(tmp_path / "empty")
    with pytest.raises(UserError, match="Riegeli format, which is not read"):
        find_sources(log("s/a.xplane.riegeli"))


def test_a_session_on_another_file_system_is_found_and_read():
    files = fsspec.filesystem("memory")
    content = two_planes().SerializeToString()
    for session in ("2026_01_01_00_00_00", "2026_01_02_00_00_00"):
        with files.open(f"/bucket/log/plugins/profile/{session}/a.xplane.pb", "wb") as file:
            file.write(content)
    found = find_sources("memory://bucket/log")
    assert names(found) == ["2026_01_02_00_00_00/a.xplane.pb"]
    assert len(read_xspace(found.files[0]).events) == 12
    with pytest.raises(UserError, match="does not exist"):
        find_sources("memory://bucket/elsewhere")
    with pytest.raises(UserError, match="cannot be read"):
        read_xspace("memory://bucket/none.xplane.pb")
    with pytest.raises(UserError, match="cannot be opened"):
        find_sources("nosuchscheme://bucket")


def test_reading_leaves_a_directory_as_it_was(log, tmp_path):
    path = log("s/a.xplane.pb")
    (path / "plugins/profile/s/a.xplane.pb").write_bytes(two_planes().SerializeToString())
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    read_xspace(find_sources(path).files[0])
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before

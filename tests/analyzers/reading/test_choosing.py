"""Which reader is used, with and without the C extension."""

import sys

import pytest

import analyzers.reading
from analyzers.errors import UserError
from analyzers.reading import xspace
from analyzers.reading.xspace import active_reader, read_xspace
from tests.analyzers.reading.test_bad_files import two_planes


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(two_planes().SerializeToString())
    return file


@pytest.fixture
def without_extension(monkeypatch):
    for name in ("_walker", "c_reader"):
        monkeypatch.delattr(analyzers.reading, name, raising=False)
        monkeypatch.delitem(sys.modules, f"analyzers.reading.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "analyzers.reading._walker", None)
    xspace._say_once_that_it_is_slow.cache_clear()
    yield
    xspace._say_once_that_it_is_slow.cache_clear()


def test_the_extension_is_used_where_it_is_there(path, caplog):
    assert active_reader() == "c"
    assert read_xspace(path).reader == "c"
    assert not caplog.records


def test_without_it_protobuf_reads_and_says_so_once(path, without_extension, caplog):
    assert active_reader() == "python"
    for _ in range(2):
        assert read_xspace(path).reader == "python"
    assert [record.getMessage() for record in caplog.records] == [
        "moe-prof: the C extension was not built here, so traces are read by a slower reader on protobuf."
    ]


def test_asking_for_what_is_not_there_is_refused(path, without_extension):
    with pytest.raises(UserError, match="The C extension of moe-prof is not built here"):
        read_xspace(path, reader="c")

import os
from pathlib import Path

import pytest

from analyzers.files import write_whole


def test_new_content_replaces_the_old(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    write_whole(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failure_leaves_the_old_content_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "f"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    ordinary, whole = tmp_path / "ordinary", tmp_path / "whole"
    ordinary.write_bytes(b"")
    write_whole(whole, b"")
    assert whole.stat().st_mode == ordinary.stat().st_mode

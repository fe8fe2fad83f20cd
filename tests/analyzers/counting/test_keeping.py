"""Facts of many files that are kept on disk are the same facts, and say the same."""

import mmap
import tempfile

import numpy as np
import pytest

from analyzers import trace
from analyzers.counting.keeping import Keeper
from analyzers.reading.xspace import read_xspace
from analyzers.showing.as_json import show_json
from analyzers.trace import load
from tests.analyzers.counting.facts import by_op, facts_of, self_ps_by_place
from tests.analyzers.counting.nest import nest_program
from tests.builders.play import default_durations, play
from tests.builders.spaces import tpu_space, trace_file

HOSTS = 4


@pytest.fixture(scope="module")
def spaces():
    program = nest_program()
    return [
        tpu_space(program, play(program, lambda *a, n=n: default_durations(*a) + 1250 * n, devices=2, steps=3))
        for n in range(HOSTS)
    ]


@pytest.fixture(scope="module")
def log(spaces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    for number, space in enumerate(spaces):
        trace_file(folder, space, f"host{number}")
    return folder


def _lies_in_a_map(array: np.ndarray) -> bool:
    owner = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return isinstance(owner, memoryview) and isinstance(owner.obj, mmap.mmap)


def test_tables_on_disk_hold_what_they_held_in_memory(spaces, tmp_path) -> None:
    keeper = Keeper(in_memory_bytes=0)
    for number, space in enumerate(spaces):
        facts = facts_of(tmp_path / str(number), space)
        kept = keeper.keep(facts)
        assert not _lies_in_a_map(facts.by_op.self_ps)
        assert _lies_in_a_map(kept.by_op.self_ps)
        assert _lies_in_a_map(kept.by_place.keys["layer"])
        assert by_op(kept) == by_op(facts)
        assert self_ps_by_place(kept) == self_ps_by_place(facts)
        assert kept.step_wall_ps.tolist() == facts.step_wall_ps.tolist()
        assert kept.ops == facts.ops


def test_what_files_have_in_common_is_kept_once(spaces, tmp_path) -> None:
    keeper = Keeper()
    first, *others = (keeper.keep(facts_of(tmp_path / str(n), space)) for n, space in enumerate(spaces))
    assert first.module is not None
    assert all(other.module is None and other.ops is first.ops for other in others)


def test_small_tables_stay_in_memory(spaces, tmp_path) -> None:
    facts = facts_of(tmp_path, spaces[0])
    assert Keeper().keep(facts).by_op is facts.by_op


@pytest.mark.parametrize("room_for_temporary_files", [True, False])
def test_where_tables_are_kept_does_not_change_what_is_said(log, monkeypatch, room_for_temporary_files, caplog) -> None:
    expected = show_json([load(log)])
    monkeypatch.setattr(trace, "Keeper", lambda: Keeper(in_memory_bytes=1))
    if not room_for_temporary_files:

        def full(**_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert show_json([load(log)]) == expected
    assert ("tables are kept in memory: No space left on device." in caplog.text) is not room_for_temporary_files


def test_a_host_without_its_hlo_does_not_take_the_module_from_the_others(spaces, tmp_path) -> None:
    space = type(spaces[0])()
    space.CopyFrom(spaces[0])
    for plane in space.planes:
        if plane.name == b"/host:metadata":
            plane.event_metadata.clear()
    path = trace_file(tmp_path, space, "host0")
    assert read_xspace(path).hlo_protos == {}
    trace_file(tmp_path, spaces[1], "host1")
    assert load(tmp_path).module is not None

"""What the files of a run have in common is kept once, their tables outside memory; neither changes what is said."""

import logging
import mmap
import tempfile

import numpy as np
import pytest

from analyzers.counting.facts import file_facts
from analyzers.counting.keeping import Keeper
from analyzers.reading import hosts, shelf
from analyzers.reading.hosts import Workers
from analyzers.reading.shelf import Shelf, Shelved
from analyzers.reading.xspace import read_xspace
from analyzers.showing.as_json import show_json
from analyzers.trace import LoadOptions, load
from tests.analyzers.counting.facts import by_op, facts_of, self_ps_by_place
from tests.analyzers.counting.nest import nest_program
from tests.benchmarks.reader_synthetic import write_trace
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


def test_tables_in_a_file_hold_what_they_held_in_memory(spaces, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shelf, "_WORTH_A_FILE_BYTES", 1)
    folder = tmp_path / "shelf"
    folder.mkdir()
    for number, space in enumerate(spaces):
        facts = facts_of(tmp_path / str(number), space)
        shelved = Shelf(0, str(folder)).put(facts)
        assert isinstance(shelved, Shelved)
        assert len(list(folder.iterdir())) == 1
        taken = shelved.take()
        assert list(folder.iterdir()) == []
        assert not _lies_in_a_map(facts.by_op.self_ps)
        assert _lies_in_a_map(taken.by_op.self_ps)
        assert _lies_in_a_map(taken.by_place.keys["layer"])
        assert by_op(taken) == by_op(facts)
        assert self_ps_by_place(taken) == self_ps_by_place(facts)
        assert taken.step_wall_ps.tolist() == facts.step_wall_ps.tolist()
        assert taken.ops == facts.ops


def test_no_column_is_left_in_memory(tmp_path, monkeypatch) -> None:
    """Where every op runs in every step on one device, the column of devices is one value: it must not be copied."""
    monkeypatch.setattr(shelf, "_WORTH_A_FILE_BYTES", 1)
    write_trace(tmp_path / "host.xplane.pb", 4000)
    facts = file_facts(read_xspace(tmp_path / "host.xplane.pb"))
    taken = Shelf(0).put(facts).take()
    for table in (taken.by_op, taken.by_place, taken.sorts_by_place):
        for column in (*table.keys.values(), table.group, table.executions, table.self_ps, table.duration_ps):
            assert _lies_in_a_map(column)


def test_memory_holds_what_it_has_room_for() -> None:
    shelf_ = Shelf(5 << 20)
    two = np.zeros(2 << 20, np.uint8)
    assert shelf_.put(two) is two
    assert shelf_.put(two) is two
    third = shelf_.put(two)
    assert isinstance(third, Shelved)
    assert third.take().tolist() == two.tolist()
    assert shelf_.put(two[:1000]).base is two  # Small things are not worth a file.


def test_without_room_for_files_memory_is_used(monkeypatch, caplog) -> None:
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    result = np.zeros(2 << 20, np.uint8)
    full_shelf = Shelf(0)
    with caplog.at_level(logging.WARNING):
        assert full_shelf.put(result) is result
        assert full_shelf.put(result) is result
    assert [r.getMessage() for r in caplog.records] == ["moe-prof: tables are kept in memory: No space left on device."]


def test_what_files_have_in_common_is_kept_once(spaces, tmp_path) -> None:
    keeper = Keeper()
    first, *others = (keeper.keep(facts_of(tmp_path / str(n), space)) for n, space in enumerate(spaces))
    assert first.module is not None
    assert all(other.module is None and other.ops is first.ops for other in others)
    assert all(other.step_labels is first.step_labels for other in others)


@pytest.mark.parametrize("jobs", [1, 2])
def test_where_tables_are_kept_does_not_change_what_is_said(log, monkeypatch, jobs) -> None:
    expected = show_json([load(log)])
    monkeypatch.setattr(shelf, "_WORTH_A_FILE_BYTES", 1)
    monkeypatch.setattr(hosts, "_IN_MEMORY_BYTES", 0)
    found = load(log, options=LoadOptions(workers=Workers(jobs=jobs)))
    assert all(_lies_in_a_map(file.by_op.self_ps) for file in found.sessions[0])
    assert show_json([found]) == expected


def test_what_is_made_of_a_single_file_stays_in_memory(log, monkeypatch) -> None:
    monkeypatch.setattr(shelf, "_WORTH_A_FILE_BYTES", 1)
    monkeypatch.setattr(hosts, "_IN_MEMORY_BYTES", 0)
    path = next(log.rglob("host0.xplane.pb"))
    assert not _lies_in_a_map(load(path).sessions[0][0].by_op.self_ps)


def test_a_host_without_its_hlo_does_not_take_the_module_from_the_others(spaces, tmp_path) -> None:
    space = type(spaces[0])()
    space.CopyFrom(spaces[0])
    for plane in space.planes:
        if plane.name == b"/host:metadata":
            plane.event_metadata.clear()
    trace_file(tmp_path, space, "host0")
    trace_file(tmp_path, spaces[1], "host1")
    assert load(tmp_path).module is not None

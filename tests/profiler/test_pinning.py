"""CPU affinity: what the threads of a capture may use, and that it is given back."""

import os
import threading

import pytest

from analyzers.errors import UserError
from profiler import pinning
from profiler.pinning import cpu_list, parse_cpu_list, pinned

MINE = sorted(os.sched_getaffinity(0))


def test_threads_made_inside_are_kept_to_the_cpus() -> None:
    seen = []
    with pinned([MINE[0]]) as cpus:
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert cpus == (MINE[0],)
    assert seen == [{MINE[0]}]
    assert sorted(os.sched_getaffinity(0)) == MINE


def test_it_is_given_back_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), pinned([MINE[0]]):
        raise KeyboardInterrupt
    assert sorted(os.sched_getaffinity(0)) == MINE


def test_auto_leaves_out_the_second_thread_of_each_core(tmp_path, monkeypatch) -> None:
    kept = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 3, 5, 6})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: kept.append(set(cpus)))
    monkeypatch.setattr(pinning, "_TOPOLOGY", str(tmp_path / "{}"))
    for cpu, siblings in ((1, "1,5"), (5, "1,5"), (2, "2,6"), (6, "2,6")):  # nobody tells of 3
        (tmp_path / str(cpu)).write_text(f"{siblings}\n")
    with pinned(None) as cpus:
        assert cpus == (1, 2, 3)
    assert kept == [{1, 2, 3}, {1, 2, 3, 5, 6}]


def test_cpus_that_are_not_ours_are_refused() -> None:
    with pytest.raises(UserError) as error, pinned([MINE[0], 100_000]):
        pass
    assert str(error.value) == (
        f"--pin names CPU 100000, but this process may use {cpu_list(MINE)} only; choose of these."
    )
    assert sorted(os.sched_getaffinity(0)) == MINE


def test_other_systems_are_refused(monkeypatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(UserError, match=r"--pin needs Linux"), pinned(None):
        pass


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", (0,)), ("0-3,6", (0, 1, 2, 3, 6)), ("6, 1-2", (1, 2, 6)), ("3-3", (3,))]
)
def test_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus
    assert parse_cpu_list(cpu_list(cpus)) == cpus


@pytest.mark.parametrize("text", ["", "x", "3-1", "-1", "1,,2", "1-"])
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cpu_list(text)

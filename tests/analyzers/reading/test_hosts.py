"""Many files: who reads them, in which order results come, and what a bad file or a dead worker does."""

import os
import sys
from collections.abc import Sequence

import pytest

from analyzers.errors import UserError
from analyzers.reading import hosts
from analyzers.reading.hosts import Unreadable, Workers, map_files

BAD = 3


def _read(item: int) -> tuple[int, int]:
    if item == BAD:
        raise UserError(f"file {item} is bad.")
    return item * item, os.getpid()


def _die(item: int) -> int:
    if item == BAD:
        os._exit(1)
    return item


def _squares(results) -> list:
    return [r if isinstance(r, Unreadable) else r[0] for r in results]


EXPECTED = [0, 1, 4, Unreadable("file 3 is bad."), 16, 25, 36, 49, 64]


def _readers(results) -> set[int]:
    return {r[1] for r in results if not isinstance(r, Unreadable)}


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order_and_a_bad_file_is_one_of_them(jobs) -> None:
    results = list(map_files(_read, range(9), Workers(jobs=jobs)))
    assert _squares(results) == EXPECTED
    assert (os.getpid() in _readers(results)) == (jobs == 1)
    assert len(_readers(results)) <= jobs


def test_a_pool_is_started_only_where_it_pays(tmp_path) -> None:
    small, big = tmp_path / "small", tmp_path / "big"
    small.write_bytes(b"x" * 1000)
    with big.open("wb") as file:
        file.truncate(65 << 20)
    me = {os.getpid()}
    assert _readers(map_files(_read, [0, 1], Workers(), [str(small), str(small)])) == me
    assert _readers(map_files(_read, [0], Workers(), [str(big)])) == me
    assert _readers(map_files(_read, [0], Workers(jobs=4))) == me
    # A script that does not guard its main module against being imported again must not start processes unasked.
    assert _readers(map_files(_read, [0, 1], paths=[str(big), str(big)])) == me
    if hosts._cores() > 1:
        assert _readers(map_files(_read, [0, 1], Workers(), [str(small), str(big)])).isdisjoint(me)


class _Watched(Sequence):
    """Items that know how many of them were handed out."""

    taken = 0

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError
        self.taken = max(self.taken, index + 1)
        return index


def test_only_as_many_files_are_under_way_as_keep_the_workers_busy() -> None:
    items = _Watched()
    results = map_files(_read, items, Workers(jobs=2))
    assert next(results)[0] == 0
    assert items.taken <= 2 * 2 + 1
    results.close()


def test_a_worker_that_dies_is_told_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"ended early, perhaps for want of memory: use fewer with --jobs"):
        list(map_files(_die, range(9), Workers(jobs=2)))


@pytest.fixture(scope="module")
def cluster():
    import distributed  # Here, for every worker process of the other tests imports this module.

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local:
        yield local.scheduler_address


def test_a_cluster_reads_the_same(cluster) -> None:
    results = list(map_files(_read, range(9), Workers(cluster=cluster)))
    assert _squares(results) == EXPECTED
    assert os.getpid() not in _readers(results)


def test_without_a_scheduler_one_sentence_says_so(monkeypatch) -> None:
    monkeypatch.setattr(hosts, "_SCHEDULER_ANSWERS_WITHIN", "200ms")
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        with pytest.raises(UserError, match=f"No dask scheduler answers at {address}") as raised:
            list(map_files(_read, range(2), Workers(cluster=address)))
        assert "\n" not in str(raised.value)


def test_without_dask_one_sentence_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r'pip install "moe-prof\[cluster\]"'):
        list(map_files(_read, range(2), Workers(cluster="tcp://127.0.0.1:8786")))

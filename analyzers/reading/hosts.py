"""Reads the many files of one run (a file per host, a session per round), several at a time.

What is done with a file is the caller's; here is only who does it: this process, a pool of local processes, or
the workers of a dask cluster. A worker holds one file at a time and hands back what the caller's function made
of it; arrays of that beyond some tens of megabytes are not in memory but in files, so that memory does not grow
with the number of files. Results come in the order of the files. A file that cannot be read is one of the results,
for it must not hide the others.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from analyzers.errors import UserError
from analyzers.reading.shelf import Shelf, Shelved
from analyzers.reading.sources import is_remote
from analyzers.timings import timed

if TYPE_CHECKING:
    import distributed

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)

_WORTH_A_POOL_BYTES = 64 << 20
"""Starting processes takes about as long as reading this much (seen: 0.4 s on two cores)."""
_WAITING_PER_WORKER = 2
_IN_MEMORY_BYTES = 64 << 20
_SCHEDULER_ANSWERS_WITHIN = "10s"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a file that could not be read; the reason names it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Workers:
    """Who reads. With neither, as many processes as there are files, cores, and a use for them.

    Processes import the program that asked for them once more: a script does so below `if __name__ == "__main__":`.
    """

    jobs: int | None = None
    """Number of processes; 1 means this one."""
    cluster: str | None = None
    """Address of a dask scheduler, whose workers see the same files."""


THIS_PROCESS = Workers(jobs=1)


class _Future(Protocol[_Result_co]):
    """What a pool and a cluster hand out for a file."""

    def result(self) -> _Result_co: ...


def map_files(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    workers: Workers = THIS_PROCESS,
    paths: Sequence[str] = (),
) -> Iterator[_Result | Unreadable]:
    """Yield `function(item)` for each item, in order; `Unreadable` for an item where it raises UserError.

    Args:
        function: What to make of one file. Elsewhere than in this process, it travels once to each worker,
            items and results once each, all of them pickled.
        items: One per file.
        workers: Who reads.
        paths: Where the files are, to tell whether a pool is worth starting.

    Raises:
        UserError: where there is no such cluster, or a worker died.

    """
    if workers.cluster is not None:
        return _kept(_on_cluster(function, items, workers.cluster))
    jobs = _jobs(workers.jobs, len(items), paths)
    if len(items) == 1:
        return _here(function, items)  # What is made of one file is no more than the file itself took.
    return _kept(_here(function, items) if jobs == 1 else _in_pool(function, items, jobs))


def _kept(results: Iterator[_Result | Unreadable | Shelved]) -> Iterator[_Result | Unreadable]:
    """Yield results, those beyond what memory is for from files."""
    shelf = Shelf(_IN_MEMORY_BYTES)
    for result in results:
        placed = result if isinstance(result, Shelved) else shelf.put(result)
        yield placed.take() if isinstance(placed, Shelved) else placed


def _jobs(wanted: int | None, num_items: int, paths: Sequence[str]) -> int:
    if wanted is None:
        wanted = _cores() if _worth_a_pool(paths) else 1
    return max(min(wanted, num_items), 1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _worth_a_pool(paths: Sequence[str]) -> bool:
    if any(is_remote(path) for path in paths):
        return True
    return sum(os.path.getsize(path) for path in paths if os.path.exists(path)) > _WORTH_A_POOL_BYTES


def _attempt(function: Callable[[_Item], _Result], item: _Item) -> _Result | Unreadable:
    try:
        return function(item)
    except UserError as error:
        return Unreadable(str(error))


def _here(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result | Unreadable]:
    for item in items:
        yield _attempt(function, item)


def _in_pool(
    function: Callable[[_Item], _Result], items: Sequence[_Item], jobs: int
) -> Iterator[_Result | Unreadable | Shelved]:
    # These imports cost more than reading a small trace.
    import multiprocessing
    import tempfile
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Not by fork: this process may have threads (numpy, jax), whose locks a forked copy would wait for forever.
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    folder = tempfile.TemporaryDirectory(prefix="moe-prof-")
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context(method), _begin, (function, folder.name))
    try:
        yield from _in_order(lambda item: pool.submit(_attempt_in_worker, item), items, jobs)
    except BrokenProcessPool as error:
        raise UserError(
            "A process that read one of the files ended early, perhaps for want of memory: use fewer with --jobs."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        folder.cleanup()


_function_of_worker: Callable[[Any], Any]
_shelf_of_worker: Shelf


def _begin(function: Callable[[Any], Any], folder: str) -> None:
    """Keep what the worker is to do with every file; ^C is for the process that started it."""
    global _function_of_worker, _shelf_of_worker
    _function_of_worker = function
    _shelf_of_worker = Shelf(0, folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _attempt_in_worker(item: Any) -> Any:
    return _shelf_of_worker.put(_attempt(_function_of_worker, item))


def _in_order(submit: Callable[[_Item], _Future[_Result]], items: Sequence[_Item], workers: int) -> Iterator[_Result]:
    """Yield results in the order of the items, with just enough of them handed out to keep the workers busy."""
    waiting: deque[_Future[_Result]] = deque()

    def first() -> _Result:
        with timed("workers"):
            return waiting.popleft().result()

    for item in items:
        if len(waiting) == _WAITING_PER_WORKER * workers:
            yield first()
        with timed("workers"):
            waiting.append(submit(item))
    while waiting:
        yield first()


def _on_cluster(
    function: Callable[[_Item], _Result], items: Sequence[_Item], address: str
) -> Iterator[_Result | Unreadable]:
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise UserError('--cluster needs dask.distributed: pip install "moe-prof[cluster]".') from None
    with _client(Client, address) as client:
        threads = sum(client.nthreads().values())
        if threads == 0:
            raise UserError(f"The dask scheduler at {address} has no workers: start some, then try again.")
        shared = client.scatter(function, broadcast=True)
        try:
            yield from _in_order(lambda item: client.submit(_attempt, shared, item, pure=False), items, threads)
        except KilledWorker as error:
            raise UserError(
                f"Workers of {address} died reading one of the files: {str(error).splitlines()[0]}"
            ) from error


def _client(client: type[distributed.Client], address: str) -> distributed.Client:
    try:
        return client(address, timeout=_SCHEDULER_ANSWERS_WITHIN, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"No dask scheduler answers at {address} (such as tcp://host:8786): {str(error).splitlines()[0]}"
        ) from error

"""CPU affinity of a capture: the cores its threads may use.

XLA's thread pools on a CPU are as large as the affinity of the process allows, so it must be set before jax makes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from analyzers.errors import UserError

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@contextmanager
def pinned(cpus: Iterable[int] | None) -> Iterator[tuple[int, ...]]:
    """Keep this process to `cpus`, or with None to one hardware thread of each core that it may use.

    Yields the CPUs. Raises UserError where the system has no affinity, or does not let this process use them.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("--pin needs Linux: this system cannot keep a process to CPUs; leave it out.")
    before = os.sched_getaffinity(0)
    wanted = _one_per_core(before) if cpus is None else set(cpus)
    if missing := wanted - before:
        raise UserError(
            f"--pin names CPU {cpu_list(missing)}, but this process may use {cpu_list(before)} only; choose of these."
        )
    os.sched_setaffinity(0, wanted)
    try:
        yield tuple(sorted(wanted))
    finally:
        os.sched_setaffinity(0, before)


def _one_per_core(cpus: set[int]) -> set[int]:
    """Return the first of those CPUs of each core; all of them where the system does not tell cores."""
    first: dict[str, int] = {}
    for cpu in sorted(cpus):
        try:
            core = Path(_TOPOLOGY.format(cpu)).read_text().strip()
        except OSError:
            core = str(cpu)
        first.setdefault(core, cpu)
    return set(first.values())


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs that a list such as `0-3,6` names. Raises ValueError if it is none."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        start, end = int(first), int(last if dash else first)
        if not 0 <= start <= end:
            raise ValueError(f"{part!r} is no range")
        cpus.update(range(start, end + 1))
    return tuple(sorted(cpus))


def cpu_list(cpus: Iterable[int]) -> str:
    """Return CPUs as the list that names them: `0-3,6`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)

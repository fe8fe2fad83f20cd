"""Where the seconds of a command go: parts of the work add their time up here, `--timings` prints it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_seconds: dict[str, float] = {}


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Add the wall time of the block to that of `part`. Parts do not nest."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        _seconds[part] = _seconds.get(part, 0.0) + time.perf_counter() - begin


def timings() -> dict[str, float]:
    """Return the seconds of each part so far, in the order in which the parts first ended."""
    return dict(_seconds)

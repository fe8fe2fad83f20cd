"""How running work shows itself on standard error: a bar on a terminal; of a capture, short lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from profiler.capture import Progress

Report = Callable[["Progress"], None]

_MANY_FILES = 8


@contextmanager
def bar() -> Iterator[Report]:
    """A progress bar that is gone at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("start", total=None)
        yield lambda now: shown.update(task, description=_sentence(now), completed=now.done, total=now.total)


@contextmanager
def lines() -> Iterator[Report]:
    """One line per compilation and per session."""

    def report(now: Progress) -> None:
        if now.stage in ("compile", "profile"):
            total = "" if now.total is None else f"/{now.total}"
            click.echo(f"[{now.done + 1}{total}] {_sentence(now)}", err=True)

    yield report


@contextmanager
def files_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar for files read of all files, where these are many; gone when they are, so that tables can follow."""
    bar: Bar | None = None

    def report(done: int, total: int) -> None:
        nonlocal bar
        if total < _MANY_FILES or not sys.stderr.isatty():
            return
        if bar is None:
            from rich.console import Console
            from rich.progress import Progress as Bar

            bar = Bar(console=Console(stderr=True), transient=True)
            bar.add_task("reading", total=total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done)
        if done == total:
            bar.stop()
            bar = None

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def _sentence(now: Progress) -> str:
    place = "" if now.round is None else f", round {now.round + 1}"
    parts = [f"{now.stage} {now.variant}{place}".rstrip()]
    if now.known is not None:
        spread = f"±{now.known.half_width:.1%}"
        parts.append(spread if now.known.of_itself else f"saves {now.known.value:+.1%} {spread}")
    if now.seconds_left is not None:
        parts.append(f"about {_duration(now.seconds_left)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"

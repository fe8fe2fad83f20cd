"""How a running capture shows itself: a bar on a terminal, short lines elsewhere; on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from profiler.capture import Progress

Report = Callable[["Progress"], None]


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
            click.echo(f"[{now.done + 1}/{now.total}] {_sentence(now)}", err=True)

    yield report


def _sentence(now: Progress) -> str:
    place = "" if now.round is None else f", round {now.round + 1}"
    return f"{now.stage} {now.variant}{place}".rstrip()

"""The option `--timings`: what each part of a command costs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from analyzers.timings import timings

_F = TypeVar("_F", bound=Callable[..., Any])


def timings_option(function: _F) -> _F:
    """Add `--timings`, which prints to standard error when the command is done."""
    option = click.option(
        "--timings",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_start,
        help="Print to standard error what each part costs, in seconds.",
    )
    return option(function)


def _start(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    parsed, started, before = time.perf_counter(), _process_age(), timings()

    def report() -> None:
        parts = {name: spent for name, now in timings().items() if (spent := now - before.get(name, 0.0))}
        total = started + time.perf_counter() - parsed
        # What no part claims: the start of Python, of click and of this program.
        parts = {"starting": total - sum(parts.values())} | parts
        for name, seconds in (*parts.items(), ("all", total)):
            click.echo(f"{name:<10} {seconds:8.3f} s", err=True)

    ctx.call_on_close(report)


def _process_age() -> float:
    """Return for how many seconds this process has run, to a hundredth; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # proc(5): field 22 is the start in clock ticks since boot; the second field may hold blanks.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(uptime - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    return 0.0

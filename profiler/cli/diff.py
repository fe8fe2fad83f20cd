"""`moe-prof diff`: the variants of one run, or any two traces."""

from __future__ import annotations

import click

from analyzers.timings import timed
from profiler.cli.reading import (
    comparing_options,
    exit_code,
    read_options,
    reading_options,
    refuse_differences,
    sides_of,
)
from profiler.cli.timings import timings_option


@click.command(short_help="What changed between two traces: sorts, time, buffers.")
@comparing_options
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Ops and buffers to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema in docs/json.md) instead of tables.")
@reading_options
@timings_option
def command(
    paths: tuple[str, ...],
    baseline: str | None,
    variants: tuple[str, ...],
    strict: bool,
    top: int,
    as_json: bool,
    **reading: object,
) -> int:
    """Compare the variants of a RUN, or two traces A and B.

    Savings are positive where B takes less. `~` marks a difference that cannot be told from noise.

    \b
    moe-prof diff RUN                        its variants against the first
    moe-prof diff RUN --baseline recompute   against another
    moe-prof diff before.xplane.pb after.xplane.pb
    """
    with timed("imports"):
        from analyzers.comparing.diff import diff
        from analyzers.showing.as_json import diff_json
        from analyzers.showing.diff_document import diff_document
        from analyzers.showing.text import print_document

    base, *others = sides_of(paths, variants, baseline, read_options(reading))
    if strict:
        refuse_differences(base, others)
    with timed("comparing"):
        diffs = [diff(base, other, top=top) for other in others]
    with timed("showing"):
        if as_json:
            click.echo(diff_json(diffs))
            return exit_code((base, *others))
        for number, one in enumerate(diffs):
            if number:
                click.echo()
            print_document(diff_document(one, top), color=click.get_current_context().color)
    return exit_code((base, *others))

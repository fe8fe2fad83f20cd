"""`moe-prof diff`: the variants of one run, or any two traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from analyzers.timings import timed
from profiler.cli.reading import (
    comparing_options,
    exit_code,
    pattern_option,
    read_options,
    reading_options,
    refuse_differences,
    sides_of,
)
from profiler.cli.timings import timings_option
from profiler.cli.writing import frame_options, write_frames

if TYPE_CHECKING:
    from analyzers.comparing.rows import By, Sort

_DEFAULT_TOP = 10


@click.command(short_help="What changed between two traces: sorts, time, buffers.")
@comparing_options
@click.option(
    "--by",
    type=click.Choice(["op", "scope", "layer", "chunk", "device"]),
    help="Print one table of times instead, a row for each of these.",
)
@click.option(
    "--sort",
    type=click.Choice(["saving", "a", "b", "name"]),
    help="Order of that table: largest change first (ops, scopes), longest in A or B first, or by name (all others).",
)
@click.option("--filter", "regex", metavar="REGEX", help="Give only rows of that table in whose name it is found.")
@click.option(
    "--top", type=click.IntRange(1), help="Ops, scopes and buffers to list, 10 by default; layers and the like: all."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema in docs/json.md) instead of tables.")
@frame_options
@reading_options
@timings_option
def command(
    paths: tuple[str, ...],
    baseline: str | None,
    variants: tuple[str, ...],
    strict: bool,
    by: str | None,
    sort: str | None,
    regex: str | None,
    top: int | None,
    as_json: bool,
    csv: Path | None,
    parquet: Path | None,
    **reading: object,
) -> int:
    """Compare the variants of a RUN, or two traces A and B.

    Savings are positive where B takes less. `~` marks a difference that cannot be told from noise. --sort and
    --filter are for the table that --by names, ops if it names none. --csv and --parquet write all its rows,
    or the first --top of them.

    \b
    moe-prof diff RUN                        its variants against the first
    moe-prof diff RUN --baseline recompute   against another
    moe-prof diff before.xplane.pb after.xplane.pb
    moe-prof diff RUN --by layer --sort saving --top 5
    moe-prof diff RUN --filter argsort       ops that sort, and what they come to together
    moe-prof diff RUN --by scope --csv scopes.csv
    """
    with timed("imports"):
        from analyzers.comparing.diff import diff
        from analyzers.comparing.rows import default_top, rows
        from analyzers.showing.as_json import diff_json
        from analyzers.showing.diff_document import diff_document
        from analyzers.showing.frames import differences
        from analyzers.showing.report_tables import summary
        from analyzers.showing.rows_document import rows_document, rows_json
        from analyzers.showing.text import print_document

    pattern = pattern_option("--filter", regex)
    cut = cast("By", by or "op")
    order = cast("Sort | None", sort)
    base, *others = sides_of(paths, variants, baseline, read_options(reading))
    if strict:
        refuse_differences(base, others)
    with timed("comparing"):
        diffs = [diff(base, other, top=top or _DEFAULT_TOP) for other in others]
        wanted = by is not None or sort is not None or pattern is not None
        shown = top or default_top(cut)
        tables = [rows(d.a, d.b, cut, sort=order, pattern=pattern, top=shown) for d in diffs] if wanted else []
    write_frames(csv, parquet, lambda: differences(diffs, cut, sort=order, pattern=pattern, top=top))
    with timed("showing"):
        if as_json:
            click.echo(diff_json(diffs, [rows_json(table) for table in tables]))
            return exit_code((base, *others))
        if wanted:
            documents = [rows_document(*pair) for pair in zip(diffs, tables, strict=True)]
        else:
            first = [summary(diffs)] if len(diffs) > 1 else []
            documents = first + [diff_document(one, top or _DEFAULT_TOP) for one in diffs]
        for number, document in enumerate(documents):
            if number:
                click.echo()
            print_document(document, color=click.get_current_context().color)
    return exit_code((base, *others))

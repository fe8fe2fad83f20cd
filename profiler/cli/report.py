"""`moe-prof report`: a comparison for people who were not there, as one HTML page or as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from analyzers.errors import UserError
from profiler.cli.reading import (
    comparing_options,
    exit_code,
    read_options,
    reading_options,
    refuse_differences,
    sides_of,
)
from profiler.cli.writing import check_output, write_output

if TYPE_CHECKING:
    from analyzers.comparing.diff import Diff


@click.command(short_help="One self-contained HTML page, or Markdown for a pull request.")
@comparing_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Where the page goes.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown instead; with -o, write it to FILE.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Ops and buffers to list.")
@reading_options
def command(
    paths: tuple[str, ...],
    baseline: str | None,
    variants: tuple[str, ...],
    strict: bool,
    output: Path | None,
    force: bool,
    as_markdown: bool,
    top: int,
    **reading: object,
) -> int:
    """Report what changed between the variants of a RUN, or between two traces A and B.

    The page needs no network and no other file: claim, comparability, sorts, time per layer and chunk, steps, buffers.

    \b
    moe-prof report RUN -o report.html
    moe-prof report RUN --markdown                 paste it into the pull request
    moe-prof report before.xplane.pb after.xplane.pb -o report.html
    """
    if output is None and not as_markdown:
        raise UserError("say where the page goes with -o report.html, or print Markdown with --markdown.")
    if output is not None:
        check_output(output, force)
    from analyzers.comparing.diff import diff

    base, *others = sides_of(paths, variants, baseline, read_options(reading))
    if strict:
        refuse_differences(base, others)
    diffs = [diff(base, other, top=top) for other in others]
    text = _markdown(diffs, top) if as_markdown else _page(diffs, top)
    if output is None:
        click.echo(text, nl=False)
        return exit_code((base, *others))
    write_output(output, text.encode())
    click.echo(f"wrote {output} ({len(text.encode()) / 1024:,.0f} KiB)", err=True)
    return exit_code((base, *others))


def _markdown(diffs: list[Diff], top: int) -> str:
    from analyzers.showing.markdown import report_markdown

    return report_markdown(diffs, top)


def _page(diffs: list[Diff], top: int) -> str:
    from analyzers.showing.html import report_html

    return report_html(diffs, top)

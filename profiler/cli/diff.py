"""`moe-prof diff`: the variants of one run, or any two traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from analyzers.errors import UserError
from profiler.cli.reading import read_options, reading_options, traces_of

if TYPE_CHECKING:
    from analyzers.comparing.diff import Diff
    from analyzers.trace import Trace


@click.command(short_help="What changed between two traces: sorts, time, buffers.")
@click.argument("paths", nargs=-1, required=True, metavar="RUN | A B")
@click.option(
    "--baseline", metavar="NAME", help="Variant of a run that the others are compared with; the first by default."
)
@click.option(
    "--variant", "variants", multiple=True, metavar="NAME", help="Compare only these variants of a run; repeatable."
)
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Ops and buffers to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema in docs/json.md) instead of tables.")
@reading_options
def command(
    paths: tuple[str, ...],
    baseline: str | None,
    variants: tuple[str, ...],
    top: int,
    as_json: bool,
    **reading: object,
) -> None:
    """Compare the variants of a RUN, or two traces A and B.

    Savings are positive where B takes less. `~` marks a difference that cannot be told from noise.

    \b
    moe-prof diff RUN                        its variants against the first
    moe-prof diff RUN --baseline recompute   against another
    moe-prof diff before.xplane.pb after.xplane.pb
    """
    from analyzers.comparing.diff import diff

    options = read_options(reading)
    if len(paths) > 2:
        raise UserError(f"{len(paths)} paths were given; give one run, or two traces.")
    if len(paths) == 2:
        if variants or baseline:
            raise UserError("--variant and --baseline choose among the variants of one run, but two paths were given.")
        a, b = (_only(traces_of(path, (), options), path) for path in paths)
        diffs: tuple[Diff, ...] = (diff(a, b, top=top),)
    else:
        base, *others = _ordered(traces_of(paths[0], variants, options), paths[0], baseline)
        diffs = tuple(diff(base, other, top=top) for other in others)
    if as_json:
        from analyzers.showing.as_json import diff_json

        click.echo(diff_json(diffs))
        return
    from analyzers.showing.diff_document import diff_document
    from analyzers.showing.text import print_document

    for number, one in enumerate(diffs):
        if number:
            click.echo()
        print_document(diff_document(one, top), color=click.get_current_context().color)


def _only(traces: tuple[Trace, ...], path: str) -> Trace:
    if len(traces) > 1:
        names = ", ".join(trace.name for trace in traces)
        raise UserError(f"{path} is a run with the variants {names}; compare it alone, or give traces of its rounds.")
    return traces[0]


def _ordered(traces: tuple[Trace, ...], path: str, baseline: str | None) -> tuple[Trace, ...]:
    if len(traces) < 2:
        raise UserError(
            f"{path} has one side only ({traces[0].name}); give a run with several variants, or two traces."
        )
    if baseline is None:
        return traces
    names = [trace.name for trace in traces]
    if baseline not in names:
        raise UserError(f"{path} has no variant {baseline!r}; choose --baseline from {', '.join(names)}.")
    first = names.index(baseline)
    return (traces[first], *traces[:first], *traces[first + 1 :])

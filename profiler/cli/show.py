"""`moe-prof show`: one trace, or every variant of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from analyzers.timings import timed
from profiler.cli.reading import exit_code, read_options, reading_options, traces_of
from profiler.cli.timings import timings_option
from profiler.cli.writing import frame_options, write_frames

if TYPE_CHECKING:
    from pandas import DataFrame

    from analyzers.showing.frames import What


@click.command(short_help="One trace: sorts, time per layer and chunk, buffers.")
@click.argument("path", type=click.Path(path_type=str))
@click.option(
    "--variant", "variants", multiple=True, metavar="NAME", help="Show only this variant of a run; repeatable."
)
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Ops and buffers to list.")
@click.option("--loops", is_flag=True, help="Print the loops of the step's module and what they are taken for.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema in docs/json.md) instead of tables.")
@click.option(
    "--frame",
    type=click.Choice(["times", "executions", "steps", "sorts", "buffers"]),
    default="times",
    show_default=True,
    help="Rows for --csv and --parquet: times by pass, layer and chunk, executions by op, steps, sorts or buffers.",
)
@frame_options
@reading_options
@timings_option
def command(
    path: str,
    variants: tuple[str, ...],
    top: int,
    loops: bool,
    as_json: bool,
    frame: str,
    csv: Path | None,
    parquet: Path | None,
    **reading: object,
) -> int:
    """Show sorts, time and buffers of PATH.

    PATH is a trace file (.xplane.pb), a profile or log directory, or a run that `moe-prof capture` wrote.

    \b
    moe-prof show RUN                      every variant of a run
    moe-prof show RUN --variant cached     one of them
    moe-prof show logs/host.xplane.pb      any trace of JAX or XLA
    moe-prof show logs --session 2026_01_31_12_00_00
    moe-prof show logs --loops             which loop is the layers? what to give --layer-scope
    moe-prof show RUN --frame executions --csv ops.csv
    """
    with timed("imports"):
        from analyzers.showing.text import print_document
        from analyzers.showing.trace_document import trace_document

        if loops:
            from analyzers.showing.loops_document import loops_document, loops_json
        if as_json:
            from analyzers.showing.as_json import show_json

    def frame_of_all() -> DataFrame:
        from analyzers.showing.frames import variants_frame

        return variants_frame(traces, cast("What", frame))

    options = read_options(reading)
    traces = traces_of(path, variants, options)
    write_frames(csv, parquet, frame_of_all)
    with timed("showing"):
        if as_json:
            click.echo(loops_json(traces, options.patterns) if loops else show_json(traces))
            return exit_code(traces)
        for number, trace in enumerate(traces):
            if number:
                click.echo()
            document = loops_document(trace, options.patterns) if loops else trace_document(trace, top)
            print_document(document, color=click.get_current_context().color)
    return exit_code(traces)

"""`moe-prof check`: a budget held against a run, a trace or a compile result; the exit code is for CI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from analyzers.errors import UserError

if TYPE_CHECKING:
    from analyzers.comparing.budget import Subject


@click.command("check", short_help="Hold a run, a trace or a compile result against a budget file.")
@click.argument("budget", type=click.Path(path_type=Path), metavar="BUDGET.toml")
@click.argument("path", type=click.Path(path_type=str), metavar="RUN | TRACE | COMPILED")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write JUnit XML.")
@click.option("--github", is_flag=True, help="Also print annotations for GitHub Actions.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.option("--write", is_flag=True, help="Make a first BUDGET.toml of what is measured, instead of checking.")
def command(budget: Path, path: str, junit: Path | None, github: bool, as_json: bool, write: bool) -> int:
    """Hold PATH against the limits in BUDGET.toml; one line per limit.

    Exit code 0: all kept; 1: one is broken; 2: none is broken, but one cannot be told, or something cannot be read.

    \b
    moe-prof compile ring --target tpu7x:2x2x1 --ep 8 -o COMPILED
    moe-prof check BUDGET.toml COMPILED --write
    moe-prof check BUDGET.toml COMPILED
    """
    from analyzers.comparing.budget import Outcome, exit_code, first_budget, hold, read_budget
    from analyzers.showing.budget_lines import checks_json, github_annotations, junit_xml, lines

    if as_json and (github or write):
        raise click.UsageError("--json prints nothing else: leave out --github or --write.")
    if write:
        if budget.exists():
            raise UserError(f"{budget} exists and is not overwritten; remove it, or give another name.")
        _write(budget, first_budget(_subjects(path)).encode())
        click.echo(f"wrote {budget}")
        return 0
    limits = read_budget(budget)
    checks = hold(limits, _subjects(path))
    colors = {Outcome.KEPT: "green", Outcome.BROKEN: "red", Outcome.UNKNOWN: "yellow"}
    if as_json:
        click.echo(checks_json(checks))
    else:
        for line in lines(checks, lambda text, outcome: click.style(text, fg=colors[outcome])):
            click.echo(line, color=click.get_current_context().color)
    if github:
        for line in github_annotations(checks, str(budget)):
            click.echo(line)
    if junit is not None:
        _write(junit, junit_xml(checks).encode())
    return exit_code(checks)


def _write(path: Path, data: bytes) -> None:
    from analyzers.files import write_whole

    try:
        write_whole(path, data)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).") from error


def _subjects(path: str) -> Mapping[tuple[str, ...], Subject]:
    from analyzers.comparing.subjects import subjects_of_result, subjects_of_traces
    from analyzers.compiled import is_compile_result, load_compiled
    from analyzers.trace import LoadOptions
    from profiler.cli.reading import traces_of

    if "://" not in path and is_compile_result(Path(path)):
        return subjects_of_result(load_compiled(Path(path)))
    return subjects_of_traces(traces_of(path, (), LoadOptions()))

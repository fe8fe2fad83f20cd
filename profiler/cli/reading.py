"""Options and opening of traces that `show`, `diff` and `report` share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from analyzers.errors import UserError
from profiler.cli.progress import files_bar

if TYPE_CHECKING:
    from analyzers.trace import LoadOptions, Trace

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--session", metavar="NAME", help="Profiling session of a log directory; the latest by default."),
    click.option(
        "--module", metavar="REGEX", help="Module whose runs are the steps; the one with most time by default."
    ),
    click.option("--layer-scope", metavar="REGEX", help="What a layer is called in scope paths; a group is its index."),
    click.option("--chunk-scope", metavar="REGEX", help="What a chunk is called in scope paths; a group is its index."),
    click.option(
        "--partial", is_flag=True, help='Read what is whole of a truncated trace; figures are then "at least".'
    ),
    click.option(
        "--jobs",
        type=click.IntRange(1),
        metavar="N",
        help="Processes that read many files; by default one per core, where that pays.",
    ),
    click.option("--cluster", metavar="ADDRESS", help="Let the workers of this dask scheduler read the files."),
)

_COMPARING = (
    click.argument("paths", nargs=-1, required=True, metavar="RUN | A B"),
    click.option(
        "--baseline", metavar="NAME", help="Variant of a run that the others are compared with; the first by default."
    ),
    click.option(
        "--variant", "variants", multiple=True, metavar="NAME", help="Compare only these variants of a run; repeatable."
    ),
    click.option(
        "--strict", is_flag=True, help="Refuse to compare sides that differ in more than the variant: exit code 2."
    ),
)


def reading_options(function: _F) -> _F:
    """Add the options that say how to read a trace."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def comparing_options(function: _F) -> _F:
    """Add the arguments that say what is compared with what."""
    for option in reversed(_COMPARING):
        function = option(function)
    return function


def read_options(values: Mapping[str, Any]) -> LoadOptions:
    """Return the options as `load` takes them. Raises UserError for a bad regular expression."""
    from analyzers.counting.scopes import DEFAULT_PATTERNS, ScopePatterns
    from analyzers.reading.hosts import Workers
    from analyzers.trace import LoadOptions

    pattern_option("--module", values["module"])
    if values["jobs"] is not None and values["cluster"] is not None:
        raise UserError("--jobs is for this machine and --cluster for others; give one of them.")
    return LoadOptions(
        session=values["session"],
        module=values["module"],
        patterns=ScopePatterns(
            layer=pattern_option("--layer-scope", values["layer_scope"]) or DEFAULT_PATTERNS.layer,
            chunk=pattern_option("--chunk-scope", values["chunk_scope"]) or DEFAULT_PATTERNS.chunk,
        ),
        partial=values["partial"],
        workers=Workers(values["jobs"], values["cluster"]),
        progress=click.get_current_context().with_resource(files_bar()),
    )


def pattern_option(option: str, text: str | None) -> re.Pattern[str] | None:
    """Return the regular expression that an option was given, None for none. Raises UserError for a bad one."""
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise UserError(f"{option} {text!r} is not a regular expression: {error}.") from error


def traces_of(path: str, variants: Sequence[str], options: LoadOptions) -> tuple[Trace, ...]:
    """Open a trace, or the named variants of a run (all of them if none is named)."""
    from analyzers.reading.run import is_run, load_run
    from analyzers.trace import load, load_variants

    if "://" not in path and is_run(Path(path)):
        run = load_run(Path(path))
        if options.session is not None:
            raise UserError(
                f"--session chooses among the sessions of a log directory, but {path} is a run: choose with --variant, "
                "or name the folder of one of its rounds."
            )
        return load_variants(run, variants or [v.name for v in run.manifest.variants], options)
    if variants:
        raise UserError(f"{path} is a trace, not a run: it has no variants to choose from.")
    return (load(path, options=options),)


def exit_code(traces: Iterable[Trace]) -> int:
    """Return 1 if files of the traces could not be read: what was printed holds, and is not all."""
    return int(any(trace.incomplete for trace in traces))


def sides_of(
    paths: Sequence[str], variants: Sequence[str], baseline: str | None, options: LoadOptions
) -> tuple[Trace, ...]:
    """Open what is compared: the baseline first, then one or more others. Raises UserError where there are no two."""
    if len(paths) > 2:
        raise UserError(f"{len(paths)} paths were given; give one run, or two traces.")
    if len(paths) == 2:
        if variants or baseline:
            raise UserError("--variant and --baseline choose among the variants of one run, but two paths were given.")
        return tuple(_only(traces_of(path, (), options), path) for path in paths)
    return _ordered(traces_of(paths[0], variants, options), paths[0], baseline)


def refuse_differences(base: Trace, others: Iterable[Trace]) -> None:
    """Raise UserError where sides differ in something that is not the variant itself."""
    from analyzers.comparing.comparability import comparability

    for other in others:
        found = comparability(base, other).differences
        if found:
            named = ", ".join(f"{fact.name} ({fact.a} and {fact.b})" for fact in found)
            raise UserError(
                f"{base.name} and {other.name} differ in more than the variant: {named}; "
                "capture both alike, or compare them without --strict."
            )


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

"""Comparisons as one HTML page that needs nothing else: no network, no files beside it, no script to be read.

The page is jinja2 over the same documents that the terminal shows, with two pictures more. Everything that comes
from a trace is escaped by the template engine, and a content security policy lets the page load nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from analyzers.comparing.comparability import Comparability
from analyzers.comparing.diff import Diff
from analyzers.comparing.places import Places, places
from analyzers.showing.claim import body, claim
from analyzers.showing.diff_document import differences, names
from analyzers.showing.format import NOT_AVAILABLE, change, estimate_us, executions, saving_us
from analyzers.showing.pictures import HeatMap, saving_map, strip, time_map
from analyzers.showing.tables import Cell, Column, Document, Paragraph, Table, cells
from analyzers.showing.trace_document import trace_document
from analyzers.trace import Trace


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One baseline and one other side, ready for the template."""

    anchor: str
    title: str
    claim: str
    tone: str
    alarms: tuple[str, ...]
    document: Document
    heat: HeatMap | str
    """The map of savings, or why there is none."""
    facts: Comparability
    names: tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Side:
    """One trace by itself, ready for the template."""

    name: str
    document: Document
    heat: HeatMap | None


def report_html(diffs: Sequence[Diff], top: int = 10) -> str:
    """Return the page of one or more comparisons with the same first side; `top` limits ops and buffers."""
    sides = (diffs[0].a, *(diff.b for diff in diffs))
    layers = _with_rest(sorted({k for side in sides for k in side.layers}))
    chunks = _with_rest(sorted({k for side in sides for k in side.chunks}))
    found = [places(side, layers, chunks) for side in sides]
    mapped = layers != (-1,) or chunks != (-1,)
    comparisons = [
        _comparison(number, diff, top, (found[0], found[number]) if mapped else None)
        for number, diff in enumerate(diffs, 1)
    ]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=comparisons[0].title
            if len(comparisons) == 1
            else f"{len(comparisons)} variants against {diffs[0].a.name}",
            comparisons=comparisons,
            overview=_overview(diffs),
            strip=strip(sides),
            sides=[_side(*pair, mapped, top) for pair in zip(sides, found, strict=True)],
            versions=_versions(sides),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("analyzers.showing"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["table"] = lambda part: isinstance(part, Table)
    return environment


def _with_rest(indices: list[int]) -> tuple[int, ...]:
    return (*indices, -1)


def _comparison(number: int, diff: Diff, top: int, found: tuple[Places, Places] | None) -> _Comparison:
    a, b = names(diff)
    step = diff.step_wall.saving
    return _Comparison(
        anchor=f"comparison-{number}",
        title=f"{a} → {b}",
        claim=claim(diff),
        tone=saving_us(step).style if step else "",
        alarms=differences(diff),
        document=body(diff, top),
        heat=saving_map(*found) if found else "no scope and no loop tells layers or chunks",
        facts=diff.comparability,
        names=(a, b),
    )


def _side(trace: Trace, found: Places, mapped: bool, top: int) -> _Side:
    return _Side(trace.name, trace_document(trace, top), time_map(found) if mapped else None)


def _overview(diffs: Sequence[Diff]) -> Table:
    base = diffs[0].a
    rows = [
        cells(
            base.name,
            executions(base.sort_executions(), base.at_least),
            "",
            estimate_us(diffs[0].sort_time.a),
            "",
            estimate_us(diffs[0].step_wall.a),
            "",
        )
    ]
    rows += [
        cells(
            diff.b.name,
            executions(diff.b.sort_executions(), diff.b.at_least),
            change(base.sort_executions()[1], diff.b.sort_executions()[1]),
            estimate_us(diff.sort_time.b),
            saving_us(diff.sort_time.saving),
            estimate_us(diff.step_wall.b),
            saving_us(diff.step_wall.saving),
        )
        for diff in diffs
    ]
    return Table(
        f"Every variant against {base.name}",
        (
            Column("variant", numeric=False),
            Column("sorts per step"),
            Column("change"),
            Column("sorts, µs per step"),
            Column("saving, µs [95 % interval]"),
            Column("step, µs"),
            Column("saving, µs [95 % interval]"),
        ),
        tuple(rows),
    )


def _versions(sides: Sequence[Trace]) -> Table | Paragraph:
    manifests = {side.path: side.manifest for side in sides if side.manifest is not None}
    if not manifests:
        return Paragraph(f"Versions: {NOT_AVAILABLE}, neither side is a run that recorded them.")
    software = dict.fromkeys(name for manifest in manifests.values() for name in sorted(manifest.versions))
    recorded = [
        ("captured", *(m.created for m in manifests.values())),
        ("command", *(" ".join(m.argv) for m in manifests.values())),
        *((name, *(m.versions.get(name) or "none" for m in manifests.values())) for name in software),
    ]
    return Table(
        "Captured with",
        (Column("", numeric=False), *(Column(path, numeric=False) for path in manifests)),
        tuple(tuple(Cell(text) for text in row) for row in recorded),
    )

"""Comparisons as one HTML page that needs nothing else: no network, no files beside it, no script to be read.

The page is jinja2 over the same documents that the terminal shows, with two pictures more. Everything that comes
from a trace is escaped by the template engine, and a content security policy lets the page load nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from analyzers.comparing.comparability import Comparability
from analyzers.comparing.diff import Diff
from analyzers.comparing.places import Places, places
from analyzers.showing.claim import body, claim
from analyzers.showing.diff_document import differences, names
from analyzers.showing.format import saving_us
from analyzers.showing.pictures import HeatMap, saving_map, strip, time_map
from analyzers.showing.report_tables import funnel_table, overview, peak_parts, verdicts, versions
from analyzers.showing.tables import Document, Table
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
            verdicts=verdicts(diffs),
            overview=overview(diffs),
            funnel=funnel_table(sides),
            strip=strip(sides),
            sides=[_side(*pair, mapped, top) for pair in zip(sides, found, strict=True)],
            versions=versions(sides),
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
    environment.filters["pieces"] = _pieces
    environment.filters["breakable"] = _breakable
    return environment


def _pieces(text: str) -> list[list[str]]:
    """Return a figure, and its spread or the ends of its interval: a narrow cell breaks between those, then inside."""
    for mark in (" [", " ("):
        head, found, tail = text.partition(mark)
        if found:
            return [[head], (mark[1:] + tail).replace(", ", ",\n").split("\n")]
    return [[text]]


def _breakable(text: str) -> Markup:
    """Return a scope path that may break after each slash."""
    return Markup("/<wbr>").join(escape(part) for part in text.split("/"))


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
        document=_with_peaks(body(diff, top), diff),
        heat=saving_map(*found) if found else "no scope and no loop tells layers or chunks",
        facts=diff.comparability,
        names=(a, b),
    )


def _with_peaks(document: Document, diff: Diff) -> Document:
    return replace(document, parts=(*document.parts, *peak_parts(diff)))


def _side(trace: Trace, found: Places, mapped: bool, top: int) -> _Side:
    return _Side(trace.name, trace_document(trace, top), time_map(found) if mapped else None)

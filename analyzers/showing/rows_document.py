"""One table of a comparison, cut by op, scope, layer, chunk or device: what `moe-prof diff --by` prints."""

from __future__ import annotations

from typing import Any

from analyzers.comparing.deltas import TimeDelta
from analyzers.comparing.diff import Diff
from analyzers.comparing.rows import FIELDS, Rows, name_of
from analyzers.showing.as_json import delta_json
from analyzers.showing.diff_document import claims, differences, names
from analyzers.showing.format import estimate_us, saving_us, short_scope
from analyzers.showing.tables import Column, Document, Paragraph, Table, cells
from analyzers.showing.trace_document import heading

_ORDER = {"saving": "largest change first", "a": "longest in {a} first", "b": "longest in {b} first", "name": "by name"}


def rows_document(diff: Diff, found: Rows) -> Document:
    """Return the document of a comparison with one table: `found`."""
    a, b = names(diff)
    parts: tuple[Paragraph | Table, ...] = (
        *(Paragraph(line, "bad") for line in differences(diff)),
        Paragraph(f"A  {heading(diff.a)}"),
        Paragraph(f"B  {heading(diff.b)}"),
        *(Paragraph(line) for line in claims(diff)),
        rows_table(diff, found),
    )
    savings = [row.saving for row in (found.groups.total, found.groups.wanted)]
    notes = dict.fromkeys(note for saving in savings if saving for note in saving.footnotes)
    return Document(f"{a} → {b}", parts, (*notes, *map(str, diff.caveats)))


def rows_table(diff: Diff, found: Rows) -> Table:
    """Return the table of `found`; totals, and what a filter leaves out, are its last rows."""
    a, b = names(diff)
    groups, fields = found.groups, FIELDS[found.by]
    one_field = len(fields) == 1

    def times(row: TimeDelta) -> tuple[Any, ...]:
        return (
            estimate_us(row.a) if row.a else f"only in {b}" if row.b else "–",
            estimate_us(row.b) if row.b else f"only in {a}" if row.a else "–",
            saving_us(row.saving),
        )

    def total(label: str, row: TimeDelta, where: str = "") -> tuple[Any, ...]:
        return cells(f"{label} {where}".strip() if one_field else label, *_blank(fields, where), *times(row))

    rows = []
    for key, row in groups.rows:
        texts = [name_of(found.by, key)] if one_field else [str(part) for part in key]
        texts[-1] = texts[-1] if one_field else short_scope(texts[-1])
        rows.append(cells(*texts, *times(row)))
    for row in groups.rest:
        count, _, where = row.label.partition(" more ")
        where = {"only in A": f"only in {a}", "only in B": f"only in {b}"}.get(where, where)
        rows.append(total(f"{count} more", row, where))
    totals = []
    if found.pattern is not None:
        totals.append(total("filter finds", groups.wanted))
        if groups.unwanted is not None:
            totals.append(total("filter leaves out", groups.unwanted))
    together = " added up" if found.by == "device" else ""
    totals.append(total(groups.total.label + together, groups.total))
    return Table(
        f"Self time per step by {found.by}, {_whose(found)}: {_ORDER[found.sort].format(a=a, b=b)} "
        f"({len(groups.rows)} of {groups.num_wanted})",
        (
            *(Column(field, numeric=False) for field in fields),
            Column(f"{a}, µs: median (min–max)"),
            Column(f"{b}, µs: median (min–max)"),
            Column("saving, µs [95 % interval]"),
        ),
        (*rows, *totals),
        total_rows=len(totals),
        footnotes=_footnotes(found),
        by_index=found.sort == "name" and one_field,
    )


def rows_json(found: Rows) -> dict[str, Any]:
    """Return the table of `found` for JSON."""
    fields, groups = FIELDS[found.by], found.groups
    return {
        "by": found.by,
        "sort": found.sort,
        "filter": found.pattern,
        "rows": [dict(zip(fields, key, strict=True)) | delta_json(row) for key, row in groups.rows],
        "rest": [delta_json(row) for row in groups.rest],
        "num_filter_finds": groups.num_wanted,
        "filter_finds": delta_json(groups.wanted),
        "filter_leaves_out": delta_json(groups.unwanted) if groups.unwanted else None,
        "total": delta_json(groups.total),
    }


def _blank(fields: tuple[str, ...], last: str) -> list[str]:
    return [*[""] * (len(fields) - 2), last][: len(fields) - 1]


def _whose(found: Rows) -> str:
    return "each by itself" if found.by == "device" else "mean over devices"


def _footnotes(found: Rows) -> tuple[str, ...]:
    notes = ["the rows of every step add up to its total; medians of parts do not add up to the median of the whole"]
    if found.pattern is not None:
        notes.append(f"filter: {found.pattern!r}, sought in {' '.join(FIELDS[found.by])}")
    if found.by in ("layer", "chunk") and found.groups.rows and all(key == (None,) for key, _ in found.groups.rows):
        notes.append(f"no scope and no loop tells the {found.by}s")
    if found.partial_steps:
        notes.append("steps that did not run on all devices of a side are left out")
    return tuple(notes)

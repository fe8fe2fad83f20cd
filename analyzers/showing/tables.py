"""The one table model every output is made from: text, Markdown and HTML render it, nobody computes in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Style = Literal["", "good", "bad", "dim"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of one cell; `style` colours it where colours are on."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Column:
    """Heading of one column, with the unit in it; numbers align right."""

    heading: str
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; a row of `total_rows` is set off from the others."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total_rows: int = 0
    """How many of the last rows are totals."""
    footnotes: tuple[str, ...] = ()
    by_index: bool = False
    """A row for each layer, chunk or the like: the middle of many may be left out where space is short."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A line of text between tables."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Document:
    """What a command shows: a heading, paragraphs and tables in order, notes at the end."""

    heading: str
    parts: tuple[Table | Paragraph, ...]
    notes: tuple[str, ...] = ()


MAX_ROWS = 16


def abridged(table: Table) -> Table:
    """Return the table; if it is `by_index` and long, the middle is replaced by one row that says so."""
    end = len(table.rows) - table.total_rows
    if not table.by_index or end <= MAX_ROWS:
        return table
    half = MAX_ROWS // 2
    gap = cells(f"… {end - 2 * half} more (--json has all)", *[""] * (len(table.columns) - 1))
    return replace(table, rows=(*table.rows[:half], gap, *table.rows[end - half :]))


def cells(*texts: str | Cell) -> tuple[Cell, ...]:
    """Return a row of cells from plain texts."""
    return tuple(t if isinstance(t, Cell) else Cell(t) for t in texts)

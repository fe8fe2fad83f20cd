"""The one table model every output is made from: text, Markdown and HTML render it, nobody computes in it."""

from __future__ import annotations

from dataclasses import dataclass
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


def cells(*texts: str | Cell) -> tuple[Cell, ...]:
    """Return a row of cells from plain texts."""
    return tuple(t if isinstance(t, Cell) else Cell(t) for t in texts)

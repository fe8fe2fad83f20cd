"""Documents on a terminal or in a pipe, by rich: colours and lines on a terminal, plain text elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from analyzers.showing.tables import Document, Paragraph, Table, abridged

_STYLES = {"": "", "good": "green", "bad": "red", "dim": "dim"}
_PIPE_WIDTH = 10_000
"""In a pipe every row is one line: it stays a table for `grep`, `column` and Markdown."""


def print_document(document: Document, *, color: bool | None = None, file: TextIO | None = None) -> None:
    """Print a document. `color` is True or False to force it, None to decide by where the output goes."""
    file = file or sys.stdout
    terminal = file.isatty()
    colors = color if color is not None else terminal
    console = Console(
        file=file,
        force_terminal=True if color else None,
        no_color=not colors,
        # Without a colour system rich writes no escapes at all, bold ones neither.
        color_system="auto" if colors else None,
        width=None if terminal or color else _PIPE_WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
    )
    plain = not terminal and not color
    console.print(Text(document.heading, style="" if plain else "bold"), soft_wrap=True)
    for part in document.parts:
        console.print()
        if isinstance(part, Paragraph):
            console.print(Text(part.text, style=_STYLES[part.style]), soft_wrap=True)
        else:
            _print_table(console, abridged(part), plain)
    if document.notes:
        console.print()
    for note in document.notes:
        console.print(Text(f"! {note}", style="yellow"), soft_wrap=plain)


def _print_table(console: Console, table: Table, plain: bool) -> None:
    console.print(Text(table.title, style="" if plain else "bold"), soft_wrap=True)
    # Markdown's bars in a pipe: readable as they are, and a table again where they are pasted.
    rich = RichTable(box=box.MARKDOWN if plain else box.SIMPLE_HEAD, pad_edge=plain, padding=(0, 1))
    for column in table.columns:
        rich.add_column(column.heading, justify="right" if column.numeric else "left", overflow="fold")
    for number, row in enumerate(table.rows):
        if number == len(table.rows) - table.total_rows and number and not plain:
            rich.add_section()
        rich.add_row(*(Text(cell.text, style=_STYLES[cell.style]) for cell in row))
    with console.capture() as captured:
        console.print(rich)
    # rich draws an empty line for the edge that Markdown has not.
    console.file.write(
        "\n".join(line.rstrip() for line in captured.get().strip("\n").split("\n") if line.strip()) + "\n"
    )
    for note in table.footnotes:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=plain)

"""Documents as GitHub Markdown: the claim in the open, tables below it, long ones folded away.

GitHub's rules relied on: a table cell ends at an unescaped `|`; `@name` and `#12` notify people and link issues
wherever they stand outside of code, unless a comment parts the sign from what follows; `<details>` needs an
empty line before Markdown inside it, and holds no Markdown in its `<summary>`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape as html_escape

from analyzers.comparing.diff import Diff
from analyzers.showing.claim import body, claim
from analyzers.showing.diff_document import differences
from analyzers.showing.report_tables import summary
from analyzers.showing.tables import Document, Paragraph, Table, abridged

_SPECIAL = re.compile(r"[\\`*_<>|$]|~(?=\S)|\](?=[(\[:])")
_WORD_UNDERSCORE = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")
_REFERENCE = re.compile(r"([@#])(?=[A-Za-z0-9])")
_OPEN_TABLES = 2
"""Tables that stand unfolded: sorts and time are what a reviewer looks for."""


def report_markdown(diffs: Sequence[Diff], top: int = 10) -> str:
    """Return `moe-prof report --markdown`: each comparison under its heading, `top` ops and buffers of it.

    Of several, a summary comes first.
    """
    first = [markdown(summary(diffs))] if len(diffs) > 1 else []
    return "\n".join(
        first + [markdown(body(diff, top), lead=claim(diff), warnings=differences(diff)) for diff in diffs]
    )


def markdown(document: Document, *, lead: str = "", warnings: Sequence[str] = ()) -> str:
    """Return a document as Markdown: heading, `warnings` in a box, `lead` in bold, the parts, the notes."""
    blocks = [f"### {escaped(document.heading)}"]
    if warnings:
        blocks.append("\n".join(["> [!CAUTION]", *(f"> {escaped(warning)}  " for warning in warnings)]))
    if lead:
        blocks.append(f"**{escaped(lead)}**")
    tables = 0
    for part in document.parts:
        if isinstance(part, Paragraph):
            blocks.append(escaped(part.text.strip()))
            continue
        tables += 1
        blocks.append(_table(abridged(part), folded=tables > _OPEN_TABLES))
    if document.notes:
        blocks.append("\n".join(f"- {escaped(note)}" for note in document.notes))
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Return text that GitHub shows as it is, without mentions, links or emphasis."""
    text = _SPECIAL.sub(lambda match: "\\" + match.group(), text)
    # An underscore inside a word is no emphasis; scope paths stay readable in the source.
    return _REFERENCE.sub(r"\1<!-- -->", _WORD_UNDERSCORE.sub("_", text)).replace("\n", " ")


def _table(table: Table, *, folded: bool) -> str:
    total_from = len(table.rows) - table.total_rows
    lines = [
        "| " + " | ".join(escaped(column.heading) for column in table.columns) + " |",
        "| " + " | ".join("---:" if column.numeric else "---" for column in table.columns) + " |",
    ]
    for number, row in enumerate(table.rows):
        texts = [escaped(cell.text) for cell in row]
        if number >= total_from:
            texts = [f"**{text}**" if text else "" for text in texts]
        lines.append("| " + " | ".join(texts) + " |")
    lines += ["", *(f"- {escaped(note)}" for note in table.footnotes)] if table.footnotes else []
    if not folded:
        return "\n".join([f"**{escaped(table.title)}**", "", *lines])
    return "\n".join([f"<details><summary>{html_escape(table.title)}</summary>", "", *lines, "", "</details>"])

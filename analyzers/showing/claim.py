"""What a comparison comes to in one sentence, and the document below it."""

from __future__ import annotations

from analyzers.comparing.diff import Diff
from analyzers.showing.diff_document import claims, diff_document, differences, names
from analyzers.showing.tables import Document, Paragraph


def claim(diff: Diff) -> str:
    """Return the comparison in one sentence, with the 95 % interval of each saving."""
    a, b = names(diff)
    first, *others = [line.removesuffix(".") for line in claims(diff)] or [f"{b} and {a} hold no steps to compare"]
    return "; ".join([first, *(other[0].lower() + other[1:] for other in others)]) + "."


def body(diff: Diff, top: int) -> Document:
    """Return the document of a comparison without the sentences above it: the claim and the differences."""
    document = diff_document(diff, top)
    said = {*claims(diff), *differences(diff)}
    parts = tuple(part for part in document.parts if not (isinstance(part, Paragraph) and part.text in said))
    return Document(document.heading, parts, document.notes)

"""What a comparison comes to in one sentence, and what speaks against comparing at all."""

from __future__ import annotations

from analyzers.comparing.comparability import Comparability
from analyzers.comparing.diff import Diff
from analyzers.showing.diff_document import claims, diff_document, names
from analyzers.showing.tables import Document, Paragraph


def claim(diff: Diff) -> str:
    """Return the comparison in one sentence, with the 95 % interval of each saving."""
    a, b = names(diff)
    first, *others = [line.removesuffix(".") for line in claims(diff)] or [f"{b} and {a} hold no steps to compare"]
    return "; ".join([first, *(other[0].lower() + other[1:] for other in others)]) + "."


def alarms(diff: Diff, found: Comparability) -> tuple[str, ...]:
    """Return a sentence for each difference between the sides that is not the variant itself."""
    a, b = names(diff)
    return tuple(f"The sides differ in {fact.name}: {a} has {fact.a}, {b} has {fact.b}." for fact in found.differences)


def body(diff: Diff, top: int) -> Document:
    """Return the document of a comparison without the sentences that `claim` has said already."""
    document = diff_document(diff, top)
    said = set(claims(diff))
    parts = tuple(part for part in document.parts if not (isinstance(part, Paragraph) and part.text in said))
    return Document(document.heading, parts, document.notes)

"""Markdown for a pull request: what GitHub would show must be what was meant."""

import re

import pytest
from markdown_it import MarkdownIt

from analyzers.showing.markdown import escaped, markdown
from analyzers.showing.tables import Column, Document, Paragraph, Table, cells

NASTY = [
    "jit_f | g",
    "<b>bold</b> & co",
    "*a* _b_ __c__ `d` ~~e~~ ~f~",
    "[text](http://example.org) and [ref][1]",
    "a\\|b",
    "checkpoint/rematted_computation/jit(_pad)/pad",
    "~ +1.0 [−2.0, +4.0]",
]


@pytest.mark.parametrize("text", NASTY)
def test_a_parser_of_markdown_gives_back_the_text(text):
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parseInline(escaped(text))[0].children
    assert {token.type for token in tokens} <= {"text", "text_special", "html_inline"}
    assert "".join(token.content for token in tokens if token.type != "html_inline") == text


def test_tables_keep_their_columns_whatever_a_cell_holds():
    table = Table("t", (Column("a|b", numeric=False), Column("n")), tuple(cells(text, "1") for text in NASTY))
    html = MarkdownIt("gfm-like", {"linkify": False}).render(markdown(Document("h", (table,))))
    assert html.count("<td") == 2 * len(NASTY)
    assert html.count("<th") == 2 + 1  # two columns, and <thead>


def test_nobody_is_mentioned_and_no_issue_linked():
    shown = escaped("custom-call @Sharding #12 arg#0")
    assert not re.search(r"[@#]\w", shown)


def test_warnings_come_first_and_long_tables_are_folded():
    tables = tuple(Table(f"table <{k}>", (Column("x"),), (cells("1"),)) for k in range(4))
    shown = markdown(
        Document("a → b", (Paragraph("words"), *tables), ("a note",)), lead="It is faster.", warnings=("jax differs.",)
    )
    assert shown.index("> [!CAUTION]\n> jax differs.") < shown.index("**It is faster.**") < shown.index("words")
    assert re.findall(r"<summary>(.*)</summary>", shown) == ["table &lt;2&gt;", "table &lt;3&gt;"]
    assert shown.endswith("- a note\n")

"""The notes that a trace carries: each stands in the documentation by its name, and nothing else does."""

import re
from pathlib import Path

from analyzers.caveats import Caveat

ROOT = Path(__file__).resolve().parents[2]


def _names_in_code() -> set[str]:
    sources = (path.read_text() for path in (ROOT / "analyzers" / "counting").glob("*.py"))
    return {name for source in sources for name in re.findall(r'\bCaveat\(\s*"([a-z-]+)"', source)}


def test_the_documentation_lists_all_notes_and_no_others() -> None:
    notes = (ROOT / "docs" / "reading.md").read_text().partition("## Notes")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([a-z-]+)`", notes, re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert set(documented) == _names_in_code()
    assert len(documented) >= 16


def test_a_note_is_shown_with_its_name() -> None:
    assert str(Caveat("no-hlo", "No compiled module.")) == "no-hlo: No compiled module."

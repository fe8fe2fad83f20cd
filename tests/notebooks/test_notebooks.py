"""Every notebook runs from a clean kernel and carries the outputs that it then gives."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs_from_a_clean_kernel(path, monkeypatch):
    for variable in ("MOE_PROF_RUN", "MOE_PROF_TRACE", "MOE_PROF_COMPILED"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(path, as_version=4)
    carried = [_kinds(cell) for cell in notebook.cells if cell.cell_type == "code"]
    done = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(FOLDER)}}).execute()
    given = [_kinds(cell) for cell in done.cells if cell.cell_type == "code"]
    assert given == carried
    assert any("image/png" in kinds for kinds in carried)
    assert not any("error" in kinds or "stderr" in kinds for kinds in given)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_uses_the_public_api_only(path):
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    imports = [line.strip() for source in sources for line in source.splitlines() if "import " in line]
    assert "import analyzers" in imports
    assert not [line for line in imports if "analyzers." in line or "profiler" in line or "workloads" in line]


def test_sort_savings_are_the_counts_of_the_optimised_program():
    notebook = nbformat.read(FOLDER / "1-sort-savings.ipynb", as_version=4)
    table = next(
        o.data["text/plain"] for c in notebook.cells if c.cell_type == "code" for o in c.outputs if "data" in o
    )
    counts = {"recompute": 0, "cached": 0}
    variant = ""
    for line in table.splitlines()[2:]:
        words = line.split()
        variant = words.pop(0) if words[0] in counts and not words[1].isalpha() else variant
        counts[variant] += int(words[-1])
    assert counts == {"recompute": 18, "cached": 8}


def test_the_budget_holds_the_change_and_breaks_without_it():
    """Without it 16 sorts run in chunk loops: 2 layers × 4 chunks × (inverse, validity)."""
    notebook = nbformat.read(FOLDER / "4-funnel-to-budget.ipynb", as_version=4)
    texts = [o.data.get("text/plain", "") for c in notebook.cells for o in c.get("outputs", []) if "data" in o]
    kept, broken = [text for text in texts if "outcome" in text]
    assert (kept.count("kept"), kept.count("broken")) == (5, 0)
    assert (broken.count("kept"), broken.count("broken")) == (2, 3)
    assert [line.split()[1:4] for line in broken.splitlines() if line[:1] in "012" and "≤" in line] == [
        ["16", "≤", "0"],
        ["4", "≤", "0"],
        ["22", "≤", "2"],
    ]


def _kinds(cell):
    return [kind for o in cell.outputs for kind in (sorted(o.data) if "data" in o else [o.get("name", o.output_type)])]

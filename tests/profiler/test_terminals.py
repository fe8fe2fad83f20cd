"""What commands print on a terminal, narrow and wide, with and without colours."""

import sys
from pathlib import Path

import pytest

from profiler.cli.main import main
from tests.profiler.test_check import BUDGETS, EXIT_CODES

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TERMINALS = pytest.mark.parametrize(("columns", "color"), [(c, k) for c in (80, 200) for k in ("always", "never")])


@pytest.fixture
def run(capsys, monkeypatch, ring_run):
    """Run the command line on a terminal of so many columns, beside the run; return exit code and what it printed."""
    monkeypatch.chdir(ring_run.parent)
    monkeypatch.setenv("TERM", "xterm-256color")
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(variable, raising=False)

    def call(columns, *arguments):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        return left.value.code, capsys.readouterr().out

    return call


@TERMINALS
@pytest.mark.parametrize("command", ["show", "diff"])
def test_tables_fit_the_terminal(run, golden, command, columns, color):
    code, out = run(columns, "--color", color, command, "ring-run", "--top", "3")
    assert code == 0
    assert ("\x1b[" in out) == (color == "always")
    golden(f"{command}-ring-run-{columns}-columns-{color}.txt", out)


@TERMINALS
@pytest.mark.parametrize("name", BUDGETS)
def test_checks_are_lines_that_the_terminal_wraps(run, tmp_path, name, columns, color):
    budget = tmp_path / "budget.toml"
    budget.write_text(BUDGETS[name])
    code, out = run(columns, "--color", color, "check", budget, "ring-run")
    assert code == EXIT_CODES[name]
    assert out == (GOLDEN / f"check-{name}-{color}.txt").read_text()


@TERMINALS
def test_markdown_is_the_same_everywhere(run, columns, color):
    code, out = run(columns, "--color", color, "report", "ring-run", "--markdown", "--top", "5")
    assert code == 0
    assert out == (GOLDEN / "report-ring-run.md").read_text()

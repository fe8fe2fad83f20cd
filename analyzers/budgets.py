"""Budgets for notebooks and scripts: what `moe-prof check` does, on results that are loaded already.

compiled = analyzers.load_compiled("COMPILED")
Path("budget.toml").write_text(analyzers.first_budget(compiled))
analyzers.check("budget.toml", compiled)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from analyzers.comparing import budget
from analyzers.comparing.subjects import subjects_of_result, subjects_of_traces
from analyzers.compiled import CompileResult
from analyzers.trace import Trace

Measured = CompileResult | Sequence[Trace]
"""A compile result, or traces: all variants of a run that are to be compared with each other."""


def check(path: str | os.PathLike[str], measured: Measured) -> tuple[budget.Check, ...]:
    """Hold each limit of the budget file at `path` against what was measured, see docs/check.md.

    A `Check` has `name`, `measured`, `allowed`, `outcome` and `reason`. Raises UserError for a file that is no budget.
    """
    return budget.hold(budget.read_budget(Path(path)), _subjects(measured))


def first_budget(measured: Measured) -> str:
    """Return the text of a budget (TOML) that holds exactly what was measured; what is unknown is left out."""
    return budget.first_budget(_subjects(measured))


def _subjects(measured: Measured) -> Mapping[tuple[str, ...], budget.Subject]:
    return subjects_of_result(measured) if isinstance(measured, CompileResult) else subjects_of_traces(measured)

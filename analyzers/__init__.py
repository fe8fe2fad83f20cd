"""Reads the evidence a profiler left behind: trace files, compiled modules, buffer assignments. Never imports jax.

    import analyzers
    trace = analyzers.load("RUN", variant="cached")     # or any .xplane.pb, profile or log directory
    found = analyzers.diff(analyzers.load("RUN", variant="recompute"), trace)
    trace.executions, trace.routing                     # pandas: every op; the sorts
    trace.to_frame("times"), found.to_frame(by="layer") # pandas, too; analyzers.frames has them all
    found.report("report.html")                         # one page; analyzers.report takes several comparisons
    analyzers.plots.layer_chunk(found)                  # matplotlib
    compiled = analyzers.load_compiled("COMPILED")      # what `moe-prof compile -o COMPILED` wrote
    analyzers.check("budget.toml", compiled)            # limits held against it; analyzers.first_budget writes them

Importing this package is instant; what a name needs is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzers.budgets import check, first_budget
    from analyzers.comparing.diff import diff
    from analyzers.compiled import load_compiled
    from analyzers.showing import frames, plots
    from analyzers.showing.writing import report
    from analyzers.trace import load

__all__ = ["check", "diff", "first_budget", "frames", "load", "load_compiled", "plots", "report"]

_HOMES = {
    "load": "analyzers.trace",
    "load_compiled": "analyzers.compiled",
    "check": "analyzers.budgets",
    "first_budget": "analyzers.budgets",
    "diff": "analyzers.comparing.diff",
    "report": "analyzers.showing.writing",
}
_MODULES = {"frames": "analyzers.showing.frames", "plots": "analyzers.showing.plots"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What makes a figure less than sure, carried as data beside the figure and printed as a footnote under it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Caveat:
    """One named warning about a trace or a comparison."""

    name: str
    """Stable and short, for scripts: `count-mismatch`, `no-hlo`, `truncated`, …"""
    message: str
    lower_bound: bool = False
    """True when counts and totals of the trace can only be read as "at least"."""

    def __str__(self) -> str:
        """Return it as it stands under a table; docs/reading.md says by its name what to do."""
        return f"{self.name}: {self.message}"

"""How numbers are written: µs with their spread, MiB with their ratio, counts with what they are worth."""

from __future__ import annotations

import math

from analyzers.comparing.statistics import Estimate, Saving, Verdict
from analyzers.showing.tables import Cell

NOT_AVAILABLE = "n/a"
_PS_PER_US = 1e6


def microseconds(ps: float) -> str:
    """Return `12,345.6`: µs with one decimal, three below 10 so that small ops do not read 0.0."""
    us = ps / _PS_PER_US
    return f"{us:,.3f}" if abs(us) < 10 else f"{us:,.1f}"


def signed_microseconds(ps: float) -> str:
    """Return `+12.3` or `−12.3`."""
    return ("+" if ps >= 0 else "−") + microseconds(abs(ps))


def estimate_us(estimate: Estimate | None) -> str:
    """Return `median (min–max)` in µs, `–` where nothing ran."""
    if estimate is None:
        return "–"
    if estimate.samples == 1:
        return microseconds(estimate.median)
    return f"{microseconds(estimate.median)} ({microseconds(estimate.low)}–{microseconds(estimate.high)})"


def saving_us(saving: Saving | None) -> Cell:
    """Return `+12.3 [+10.1, +14.5]`, with `~` in front where there is no difference."""
    if saving is None:
        return Cell(NOT_AVAILABLE)
    value = signed_microseconds(saving.value)
    if saving.verdict is Verdict.TOO_FEW or math.isnan(saving.low):
        return Cell(f"{value} [no interval]", "dim")
    text = f"{value} [{signed_microseconds(saving.low)}, {signed_microseconds(saving.high)}]"
    if saving.verdict is Verdict.NO_DIFFERENCE:
        return Cell(f"~ {text}", "dim")
    return Cell(text, "good" if saving.verdict is Verdict.FASTER else "bad")


def executions(low_high: tuple[int, int], at_least: bool = False) -> str:
    """Return `28`, `24–28` where devices or steps differ, `≥ 28` where the trace is cut short."""
    low, high = low_high
    text = str(low) if low == high else f"{low}–{high}"
    return f"≥ {text}" if at_least else text


def size(size_bytes: int | None) -> str:
    """Return bytes as B, KiB, MiB or GiB with two decimals."""
    if size_bytes is None:
        return NOT_AVAILABLE
    value, unit = float(size_bytes), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.2f} {unit}"


def ratio(size_bytes: int, reference_bytes: int | None) -> str:
    """Return `6.0×`, `n/a` without a reference."""
    return f"{size_bytes / reference_bytes:.2f}×" if reference_bytes else NOT_AVAILABLE


def change(a: int, b: int) -> Cell:
    """Return the signed difference b − a of two counts."""
    if a == b:
        return Cell("0", "dim")
    return Cell(f"−{a - b}" if b < a else f"+{b - a}", "good" if b < a else "bad")


def short_scope(scope: str, width: int = 44) -> str:
    """Return the end of a scope path, cut at a segment where it can be: what is near the op tells most."""
    if len(scope) <= width:
        return scope
    kept = scope[-(width - 2) :]
    return "…" + kept[kept.find("/") :] if "/" in kept else "…" + kept

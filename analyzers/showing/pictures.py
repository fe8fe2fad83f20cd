"""Pictures of the HTML report as data for its template: a strip of step times, a map of time by layer × chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.comparing.places import Places, place_savings
from analyzers.comparing.statistics import Saving, Verdict, estimate
from analyzers.showing.format import microseconds, signed_microseconds
from analyzers.trace import Trace

_MAX_DOTS = 300
_LOG_ABOVE = 6.0
"""A slowest step this many times the fastest would squeeze all others into one spot of a linear axis."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One step: place along the axis in percent, place across the row from 0 to 1 (by session), what it is."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class StripRow:
    """The steps of one trace."""

    name: str
    summary: str
    median_x: float
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """Step times of several traces on one axis; ticks are (percent, text)."""

    rows: tuple[StripRow, ...]
    ticks: tuple[tuple[float, str], ...]
    log: bool
    thinned: bool
    """Whether some steps are left out of the picture."""


def strip(traces: Sequence[Trace]) -> Strip | None:
    """Return the picture of all steps' wall times; None where no step has one."""
    values = np.concatenate([block for trace in traces for block in trace.step_wall_ps])
    values = values[values > 0]
    if len(values) == 0:
        return None
    low, high = float(values.min()), float(values.max())
    log = high > _LOG_ABOVE * low
    ticks = _log_ticks(low, high) if log else _linear_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def x(ps: float) -> float:
        part = math.log(ps / low) / math.log(high / low) if log else (ps - low) / (high - low)
        return round(2 + 96 * part, 2)

    rows, thinned = [], False
    for trace in traces:
        blocks = trace.step_wall_ps
        count = sum(len(block) for block in blocks)
        stride = -(-count // _MAX_DOTS)
        thinned |= stride > 1
        dots = [
            Dot(
                x(float(ps)),
                round((number + 0.5) / len(blocks), 3),
                f"session {number + 1}, step {step + 1}: {microseconds(float(ps))} µs",
            )
            for number, block in enumerate(blocks)
            for step, ps in enumerate(block)
            if ps > 0 and step % stride == 0
        ]
        middle = estimate(blocks)
        summary = (
            f"median {microseconds(middle.median)} µs, {microseconds(middle.low)} to {microseconds(middle.high)} µs "
            f"in {middle.samples} steps"
        )
        rows.append(StripRow(trace.name, summary, x(middle.median) if middle.median > 0 else 2, tuple(dots)))
    return Strip(tuple(rows), tuple((x(t), f"{t / 1e6:,.10g}") for t in ticks), log, thinned)


def _linear_ticks(low: float, high: float) -> list[float]:
    span = max(high - low, high * 1e-3, 1.0)
    raw = span / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.floor(low / step)
    return [k * step for k in range(first, math.ceil(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    marks = (1, 2, 5) if high < 100 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    candidates = [m * 10.0**p for p in powers for m in marks]
    below = max((t for t in candidates if t <= low), default=low)
    above = min((t for t in candidates if t >= high), default=high)
    return [t for t in candidates if below <= t <= above]


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One place: its text, how strong its colour is from −100 to 100 percent, and a longer text."""

    text: str
    percent: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Rows are layers, columns chunks; the last of each is what belongs to none where there is such a rest."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell, ...]], ...]
    strongest: str
    """Time of the strongest colour, in µs."""
    signed: bool


def time_map(found: Places) -> HeatMap:
    """Return the map of median self time per step."""
    values = found.median_ps
    top = float(values.max(initial=0.0))
    rows = [
        [HeatCell(microseconds(v) if v else "–", round(100 * v / top) if top else 0) for v in row] for row in values
    ]
    return _map(found, rows, microseconds(top), signed=False)


def saving_map(a: Places, b: Places) -> HeatMap:
    """Return the map of savings; what cannot be told from noise is pale and marked `~`."""
    savings = place_savings(a, b)
    # The rest that belongs to no layer or chunk is a different kind of thing; it must not set the scale.
    inner = [
        abs(s.value)
        for layer, row in zip(a.layers, savings, strict=True)
        for chunk, s in zip(a.chunks, row, strict=True)
        if s and (layer >= 0 or a.layers == (-1,)) and (chunk >= 0 or a.chunks == (-1,))
    ]
    top = max(inner, default=0.0)
    return _map(a, [[_saving_cell(s, top) for s in row] for row in savings], microseconds(top), signed=True)


def _saving_cell(saving: Saving | None, top: float) -> HeatCell:
    if saving is None:
        return HeatCell("–", 0, "nothing ran here")
    percent = round(max(-1.0, min(1.0, saving.value / top)) * 100) if top else 0
    text = signed_microseconds(saving.value)
    if math.isnan(saving.low):
        return HeatCell(text, percent // 3, "no interval: too few steps")
    detail = f"95 % interval {signed_microseconds(saving.low)} to {signed_microseconds(saving.high)} µs"
    if saving.verdict is Verdict.NO_DIFFERENCE:
        return HeatCell(f"~ {text}", int(percent / 3), detail)
    return HeatCell(text, percent, detail)


def _map(found: Places, rows: list[list[HeatCell]], strongest: str, *, signed: bool) -> HeatMap:
    columns = tuple(f"chunk {k}" if k >= 0 else "no chunk" for k in found.chunks)
    labels = (f"layer {k}" if k >= 0 else "no layer" for k in found.layers)
    return HeatMap(
        columns, tuple((label, tuple(row)) for label, row in zip(labels, rows, strict=True)), strongest, signed
    )

"""What the steps of a comparison say about the conditions they were taken in, before any saving is believed.

Each finding is a named warning beside the numbers; none changes a verdict. A finding needs more than chance: the
rules below are quiet on all but a few of a hundred comparisons of a program with itself, whatever the shape of its
noise, and docs/statistics.md says how few.

- `drift`: the rounds of both sides get slower, or faster, from the first to the last. The round is the sample, so five
  are the fewest that can tell; a trend that chance gives in 1 of 20 orders is one.
- `outlier-steps`: steps far outside what the other steps of their side do.
- `cold-first-step`: the first step of a session is its slowest more often than chance has it, or far slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.comparing.ranks import binomial_tail, trend_p
from analyzers.comparing.statistics import Blocks, median, within_scale
from analyzers.trace import Trace

_DRIFT_LEVEL = 0.05
_DRIFT_SIZE = 0.01
_COLD_LEVEL = 0.01
_COLD_SIZE = 0.02
_OUTLIER_SCALES = 8.0
_OUTLIER_SIZE = 0.05
_FEWEST_STEPS = 6
_MOST_NAMED = 3
_FEWEST_IN_SESSION = 3
"""Steps that a session must have for one of them to be called unlike the others."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its name, one array of step times per session, and what to call a step."""

    name: str
    blocks: Blocks
    step_name: Callable[[int, int], str] = lambda session, step: f"session {session}, step {step}"


def noise_warnings(a: Trace, b: Trace) -> tuple[Caveat, ...]:
    """Return what the wall times of the steps of two traces say about how they were taken."""
    sides = [_side(trace) for trace in (a, b)]
    alternating = a.manifest is not None and b.manifest is not None and a.path == b.path
    found = [drift(*sides, alternating=alternating), *(check(side) for side in sides for check in (outliers, cold))]
    return tuple(dict.fromkeys(caveat for caveat in found if caveat is not None))


def drift(a: Side, b: Side, *, alternating: bool) -> Caveat | None:
    """Return the warning that both sides drifted from round to round; `alternating` says they took turns."""
    if len(a.blocks) != len(b.blocks) or not all(len(block) for block in (*a.blocks, *b.blocks)):
        return None
    if not all((block > 0).all() for block in (*a.blocks, *b.blocks)):
        return None
    rounds = [np.array([np.log(median(block)) for block in side.blocks]) for side in (a, b)]
    both = (rounds[0] + rounds[1]) / 2
    if len(both) < 2:
        return None
    p, sign = trend_p(both)
    signs = {trend_p(side)[1] for side in rounds}
    position = np.arange(len(both)) - (len(both) - 1) / 2
    size = float((both * position).sum() / (position**2).sum()) * (len(both) - 1)
    if p > _DRIFT_LEVEL or signs != {sign} or size * sign < _DRIFT_SIZE:
        return None
    consequence = (
        "the sides took turns, so a steady drift falls on both alike"
        if alternating
        else "the sides did not take turns, so part of it can look like a saving"
    )
    return Caveat(
        "drift",
        f"over {len(both)} rounds the steps of both sides came to take {math.exp(size):.2f} × as long as at the start "
        f"(p = {p:.2g}); {consequence}",
    )


def outliers(side: Side) -> Caveat | None:
    """Return the warning that single steps are far from the others of their side, and which."""
    if sum(map(len, side.blocks)) < _FEWEST_STEPS or not (limit := _OUTLIER_SCALES * within_scale(side.blocks)):
        return None
    found: list[tuple[float, str]] = []
    for number, block in enumerate(side.blocks):
        middle = median(block) if len(block) >= _FEWEST_IN_SESSION else 0.0
        for step, value in enumerate(block.tolist()):
            if middle and abs(value - middle) > max(limit, _OUTLIER_SIZE * middle):
                found.append((value / middle, side.step_name(number, step)))
    if not found:
        return None
    found.sort(key=lambda one: -abs(one[0] - 1))
    named = "; ".join(f"{name} ({ratio:.2f} × its session's median)" for ratio, name in found[:_MOST_NAMED])
    rest = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return Caveat("outlier-steps", f"{side.name}: {named}{rest}; medians ignore them, totals do not")


def cold(side: Side) -> Caveat | None:
    """Return the warning that first steps of sessions are slower than those after them: not warm."""
    sessions = [block for block in side.blocks if len(block) >= _FEWEST_IN_SESSION]
    if not sessions:
        return None
    ratios = np.array([block[0] / median(block[1:]) for block in sessions if median(block[1:])])
    if len(ratios) < len(sessions) or median(ratios) < 1 + _COLD_SIZE:
        return None
    slowest = sum(bool(block[0] > block[1:].max()) for block in sessions)
    # Sessions of different lengths: the chance of the shortest is the largest, so the more cautious.
    p = binomial_tail(slowest, len(sessions), 1 / min(map(len, sessions)))
    far = len(sessions) == 1 and _far_from_the_rest(sessions[0])
    if p > _COLD_LEVEL and not far:
        return None
    where = f"in {slowest} of {len(sessions)} sessions" if len(sessions) > 1 else "of its session"
    return Caveat(
        "cold-first-step",
        f"{side.name}: the first step is the slowest {where}, {median(ratios):.2f} × the median of those "
        "after it: it was not warm",
    )


def _far_from_the_rest(block: NDArray[np.float64]) -> bool:
    rest = block[1:]
    return len(rest) >= _FEWEST_IN_SESSION and bool(
        block[0] - median(rest) > max(_OUTLIER_SCALES * within_scale([rest]), median(rest))
    )


def _side(trace: Trace) -> Side:
    labels = [session[0].step_labels for session in trace.sessions]

    def step_name(session: int, step: int) -> str:
        label = f"step {labels[session][step]}"
        return f"round_{session} {label}" if trace.manifest is not None else label

    return Side(trace.name, trace.step_wall_ps, step_name)

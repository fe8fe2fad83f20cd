"""When a capture has seen enough: after so many rounds, or once the interval of the saving is narrow.

Looking at results in order to stop can make a difference out of noise. Here the width of the interval alone decides,
never whether it contains zero, and not before `MIN_ROUNDS`: intervals that are narrow by accident are mostly those of
few rounds. `python -m tests.benchmarks.statistics` measures how often a difference is then called in noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.comparing.statistics import Blocks, saving
from analyzers.reading.run import Stopped

MIN_ROUNDS = 10
"""Before that only the time ends a capture that waits for precision."""


@dataclass(frozen=True, slots=True)
class Until:
    """Rounds go on until the precision is reached or the next one would take longer than there is time."""

    precision: float
    """Half-width of the 95 % interval of the saving of a step, as a share of the baseline's step time."""
    max_seconds: float
    """For warm-ups and sessions; compiling is not counted."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """What the whole rounds say so far, by the host's wall time of the steps."""

    variant: str
    """The one whose saving is known least; of a single variant, itself."""
    value: float
    """Saving of its step against the baseline, as a share of the baseline's step time."""
    half_width: float
    """Of its 95 % interval, as the same share."""
    of_itself: bool
    """There is one variant only: `value` says nothing, and the interval is that of its step time."""


def progressed(walls: Mapping[str, Sequence[Sequence[int]]]) -> Progressed | None:
    """Return what is known from step times by variant and round, the baseline first; None before two rounds."""
    blocks: dict[str, Blocks] = {
        name: [np.asarray(steps, np.float64) for steps in rounds] for name, rounds in walls.items()
    }
    baseline, *others = blocks
    base = blocks[baseline]
    if len(base) < 2:
        return None
    # A single variant is compared with a step that takes no time: its interval is that of its own step time.
    sides = {name: blocks[name] for name in others} or {baseline: [np.zeros(1) for _ in base]}
    step = float(np.mean([np.median(block) for block in base]))
    found = {name: saving(base, side) for name, side in sides.items()}
    widest = max(found, key=lambda name: found[name].high - found[name].low)
    one = found[widest]
    return Progressed(widest, one.value / step, (one.high - one.low) / 2 / step, of_itself=not others)


def stopped(rounds: int | Until, done: int, seconds: float, known: Progressed | None) -> Stopped | None:
    """Return why no further round follows after `done` that took `seconds`; None if one does."""
    if isinstance(rounds, int):
        return None if done < rounds else Stopped("rounds", seconds, known.half_width if known else None, None, None)
    reason = None
    if known and done >= MIN_ROUNDS and known.half_width <= rounds.precision:
        reason = "precision"
    elif seconds + seconds / done > rounds.max_seconds:
        reason = "time"
    if reason is None:
        return None
    return Stopped(reason, seconds, known.half_width if known else None, rounds.precision, rounds.max_seconds)


def seconds_left(rounds: int | Until, done: int, seconds: float, known: Progressed | None) -> float | None:
    """Return about how long the rounds after `done` will take; None before the first is over.

    The half-width falls with the square root of the number of rounds.
    """
    if done == 0:
        return None
    per_round = seconds / done
    if isinstance(rounds, int):
        return per_round * (rounds - done)
    wanted = float(MIN_ROUNDS)
    if known:
        wanted = max(wanted, done * (known.half_width / rounds.precision) ** 2)
    return max(0.0, min(per_round * (wanted - done), rounds.max_seconds - seconds))

"""Whether a difference in time can be believed.

The caller's assumption is stated here once: the sample is the step (devices were averaged before), and steps of
one profiling session share whatever that session suffered from (clock speed, neighbours, memory layout), so
sessions are blocks. Where both sides have the same number (two or more) of sessions taken alternately, the
saving is the mean over sessions of the difference of the session medians, with a Student interval over
sessions, never narrower than what the spread of steps within sessions alone would give: three sessions can agree
by accident. Where each side is one session, the interval is Welch's over steps and a footnote says what it cannot
see. Rows of one table are a family: their intervals hold for all of them together (Bonferroni), else a table of
twenty rows would show a difference between a program and itself. Counts and bytes are exact and never come here.

Sources: B. L. Welch, Biometrika 34 (1947), 28–35, for the interval with unequal variances; the variance of a
median of n normal samples is π/2 that of their mean for large n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Blocks = Sequence[NDArray[np.float64]]

CONFIDENCE = 0.95
MIN_SESSIONS = 3
MIN_STEPS = 6


class Verdict(Enum):
    """What the interval of a saving says."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "~"
    """The interval contains zero."""
    TOO_FEW = "?"
    """There is no interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Centre and spread of one side's samples, in the samples' unit."""

    median: float
    low: float
    high: float
    """Smallest and largest sample: what the steps really did, not a model of it."""
    samples: int


@dataclass(frozen=True, slots=True)
class Saving:
    """How much less the second side took; negative when it took more. Unit of the samples."""

    value: float
    low: float
    high: float
    """95 % confidence interval, held together with its family's; both nan where there are too few samples."""
    verdict: Verdict
    footnotes: tuple[str, ...]

    def scaled(self, divisor: float) -> Saving:
        """Return the saving per part of a step that has `divisor` equal parts."""
        return Saving(self.value / divisor, self.low / divisor, self.high / divisor, self.verdict, self.footnotes)


def estimate(blocks: Blocks) -> Estimate:
    """Return median, smallest and largest of all samples. Raises ValueError if there are none."""
    samples = np.concatenate([np.asarray(b, np.float64) for b in blocks])
    if len(samples) == 0:
        raise ValueError("an estimate needs at least one sample")
    return Estimate(float(np.median(samples)), float(samples.min()), float(samples.max()), len(samples))


def saving(a: Blocks, b: Blocks, family: int = 1) -> Saving:
    """Return how much less `b` took than `a`, with its interval. One array of samples per session on each side.

    `family` is the number of comparisons whose intervals are to hold together.
    """
    confidence = 1 - (1 - CONFIDENCE) / max(family, 1)
    if len(a) == len(b) and len(a) > 1:
        return _over_sessions(a, b, confidence)
    return _over_steps(np.concatenate(list(a)), np.concatenate(list(b)), confidence, single=len(a) == len(b) == 1)


def _over_sessions(a: Blocks, b: Blocks, confidence: float) -> Saving:
    differences = np.array([np.median(x) - np.median(y) for x, y in zip(a, b, strict=True)])
    footnotes = []
    if len(differences) < MIN_SESSIONS:
        footnotes.append(f"{len(differences)} sessions are few: {MIN_SESSIONS} or more give a usable interval")
    value = float(differences.mean())
    between = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    half = max(_half_width(between, len(differences) - 1, confidence), _half_width_within(a, b, confidence))
    return _with_interval(value, half, footnotes)


def _half_width_within(a: Blocks, b: Blocks, confidence: float) -> float:
    """Return the half-width that the steps within sessions alone give; 0 where sessions are single steps."""
    blocks = [block for block in (*a, *b) if len(block) > 1]
    if not blocks:
        return 0.0
    variance = sum(math.pi / 2 * float(block.var(ddof=1)) / len(block) for block in blocks) / len(a) ** 2
    return _half_width(math.sqrt(variance), sum(len(block) - 1 for block in blocks), confidence)


def _over_steps(a: NDArray[np.float64], b: NDArray[np.float64], confidence: float, *, single: bool) -> Saving:
    value = float(np.median(a) - np.median(b))
    if min(len(a), len(b)) < 2:
        return Saving(value, math.nan, math.nan, Verdict.TOO_FEW, ("one step on a side: no interval can be given",))
    footnotes = ["each side is one session: what differs between sessions is not in the interval"] if single else []
    if min(len(a), len(b)) < MIN_STEPS:
        footnotes.append(f"{min(len(a), len(b))} steps are few: {MIN_STEPS} or more give a usable interval")
    parts = [float(x.var(ddof=1)) / len(x) for x in (a, b)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return _with_interval(value, 0.0, footnotes)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True))
    return _with_interval(value, _half_width(error, freedom, confidence), footnotes)


def _half_width(error: float, freedom: float, confidence: float) -> float:
    # scipy.stats takes most of a second to import; the quantile alone is in scipy.special.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2)) * error


def _with_interval(value: float, half: float, footnotes: list[str]) -> Saving:
    low, high = value - half, value + half
    if low > 0:
        verdict = Verdict.FASTER
    elif high < 0:
        verdict = Verdict.SLOWER
    else:
        verdict = Verdict.NO_DIFFERENCE
    return Saving(value, low, high, verdict, tuple(footnotes))

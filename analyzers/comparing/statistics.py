"""Whether a difference in time can be believed.

The caller's assumption is stated here once: the sample is the step (devices were averaged before), and steps of
one profiling session share whatever that session suffered from (clock speed, neighbours, memory layout), so
sessions are blocks. Where both sides have the same number (two or more) of sessions taken alternately, the
saving is the mean over sessions of the difference of the session medians, with a Student interval over
sessions, never narrower than what the spread of steps within sessions alone would give: three sessions can agree
by accident. Where the numbers of sessions differ, the interval is Welch's over session medians; where a side is one
session, it is Welch's over steps and a footnote says what it cannot see. Rows of one table are a family: their
intervals hold for all of them together (Bonferroni), else a table of twenty rows would show a difference between a
program and itself. Counts and bytes are exact and never come here.

The verdict is the interval's alone. A rank test stands beside it, on the same samples: signed ranks of the
sessions' differences, or the rank sum of session medians or steps. Few sessions cannot give it a small p (six are
needed for one below 0.05), so it is a second opinion and no second verdict; a footnote says where it does not follow.

Sources: B. L. Welch, Biometrika 34 (1947), 28–35, for the interval with unequal variances; the variance of a
median of n normal samples is π/2 that of their mean for large n; the median absolute deviation as an estimate of
scale has 0.37 of the standard deviation's efficiency (F. R. Hampel, JASA 69 (1974), 383–393).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from analyzers.comparing.ranks import rank_sum_p, signed_rank_p, smallest_rank_sum_p, smallest_signed_rank_p

Blocks = Sequence[NDArray[np.float64]]

CONFIDENCE = 0.95
_LEVEL = 0.05
MIN_SESSIONS = 3
MIN_STEPS = 6
_SIGMA_PER_MAD = 1.4826
_MAD_EFFICIENCY = 0.37


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
    mean: float
    """Means add up, medians do not: the means of the parts of a step are those of the step."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """The rank test of one difference; p is of this difference alone, not of its family."""

    p: float
    smallest_p: float
    """The least p that so many samples can give: above 0.05 the test cannot speak."""
    over: str
    """What was ranked."""


@dataclass(frozen=True, slots=True)
class Saving:
    """How much less the second side took; negative when it took more. Unit of the samples."""

    value: float
    low: float
    high: float
    """95 % confidence interval, held together with its family's; both nan where there are too few samples."""
    verdict: Verdict
    footnotes: tuple[str, ...]
    rank: RankTest | None = None
    """None where a side has too few samples for an interval, too."""

    def scaled(self, divisor: float) -> Saving:
        """Return the saving per part of a step that has `divisor` equal parts."""
        return replace(self, value=self.value / divisor, low=self.low / divisor, high=self.high / divisor)


def estimate(blocks: Blocks) -> Estimate:
    """Return median, smallest and largest of all samples. Raises ValueError if there are none."""
    samples = np.concatenate([np.asarray(b, np.float64) for b in blocks])
    if len(samples) == 0:
        raise ValueError("an estimate needs at least one sample")
    return Estimate(median(samples), float(samples.min()), float(samples.max()), len(samples), float(samples.mean()))


def saving(a: Blocks, b: Blocks, family: int = 1) -> Saving:
    """Return how much less `b` took than `a`, with its interval. One array of samples per session on each side.

    `family` is the number of comparisons whose intervals are to hold together. Raises ValueError where a side has no
    samples.
    """
    confidence = 1 - (1 - CONFIDENCE) / max(family, 1)
    a, b = ([np.asarray(block, np.float64) for block in side if len(block)] for side in (a, b))
    if min(len(a), len(b)) == 0:
        raise ValueError("a saving needs samples on both sides")
    if min(len(a), len(b)) < 2:
        return _over_steps(a, b, confidence)
    if len(a) == len(b):
        return _over_pairs(a, b, confidence)
    return _over_sessions(a, b, confidence)


def _over_pairs(a: Blocks, b: Blocks, confidence: float) -> Saving:
    differences = np.array([median(x) - median(y) for x, y in zip(a, b, strict=True)])
    n = len(differences)
    half = _half_width(float(differences.std(ddof=1)) / math.sqrt(n), n - 1, confidence)
    half = max(half, _half_width_within(a, b, confidence))
    rank = RankTest(signed_rank_p(differences), smallest_signed_rank_p(n), f"signed ranks of {n} rounds")
    return _with_interval(float(differences.mean()), half, _few_sessions(n), rank)


def _over_sessions(a: Blocks, b: Blocks, confidence: float) -> Saving:
    medians_a, medians_b = (np.array([median(block) for block in side]) for side in (a, b))
    half = max(_welch(medians_a, medians_b, confidence), _half_width_within(a, b, confidence))
    sizes = len(a), len(b)
    rank = RankTest(
        rank_sum_p(medians_a, medians_b),
        smallest_rank_sum_p(*sizes),
        f"rank sum of {sizes[0]} and {sizes[1]} session medians",
    )
    return _with_interval(float(medians_a.mean() - medians_b.mean()), half, _few_sessions(min(sizes)), rank)


def _few_sessions(sessions: int) -> list[str]:
    if sessions >= MIN_SESSIONS:
        return []
    return [f"{sessions} sessions are few: {MIN_SESSIONS} or more give a usable interval"]


def _half_width_within(a: Blocks, b: Blocks, confidence: float) -> float:
    """Return the half-width that the steps within sessions alone give; 0 where sessions are single steps.

    Their spread is told from the middle of their deviations: the step that something else interrupted moves no
    median, so it must not widen the interval of medians either.
    """
    variance, freedom = 0.0, 0.0
    for side in (a, b):
        blocks = [block for block in side if len(block) > 1]
        if not blocks:
            continue
        variance += within_scale(blocks) ** 2 * math.pi / 2 * sum(1 / len(block) for block in blocks) / len(side) ** 2
        freedom += _MAD_EFFICIENCY * sum(len(block) - 1 for block in blocks)
    return _half_width(math.sqrt(variance), freedom, confidence) if variance else 0.0


def within_scale(blocks: Blocks) -> float:
    """Return how far steps spread around their session's median, as a standard deviation; 0 if none has two steps."""
    deviations = [_deviations(block) for block in blocks if len(block) > 1]
    return _SIGMA_PER_MAD * median(np.concatenate(deviations)) if deviations else 0.0


def _deviations(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far samples lie from their median.

    The nearest is left out: it is the median itself, or made it. Of two samples both lie at half their distance,
    which is less than they lie from where they come from, by the square root of two.
    """
    deviations = np.sort(np.abs(block - median(block)))[1:]
    return deviations * math.sqrt(2) if len(block) == 2 else deviations


def _over_steps(sessions_a: Blocks, sessions_b: Blocks, confidence: float) -> Saving:
    a, b = (np.concatenate(list(sessions)) for sessions in (sessions_a, sessions_b))
    value = median(a) - median(b)
    if min(len(a), len(b)) < 2:
        return Saving(value, math.nan, math.nan, Verdict.TOO_FEW, ("one step on a side: no interval can be given",))
    side = "each" if len(sessions_a) == len(sessions_b) else "one"
    footnotes = [f"{side} side is one session: what differs between sessions is not in the interval"]
    if min(len(a), len(b)) < MIN_STEPS:
        footnotes.append(f"{min(len(a), len(b))} steps are few: {MIN_STEPS} or more give a usable interval")
    rank = RankTest(rank_sum_p(a, b), smallest_rank_sum_p(len(a), len(b)), f"rank sum of {len(a)} and {len(b)} steps")
    return _with_interval(value, _welch(a, b, confidence), footnotes, rank)


def _welch(a: NDArray[np.float64], b: NDArray[np.float64], confidence: float) -> float:
    """Return the half-width of Welch's interval for the difference of two means."""
    parts = [float(x.var(ddof=1)) / len(x) for x in (a, b)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return 0.0
    freedom = sum(parts) ** 2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True))
    return _half_width(error, freedom, confidence)


def median(samples: NDArray[np.float64]) -> float:
    """Return the median of some samples.

    numpy's own takes ten times as long for the few steps of a session, of which tables of ops ask for thousands, and
    imports all of numpy.ma.
    """
    ordered = np.sort(samples)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else float(ordered[middle - 1] + ordered[middle]) / 2


def _half_width(error: float, freedom: float, confidence: float) -> float:
    # scipy.stats takes most of a second to import; the quantile alone is in scipy.special.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2)) * error


def _with_interval(value: float, half: float, footnotes: list[str], rank: RankTest) -> Saving:
    low, high = value - half, value + half
    if low > 0:
        verdict = Verdict.FASTER
    elif high < 0:
        verdict = Verdict.SLOWER
    else:
        verdict = Verdict.NO_DIFFERENCE
    if verdict is not Verdict.NO_DIFFERENCE and rank.smallest_p <= _LEVEL < rank.p:
        footnotes.append("the rank test sees no difference where the interval does: a few samples decide")
    return Saving(value, low, high, verdict, tuple(footnotes), rank)

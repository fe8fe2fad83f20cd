"""Rank tests: a second opinion on a difference that no single extreme value can sway.

The interval of `statistics` governs the verdict; these p values stand beside it. Two questions are asked of them:
do paired differences lie on one side of zero (Wilcoxon's signed ranks), and does one sample lie below the other
(Mann and Whitney's rank sum). Both are exact for small samples, ties included, by counting the assignments of
the ranks at hand; beyond that they use the normal approximation with the correction for ties.

Written here because scipy.stats, which has them, takes longer to import than the whole comparison; the tests hold
these against it. Sources: F. Wilcoxon, Biometrics Bulletin 1 (1945), 80–83; H. B. Mann and D. R. Whitney, Annals of
Mathematical Statistics 18 (1947), 50–60; M. G. Kendall, Biometrika 30 (1938), 81–93, for the trend.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_MOST_SIGNED = 30
_MOST_SUMMED = 24
_MOST_COUNTED = 1000
_MOST_ORDERED = 60
"""Sample sizes up to which counting is exact."""


def signed_rank_p(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p that differences are as likely above as below zero. Zeros say nothing and are left out.

    Needs the differences to be independent and, where there is no effect, symmetric around zero: so are differences
    of two things that are alike.
    """
    kept = differences[differences != 0]
    if len(kept) == 0:
        return 1.0
    ranks = _doubled_ranks(np.abs(kept))
    above = int(ranks[kept > 0].sum())
    total = int(ranks.sum())
    extreme = min(above, total - above)
    if len(kept) <= _MOST_SIGNED:
        counts = _signed_sums(tuple(sorted(ranks.tolist())))
        return min(1.0, 2 * float(counts[: extreme + 1].sum() / counts.sum()))
    deviation = math.sqrt(float((ranks.astype(np.float64) ** 2).sum()) / 4)
    return _two_sided((total / 2 - extreme) / deviation)


def smallest_signed_rank_p(samples: int) -> float:
    """Return the least p that so many differences can give."""
    return min(1.0, 2.0 ** (1 - samples))


def rank_sum_p(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return the two-sided p that values of `a` and of `b` are drawn from one distribution.

    Needs all values to be independent of one another. Raises ValueError where a side is empty.
    """
    if min(len(a), len(b)) == 0:
        raise ValueError("a rank sum needs values on both sides")
    ranks = _doubled_ranks(np.concatenate([a, b]))
    n, m = len(a), len(b)
    own, expected = int(ranks[:n].sum()), n * (n + m + 1)  # twice n (n + m + 1) / 2
    distance = abs(own - expected)
    if n + m <= _MOST_SUMMED:
        counts = _rank_sums(tuple(sorted(ranks.tolist())), n)
        far = np.abs(np.arange(len(counts)) - expected) >= distance
        return min(1.0, float(counts[far].sum() / counts.sum()))
    variance = n * m / (n + m) / (n + m - 1) * float(((ranks - (n + m + 1)) ** 2).sum())
    if variance == 0:
        return 1.0
    return _two_sided(max(distance - 1, 0) / math.sqrt(variance))  # doubled ranks: half a rank is 1


def smallest_rank_sum_p(n: int, m: int) -> float:
    """Return the least p that samples of these sizes can give."""
    if n + m > _MOST_COUNTED:  # The number of their orders fits no float, and takes long to find.
        return min(1.0, 2 * math.exp(math.lgamma(n + 1) + math.lgamma(m + 1) - math.lgamma(n + m + 1)))
    return min(1.0, 2 / math.comb(n + m, n))


def trend_p(values: NDArray[np.float64]) -> tuple[float, int]:
    """Return the two-sided p that the order of the values is chance, and the sign of the trend (Kendall's S).

    Pairs of equal values count for neither direction, which makes the test more cautious.
    """
    n = len(values)
    later = np.sign(values[None, :] - values[:, None])[np.triu_indices(n, 1)]
    score = int(later.sum())
    pairs = n * (n - 1) // 2
    if n <= _MOST_ORDERED:
        counts = _inversions(n)
        p = 2 * float(counts[: -(-(pairs - abs(score)) // 2) + 1].sum() / counts.sum()) if score else 1.0
    else:
        p = _two_sided((abs(score) - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18))
    return min(1.0, p), int(np.sign(score))


def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """Return the probability of so many or more successes."""
    return sum(
        math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(max(successes, 0), trials + 1)
    )


def _doubled_ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return twice the rank of each value, so that the ranks of equal values (their mean) are whole numbers."""
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((2 * last - counts + 1)[position], np.int64)


@lru_cache(maxsize=256)
def _signed_sums(ranks: tuple[int, ...]) -> NDArray[np.float64]:
    """Return how many choices of signs give each sum of the positive ranks."""
    counts = np.zeros(sum(ranks) + 1)
    counts[0] = 1
    for rank in ranks:
        counts[rank:] += counts[: len(counts) - rank].copy()
    return counts


@lru_cache(maxsize=256)
def _rank_sums(ranks: tuple[int, ...], n: int) -> NDArray[np.float64]:
    """Return how many choices of `n` of the ranks give each sum."""
    counts = np.zeros((n + 1, sum(ranks) + 1))
    counts[0, 0] = 1
    for rank in ranks:
        counts[1:, rank:] += counts[:-1, : counts.shape[1] - rank].copy()
    return np.asarray(counts[n])


@lru_cache(maxsize=64)
def _inversions(n: int) -> NDArray[np.float64]:
    """Return how many orders of `n` values have each number of pairs out of order."""
    counts = np.ones(1)
    for k in range(2, n + 1):
        counts = np.convolve(counts, np.ones(k))
    return counts


def _two_sided(z: float) -> float:
    return math.erfc(max(z, 0.0) / math.sqrt(2))

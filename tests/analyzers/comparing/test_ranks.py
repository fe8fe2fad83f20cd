"""The rank tests against scipy.stats, against counting by hand, and against what their p must mean."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.comparing.ranks import (
    binomial_tail,
    rank_sum_p,
    signed_rank_p,
    smallest_rank_sum_p,
    smallest_signed_rank_p,
    trend_p,
)

small = st.integers(-6, 6).map(float)


@pytest.mark.parametrize("samples", [3, 6, 10, 30, 31, 200])
def test_signed_ranks_are_those_of_scipy(samples):
    values = np.random.default_rng(samples).normal(0.2, 1, samples)
    method = "exact" if samples <= 30 else "approx"
    assert signed_rank_p(values) == pytest.approx(scipy.stats.wilcoxon(values, method=method).pvalue)


@pytest.mark.parametrize(("n", "m"), [(2, 3), (5, 5), (12, 12), (4, 20), (13, 12), (80, 120)])
def test_rank_sums_are_those_of_scipy(n, m):
    rng = np.random.default_rng(n * m)
    a, b = rng.normal(0, 1, n), rng.normal(0.3, 1, m)
    method = "exact" if n + m <= 24 else "asymptotic"
    assert rank_sum_p(a, b) == pytest.approx(scipy.stats.mannwhitneyu(a, b, method=method).pvalue)


def test_many_equal_values_are_corrected_for_as_by_scipy():
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 5, 40).astype(float), rng.integers(1, 6, 40).astype(float)
    assert rank_sum_p(a, b) == pytest.approx(scipy.stats.mannwhitneyu(a, b, method="asymptotic").pvalue)
    differences = (a - b)[a != b]
    assert signed_rank_p(a - b) == pytest.approx(scipy.stats.wilcoxon(differences, method="approx").pvalue)


@settings(max_examples=60, deadline=None)
@given(st.lists(small, min_size=1, max_size=7))
def test_signed_ranks_count_every_choice_of_signs_ties_and_zeros_included(values):
    kept = np.array([v for v in values if v])
    if len(kept) == 0:
        assert signed_rank_p(np.array(values)) == 1.0
        return
    ranks = scipy.stats.rankdata(np.abs(kept))
    centre = ranks.sum() / 2
    far = abs(ranks[kept > 0].sum() - centre)
    sums = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s) for signs in itertools.product((0, 1), repeat=len(kept))
    ]
    assert signed_rank_p(np.array(values)) == pytest.approx(np.mean([abs(s - centre) >= far - 1e-9 for s in sums]))


@settings(max_examples=60, deadline=None)
@given(st.lists(small, min_size=1, max_size=4), st.lists(small, min_size=1, max_size=4))
def test_rank_sums_count_every_choice_of_ranks_ties_included(a, b):
    ranks = scipy.stats.rankdata([*a, *b])
    centre = len(a) * (len(ranks) + 1) / 2
    far = abs(ranks[: len(a)].sum() - centre)
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(a))]
    expected = np.mean([abs(s - centre) >= far - 1e-9 for s in sums])
    assert rank_sum_p(np.array(a), np.array(b)) == pytest.approx(expected)


@pytest.mark.parametrize("samples", [4, 5, 9])
def test_a_trend_is_kendalls(samples):
    values = np.random.default_rng(samples).normal(size=samples) + 0.4 * np.arange(samples)
    found = scipy.stats.kendalltau(np.arange(samples), values, method="exact")
    assert trend_p(values) == (pytest.approx(found.pvalue), int(np.sign(found.statistic)))


def test_a_long_steady_trend_is_certain_and_a_constant_is_none():
    assert trend_p(np.arange(100.0))[0] < 1e-9
    assert trend_p(-np.arange(100.0))[1] == -1
    assert trend_p(np.ones(10)) == (1.0, 0)
    # Two of three pairs rise, one is equal: no less cautious than one pair that falls.
    assert trend_p(np.array([1.0, 1.0, 2.0]))[0] >= trend_p(np.array([1.0, 3.0, 2.0]))[0] - 1e-12


def test_the_least_p_is_that_of_samples_that_do_not_overlap():
    assert signed_rank_p(np.array([1.0, 2.0, 3.0])) == smallest_signed_rank_p(3) == 0.25
    assert signed_rank_p(np.arange(1.0, 7.0)) == smallest_signed_rank_p(6) == 0.03125
    assert rank_sum_p(np.arange(3.0), np.arange(5.0, 9.0)) == pytest.approx(smallest_rank_sum_p(3, 4))


def test_a_rank_sum_needs_two_sides():
    with pytest.raises(ValueError, match="both sides"):
        rank_sum_p(np.zeros(0), np.ones(3))


def test_the_binomial_tail_is_scipys():
    assert binomial_tail(3, 6, 0.2) == pytest.approx(scipy.stats.binom.sf(2, 6, 0.2))
    assert binomial_tail(0, 6, 0.2) == pytest.approx(1.0)

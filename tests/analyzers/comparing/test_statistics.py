import math

import numpy as np
import pytest
import scipy.stats

from analyzers.comparing.statistics import Verdict, estimate, saving


def test_one_session_each_gives_welchs_interval():
    rng = np.random.default_rng(1)
    a, b = rng.normal(100, 5, 9), rng.normal(90, 1, 7)
    expected = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    found = saving([a], [b])
    half = (found.high - found.low) / 2
    assert half == pytest.approx((expected.high - expected.low) / 2)
    assert found.value == pytest.approx(np.median(a) - np.median(b))
    assert any("one session" in note for note in found.footnotes)


def test_sessions_are_the_sample_where_there_are_several():
    rng = np.random.default_rng(2)
    a = [rng.normal(100 + shift, 1, 20) for shift in (0, 5, 9)]
    b = [rng.normal(90 + shift, 1, 20) for shift in (0, 4, 11)]
    differences = [np.median(x) - np.median(y) for x, y in zip(a, b, strict=True)]
    expected = scipy.stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    found = saving(a, b)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.value == pytest.approx(np.mean(differences))


def test_sessions_that_agree_by_accident_do_not_narrow_the_interval():
    steps = np.array([900.0, 1000.0, 1100.0, 950.0, 1050.0])
    found = saving([steps, steps, steps], [steps - 10, steps - 10, steps - 10])
    assert found.value == 10
    assert found.verdict is Verdict.NO_DIFFERENCE


def test_rows_of_a_family_hold_together():
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(400):
        rows = [
            saving([rng.normal(0, 1, 5) for _ in range(3)], [rng.normal(0, 1, 5) for _ in range(3)], family=12)
            for _ in range(12)
        ]
        wrong += any(row.verdict is not Verdict.NO_DIFFERENCE for row in rows)
    assert wrong / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_a_family_widens_the_interval():
    a, b = np.array([10.0, 11.0, 12.0, 10.5]), np.array([9.0, 9.5, 9.2, 9.9])
    expected = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(1 - 0.05 / 4)
    found = saving([a], [b], family=4)
    assert found.high - found.low == pytest.approx(expected.high - expected.low)


def test_drift_shared_by_a_round_does_not_hide_a_saving():
    rounds = [0.0, 500.0, 2000.0, 90.0]
    a = [np.array([1000.0, 1001.0, 999.0]) + r for r in rounds]
    b = [np.array([990.0, 991.0, 989.0]) + r for r in rounds]
    found = saving(a, b)
    assert found.verdict is Verdict.FASTER
    assert found.value == pytest.approx(10)


@pytest.mark.parametrize(
    ("noise", "drift"),
    [("normal", 0.0), ("normal", 20.0), ("skewed", 0.0), ("skewed", 20.0), ("outliers", 5.0)],
)
def test_the_same_thing_twice_is_called_different_in_at_most_5_percent(noise, drift):
    rng = np.random.default_rng(7)

    def session():
        if noise == "normal":
            steps = rng.normal(1000, 10, 5)
        elif noise == "skewed":
            steps = 1000 + rng.gamma(2.0, 10.0, 5)
        else:
            steps = rng.normal(1000, 10, 5) + (rng.random(5) < 0.1) * 500
        return steps + rng.normal(0, drift)

    trials = 1000
    wrong = sum(
        saving([session() for _ in range(3)], [session() for _ in range(3)]).verdict in (Verdict.FASTER, Verdict.SLOWER)
        for _ in range(trials)
    )
    # 5 % and three standard errors of the count.
    assert wrong / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_one_step_has_no_interval():
    found = saving([np.array([5.0])], [np.array([3.0])])
    assert found.verdict is Verdict.TOO_FEW
    assert found.value == 2
    assert math.isnan(found.low)
    assert "no interval" in found.footnotes[0]


def test_equal_constants_are_no_difference_and_unequal_ones_are_certain():
    same, less = np.array([7.0, 7.0, 7.0]), np.array([5.0, 5.0, 5.0])
    assert saving([same], [same]).verdict is Verdict.NO_DIFFERENCE
    certain = saving([same], [less])
    assert (certain.verdict, certain.low, certain.high) == (Verdict.FASTER, 2.0, 2.0)


def test_slower_is_said_to_be_slower():
    a = [np.array([10.0, 11.0, 10.5]), np.array([10.2, 11.1, 10.4]), np.array([10.1, 11.0, 10.6])]
    b = [x * 2 for x in a]
    assert saving(a, b).verdict is Verdict.SLOWER


def test_few_samples_are_footnoted():
    assert any("3 steps are few" in n for n in saving([np.array([1.0, 2, 3])], [np.array([1.0, 2, 3])]).footnotes)
    two = [np.array([1.0, 2.0])] * 2
    assert any("2 sessions are few" in n for n in saving(two, two).footnotes)


def test_scaling_divides_value_and_interval():
    found = saving([np.array([8.0, 8.0])], [np.array([4.0, 4.0])]).scaled(4)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_an_estimate_is_median_and_range_of_all_sessions():
    found = estimate([np.array([5.0, 1.0]), np.array([9.0])])
    assert (found.median, found.low, found.high, found.samples) == (5.0, 1.0, 9.0, 3)
    with pytest.raises(ValueError, match="at least one sample"):
        estimate([np.zeros(0)])


def test_a_rank_test_stands_beside_the_interval_and_has_no_vote():
    differences = np.array([3.0, 5.0, -1.0, 4.0, 6.0, 2.0])
    a = [np.array([100.0, 100.0, 100.0]) + d for d in differences]
    b = [np.array([100.0, 100.0, 100.0])] * 6
    found = saving(a, b)
    assert found.rank is not None
    assert found.rank.p == pytest.approx(scipy.stats.wilcoxon(differences, method="exact").pvalue)
    assert (found.rank.smallest_p, found.rank.over) == (2 / 2**6, "signed ranks of 6 rounds")
    assert found.rank.p > 0.05
    assert found.verdict is Verdict.FASTER
    assert any("the rank test sees no difference" in note for note in found.footnotes)


def test_a_rank_test_that_cannot_speak_is_not_quoted_against_the_interval():
    three = [np.array([10.0, 10.1, 9.9]), np.array([10.1, 10.0, 10.2]), np.array([9.9, 10.0, 10.0])]
    found = saving(three, [block - 5 for block in three])
    assert found.verdict is Verdict.FASTER
    assert found.rank.p == found.rank.smallest_p == 0.25
    assert found.footnotes == ()


def test_single_sessions_are_ranked_by_steps():
    a, b = np.array([1.0, 4.0, 6.0, 8.0]), np.array([2.0, 9.0, 10.0])
    expected = scipy.stats.mannwhitneyu(a, b, method="exact").pvalue
    assert saving([a], [b]).rank.p == pytest.approx(expected)


def test_unequal_numbers_of_sessions_are_compared_by_session_medians():
    rng = np.random.default_rng(4)
    a = [rng.normal(100 + shift, 0.1, 20) for shift in (0, 5, 9)]
    b = [rng.normal(97 + shift, 0.1, 20) for shift in (0, 4, 11, 2)]
    medians = [[np.median(block) for block in side] for side in (a, b)]
    expected = scipy.stats.ttest_ind(*medians, equal_var=False).confidence_interval(0.95)
    found = saving(a, b)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.verdict is Verdict.NO_DIFFERENCE  # 60 and 80 steps would be certain of it
    assert found.rank.p == pytest.approx(scipy.stats.mannwhitneyu(*medians, method="exact").pvalue)


def test_one_session_against_several_says_what_it_cannot_see():
    steps = np.arange(8.0)
    assert any(n.startswith("one side is one session") for n in saving([steps], [steps, steps]).footnotes)


def test_one_interrupted_step_does_not_hide_a_saving():
    rounds = np.random.default_rng(8).normal(0, 2, 8)
    steps = np.array([1000.0, 1003.0, 997.0, 1001.0, 998.0])
    a = [steps + shift for shift in rounds]
    b = [steps - 30 + shift for shift in rounds[::-1]]
    calm = saving(a, b)
    a[3] = np.array([1000.0, 5000.0, 997.0, 1001.0, 998.0])
    interrupted = saving(a, b)
    assert (calm.verdict, interrupted.verdict) == (Verdict.FASTER, Verdict.FASTER)
    assert interrupted.high - interrupted.low == pytest.approx(calm.high - calm.low, rel=0.1)


@pytest.mark.parametrize("steps", [2, 3, 5, 10])
def test_the_interval_is_never_narrower_than_steps_within_sessions_give(steps):
    rng = np.random.default_rng(steps)
    block = rng.normal(0, 1, steps * 400).reshape(400, steps)
    # Sessions that agree to the last digit: all that is left is the spread within.
    found = saving([b - np.median(b) for b in block], [b - np.median(b) for b in block[::-1]])
    exact = 1.96 * math.sqrt(math.pi / 2 / steps * 2 / 400)
    assert (found.high - found.low) / 2 == pytest.approx(exact, rel=0.12)


def test_the_mean_of_an_estimate_adds_up():
    parts = [[np.array([1.0, 8.0]), np.array([3.0])], [np.array([2.0, 2.0]), np.array([9.0])]]
    whole = [x + y for x, y in zip(*parts, strict=True)]
    assert sum(estimate(part).mean for part in parts) == pytest.approx(estimate(whole).mean)


def test_a_saving_needs_samples_on_both_sides():
    with pytest.raises(ValueError, match="both sides"):
        saving([np.zeros(0)], [np.ones(3)])

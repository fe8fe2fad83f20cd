"""When a capture that waits for precision ends, on step times that are made up."""

import numpy as np
import pytest
from scipy.stats import t as student

from profiler.stopping import MIN_ROUNDS, Progressed, Until, progressed, seconds_left, stopped

UNTIL = Until(precision=0.02, max_seconds=100.0)


def rounds_of(*medians: float) -> list[list[int]]:
    """Sessions of one step each, which is its median."""
    return [[round(median)] for median in medians]


def by_hand(differences: list[float]) -> float:
    """Half-width of the 95 % interval of a mean, from the textbook."""
    n = len(differences)
    return float(student.ppf(0.975, n - 1) * np.std(differences, ddof=1) / np.sqrt(n))


def test_the_saving_known_least_counts() -> None:
    walls = {
        "base": rounds_of(1000, 1100, 900),
        "steady": rounds_of(900, 1001, 800),
        "shaky": rounds_of(700, 1200, 650),
    }
    known = progressed(walls)
    assert known is not None
    assert (known.variant, known.of_itself) == ("shaky", False)
    assert known.value == pytest.approx((300 - 100 + 250) / 3 / 1000)
    assert known.half_width == pytest.approx(by_hand([300, -100, 250]) / 1000)


def test_a_single_variant_is_known_by_its_own_step_time() -> None:
    known = progressed({"only": rounds_of(1000, 1100, 900, 1050)})
    assert known is not None
    assert known.of_itself
    assert known.half_width == pytest.approx(by_hand([1000, 1100, 900, 1050]) / 1012.5)


def test_one_round_says_nothing() -> None:
    assert progressed({"base": rounds_of(1000), "other": rounds_of(900)}) is None


@pytest.mark.parametrize(
    ("done", "seconds", "half_width", "reason"),
    [
        (MIN_ROUNDS, 50.0, 0.019, "precision"),
        (MIN_ROUNDS, 50.0, 0.021, None),
        (MIN_ROUNDS - 1, 50.0, 0.001, None),  # narrow by accident
        (3, 76.0, 0.021, "time"),  # a fourth would end at 101 s
        (3, 74.0, 0.021, None),
        (MIN_ROUNDS, 99.0, 0.019, "precision"),
        (1, 1000.0, None, "time"),
    ],
)
def test_width_and_time_alone_decide(done: int, seconds: float, half_width: float | None, reason: str | None) -> None:
    # The saving is as large as you like and its interval excludes zero: that must not matter.
    known = None if half_width is None else Progressed("b", 0.5, half_width, of_itself=False)
    found = stopped(UNTIL, done, seconds, known)
    assert (found and found.reason) == reason
    if found:
        assert (found.half_width, found.precision, found.max_seconds) == (half_width, 0.02, 100.0)
        assert found.seconds == seconds


def test_a_number_of_rounds_is_that_number() -> None:
    known = Progressed("b", 0.0, 0.001, of_itself=False)
    assert stopped(3, 2, 1e9, known) is None
    found = stopped(3, 3, 1.0, known)
    assert found is not None
    assert (found.reason, found.precision) == ("rounds", None)


def test_time_left() -> None:
    wide, narrow = (Progressed("b", 0.0, half_width, of_itself=False) for half_width in (0.04, 0.01))
    assert seconds_left(5, 0, 0.0, None) is None
    assert seconds_left(5, 2, 8.0, None) == 12.0
    # Half the width takes four times the rounds: 12 become 48, at 0.5 s each.
    assert seconds_left(UNTIL, 12, 6.0, wide) == pytest.approx(18.0)
    assert seconds_left(UNTIL, 2, 1.0, narrow) == pytest.approx((MIN_ROUNDS - 2) * 0.5)
    assert seconds_left(UNTIL, 12, 90.0, wide) == pytest.approx(10.0)

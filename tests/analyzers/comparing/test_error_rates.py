"""How often a comparison is wrong, in small; tests/benchmarks/statistics.py prints the whole table."""

import numpy as np
import pytest

from tests.benchmarks.statistics import aa_cases, allowed, found, made_cases, precision_at, stopping, wrong
from tests.builders.noise import KINDS, captures, level, like

TRIALS = 200
CASES = aa_cases(captures(), rounds=3, steps=5)
CASES_OF_40_ROUNDS = made_cases(captures(), rounds=40, steps=5)


@pytest.mark.parametrize("case", CASES)
def test_a_program_against_itself_is_called_different_in_5_percent_at_most(case):
    assert wrong(CASES[case], TRIALS, seed=5) <= allowed(TRIALS)


def test_many_rounds_are_no_licence_to_see_differences():
    rates = {name: wrong(lambda rng, k=kind: k(rng, 10, 5), TRIALS, seed=6) for name, kind in KINDS.items()}
    assert {name: rate for name, rate in rates.items() if rate > allowed(TRIALS)} == {}


def test_waiting_for_a_narrow_interval_is_no_licence_either():
    draw = CASES_OF_40_ROUNDS["offsets by round and session"]
    rate, rounds = stopping(draw, precision_at(draw, 15, 50, seed=9), trials=100, seed=10)
    assert rate <= allowed(100)
    assert 10 < rounds < 40


def test_three_percent_are_found_in_ten_rounds_on_an_idle_machine():
    idle = captures()[0]
    a, b = (side["step"] for side in idle.sides.values())
    draw = like(a, b)
    assert found(lambda rng: draw(rng, 10, 5), TRIALS, seed=7) >= 0.9


def test_noise_made_like_a_capture_is_as_noisy_as_it():
    a, b = (side["step"] for side in captures()[0].sides.values())
    rng = np.random.default_rng(8)
    drawn = [np.array(side) for side in like(a, b)(rng, 500, 5)]
    real, made = level(a, b), level(*drawn)
    assert made.within == pytest.approx(real.within, rel=0.25)
    assert made.between == pytest.approx(real.between, rel=0.25)

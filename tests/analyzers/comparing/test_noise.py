"""Named warnings: each appears where its cause was put in, and not on noise alone."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from analyzers.comparing.noise import Side, cold, drift, noise_warnings, outliers
from analyzers.reading.run import load_run
from analyzers.trace import load_variants
from tests.benchmarks.statistics import warned
from tests.builders.noise import KINDS


def side(blocks, name="A"):
    return Side(name, tuple(np.asarray(block, float) for block in blocks))


def steady(rng, rounds=8, steps=5):
    return [1000 + rng.normal(0, 10, steps) for _ in range(rounds)]


def test_sides_that_both_slow_down_from_round_to_round_drift():
    rng = np.random.default_rng(1)
    a, b = ([block + 20 * k for k, block in enumerate(steady(rng))] for _ in range(2))
    found = drift(side(a), side(b), alternating=True)
    # From about 1000 to 1140.
    assert found.name == "drift"
    assert "over 8 rounds" in found.message
    assert "take 1.14 × as long" in found.message
    assert "took turns" in found.message
    assert "can look like a saving" in drift(side(a), side(b), alternating=False).message
    assert "take 0.88 × as long" in drift(side(a[::-1]), side(b[::-1]), alternating=True).message


def test_one_side_that_slows_down_alone_is_no_drift_of_the_machine():
    rng = np.random.default_rng(2)
    a = [block + 20 * k for k, block in enumerate(steady(rng))]
    falling = [block - 5 * k for k, block in enumerate(steady(rng))]
    assert drift(side(a), side(falling), alternating=True) is None


def test_four_rounds_are_too_few_to_call_a_trend():
    blocks = [[1000.0 + 50 * k] * 5 for k in range(4)]
    assert drift(side(blocks), side(blocks), alternating=True) is None
    five = [[1000.0 + 50 * k] * 5 for k in range(5)]
    assert drift(side(five), side(five), alternating=True) is not None


def test_an_outlier_step_is_named_with_its_session_and_size():
    rng = np.random.default_rng(3)
    blocks = steady(rng)
    blocks[2][4] = 2.5 * np.median(blocks[2])
    found = outliers(side(blocks, "cached"))
    assert found.name == "outlier-steps"
    assert found.message.startswith("cached: session 2, step 4 (2.50 × its session's median);")
    assert outliers(side(steady(rng))) is None


def test_of_many_outliers_the_farthest_are_named_and_the_rest_counted():
    blocks = steady(np.random.default_rng(4))
    for k in range(5):
        blocks[k][k] = 2000 + 100 * k
    message = outliers(side(blocks)).message
    assert message.index("session 4, step 4") < message.index("session 3, step 3") < message.index("session 2, step 2")
    assert "session 1" not in message
    assert "and 2 more" in message


def test_a_slow_first_step_in_every_session_was_not_warm():
    rng = np.random.default_rng(5)
    blocks = [block * np.array([1.3, 1, 1, 1, 1]) for block in steady(rng, rounds=3)]
    found = cold(side(blocks, "B"))
    assert found.name == "cold-first-step"
    assert "B: the first step is the slowest in 3 of 3 sessions, 1.3" in found.message
    assert cold(side([block[::-1] for block in blocks])) is None


def test_a_single_session_is_cold_only_if_its_first_step_is_far_off():
    steps = np.array([1000.0, 1010, 990, 1005, 1002, 995])
    assert cold(side([steps])) is None
    steps[0] = 1100
    assert cold(side([steps])) is None
    steps[0] = 9000
    assert "the first step is the slowest of its session" in cold(side([steps])).message


def test_steps_are_called_by_the_names_they_have_in_the_run(ring_run):
    a, b = load_variants(load_run(ring_run), ("recompute", "cached"))
    # 2 rounds × 2 steps: too few for any of the warnings.
    assert noise_warnings(a, b) == ()


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("heavy tail", "bimodal", "drift")])
@pytest.mark.parametrize(("rounds", "steps"), [(3, 5), (10, 5)])
def test_warnings_are_rare_where_there_is_noise_alone(kind, rounds, steps):
    trials = 200
    found = warned(lambda rng: KINDS[kind](rng, rounds, steps), trials, seed=11)
    # 5 % for a trend, 1 % on each side for a first step, as good as none for outliers; three standard errors.
    limits = Counter({"drift": 19, "cold-first-step": 10, "outlier-steps": 4})
    if kind == "autocorrelated":
        limits["drift"] = 30  # a wave longer than the capture is a drift
    assert all(found[name] <= limits[name] for name in limits), found


def test_a_drift_of_the_machine_is_found_in_noise():
    found = warned(lambda rng: KINDS["drift"](rng, 10, 5), 100, seed=12)
    assert found["drift"] >= 95


def test_the_documentation_lists_every_note_about_a_comparison():
    root = Path(__file__).resolve().parents[3]
    sources = [path.read_text() for path in (root / "analyzers" / "comparing").glob("*.py")]
    names = {name for source in sources for name in re.findall(r'\bCaveat\(\s*"([a-z-]+)"', source)}
    table = (root / "docs" / "statistics.md").read_text().partition("## Notes about the steps")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE)) == names
    assert len(names) == 5

"""The measures that verification uses, on numbers whose answer is known, and a verdict on variants that agree."""

import jax
import ml_dtypes
import numpy as np
import pytest

from workloads.verify import ORACLE, QUANTITIES, compare, max_ulp, relative_error, verify

from .cases import small_config

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_ulp_counts_representable_numbers():
    one = np.array([1.0], np.float32)
    assert max_ulp(one, np.nextafter(one, np.float32(2))) == 1
    assert max_ulp(one, one * 2) == 2**23  # float32 has as many numbers in [1, 2)
    tiny = np.array([np.finfo(np.float32).smallest_subnormal])
    assert max_ulp(tiny, -tiny) == 2  # the neighbours of zero on both sides
    assert max_ulp(np.array([0.0], np.float32), np.array([-0.0], np.float32)) == 0
    half = np.array([1.0], ml_dtypes.bfloat16)
    assert max_ulp(half, half * 2) == 2**7


def test_relative_error_is_of_the_largest_value():
    assert relative_error(np.array([1.0, 99.0]), np.array([2.0, 100.0])) == 0.01
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
    assert np.isnan(relative_error(np.array([np.nan]), np.array([1.0])))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_a_problem(bad):
    want = {"output": np.ones(3, np.float32)}
    got = {"output": np.array([1, 1, bad], np.float32)}
    (comparison,) = compare(got, want, ORACLE, "random", 1e-3, "cached")
    assert comparison.problem


@pytest.mark.slow
def test_verdict_on_variants_that_agree():
    config = small_config(ep=2, num_layers=1, vocab_size=16)
    said = []
    verdict = verify("ring", ["recompute", "cached"], config, jax.devices(), train_steps=12, progress=said.append)
    assert verdict.ok
    assert verdict.training_identical
    recompute, cached = verdict.reports
    assert [(c.quantity, c.routing) for c in recompute.comparisons] == [
        (quantity, routing) for routing in ("random", "skewed") for quantity in QUANTITIES.values()
    ]
    assert {c.against for c in cached.comparisons} == {ORACLE, "recompute"}
    assert all(c.identical for c in cached.comparisons if c.against == "recompute")
    losses = recompute.training.losses
    assert len(losses) == 12
    # 16 tokens: a uniform guess has log 16 = 2.8; the noise, one in ten, leaves about 0.6.
    assert 2.5 < losses[0] < 4
    assert losses[-1] < losses[0] / 2
    assert recompute.training.perplexities == pytest.approx(np.exp(losses))
    assert "ring/cached: values" in said

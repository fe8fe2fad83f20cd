"""Every deliberate fault is caught by the check that is there for it. The broken pieces live here and nowhere else."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest

from workloads import a2a, permutation, permute, ring
from workloads.kernels import Kernels, choose, plain
from workloads.routing_check import accumulation_problems, check_kernels, check_routing
from workloads.verify import ORACLE, compare_all, oracle_values, run_variant, verify

from .cases import small_config

pytestmark = pytest.mark.usefixtures("quick_compile")

CONFIG = small_config(ep=4, num_layers=1)


@cache
def oracle():
    """Its values are the same for every workload that drops nothing, and no fault touches them."""
    return oracle_values("ring", "cached", CONFIG, jax.devices())


def value_problems(workload: str, variant: str) -> list[str]:
    got = run_variant(workload, variant, CONFIG, jax.devices())
    comparisons = compare_all(got, oracle(), ORACLE, variant, CONFIG)
    return [comparison.problem for comparison in comparisons if comparison.problem]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def combine_without_router_gradient(plan, rows, weights, routing):
    return ring._combine_forward(plan, rows, weights, routing)[0]


def _without_router_gradient(plan, residuals, d_out):
    d_rows, d_weights, none = ring._combine_backward(plan, residuals, d_out)
    return d_rows, jnp.zeros_like(d_weights), none


combine_without_router_gradient.defvjp(ring._combine_forward, _without_router_gradient)


def test_missing_router_gradient(monkeypatch):
    monkeypatch.setattr(ring, "combine_rows", combine_without_router_gradient)
    problems = value_problems("ring", "cached")
    missing = "cached: the gradient of router weights is zero everywhere, that of oracle is not: it is missing"
    assert missing in problems
    assert not any("expert weights" in problem for problem in problems)


def test_missing_activation_gradient(monkeypatch):
    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def dispatch(plan, x, routing):
        return ring._dispatch_forward(plan, x, routing)[0]

    def backward(plan, routing, d_rows):
        return jnp.zeros((CONFIG.num_tokens, d_rows.shape[1]), d_rows.dtype), None

    dispatch.defvjp(ring._dispatch_forward, backward)
    monkeypatch.setattr(ring, "dispatch_rows", dispatch)
    assert any("gradient of activations differs" in problem for problem in value_problems("ring", "cached"))


@pytest.mark.parametrize(("workload", "variant"), [("permute", "gather"), ("a2a", "recompute")])
def test_wrong_inverse(monkeypatch, workload, variant):
    for module in (permute, a2a):
        monkeypatch.setattr(module, "invert", lambda permutation, method: permutation)
    assert any("positions on device 0 differs" in p for p in check_routing(workload, variant, CONFIG, jax.devices()))
    assert value_problems(workload, variant)


def test_wrong_inverse_in_the_backward_only(monkeypatch):
    """The forward is right, so only the gradients can tell."""
    monkeypatch.setattr(permute, "_back", lambda method, order: order.forth)
    assert check_routing("permute", "gather", CONFIG, jax.devices()) == ()
    problems = value_problems("permute", "gather")
    assert any("gradient" in problem for problem in problems)
    assert not any("the output" in problem for problem in problems)


def test_backward_that_forgets_to_sum_over_top_k(monkeypatch):
    @partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def first_slot_only(method, top_k, x, order):
        return x[order.forth // top_k]

    def backward(method, top_k, order, d_rows):
        return d_rows[permute._back(method, order)].reshape(-1, top_k, d_rows.shape[1])[:, 0], None

    first_slot_only.defvjp(permute._take_tokens_forward, backward)
    monkeypatch.setattr(permute, "take_tokens", first_slot_only)
    assert any("gradient of activations differs" in p for p in value_problems("permute", "gather+scatter"))


@pytest.mark.parametrize("dtype", ["int8", "int16", "bfloat16", "float32"])
def test_group_sizes_accumulated_in_a_narrow_or_floating_type(monkeypatch, dtype):
    """All of them count right here, where no expert has more than 127 rows: the type itself is the fault."""

    def count(experts, num_experts):
        return jnp.zeros(num_experts, dtype).at[experts].add(1).astype(jnp.int32)

    for module in (ring, permute):
        monkeypatch.setattr(module, "count_groups", count)
    for workload, variant in (("ring", "cached"), ("permute", "repeat"), ("a2a", "saved")):
        (problem, *_) = check_routing(workload, variant, CONFIG, jax.devices())
        assert problem.startswith(f"group sizes accumulate in {dtype} (scatter-add)")


def test_one_hot_group_sizes_are_held_to_the_same(monkeypatch):
    def count(experts):
        return jax.nn.one_hot(experts, 8, dtype=jnp.bfloat16).sum(axis=0).astype(jnp.int32)

    problems = list(accumulation_problems(jax.make_jaxpr(count)(jnp.zeros(16, jnp.int32))))
    assert problems
    assert all("float" in problem for problem in problems)


def test_group_sizes_count_beyond_what_narrower_types_hold():
    many = jnp.zeros(70_000, jnp.int32)
    assert permutation.count_groups(many, 4).tolist() == [70_000, 0, 0, 0]


def test_shard_range_off_by_one_row(monkeypatch):
    right = ring.span_of

    def one_late(group_sizes, plan):
        span = right(group_sizes, plan)
        return span._replace(start=span.start + 1)

    monkeypatch.setattr(ring, "span_of", one_late)
    assert any("the output differs" in problem for problem in value_problems("ring", "cached"))
    assert any("sorted_by_validity" in p for p in check_routing("ring", "cached", CONFIG, jax.devices()))


def test_shard_range_off_by_one_expert(monkeypatch):
    right = ring.local_group_sizes
    monkeypatch.setattr(ring, "local_group_sizes", lambda sizes, plan: right(jnp.roll(sizes, 1), plan))
    problems = check_routing("ring", "recompute", CONFIG, jax.devices())
    assert any("rows per local expert on device" in problem for problem in problems)


def test_unmasked_padding():
    def unmasked(source, indices, num_valid):
        return source[indices]

    assert check_kernels(Kernels(unmasked, plain.ragged_gather_reduce)) == (
        "the gather leaves padding unmasked: rows beyond the valid ones are not zero",
    )


def test_gather_reduce_that_multiplies_invalid_rows_by_zero():
    """Zero times NaN is NaN: rows that are not valid must not be read."""

    def by_multiplying(rows, positions, weights, valid, order, top_k):
        by_slot = rows[positions] * (weights * valid)[:, None]
        return by_slot.reshape(-1, top_k, rows.shape[1]).sum(axis=1)

    assert check_kernels(Kernels(plain.ragged_gather, by_multiplying)) == (
        "the gather-reduce reads rows of slots that are not valid",
    )


def test_gather_reduce_that_forgets_the_weights():
    def unweighted(rows, positions, weights, valid, order, top_k):
        return plain.ragged_gather_reduce(rows, positions, None, valid, order, top_k)

    (problem,) = check_kernels(Kernels(plain.ragged_gather, unweighted))
    assert "with their weights" in problem


def test_plain_kernels_are_right():
    assert check_kernels(choose("jax", "cpu")) == ()


def test_stale_validity_permutation(monkeypatch):
    """A cached permutation that is not that of this routing's mask loses rows."""
    monkeypatch.setattr(ring, "sort_by_validity", lambda valid: jnp.arange(valid.shape[0], dtype=jnp.int32))
    assert any("the output differs" in problem for problem in value_problems("ring", "cached"))
    assert any("sorted_by_validity" in p for p in check_routing("ring", "cached", CONFIG, jax.devices()))


@pytest.mark.slow
def test_variant_that_trains_differently(monkeypatch):
    """Only `cached` is broken, and it is `cached` that is reported, in values and in training."""
    right = ring.combine_rows

    def combine(plan, rows, weights, routing):
        broken = plan.choices.validity == "cached"
        return (combine_without_router_gradient if broken else right)(plan, rows, weights, routing)

    monkeypatch.setattr(ring, "combine_rows", combine)
    verdict = verify("ring", ["recompute", "cached"], CONFIG, jax.devices(), train_steps=8)
    recompute, cached = verdict.reports
    assert not verdict.ok
    assert recompute.problems == ()
    assert not cached.training.identical_to_first
    assert cached.training.losses[0] == recompute.training.losses[0]
    assert "the loss is" in cached.training.problem
    assert "at step" in cached.training.problem

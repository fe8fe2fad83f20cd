"""The comparison with the oracle notices a gradient that is wrong on purpose."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from workloads import permute, ring
from workloads.registry import build

from .cases import arguments, assert_backward_matches, small_config


def _fails(workload: str, variant: str, match: str, **overrides) -> None:
    program = build(workload, variant, small_config(ep=4, **overrides), "backward", jax.devices())
    with pytest.raises(AssertionError, match=match):
        assert_backward_matches(program, arguments(program))


def test_router_gradient_dropped_in_the_combine(monkeypatch):
    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def no_router_gradient(plan, rows, weights, routing):
        return ring._combine_forward(plan, rows, weights, routing)[0]

    def backward(plan, residuals, d_out):
        d_rows, d_weights, none = ring._combine_backward(plan, residuals, d_out)
        return d_rows, jnp.zeros_like(d_weights), none

    no_router_gradient.defvjp(ring._combine_forward, backward)
    monkeypatch.setattr(ring, "combine_rows", no_router_gradient)
    _fails("ring", "cached", "gradient", num_layers=1)


def test_backward_that_permutes_with_the_permutation_instead_of_its_inverse(monkeypatch):
    monkeypatch.setattr(permute, "_back", lambda method, order: order.forth)
    _fails("permute", "gather", "gradient")


def test_backward_that_forgets_to_sum_over_top_k(monkeypatch):
    @partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def first_slot_only(method, top_k, x, order):
        return x[order.forth // top_k]

    def backward(method, top_k, order, d_rows):
        return d_rows[permute._back(method, order)].reshape(-1, top_k, d_rows.shape[1])[:, 0], None

    first_slot_only.defvjp(permute._take_tokens_forward, backward)
    monkeypatch.setattr(permute, "take_tokens", first_slot_only)
    _fails("permute", "gather+scatter", "activation gradient", num_layers=1)


def test_stale_validity_permutation(monkeypatch):
    """A cached permutation that is not that of this routing's mask loses rows."""
    monkeypatch.setattr(ring, "sort_by_validity", lambda valid: jnp.arange(valid.shape[0], dtype=jnp.int32))
    _fails("ring", "cached", "loss|gradient|tolerance")

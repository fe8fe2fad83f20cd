"""Sort keys and inverses: the ways to order (token, slot) pairs by expert and to undo that order.

A pair is numbered `slot = token * top_k + k`. All arrays here are int32 and one-dimensional over the N pairs.
`sort_indices[p]` is the slot at sorted position p; `positions[slot]` is its inverse.
"""

import jax
import jax.numpy as jnp
from jax import lax

from workloads.variants import packed_shift


def sort_by_expert(experts: jax.Array, num_experts: int, sort_key: str) -> tuple[jax.Array, jax.Array | None]:
    """Order slots by expert, ties in slot order.

    experts: int32[N], the expert of each slot. Returns sort_indices int32[N], and positions int32[N] where
    the method yields them without inverting (`counting`), else None. Raises WorkloadError if a packed key
    overflows.
    """
    if sort_key == "stable":
        return jnp.argsort(experts, stable=True).astype(jnp.int32), None
    if sort_key == "packed":
        return _packed_sort(experts, num_experts), None
    return _counting_sort(experts, num_experts)


def _packed_sort(experts: jax.Array, num_experts: int) -> jax.Array:
    num_slots = experts.shape[0]
    shift = packed_shift(num_slots, num_experts)
    keys = (experts << shift) | jnp.arange(num_slots, dtype=jnp.int32)
    # The keys are distinct, so an unstable single-operand sort already keeps ties in slot order.
    return jnp.bitwise_and(lax.sort(keys, is_stable=False), jnp.int32((1 << shift) - 1))


def _counting_sort(experts: jax.Array, num_experts: int) -> tuple[jax.Array, jax.Array]:
    one_hot = (experts[:, None] == jnp.arange(num_experts, dtype=jnp.int32)).astype(jnp.int32)
    up_to_here = jnp.cumsum(one_hot, axis=0, dtype=jnp.int32)
    starts = jnp.cumsum(up_to_here[-1], dtype=jnp.int32) - up_to_here[-1]
    positions = jnp.sum(one_hot * (up_to_here - 1 + starts), axis=1, dtype=jnp.int32)
    return invert(positions, "scatter"), positions


def invert(permutation: jax.Array, method: str) -> jax.Array:
    """The inverse int32[N] of a permutation int32[N]: by `scatter` in O(N), otherwise by argsort."""
    if method == "scatter":
        count = jnp.arange(permutation.shape[0], dtype=jnp.int32)
        inverse: jax.Array = jnp.zeros_like(permutation).at[permutation].set(count, unique_indices=True)
        return inverse
    return jnp.argsort(permutation, stable=True).astype(jnp.int32)


def count_groups(experts: jax.Array, num_experts: int) -> jax.Array:
    """Slots per expert, int32[num_experts].

    Accumulated in int32: a narrower type overflows and a floating one stops counting at 2**(mantissa bits),
    which shifts every later expert's range of rows.
    """
    sizes: jax.Array = jnp.zeros(num_experts, jnp.int32).at[experts].add(jnp.int32(1))
    return sizes

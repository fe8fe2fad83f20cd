"""The experts: a gated feed-forward network per expert, applied to rows that lie sorted by expert."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class ExpertWeights(NamedTuple):
    """gate and up: [experts, hidden, expert_dim]; down: [experts, expert_dim, hidden]."""

    gate: jax.Array
    up: jax.Array
    down: jax.Array


def grouped_matmul(rows: jax.Array, weights: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """float32[rows, n]: rows [rows, k] times the matrix of the expert they belong to, weights [experts, k,
    n].

    group_sizes: int32[experts], rows per expert, in order; rows beyond their sum belong to no expert.
    """
    return lax.ragged_dot(rows, weights, group_sizes, preferred_element_type=jnp.float32)


def activate(gate: jax.Array, up: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """silu(gate) * up, computed in float32 and rounded to `dtype`."""
    return (jax.nn.silu(gate) * up).astype(dtype)


def feed_forward(rows: jax.Array, weights: ExpertWeights, group_sizes: jax.Array) -> jax.Array:
    """Rows [rows, hidden] through their experts, in the dtype they came in."""
    gate = grouped_matmul(rows, weights.gate, group_sizes)
    up = grouped_matmul(rows, weights.up, group_sizes)
    hidden = activate(gate, up, rows.dtype)
    return grouped_matmul(hidden, weights.down, group_sizes).astype(rows.dtype)

"""Ragged gather and ragged gather-reduce in plain jax operations: correct on every backend."""

import jax
import jax.numpy as jnp


def sort_by_validity(valid: jax.Array) -> jax.Array:
    """The permutation int32[N] that puts the set entries of bool[N] first, both sides in order."""
    return jnp.argsort(~valid, stable=True).astype(jnp.int32)


def ragged_gather(source: jax.Array, indices: jax.Array, num_valid: jax.Array) -> jax.Array:
    """Rows [buffer_rows, width] with `rows[r] = source[indices[r]]` for r < num_valid and zero beyond.

    source: [n, width]. indices: int32[buffer_rows], of any value beyond num_valid. num_valid: int32 scalar.
    """
    rows = source.at[indices].get(mode="clip")
    keep = jnp.arange(indices.shape[0], dtype=jnp.int32) < num_valid
    return jnp.where(keep[:, None], rows, jnp.zeros((), source.dtype))


def ragged_gather_reduce(
    rows: jax.Array,
    positions: jax.Array,
    weights: jax.Array | None,
    valid: jax.Array,
    sorted_by_validity: jax.Array | None,
    top_k: int,
) -> jax.Array:
    """Per token, the weighted sum of its valid slots' rows: [num_tokens, width] in `rows.dtype`.

    `out[t] = sum over k with valid[t*top_k+k] of weights[t*top_k+k] * rows[positions[t*top_k+k]]`, summed in
    float32.

    rows: [buffer_rows, width]. positions: int32[N], N = num_tokens * top_k, meaningless where not valid.
    weights: float32[N], or None for 1. valid: bool[N]. sorted_by_validity: int32[N], the permutation that
    puts valid slots first; None has it computed here, by a sort. The walk is over that permutation, as a
    kernel that stops after the last valid slot would do it.
    """
    slots = sort_by_validity(valid) if sorted_by_validity is None else sorted_by_validity
    num_valid = jnp.sum(valid, dtype=jnp.int32)
    packed = ragged_gather(rows, positions[slots], num_valid).astype(jnp.float32)
    if weights is not None:
        packed = packed * weights[slots][:, None]
    num_tokens = positions.shape[0] // top_k
    out = jnp.zeros((num_tokens, rows.shape[1]), jnp.float32).at[slots // top_k].add(packed)
    return out.astype(rows.dtype)

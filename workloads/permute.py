"""`permute`: tokens stay on their device; they are sorted by expert, go through the experts, and are
un-sorted.

On a mesh the tokens are sharded and every device gathers the experts it lacks, so the routing is local. The
variants differ in how rows come to lie in sorted order (from `top_k` copies of every token, or straight from
the originals) and in how the permutation is inverted where a backward pass needs it.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from workloads.config import Choices, Config
from workloads.control import tag
from workloads.experts import ExpertWeights, feed_forward
from workloads.permutation import count_groups, invert, sort_by_expert

EP = "ep"


class Order(NamedTuple):
    """A permutation of slots, int32[N], and its inverse, or None where it is to be derived where it is
    needed.
    """

    forth: jax.Array
    back: jax.Array | None


def moe(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    params: ExpertWeights,
    config: Config,
    choices: Choices,
) -> jax.Array:
    """One MoE layer on one device, inside shard_map: [tokens_per_device, hidden] in, the same out.

    x, experts, weights as in `ring.moe`. params: the experts of this shard; the others are all-gathered over
    `ep`.
    """
    with jax.named_scope("experts"):
        params = ExpertWeights(*(lax.all_gather(leaf, EP, tiled=True) for leaf in params))
    with jax.named_scope("dispatch"):
        sort_indices, positions, group_sizes = route_local(experts.reshape(-1), config, choices)
        method = choices.inverse_in_backward
        reuse = method == "reuse"
        to_rows = Order(sort_indices, positions if reuse else None)
        if choices.activations == "repeat":
            rows = take(method, jnp.repeat(x, config.top_k, axis=0), to_rows)
        else:
            rows = take_tokens(method, config.top_k, x, to_rows)
    with jax.named_scope("experts"):
        rows = feed_forward(rows, params, group_sizes)
    with jax.named_scope("combine"):
        slots = take(method, rows, Order(positions, sort_indices if reuse else None))
        by_token = slots.reshape(x.shape[0], config.top_k, x.shape[1]).astype(jnp.float32)
        return jnp.sum(by_token * weights[:, :, None], axis=1).astype(x.dtype)


def route_local(experts: jax.Array, config: Config, choices: Choices) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sort this device's slots by expert. experts: int32[N].

    Returns sort_indices int32[N], positions int32[N] (its inverse) and group_sizes int32[num_experts].
    """
    sort_indices, positions = sort_by_expert(experts, config.num_experts, choices.sort_key)
    sort_indices = tag(sort_indices, "routing_sort_indices")
    if positions is None:
        with jax.named_scope("inverse"):
            positions = invert(sort_indices, choices.inverse)
    group_sizes = tag(count_groups(experts, config.num_experts), "routing_group_sizes")
    return sort_indices, tag(positions, "routing_positions"), group_sizes


def _back(method: str, order: Order) -> jax.Array:
    if order.back is not None:
        return order.back
    with jax.named_scope("inverse"):
        return invert(order.forth, method)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def take(method: str, rows: jax.Array, order: Order) -> jax.Array:
    """`rows[order.forth]`, [N, width]. The backward takes with the inverse, so that it is a gather, not a
    scatter-add.
    """
    return rows[order.forth]


def _take_forward(method: str, rows: jax.Array, order: Order) -> tuple[jax.Array, Order]:
    return rows[order.forth], order


def _take_backward(method: str, order: Order, d_rows: jax.Array) -> tuple[jax.Array, None]:
    return d_rows[_back(method, order)], None


take.defvjp(_take_forward, _take_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def take_tokens(method: str, top_k: int, x: jax.Array, order: Order) -> jax.Array:
    """`x[order.forth // top_k]`: [N, width] from x [N / top_k, width]. The backward un-sorts and sums over
    top_k.
    """
    return x[order.forth // top_k]


def _take_tokens_forward(method: str, top_k: int, x: jax.Array, order: Order) -> tuple[jax.Array, Order]:
    return x[order.forth // top_k], order


def _take_tokens_backward(method: str, top_k: int, order: Order, d_rows: jax.Array) -> tuple[jax.Array, None]:
    by_slot = d_rows[_back(method, order)]
    by_token = by_slot.reshape(-1, top_k, d_rows.shape[1]).astype(jnp.float32)
    return jnp.sum(by_token, axis=1).astype(d_rows.dtype), None


take_tokens.defvjp(_take_tokens_forward, _take_tokens_backward)

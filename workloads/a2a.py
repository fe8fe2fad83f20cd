"""`a2a`: tokens travel to the shards of their experts by all-to-all, and their results travel back.

Each shard sorts its own slots by expert, so that what goes to one shard is contiguous, and sends it in a
block of static size whose valid rows are a prefix. The receiver sorts the rows of all blocks by local expert,
padding last: again a valid prefix, over which the experts run. The way back undoes both. The exchange is a
dense all-to-all of padded blocks on every backend, because the ragged one is not implemented for CPU (jax
0.10: "not supported by XLA:CPU").
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from workloads.config import Choices, Config
from workloads.control import tag
from workloads.experts import ExpertWeights, feed_forward
from workloads.permutation import invert, sort_by_expert
from workloads.permute import Order, route_local, take
from workloads.sizes import block_rows

EP = "ep"


class Plan(NamedTuple):
    """The static part of the exchange; hashable, so that custom VJPs can take it as a constant."""

    ep: int
    experts_per_shard: int
    top_k: int
    block_rows: int
    backward_inverse: str


def plan_for(config: Config, choices: Choices) -> Plan:
    """The static plan of a configuration."""
    return Plan(config.ep, config.experts_per_shard, config.top_k, block_rows(config), choices.inverse_in_backward)


class Send(NamedTuple):
    """How this shard's N slots lie in its send buffer of ep × block_rows rows.

    sort_indices: int32[N], the slot at each sorted position. positions: int32[N], its inverse. group_sizes:
    int32[num_experts], this shard's slots per expert.
    """

    sort_indices: jax.Array
    positions: jax.Array
    group_sizes: jax.Array


def moe(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    params: ExpertWeights,
    config: Config,
    choices: Choices,
) -> jax.Array:
    """One MoE layer on one shard, inside shard_map; arguments and result as in `ring.moe`."""
    plan = plan_for(config, choices)
    with jax.named_scope("dispatch"):
        send = route_send(experts.reshape(-1), config, choices)
        received_sizes = lax.all_to_all(kept_sizes(send.group_sizes, plan), EP, 0, 0, tiled=True)
        order = route_received(received_sizes, plan, choices)
        blocks = _exchange(send_rows(plan, x, send), plan)
        rows = take(plan.backward_inverse, blocks, order)
    with jax.named_scope("experts"):
        rows = feed_forward(rows, params, jnp.sum(received_sizes, axis=0, dtype=jnp.int32))
    with jax.named_scope("combine"):
        back = _undo(order, choices)
        returned = _exchange(take(plan.backward_inverse, rows, back), plan)
        return combine_rows(plan, returned, weights.reshape(-1), send)


def _exchange(blocks: jax.Array, plan: Plan) -> jax.Array:
    """Block d of every shard goes to shard d: [ep × block_rows, width] in and out."""
    cut = blocks.reshape(plan.ep, plan.block_rows, blocks.shape[1])
    exchanged: jax.Array = lax.all_to_all(cut, EP, 0, 0, tiled=True)
    return exchanged.reshape(blocks.shape)


def route_send(experts: jax.Array, config: Config, choices: Choices) -> Send:
    """Sort this shard's slots by expert. experts: int32[N]."""
    return Send(*route_local(experts, config, choices))


def route_received(sizes: jax.Array, plan: Plan, choices: Choices) -> Order:
    """Sort the received rows by local expert, padding last: the permutation int32[ep × block_rows].

    sizes: int32[ep, experts_per_shard], rows per source shard and expert; a block's rows lie in that order.
    """
    row = jnp.arange(plan.block_rows, dtype=jnp.int32)
    # A row's expert is the number of experts whose rows end before it: experts_per_shard for padding.
    ends = jnp.cumsum(sizes, axis=1, dtype=jnp.int32)
    keys = jnp.sum(ends[:, None, :] <= row[None, :, None], axis=2, dtype=jnp.int32).reshape(-1)
    forth, back = sort_by_expert(keys, plan.experts_per_shard + 1, choices.sort_key)
    forth = tag(forth, "routing_received_sort_indices")
    if plan.backward_inverse == "reuse" and back is None:
        with jax.named_scope("inverse"):
            back = invert(forth, choices.inverse)
    return Order(forth, None if back is None else tag(back, "routing_received_positions"))


def _undo(order: Order, choices: Choices) -> Order:
    if order.back is not None:
        return Order(order.back, order.forth)
    with jax.named_scope("inverse"):
        return Order(invert(order.forth, choices.inverse), None)


def kept_sizes(group_sizes: jax.Array, plan: Plan) -> jax.Array:
    """int32[ep, experts_per_shard]: rows per destination and expert, less those that do not fit their block."""
    sizes = group_sizes.reshape(plan.ep, plan.experts_per_shard)
    ends = jnp.minimum(jnp.cumsum(sizes, axis=1, dtype=jnp.int32), plan.block_rows)
    return jnp.diff(ends, axis=1, prepend=jnp.int32(0))


def _starts(send: Send, plan: Plan) -> jax.Array:
    """int32[ep + 1]: the sorted position at which each destination's slots begin."""
    per_shard = jnp.sum(send.group_sizes.reshape(plan.ep, -1), axis=1, dtype=jnp.int32)
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(per_shard, dtype=jnp.int32)])


def _slots_of_rows(plan: Plan, send: Send, sort_indices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The slot in each row of the send buffer, int32[ep × block_rows], and whether there is one, bool."""
    starts = _starts(send, plan)
    position = starts[:-1, None] + jnp.arange(plan.block_rows, dtype=jnp.int32)
    filled = position < starts[1:, None]
    slots = sort_indices.at[position.reshape(-1)].get(mode="clip")
    return slots, filled.reshape(-1)


def _rows_of_slots(plan: Plan, send: Send) -> tuple[jax.Array, jax.Array]:
    """The row of the send buffer of each slot, int32[N], and whether it has one, bool[N]."""
    starts = _starts(send, plan)
    shard = jnp.sum(starts[1:-1] <= send.positions[:, None], axis=1, dtype=jnp.int32)
    offset = send.positions - starts[shard]
    kept = offset < plan.block_rows
    return jnp.where(kept, shard * plan.block_rows + offset, 0), kept


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def send_rows(plan: Plan, x: jax.Array, send: Send) -> jax.Array:
    """The send buffer [ep × block_rows, width] from x [tokens, width]; padding is zero."""
    return _send_forward(plan, x, send)[0]


def _send_forward(plan: Plan, x: jax.Array, send: Send) -> tuple[jax.Array, Send]:
    slots, filled = _slots_of_rows(plan, send, send.sort_indices)
    return jnp.where(filled[:, None], x[slots // plan.top_k], jnp.zeros((), x.dtype)), send


def _send_backward(plan: Plan, send: Send, d_rows: jax.Array) -> tuple[jax.Array, None]:
    return _sum_slots(plan, d_rows, None, send), None


send_rows.defvjp(_send_forward, _send_backward)


def _sum_slots(plan: Plan, rows: jax.Array, weights: jax.Array | None, send: Send) -> jax.Array:
    """Per token the sum of its kept slots' rows, times `weights` where given, summed in float32."""
    row, kept = _rows_of_slots(plan, send)
    by_slot = jnp.where(kept[:, None], rows[row].astype(jnp.float32), 0.0)
    if weights is not None:
        by_slot = by_slot * weights[:, None]
    by_token = by_slot.reshape(-1, plan.top_k, rows.shape[1])
    return jnp.sum(by_token, axis=1).astype(rows.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def combine_rows(plan: Plan, rows: jax.Array, weights: jax.Array, send: Send) -> jax.Array:
    """The weighted sum over slots: [tokens, width] from the returned rows [ep × block_rows, width].

    weights: float32[N], differentiated: its gradient is what trains the router.
    """
    return _sum_slots(plan, rows, weights, send)


def _combine_forward(
    plan: Plan, rows: jax.Array, weights: jax.Array, send: Send
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Send]]:
    return _sum_slots(plan, rows, weights, send), (rows, weights, send)


def _combine_backward(
    plan: Plan, residuals: tuple[jax.Array, jax.Array, Send], d_out: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, send = residuals
    sort_indices = send.sort_indices
    if plan.backward_inverse != "reuse":
        with jax.named_scope("inverse"):
            sort_indices = invert(send.positions, plan.backward_inverse)
    slots, filled = _slots_of_rows(plan, send, sort_indices)
    d_sums = jnp.where(filled[:, None], d_out[slots // plan.top_k].astype(jnp.float32), 0.0)
    d_rows = (d_sums * weights[slots][:, None]).astype(rows.dtype)
    row, kept = _rows_of_slots(plan, send)
    d_row_weights = jnp.sum(d_sums * rows.astype(jnp.float32), axis=1)
    return d_rows, jnp.where(kept, d_row_weights[row], 0.0), None


combine_rows.defvjp(_combine_forward, _combine_backward)

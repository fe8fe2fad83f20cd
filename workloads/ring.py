"""Ring of experts: every shard of the `ep` axis sees all tokens of its ring and keeps the rows of its own
experts.

Each shard sorts all (token, slot) pairs by expert; the rows of its experts are a contiguous range of that
order, taken into a local buffer of static size. The embedding is walked in chunks: one chunk of the
activations is all-gathered and its rows are gathered while the grouped matmul of the chunk before runs; on
the way out a chunk is un-sorted, summed over its slots with the router's weights, and reduce-scattered back
to the token shards. The routing is the same for all chunks of a layer, which is what the variants are about.

`dispatch_rows` is a gather whose backward is a gather-reduce; `combine_rows` is a gather-reduce whose
backward is a gather.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from workloads.config import Choices, Config
from workloads.control import loop, tag
from workloads.experts import ExpertWeights, activate, grouped_matmul
from workloads.kernels import Kernels
from workloads.kernels.plain import sort_by_validity
from workloads.permutation import count_groups, invert, sort_by_expert
from workloads.sizes import buffer_rows

EP = "ep"


class Routing(NamedTuple):
    """What one shard knows about the routing of one layer; N = tokens of the ring × top_k.

    sort_indices: int32[N], the slot at each sorted position, all experts. positions: int32[N], its inverse.
    group_sizes: int32[num_experts]. sorted_by_validity: int32[N], slots with a row on this shard first; None
    where each gather-reduce is to sort for itself.
    """

    sort_indices: jax.Array
    positions: jax.Array
    group_sizes: jax.Array
    sorted_by_validity: jax.Array | None


class Span(NamedTuple):
    """The range of sorted positions that a shard holds: its first, and how many rows fit its buffer."""

    start: jax.Array
    num_valid: jax.Array


class Plan(NamedTuple):
    """The static part of a shard's routing; hashable, so that custom VJPs can take it as a constant."""

    num_experts: int
    experts_per_shard: int
    top_k: int
    buffer_rows: int
    choices: Choices
    kernels: Kernels


def plan_for(config: Config, choices: Choices, kernels: Kernels) -> Plan:
    """The static plan of a configuration."""
    return Plan(config.num_experts, config.experts_per_shard, config.top_k, buffer_rows(config), choices, kernels)


def moe(
    x: jax.Array, experts: jax.Array, weights: jax.Array, params: ExpertWeights, config: Config, plan: Plan
) -> jax.Array:
    """One MoE layer on one shard, inside shard_map: [tokens_per_device, hidden] in, the same out.

    x: this shard's tokens. experts: int32[tokens_per_device, top_k]; weights: float32 of the same shape.
    params: this shard's experts, all of the hidden dimension.
    """
    with jax.named_scope("dispatch"):
        routing = route_ring(lax.all_gather(experts, EP, tiled=True).reshape(-1), plan)
        slot_weights = lax.all_gather(weights, EP, tiled=True).reshape(-1)
        local_sizes = local_group_sizes(routing.group_sizes, plan)

    def up_chunk(
        carry: tuple[jax.Array, jax.Array], xs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        x_chunk, gate_chunk, up_chunk_ = xs
        with jax.named_scope("dispatch"):
            rows = dispatch_rows(plan, lax.all_gather(x_chunk, EP, tiled=True), routing)
        with jax.named_scope("experts"):
            gate = carry[0] + grouped_matmul(rows, gate_chunk, local_sizes)
            up = carry[1] + grouped_matmul(rows, up_chunk_, local_sizes)
        return (gate, up), None

    def down_chunk(carry: jax.Array, down: jax.Array) -> tuple[jax.Array, jax.Array]:
        with jax.named_scope("experts"):
            rows = grouped_matmul(carry, down, local_sizes).astype(x.dtype)
        with jax.named_scope("combine"):
            partial_sums = combine_rows(plan, rows, slot_weights, routing)
            return carry, lax.psum_scatter(partial_sums, EP, tiled=True)

    chunks, scanned = config.num_chunks, config.scan_chunks
    accumulator = jnp.zeros((plan.buffer_rows, config.expert_dim), jnp.float32)
    inputs = (split_chunks(x, chunks, 1), split_chunks(params.gate, chunks, 1), split_chunks(params.up, chunks, 1))
    (gate, up), _ = loop(up_chunk, (accumulator, accumulator), inputs, "chunk", scanned)
    with jax.named_scope("experts"):
        hidden = activate(gate, up, x.dtype)
    _, out = loop(down_chunk, hidden, split_chunks(params.down, chunks, 2), "chunk", scanned)
    return jnp.moveaxis(out, 0, 1).reshape(x.shape)


def split_chunks(array: jax.Array, chunks: int, axis: int) -> jax.Array:
    """Cut `axis` into `chunks` equal parts and put the part's number in front."""
    shape = array.shape
    parts = array.reshape(*shape[:axis], chunks, shape[axis] // chunks, *shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)


def route_ring(experts: jax.Array, plan: Plan) -> Routing:
    """Sort all slots of the ring by expert. experts: int32[N]. Inside shard_map over `ep`."""
    choices = plan.choices
    sort_indices, positions = sort_by_expert(experts, plan.num_experts, choices.sort_key)
    sort_indices = tag(sort_indices, "routing_sort_indices")
    if positions is None:
        with jax.named_scope("inverse"):
            positions = invert(sort_indices, choices.inverse)
    positions = tag(positions, "routing_positions")
    group_sizes = tag(count_groups(experts, plan.num_experts), "routing_group_sizes")
    if choices.validity == "recompute":
        return Routing(sort_indices, positions, group_sizes, None)
    with jax.named_scope("validity"):
        order = sort_by_validity(valid_slots(positions, span_of(group_sizes, plan)))
    return Routing(sort_indices, positions, group_sizes, tag(order, "routing_sorted_by_validity"))


def span_of(group_sizes: jax.Array, plan: Plan) -> Span:
    """Where this shard's experts lie in the sorted order, cut to its buffer."""
    first = lax.axis_index(EP) * plan.experts_per_shard
    offsets = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(group_sizes, dtype=jnp.int32)])
    start, end = offsets[first], offsets[first + plan.experts_per_shard]
    return Span(start, jnp.minimum(end - start, plan.buffer_rows))


def local_group_sizes(group_sizes: jax.Array, plan: Plan) -> jax.Array:
    """Rows per expert of this shard, int32[experts_per_shard], less those that do not fit its buffer."""
    first = lax.axis_index(EP) * plan.experts_per_shard
    sizes = lax.dynamic_slice_in_dim(group_sizes, first, plan.experts_per_shard)
    ends = jnp.minimum(jnp.cumsum(sizes, dtype=jnp.int32), plan.buffer_rows)
    return jnp.diff(ends, prepend=jnp.int32(0))


def valid_slots(positions: jax.Array, span: Span) -> jax.Array:
    """bool[N]: the slot has a row in this shard's buffer."""
    local = positions - span.start
    return (local >= 0) & (local < span.num_valid)


def _local_slots(sort_indices: jax.Array, span: Span, plan: Plan) -> jax.Array:
    """The slot of each row of the buffer, int32[buffer_rows]; meaningless beyond the valid rows."""
    # A slice that would run past the end is moved back by XLA and would then start at the wrong row: pad
    # first.
    padded = jnp.pad(sort_indices, (0, plan.buffer_rows))
    return lax.dynamic_slice_in_dim(padded, span.start, plan.buffer_rows)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def dispatch_rows(plan: Plan, x: jax.Array, routing: Routing) -> jax.Array:
    """The rows of this shard's experts: [buffer_rows, width] from x [tokens of the ring, width]."""
    return _dispatch_forward(plan, x, routing)[0]


def _dispatch_forward(plan: Plan, x: jax.Array, routing: Routing) -> tuple[jax.Array, Routing]:
    span = span_of(routing.group_sizes, plan)
    tokens = _local_slots(routing.sort_indices, span, plan) // plan.top_k
    return plan.kernels.gather(x, tokens, span.num_valid), routing


def _dispatch_backward(plan: Plan, routing: Routing, d_rows: jax.Array) -> tuple[jax.Array, None]:
    return _gather_reduce(plan, d_rows, None, routing), None


dispatch_rows.defvjp(_dispatch_forward, _dispatch_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def combine_rows(plan: Plan, rows: jax.Array, weights: jax.Array, routing: Routing) -> jax.Array:
    """The weighted sum over the slots that this shard holds: [tokens of the ring, width].

    rows: [buffer_rows, width]. weights: float32[N], differentiated: its gradient is what trains the router.
    """
    return _combine_forward(plan, rows, weights, routing)[0]


def _combine_forward(
    plan: Plan, rows: jax.Array, weights: jax.Array, routing: Routing
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Routing]]:
    return _gather_reduce(plan, rows, weights, routing), (rows, weights, routing)


def _combine_backward(
    plan: Plan, residuals: tuple[jax.Array, jax.Array, Routing], d_out: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, routing = residuals
    span = span_of(routing.group_sizes, plan)
    if plan.choices.inverse_in_backward == "reuse":
        sort_indices = routing.sort_indices
    else:
        with jax.named_scope("inverse"):
            sort_indices = invert(routing.positions, plan.choices.inverse_in_backward)
    slots = _local_slots(sort_indices, span, plan)
    d_sums = plan.kernels.gather(d_out, slots // plan.top_k, span.num_valid).astype(jnp.float32)
    d_rows = (d_sums * weights[slots][:, None]).astype(rows.dtype)
    d_row_weights = jnp.sum(d_sums * rows.astype(jnp.float32), axis=1)
    local = jnp.clip(routing.positions - span.start, 0, plan.buffer_rows - 1)
    d_weights = jnp.where(valid_slots(routing.positions, span), d_row_weights[local], 0.0)
    return d_rows, d_weights, None


combine_rows.defvjp(_combine_forward, _combine_backward)


def _gather_reduce(plan: Plan, rows: jax.Array, weights: jax.Array | None, routing: Routing) -> jax.Array:
    """Un-sort: sum each token's rows of this shard, with `weights` where given."""
    span = span_of(routing.group_sizes, plan)
    valid = valid_slots(routing.positions, span)
    order = routing.sorted_by_validity
    if order is None:
        with jax.named_scope("validity"):
            order = sort_by_validity(valid)
    local = jnp.where(valid, routing.positions - span.start, 0)
    return plan.kernels.gather_reduce(rows, local, weights, valid, order, plan.top_k)

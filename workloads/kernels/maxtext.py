"""`--kernels maxtext`: the ring layer with the routing functions of an installed MaxText.

MaxText's `ring_ragged_sort` and `ring_ragged_unsort` sort, gather and reduce in one call each, so that they replace the
whole of a chunk's dispatch and combine, not the two row movers inside. As in MaxText, every chunk calls the sort. What
differs between releases is looked up when the functions are loaded (read in the published packages): 0.2.4 returns
(rows, group sizes, positions) and no gradient for the router; 0.2.5 appends the sorting permutation, which its un-sort
takes back, and tags routing arrays for remat. Away from a TPU both fall back to plain operations; they ask for the
default device, so that a compile for a TPU that is not there shows the fallback.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from workloads.config import Choices, Config
from workloads.control import loop, tag
from workloads.errors import WorkloadError
from workloads.experts import ExpertWeights, activate, grouped_matmul
from workloads.ring import EP, Plan, local_group_sizes, split_chunks

MODULE = "maxtext.kernels.ragged.ragged_sort"
SORT_ARGUMENTS = (
    *("hidden_states_local", "topk_indices_local", "num_experts"),
    *("topk", "ep_name", "ep_size", "buffer_size"),
)
UNSORT_ARGUMENTS = (
    *("sorted_tokens_local", "group_sizes_local", "topk_argsort_revert_indices"),
    *("topk", "local_num_experts", "ep_name", "topk_weights"),
)


class Functions(NamedTuple):
    """MaxText's two functions; `hands_on`: they can tag routing arrays and take the permutation back."""

    sort: Callable[..., Any]
    unsort: Callable[..., Any]
    hands_on: bool


class Routing(NamedTuple):
    """What the sort says of the routing: group sizes int32[num_experts], positions and sort indices int32[N]."""

    group_sizes: jax.Array
    positions: jax.Array
    sort_indices: jax.Array | None


def load(choices: Choices) -> Functions:
    """The functions of the installed MaxText.

    Raises WorkloadError where there is none, where it cannot be imported or takes other arguments, and where it cannot
    route as `choices` asks.
    """
    version = getattr(_import("maxtext"), "__version__", "of unknown version")
    module = _import(MODULE)
    for name, wanted in (("ring_ragged_sort", SORT_ARGUMENTS), ("ring_ragged_unsort", UNSORT_ARGUMENTS)):
        missing = sorted(set(wanted) - set(_parameters(module, name)))
        if missing:
            raise WorkloadError(
                f"MaxText {version} is installed, but its {name} takes no {missing[0]}; use a release that has the "
                f"ring-of-experts sort with a local buffer (0.2.4 or later), or kernels jax."
            )
    hands_on = "tag_routing_fn" in _parameters(module, "ring_ragged_sort") and "topk_argsort_indices" in _parameters(
        module, "ring_ragged_unsort"
    )
    if choices.across_remat == "saved" and not hands_on:
        raise WorkloadError(
            f"MaxText {version} cannot save its routing through remat (0.2.5 can); use variant recompute with it."
        )
    return Functions(module.ring_ragged_sort, module.ring_ragged_unsort, hands_on)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "maxtext":
            raise WorkloadError(
                "kernels maxtext needs the package maxtext, which is not installed (PyPI has it for Python 3.12 and "
                "later); install it, put a checkout's `src` on PYTHONPATH, or use kernels jax."
            ) from None
        raise WorkloadError(f"the installed MaxText cannot be used: importing {name} fails: {error}.") from error
    except Exception as error:  # its import runs much code of its own, which can fail in any way
        raise WorkloadError(
            f"the installed MaxText cannot be used: importing {name} fails with {type(error).__name__}: {error}."
        ) from error


def _parameters(module: Any, name: str) -> tuple[str, ...]:
    function = getattr(module, name, None)
    return tuple(inspect.signature(function).parameters) if function else ()


def moe(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    params: ExpertWeights,
    config: Config,
    plan: Plan,
    functions: Functions,
) -> jax.Array:
    """One MoE layer on one shard, inside shard_map; arguments and result as in `ring.moe`."""
    with jax.named_scope("dispatch"):
        all_experts = lax.all_gather(experts, EP, tiled=True)
        slot_weights = lax.all_gather(weights, EP, tiled=True).reshape(-1)

    def up_chunk(carry: Any, xs: Any) -> tuple[Any, None]:
        gate, up, _ = carry
        x_chunk, gate_chunk, up_chunk_ = xs
        with jax.named_scope("dispatch"):
            rows, routing = _sort(functions, plan, config, lax.all_gather(x_chunk, EP, tiled=True), all_experts)
        with jax.named_scope("experts"):
            sizes = local_group_sizes(routing.group_sizes, plan)
            gate = gate + grouped_matmul(rows, gate_chunk, sizes)
            up = up + grouped_matmul(rows, up_chunk_, sizes)
        return (gate, up, routing), None

    def down_chunk(carry: Any, down: jax.Array) -> tuple[Any, jax.Array]:
        hidden, routing = carry
        with jax.named_scope("experts"):
            rows = grouped_matmul(hidden, down, local_group_sizes(routing.group_sizes, plan)).astype(x.dtype)
        with jax.named_scope("combine"):
            partial_sums = _unsort(functions, plan, rows, slot_weights, routing)
            return carry, lax.psum_scatter(partial_sums, EP, tiled=True)

    chunks, scanned = config.num_chunks, config.scan_chunks
    accumulator = jnp.zeros((plan.buffer_rows, config.expert_dim), jnp.float32)
    slots = jnp.zeros(all_experts.size, jnp.int32)
    hands_on = functions.hands_on and plan.choices.inverse == "reuse"
    unrouted = Routing(jnp.zeros(plan.num_experts, jnp.int32), slots, slots if hands_on else None)
    inputs = (split_chunks(x, chunks, 1), split_chunks(params.gate, chunks, 1), split_chunks(params.up, chunks, 1))
    (gate, up, routing), _ = loop(up_chunk, (accumulator, accumulator, unrouted), inputs, "chunk", scanned)
    with jax.named_scope("experts"):
        hidden = activate(gate, up, x.dtype)
    _, out = loop(down_chunk, (hidden, routing), split_chunks(params.down, chunks, 2), "chunk", scanned)
    return jnp.moveaxis(out, 0, 1).reshape(x.shape)


def _sort(
    functions: Functions, plan: Plan, config: Config, x: jax.Array, experts: jax.Array
) -> tuple[jax.Array, Routing]:
    """The rows of this shard, packed at the front of its buffer, and the routing."""
    options: dict[str, Any] = {}
    if plan.choices.across_remat == "saved":
        options["tag_routing_fn"] = lambda array: tag(array, "routing_sort_indices")
    rows, group_sizes, positions, *permutation = functions.sort(
        x, experts, plan.num_experts, plan.top_k, EP, config.ep, buffer_size=plan.buffer_rows, **options
    )
    reuse = plan.choices.inverse == "reuse"
    routing = Routing(group_sizes, positions.astype(jnp.int32), permutation[0] if reuse else None)
    return jnp.roll(rows, -_start(plan, routing), axis=0), routing


def _unsort(functions: Functions, plan: Plan, rows: jax.Array, slot_weights: jax.Array, routing: Routing) -> jax.Array:
    options: dict[str, Any] = {}
    if plan.choices.inverse == "reuse":
        options["topk_argsort_indices"] = routing.sort_indices
    out: jax.Array = functions.unsort(
        _keep_dtype(jnp.roll(rows, _start(plan, routing), axis=0)),
        routing.group_sizes,
        routing.positions,
        plan.top_k,
        plan.experts_per_shard,
        EP,
        topk_weights=slot_weights,
        **options,
    )
    return out


@jax.custom_vjp
def _keep_dtype(rows: jax.Array) -> jax.Array:
    """The rows as they are, and their gradient in their dtype: the backward of 0.2.4 hands float32 to bfloat16 rows."""
    return rows


def _keep_dtype_forward(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    return rows, jnp.zeros((), rows.dtype)


def _keep_dtype_backward(like: jax.Array, d_rows: jax.Array) -> tuple[jax.Array]:
    return (d_rows.astype(like.dtype),)


_keep_dtype.defvjp(_keep_dtype_forward, _keep_dtype_backward)


def _start(plan: Plan, routing: Routing) -> jax.Array | int:
    """The row at which MaxText puts a shard's first row.

    A buffer for all slots is laid out as the sorted order of all shards, each at its own range; a smaller one is
    packed.
    """
    if plan.buffer_rows < routing.positions.shape[0]:
        return 0
    before = jnp.arange(plan.num_experts) < lax.axis_index(EP) * plan.experts_per_shard
    return jnp.sum(jnp.where(before, routing.group_sizes, 0), dtype=jnp.int32)

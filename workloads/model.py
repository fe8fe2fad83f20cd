"""A stack of MoE layers with a residual stream, as one shard_map over the mesh; shared by all workloads.

Each layer is x + moe(norm(x)). The mesh has the axes `fsdp` and `ep`; tokens are sharded over both, experts
over `ep`, the hidden dimension of the expert weights over `fsdp`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from workloads import a2a, permute, ring
from workloads.config import Choices, Config
from workloads.control import loop, rematerialise
from workloads.errors import WorkloadError
from workloads.experts import ExpertWeights
from workloads.kernels import choose
from workloads.router import route

TOKENS = PartitionSpec(("fsdp", "ep"))
REPLICATED = PartitionSpec()


Leaf = Any  # an array, its shape and dtype, or how it is sharded


class Params(NamedTuple):
    """The trained arrays of a stack of L layers, stacked on the leading axis.

    router: float32[L, hidden, num_experts]. gate, up: [L, num_experts, hidden, expert_dim].
    down: [L, num_experts, expert_dim, hidden].
    """

    router: Leaf
    gate: Leaf
    up: Leaf
    down: Leaf


PARAM_SPECS = Params(
    router=REPLICATED,
    gate=PartitionSpec(None, "ep", "fsdp", None),
    up=PartitionSpec(None, "ep", "fsdp", None),
    down=PartitionSpec(None, "ep", None, "fsdp"),
)

Moe = Callable[[jax.Array, jax.Array, jax.Array, ExpertWeights], jax.Array]
Stack = Callable[[Params, jax.Array, jax.Array], jax.Array]


def make_mesh(config: Config, devices: Sequence[jax.Device]) -> Mesh:
    """The mesh over the first `config.num_devices` devices. Raises WorkloadError if there are too few."""
    needed = config.num_devices
    if len(devices) < needed:
        raise WorkloadError(
            f"ep {config.ep} × fsdp {config.fsdp} needs {needed} devices and there are {len(devices)}; lower "
            f"ep or fsdp, or on CPU simulate devices with XLA_FLAGS=--xla_force_host_platform_device_count={needed}."
        )
    grid = np.array(devices[:needed], dtype=object).reshape(config.fsdp, config.ep)
    return Mesh(grid, ("fsdp", "ep"))


def param_shapes(config: Config) -> Params:
    """Shape and dtype of every trained array."""
    layers, experts = config.num_layers, config.num_experts
    hidden, inner = config.hidden_dim, config.expert_dim
    dtype = jnp.dtype(config.dtype)
    return Params(
        router=jax.ShapeDtypeStruct((layers, hidden, experts), jnp.float32),
        gate=jax.ShapeDtypeStruct((layers, experts, hidden, inner), dtype),
        up=jax.ShapeDtypeStruct((layers, experts, hidden, inner), dtype),
        down=jax.ShapeDtypeStruct((layers, experts, inner, hidden), dtype),
    )


def norm(x: jax.Array) -> jax.Array:
    """Root-mean-square normalisation over the last axis, in float32, without a learned scale."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def make_stack(workload: str, choices: Choices, config: Config, mesh: Mesh) -> Stack:
    """The stack as a function of (params, bias float32[L, num_experts], x [num_tokens, hidden]) on global
    arrays.
    """
    moe = _moe_of(workload, choices, config, mesh.devices.flat[0].device_kind)

    def layer(x: jax.Array, weights: tuple[Params, jax.Array]) -> tuple[jax.Array, None]:
        params, bias = weights
        with jax.named_scope("norm"):
            normed = norm(x)
        with jax.named_scope("router"):
            experts, combine_weights = route(normed, params.router, bias, config.top_k)
        with jax.named_scope("experts"):
            gathered = _gather_hidden(params)
        return x + moe(normed, experts, combine_weights, gathered), None

    body = rematerialise(layer, config, choices)

    def on_shard(params: Params, bias: jax.Array, x: jax.Array) -> jax.Array:
        out: jax.Array
        out, _ = loop(body, x, (params, bias), "layer", config.scan_layers)
        return out

    # The replication checker would have to be taught every Pallas kernel. Without it, gradients of replicated
    # arrays are still summed over the mesh (the tests compare them with the oracle's on 1, 4 and 8 devices).
    specs: Any = (PARAM_SPECS, REPLICATED, TOKENS)
    stack: Stack = jax.shard_map(on_shard, mesh=mesh, in_specs=specs, out_specs=TOKENS, check_vma=False)
    return stack


def _moe_of(workload: str, choices: Choices, config: Config, device_kind: str) -> Moe:
    if workload == "permute":
        return lambda x, experts, weights, params: permute.moe(x, experts, weights, params, config, choices)
    if workload == "a2a":
        return lambda x, experts, weights, params: a2a.moe(x, experts, weights, params, config, choices)
    if config.kernels == "maxtext":
        from workloads.kernels import maxtext

        functions = maxtext.load(choices)
        own = ring.plan_for(config, choices, choose("jax", device_kind))
        return lambda x, experts, weights, params: maxtext.moe(x, experts, weights, params, config, own, functions)
    plan = ring.plan_for(config, choices, choose(config.kernels, device_kind))
    return lambda x, experts, weights, params: ring.moe(x, experts, weights, params, config, plan)


def _gather_hidden(params: Params) -> ExpertWeights:
    """The experts of this shard with all of the hidden dimension, gathered over `fsdp`."""
    return ExpertWeights(
        gate=lax.all_gather(params.gate, "fsdp", axis=1, tiled=True),
        up=lax.all_gather(params.up, "fsdp", axis=1, tiled=True),
        down=lax.all_gather(params.down, "fsdp", axis=2, tiled=True),
    )

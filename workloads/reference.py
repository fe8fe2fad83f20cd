"""The oracle: the same stack of layers, dense and in float32, with no sort, no gather and no ragged
operation.

Every expert is applied to every token, and a mask of the chosen experts, weighted, picks the sum. Slow and
large, and so simple that it can be believed; every variant is held to its outputs and to its gradients.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from workloads.config import Config
from workloads.model import Params
from workloads.sizes import block_rows, buffer_rows


def choose_experts(scores: jax.Array, top_k: int) -> jax.Array:
    """float32[tokens, num_experts], 1 for each token's top_k highest scores (the lower expert on a tie), else
    0.
    """
    chosen = jnp.zeros_like(scores)
    for _ in range(top_k):
        best = jnp.argmax(jnp.where(chosen > 0, -jnp.inf, scores), axis=1)
        chosen = chosen + jax.nn.one_hot(best, scores.shape[1], dtype=scores.dtype)
    return chosen


class Buffers(NamedTuple):
    """Which rows fit: tokens form `groups` equal runs, each with a buffer of `rows` rows on every one of `shards`."""

    groups: int
    shards: int
    rows: int


def buffers_of(workload: str, config: Config) -> Buffers | None:
    """The buffers a workload drops rows from, or None where nothing is dropped.

    In `ring` a shard's buffer takes rows from all tokens of its ring, in `a2a` a block takes them from one device.
    """
    if config.buffer_factor is None or workload == "permute":
        return None
    if workload == "a2a":
        return Buffers(config.num_devices, config.ep, block_rows(config))
    return Buffers(config.fsdp, config.ep, buffer_rows(config))


def kept_rows(chosen: jax.Array, buffers: Buffers) -> jax.Array:
    """float32[tokens, num_experts], 1 where a chosen pair has a row in the buffer of the shard that owns the expert.

    A buffer is filled expert by expert, tokens in order, and what comes after its last row is dropped.
    """
    tokens, experts = chosen.shape
    groups, shards, rows = buffers
    grouped = chosen.reshape(groups, tokens // groups, shards, experts // shards)
    per_expert = jnp.sum(grouped, axis=1, keepdims=True)
    rows_of_earlier_experts = jnp.cumsum(per_expert, axis=3) - per_expert
    rows_of_earlier_tokens = jnp.cumsum(grouped, axis=1) - grouped
    kept = grouped * (rows_of_earlier_experts + rows_of_earlier_tokens < rows)
    return kept.reshape(tokens, experts)


def forward(config: Config, params: Params, bias: jax.Array, x: jax.Array, buffers: Buffers | None = None) -> jax.Array:
    """The output float32[num_tokens, hidden] of the stack.

    params, bias and x as in `workloads.model`, of any floating type. buffers: what is dropped; None drops nothing.
    """
    with jax.default_matmul_precision("highest"):
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, bias, x))
        out: jax.Array = wide[2]
        for index in range(config.num_layers):
            layer, layer_bias = jax.tree.map(lambda leaf: leaf[index], wide[:2])  # noqa: B023
            out = out + _moe(config, layer, layer_bias, _normalise(out), buffers)
    return out


def _normalise(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x**2, axis=1, keepdims=True) + 1e-6)


def _moe(config: Config, layer: Params, bias: jax.Array, x: jax.Array, buffers: Buffers | None) -> jax.Array:
    logits = x @ layer.router
    chosen = choose_experts(jax.lax.stop_gradient(logits) + bias, config.top_k)
    if buffers is not None:
        chosen = kept_rows(chosen, buffers)
    gate = jnp.einsum("th,ehf->etf", x, layer.gate)
    up = jnp.einsum("th,ehf->etf", x, layer.up)
    expert_out = jnp.einsum("etf,efh->eth", gate * jax.nn.sigmoid(gate) * up, layer.down)
    return jnp.einsum("te,eth->th", chosen * jax.nn.sigmoid(logits), expert_out)


def backward(
    config: Config,
    params: Params,
    bias: jax.Array,
    x: jax.Array,
    cotangent: jax.Array,
    buffers: Buffers | None = None,
) -> tuple[jax.Array, tuple[Any, jax.Array]]:
    """The loss sum(output * cotangent) and its gradients with respect to (params, x), all float32."""

    def loss(params: Params, x: jax.Array) -> jax.Array:
        return jnp.sum(forward(config, params, bias, x, buffers) * cotangent.astype(jnp.float32))

    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, x))
    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(*wide)
    return value, gradients

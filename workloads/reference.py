"""The oracle: the same stack of layers, dense and in float32, with no sort, no gather and no ragged
operation.

Every expert is applied to every token, and a mask of the chosen experts, weighted, picks the sum. Slow and
large, and so simple that it can be believed; every variant is held to its outputs and to its gradients.
"""

from typing import Any

import jax
import jax.numpy as jnp

from workloads.config import Config
from workloads.model import Params


def choose_experts(scores: jax.Array, top_k: int) -> jax.Array:
    """float32[tokens, num_experts], 1 for each token's top_k highest scores (the lower expert on a tie), else
    0.
    """
    chosen = jnp.zeros_like(scores)
    for _ in range(top_k):
        best = jnp.argmax(jnp.where(chosen > 0, -jnp.inf, scores), axis=1)
        chosen = chosen + jax.nn.one_hot(best, scores.shape[1], dtype=scores.dtype)
    return chosen


def kept_rows(chosen: jax.Array, config: Config, buffer_rows: int) -> jax.Array:
    """float32[tokens, num_experts], 1 where a chosen pair has a row in the buffer of the shard that owns the
    expert.

    A shard fills its buffer expert by expert, tokens in order, from the tokens of its ring (one of
    `config.fsdp` equal runs of tokens), and drops what comes after `buffer_rows`.
    """
    tokens, experts = chosen.shape
    rings = chosen.reshape(config.fsdp, tokens // config.fsdp, config.ep, experts // config.ep)
    per_expert = jnp.sum(rings, axis=1, keepdims=True)
    rows_of_earlier_experts = jnp.cumsum(per_expert, axis=3) - per_expert
    rows_of_earlier_tokens = jnp.cumsum(rings, axis=1) - rings
    kept = rings * (rows_of_earlier_experts + rows_of_earlier_tokens < buffer_rows)
    return kept.reshape(tokens, experts)


def forward(config: Config, params: Params, bias: jax.Array, x: jax.Array, buffer_rows: int | None = None) -> jax.Array:
    """The output float32[num_tokens, hidden] of the stack.

    params, bias and x as in `workloads.model`, of any floating type. buffer_rows: rows of each shard's buffer
    beyond which rows are dropped; None drops nothing.
    """
    with jax.default_matmul_precision("highest"):
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, bias, x))
        out: jax.Array = wide[2]
        for index in range(config.num_layers):
            layer, layer_bias = jax.tree.map(lambda leaf: leaf[index], wide[:2])  # noqa: B023
            out = out + _moe(config, layer, layer_bias, _normalise(out), buffer_rows)
    return out


def _normalise(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x**2, axis=1, keepdims=True) + 1e-6)


def _moe(config: Config, layer: Params, bias: jax.Array, x: jax.Array, buffer_rows: int | None) -> jax.Array:
    logits = x @ layer.router
    chosen = choose_experts(jax.lax.stop_gradient(logits) + bias, config.top_k)
    if buffer_rows is not None:
        chosen = kept_rows(chosen, config, buffer_rows)
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
    buffer_rows: int | None = None,
) -> tuple[jax.Array, tuple[Any, jax.Array]]:
    """The loss sum(output * cotangent) and its gradients with respect to (params, x), all float32."""

    def loss(params: Params, x: jax.Array) -> jax.Array:
        return jnp.sum(forward(config, params, bias, x, buffer_rows) * cotangent.astype(jnp.float32))

    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, x))
    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(*wide)
    return value, gradients

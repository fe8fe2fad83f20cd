"""Mode `train`: a small decoder around the layers, trained on synthetic tokens that can be learned.

Embedding, the stack of MoE layers, normalisation, the embedding again as head, cross-entropy, Adam. The next token is a
fixed random function of the current one, replaced by a random token one time in ten: a model of single tokens, as
this is, can learn it, and its loss cannot reach zero.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workloads.config import Config
from workloads.model import PARAM_SPECS, REPLICATED, TOKENS, Leaf, Params, Stack, norm, param_shapes

LEARNING_RATE = 1e-2
NOISE = 0.1


class Decoder(NamedTuple):
    """The trained arrays: embedding float32[vocab_size, hidden], and the stack's."""

    embedding: Leaf
    stack: Params


class State(NamedTuple):
    """What a training step takes and returns: the decoder and the optimiser's state."""

    decoder: Decoder
    optimiser: Any


def _optimiser() -> Any:
    # Moments in float32 whatever the weights are: in bfloat16 the second moment stops decaying.
    return optax.adam(LEARNING_RATE, mu_dtype=jnp.float32)


def make_train_step(stack: Stack, config: Config) -> Callable[..., tuple[State, jax.Array]]:
    """step(state, bias, tokens int32[num_tokens], targets int32[num_tokens]) -> (new state, mean loss float32)."""

    def loss(decoder: Decoder, bias: jax.Array, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        with jax.named_scope("embedding"):
            x = decoder.embedding[tokens].astype(config.dtype)
        out = stack(decoder.stack, bias, x)
        with jax.named_scope("head"):
            # Scaled, so that the tied head starts near the uniform distribution.
            scale = config.hidden_dim**-0.5
            logits = scale * norm(out).astype(jnp.float32) @ decoder.embedding.T
            losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
            return losses.mean()

    def step(state: State, bias: jax.Array, tokens: jax.Array, targets: jax.Array) -> tuple[State, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(state.decoder, bias, tokens, targets)
        with jax.named_scope("optimiser"):
            updates, optimiser = _optimiser().update(gradient, state.optimiser, state.decoder)
            decoder = optax.apply_updates(state.decoder, updates)
        return State(decoder, optimiser), value

    return step


def state_shapes(config: Config, mesh: Mesh) -> State:
    """Shape, dtype and sharding of everything in a State; the optimiser's arrays are placed as what they belong to."""
    embedding = jax.ShapeDtypeStruct((config.vocab_size, config.hidden_dim), jnp.float32)
    decoder = Decoder(embedding, param_shapes(config))
    specs = Decoder(REPLICATED, PARAM_SPECS)
    optimiser = jax.eval_shape(_optimiser().init, decoder)
    optimiser_specs = optax.tree_utils.tree_map_params(
        _optimiser(),
        lambda _, spec: spec,
        optimiser,
        specs,
        transform_non_params=lambda _: REPLICATED,
    )

    def placed(struct: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=NamedSharding(mesh, spec))

    return State(
        jax.tree.map(placed, decoder, specs),
        jax.tree.map(placed, optimiser, optimiser_specs),
    )


def train_shapes(config: Config, mesh: Mesh) -> tuple[Any, ...]:
    """The abstract arguments of a training step."""

    def placed(shape: tuple[int, ...], dtype: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    bias = placed((config.num_layers, config.num_experts), jnp.float32, REPLICATED)
    tokens = placed((config.num_tokens,), jnp.int32, TOKENS)
    return state_shapes(config, mesh), bias, tokens, tokens


def make_train_args(abstract_args: tuple[Any, ...], config: Config) -> tuple[Any, ...]:
    """The initial state, a zero bias, and the first batch; the same for the same seed on every mesh and variant."""
    shapes, bias, tokens, _ = abstract_args
    generator = np.random.default_rng(config.seed)

    def normal(struct: jax.ShapeDtypeStruct, fan_in: int) -> jax.Array:
        values = generator.standard_normal(struct.shape, dtype=np.float32) * np.float32(fan_in**-0.5)
        placed: jax.Array = jax.device_put(values.astype(struct.dtype), struct.sharding)
        return placed

    decoder = Decoder(
        normal(shapes.decoder.embedding, 1),
        Params(*(normal(leaf, leaf.shape[-2]) for leaf in shapes.decoder.stack)),
    )
    optimiser = jax.tree.map(
        lambda struct: jax.device_put(np.zeros(struct.shape, struct.dtype), struct.sharding), shapes.optimiser
    )
    zeros = jax.device_put(np.zeros(bias.shape, np.float32), bias.sharding)
    return State(decoder, optimiser), zeros, *make_batch(config, 0, tokens.sharding)


def make_batch(config: Config, step: int, sharding: Any) -> tuple[jax.Array, jax.Array]:
    """Tokens and their successors, int32[num_tokens] each, of training step `step`."""
    successor = np.random.default_rng(config.seed).permutation(config.vocab_size)
    generator = np.random.default_rng((config.seed, step))
    tokens = generator.integers(config.vocab_size, size=config.num_tokens)
    noise = generator.integers(config.vocab_size, size=config.num_tokens)
    targets = np.where(generator.random(config.num_tokens) < NOISE, noise, successor[tokens])
    return tuple(jax.device_put(array.astype(np.int32), sharding) for array in (tokens, targets))

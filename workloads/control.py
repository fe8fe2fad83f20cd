"""Loops over layers and chunks, scanned or unrolled, each iteration findable in a trace, and remat around a
layer.

A scanned loop sits in one scope (`layers`, `chunks`), so that a path reads `layers/while/body/...` and the
index is the iteration of that loop; an unrolled one has a scope per iteration (`layer_0`, `chunk_2`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from workloads.config import Choices, Config

Body = Callable[[Any, Any], tuple[Any, Any]]

# What a layer computes once about its routing; the names under which remat may keep it.
ROUTING_NAMES = (
    "routing_experts",
    "routing_sort_indices",
    "routing_positions",
    "routing_group_sizes",
    "routing_sorted_by_validity",
    "routing_received_sort_indices",
    "routing_received_positions",
)


def loop(body: Body, carry: Any, xs: Any, scope: str, scanned: bool) -> tuple[Any, Any]:
    """Run `body(carry, x)` over the leading axis of `xs`, like lax.scan; `scope` is `layer` or `chunk`."""
    if scanned:
        with jax.named_scope(f"{scope}s"):
            return lax.scan(body, carry, xs)
    results = []
    length = jax.tree.leaves(xs)[0].shape[0]
    for index in range(length):
        with jax.named_scope(f"{scope}_{index}"):
            carry, result = body(carry, jax.tree.map(lambda leaf: leaf[index], xs))  # noqa: B023
        results.append(result)
    if all(result is None for result in results):
        return carry, None
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def tag(array: jax.Array, name: str) -> jax.Array:
    """Name a routing array so that a remat policy can keep it; `name` is one of ROUTING_NAMES."""
    named: jax.Array = checkpoint_name(array, name)
    return named


def rematerialise(layer: Body, config: Config, choices: Choices) -> Body:
    """The layer under jax.checkpoint as the configuration and the variant ask for it."""
    if not config.remat:
        return layer
    policies = jax.checkpoint_policies
    policy = policies.nothing_saveable
    if choices.across_remat == "saved":
        policy = policies.save_only_these_names(*ROUTING_NAMES)
    if config.remat_policy == "dots":
        policy = policies.save_from_both_policies(policies.dots_saveable, policy)
    # Under scan the forward and the rematerialised copy are in different loops, so nothing can merge them.
    wrapped: Body = jax.checkpoint(layer, policy=policy, prevent_cse=not config.scan_layers)
    return wrapped

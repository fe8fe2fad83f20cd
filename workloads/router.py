"""The router: which experts a token goes to, and with what weight."""

import jax
import jax.numpy as jnp
from jax import lax

from workloads.control import tag


def route(x: jax.Array, router: jax.Array, bias: jax.Array, top_k: int) -> tuple[jax.Array, jax.Array]:
    """Experts int32[tokens, top_k] and combine weights float32[tokens, top_k].

    x: [tokens, hidden]. router: float32[hidden, num_experts]. bias: float32[num_experts], added for the
    selection only and without gradient, as in DeepSeek-V3's load balancing (arXiv 2412.19437, section 2.1.2).

    The weight is the sigmoid of the selected logit, not normalised over the selected, so that the router has
    a gradient even at top_k 1. It is read back through the selected indices: a remat policy that keeps the
    indices then needs no second top-k in the backward pass.
    """
    # TPUs multiply float32 in bfloat16 unless told otherwise, and near-ties would then go to other experts.
    logits = jnp.dot(x.astype(jnp.float32), router, precision=lax.Precision.HIGHEST)
    _, experts = lax.top_k(lax.stop_gradient(logits) + bias, top_k)
    experts = tag(experts, "routing_experts")
    return experts, jax.nn.sigmoid(jnp.take_along_axis(logits, experts, axis=1))

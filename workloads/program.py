"""A built workload: one jitted step with abstract and real arguments, and what it needs in bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from workloads.config import Choices, Config
from workloads.model import (
    PARAM_SPECS,
    REPLICATED,
    TOKENS,
    Params,
    Stack,
    make_mesh,
    make_stack,
    param_shapes,
)
from workloads.sizes import dispatch_input_bytes, estimate_bytes, top_k_buffer_bytes
from workloads.training import make_train_args, make_train_step, train_shapes


@dataclass(frozen=True)
class Program:
    """A step that can be lowered, compiled and run.

    step: a jax.jit-wrapped function. In mode `forward` it takes (params, bias, x) and returns the output [num_tokens,
    hidden]; in mode `backward` it takes (params, bias, x, cotangent) and returns the float32 loss
    sum(output * cotangent) and its gradients with respect to (params, x); in mode `train` it takes (state, bias,
    tokens, targets) and returns the new state and the loss (see `workloads.training`). Mode `check`, for
    `workloads.verify`, is `backward` with (loss, output) in place of the loss.
    dispatch_input_bytes: the dispatch input of one layer on one device (tokens seen there × hidden ×
    itemsize).
    estimated_bytes: roughly what a step needs in total over all devices, arguments included, erring upwards.
    """

    workload: str
    variant: str
    mode: str
    config: Config
    step: Callable[..., Any]
    abstract_args: tuple[Any, ...]
    make_args: Callable[[], tuple[Any, ...]]
    dispatch_input_bytes: int
    top_k_buffer_bytes: int
    estimated_bytes: int


def build_program(
    workload: str, variant: str, choices: Choices, config: Config, mode: str, devices: Sequence[jax.Device]
) -> Program:
    """See `workloads.registry.build`, which checks the names and the configuration first."""
    mesh = make_mesh(config, devices)
    stack = make_stack(workload, choices, config, mesh)
    train = mode == "train"
    abstract_args = train_shapes(config, mesh) if train else _abstract_args(config, mode, mesh)
    # The name of the function becomes the name of the module, and so of its rows in a trace.
    step = make_train_step(stack, config) if train else _make_step(stack, mode)
    step.__name__ = step.__qualname__ = f"{workload}_{mode}"
    return Program(
        workload=workload,
        variant=variant,
        mode=mode,
        config=config,
        step=_jit(step, abstract_args, mode),
        abstract_args=abstract_args,
        make_args=partial(make_train_args if train else make_args, abstract_args, config),
        dispatch_input_bytes=dispatch_input_bytes(workload, config),
        top_k_buffer_bytes=top_k_buffer_bytes(workload, config),
        estimated_bytes=estimate_bytes(workload, config, mode, devices[0].platform),
    )


def _jit(step: Callable[..., Any], abstract_args: tuple[Any, ...], mode: str) -> Callable[..., Any]:
    if mode != "train":
        return jax.jit(step)
    # A step's state goes into the next step: placed as it came in, or the next step would be compiled anew.
    return jax.jit(step, out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, abstract_args[0]), None))


def _make_step(stack: Stack, mode: str) -> Callable[..., Any]:
    if mode == "forward":

        def forward(params: Params, bias: jax.Array, x: jax.Array) -> jax.Array:
            return stack(params, bias, x)

        return forward

    def loss(params: Params, bias: jax.Array, x: jax.Array, cotangent: jax.Array) -> Any:
        out = stack(params, bias, x)
        with jax.named_scope("loss"):
            value = jnp.sum(out.astype(jnp.float32) * cotangent.astype(jnp.float32))
        return (value, out) if mode == "check" else value

    def backward(*args: Any) -> Any:
        return jax.value_and_grad(loss, argnums=(0, 2), has_aux=mode == "check")(*args)

    return backward


def _abstract_args(config: Config, mode: str, mesh: Mesh) -> tuple[Any, ...]:
    def placed(struct: Any, spec: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=NamedSharding(mesh, spec))

    params = Params(*map(placed, param_shapes(config), PARAM_SPECS))
    bias = jax.ShapeDtypeStruct((config.num_layers, config.num_experts), jnp.float32)
    x = jax.ShapeDtypeStruct((config.num_tokens, config.hidden_dim), jnp.dtype(config.dtype))
    args = (params, placed(bias, REPLICATED), placed(x, TOKENS))
    return args if mode == "forward" else (*args, placed(x, TOKENS))


def make_args(abstract_args: tuple[Any, ...], config: Config) -> tuple[Any, ...]:
    """Arrays for the abstract arguments, the same for the same seed, on every mesh and for every variant.

    Activations and cotangent are standard normal, weights normal with variance 1 / fan-in, the routing bias
    zero.
    """
    generator = np.random.default_rng(config.seed)

    def normal(struct: jax.ShapeDtypeStruct, fan_in: int = 1) -> jax.Array:
        values = generator.standard_normal(struct.shape, dtype=np.float32)
        values *= np.float32(fan_in**-0.5)
        placed: jax.Array = jax.device_put(values.astype(struct.dtype), struct.sharding)
        return placed

    params, bias, *activations = abstract_args
    return (
        Params(*(normal(leaf, leaf.shape[-2]) for leaf in params)),
        jax.device_put(np.zeros(bias.shape, np.float32), bias.sharding),
        *(normal(leaf) for leaf in activations),
    )

"""Small configurations, routings and comparisons that the tests of the workloads share."""

from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np
import pytest

from workloads import reference
from workloads.config import Config
from workloads.program import Program
from workloads.registry import WORKLOADS, build, preset_config

DEFAULT_VARIANTS = [(workload.name, name) for workload in WORKLOADS.values() for name in workload.default_variants]
ALL_VARIANTS = [(workload.name, variant.name) for workload in WORKLOADS.values() for variant in workload.variants]
# Compiling all of them takes half a minute: the defaults are enough for a quick run.
MARKED_VARIANTS = [
    pytest.param(*names, marks=() if names in DEFAULT_VARIANTS else pytest.mark.slow) for names in ALL_VARIANTS
]
SMALL = {"num_tokens": 32, "hidden_dim": 16, "expert_dim": 8, "num_experts": 8, "top_k": 2, "num_chunks": 2}
ROUTINGS = ("random", "skewed", "one expert empty", "all to one expert")


def small_config(**overrides) -> Config:
    return preset_config("tiny", **{**SMALL, **overrides})


def compiled(program: Program) -> Program:
    """The program with its step compiled, so that its HLO and memory can be looked at."""
    return replace(program, step=program.step.lower(*program.abstract_args).compile())


@cache
def cached_program(workload: str, variant: str, mode: str, **overrides) -> Program:
    return compiled(build(workload, variant, small_config(**overrides), mode, jax.devices()))


def routing_bias(kind: str, config: Config) -> np.ndarray:
    """A bias [L, E] on the router's scores that produces the routing."""
    bias = np.zeros((config.num_layers, config.num_experts), np.float32)
    if kind == "skewed":
        bias += np.linspace(2.0, -2.0, config.num_experts, dtype=np.float32)
    if kind == "one expert empty":
        bias[:, 3] = -1e6
    if kind == "all to one expert":  # of each token's top_k; with top_k 1 it is all there is
        bias[:, 5] = 1e6
    return bias


def arguments(program: Program, kind: str = "random"):
    params, bias, *rest = program.make_args()
    return params, jax.device_put(routing_bias(kind, program.config), bias.sharding), *rest


@cache
def _oracle(config: Config, buffers=None):
    return jax.jit(partial(reference.backward, config, buffers=buffers)), jax.jit(
        partial(reference.forward, config, buffers=buffers)
    )


def _same_for_all(config: Config) -> Config:
    """Without what the oracle does not look at, so that fewer oracles are compiled."""
    return small_config(top_k=config.top_k, num_layers=config.num_layers, num_experts=config.num_experts)


def oracle_backward(config: Config, args, buffers=None):
    return _oracle(config, buffers)[0](*jax.tree.map(np.asarray, args))


def oracle_forward(config: Config, args, buffers=None):
    return _oracle(config, buffers)[1](*jax.tree.map(np.asarray, args))


def assert_close(got, want, what: str, tolerance: float = 2e-5) -> None:
    """Equal up to `tolerance` of the largest wanted value, and the wanted value is not all zero."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    largest = np.abs(want).max()
    assert largest > 0, f"{what}: the oracle's value is zero, so agreeing with it says nothing"
    worst = np.abs(got - want).max() / largest
    assert worst < tolerance, f"{what}: off by {worst:.2e} of the largest value"


def assert_backward_matches(program: Program, args, buffers=None) -> None:
    loss, (d_params, d_x) = program.step(*args)
    want_loss, (want_params, want_x) = oracle_backward(_same_for_all(program.config), args, buffers)
    np.testing.assert_allclose(float(loss), float(want_loss), rtol=1e-4, atol=1e-3)
    assert_close(d_x, want_x, "activation gradient")
    for name in d_params._fields:
        assert_close(getattr(d_params, name), getattr(want_params, name), f"{name} gradient")

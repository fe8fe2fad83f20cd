"""Every variant computes what the dense oracle computes: output and gradients, for every kind of routing."""

import jax
import numpy as np
import pytest

from workloads import reference

from .cases import (
    DEFAULT_VARIANTS,
    MARKED_VARIANTS,
    ROUTINGS,
    arguments,
    assert_backward_matches,
    assert_close,
    cached_program,
    oracle_forward,
    routing_bias,
    small_config,
)

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize(("workload", "variant"), MARKED_VARIANTS)
def test_gradients_of_activations_experts_and_router(workload, variant):
    program = cached_program(workload, variant, "backward", ep=4)
    for routing in ROUTINGS:
        assert_backward_matches(program, arguments(program, routing))


@pytest.mark.parametrize("ep", [1, 8])
@pytest.mark.parametrize(("workload", "variant"), DEFAULT_VARIANTS)
def test_gradients_on_one_and_on_eight_devices(workload, variant, ep):
    program = cached_program(workload, variant, "backward", ep=ep)
    for routing in ROUTINGS:
        assert_backward_matches(program, arguments(program, routing))


@pytest.mark.parametrize(("workload", "variant"), DEFAULT_VARIANTS)
def test_gradients_with_top_k_1(workload, variant):
    program = cached_program(workload, variant, "backward", ep=4, top_k=1)
    for routing in ("random", "all to one expert"):
        assert_backward_matches(program, arguments(program, routing))


@pytest.mark.parametrize(("workload", "variant"), DEFAULT_VARIANTS)
def test_output(workload, variant):
    program = cached_program(workload, variant, "forward", ep=4)
    for routing in ROUTINGS:
        args = arguments(program, routing)
        assert_close(program.step(*args), oracle_forward(program.config, args), routing)


@pytest.mark.parametrize(
    "overrides",
    [
        {"scan_layers": False, "scan_chunks": False},
        {"remat": False, "num_chunks": 1},
        {"remat_policy": "dots", "num_chunks": 4},
        {"ep": 2, "fsdp": 2, "num_chunks": 8},
    ],
    ids=str,
)
def test_gradients_whatever_the_control_flow(overrides):
    program = cached_program("ring", "cached", "backward", **{"ep": 4, **overrides})
    assert_backward_matches(program, arguments(program, "skewed"))


@pytest.mark.parametrize(("workload", "variant"), [("ring", "cached"), ("a2a", "saved")])
def test_rows_beyond_the_buffer_are_dropped_and_no_others(workload, variant):
    """4 shards; ring: one buffer per ring of 16 tokens; a2a: one block per pair of devices."""
    overrides = {"ep": 4, "fsdp": 2, "buffer_factor": 1.0}
    program = cached_program(workload, variant, "backward", **overrides)
    buffers = reference.buffers_of(workload, program.config)
    # The even share of 16 tokens × 2 slots over 4 shards, and of 4 tokens × 2 slots.
    assert buffers == {"ring": (2, 4, 8), "a2a": (8, 4, 2)}[workload]
    args = arguments(program, "skewed")
    assert_backward_matches(program, args, buffers)
    with pytest.raises(AssertionError):
        assert_backward_matches(program, args)  # so something was dropped


def test_oracle_by_hand_on_two_tokens():
    """The oracle itself, against the formula written out for one layer in numpy."""
    config = small_config(num_tokens=2, num_layers=1, ep=1)
    rng = np.random.default_rng(1)
    hidden, inner, experts = config.hidden_dim, config.expert_dim, config.num_experts
    router = rng.standard_normal((hidden, experts))
    gate, up = rng.standard_normal((2, experts, hidden, inner))
    down = rng.standard_normal((experts, inner, hidden))
    x = rng.standard_normal((2, hidden))
    want = x.copy()
    for token in range(2):
        normed = x[token] / np.sqrt(np.mean(x[token] ** 2) + 1e-6)
        logits = normed @ router
        for expert in sorted(range(experts), key=lambda e: -logits[e])[: config.top_k]:
            g, u = normed @ gate[expert], normed @ up[expert]
            want[token] += ((g / (1 + np.exp(-g)) * u) @ down[expert]) / (1 + np.exp(-logits[expert]))
    params = reference.Params(*(leaf[None].astype(np.float32) for leaf in (router, gate, up, down)))
    got = reference.forward(config, params, np.zeros((1, experts), np.float32), x.astype(np.float32))
    assert_close(got, want, "oracle")


def test_degenerate_routings_are_what_they_say():
    config = small_config(ep=1)
    scores = jax.random.normal(jax.random.key(0), (32, config.num_experts))
    empty = reference.choose_experts(scores + routing_bias("one expert empty", config)[0], config.top_k)
    assert empty.sum(axis=0)[3] == 0
    full = reference.choose_experts(scores + routing_bias("all to one expert", config)[0], config.top_k)
    assert full.sum(axis=0)[5] == 32
    assert empty.sum() == full.sum() == 32 * config.top_k

"""Drawn configurations: whatever the counts, every workload is the oracle's equal, dropped rows included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads import permutation, reference
from workloads.registry import build
from workloads.routing_check import check_routing
from workloads.sizes import buffer_rows

from .cases import assert_close, compiled, small_config

pytestmark = pytest.mark.usefixtures("quick_compile")

few = settings(max_examples=6, deadline=None, derandomize=True, database=None)
many = settings(max_examples=50, deadline=None, derandomize=True, database=None)


@st.composite
def configs(draw):
    ep, fsdp = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1)]))
    num_experts = ep * draw(st.integers(1, 3))
    num_chunks = draw(st.integers(1, 3))
    return small_config(
        ep=ep,
        fsdp=fsdp,
        num_tokens=ep * fsdp * draw(st.integers(1, 5)),
        num_experts=num_experts,
        top_k=draw(st.integers(1, min(num_experts, 4))),
        num_chunks=num_chunks,
        hidden_dim=num_chunks * fsdp * 4,
        buffer_factor=draw(st.sampled_from([None, 0.5, 1.0, 1.5])),
        scan_chunks=draw(st.booleans()),
        num_layers=1,
        seed=draw(st.integers(0, 99)),
    )


RING = ["recompute", "cached", "cached+counting", "recompute+packed", "inverse=scatter+backward_inverse=reuse"]
A2A = ["recompute", "counting", "saved", "inverse=argsort+backward_inverse=scatter"]


def assert_is_the_oracle(workload: str, variant: str, config) -> None:
    program = compiled(build(workload, variant, config, "check", jax.devices()))
    args = program.make_args()
    (_, out), (d_params, d_x) = program.step(*args)
    buffers = reference.buffers_of(workload, program.config)

    def oracle(params, bias, x, cotangent):
        out = reference.forward(config, params, bias, x, buffers)
        return out, reference.backward(config, params, bias, x, cotangent, buffers)[1]

    want_out, (want_params, want_x) = jax.jit(oracle)(*jax.tree.map(np.asarray, args))
    assert_close(out, want_out, "output")
    assert_close(d_x, want_x, "activation gradient")
    for name in d_params._fields:
        assert_close(getattr(d_params, name), getattr(want_params, name), f"{name} gradient")


@pytest.mark.slow
@few
@given(config=configs(), variant=st.sampled_from(RING))
def test_ring(config, variant):
    assert_is_the_oracle("ring", variant, config)


@pytest.mark.slow
@few
@given(config=configs(), variant=st.sampled_from(A2A))
def test_a2a(config, variant):
    assert_is_the_oracle("a2a", variant, config)


@few
@given(config=configs(), workload=st.sampled_from(["ring", "a2a"]))
def test_routing_is_exact(config, workload):
    assert check_routing(workload, "recompute", config, jax.devices()) == ()


@many
@given(data=st.data(), num_experts=st.integers(1, 40), sort_key=st.sampled_from(["stable", "packed", "counting"]))
def test_sort_keys_agree_with_numpy(data, num_experts, sort_key):
    experts = np.array(data.draw(st.lists(st.integers(0, num_experts - 1), min_size=24, max_size=24)), np.int32)
    sort_indices, positions = permutation.sort_by_expert(jnp.asarray(experts), num_experts, sort_key)
    want = np.argsort(experts, kind="stable")
    np.testing.assert_array_equal(sort_indices, want)
    for method in ("argsort", "scatter"):
        np.testing.assert_array_equal(permutation.invert(sort_indices, method), np.argsort(want))
    if positions is not None:
        np.testing.assert_array_equal(positions, np.argsort(want))
    np.testing.assert_array_equal(
        permutation.count_groups(jnp.asarray(experts), num_experts), np.bincount(experts, minlength=num_experts)
    )


@many
@given(config=configs())
def test_without_a_factor_a_buffer_holds_every_routing(config):
    """The worst routing sends every slot it can to one shard: no token has more than this many there."""
    worst = config.tokens_per_ring * min(config.top_k, config.num_experts // config.ep)
    rows = buffer_rows(config)
    assert rows == worst if config.buffer_factor is None else 1 <= rows <= worst

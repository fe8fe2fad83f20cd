"""Bytes that a program states: exact where they are arithmetic, between bounds where they are an estimate."""

import jax
import pytest

from workloads.registry import build

from .cases import cached_program, small_config

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_dispatch_input_is_what_one_device_dispatches():
    ring = build("ring", "cached", small_config(ep=4), "backward", jax.devices())
    assert (ring.dispatch_input_bytes, ring.top_k_buffer_bytes) == (32 * 16 * 4, 2 * 32 * 16 * 4)  # all tokens
    for workload, variant in (("permute", "gather"), ("a2a", "saved")):
        own = build(workload, variant, small_config(ep=4), "backward", jax.devices())
        assert (own.dispatch_input_bytes, own.top_k_buffer_bytes) == (8 * 16 * 4, 2 * 8 * 16 * 4)  # its own 8
    in_rings = build("ring", "cached", small_config(ep=4, fsdp=2, dtype="bfloat16"), "backward", jax.devices())
    assert in_rings.dispatch_input_bytes == 16 * 16 * 2  # the tokens of one of two rings


@pytest.mark.parametrize(
    ("workload", "variant", "mode", "overrides"),
    [
        ("ring", "cached", "forward", {"ep": 4}),
        ("ring", "cached", "backward", {"ep": 1}),
        ("ring", "recompute", "backward", {"ep": 8, "num_tokens": 512}),
        ("ring", "cached", "backward", {"ep": 4, "fsdp": 2, "num_tokens": 512, "buffer_factor": 1.0}),
        ("ring", "cached", "train", {"ep": 4, "num_tokens": 128}),
        ("permute", "repeat", "forward", {"ep": 1, "num_tokens": 512, "expert_dim": 64}),
        ("permute", "repeat", "backward", {"ep": 1, "num_tokens": 512, "expert_dim": 64}),
        ("permute", "gather", "backward", {"ep": 4, "hidden_dim": 64, "num_experts": 16, "dtype": "bfloat16"}),
        ("a2a", "saved", "backward", {"ep": 4, "num_tokens": 512}),
    ],
)
def test_estimate_lies_between_what_is_needed_and_a_few_times_that(workload, variant, mode, overrides):
    program = cached_program(workload, variant, mode, **overrides)
    stats = program.step.memory_analysis()
    per_device = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    needed = per_device * program.config.num_devices
    assert needed <= program.estimated_bytes <= 6 * needed

"""Bytes that a program states: exact where they are arithmetic, between bounds where they are an estimate."""

import pytest

from .cases import cached_program


def test_dispatch_input_is_what_one_device_dispatches():
    ring = cached_program("ring", "cached", "backward", ep=4)  # 32 tokens × 16 × float32, all of them on each shard
    assert (ring.dispatch_input_bytes, ring.top_k_buffer_bytes) == (2048, 4096)
    permute = cached_program("permute", "gather", "backward", ep=4)  # 8 tokens a device
    assert (permute.dispatch_input_bytes, permute.top_k_buffer_bytes) == (512, 1024)


@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize(
    ("workload", "variant", "overrides"),
    [
        ("ring", "cached", {"ep": 1}),
        ("ring", "recompute", {"ep": 8, "num_tokens": 512}),
        ("permute", "repeat", {"ep": 1, "num_tokens": 512, "expert_dim": 64}),
        ("permute", "gather", {"ep": 4, "hidden_dim": 64, "num_experts": 16, "dtype": "bfloat16"}),
    ],
)
def test_estimate_lies_between_what_is_needed_and_a_few_times_that(workload, variant, overrides, mode):
    program = cached_program(workload, variant, mode, **overrides)
    stats = program.step.memory_analysis()
    per_device = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    needed = per_device * program.config.num_devices
    assert needed <= program.estimated_bytes <= 6 * needed

"""Presets have their models' sizes, scale without breaking, and what cannot combine is refused with the reason."""

import subprocess
import sys
from dataclasses import asdict, replace
from fractions import Fraction

import pytest

from workloads.registry import PRESETS, WORKLOADS, Config, WorkloadError, check, describe, find_variant, preset_config

from .cases import small_config

# Parameters of the routed experts and routers against the whole model, in billions, as published.
WHOLE = {
    "deepseek-v3": 671,
    "deepseek-v4-284b": 284,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235,
    "mixtral-8x7b": 46.7,
    "gpt-oss-120b": 117,
    "llama-4-maverick": 400,
}


@pytest.mark.parametrize("name", WHOLE)
def test_experts_are_nearly_all_of_the_published_model(name):
    billions = describe("ring", preset_config(name), "backward").parameters / 1e9
    assert 0.94 * WHOLE[name] < billions < WHOLE[name]


def test_deepseek_v3_layer_by_hand():
    sizes = describe("ring", preset_config("deepseek-v3", num_layers=1), "forward")
    assert sizes.dispatch_input_bytes == 16384 * 7168 * 2 == 224 * 2**20
    assert sizes.top_k_buffer_bytes == 8 * 224 * 2**20
    assert sizes.flops == 16384 * (8 * 3 * 2 * 7168 * 2048 + 2 * 7168 * 256)
    # Remat runs the forward again, and a backward pass is two: four in all.
    assert describe("ring", preset_config("deepseek-v3", num_layers=1), "backward").flops == 4 * sizes.flops


@pytest.mark.parametrize("scale", [Fraction(1, 64), Fraction(1, 7), 0.5])
@pytest.mark.parametrize("name", PRESETS)
def test_scaling_keeps_what_matters(name, scale):
    base, scaled = PRESETS[name].config, preset_config(name, scale)
    for kept in ("top_k", "num_chunks", "ep", "fsdp", "dtype"):
        assert getattr(scaled, kept) == getattr(base, kept)
    assert scaled.hidden_dim % scaled.num_chunks == 0
    assert scaled.num_tokens % scaled.num_devices == 0
    assert scaled.num_experts % scaled.ep == 0
    assert min(2 * base.top_k, base.num_experts) <= scaled.num_experts <= base.num_experts
    assert scaled.hidden_dim < base.hidden_dim
    assert scaled.num_layers >= 2


def test_a_configuration_survives_json_types():
    config = preset_config("tiny", buffer_factor=1.5)
    assert Config(**asdict(config)) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_chunks": 3}, "hidden_dim 16 is not divisible by num_chunks"),
        ({"ep": 3}, "num_tokens 32 is not divisible by ep"),
        ({"top_k": 9}, "top_k 9 exceeds num_experts 8"),
        ({"dtype": "float16"}, "unknown dtype 'float16'; choose one of bfloat16, float32"),
        ({"buffer_factor": 0.0}, "buffer_factor is 0.0"),
        ({"num_layers": 0}, "num_layers is 0"),
    ],
)
def test_sizes_that_do_not_fit(change, message):
    with pytest.raises(WorkloadError, match=message):
        small_config(**change)


@pytest.mark.parametrize(
    ("workload", "variant", "change", "message"),
    [
        ("ring", "nonsense", {}, "has no variant 'nonsense'; choose one of recompute, "),
        ("nonsense", "cached", {}, "unknown workload 'nonsense'; choose one of permute, ring, a2a"),
        ("ring", "sort_key=quick", {}, "sort_key is one of stable, packed, counting, not 'quick'"),
        ("ring", "key=packed", {}, "names no choice 'key'"),
        ("ring", "sort_key=counting+inverse=scatter", {}, "counting yields the inverse itself"),
        ("permute", "inverse=reuse+backward_inverse=scatter", {}, "nothing left to invert"),
        ("ring", "activations=repeat", {}, "would mostly go unread"),
        ("ring", "validity=none", {}, "has to put those first"),
        ("permute", "validity=cached", {}, "no mask is sorted"),
        ("a2a", "activations=repeat", {}, "exactly as often as it travels"),
        ("permute", "gather", {"buffer_factor": 1.0}, "nothing is dropped"),
        ("a2a", "saved", {"kernels": "pallas"}, "only ring moves rows by the ragged gather"),
        ("ring", "recompute+packed", {"num_tokens": 2**28}, "cannot hold 8 experts and 536870912"),
        ("ring", "cached", {"mode": "sideways"}, "unknown mode 'sideways'; choose one of forward, backward, train"),
    ],
)
def test_what_cannot_be_built_says_why(workload, variant, change, message):
    mode = change.pop("mode", "backward")
    with pytest.raises(WorkloadError, match=message):
        check(workload, variant, replace(small_config(), **change), mode)


def test_unknown_preset_scale_and_field():
    with pytest.raises(WorkloadError, match="unknown preset 'huge'; choose one of tiny, "):
        preset_config("huge")
    with pytest.raises(WorkloadError, match="scale 2 is not above 0 and at most 1"):
        preset_config("tiny", 2)
    with pytest.raises(WorkloadError, match="unknown configuration field 'top_p'"):
        preset_config("tiny", top_p=1)


def test_choices_can_be_spelled_out():
    spelled = find_variant("ring", "inverse=reuse+validity=cached+across_remat=saved")
    assert spelled.choices == find_variant("ring", "cached").choices


def test_every_named_variant_is_another_combination():
    for workload in WORKLOADS.values():
        assert len({variant.choices for variant in workload.variants}) == len(workload.variants)
        assert set(workload.default_variants) <= {variant.name for variant in workload.variants}
        for variant in workload.variants:
            check(workload.name, variant.name, small_config(), "backward")


def test_tables_do_not_import_jax():
    code = "import workloads.registry, sys; assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

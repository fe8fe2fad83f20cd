"""Model shapes with a real model's name, each of which scales down. Importable without jax.

The shapes are those of the published configurations that each preset's `source` names. Tokens, chunks and `ep` are not
part of a model. They are those of the runs that this program was built around (16384 tokens, expert parallelism 16 for
the 284B model; 4 chunks, expert parallelism 8 for DeepSeek-V3) and alike for the rest. Shared experts, dense layers
and attention are left out: routing does not touch them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from workloads.config import Config, check_config
from workloads.errors import WorkloadError


@dataclass(frozen=True)
class Preset:
    """A published model's MoE shape and the batch it is measured with; `source` says where the numbers are
    from.
    """

    name: str
    summary: str
    source: str
    config: Config


def _preset(name: str, summary: str, source: str, **sizes: Any) -> Preset:
    return Preset(name, summary, source, Config(preset=name, **sizes))


_ALL = (
    _preset(
        "tiny",
        "seconds on a laptop: 16 experts, top_k 4, 2 layers, 4 chunks",
        "made up; divides over up to 8 devices",
        num_tokens=512,
        hidden_dim=64,
        expert_dim=32,
        num_experts=16,
        top_k=4,
        num_layers=2,
        num_chunks=4,
        ep=1,
        dtype="float32",
    ),
    _preset(
        "deepseek-v3",
        "671B: 256 experts, top_k 8, hidden 7168, 4 chunks, expert parallelism 8",
        "huggingface.co/deepseek-ai/DeepSeek-V3 config.json (hidden_size, moe_intermediate_size, "
        "n_routed_experts, num_experts_per_tok, num_hidden_layers - first_k_dense_replace, vocab_size)",
        num_tokens=16384,
        hidden_dim=7168,
        expert_dim=2048,
        num_experts=256,
        top_k=8,
        num_layers=58,
        num_chunks=4,
        ep=8,
        dtype="bfloat16",
        vocab_size=129280,
    ),
    _preset(
        "deepseek-v4-284b",
        "284B: 256 experts, top_k 6, hidden 4096, sequence 16384, expert parallelism 16",
        "huggingface.co/deepseek-ai/DeepSeek-V4-Flash config.json (hidden_size, moe_intermediate_size, "
        "n_routed_experts, num_experts_per_tok, num_hidden_layers, vocab_size); "
        "the same in MaxText's deepseek4-284b.yml",
        num_tokens=16384,
        hidden_dim=4096,
        expert_dim=2048,
        num_experts=256,
        top_k=6,
        num_layers=43,
        num_chunks=4,
        ep=16,
        vocab_size=129280,
        dtype="bfloat16",
    ),
    _preset(
        "qwen3-30b-a3b",
        "30B: 128 experts, top_k 8, hidden 2048",
        "huggingface.co/Qwen/Qwen3-30B-A3B config.json (hidden_size, moe_intermediate_size, num_experts, "
        "num_experts_per_tok, num_hidden_layers, vocab_size)",
        num_tokens=16384,
        hidden_dim=2048,
        expert_dim=768,
        num_experts=128,
        top_k=8,
        num_layers=48,
        num_chunks=4,
        ep=8,
        vocab_size=151936,
        dtype="bfloat16",
    ),
    _preset(
        "qwen3-235b-a22b",
        "235B: 128 experts, top_k 8, hidden 4096",
        "huggingface.co/Qwen/Qwen3-235B-A22B config.json (hidden_size, moe_intermediate_size, num_experts, "
        "num_experts_per_tok, num_hidden_layers, vocab_size)",
        num_tokens=16384,
        hidden_dim=4096,
        expert_dim=1536,
        num_experts=128,
        top_k=8,
        num_layers=94,
        num_chunks=4,
        ep=8,
        vocab_size=151936,
        dtype="bfloat16",
    ),
    _preset(
        "mixtral-8x7b",
        "47B: 8 experts, top_k 2, hidden 4096",
        "huggingface.co/mistralai/Mixtral-8x7B-v0.1 config.json (hidden_size, intermediate_size, num_local_experts, "
        "num_experts_per_tok, num_hidden_layers, vocab_size)",
        num_tokens=16384,
        hidden_dim=4096,
        expert_dim=14336,
        num_experts=8,
        top_k=2,
        num_layers=32,
        num_chunks=4,
        ep=8,
        vocab_size=32000,
        dtype="bfloat16",
    ),
    _preset(
        "gpt-oss-120b",
        "117B: 128 experts, top_k 4, hidden 2880",
        "huggingface.co/openai/gpt-oss-120b config.json (hidden_size, intermediate_size, num_local_experts, "
        "num_experts_per_tok, num_hidden_layers, vocab_size)",
        num_tokens=16384,
        hidden_dim=2880,
        expert_dim=2880,
        num_experts=128,
        top_k=4,
        num_layers=36,
        num_chunks=4,
        ep=8,
        vocab_size=201088,
        dtype="bfloat16",
    ),
    _preset(
        "llama-4-maverick",
        "400B: 128 experts, top_k 1, hidden 5120; every second layer is MoE, those are counted",
        "huggingface.co/meta-llama/Llama-4-Maverick-17B-128E config.json (text_config: hidden_size, "
        "intermediate_size, num_local_experts, num_experts_per_tok, num_hidden_layers / "
        "interleave_moe_layer_step, vocab_size)",
        num_tokens=16384,
        hidden_dim=5120,
        expert_dim=8192,
        num_experts=128,
        top_k=1,
        num_layers=24,
        num_chunks=4,
        ep=8,
        vocab_size=202048,
        dtype="bfloat16",
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _ALL})


def preset_config(preset: str, scale: Fraction | float = 1, **overrides: Any) -> Config:
    """The configuration of a preset, scaled, then with `overrides` applied (any field of Config).

    Scaling multiplies tokens, widths, experts, layers and vocabulary by `scale` and rounds up to what keeps the
    problem of the same kind: top_k, the number of chunks, `ep` and `fsdp` stay, and so does all divisibility; at least
    2 × top_k experts and two layers remain, where the model has as many.

    Raises WorkloadError for an unknown preset or field, a scale that is not in (0, 1], or sizes that do not
    fit.
    """
    if preset not in PRESETS:
        raise WorkloadError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}.")
    if not 0 < scale <= 1:
        raise WorkloadError(f"scale {scale} is not above 0 and at most 1; use for instance 1/64.")
    base = PRESETS[preset].config
    unknown = sorted(set(overrides) - set(Config.__dataclass_fields__))
    if unknown:
        known = ", ".join(Config.__dataclass_fields__)
        raise WorkloadError(f"unknown configuration field {unknown[0]!r}; choose among {known}.")
    parallel = {name: overrides.pop(name) for name in ("ep", "fsdp", "num_chunks", "top_k") if name in overrides}
    config = replace(_scale(replace(base, **parallel), Fraction(scale).limit_denominator(1 << 20)), **overrides)
    check_config(config)
    return config


def _scale(config: Config, scale: Fraction) -> Config:
    if scale == 1:
        return config
    width = math.lcm(8 * config.num_chunks, config.fsdp)
    return replace(
        config,
        num_tokens=_scaled(config.num_tokens, scale, 8 * config.num_devices),
        hidden_dim=_scaled(config.hidden_dim, scale, width),
        expert_dim=_scaled(config.expert_dim, scale, 8),
        num_experts=_scaled_experts(config, scale),
        num_layers=max(_scaled(config.num_layers, scale, 1), min(config.num_layers, 2)),
        vocab_size=max(_scaled(config.vocab_size, scale, 8), min(config.vocab_size, 256)),
    )


def _scaled_experts(config: Config, scale: Fraction) -> int:
    wanted = max(math.ceil(config.num_experts * scale), 2 * config.top_k)
    return min(config.num_experts, _round_up(wanted, config.ep))


def _scaled(value: int, scale: Fraction, multiple: int) -> int:
    return _round_up(math.ceil(value * scale), multiple)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

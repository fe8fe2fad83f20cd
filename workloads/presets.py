"""Model shapes with a real model's name, each of which scales down. Importable without jax."""

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
        "huggingface.co/deepseek-ai/DeepSeek-V3 config.json: hidden_size, moe_intermediate_size, "
        "n_routed_experts, num_experts_per_tok, num_hidden_layers - first_k_dense_replace",
        num_tokens=16384,
        hidden_dim=7168,
        expert_dim=2048,
        num_experts=256,
        top_k=8,
        num_layers=58,
        num_chunks=4,
        ep=8,
        dtype="bfloat16",
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _ALL})


def preset_config(preset: str, scale: Fraction | float = 1, **overrides: Any) -> Config:
    """The configuration of a preset, scaled, then with `overrides` applied (any field of Config).

    Scaling multiplies tokens, widths, experts and layers by `scale` and rounds up to what keeps the problem
    the same
    kind of problem: top_k, the number of chunks, `ep` and `fsdp` stay, and so does all divisibility; at least
    2 × top_k experts and one layer remain (two where the preset has two or more).

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
        num_experts=max(_scaled(config.num_experts, scale, config.ep), _round_up(2 * config.top_k, config.ep)),
        num_layers=max(_scaled(config.num_layers, scale, 1), min(config.num_layers, 2)),
    )


def _scaled(value: int, scale: Fraction, multiple: int) -> int:
    return _round_up(math.ceil(value * scale), multiple)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

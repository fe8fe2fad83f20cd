"""The door of this package: the tables of workloads and variants, and `build`. Importable without jax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from workloads.config import Choices, Config, check_config
from workloads.errors import WorkloadError
from workloads.presets import PRESETS, Preset, preset_config

if TYPE_CHECKING:
    import jax

    from workloads.program import Program

__all__ = [
    "MODES",
    "PRESETS",
    "WORKLOADS",
    "Choices",
    "Config",
    "Preset",
    "Variant",
    "Workload",
    "WorkloadError",
    "build",
    "find_variant",
    "preset_config",
]

MODES = ("forward", "backward")


@dataclass(frozen=True)
class Variant:
    """One implementation of a workload's routing; `summary` says in one line what it changes."""

    workload: str
    name: str
    summary: str
    choices: Choices


@dataclass(frozen=True)
class Workload:
    """A computation that can be run, and the variants of its routing."""

    name: str
    summary: str
    variants: tuple[Variant, ...]
    default_variants: tuple[str, ...]


_PERMUTE = (
    Variant(
        "permute",
        "repeat",
        "copies every token top_k times, gathers the copies in sorted order, inverts by argsort",
        Choices(activations="repeat"),
    ),
    Variant(
        "permute",
        "gather",
        "gathers rows sort_indices // top_k from the original activations, inverts by argsort",
        Choices(activations="gather"),
    ),
    Variant(
        "permute",
        "gather+scatter",
        "gather, with every permutation inverted by an O(N) scatter instead of an argsort",
        Choices(activations="gather", inverse="scatter"),
    ),
)

_RING = (
    Variant(
        "ring",
        "recompute",
        "every gather-reduce sorts its validity mask, the backward re-derives all permutations",
        Choices(),
    ),
    Variant(
        "ring",
        "cached",
        "routing and validity permutation once per layer, handed to the backward and through remat",
        Choices(inverse="reuse", validity="cached", across_remat="saved"),
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "permute": Workload(
            "permute",
            "sort local tokens by expert, grouped matmul, un-sort, weighted sum; tokens stay put",
            _PERMUTE,
            ("repeat", "gather"),
        ),
        "ring": Workload(
            "ring",
            "ring of experts: shards see all tokens, keep their experts' rows, walk the embedding in chunks",
            _RING,
            ("recompute", "cached"),
        ),
    }
)


def find_variant(workload: str, variant: str) -> Variant:
    """The named variant. Raises WorkloadError that lists the valid names."""
    if workload not in WORKLOADS:
        raise WorkloadError(f"unknown workload {workload!r}; choose one of {', '.join(WORKLOADS)}.")
    for candidate in WORKLOADS[workload].variants:
        if candidate.name == variant:
            return candidate
    names = ", ".join(candidate.name for candidate in WORKLOADS[workload].variants)
    raise WorkloadError(f"workload {workload!r} has no variant {variant!r}; choose one of {names}.")


def build(workload: str, variant: str, config: Config, mode: str, devices: Sequence[jax.Device]) -> Program:
    """The jitted step of one variant with its arguments, on the first `config.num_devices` of `devices`.

    Raises WorkloadError for an unknown workload, variant or mode, sizes that do not fit together, choices
    that cannot combine, or too few devices.
    """
    found = find_variant(workload, variant)
    if mode not in MODES:
        raise WorkloadError(f"unknown mode {mode!r}; choose one of {', '.join(MODES)}.")
    if workload == "permute":
        # Its tokens never leave their device, so there is no all-gather to overlap and nothing to chunk.
        config = replace(config, num_chunks=1)
    check_config(config)

    from workloads.program import build_program

    return build_program(workload, found.name, found.choices, config, mode, devices)

"""The door of this package: the tables of workloads, variants and presets, and `build`. Importable without
jax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workloads.config import Choices, Config, check_config
from workloads.errors import WorkloadError
from workloads.presets import PRESETS, Preset, preset_config
from workloads.sizes import Sizes, describe
from workloads.variants import WORKLOADS, Variant, Workload, check_choices, find_variant

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
    "Sizes",
    "Variant",
    "Workload",
    "WorkloadError",
    "build",
    "check",
    "describe",
    "find_variant",
    "preset_config",
]

MODES = ("forward", "backward", "train")


def check(workload: str, variant: str, config: Config, mode: str) -> tuple[Variant, Config]:
    """The variant, and the configuration as that workload runs it. Does not need jax.

    Raises WorkloadError for an unknown workload, variant or mode, sizes that do not fit together, or choices
    that cannot combine.
    """
    found = find_variant(workload, variant)
    if mode not in (*MODES, "check"):
        raise WorkloadError(f"unknown mode {mode!r}; choose one of {', '.join(MODES)}.")
    if workload != "ring":
        # Only the ring all-gathers activations, and only there are chunks of them worth overlapping.
        config = replace(config, num_chunks=1)
    check_config(config)
    check_choices(workload, found.choices, config)
    return found, config


def build(workload: str, variant: str, config: Config, mode: str, devices: Sequence[jax.Device]) -> Program:
    """The jitted step of one variant with its arguments, on the first `config.num_devices` of `devices`.

    Raises WorkloadError as `check` does, and for too few devices.
    """
    found, config = check(workload, variant, config, mode)

    from workloads.program import build_program

    return build_program(workload, variant, found.choices, config, mode, devices)

"""`moe-prof verify`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from profiler.backends import check_versions, find_devices, prepare_environment
from profiler.cli.parameters import config_options, variant_names, variant_options
from workloads.registry import check, preset_config

if TYPE_CHECKING:
    from workloads.verify import TrainingRun, VariantReport, Verification


@click.command("verify", short_help="Do the variants compute the same values, gradients and loss curve?")
@variant_options
@config_options
@click.option(
    "--train-steps", type=click.IntRange(0), default=20, show_default=True, help="Training steps to compare; 0: none."
)
@click.option("--json", "as_json", is_flag=True, help="All comparisons, as JSON.")
def command(
    workload: str,
    preset: str,
    scale: Fraction,
    variants: tuple[str, ...] | None,
    all_variants: bool,
    train_steps: int,
    as_json: bool,
    **overrides: Any,
) -> int:
    """Check that the variants of WORKLOAD compute the same values, gradients and loss curve.

    Outputs and gradients are compared with a dense oracle in float32, for a random and a skewed routing, and among
    the variants; routing arrays are checked exactly. Exit code 1 says that a variant is wrong.

    \b
    moe-prof verify ring --ep 2
    moe-prof verify permute --all-variants --train-steps 0
    """
    names = variant_names(workload, variants, all_variants)
    config = preset_config(preset, scale, **{name: value for name, value in overrides.items() if value is not None})
    for name in names:
        check(workload, name, config, "backward")  # before the seconds that importing jax takes
    prepare_environment(config.num_devices, os.environ)
    check_versions()

    from workloads.verify import verify

    devices = find_devices(config.num_devices)
    found = verify(
        workload, names, config, devices, train_steps=train_steps, progress=lambda part: click.echo(part, err=True)
    )
    if as_json:
        click.echo(json.dumps({"ok": found.ok} | asdict(found), indent=2))
    else:
        _print(found)
    return 0 if found.ok else 1


def _print(found: Verification) -> None:
    for report in found.reports:
        click.echo(f"{report.variant}")
        for against in dict.fromkeys(item.against for item in report.comparisons):
            click.echo(f"  against {against}: {_differences(report, against)}")
        if report.training:
            click.echo(f"  training: {_losses(report.training, found.reports[0].variant)}")
        for problem in report.problems:
            click.echo(f"  ! {problem}")
    wrong = [report.variant for report in found.reports if report.problems]
    click.echo(f"WRONG: {', '.join(wrong)}" if wrong else f"{len(found.reports)} variants of {found.workload} agree")


def _differences(report: VariantReport, against: str) -> str:
    compared = [item for item in report.comparisons if item.against == against]
    if all(item.identical for item in compared):
        return "identical to the bit"
    worst: dict[str, float] = {}
    for item in compared:
        worst[item.quantity] = max(item.relative_error, worst.get(item.quantity, 0.0))
    return "largest difference " + ", ".join(f"{quantity} {error:.1e}" for quantity, error in worst.items())


def _losses(training: TrainingRun, first: str) -> str:
    curve = f"loss {training.losses[0]:.4f} to {training.losses[-1]:.4f} in {len(training.losses)} steps"
    if training.variant == first:
        return curve
    return f"{curve}, {'identical to the bit to' if training.identical_to_first else 'not to the bit that of'} {first}"

"""`moe-prof verify`: the variants compute the same values, gradients and loss curve."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from profiler.backends import check_versions, find_devices, prepare_environment
from profiler.cli.parameters import config_options, variant_names, variant_options
from workloads.registry import WORKLOADS, check, preset_config

if TYPE_CHECKING:
    from analyzers.showing.tables import Document
    from workloads.verify import VariantReport, Verification

SHOWN_STEPS = (0, 10, 19)
"""Training steps whose loss is printed, as far as they were run; the last one always. JSON has all."""


@click.command("verify", short_help="Do the variants compute the same values, gradients and loss curve?")
@partial(variant_options, workload_required=False)
@click.option("--all", "everything", is_flag=True, help="Every variant of every workload.")
@config_options
@click.option(
    "--train-steps", type=click.IntRange(0), default=20, show_default=True, help="Training steps to compare; 0: none."
)
@click.option("--json", "as_json", is_flag=True, help="All comparisons and losses, as JSON.")
def command(
    workload: str | None,
    preset: str,
    scale: Fraction,
    variants: tuple[str, ...] | None,
    all_variants: bool,
    everything: bool,
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
    moe-prof verify --all --preset tiny
    """
    if everything == (workload is not None):
        raise click.UsageError("give a WORKLOAD, or --all without one.")
    if everything and variants:
        raise click.UsageError("--variants and --all exclude each other.")
    chosen = {
        name: variant_names(name, variants, everything or all_variants)
        for name in WORKLOADS
        if workload in (None, name)
    }
    if workload is not None and not chosen:
        variant_names(workload, variants, all_variants)  # says which workloads there are
    config = preset_config(preset, scale, **{name: value for name, value in overrides.items() if value is not None})
    for name, names in chosen.items():
        for variant in names:
            check(name, variant, config, "backward")  # before the seconds that importing jax takes
    prepare_environment(config.num_devices, os.environ)
    check_versions()

    from analyzers.showing.text import print_document
    from workloads.verify import verify

    devices = find_devices(config.num_devices)
    found = [
        verify(name, names, config, devices, train_steps=train_steps, progress=partial(click.echo, err=True))
        for name, names in chosen.items()
    ]
    if as_json:
        head = {"schema_version": 1, "kind": "moe-prof verify", "ok": all(one.ok for one in found)}
        click.echo(json.dumps(head | {"workloads": [asdict(one) for one in found]}, indent=2))
    else:
        for one in found:
            print_document(verify_document(one), color=click.get_current_context().color)
            click.echo()
    return 0 if all(one.ok for one in found) else 1


def verify_document(found: Verification) -> Document:
    """Return the verdict over one workload as a document: differences, then losses side by side."""
    from analyzers.showing.tables import Column, Document, Paragraph, Table, cells

    wrong = [report.variant for report in found.reports if report.problems]
    verdict = f"WRONG: {', '.join(wrong)}" if wrong else f"{len(found.reports)} variants agree"
    first = found.reports[0].variant
    differences = Table(
        "Largest difference of outputs and gradients, relative to the largest value (and in ULP)",
        (
            Column("variant", numeric=False),
            Column("output against the oracle"),
            Column("worst gradient against the oracle"),
            Column(f"against {first}"),
            Column("routing arrays"),
        ),
        tuple(
            cells(
                report.variant,
                _worst(report, "oracle", outputs=True),
                _worst(report, "oracle", outputs=False),
                "" if report.variant == first else _worst(report, first, outputs=None),
                "WRONG" if report.routing_problems else "exact",
            )
            for report in found.reports
        ),
    )
    parts: list[Table | Paragraph] = [Paragraph(verdict, "bad" if wrong else "good"), differences]
    trained = [report.training for report in found.reports if report.training]
    if trained:
        count = len(trained[0].losses)
        steps = sorted({step for step in SHOWN_STEPS if step < count} | {count - 1})
        parts.append(
            Table(
                f"Training, {count} steps: loss (perplexity)",
                (
                    Column("variant", numeric=False),
                    *(Column(f"step {step}") for step in steps),
                    Column("losses and final weights", numeric=False),
                ),
                tuple(
                    cells(
                        run.variant,
                        *(f"{run.losses[step]:.6f} ({run.perplexities[step]:.3f})" for step in steps),
                        "" if run.variant == first else _identity(run.identical_to_first, first),
                    )
                    for run in trained
                ),
            )
        )
    notes = tuple(problem for report in found.reports for problem in report.problems)
    return Document(f"verify {found.workload}", tuple(parts), notes)


def _identity(identical: bool, first: str) -> str:
    return f"identical to the bit to {first}" if identical else f"not to the bit those of {first}"


def _worst(report: VariantReport, against: str, *, outputs: bool | None) -> str:
    compared = [
        item
        for item in report.comparisons
        if item.against == against and (outputs is None or (item.quantity == "output") is outputs)
    ]
    if not compared:
        return "n/a"
    if all(item.identical for item in compared):
        return "identical"
    worst = max(compared, key=lambda item: item.relative_error)
    return f"{worst.relative_error:.1e} ({worst.max_ulp:,} ULP)"

"""`moe-prof capture`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from profiler.backends import prepare_environment
from profiler.cli.parameters import NAMES, SCALE, complete_preset, complete_variants, complete_workload
from workloads.registry import MODES, WORKLOADS, Config, WorkloadError, check, preset_config

if TYPE_CHECKING:
    from analyzers.reading.run import Run
    from profiler.capture import Progress


@click.command("capture", short_help="Run a workload's variants under the profiler, side by side.")
@click.argument("workload", shell_complete=complete_workload)
@click.option("--preset", default="tiny", show_default=True, shell_complete=complete_preset, help="Model shapes.")
@click.option("--scale", type=SCALE, default="1", show_default=True, help="Scale the preset, for instance 1/64.")
@click.option(
    "--variants", type=NAMES, shell_complete=complete_variants, help="Which ones, the one to compare with first."
)
@click.option("--all-variants", is_flag=True, help="Every variant of the workload.")
@click.option("--mode", type=click.Choice(MODES), default="backward", show_default=True, help="What a step runs.")
@click.option("--steps", default=5, show_default=True, help="Steps per session.")
@click.option("--rounds", default=3, show_default=True, help="Sessions per variant, taken in turn.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The run to write [default: a dated name].")
@click.option("--ep", type=int, help="Size of the expert-parallel mesh axis; a CPU simulates the devices.")
@click.option("--tokens", "num_tokens", type=int, help="Tokens per step, over all devices.")
@click.option("--layers", "num_layers", type=int, help="MoE layers.")
@click.option("--chunks", "num_chunks", type=int, help="Chunks of the embedding dimension.")
@click.option("--top-k", type=int, help="Experts per token.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), help="Of activations and expert weights.")
@click.option("--seed", type=int, help="Of weights, tokens and routing.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest of the run.")
def command(
    workload: str,
    preset: str,
    scale: Fraction,
    variants: tuple[str, ...] | None,
    all_variants: bool,
    mode: str,
    steps: int,
    rounds: int,
    output: Path | None,
    as_json: bool,
    **overrides: Any,
) -> None:
    """Run the variants of WORKLOAD under the profiler, side by side, and write a run.

    Variants are compiled and warmed up first, then profiled in alternating order, one session per variant and
    round. Options not given keep the value of the preset. `moe-prof workloads` lists what there is.

    \b
    moe-prof capture ring --preset tiny --ep 4 -o RUN
    moe-prof capture permute --variants repeat,gather --steps 10
    moe-prof capture ring --preset deepseek-v3 --scale 1/64 --layers 2 --rounds 5
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    names = _variant_names(workload, variants, all_variants)
    config = preset_config(preset, scale, **given)
    for name in names:
        check(workload, name, config, mode)  # before the seconds that importing jax takes
    for note in prepare_environment(config.num_devices, os.environ):
        click.echo(f"note: {note}", err=True)

    from profiler.capture import CaptureRequest, capture

    def rescale(smaller: Fraction) -> Config:
        return preset_config(preset, smaller, **given)

    request = CaptureRequest(
        workload=workload,
        variants=names,
        config=config,
        mode=mode,
        steps=steps,
        rounds=rounds,
        output=output or Path(f"{workload}-{preset}-{datetime.now():%Y%m%d-%H%M%S}"),
        argv=("moe-prof", *sys.argv[1:]),
        rescale=rescale,
    )
    with _shown_progress() as report:
        run = capture(request, report)
    if as_json:
        click.echo(json.dumps({"path": str(run.path)} | json.loads(run.manifest.to_json()), indent=2))
    else:
        print_summary(run)


def _variant_names(workload: str, variants: tuple[str, ...] | None, all_variants: bool) -> tuple[str, ...]:
    if workload not in WORKLOADS:
        raise WorkloadError(f"unknown workload {workload!r}; choose one of {', '.join(WORKLOADS)}.")
    if all_variants and variants:
        raise click.UsageError("--variants and --all-variants exclude each other.")
    if all_variants:
        return tuple(variant.name for variant in WORKLOADS[workload].variants)
    names = variants or WORKLOADS[workload].default_variants
    return tuple(names)


def _shown_progress() -> AbstractContextManager[Callable[[Progress], None]]:
    from profiler.cli.progress import bar, lines

    return bar() if sys.stderr.isatty() else lines()


def print_summary(run: Run) -> None:
    """Say what was written, what to know about it, and the next command to type."""
    manifest = run.manifest
    device = manifest.device
    where = f"{device.count} × {device.kind}"
    if device.simulated:
        where = f"{device.count} simulated devices on {manifest.machine.cpu_count} CPU cores"
    click.echo(
        f"{run.path}: {manifest.workload} {manifest.mode}, {', '.join(v.name for v in manifest.variants)}; "
        f"{manifest.rounds} × {manifest.steps} steps each on {where}"
    )
    for same in run.one_program():
        click.echo(f"note: {' and '.join(same)} compiled to one program; their times differ by noise alone")
    click.echo(f"next: moe-prof {'diff' if len(manifest.variants) > 1 else 'show'} {run.path}")

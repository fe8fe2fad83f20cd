"""`moe-prof capture`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from profiler.backends import prepare_environment
from profiler.cli.parameters import (
    CpusType,
    RoundsType,
    SecondsType,
    ShareType,
    config_options,
    variant_names,
    variant_options,
)
from profiler.pinning import pinned
from workloads.registry import MODES, Config, check, preset_config

if TYPE_CHECKING:
    from analyzers.reading.run import Run, Stopped
    from profiler.capture import Progress
    from profiler.stopping import Until

_PRECISION, _MAX_SECONDS = 0.02, 600.0


@click.command("capture", short_help="Run a workload's variants under the profiler, side by side.")
@variant_options
@click.option("--mode", type=click.Choice(MODES), default="backward", show_default=True, help="What a step runs.")
@click.option("--steps", default=5, show_default=True, help="Steps per session.")
@click.option(
    "--rounds",
    type=RoundsType(),
    default=10,
    show_default=True,
    help="Sessions per variant, taken in turn; auto: until the saving is known to --precision.",
)
@click.option(
    "--precision",
    type=ShareType(),
    help="With --rounds auto: half-width of the saving's 95 % interval, as a share of the step.  [default: 2%]",
)
@click.option(
    "--max-time", type=SecondsType(), help="With --rounds auto: what warm-ups and sessions may take.  [default: 10m]"
)
@click.option(
    "--pin", type=CpusType(), help="Keep to these CPUs (0-3,6); auto: one hardware thread of each core. Linux only."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The run to write [default: a dated name].")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print the manifest of the run.")
def command(
    workload: str,
    preset: str,
    scale: Fraction,
    variants: tuple[str, ...] | None,
    all_variants: bool,
    mode: str,
    steps: int,
    rounds: int | str,
    precision: float | None,
    max_time: float | None,
    pin: str | tuple[int, ...] | None,
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
    moe-prof capture ring --rounds auto --precision 1% --max-time 20m --pin auto
    """
    wanted = _rounds(rounds, precision, max_time)
    given = {name: value for name, value in overrides.items() if value is not None}
    names = variant_names(workload, variants, all_variants)
    config = preset_config(preset, scale, **given)
    for name in names:
        check(workload, name, config, mode)  # before the seconds that importing jax takes
    for note in prepare_environment(config.num_devices, os.environ):
        click.echo(f"note: {note}", err=True)

    with _pinned(pin) as cpus:  # before jax makes its threads
        from profiler.capture import CaptureRequest, capture

        def rescale(smaller: Fraction) -> Config:
            return preset_config(preset, smaller, **given)

        request = CaptureRequest(
            workload=workload,
            variants=names,
            config=config,
            mode=mode,
            steps=steps,
            rounds=wanted,
            output=output or Path(f"{workload}-{preset}-{datetime.now():%Y%m%d-%H%M%S}"),
            argv=("moe-prof", *sys.argv[1:]),
            rescale=rescale,
            pinned_cpus=cpus,
        )
        with _shown_progress() as report:
            run = capture(request, report)
    if as_json:
        click.echo(json.dumps({"path": str(run.path)} | json.loads(run.manifest.to_json()), indent=2))
    else:
        print_summary(run)


def _rounds(rounds: int | str, precision: float | None, max_time: float | None) -> int | Until:
    if isinstance(rounds, int):
        for name, value in (("--precision", precision), ("--max-time", max_time)):
            if value is not None:
                raise click.UsageError(f"{name} is for --rounds auto; add that, or leave it out.")
        return rounds
    from profiler.stopping import Until

    return Until(precision or _PRECISION, max_time or _MAX_SECONDS)


def _pinned(pin: str | tuple[int, ...] | None) -> AbstractContextManager[tuple[int, ...] | None]:
    return nullcontext() if pin is None else pinned(None if isinstance(pin, str) else pin)


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
    if manifest.stopped is not None:
        click.echo(_precision_line(manifest.stopped, len(manifest.variants)))
    for same in run.one_program():
        click.echo(f"note: {' and '.join(same)} compiled to one program; their times differ by noise alone")
    click.echo(f"next: moe-prof {'diff' if len(manifest.variants) > 1 else 'show'} {run.path}")


def _precision_line(stopped: Stopped, variants: int) -> str:
    what = "the step's time" if variants == 1 else "the saving of a step"
    if stopped.half_width is None:
        return f"{what} has no interval: two rounds or more give one"
    line = f"{what} is known to ±{stopped.half_width:.1%} of a step"
    if stopped.precision is None:
        return line
    if stopped.reason == "precision":
        return f"{line}, as asked for (±{stopped.precision:.1%})"
    return f"{line}, not to ±{stopped.precision:.1%}: --max-time {stopped.max_seconds:.0f}s was up"

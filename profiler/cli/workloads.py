"""`moe-prof workloads`."""

import json
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import click

from profiler.cli.parameters import SCALE
from workloads.registry import PRESETS, WORKLOADS, Config, preset_config


@click.command("workloads")
@click.option("--preset", help="Only this preset.")
@click.option("--scale", type=SCALE, default="1", show_default=True, help="Scale the presets, for instance 1/64.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(preset: str | None, scale: Fraction, as_json: bool) -> None:
    """List workloads, their variants, and presets.

    A variant marked with * is one that `moe-prof capture` takes unless told otherwise.
    """
    names = [preset] if preset else list(PRESETS)
    configs = {name: preset_config(name, scale) for name in names}
    if as_json:
        click.echo(json.dumps(_as_json(configs), indent=2))
        return
    for workload in WORKLOADS.values():
        click.echo(f"{workload.name}: {workload.summary}")
        width = max(len(variant.name) for variant in workload.variants)
        for variant in workload.variants:
            mark = "*" if variant.name in workload.default_variants else " "
            click.echo(f"  {mark} {variant.name:<{width}}  {variant.summary}")
        click.echo()
    click.echo("presets" + (f" at scale {scale}" if scale != 1 else ""))
    for name, config in configs.items():
        click.echo(f"    {name}: {PRESETS[name].summary}")
        click.echo(f"        {_sizes(config)}")


def _sizes(config: Config) -> str:
    return (
        f"{config.num_tokens} tokens × {config.hidden_dim} {config.dtype}, {config.num_experts} experts of "
        f"{config.expert_dim}, top_k {config.top_k}, {config.num_layers} layers, {config.num_chunks} chunks, "
        f"ep {config.ep}"
    )


def _as_json(configs: dict[str, Config]) -> dict[str, Any]:
    return {
        "workloads": [
            {
                "name": workload.name,
                "summary": workload.summary,
                "default_variants": workload.default_variants,
                "variants": [asdict(variant) for variant in workload.variants],
            }
            for workload in WORKLOADS.values()
        ],
        "presets": [
            {
                "name": name,
                "summary": PRESETS[name].summary,
                "source": PRESETS[name].source,
                "config": asdict(config),
            }
            for name, config in configs.items()
        ],
    }

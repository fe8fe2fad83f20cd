"""`moe-prof workloads`."""

from __future__ import annotations

import json
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from profiler.cli.parameters import SCALE
from workloads.registry import PRESETS, WORKLOADS, Config, preset_config
from workloads.sizes import describe

if TYPE_CHECKING:
    from analyzers.showing.tables import Document


@click.command("workloads")
@click.option("--preset", help="Only this preset.")
@click.option("--scale", type=SCALE, default="1", show_default=True, help="Scale the presets, for instance 1/64.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(preset: str | None, scale: Fraction, as_json: bool) -> None:
    """List workloads, their variants, and presets; of one preset also shapes, bytes and FLOPs.

    A variant marked with * is one that `moe-prof capture` takes unless told otherwise.

    \b
    moe-prof workloads
    moe-prof workloads --preset deepseek-v3 --scale 1/64
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
    if preset:
        from analyzers.showing.text import print_document

        click.echo()
        print_document(_sizes_document(preset, configs[preset]), color=click.get_current_context().color)


def _sizes_document(preset: str, config: Config) -> Document:
    """What one step of each workload is made of; backward mode, which runs forward and backward."""
    from analyzers.showing.format import size
    from analyzers.showing.tables import Column, Document, Table, cells

    rows = []
    for name in WORKLOADS:
        sizes = describe(name, config, "backward")
        experts, hidden, inner = sizes.expert_weight_shapes[0]
        rows.append(
            cells(
                name,
                f"[{sizes.dispatch_input_shape[0]}, {sizes.dispatch_input_shape[1]}]",
                size(sizes.dispatch_input_bytes),
                size(sizes.top_k_buffer_bytes),
                f"{sizes.buffer_rows:,}",
                f"3 × [{experts}, {hidden}, {inner}]",
                f"{_metric(sizes.parameters)}, {size(sizes.parameter_bytes)}",
                _metric(sizes.flops),
            )
        )
    source = PRESETS[preset].source
    return Document(
        f"{preset}: what a step of mode backward is made of",
        (
            Table(
                "Dispatch input, top_k buffer and row buffer of one layer on one device; the rest over all",
                (
                    Column("workload", numeric=False),
                    Column("dispatch input"),
                    Column("its bytes"),
                    Column("× top_k"),
                    Column("buffer rows"),
                    Column("expert weights per layer"),
                    Column("parameters"),
                    Column("FLOPs per step"),
                ),
                tuple(rows),
            ),
        ),
        (f"Shapes from {source}.",) if source else (),
    )


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
                "sizes": {workload: asdict(describe(workload, config, "backward")) for workload in WORKLOADS},
            }
            for name, config in configs.items()
        ],
    }


def _metric(number: int) -> str:
    """Return a number with four digits and the prefix of its magnitude: 671.2 G."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.4g} {prefix}"
    return str(number)

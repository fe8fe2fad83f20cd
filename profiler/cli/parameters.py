"""Parameter types and completions that several commands share."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

import click
from click.shell_completion import CompletionItem

from profiler.pinning import parse_cpu_list
from workloads.registry import PRESETS, WORKLOADS, WorkloadError

_Command = TypeVar("_Command", bound=Callable[..., Any])


class ScaleType(click.ParamType):  # type: ignore[type-arg]
    """A fraction such as `1/64` or `0.25`; whether it is in range is for the presets to say."""

    name = "fraction"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Parse the text; fails with a usage error that shows the form."""
        try:
            return Fraction(str(value))
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is not a fraction; write for instance 1/64.", param, ctx)


class NameList(click.ParamType):  # type: ignore[type-arg]
    """Names separated by commas."""

    name = "a,b"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split at commas; fails with a usage error if a name is empty or comes twice."""
        names = tuple(name.strip() for name in str(value).split(","))
        if "" in names:
            self.fail(f"{value!r} has an empty name; write names separated by commas.", param, ctx)
        for name in names:
            if names.count(name) > 1:
                self.fail(f"{value!r} names {name!r} more than once.", param, ctx)
        return names


class RoundsType(click.ParamType):  # type: ignore[type-arg]
    """A number, or `auto`."""

    name = "integer|auto"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Parse the text; fails with a usage error."""
        try:
            return "auto" if value == "auto" else int(str(value))
        except ValueError:
            self.fail(f"{value!r} is neither a number nor 'auto'.", param, ctx)


class ShareType(click.ParamType):  # type: ignore[type-arg]
    """A positive share such as `2%` or `0.02`."""

    name = "percent"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the text; fails with a usage error that shows the form."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = 0.0
        if not 0 < share < math.inf:
            self.fail(f"{value!r} is no share above zero; write for instance 2%.", param, ctx)
        return share


class SecondsType(click.ParamType):  # type: ignore[type-arg]
    """A duration such as `90s`, `10m` or `1h`; a bare number is seconds."""

    name = "duration"
    _UNITS: ClassVar = {"s": 1, "m": 60, "h": 3600}

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the text; fails with a usage error that shows the form."""
        text = str(value).strip()
        unit = self._UNITS.get(text[-1:])
        try:
            seconds = float(text[:-1] if unit else text) * (unit or 1)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no duration above zero; write for instance 90s or 10m.", param, ctx)
        return seconds


class CpusType(click.ParamType):  # type: ignore[type-arg]
    """`auto`, or a list of CPUs such as `0-3,6`."""

    name = "cpus"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | tuple[int, ...]:
        """Parse the text; fails with a usage error that shows the form."""
        if value == "auto" or isinstance(value, tuple):
            return value
        try:
            return parse_cpu_list(str(value))
        except ValueError:
            self.fail(f"{value!r} is no list of CPUs; write for instance 0-3,6 or auto.", param, ctx)


SCALE = ScaleType()
NAMES = NameList()


def complete_workload(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Workload names for the shell."""
    return [
        CompletionItem(name, help=workload.summary)
        for name, workload in WORKLOADS.items()
        if name.startswith(incomplete)
    ]


def complete_preset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Preset names for the shell."""
    return [
        CompletionItem(name, help=preset.summary) for name, preset in PRESETS.items() if name.startswith(incomplete)
    ]


def complete_variants(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Variant names for the shell, after the last comma.

    Those of every workload: click forgets the arguments before an option whose value is still being typed.
    """
    before, comma, last = incomplete.rpartition(",")
    return [
        CompletionItem(before + comma + variant.name, help=f"{workload.name}: {variant.summary}")
        for workload in WORKLOADS.values()
        for variant in workload.variants
        if variant.name.startswith(last)
    ]


def variant_options(command: _Command, *, workload_required: bool = True) -> _Command:
    """Which variants of which workload, at which size: WORKLOAD, --preset, --scale, --variants, --all-variants."""
    return _decorated(
        command,
        click.argument("workload", required=workload_required, shell_complete=complete_workload),
        click.option(
            "--preset", default="tiny", show_default=True, shell_complete=complete_preset, help="Model shapes."
        ),
        click.option(
            "--scale", type=SCALE, default="1", show_default=True, help="Scale the preset, for instance 1/64."
        ),
        click.option(
            "--variants",
            type=NAMES,
            shell_complete=complete_variants,
            help="Which ones, the one to compare with first.",
        ),
        click.option("--all-variants", is_flag=True, help="Every variant of the workload."),
    )


def config_options(command: _Command) -> _Command:
    """Fields of the configuration that override the preset; each is None where it was not given."""
    return _decorated(
        command,
        click.option("--ep", type=int, help="Size of the expert-parallel mesh axis; a CPU simulates the devices."),
        click.option("--tokens", "num_tokens", type=int, help="Tokens per step, over all devices."),
        click.option("--layers", "num_layers", type=int, help="MoE layers."),
        click.option("--chunks", "num_chunks", type=int, help="Chunks of the embedding dimension."),
        click.option("--top-k", type=int, help="Experts per token."),
        click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), help="Of activations and expert weights."),
        click.option("--seed", type=int, help="Of weights, tokens and routing."),
        click.option("--fsdp", type=int, help="Size of the mesh axis that shards weights and tokens."),
        click.option(
            "--buffer-factor", type=float, help="Local buffer as a multiple of the even share; rows beyond drop."
        ),
        click.option("--scan-layers/--unroll-layers", default=None, help="Layers in one loop, or one after the other."),
        click.option("--scan-chunks/--unroll-chunks", default=None, help="Chunks in one loop, or one after the other."),
        click.option("--remat/--no-remat", default=None, help="Layers under jax.checkpoint, or not."),
        click.option(
            "--remat-policy", type=click.Choice(["nothing", "dots"]), help="What remat saves besides routing."
        ),
        click.option(
            "--kernels", type=click.Choice(["jax", "pallas", "maxtext"]), help="What gathers and reduces rows."
        ),
    )


def variant_names(workload: str, variants: tuple[str, ...] | None, all_variants: bool) -> tuple[str, ...]:
    """The variants that `variant_options` ask for; the workload's default ones where they say nothing."""
    if workload not in WORKLOADS:
        raise WorkloadError(f"unknown workload {workload!r}; choose one of {', '.join(WORKLOADS)}.")
    if all_variants and variants:
        raise click.UsageError("--variants and --all-variants exclude each other.")
    if all_variants:
        return tuple(variant.name for variant in WORKLOADS[workload].variants)
    return variants or WORKLOADS[workload].default_variants


def _decorated(command: _Command, *decorators: Callable[[_Command], _Command]) -> _Command:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command

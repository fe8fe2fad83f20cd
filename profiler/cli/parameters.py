"""Parameter types and completions that several commands share."""

from fractions import Fraction

import click
from click.shell_completion import CompletionItem

from workloads.registry import PRESETS, WORKLOADS


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

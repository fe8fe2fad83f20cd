"""`moe-prof version`."""

import json

import click

from profiler.versions import installed_versions, trace_reader


@click.command("version")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """Versions of everything a capture depends on, and which trace reader is in use."""
    rows: dict[str, str | None] = installed_versions() | {"trace reader": trace_reader()}
    if as_json:
        click.echo(json.dumps({name.replace(" ", "_"): version for name, version in rows.items()}, indent=2))
        return
    width = max(len(name) for name in rows)
    for name, version in rows.items():
        click.echo(f"{name:<{width}}  {version or 'not installed'}")

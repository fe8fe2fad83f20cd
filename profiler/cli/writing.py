"""Files that commands write beside what they print: whole, and never in place of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from analyzers.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

_F = TypeVar("_F", bound=Callable[..., Any])


def frame_options(function: _F) -> _F:
    """Add --csv and --parquet, whose files are refused before any work where they cannot be written."""
    for option in (
        click.option(
            "--parquet",
            type=click.Path(path_type=Path),
            metavar="FILE",
            callback=_checked,
            help="Write them to a new Parquet file (needs the extra `parquet`).",
        ),
        click.option(
            "--csv",
            type=click.Path(path_type=Path),
            metavar="FILE",
            callback=_checked,
            help="Write the rows to a new CSV file, too; column names carry the unit.",
        ),
    ):
        function = option(function)
    return function


def write_frames(csv: Path | None, parquet: Path | None, frame: Callable[[], pd.DataFrame]) -> None:
    """Write the rows that `frame` makes to the files that are asked for. Raises UserError where that fails."""
    if csv is None and parquet is None:
        return
    from analyzers.showing.writing import csv_bytes, parquet_bytes

    rows = frame()
    for path, encode in ((csv, csv_bytes), (parquet, parquet_bytes)):
        if path is not None:
            write_output(path, encode(rows))
            click.echo(f"wrote {path} ({len(rows):,} rows)", err=True)


def check_output(output: Path, force: bool | None = None) -> None:
    """Refuse, before any work, a file that cannot be written or must not be replaced. Raises UserError.

    `force` is None for a command that never replaces a file.
    """
    if output.is_dir():
        raise UserError(f"{output} is a folder; name the file to write, such as {output / 'report.html'}.")
    if output.exists() and not force:
        way = "name another file" if force is None else "add --force to replace it, or name another file"
        raise UserError(f"{output} exists; {way}.")
    if not output.parent.is_dir():
        raise UserError(f"{output.parent} is no folder; make it first, or write elsewhere.")


def write_output(output: Path, data: bytes) -> None:
    """Write a file whole. Raises UserError where that fails."""
    from analyzers.files import write_whole

    try:
        write_whole(output, data)
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror or error}.") from error


def _checked(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        check_output(path)
        if parameter.name == "parquet":
            from analyzers.showing.writing import check_parquet

            check_parquet()
    return path

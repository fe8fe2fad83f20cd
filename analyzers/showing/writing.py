"""Reports and frames as files: whole, and never in place of another."""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analyzers.errors import UserError
from analyzers.files import write_whole

if TYPE_CHECKING:
    import pandas as pd

    from analyzers.comparing.diff import Diff


def report(diffs: Sequence[Diff], path: str | os.PathLike[str], *, top: int = 10, overwrite: bool = False) -> Path:
    """Write comparisons with the same first side as a page (.html) or as Markdown (.md); return the path.

    `top` limits the ops and buffers that are listed. Raises UserError where `path` is neither, or exists and
    `overwrite` is False; OSError where it cannot be written.
    """
    file = Path(path)
    if file.suffix.lower() in (".html", ".htm"):
        from analyzers.showing.html import report_html as render
    elif file.suffix.lower() == ".md":
        from analyzers.showing.markdown import report_markdown as render
    else:
        raise UserError(f"{file} ends in neither .html nor .md; name the report so that its kind can be told.")
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists; give overwrite=True to replace it, or name another file.")
    write_whole(file, render(diffs, top).encode())
    return file


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """Return a frame as CSV: a line of column names, then a line for each row; nothing where a value is missing."""
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text.encode()


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """Return a frame as Parquet. Raises UserError without pyarrow."""
    check_parquet()
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, engine="pyarrow")
    return buffer.getvalue()


def check_parquet() -> None:
    """Raise UserError where pyarrow, which writes Parquet, is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet files need pyarrow, which is not installed: pip install 'moe-prof[parquet]'.")

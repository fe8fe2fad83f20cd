"""Reads one trace file into columns: the one door to the readers.

The walk over events is done by the C extension where it could be built, else by protobuf; both fill the same
columns. What is small (names, metadata, HLO protos) goes through protobuf either way.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from typing import Literal

from google.protobuf.message import DecodeError

from analyzers.errors import UserError
from analyzers.reading import structure
from analyzers.reading.chrome_reader import read_chrome
from analyzers.reading.columns import Events, Plane, PlaneKind, XSpaceColumns
from analyzers.reading.layout import plane_kind
from analyzers.reading.protos import xplane_pb2
from analyzers.reading.python_reader import PythonWalker
from analyzers.reading.sources import Source, source
from analyzers.reading.structure import Damage, PlaneSpan, Structure
from analyzers.reading.tables import event_metadata, hlo_protos, stat_names, stat_values, text
from analyzers.reading.walk import PlaneContext, Walker

Reader = Literal["auto", "c", "python"]


@dataclass(frozen=True, slots=True)
class _Tables:
    """The planes of a file without their events."""

    planes: tuple[Plane, ...]
    contexts: tuple[PlaneContext, ...]
    hlo_protos: dict[str, bytes]
    damage: Damage | None


def read_xspace(
    path: str | os.PathLike[str] | Source, *, partial: bool = False, reader: Reader = "auto"
) -> XSpaceColumns:
    """Read one trace file: `.xplane.pb`, gzip or zstd of it, or Chrome's `.trace.json.gz`.

    Args:
        path: A file name or URL, or a source from `find_sources`.
        partial: Read what is whole of a file that was cut short or damaged, up to `cut_at_byte`.
        reader: `c`, `python`, or `auto` for the former where it is there. Chrome JSON has a reader of its own.

    Raises:
        UserError: where the file is missing, empty, not a trace, or (without `partial`) not whole.

    """
    file = path if isinstance(path, Source) else source(os.fspath(path))
    if file.format == "chrome":
        return read_chrome(file, partial=partial)
    data = file.read(partial=partial)
    walker, splitter, active = _chosen(reader, data)
    found = structure.scan(data, splitter)
    _refuse_unreadable(file.path, len(data), found, partial)
    tables = _tables(data, found.planes)
    damage = tables.damage or found.damage
    for span, context in zip(found.planes, tables.contexts, strict=False):
        broken = _walk_plane(walker, span, context, damage)
        if broken is not None:
            damage = broken
            break
    if damage is not None and not partial:
        raise _cut_error(file.path, len(data), found, damage)
    walked = walker.finish()
    top = _top_level(data, found)
    return XSpaceColumns(
        path=file.path,
        hostname=text(top.hostnames[0]) if top.hostnames else file.hostname,
        planes=tuple(
            Plane(plane.name, plane.kind, plane.stats, plane.metadata, walked.origins_ns.get(index, 0))
            for index, plane in enumerate(tables.planes)
        ),
        lines=walked.lines,
        events=Events(
            line=walked.line,
            metadata=walked.metadata,
            start_ps=walked.start_ps,
            duration_ps=walked.duration_ps,
            event_start_ps=walked.event_start_ps,
            event_duration_ps=walked.event_duration_ps,
            occurrences=walked.occurrences,
            ints=walked.ints,
            strings=walked.strings,
        ),
        strings=walked.string_table,
        hlo_protos=tables.hlo_protos,
        errors=tuple(text(message) for message in (*top.errors, *top.warnings)),
        cut_at_byte=damage.offset if damage is not None else None,
        capped_at=None,
        reader=active,
    )


def _walk_plane(walker: Walker, span: PlaneSpan, context: PlaneContext, damage: Damage | None) -> Damage | None:
    """Read the lines of a plane that lie before `damage`; return the first damage inside one of them."""
    if context.kind in (PlaneKind.METADATA, PlaneKind.OTHER):
        return None
    for line in span.lines:
        if damage is not None and line[0] >= damage.offset:
            return None
        broken = walker.line(context, line)
        if broken is not None:
            return broken
    return None


def _tables(data: memoryview, spans: tuple[PlaneSpan, ...]) -> _Tables:
    """Parse what the planes hold beside lines, up to the first record that makes no sense."""
    planes: list[Plane] = []
    contexts: list[PlaneContext] = []
    protos: dict[str, bytes] = {}
    damage = None
    for index, span in enumerate(spans):
        message, damage = structure.parse_plane(data, span.rest)
        name = text(message.name)
        kind = plane_kind(name)
        names = stat_names(message)
        metadata = event_metadata(message, kind, names)
        if kind is PlaneKind.METADATA:
            protos |= hlo_protos(message, names)
        planes.append(Plane(name, kind, stat_values(message.stats, names), metadata, origin_ns=0))
        rows = {entry.id: row for row, entry in enumerate(metadata)}
        contexts.append(PlaneContext(index, kind, names, rows))
        if damage is not None:
            break
    return _Tables(tuple(planes), tuple(contexts), protos, damage)


def _top_level(data: memoryview, found: Structure) -> xplane_pb2.XSpace:
    """Parse the records of the file that are not planes."""
    try:
        return xplane_pb2.XSpace.FromString(b"".join(data[first:last] for first, last in found.rest))
    except DecodeError:
        return xplane_pb2.XSpace()


def _refuse_unreadable(path: str, size: int, found: Structure, partial: bool) -> None:
    """Raise for a file that is no trace, and for one that is not whole unless that is asked for."""
    damage = found.damage
    if not any(plane.lines or plane.rest for plane in found.planes):
        where = "it holds no planes" if damage is None else f"byte {damage.offset:,} begins no record of one"
        raise UserError(
            f"{path} ({size:,} bytes) is not a profile: {where}. Name an .xplane.pb or .trace.json.gz file "
            "that the profiler wrote."
        )
    if damage is not None and not partial:
        raise _cut_error(path, size, found, damage)


def _cut_error(path: str, size: int, found: Structure, damage: Damage) -> UserError:
    """Say where a file stops making sense and what could still be read of it."""
    lines = sum(line[0] < damage.offset for plane in found.planes for line in plane.lines)
    planes = sum(plane.start < damage.offset for plane in found.planes)
    what = f"is cut short: it ends at byte {size:,}" if damage.truncated else "is damaged"
    return UserError(
        f"{path} {what}, and the record that begins at byte {damage.offset:,} cannot be read "
        f"({damage.reason}). Before it are {lines} whole lines in {planes} planes: --partial reads those; "
        "copying or capturing the trace again gives all."
    )


def active_reader() -> Literal["c", "python"]:
    """Return which reader `auto` means here: `c` where the extension was built, else `python`."""
    try:
        import analyzers.reading._walker  # noqa: F401
    except ImportError:
        return "python"
    return "c"


def _chosen(reader: Reader, data: memoryview) -> tuple[Walker, structure.PlaneSplitter, Literal["c", "python"]]:
    """Return the walker that `reader` names, with what goes with it."""
    if reader == "auto":
        reader = active_reader()
        if reader == "python":
            _say_once_that_it_is_slow()
    if reader == "python":
        return PythonWalker(data), structure.split_plane, "python"
    try:
        from analyzers.reading import c_reader
    except ImportError:
        raise UserError(
            "The C extension of moe-prof is not built here: install a C compiler and moe-prof again, or use "
            "the Python reader."
        ) from None
    return c_reader.CWalker(data), c_reader.split_plane, "c"


@cache
def _say_once_that_it_is_slow() -> None:
    logging.getLogger(__name__).warning(
        "moe-prof: the C extension was not built here, so traces are read by a slower reader on protobuf."
    )

"""Where the planes and lines of a trace file lie, found by their lengths without parsing what is in them.

Both readers start from this. It also decides whether a file is whole: everything before
`Structure.damage.offset` can be read, nothing after it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from analyzers.reading import wire
from analyzers.reading.protos import xplane_pb2
from analyzers.reading.wire import BadRecordError, Buffer

SPACE_PLANES = 1
PLANE_LINES = 3
LINE_NAME, LINE_EVENTS, LINE_DISPLAY_NAME = 2, 4, 11

LineSpan = tuple[int, int, int]
"""Offset of a line's record, and the first byte of its message and the byte after it."""
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Damage:
    """The first record of a file that cannot be read whole."""

    offset: int
    """Where that record starts: all before it was read."""
    reason: str
    truncated: bool
    """Whether the record runs past the end of the file (it was cut short), rather than making no sense."""


@dataclass(frozen=True, slots=True)
class PlaneSpan:
    """One plane: its lines, and the byte ranges of everything else in it (names, metadata, stats)."""

    start: int
    lines: tuple[LineSpan, ...]
    rest: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """The planes of a file, the byte ranges of its other top-level records, and what is wrong with it."""

    planes: tuple[PlaneSpan, ...]
    rest: tuple[Range, ...]
    damage: Damage | None


PlaneSplitter = Callable[[Buffer, int, int], tuple[list[LineSpan], list[Range], tuple[int, str, bool] | None]]
"""Splits the plane message in data[first:last] into lines, other byte ranges, and the first bad record."""


def split_plane(
    data: Buffer, first: int, last: int
) -> tuple[list[LineSpan], list[Range], tuple[int, str, bool] | None]:
    """Split the plane in `data[first:last]` into its lines and the byte ranges between them.

    The third value names the first record that cannot be read: its offset, the reason, and whether it runs
    past `last`; None for a whole plane.
    """
    lines: list[LineSpan] = []
    rest: list[Range] = []
    rest_from = end = first
    bad = None
    try:
        for record in wire.records(data, first, last):
            if record.field == PLANE_LINES and record.wire_type == wire.BYTES:
                if record.start > rest_from:
                    rest.append((rest_from, record.start))
                lines.append((record.start, record.first, record.last))
                rest_from = record.last
            end = record.last
    except BadRecordError as error:
        bad = (error.offset, error.reason, error.past_end)
    if end > rest_from:
        rest.append((rest_from, end))
    return lines, rest, bad


def line_name(data: Buffer, first: int, last: int) -> bytes:
    """Return the name of the line in `data[first:last]`: the one before its first event, else any.

    Where there is none at all, its display name. A line that is not read is passed over after this.

    Raises:
        BadRecordError: where a record up to there is malformed.

    """
    name = display_name = b""
    for record in wire.records(data, first, last):
        if record.wire_type != wire.BYTES:
            continue
        if record.field == LINE_NAME:
            name = bytes(data[record.first : record.last])
        elif record.field == LINE_DISPLAY_NAME:
            display_name = bytes(data[record.first : record.last])
        elif record.field == LINE_EVENTS and name:
            break
    return name or display_name


def scan(data: Buffer, splitter: PlaneSplitter = split_plane) -> Structure:
    """Find the planes and lines of the XSpace in `data`, up to the first record that cannot be read."""
    planes: list[PlaneSpan] = []
    rest: list[Range] = []
    damage: Damage | None = None

    def add_plane(start: int, first: int, last: int) -> tuple[int, str, bool] | None:
        lines, others, bad = splitter(data, first, last)
        planes.append(PlaneSpan(start, tuple(lines), tuple(others)))
        return bad

    size = len(data)
    try:
        for record in wire.records(data, 0, size):
            if record.field == SPACE_PLANES and record.wire_type == wire.BYTES:
                bad = add_plane(record.start, record.first, record.last)
                if bad is not None:
                    damage = Damage(bad[0], bad[1], False)
                    break
            else:
                rest.append((record.start, record.last))
    except BadRecordError as error:
        damage = Damage(error.offset, error.reason, error.past_end)
        inner = _inside_cut_plane(data, error, add_plane)
        if inner is not None:
            damage = inner
    return Structure(tuple(planes), tuple(rest), damage)


def _inside_cut_plane(
    data: Buffer,
    error: BadRecordError,
    add_plane: Callable[[int, int, int], tuple[int, str, bool] | None],
) -> Damage | None:
    """Read what is there of a plane that runs past the end of the file; None where it is not a plane."""
    try:
        field, first = wire.length_prefix(data, error.offset)
    except BadRecordError:
        return None
    if field != SPACE_PLANES or not error.past_end:
        return None
    bad = add_plane(error.offset, first, len(data))
    if bad is None:  # Cut exactly between two records of the plane: none of them is damaged.
        return Damage(len(data), "the plane should go on", True)
    return Damage(*bad)


def parse_plane(data: Buffer, rest: tuple[Range, ...]) -> tuple[xplane_pb2.XPlane, Damage | None]:
    """Parse what a plane holds beside its lines; where that fails, all before its first bad record.

    The ranges joined are a plane message of their own: records of a message may be left out.
    """
    try:
        return xplane_pb2.XPlane.FromString(b"".join(data[first:last] for first, last in rest)), None
    except DecodeError:
        pass
    plane = xplane_pb2.XPlane()
    for first, last in rest:
        for record in wire.records(data, first, last):
            try:
                plane.MergeFrom(xplane_pb2.XPlane.FromString(bytes(data[record.start : record.last])))
            except DecodeError:
                return plane, Damage(record.start, "a metadata or stat record in it makes no sense", False)
    return plane, None

"""The reader on protobuf: slow, simple, and what the fast one is tested against.

It parses one line at a time, and a long line in pieces, so that neither protobuf's limit of 2 GiB nor memory
stands in the way of a large file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.message import DecodeError

from analyzers.reading import wire
from analyzers.reading.columns import (
    ABSENT,
    INT_STATS,
    NO_STRING,
    STRING_STATS,
    Line,
    PlaneKind,
)
from analyzers.reading.layout import line_kind
from analyzers.reading.protos import xplane_pb2
from analyzers.reading.structure import Damage, LineSpan, line_name
from analyzers.reading.tables import signed, stat_value, text
from analyzers.reading.walk import PlaneContext, WalkedEvents

_PIECE_BYTES = 64 << 20
_INT_STATS = frozenset(INT_STATS)
_STRING_STATS = frozenset(STRING_STATS)
_OFFSET, _DURATION = "device_offset_ps", "device_duration_ps"
_DEVICE = frozenset({_OFFSET, _DURATION})


@dataclass(slots=True)
class _Rows:
    """The events of a line, kept ones only, as Python values."""

    metadata: list[int] = field(default_factory=list)
    offset: list[int | None] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    occurrences: list[int] = field(default_factory=list)
    stats: list[dict[str, int | str]] = field(default_factory=list)


class PythonWalker:
    """Collects the events of a file line by line; `finish` makes the columns."""

    def __init__(self, data: wire.Buffer) -> None:
        self._data = data
        self._lines: list[Line] = []
        self._timestamps: list[int] = []
        self._rows: list[_Rows] = []
        self._count = 0

    def line(self, plane: PlaneContext, span: LineSpan) -> Damage | None:
        """Read one line; a line of a kind that is not read, or without kept events, leaves no trace."""
        rows = _Rows()
        header = xplane_pb2.XLine()
        try:
            name = text(line_name(self._data, span[1], span[2]))
            kind = line_kind(plane.kind, name)
            if kind is None:
                return None
            for piece in self._pieces(span):
                _add_events(rows, piece, plane)
                piece.ClearField("events")
                header.MergeFrom(piece)
        except (DecodeError, wire.BadRecordError):
            return Damage(span[0], "an event or name in it makes no sense", False)
        if not rows.metadata:
            return None
        device_clock = all(stats.keys() >= _DEVICE for stats in rows.stats)
        first, self._count = self._count, self._count + len(rows.metadata)
        self._lines.append(Line(plane.index, name, kind, first, self._count, device_clock))
        self._timestamps.append(header.timestamp_ns)
        self._rows.append(rows)
        return None

    def _pieces(self, span: LineSpan) -> Iterator[xplane_pb2.XLine]:
        """Yield a line as messages that together make it up: a message may be cut between its records."""
        _, first, last = span
        if last - first <= _PIECE_BYTES:
            yield xplane_pb2.XLine.FromString(bytes(self._data[first:last]))
            return
        start = first
        for record in wire.records(self._data, first, last):
            if record.last - start >= _PIECE_BYTES:
                yield xplane_pb2.XLine.FromString(bytes(self._data[start : record.last]))
                start = record.last
        yield xplane_pb2.XLine.FromString(bytes(self._data[start:last]))

    def finish(self) -> WalkedEvents:
        """Return the columns of all lines read."""
        count = self._count
        stats = [row for rows in self._rows for row in rows.stats]
        event_start = np.empty(count, np.int64)
        event_duration = np.empty(count, np.int64)
        start = np.empty(count, np.int64)
        duration = np.empty(count, np.int64)
        origins: dict[int, int] = {}
        for line, timestamp in zip(self._lines, self._timestamps, strict=True):
            origins[line.plane] = min(timestamp, origins.get(line.plane, timestamp))
        for line, timestamp, rows in zip(self._lines, self._timestamps, self._rows, strict=True):
            here = slice(line.first, line.last)
            base = (timestamp - origins[line.plane]) * 1000
            event_start[here] = [ABSENT if o is None else signed(base + o) for o in rows.offset]
            event_duration[here] = rows.duration
            if line.device_clock:
                start[here] = [
                    ABSENT if o is None else s[_OFFSET] for o, s in zip(rows.offset, rows.stats, strict=True)
                ]
                duration[here] = [s[_DURATION] for s in rows.stats]
            else:
                start[here] = event_start[here]
                duration[here] = event_duration[here]
        used = sorted({value for row in stats for value in row.values() if isinstance(value, str)})
        index = {value: i for i, value in enumerate(used)}
        return WalkedEvents(
            lines=tuple(self._lines),
            origins_ns=origins,
            line=np.repeat(
                np.arange(len(self._lines), dtype=np.int32),
                np.array([line.last - line.first for line in self._lines], np.int64),
            ),
            metadata=_column(self._rows, "metadata"),
            start_ps=start,
            duration_ps=duration,
            event_start_ps=event_start,
            event_duration_ps=event_duration,
            occurrences=_column(self._rows, "occurrences"),
            ints={
                name: np.array([row.get(name, ABSENT) for row in stats], np.int64)
                for name in INT_STATS
                if any(name in row for row in stats)
            },
            strings={
                name: np.array([index[str(row[name])] if name in row else NO_STRING for row in stats], np.int32)
                for name in STRING_STATS
                if any(name in row for row in stats)
            },
            string_table=tuple(used),
        )


def _column(rows: list[_Rows], name: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([value for part in rows for value in getattr(part, name)], np.int32)


def _add_events(rows: _Rows, line: xplane_pb2.XLine, plane: PlaneContext) -> None:
    """Append the events of `line` that are kept; on a host plane only ops and steps are."""
    for event in line.events:
        stats = _kept_stats(event, plane.names)
        if plane.kind is PlaneKind.HOST and "hlo_op" not in stats and "step_num" not in stats:
            continue
        aggregate = event.WhichOneof("data") == "num_occurrences"
        rows.metadata.append(plane.metadata_rows.get(event.metadata_id, -1))
        rows.offset.append(None if aggregate else event.offset_ps)
        rows.duration.append(event.duration_ps)
        rows.occurrences.append(_clamped(event.num_occurrences) if aggregate else 1)
        rows.stats.append(stats)


def _clamped(occurrences: int) -> int:
    """Return a count that fits its column; a profile cannot hold as many or fewer than none."""
    return min(max(occurrences, 0), 2**31 - 1)


def _kept_stats(event: xplane_pb2.XEvent, names: Mapping[int, str]) -> dict[str, int | str]:
    """Return the stats of an event that have a column; of several with one name the last usable one."""
    kept: dict[str, int | str] = {}
    for stat in event.stats:
        name = names.get(stat.metadata_id)
        if name is None:
            continue
        if name in _INT_STATS or name in _DEVICE:
            number = _integer(stat)
            if number is not None and number != ABSENT:
                kept[name] = number
        elif name in _STRING_STATS:
            value = stat_value(stat, names)
            if isinstance(value, bytes):
                value = text(value)
            if isinstance(value, str):
                kept[name] = value
    return kept


def _integer(stat: xplane_pb2.XStat) -> int | None:
    """Return a numeric stat as int64, a fraction dropped; None for anything that is no such number."""
    match stat.WhichOneof("value"):
        case "int64_value":
            return stat.int64_value
        case "uint64_value":
            return signed(stat.uint64_value)
        case "double_value":
            value = stat.double_value
            if math.isfinite(value) and -(2.0**63) <= value < 2.0**63:
                return int(value)
    return None

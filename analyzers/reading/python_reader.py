"""The reader on protobuf: slow, simple, and what the fast one is tested against.

It parses one line at a time, and a long line in pieces, so that neither protobuf's limit of 2 GiB nor memory
stands in the way of a large file.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

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
_NUMBERS = _INT_STATS | {_OFFSET, _DURATION}


class PythonWalker:
    """Collects the events of a file line by line; `finish` makes the columns."""

    def __init__(self, data: wire.Buffer) -> None:
        self._data = data
        self._lines: list[Line] = []
        self._timestamps: list[int] = []
        self._metadata = array("i")
        self._occurrences = array("i")
        self._event_start, self._event_duration = array("q"), array("q")
        self._start, self._duration = array("q"), array("q")
        self._stats: dict[str, array[int]] = {}
        """Columns by stat, strings as numbers in `_strings`; made when the first event has the stat."""
        self._strings: dict[str, int] = {}

    def line(self, plane: PlaneContext, span: LineSpan) -> Damage | None:
        """Read one line; a line of a kind that is not read, or without kept events, leaves no trace."""
        first = len(self._metadata)
        header = xplane_pb2.XLine()
        device_clock = True
        try:
            name = text(line_name(self._data, span[1], span[2]))
            kind = line_kind(plane.kind, name)
            if kind is None:
                return None
            for piece in self._pieces(span):
                device_clock &= self._add_events(piece, plane)
                piece.ClearField("events")
                header.MergeFrom(piece)
        except (DecodeError, wire.BadRecordError):
            self._drop(first)
            return Damage(span[0], "an event or name in it makes no sense", False)
        last = len(self._metadata)
        if first == last:
            return None
        if not device_clock:
            self._start[first:], self._duration[first:] = self._event_start[first:], self._event_duration[first:]
        self._lines.append(Line(plane.index, name, kind, first, last, device_clock))
        self._timestamps.append(header.timestamp_ns)
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

    def _add_events(self, line: xplane_pb2.XLine, plane: PlaneContext) -> bool:
        """Append the events of `line` that are kept; tell whether all of them have the device clock."""
        on_host = plane.kind is PlaneKind.HOST
        device_clock = True
        for event in line.events:
            stats = _kept_stats(event, plane.names)
            if on_host and "hlo_op" not in stats and "step_num" not in stats:
                continue
            aggregate = event.WhichOneof("data") == "num_occurrences"
            offset, duration = ABSENT if aggregate else event.offset_ps, event.duration_ps
            device_offset, device_duration = stats.pop(_OFFSET, None), stats.pop(_DURATION, None)
            if isinstance(device_offset, int) and isinstance(device_duration, int):
                self._start.append(ABSENT if aggregate else device_offset)
                self._duration.append(device_duration)
            else:
                device_clock = False
                self._start.append(offset)
                self._duration.append(duration)
            self._event_start.append(offset)
            self._event_duration.append(duration)
            self._metadata.append(plane.metadata_rows.get(event.metadata_id, -1))
            self._occurrences.append(_clamped(event.num_occurrences) if aggregate else 1)
            self._add_stats(stats)
        return device_clock

    def _add_stats(self, stats: dict[str, int | str]) -> None:
        """Append one row to the stat columns, the row that was last appended to the others."""
        for name in stats.keys() - self._stats.keys():
            self._stats[name] = array("q", [_missing(name)]) * (len(self._metadata) - 1)
        for name, column in self._stats.items():
            value = stats.get(name)
            if isinstance(value, str):
                value = self._strings.setdefault(value, len(self._strings))
            column.append(_missing(name) if value is None else value)

    def _drop(self, first: int) -> None:
        """Forget the rows from `first` on."""
        columns = (self._metadata, self._occurrences, self._event_start, self._event_duration)
        for column in (*columns, self._start, self._duration, *self._stats.values()):
            del column[first:]

    def finish(self) -> WalkedEvents:
        """Return the columns of all lines read."""
        start, event_start = np.array(self._start, np.int64), np.array(self._event_start, np.int64)
        origins: dict[int, int] = {}
        for line, timestamp in zip(self._lines, self._timestamps, strict=True):
            origins[line.plane] = min(timestamp, origins.get(line.plane, timestamp))
        for line, timestamp in zip(self._lines, self._timestamps, strict=True):
            here = slice(line.first, line.last)
            placed = event_start[here] != ABSENT
            event_start[here][placed] += np.int64(signed((timestamp - origins[line.plane]) * 1000))
            if not line.device_clock:
                start[here] = event_start[here]
        table, rows = self._string_rows()
        stats = {name: np.array(column, np.int64) for name, column in self._stats.items()}
        used = {name: column for name, column in stats.items() if (column != _missing(name)).any()}
        return WalkedEvents(
            lines=tuple(self._lines),
            origins_ns=origins,
            line=np.repeat(
                np.arange(len(self._lines), dtype=np.int32),
                np.array([line.last - line.first for line in self._lines], np.int64),
            ),
            metadata=np.array(self._metadata, np.int32),
            start_ps=start,
            duration_ps=np.array(self._duration, np.int64),
            event_start_ps=event_start,
            event_duration_ps=np.array(self._event_duration, np.int64),
            occurrences=np.array(self._occurrences, np.int32),
            ints={name: used[name] for name in INT_STATS if name in used},
            strings={name: rows[used[name]] for name in STRING_STATS if name in used},
            string_table=table,
        )

    def _string_rows(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """Return the strings that rows use, sorted, and the row of each by its number in `_strings`.

        The last entry stands for no string, so that the number -1 finds it.
        """
        numbers = {number for name in STRING_STATS for number in set(self._stats.get(name, ()))}
        by_number = list(self._strings)
        table = sorted(by_number[number] for number in numbers if number != NO_STRING)
        rows = np.full(len(by_number) + 1, NO_STRING, np.int32)
        for row, value in enumerate(table):
            rows[self._strings[value]] = row
        return tuple(table), rows


def _missing(name: str) -> int:
    """Return what a stat's column holds where an event does not have it."""
    return NO_STRING if name in _STRING_STATS else ABSENT


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
        if name in _NUMBERS:
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

"""The fast reader: the C extension walks the events, this prepares its tables and finishes its columns.

A mapped file is given back to the system piece by piece as it is read, so that the whole process holds the
columns and not the file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.reading import _walker, structure, wire
from analyzers.reading.columns import ABSENT, INT_STATS, NO_STRING, STRING_STATS, Line, PlaneKind
from analyzers.reading.layout import line_kind
from analyzers.reading.structure import Damage, LineSpan, Range
from analyzers.reading.tables import signed, text
from analyzers.reading.walk import PlaneContext, WalkedEvents

_STATS = {
    name: number for number, name in enumerate((*INT_STATS, *STRING_STATS, "device_offset_ps", "device_duration_ps"))
}
_METADATA, _EVENT_START, _EVENT_DURATION, _START, _DURATION, _OCCURRENCES, _FIRST_STAT = range(7)
_PIECE_BYTES = 32 << 20
_REMAP_ROWS = 1 << 20


def split_plane(
    data: wire.Buffer, first: int, last: int
) -> tuple[list[LineSpan], list[Range], tuple[int, str, bool] | None]:
    """Do what `structure.split_plane` does."""
    lines, rest, bad = _walker.split_plane(data, first, last)
    if bad < 0:
        return lines, rest, None
    return lines, rest, structure.split_plane(data, bad, last)[2] or (bad, "it makes no sense", False)


class CWalker:
    """Collects the events of a file line by line; `finish` makes the columns."""

    def __init__(self, data: wire.Buffer) -> None:
        self._data = data
        self._walker = _walker.Walker(data, int.from_bytes(os.urandom(8), "little"))
        self._lines: list[Line] = []
        self._timestamps: list[int] = []
        self._referred: list[str] = []
        self._tables: tuple[int, _walker.Tables] | None = None
        self._stats_seen = 0
        self._aggregates = False

    def line(self, plane: PlaneContext, span: LineSpan) -> Damage | None:
        """Read one line; a line of a kind that is not read, or without kept events, leaves no trace."""
        start, first, last = span
        name = self._walker.line_name(first, last)
        damage = Damage(start, "an event or name in it makes no sense", False)
        if name is None:
            return damage
        kind = line_kind(plane.kind, text(name))
        if kind is None:
            return None
        self._walker.begin(plane.kind is PlaneKind.HOST, last - first)
        if not self._walk(self._plane_tables(plane), first, last):
            self._walker.drop()
            return damage
        row, end, device_clock, timestamp, stats_seen, aggregates = self._walker.end()
        if row == end:
            return None
        self._lines.append(Line(plane.index, text(name), kind, row, end, bool(device_clock)))
        self._timestamps.append(timestamp)
        self._stats_seen |= stats_seen
        self._aggregates |= bool(aggregates)
        return None

    def _walk(self, tables: _walker.Tables, first: int, last: int) -> bool:
        """Walk a line in pieces; tell whether all of it made sense."""
        position = first
        while position < last:
            reached = self._walker.walk(tables, position, last, position + _PIECE_BYTES)
            if reached < 0:
                return False
            _forget(self._data, position, reached)
            position = reached
        return True

    def _plane_tables(self, plane: PlaneContext) -> _walker.Tables:
        """Return the plane's id tables for the extension; planes come one after the other."""
        if self._tables is None or self._tables[0] != plane.index:
            base = len(self._referred)
            self._referred += plane.names.values()
            metadata = _id_arrays(plane.metadata_rows)
            stats = _id_arrays({key: _STATS[name] for key, name in plane.names.items() if name in _STATS})
            names = _id_arrays({key: base + row for row, key in enumerate(plane.names)})
            self._tables = plane.index, _walker.Tables(*metadata, *stats, *names)
        return self._tables[1]

    def finish(self) -> WalkedEvents:
        """Return the columns of all lines read."""
        rows = self._lines[-1].last if self._lines else 0
        event_start: NDArray[np.int64] = self._column(_EVENT_START, np.int64)
        event_duration: NDArray[np.int64] = self._column(_EVENT_DURATION, np.int64)
        start, duration = event_start, event_duration
        if any(line.device_clock for line in self._lines):
            start, duration = self._column(_START, np.int64), self._column(_DURATION, np.int64)
        origins: dict[int, int] = {}
        for line, timestamp in zip(self._lines, self._timestamps, strict=True):
            origins[line.plane] = min(timestamp, origins.get(line.plane, timestamp))
        for line, timestamp in zip(self._lines, self._timestamps, strict=True):
            shift = signed((timestamp - origins[line.plane]) * 1000)
            _shift(event_start[line.first : line.last], shift)
            if start is not event_start and not line.device_clock:
                _shift(start[line.first : line.last], shift)
        strings = {
            name: self._column(_FIRST_STAT + _STATS[name], np.int32)
            for name in STRING_STATS
            if self._stats_seen >> _STATS[name] & 1
        }
        return WalkedEvents(
            lines=tuple(self._lines),
            origins_ns=origins,
            line=np.repeat(
                np.arange(len(self._lines), dtype=np.int32),
                np.array([line.last - line.first for line in self._lines], np.int64),
            ),
            metadata=self._column(_METADATA, np.int32),
            start_ps=start,
            duration_ps=duration,
            event_start_ps=event_start,
            event_duration_ps=event_duration,
            occurrences=self._column(_OCCURRENCES, np.int32)
            if self._aggregates
            else np.broadcast_to(np.int32(1), rows),  # No memory for ten million ones.
            ints={
                name: self._column(_FIRST_STAT + _STATS[name], np.int64)
                for name in INT_STATS
                if self._stats_seen >> _STATS[name] & 1
            },
            strings=strings,
            string_table=self._string_table(strings),
        )

    def _column(self, column: int, dtype: type[Any]) -> NDArray[Any]:
        rows: NDArray[Any] = np.frombuffer(memoryview(self._walker.take(column)), dtype)
        return rows

    def _string_table(self, columns: Mapping[str, NDArray[np.int32]]) -> tuple[str, ...]:
        """Return the strings that rows use, sorted, and make the columns point into it.

        The extension numbers strings written in events from -2 downwards and those referred to from 0 up.
        """
        written = [text(value) for value in self._walker.strings()]
        all_strings = [*reversed(written), "", *self._referred]  # By number + len(written) + 1.
        offset = len(written) + 1
        used = np.zeros(len(all_strings), bool)
        for column in columns.values():
            column += offset
            for first in range(0, len(column), _REMAP_ROWS):
                used[column[first : first + _REMAP_ROWS]] = True
        used[offset + NO_STRING] = False
        table = sorted({all_strings[i] for i in np.flatnonzero(used)})
        rows = {value: row for row, value in enumerate(table)}
        remap = np.full(len(all_strings), NO_STRING, np.int32)
        for i in np.flatnonzero(used):
            remap[i] = rows[all_strings[i]]
        for column in columns.values():
            for first in range(0, len(column), _REMAP_ROWS):
                piece = column[first : first + _REMAP_ROWS]
                piece[:] = remap[piece]
        return tuple(table)


def _id_arrays(rows: Mapping[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return ids in ascending order and their rows."""
    ids = np.fromiter(rows.keys(), np.int64, len(rows))
    values = np.fromiter(rows.values(), np.int32, len(rows))
    order = np.argsort(ids)
    return ids[order], values[order]


def _shift(start: NDArray[np.int64], shift: int) -> None:
    """Add to the starts that have a place in time."""
    if shift:
        np.add(start, np.int64(shift), out=start, where=start != ABSENT)


def _forget(data: wire.Buffer, first: int, last: int) -> None:
    """Tell the system that a piece of a mapped file was read and need not stay in this process."""
    if not isinstance(data.obj, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = first // mmap.PAGESIZE * mmap.PAGESIZE
    last = last // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        with contextlib.suppress(OSError):
            data.obj.madvise(mmap.MADV_DONTNEED, first, last - first)

"""Reads Chrome's trace format (`.trace.json.gz`), which is often all that is left of a profile.

It holds less than an xplane file: no program ids, no asynchronous line, no HLO, and at most one million events
(five in newer versions), the rest silently left out. What an op's events have in common (`hlo_category`,
`tf_op`, …) is repeated on every event and becomes event metadata again here. Events are decoded one at a time
from a stream, about 10 µs each, so that memory holds the columns and not the text.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.errors import UserError
from analyzers.reading.columns import (
    ABSENT,
    INT_STATS,
    NO_STRING,
    STRING_STATS,
    EventMetadata,
    Events,
    Line,
    LineKind,
    Plane,
    PlaneKind,
    StatValue,
    XSpaceColumns,
)
from analyzers.reading.layout import line_kind, plane_kind
from analyzers.reading.sources import Source

EVENT_CAPS = (1_000_000, 5_000_000)
"""How many events the writers of this format keep at most (xprof, older and newer versions)."""

_MOST_CHARACTERS = 64 << 20
_START = re.compile(r'\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)
_BETWEEN = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder()
_OFFSET, _DURATION = "device_offset_ps", "device_duration_ps"
_NUMBERS = frozenset(INT_STATS) | {"model_flops", "raw_bytes_accessed", "symbol_id", _OFFSET, _DURATION}
_STATS = frozenset((*INT_STATS, *STRING_STATS))
_TPU_STATS = frozenset((*INT_STATS, "hlo_op"))
_OWN_STATS = frozenset(INT_STATS) | {_OFFSET, _DURATION, "long_name"}


@dataclass(slots=True)
class _Table:
    """The event metadata of a plane as it grows."""

    kind: PlaneKind
    rows: list[EventMetadata] = field(default_factory=list)
    index: dict[tuple[str, str, str], int] = field(default_factory=dict)

    @property
    def on_tpu(self) -> bool:
        """Return whether this is a plane of a TPU's TensorCore or SparseCore."""
        return self.kind in (PlaneKind.TPU, PlaneKind.SPARSE_CORE)

    def row(self, name: str, arguments: Mapping[str, Any]) -> int:
        """Return the row of what events with this name, HLO text and scope path have in common."""
        long_name, scope = str(arguments.get("long_name", "")), str(arguments.get("tf_op", ""))
        key = (name, long_name, scope)
        row = self.index.get(key)
        if row is None:
            row = self.index[key] = len(self.rows)
            # On a TPU plane an op's stats are common to its events, elsewhere they are the event's own.
            stats = {n: _value(n, v) for n, v in arguments.items() if self.on_tpu and n not in _OWN_STATS}
            self.rows.append(EventMetadata(row, long_name or name, name if long_name else "", stats))
        return row


class _Rows:
    """The kept events of one line, in typed columns."""

    def __init__(self, table: _Table, strings: dict[str, int]) -> None:
        self.table = table
        self.strings = strings
        self.metadata = array("i")
        self.start, self.duration = array("q"), array("q")
        self.device_start, self.device_duration = array("q"), array("q")
        self.device_clock = True
        self.stats: dict[str, array[int]] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Append an event, unless it has no place in time or is a host event of no interest."""
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            arguments = {}
        if self.table.kind is PlaneKind.HOST and "hlo_op" not in arguments and "step_num" not in arguments:
            return
        start, duration = _picoseconds(event.get("ts")), _picoseconds(event.get("dur", 0))
        if start is None or duration is None:
            return
        self.start.append(start)
        self.duration.append(duration)
        offset, length = _integer(arguments.get(_OFFSET)), _integer(arguments.get(_DURATION))
        if offset is None or length is None:
            self.device_clock = False
        else:
            self.device_start.append(offset)
            self.device_duration.append(length)
        self._add_stats(arguments)
        self.metadata.append(self.table.row(str(event.get("name", "")), arguments))

    def _add_stats(self, arguments: Mapping[str, Any]) -> None:
        """Append the stats that have a column; on a TPU plane strings belong to the event metadata."""
        count = len(self.metadata)
        for name in arguments.keys() & (_TPU_STATS if self.table.on_tpu else _STATS):
            value = arguments[name]
            number = _integer(value) if name in INT_STATS else self.strings.setdefault(str(value), len(self.strings))
            if number is not None:
                column = self.stats.get(name)
                if column is None:
                    column = self.stats[name] = array("q", [_missing(name)]) * count
                column.append(number)
        for name, column in self.stats.items():
            if len(column) == count:
                column.append(_missing(name))


def _missing(name: str) -> int:
    """Return what a stat's column holds where an event does not have it."""
    return ABSENT if name in INT_STATS else NO_STRING


class _Trace:
    """What has been read so far, by process and thread."""

    def __init__(self) -> None:
        self.processes: dict[Any, str] = {}
        self.threads: dict[tuple[Any, Any], str] = {}
        self.tables: dict[Any, _Table] = {}
        self.rows: dict[tuple[Any, Any], _Rows] = {}
        self.unread: set[tuple[Any, Any]] = set()
        self.strings: dict[str, int] = {}
        self.nameless: list[dict[str, Any]] = []
        self.count = 0

    def add(self, event: dict[str, Any]) -> None:
        """Take in one entry of `traceEvents`; an event whose line is not named yet waits for the end."""
        phase, process, thread = event.get("ph"), event.get("pid"), event.get("tid")
        if not isinstance(process, int | str | None) or not isinstance(thread, int | str | None):
            return
        if phase == "X":
            self.count += 1
            if not self.add_complete(event, (process, thread)):
                self.nameless.append(event)
        elif phase == "M":
            arguments = event.get("args")
            name = str(arguments.get("name", "")) if isinstance(arguments, dict) else ""
            if event.get("name") == "process_name":
                self.processes.setdefault(process, name)
            elif event.get("name") == "thread_name":
                self.threads.setdefault((process, thread), name)

    def add_complete(self, event: Mapping[str, Any], line: tuple[Any, Any]) -> bool:
        """Take in an event with a duration; tell whether its line is named."""
        rows = self.rows.get(line)
        if rows is None:
            if line in self.unread:
                return True
            if line not in self.threads or line[0] not in self.processes:
                return False
            kind = plane_kind(self.processes[line[0]])
            if kind in (PlaneKind.METADATA, PlaneKind.OTHER) or line_kind(kind, self.threads[line]) is None:
                self.unread.add(line)
                return True
            table = self.tables.setdefault(line[0], _Table(kind))
            rows = self.rows[line] = _Rows(table, self.strings)
        rows.add(event)
        return True


def read_chrome(file: Source, *, partial: bool = False) -> XSpaceColumns:
    """Read a trace in Chrome's JSON format, plain or compressed.

    Raises:
        UserError: where the file is not such a trace or (without `partial`) not whole.

    """
    trace = _Trace()
    cut = _read_events(file, trace, partial)
    for event in trace.nameless:
        trace.add_complete(event, (event.get("pid"), event.get("tid")))
    return _columns(file, trace, cut)


def _read_events(file: Source, trace: _Trace, partial: bool) -> int | None:
    """Decode all entries of `traceEvents`; return the offset where they stop making sense, or None."""
    chunks = _texts(file, partial)
    text, position = "", 0
    consumed = 0  # Bytes of the text before `text`.
    started = done = False
    while not done:
        more = next(chunks, None)
        if more is None:
            break
        consumed += len(text[:position].encode())
        text, position = text[position:] + more, 0
        if not started:
            start = _START.match(text)
            if start is None:
                if len(text) > _MOST_CHARACTERS:
                    break
                continue
            started, position = True, start.end()
        position, done = _decode(text, position, trace)
        if not done and len(text) - position > _MOST_CHARACTERS:
            break
    if not started:
        raise UserError(
            f"{file.path} is not a trace in Chrome's format: there is no list of traceEvents in it. Name an "
            ".xplane.pb or .trace.json.gz file that the profiler wrote."
        )
    if done:
        return None
    offset = consumed + len(text[:position].encode())
    if not partial:
        raise UserError(
            f"{file.path} is cut short or damaged: the event at byte {offset:,} of its text cannot be read. "
            f"Before it are {trace.count:,} events: --partial reads those; copying or capturing the trace "
            "again gives all."
        )
    return offset


def _decode(text: str, position: int, trace: _Trace) -> tuple[int, bool]:
    """Decode entries from `position` on; return where the first one that is not whole starts, and the end."""
    decode = _DECODER.raw_decode
    while True:
        match = _BETWEEN.match(text, position)
        position = match.end() if match else position
        if position == len(text):
            return position, False
        if text[position] == "]":
            return position, True
        try:
            entry, position = decode(text, position)
        except (ValueError, RecursionError):
            return position, False
        if isinstance(entry, dict):
            trace.add(entry)


def _texts(file: Source, partial: bool) -> Iterator[str]:
    """Yield the file's text piece by piece; what is not UTF-8 becomes backslash escapes."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for chunk in file.chunks(partial=partial):
        yield decoder.decode(chunk)
    yield decoder.decode(b"", True)


def _picoseconds(microseconds: object) -> int | None:
    """Return a time of the file in picoseconds, None for what is no time."""
    if not isinstance(microseconds, int | float) or not math.isfinite(microseconds):
        return None
    value = round(microseconds * 1_000_000)
    return value if abs(value) < 2**63 else None


def _integer(value: object) -> int | None:
    """Return a number that may be written as a string, as signed 64 bits; None for what is no number."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    number = number - 2**64 if 2**63 <= number < 2**64 else number
    return number if ABSENT < number < 2**63 else None


def _value(name: str, value: object) -> StatValue:
    """Return a stat as the xplane file would hold it: numbers are strings here."""
    if name in _NUMBERS:
        number = _integer(value)
        if number is not None:
            return number
    return value if isinstance(value, str | int | float) else json.dumps(value)


def _columns(file: Source, trace: _Trace, cut: int | None) -> XSpaceColumns:
    """Lay out what was read: planes in the order of the file, and the lines of each together."""
    processes = list(trace.processes)
    lines: list[Line] = []
    parts: list[_Rows] = []
    count = 0
    for index, process in enumerate(processes):
        kind = plane_kind(trace.processes[process])
        for key, rows in trace.rows.items():
            if key[0] != process or not rows.metadata:
                continue
            name = trace.threads[key]
            line = line_kind(kind, name) or LineKind.HOST
            first, count = count, count + len(rows.metadata)
            lines.append(Line(index, name, line, first, count, rows.device_clock))
            parts.append(rows)
    events, strings = _events(lines, parts, trace.strings)
    return XSpaceColumns(
        path=file.path,
        hostname=file.hostname,
        planes=tuple(
            Plane(
                trace.processes[process],
                plane_kind(trace.processes[process]),
                {},
                tuple(trace.tables[process].rows) if process in trace.tables else (),
                origin_ns=0,
            )
            for process in processes
        ),
        lines=tuple(lines),
        events=events,
        strings=strings,
        hlo_protos={},
        errors=(),
        cut_at_byte=cut,
        capped_at=trace.count if trace.count in EVENT_CAPS else None,
        reader="chrome",
    )


def _events(lines: list[Line], parts: list[_Rows], strings: dict[str, int]) -> tuple[Events, tuple[str, ...]]:
    """Return the columns of all kept events and their strings, sorted."""
    table = sorted(strings)
    string_rows = np.full(len(table) + 1, NO_STRING, np.int32)  # The last entry is found by the number -1.
    string_rows[[strings[value] for value in table]] = np.arange(len(table))
    event_start = _joined([rows.start for rows in parts], np.int64)
    event_duration = _joined([rows.duration for rows in parts], np.int64)
    start, duration = event_start, event_duration
    if any(line.device_clock for line in lines):
        start, duration = event_start.copy(), event_duration.copy()
        for line, rows in zip(lines, parts, strict=True):
            if line.device_clock:
                start[line.first : line.last] = rows.device_start
                duration[line.first : line.last] = rows.device_duration
    stats = {
        name: _joined(
            [rows.stats.get(name) or array("q", [_missing(name)]) * len(rows.metadata) for rows in parts], np.int64
        )
        for name in (*INT_STATS, *STRING_STATS)
        if any(name in rows.stats for rows in parts)
    }
    return Events(
        line=np.repeat(
            np.arange(len(lines), dtype=np.int32),
            np.array([line.last - line.first for line in lines], np.int64),
        ),
        metadata=_joined([rows.metadata for rows in parts], np.int32),
        start_ps=start,
        duration_ps=duration,
        event_start_ps=event_start,
        event_duration_ps=event_duration,
        occurrences=np.broadcast_to(np.int32(1), len(event_start)),
        ints={name: column for name, column in stats.items() if name in INT_STATS},
        strings={name: string_rows[column] for name, column in stats.items() if name in STRING_STATS},
    ), tuple(table)


def _joined(parts: list[array[int]], dtype: type[Any]) -> NDArray[Any]:
    return np.concatenate([np.array(part, dtype) for part in parts]) if parts else np.empty(0, dtype)

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
_OWN_STATS = frozenset(INT_STATS) | {_OFFSET, _DURATION, "long_name"}


@dataclass(slots=True)
class _Table:
    """The event metadata of a plane as it grows."""

    kind: PlaneKind
    rows: list[EventMetadata] = field(default_factory=list)
    index: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def row(self, name: str, arguments: Mapping[str, Any]) -> int:
        """Return the row of what events with this name, HLO text and scope path have in common."""
        long_name, scope = str(arguments.get("long_name", "")), str(arguments.get("tf_op", ""))
        key = (name, long_name, scope)
        row = self.index.get(key)
        if row is None:
            row = self.index[key] = len(self.rows)
            # On a TPU plane an op's stats are common to its events, elsewhere they are the event's own.
            common = self.kind in (PlaneKind.TPU, PlaneKind.SPARSE_CORE)
            stats = {n: _value(n, v) for n, v in arguments.items() if common and n not in _OWN_STATS}
            self.rows.append(EventMetadata(row, long_name or name, name if long_name else "", stats))
        return row


@dataclass(slots=True)
class _Rows:
    """The kept events of one line."""

    metadata: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    device: list[tuple[int, int] | None] = field(default_factory=list)
    stats: list[dict[str, int | str]] = field(default_factory=list)


class _Trace:
    """What has been read so far, by process and thread."""

    def __init__(self) -> None:
        self.processes: dict[Any, str] = {}
        self.threads: dict[tuple[Any, Any], str] = {}
        self.tables: dict[Any, _Table] = {}
        self.rows: dict[tuple[Any, Any], _Rows] = {}
        self.nameless: list[dict[str, Any]] = []
        self.count = 0

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in one entry of `traceEvents`."""
        phase, arguments = event.get("ph"), event.get("args")
        if phase == "M" and isinstance(arguments, dict):
            if event.get("name") == "process_name":
                self.processes[event.get("pid")] = str(arguments.get("name", ""))
            elif event.get("name") == "thread_name":
                self.threads[event.get("pid"), event.get("tid")] = str(arguments.get("name", ""))
        elif phase == "X":
            self.count += 1
            self.add_complete(dict(event))

    def add_complete(self, event: dict[str, Any], wait: bool = True) -> None:
        """Take in an event with a duration; one whose line is not named yet waits for the end."""
        process, thread = event.get("pid"), event.get("tid")
        line = (process, thread)
        if line not in self.threads or process not in self.processes:
            if wait:
                self.nameless.append(event)
            return
        kind = plane_kind(self.processes[process])
        if kind in (PlaneKind.METADATA, PlaneKind.OTHER) or line_kind(kind, self.threads[line]) is None:
            return
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if kind is PlaneKind.HOST and "hlo_op" not in arguments and "step_num" not in arguments:
            return
        start, duration = _picoseconds(event.get("ts")), _picoseconds(event.get("dur", 0))
        if start is None or duration is None:
            return
        table = self.tables.setdefault(process, _Table(kind))
        rows = self.rows.setdefault(line, _Rows())
        rows.metadata.append(table.row(str(event.get("name", "")), arguments))
        rows.start.append(start)
        rows.duration.append(duration)
        offset, length = _integer(arguments.get(_OFFSET)), _integer(arguments.get(_DURATION))
        rows.device.append((offset, length) if offset is not None and length is not None else None)
        rows.stats.append(_own_stats(kind, arguments))


def read_chrome(file: Source, *, partial: bool = False) -> XSpaceColumns:
    """Read a trace in Chrome's JSON format, plain or compressed.

    Raises:
        UserError: where the file is not such a trace or (without `partial`) not whole.

    """
    trace = _Trace()
    cut = _read_events(file, trace, partial)
    for event in trace.nameless:
        trace.add_complete(event, wait=False)
    errors = (
        (f"the file holds {trace.count:,} events, the most that the writer of this format keeps: others are missing",)
        if trace.count in EVENT_CAPS
        else ()
    )
    return _columns(file, trace, errors, cut)


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


def _own_stats(kind: PlaneKind, arguments: Mapping[str, Any]) -> dict[str, int | str]:
    """Return the stats of an event that have a column."""
    own: dict[str, int | str] = {}
    for name, value in arguments.items():
        if name in INT_STATS:
            number = _integer(value)
            if number is not None:
                own[name] = number
        elif name in STRING_STATS and (kind in (PlaneKind.GPU, PlaneKind.HOST) or name == "hlo_op"):
            own[name] = str(value)
    return own


def _columns(file: Source, trace: _Trace, errors: tuple[str, ...], cut: int | None) -> XSpaceColumns:
    """Lay out what was read: planes in the order of the file, and the lines of each together."""
    processes = list(trace.processes)
    lines: list[Line] = []
    parts: list[_Rows] = []
    count = 0
    for index, process in enumerate(processes):
        kind = plane_kind(trace.processes[process])
        for key, rows in trace.rows.items():
            if key[0] != process:
                continue
            name = trace.threads[key]
            line = line_kind(kind, name) or LineKind.HOST
            first, count = count, count + len(rows.metadata)
            lines.append(Line(index, name, line, first, count, all(rows.device)))
            parts.append(rows)
    events, strings = _events(lines, parts)
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
        errors=errors,
        cut_at_byte=cut,
        reader="chrome",
    )


def _events(lines: list[Line], parts: list[_Rows]) -> tuple[Events, tuple[str, ...]]:
    """Return the columns of all kept events and their strings."""
    stats = [row for rows in parts for row in rows.stats]
    table = sorted({value for row in stats for value in row.values() if isinstance(value, str)})
    index = {value: i for i, value in enumerate(table)}
    event_start = _joined([rows.start for rows in parts], np.int64)
    event_duration = _joined([rows.duration for rows in parts], np.int64)
    start, duration = event_start, event_duration
    if any(line.device_clock for line in lines):
        start, duration = event_start.copy(), event_duration.copy()
        for line, rows in zip(lines, parts, strict=True):
            if line.device_clock:
                start[line.first : line.last] = [device[0] for device in rows.device if device]
                duration[line.first : line.last] = [device[1] for device in rows.device if device]
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
    ), tuple(table)


def _joined(parts: list[list[int]], dtype: type[Any]) -> NDArray[Any]:
    joined: NDArray[Any] = np.array([value for part in parts for value in part], dtype)
    return joined

"""The columns a trace file becomes: the interface between every reader and everything that counts.

One file is one `XSpaceColumns`. Its events lie in parallel numpy arrays, in file order, so that all events
of a line are one contiguous range of rows. Names, strings and metadata are small tables beside them. A reader
fills these and interprets nothing: which events are executions, what nests in what, and what a scope path
means is decided in `analyzers.counting`.

Layout facts: openxla/xla xla/tsl/profiler/protobuf/xplane.proto and xla/tsl/profiler/utils/xplane_schema.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ABSENT = int(np.iinfo(np.int64).min)
"""Value of an integer stat column where the event has no such stat."""

NO_STRING = -1
"""Value of a string stat column where the event has no such stat."""

StatValue = int | float | str | bytes


class PlaneKind(Enum):
    """What a plane describes, told by its exact name (a prefix match would mix up TPU and SparseCore)."""

    TPU = "tpu"
    SPARSE_CORE = "sparse core"
    GPU = "gpu"
    HOST = "host"
    METADATA = "metadata"
    OTHER = "other"


class LineKind(Enum):
    """What the events of a line are, told by plane kind and line name (line ids differ between versions)."""

    OPS = "ops"
    """Device op events: `XLA Ops`, `Sparse Core Ops`, a GPU stream."""
    ASYNC = "async"
    """One event from the start to the done of an asynchronous op; they overlap and form no stack."""
    MODULES = "modules"
    """One event per module execution."""
    HOST = "host"
    """A host thread. Kept are its events that carry `hlo_op` (ops run by the CPU backend) or `step_num`."""


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """One row of a plane's event metadata table: what all events with this metadata id have in common."""

    id: int
    name: str
    display_name: str
    stats: Mapping[str, StatValue]


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane of the file. `stats` and `metadata` hold decoded values; `ref_value`s are resolved."""

    name: str
    kind: PlaneKind
    stats: Mapping[str, StatValue]
    metadata: tuple[EventMetadata, ...]
    """Row `events.metadata[i]` of the plane of event i."""
    origin_ns: int
    """Smallest timestamp of the plane's lines that have events; `events.event_start_ps` counts from here."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line whose events were kept: rows `first` (inclusive) to `last` (exclusive) of the columns."""

    plane: int
    """Index into `XSpaceColumns.planes`."""
    name: str
    kind: LineKind
    first: int
    last: int
    device_clock: bool
    """Whether `start_ps` and `duration_ps` come from the events' `device_offset_ps` and `device_duration_ps`.

    That clock is exact but has a zero of its own; the event clock is aligned with the host and can be wrong.
    True only if every kept event of the line carries both.
    """


@dataclass(frozen=True, slots=True)
class Events:
    """All kept events, in file order. Every array has one entry per event.

    `start_ps` and `duration_ps` are on the device clock for lines with `device_clock`, else they are equal to
    `event_start_ps` and `event_duration_ps` (and may be the same array objects). Durations are as written,
    even when negative. An aggregate event (`num_occurrences`) has its count in `occurrences`, 1 otherwise,
    and start `ABSENT`: it counts as many but has no place in time.
    """

    line: NDArray[np.int32]
    metadata: NDArray[np.int32]
    """Row of the plane's metadata table, -1 where the id is not in it."""
    start_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    event_start_ps: NDArray[np.int64]
    event_duration_ps: NDArray[np.int64]
    occurrences: NDArray[np.int32]
    ints: Mapping[str, NDArray[np.int64]]
    """Integer stats by name (`INT_STATS`), `ABSENT` where missing; a stat no event has is not in the mapping.
    Unsigned 64-bit values are reinterpreted as signed."""
    strings: Mapping[str, NDArray[np.int32]]
    """String stats by name (`STRING_STATS`), as rows of `XSpaceColumns.strings`, `NO_STRING` where missing; a
    stat no event has is not in the mapping."""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.line)


INT_STATS = (
    "run_id",
    "program_id",
    "device_ordinal",
    "step_num",
    "correlation_id",
    "offload_core_id",
    "tc_offload_start_id",
    "bytes_accessed",
    "flops",
)
"""Integer stats of events that readers keep."""

STRING_STATS = ("hlo_op", "hlo_module", "tf_op", "name")
"""String stats of events that readers keep."""


@dataclass(frozen=True, slots=True)
class XSpaceColumns:
    """One trace file as columns."""

    path: str
    hostname: str
    """Name of the host that wrote the file, from the file or from its name; empty when neither says."""
    planes: tuple[Plane, ...]
    lines: tuple[Line, ...]
    events: Events
    strings: tuple[str, ...]
    hlo_protos: Mapping[str, bytes]
    """Serialized xla.HloProto by metadata name, e.g. `jit_f(12)`, from the plane `/host:metadata`."""
    errors: tuple[str, ...]
    """What the profiler itself wrote into `XSpace.errors` and `XSpace.warnings`."""
    cut_at_byte: int | None
    """Offset at which a truncated file stops making sense; None for a whole file."""
    capped_at: int | None
    """Number of events after which the writer left out the others; None where it did not."""
    reader: Literal["c", "python", "chrome"]

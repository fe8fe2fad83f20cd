"""What a reader of lines is given and gives back: the seam between the walkers and the rest of the reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from analyzers.reading.columns import Line, PlaneKind
from analyzers.reading.structure import Damage, LineSpan


@dataclass(frozen=True, slots=True)
class PlaneContext:
    """What is needed of a plane to read its lines."""

    index: int
    """Index into `XSpaceColumns.planes`."""
    kind: PlaneKind
    names: Mapping[int, str]
    """Stat metadata: the names of stats, and what a `ref_value` refers to, by id."""
    metadata_rows: Mapping[int, int]
    """Row of the event metadata table by id."""


@dataclass(frozen=True, slots=True)
class WalkedEvents:
    """The kept events of a file and their lines; fields as in `Events` and `XSpaceColumns`."""

    lines: tuple[Line, ...]
    origins_ns: Mapping[int, int]
    """Smallest timestamp of the lines of each plane that has any."""
    line: NDArray[np.int32]
    metadata: NDArray[np.int32]
    start_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    event_start_ps: NDArray[np.int64]
    event_duration_ps: NDArray[np.int64]
    occurrences: NDArray[np.int32]
    ints: Mapping[str, NDArray[np.int64]]
    strings: Mapping[str, NDArray[np.int32]]
    string_table: tuple[str, ...]
    """Sorted, each string once, only those that a row uses."""


class Walker(Protocol):
    """Collects the events of a file, line by line."""

    def line(self, plane: PlaneContext, span: LineSpan) -> Damage | None:
        """Read one line whole, or say what is wrong in it and keep none of it."""

    def finish(self) -> WalkedEvents:
        """Return everything read."""

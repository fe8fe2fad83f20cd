"""Sums of executions and time by device, step, op, pass, layer and chunk: what tables are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.counting.arrays import counts, sums
from analyzers.counting.executions import Executions
from analyzers.counting.scopes import Pass
from analyzers.counting.steps import Steps

Key = Literal["device", "step", "op", "pass", "layer", "chunk"]

PASSES = tuple(Pass)
"""Column `pass` holds positions in this tuple."""

_DENSE_CELLS = 4_000_000


@dataclass(frozen=True)
class Totals:
    """One row per combination of keys that occurs. Indices are -1 where nothing tells (layer, chunk)."""

    keys: Mapping[str, NDArray[np.int32]]
    executions: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    """Time including what ran inside; adding it up over ops counts loops twice."""
    self_ps: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.executions)


def totals(executions: Executions, steps: Steps, by: Sequence[Key], only: NDArray[np.bool_] | None = None) -> Totals:
    """Add up executions, time and self time of the ops that belong to a step, by the given keys.

    `only` says for each op whether it is wanted; all are by default.
    """
    events = executions.events
    step = np.append(steps.of_run, np.int32(-1))[executions.run]
    rows: NDArray[np.intp] | slice = slice(None)
    if only is not None:
        rows = np.flatnonzero((step >= 0) & only[events.op])
    elif len(step) and int(step.min()) < 0:
        rows = np.flatnonzero(step >= 0)
    columns = [_column(executions, step, key)[rows] for key in by]
    cell, distinct = _cells(columns)
    weight = np.where(executions.first, events.occurrences, 0)[rows].astype(np.int64)
    size = len(distinct[0])
    return Totals(
        keys=dict(zip(by, distinct, strict=True)),
        executions=sums(cell, weight, size),
        duration_ps=sums(cell, events.duration_ps[rows], size),
        self_ps=sums(cell, executions.self_ps[rows], size),
    )


def _column(executions: Executions, step: NDArray[np.int32], key: Key) -> NDArray[np.int32]:
    events = executions.events
    if key == "step":
        return step
    if key == "device":
        return events.device
    if key == "op":
        return events.op
    if key == "layer":
        return executions.layer
    if key == "chunk":
        return executions.chunk
    pass_of_op = np.array([PASSES.index(a.pass_) for a in executions.attributions], np.int32)
    return pass_of_op[events.op]


def _cells(columns: list[NDArray[np.int32]]) -> tuple[NDArray[np.int64], list[NDArray[np.int32]]]:
    """Number the distinct combinations of the columns; return each row's number and the combinations, by column."""
    if len(columns[0]) == 0:
        return np.zeros(0, np.int64), [np.zeros(0, np.int32) for _ in columns]
    sizes = [int(column.max()) + 2 for column in columns]
    code = np.zeros(len(columns[0]), np.int64)
    for column, size in zip(columns, sizes, strict=True):
        code *= size
        code += column + 1
    num_cells = int(np.prod([float(size) for size in sizes]))
    if num_cells <= _DENSE_CELLS:
        used = np.flatnonzero(counts(code, num_cells))
        position = np.zeros(num_cells, np.int64)
        position[used] = np.arange(len(used))
        cell = position[code]
    else:
        used, cell = np.unique(code, return_inverse=True)
    distinct = []
    for size in reversed(sizes):
        distinct.append((used % size - 1).astype(np.int32))
        used = used // size
    return cell, distinct[::-1]

"""Sums of executions and time by device, step, op, pass, layer and chunk: what tables are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.counting.arrays import counts, dense, sums, take
from analyzers.counting.executions import Executions
from analyzers.counting.ops import is_constant
from analyzers.counting.scopes import Pass
from analyzers.counting.steps import Steps

try:
    from analyzers.counting import _groupby
except ImportError:  # The extension is optional; then this is slower.
    _groupby = None  # type: ignore[assignment]

Key = Literal["op", "pass", "layer", "chunk"]

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
    groups: Mapping[str, NDArray[np.int32]]
    """The distinct combinations of the keys without device and step, one entry each."""
    group: NDArray[np.int32]
    """Which of them each row has."""
    num_steps: int

    @cached_property
    def executions_of_groups(self) -> NDArray[np.int64]:
        """Executions in all steps and on all devices, one entry per group."""
        return sums(self.group, self.executions, self._num_groups)

    @cached_property
    def self_ps_of_groups(self) -> NDArray[np.int64]:
        """Self time in all steps and on all devices, one entry per group."""
        return sums(self.group, self.self_ps, self._num_groups)

    @property
    def _num_groups(self) -> int:
        return len(next(iter(self.groups.values())))

    def self_ps_by_step(self) -> NDArray[np.int64]:
        """Return the self time of all devices, shape [groups, steps]."""
        num_groups = self._num_groups
        cell = self.group.astype(np.int64) * self.num_steps + self.keys["step"]
        if num_groups * self.num_steps < 2**31:
            cell = cell.astype(np.int32)
        return sums(cell, self.self_ps, num_groups * self.num_steps).reshape(num_groups, self.num_steps)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.executions)


def totals(executions: Executions, steps: Steps, by: Sequence[Key], only: NDArray[np.bool_] | None = None) -> Totals:
    """Add up executions, time and self time of the ops that belong to a step, by device, step, and the keys `by`.

    `only` says for each op whether it is wanted; all are by default. Rows in which nothing adds up to anything are
    left out.
    """
    wanted = np.ones(len(executions.ops), bool) if only is None else only
    plan = _plan(executions, steps, by, wanted)
    return _by_columns(executions, steps, by, wanted) if plan is None else _in_one_pass(executions, steps, by, plan)


@dataclass(frozen=True)
class _Plan:
    """How one pass over the events finds the cell of each: op and execution give a slot, slot and run the cell.

    The slots of an op are the pairs of loop iterations that its layer and chunk follow from, so that there is
    little to compute per event whatever the keys are.
    """

    slots: NDArray[np.int32]
    """Per op: first slot (-1: not wanted), then `each` and `count` of the outer and of the inner digit."""
    group: NDArray[np.int32]
    """Position of each slot's keys among the distinct ones."""
    keys: list[NDArray[np.int32]]
    """Those, one array per key."""


def _plan(executions: Executions, steps: Steps, by: Sequence[Key], wanted: NDArray[np.bool_]) -> _Plan | None:
    """Return the plan, None where there is no extension, or the cells would be many more than the events."""
    by_index = [key for key in by if key in ("layer", "chunk")]
    if _groupby is None or (by_index and len(executions.offloaded.rows)):
        return None
    # Ops of other programs are in no step, except what a step may have launched.
    program = np.array([op.program for op in executions.ops], np.int32)
    sparse_core = np.array([op.sparse_core for op in executions.ops], bool)
    op = np.flatnonzero(wanted & ((program == steps.program) | sparse_core)).astype(np.int32)
    rules = {"layer": executions.layer_rule, "chunk": executions.chunk_rule} if by_index else {}
    digits = np.ones((len(executions.ops), 5), np.int32)
    digits[:, 0] = -1
    for k, key in enumerate(by_index):
        digits[:, 1 + 2 * k] = rules[key].each
        digits[:, 2 + 2 * k] = np.maximum(rules[key].count, 1)
    num_slots = digits[op, 2].astype(np.float64) * digits[op, 4]
    most = max(_DENSE_CELLS, 2 * len(executions.events.op))
    if num_slots.sum() > _DENSE_CELLS:
        return None
    size = num_slots.astype(np.int64)
    digits[op, 0] = np.cumsum(size) - size
    op_of_slot = np.repeat(op, size)
    iteration = np.arange(len(op_of_slot)) - digits[op_of_slot, 0]
    iterations = (iteration // digits[op_of_slot, 4], iteration % digits[op_of_slot, 4])
    columns = {"op": op_of_slot, "pass": _pass_of_op(executions)[op_of_slot]}
    for key, digit in zip(by_index, iterations, strict=False):
        rule = rules[key]
        count = rule.count[op_of_slot]
        digit = np.where(rule.backwards[op_of_slot], count - 1 - digit, digit)
        columns[key] = np.where(count > 0, digit, rule.fixed[op_of_slot]).astype(np.int32)
    group, distinct = dense(*(columns[key] for key in by))
    if len(executions.events.devices) * len(steps.labels) * len(distinct) > most:
        return None
    return _Plan(digits, group, _columns_of(distinct, len(by)))


def _in_one_pass(executions: Executions, steps: Steps, by: Sequence[Key], plan: _Plan) -> Totals:
    events, runs = executions.events, executions.runs
    num_steps, num_groups = len(steps.labels), len(plan.keys[0])
    place = runs.device.astype(np.int64) * num_steps + steps.of_run
    sums_of = np.zeros((3, len(events.devices) * num_steps * num_groups), np.int64)
    _groupby.tally(
        events.op,
        executions.run,
        executions.execution,
        _weight(executions),
        np.ascontiguousarray(events.duration_ps),
        executions.self_ps,
        np.where(steps.of_run >= 0, place * num_groups, -1),
        plan.slots,
        plan.group,
        *sums_of,
    )
    used: NDArray[np.intp] | slice = slice(None)
    if not sums_of[0].all():
        used = np.flatnonzero(sums_of.any(axis=0))
    shape = (len(events.devices), num_steps, num_groups)
    device, step, group = (
        np.broadcast_to(np.arange(size, dtype=np.int32).reshape([-1 if axis == k else 1 for axis in range(3)]), shape)
        for k, size in enumerate(shape)
    )
    # The device of a single one is a column without memory of its own, which would be pickled value by value.
    device, step, group = (np.ascontiguousarray(column.reshape(-1)[used]) for column in (device, step, group))
    present = sums_of.reshape(3, len(events.devices) * num_steps, num_groups).any(axis=(0, 1))
    position = np.cumsum(present, dtype=np.int32) - np.int32(1)
    groups: dict[str, NDArray[np.int32]] = {key: column[present] for key, column in zip(by, plan.keys, strict=True)}
    return _totals(device, step, position[group], groups, [column[used] for column in sums_of], num_steps)


def _totals(
    device: NDArray[np.int32],
    step: NDArray[np.int32],
    group: NDArray[np.int32],
    groups: Mapping[str, NDArray[np.int32]],
    sums_of: Sequence[NDArray[np.int64]],
    num_steps: int,
) -> Totals:
    keys = {"device": device, "step": step} | {key: take(column, group) for key, column in groups.items()}
    executed, duration_ps, self_ps = sums_of
    return Totals(keys, executed, duration_ps, self_ps, groups, group, num_steps)


def _weight(executions: Executions) -> NDArray[np.int32] | None:
    """Return how many executions each row stands for; None where it is one for all."""
    first, occurrences = executions.first, executions.events.occurrences
    if is_constant(first) and first[0] and is_constant(occurrences) and occurrences[0] == 1:
        return None
    return np.where(first, occurrences, 0).astype(np.int32)


def _by_columns(executions: Executions, steps: Steps, by: Sequence[Key], wanted: NDArray[np.bool_]) -> Totals:
    events = executions.events
    step = np.append(steps.of_run, np.int32(-1))[executions.run]
    rows = np.flatnonzero((step >= 0) & wanted[events.op])
    columns = [events.device[rows], step[rows], *(_column(executions, key)[rows] for key in by)]
    cell, distinct = _cells(columns)
    weight = np.where(executions.first, events.occurrences, 0)[rows].astype(np.int64)
    size = len(distinct[0])
    sums_of = [sums(cell, values, size) for values in (weight, events.duration_ps[rows], executions.self_ps[rows])]
    used = np.any(sums_of, axis=0)
    device, step, *columns = (column[used] for column in distinct)
    group, rows_of_groups = dense(*columns)
    groups: dict[str, NDArray[np.int32]] = dict(zip(by, _columns_of(rows_of_groups, len(by)), strict=True))
    return _totals(device, step, group, groups, [column[used] for column in sums_of], len(steps.labels))


def _columns_of(rows: Sequence[tuple[int, ...]], width: int) -> list[NDArray[np.int32]]:
    return list(np.array(rows, np.int32).reshape(-1, width).T.copy())


def _column(executions: Executions, key: Key) -> NDArray[np.int32]:
    if key == "op":
        return executions.events.op
    if key == "layer":
        return executions.layer
    if key == "chunk":
        return executions.chunk
    return _pass_of_op(executions)[executions.events.op]


def _pass_of_op(executions: Executions) -> NDArray[np.int32]:
    return np.array([PASSES.index(a.pass_) for a in executions.attributions], np.int32)


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

"""Executions: one instruction, run once, on one device. What everything else counts and adds up.

An event is not an execution. On a CPU one execution gives one to three events, differently per instruction,
and they need not be neighbours; on a GPU it gives one event per kernel. The compiled module says how often an
instruction runs per module execution (product of the trip counts around it), so the events of one module run
are divided by that, in time order: loop iterations do not overlap. Where the division does not come out, the
trace is not what the module promises, and a caveat says so.

Layers and chunks that are walked by a loop are read from the execution's number: iterations of nested loops
are its digits in the mixed radix of the trip counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.counting.arrays import counts, dense, occurrence_numbers
from analyzers.counting.hlo import Module
from analyzers.counting.ops import Op, OpEvents, Program, op_events
from analyzers.counting.runs import Runs, find_runs
from analyzers.counting.scopes import (
    DEFAULT_PATTERNS,
    Attribution,
    ScopePatterns,
    attribute,
    attribute_by_scope,
)
from analyzers.counting.selftime import self_times
from analyzers.counting.sparsecore import Offloaded, find_offloaded, of_slowest_core
from analyzers.reading.columns import XSpaceColumns

_NO_INDEX = -1


@dataclass(frozen=True)
class Executions:
    """All executions of one file. Arrays have one row per op event; `first` marks the rows that count.

    An execution's duration and self time are the sums over its rows. `run` indexes `runs` (-1: belongs to no
    module run that could be told); `execution` numbers the executions of one op within its run from 0.
    """

    events: OpEvents
    runs: Runs
    attributions: tuple[Attribution, ...]
    """One per op."""
    expected: NDArray[np.int64]
    """Per op: executions per module run according to the compiled module, -1 where it cannot tell."""
    run: NDArray[np.int32]
    execution: NDArray[np.int32]
    first: NDArray[np.bool_]
    self_ps: NDArray[np.int64]
    offloaded: Offloaded
    """SparseCore rows and what launched them."""
    launching_ops: Mapping[int, Sequence[int]]
    """TensorCore ops that launched each SparseCore op."""
    caveats: tuple[Caveat, ...]

    @property
    def ops(self) -> tuple[Op, ...]:
        """Return the ops that rows of `events.op` point to."""
        return self.events.ops

    @property
    def programs(self) -> tuple[Program, ...]:
        """Return the programs that ops and runs point to."""
        return self.events.programs

    @cached_property
    def layer(self) -> NDArray[np.int32]:
        """Layer of each row, -1 where nothing tells."""
        return self._index([(a.layer, a.layer_loop) for a in self.attributions])

    @cached_property
    def chunk(self) -> NDArray[np.int32]:
        """Chunk of each row, -1 where nothing tells."""
        return self._index([(a.chunk, a.chunk_loop) for a in self.attributions])

    def iteration(self, depth: int) -> NDArray[np.int32]:
        """Iteration of the enclosing loop at `depth` (0 is the outermost), -1 outside such a loop."""
        return self._index([(None, depth)] * len(self.ops), keep_order=True)

    def _index(self, wanted: Sequence[tuple[int | None, int | None]], *, keep_order: bool = False) -> NDArray[np.int32]:
        size = len(self.ops)
        fixed = np.full(size, _NO_INDEX, np.int32)
        radix = np.zeros(size, np.int32)
        inner = np.ones(size, np.int32)
        backwards = np.zeros(size, bool)
        for k, (index, depth) in enumerate(wanted):
            if index is not None:
                fixed[k] = index
            elif depth is not None and (digit := self._digit(self.ops[k], depth)) is not None:
                radix[k], inner[k], backwards[k] = digit
        op = self.events.op
        result = fixed[op]
        looped = radix[op] > 0
        if looped.any():
            rows = np.flatnonzero(looped)
            some = op[rows]
            digit_of_row = (self.execution[rows] // inner[some]) % radix[some]
            if not keep_order:
                digit_of_row = np.where(backwards[some], radix[some] - 1 - digit_of_row, digit_of_row)
            result[rows] = digit_of_row
        result[self.offloaded.rows] = result[self.offloaded.launcher]
        return result

    def _digit(self, op: Op, depth: int) -> tuple[int, int, bool] | None:
        """Return (trip count, executions per iteration, walks backwards) of the op's loop at `depth`."""
        module = self.programs[op.program].module if op.program >= 0 else None
        placement = module.placements.get(op.name) if module else None
        if placement is None or depth >= len(placement.loops) or placement.executions is None:
            return None
        trips = [loop.trip_count or 1 for loop in placement.loops]
        per_iteration = placement.executions // math.prod(trips[: depth + 1])
        return trips[depth], max(per_iteration, 1), placement.loops[depth].reversed


def executions(
    columns: XSpaceColumns,
    own_modules: Mapping[str, Module] | None = None,
    patterns: ScopePatterns = DEFAULT_PATTERNS,
) -> Executions:
    """Group the op events of one file into executions, with self time, pass, layer and chunk.

    `own_modules` are compiled modules by name that a run stored itself; they win over the trace's.
    """
    events = op_events(columns, own_modules)
    expected = np.array([_expected(op, events.programs) for op in events.ops], np.int64)
    offloaded = find_offloaded(columns, events)
    launching_ops = _launching_ops(events, offloaded)
    for op, launching in launching_ops.items():
        if expected[op] < 0:
            promised = expected[launching]
            expected[op] = promised.sum() if (promised >= 0).all() else -1
    runs, run, run_caveats = find_runs(columns, events, expected, offloaded.rows)
    run[offloaded.rows] = run[offloaded.launcher]
    execution, first, count_caveats = _number(events, runs, run, expected)
    attributions, layer_caveats = _attributions(events, patterns, launching_ops)
    return Executions(
        events=events,
        runs=runs,
        attributions=attributions,
        expected=expected,
        run=run,
        execution=execution,
        first=first,
        self_ps=of_slowest_core(events, offloaded, self_times(columns, events, run)),
        offloaded=offloaded,
        launching_ops=launching_ops,
        caveats=(*run_caveats, *count_caveats, *layer_caveats, *_not_joined(events, offloaded)),
    )


def _launching_ops(events: OpEvents, offloaded: Offloaded) -> dict[int, list[int]]:
    """Return for each SparseCore op the TensorCore ops that launched it."""
    _, pairs = dense(events.op[offloaded.rows], events.op[offloaded.launcher])
    result: dict[int, list[int]] = defaultdict(list)
    for op, launching in pairs:
        result[op].append(launching)
    return dict(result)


def _not_joined(events: OpEvents, offloaded: Offloaded) -> list[Caveat]:
    if not any(op.sparse_core for op in events.ops):
        return []
    sparse = int(np.count_nonzero(np.array([op.sparse_core for op in events.ops], bool)[events.op]))
    alone = sparse - len(offloaded.rows)
    if not alone:
        return []
    return [
        Caveat(
            "sparse-core-alone",
            f"{alone} of {sparse} SparseCore events name no TensorCore op that launched them: their "
            "layer and chunk cannot be told.",
        )
    ]


def _expected(op: Op, programs: Sequence[Program]) -> int:
    module = programs[op.program].module if op.program >= 0 else None
    placement = module.placements.get(op.name) if module else None
    if placement is None or placement.executions is None:
        return -1
    return placement.executions


def _why_unknown(op: Op, programs: Sequence[Program]) -> str:
    module = programs[op.program].module if op.program >= 0 else None
    placement = module.placements.get(op.name) if module else None
    return placement.why_unknown if placement else ""


def _number(
    events: OpEvents, runs: Runs, run: NDArray[np.int32], expected: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.bool_], list[Caveat]]:
    """Number the executions of each op within each run and mark the first event of each."""
    num_ops = len(events.ops)
    # Rows outside any run get a run of their own so that their numbers do not mix with those of others.
    cell = np.where(run >= 0, run, len(runs.program)) * num_ops + events.op
    size = (len(runs.program) + 1) * num_ops
    order = _time_order(events)
    number = np.empty(len(cell), np.int32)
    number[order] = occurrence_numbers(cell[order], size)
    per_cell = counts(cell, size).reshape(len(runs.program) + 1, num_ops)[:-1]
    events_each, caveats = _events_per_execution(events, runs, per_cell, expected)
    each = events_each[events.op]
    return number // each, number % each == 0, caveats


def _time_order(events: OpEvents) -> NDArray[np.intp] | slice:
    """Return the order of rows by start time, or a slice where each device has one line that is in order."""
    one_line_each = len(np.unique(events.line)) <= len(events.devices)
    same_line = events.line[1:] == events.line[:-1] if len(events.line) else np.zeros(0, bool)
    if one_line_each and not np.any((events.start_ps[1:] < events.start_ps[:-1]) & same_line):
        return slice(None)
    return np.argsort(events.start_ps, kind="stable")


def _events_per_execution(
    events: OpEvents, runs: Runs, per_cell: NDArray[np.int64], expected: NDArray[np.int64]
) -> tuple[NDArray[np.int32], list[Caveat]]:
    """Return how many events one execution of each op leaves, and where the trace and the module disagree.

    `per_cell` counts events per (run, op).
    """
    result = np.ones(len(events.ops), np.int32)
    caveats: list[Caveat] = []
    without_module: set[str] = set()
    unknown: list[str] = []
    disagreeing: list[str] = []
    for k, op in enumerate(events.ops):
        seen = per_cell[:, k]
        if not seen.any():
            continue
        if expected[k] <= 0:
            if op.program >= 0 and events.programs[op.program].module is None:
                without_module.add(events.programs[op.program].name)
            elif why := _why_unknown(op, events.programs):
                unknown.append(f"{op.name}, because {why}")
            continue
        # A clipped run has fewer events than the others, or none: the most frequent number is the module's promise.
        values, frequency = np.unique(seen[seen > 0], return_counts=True)
        usual = int(values[np.argmax(frequency)])
        if usual % expected[k] == 0:
            result[k] = usual // expected[k]
        concerned = (seen > 0) | (runs.program == op.program)
        odd = int(np.count_nonzero(concerned & (seen != expected[k] * result[k])))
        if odd:
            disagreeing.append(f"{op.name} ({odd} of {np.count_nonzero(concerned)} runs)")
    if without_module:
        names = ", ".join(sorted(without_module))
        # On a TPU an event is an execution; elsewhere only the module says how many make one.
        several = (
            ""
            if all(d.startswith("TPU") for d in events.devices)
            else ("its counts are of events, of which one execution can leave several, and ")
        )
        caveats.append(
            Caveat(
                "no-hlo",
                f"No compiled module in the trace for {names}: {several}layers and chunks inside loops cannot be told.",
            )
        )
    if unknown:
        caveats.append(
            Caveat(
                "unknown-count",
                f"The compiled module does not say how often {len(unknown)} instructions run (e.g. {unknown[0]}): "
                "their counts are of events, and layers and chunks in such loops cannot be told.",
            )
        )
    if disagreeing:
        shown = ", ".join(disagreeing[:5]) + (f" and {len(disagreeing) - 5} more" if len(disagreeing) > 5 else "")
        caveats.append(
            Caveat(
                "count-mismatch",
                f"The trace and the compiled module disagree on how often {len(disagreeing)} instructions ran: "
                f"{shown}.",
                lower_bound=True,
            )
        )
    return result, caveats


def _attributions(
    events: OpEvents, patterns: ScopePatterns, launching_ops: Mapping[int, Sequence[int]]
) -> tuple[tuple[Attribution, ...], list[Caveat]]:
    guessed: set[str] = set()
    by_program: dict[int, dict[str, Attribution]] = {}
    for k, program in enumerate(events.programs):
        if program.module is None:
            continue
        by_program[k] = attribute(program.module, patterns)
        guessed |= {
            program.module.placements[name].loops[0].name
            for name, attribution in by_program[k].items()
            if attribution.layer_is_guess
        }
    differentiated = {op.program for op in events.ops if "jvp(" in op.scope}
    own = [
        by_program.get(op.program, {}).get(op.name)
        or attribute_by_scope(op.scope, patterns, op.program in differentiated)
        for op in events.ops
    ]
    # What was offloaded belongs where it was launched.
    attributions = tuple(own[launching_ops[k][0]] if k in launching_ops else own[k] for k in range(len(own)))
    if not guessed:
        return attributions, []
    loops = ", ".join(sorted(guessed))
    return attributions, [
        Caveat(
            "layer-guess",
            f"No scope names the layers: the iterations of the outermost loops ({loops}) are taken for them.",
        )
    ]

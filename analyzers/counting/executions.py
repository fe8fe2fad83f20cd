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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.counting.arrays import Cells, both, counts, dense, numbered, sums
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
from analyzers.counting.selftime import device_self_times, self_times
from analyzers.counting.sparsecore import Offloaded, find_offloaded, of_slowest_core
from analyzers.reading.columns import XSpaceColumns

_NO_INDEX = -1
_MOST = 2**31 - 1


@dataclass(frozen=True)
class IndexRule:
    """How the layer (or chunk) of an execution follows from its op and its number; one array entry per op.

    With a `count` above 0 it is a digit of the number, `number // each % count`, counted down from the last where
    `backwards`; else it is `fixed`.
    """

    fixed: NDArray[np.int32]
    each: NDArray[np.int32]
    count: NDArray[np.int32]
    backwards: NDArray[np.bool_]


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
        return self._index(self.layer_rule)

    @cached_property
    def chunk(self) -> NDArray[np.int32]:
        """Chunk of each row, -1 where nothing tells."""
        return self._index(self.chunk_rule)

    @cached_property
    def layer_rule(self) -> IndexRule:
        """What `layer` follows from, except for what was offloaded."""
        return self._rule([(a.layer, a.layer_loop) for a in self.attributions])

    @cached_property
    def chunk_rule(self) -> IndexRule:
        """What `chunk` follows from, except for what was offloaded."""
        return self._rule([(a.chunk, a.chunk_loop) for a in self.attributions])

    @cached_property
    def self_ps_of_ops(self) -> NDArray[np.int64]:
        """Self time of each op, all its rows together."""
        return sums(self.events.op, self.self_ps, len(self.ops))

    def iteration(self, depth: int) -> NDArray[np.int32]:
        """Iteration of the enclosing loop at `depth` (0 is the outermost), -1 outside such a loop."""
        return self._index(self._rule([(None, depth)] * len(self.ops)), keep_order=True)

    def _rule(self, wanted: Sequence[tuple[int | None, int | None]]) -> IndexRule:
        """`wanted` has for each op a fixed index, or the depth of the loop whose iteration it is, or neither."""
        size = len(self.ops)
        fixed = np.full(size, _NO_INDEX, np.int32)
        each = np.ones(size, np.int32)
        count = np.zeros(size, np.int32)
        backwards = np.zeros(size, bool)
        for k, (index, depth) in enumerate(wanted):
            if index is not None:
                fixed[k] = index
            elif depth is not None and (digit := self._digit(self.ops[k], depth)) is not None:
                count[k], each[k], backwards[k] = digit
        return IndexRule(fixed, each, count, backwards)

    def _index(self, rule: IndexRule, *, keep_order: bool = False) -> NDArray[np.int32]:
        op = self.events.op
        result = rule.fixed[op]
        looped = rule.count[op] > 0
        if looped.any():
            rows = np.flatnonzero(looped)
            some = op[rows]
            digit_of_row = (self.execution[rows] // rule.each[some]) % rule.count[some]
            if not keep_order:
                digit_of_row = np.where(rule.backwards[some], rule.count[some] - 1 - digit_of_row, digit_of_row)
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
        return trips[depth], min(max(per_iteration, 1), _MOST), placement.loops[depth].reversed


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

    def place() -> tuple[Runs, NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_], list[Caveat]]:
        runs, run, run_caveats = find_runs(columns, events, expected, offloaded.rows)
        run[offloaded.rows] = run[offloaded.launcher]
        execution, first, count_caveats = _number(events, runs, run, expected)
        return runs, run, execution, first, [*run_caveats, *count_caveats]

    of_devices, (runs, run, execution, first, caveats) = both(len(events.op), lambda: device_self_times(events), place)
    self_ps = self_times(events, run, of_devices)
    attributions, layer_caveats = _attributions(events, patterns, launching_ops)
    return Executions(
        events=events,
        runs=runs,
        attributions=attributions,
        expected=expected,
        run=run,
        execution=execution,
        first=first,
        self_ps=of_slowest_core(events, offloaded, self_ps),
        offloaded=offloaded,
        launching_ops=launching_ops,
        caveats=(*caveats, *layer_caveats, *_not_joined(events, offloaded)),
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
    order = _time_order(events)
    # Rows outside any run are numbered together, apart from those of any run.
    in_order, cells = numbered(events.op[order], run[order], len(events.ops), len(runs))
    number = in_order
    if not isinstance(order, slice):
        number = np.empty_like(in_order)
        number[order] = in_order
    each, caveats = _events_per_execution(events, runs, cells, expected)
    if np.all(each == 1):
        return number, np.broadcast_to(np.True_, len(number)), caveats
    each_of_row = each[events.op]
    return number // each_of_row, number % each_of_row == 0, caveats


def _time_order(events: OpEvents) -> NDArray[np.intp] | slice:
    """Return the order of rows by start time, or a slice where each device has one line that is in order."""
    devices = [span.device for span in events.spans]
    if len(devices) == 1 or (None not in devices and len(set(devices)) == len(devices)):
        parts = [events.start_ps[span.first : span.last] for span in events.spans]
        if all(np.all(start[1:] >= start[:-1]) for start in parts):
            return slice(None)
    return np.argsort(events.start_ps, kind="stable")


def _events_per_execution(
    events: OpEvents, runs: Runs, cells: Cells, expected: NDArray[np.int64]
) -> tuple[NDArray[np.int32], list[Caveat]]:
    """Return how many events one execution of each op leaves, and where the trace and the module disagree.

    `cells` counts events by op and run.
    """
    result = np.ones(len(events.ops), np.int32)
    caveats: list[Caveat] = []
    without_module: set[str] = set()
    unknown: list[str] = []
    disagreeing: list[str] = []
    runs_of_program = counts(runs.program, len(events.programs))
    for k, seen, of_run in _by_op(cells):
        op = events.ops[k]
        if expected[k] <= 0:
            if op.program >= 0 and events.programs[op.program].module is None:
                without_module.add(events.programs[op.program].name)
            elif why := _why_unknown(op, events.programs):
                unknown.append(f"{op.name}, because {why}")
            continue
        # A clipped run has fewer events than the others, or none: the most frequent number is the module's promise.
        usual = _most_frequent(seen)
        if usual % expected[k] == 0:
            result[k] = usual // expected[k]
        own_runs = int(runs_of_program[op.program]) if op.program >= 0 else 0
        missed = max(own_runs - int(np.count_nonzero(runs.program[of_run] == op.program)), 0)
        odd = int(np.count_nonzero(seen != expected[k] * result[k])) + missed
        if odd:
            disagreeing.append(f"{op.name} ({odd} of {len(seen) + missed} runs)")
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


def _by_op(cells: Cells) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield each op that ran in a run, how many events each such run has of it, and those runs."""
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(cells.id)) + 1, [len(cells.id)])).tolist()
    for first, last in pairwise(bounds):
        last -= last > first and cells.part[last - 1] < 0  # What is in no run comes last.
        if last > first:
            yield int(cells.id[first]), cells.count[first:last], cells.part[first:last]


def _most_frequent(values: NDArray[np.int64]) -> int:
    if values.min() == values.max():
        return int(values[0])
    distinct, frequency = np.unique(values, return_counts=True)
    return int(distinct[np.argmax(frequency)])


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

"""Module runs: one execution of a compiled module on one device, and the run each op event belongs to.

A CPU trace says the run of every op (`run_id`; one that does not is read as a GPU's). A TPU trace has a line of
module executions, but on the event clock, which can be off by 198 ms against the device clock of the ops, so ops
are dealt to runs by counting wherever the counts come out, and by time only where they do not. A GPU trace says
nothing: the number of runs is the number by which the events of most ops of the module can be divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.counting.arrays import counts, dealt, dense, occurrence_numbers, take, unique
from analyzers.counting.ops import OpEvents, device_names, same_id, split_module_name
from analyzers.reading.columns import ABSENT, LineKind, PlaneKind, XSpaceColumns


@dataclass(frozen=True)
class Runs:
    """Module runs of one file, ordered by device, then program, then time; one array entry each.

    `start_ps` and `duration_ps` cover the run from its first op's start to its last op's end on a CPU or GPU,
    and are those of the module event on a TPU (its own clock). `number` counts the runs of one program on one
    device from 0.
    """

    device: NDArray[np.int32]
    program: NDArray[np.int32]
    number: NDArray[np.int32]
    start_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.program)


@dataclass(frozen=True)
class _Found:
    """Runs on one device, in the order in which they were found; one array entry each."""

    device: int
    program: NDArray[np.int32]
    start_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]


Rows = NDArray[np.intp] | slice


def find_runs(
    columns: XSpaceColumns, events: OpEvents, expected: NDArray[np.int64], left_out: NDArray[np.intp]
) -> tuple[Runs, NDArray[np.int32], list[Caveat]]:
    """Return all module runs, the run of each op event (-1 for none), and what could not be told.

    `expected` is the number of executions per run by op, -1 where unknown; the rows `left_out` get no run.
    """
    program_of_op = np.array([op.program for op in events.ops], np.int32)
    run = np.full(len(events.op), -1, np.int32)
    found: list[_Found] = []
    caveats: list[Caveat] = []
    for device, name in enumerate(events.devices):
        rows = _rows_of(events, device, left_out)
        base = sum(len(f.program) for f in found)
        if name.startswith("TPU"):
            module_runs = _module_runs(columns, events, device)
            run[rows], unsure = _deal_to_module_events(events, rows, program_of_op, expected, module_runs, base)
            found.append(module_runs)
            caveats += unsure
            continue
        assert not isinstance(rows, slice)
        program = program_of_op[events.op[rows]]
        rows, program = rows[program >= 0], program[program >= 0]
        if name.startswith("CPU") and events.run_id is not None and (events.run_id[rows] != ABSENT).any():
            run[rows], some = _runs_by_id(events, device, rows, program)
        else:
            run[rows], some = _runs_by_division(events, device, rows, program, expected)
        run[rows] += base
        found.append(some)
    runs, position = _ordered(found)
    if position is not None:
        run = take(position, run)
    return runs, run, [*caveats, *_missing_runs(events, runs)]


def _rows_of(events: OpEvents, device: int, left_out: NDArray[np.intp]) -> Rows:
    """Return the rows of a device without those `left_out`; a slice where they are one line of a TPU."""
    own = [span for span in events.spans if span.device in (device, None)]
    if len(own) == 1 and own[0].device == device and len(left_out) == 0 and events.devices[device].startswith("TPU"):
        return slice(own[0].first, own[0].last)
    wanted = events.device == device
    wanted[left_out] = False
    return np.flatnonzero(wanted)


def _ordered(found: Sequence[_Found]) -> tuple[Runs, NDArray[np.int32] | None]:
    """Put runs in order; return also where each went, None where all were in order already."""
    device = _joined([np.full(len(f.program), f.device, np.int32) for f in found], np.int32)
    program = _joined([f.program for f in found], np.int32)
    start = _joined([f.start_ps for f in found], np.int64)
    duration = _joined([f.duration_ps for f in found], np.int64)
    order = np.lexsort((start, program, device))
    position = None
    if np.any(order[1:] < order[:-1]):
        position = np.empty(len(order), np.int32)
        position[order] = np.arange(len(order), dtype=np.int32)
        device, program, start, duration = device[order], program[order], start[order], duration[order]
    group, distinct = dense(device, program)
    return Runs(device, program, occurrence_numbers(group, max(len(distinct), 1)), start, duration), position


def _joined(parts: Sequence[NDArray], dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.concatenate([np.zeros(0, dtype), *parts])


def _runs_by_id(
    events: OpEvents, device: int, rows: NDArray[np.intp], program: NDArray[np.int32]
) -> tuple[NDArray[np.int32], _Found]:
    assert events.run_id is not None
    ids, distinct = dense(program, events.run_id[rows])
    start, _ = _extent(ids, events.start_ps[rows], len(distinct))
    _, end = _extent(ids, events.start_ps[rows] + events.duration_ps[rows], len(distinct))
    return ids, _Found(device, np.array([key[0] for key in distinct], np.int32), start, end - start)


def _module_runs(columns: XSpaceColumns, events: OpEvents, device: int) -> _Found:
    """Return the module executions of a TPU, on the event clock, by program and time."""
    parts = []
    names = device_names(columns)
    for line in columns.lines:
        plane = columns.planes[line.plane]
        if line.kind is not LineKind.MODULES or plane.kind is not PlaneKind.TPU:
            continue
        if names[line.plane] != events.devices[device]:
            continue
        ids = [split_module_name(metadata.name)[1] for metadata in plane.metadata]
        programs = [_NO_MODULE if number is None else _program_index(events, number) for number in ids]
        program = np.array([*programs, _NO_MODULE], np.int32)[columns.events.metadata[line.first : line.last]]
        known = program != _NO_MODULE
        window = slice(line.first, line.last)
        start, duration = columns.events.event_start_ps[window], columns.events.event_duration_ps[window]
        parts.append((program[known], start[known], duration[known]))
    program, start, duration = (
        _joined([part[k] for part in parts], dtype) for k, dtype in enumerate((np.int32, np.int64, np.int64))
    )
    order = np.lexsort((start, program))
    return _Found(device, program[order], start[order], duration[order])


_NO_MODULE = -2
"""What is no module event: its name carries no program id."""


def _deal_to_module_events(
    events: OpEvents,
    rows: Rows,
    program_of_op: NDArray[np.int32],
    expected: NDArray[np.int64],
    module_runs: _Found,
    base: int,
) -> tuple[NDArray[np.int32], list[Caveat]]:
    """Return the run of each of a TPU's rows, counted from `base`: by number, or by time where that does not come out.

    An op's events, in time order, are dealt to the runs of its program: as many to each as the module promises,
    or an equal share. What the numbers do not bear out is dealt by time.
    """
    order = _time_order(events.start_ps[rows])
    op = events.op[rows][order]
    seen = counts(op, len(events.ops))
    first_run = np.searchsorted(module_runs.program, program_of_op, side="left")
    num_runs = np.searchsorted(module_runs.program, program_of_op, side="right") - first_run
    num_runs[program_of_op < 0] = 0
    per_run = np.where(expected > 0, expected, seen // np.maximum(num_runs, 1))
    dealt_out = (num_runs > 0) & (seen > 0)
    unsure = dealt_out & ~((per_run > 0) & (seen == per_run * num_runs))
    first = np.where(dealt_out, first_run + base, -1).astype(np.int32)
    run = dealt(op, first, np.clip(per_run, 1, np.iinfo(np.int32).max).astype(np.int32))
    # By program, as the runs of each are in time order.
    for program in unique(program_of_op[unsure]).tolist():
        where = np.flatnonzero((unsure & (program_of_op == program))[op])
        some = np.arange(len(events.op))[rows][order][where]
        mine = np.flatnonzero(module_runs.program == program)
        begun = np.searchsorted(module_runs.start_ps[mine], events.event_start_ps[some], side="right") - 1
        run[where] = base + mine[0] + np.maximum(begun, 0)
    result = run
    if not isinstance(order, slice):
        result = np.empty_like(run)
        result[order] = run
    if not unsure.any():
        return result, []
    by_time = [
        name for _, name in sorted({(op.program, op.name) for op, k in zip(events.ops, unsure, strict=True) if k})
    ]
    return result, [
        Caveat(
            "runs-by-time",
            f"{len(by_time)} instructions on {events.devices[module_runs.device]} did not run equally often in "
            f"every module execution ({', '.join(by_time[:3])}{', …' if len(by_time) > 3 else ''}); they were dealt "
            "to executions by the host-aligned clock, which can be off.",
        )
    ]


def _time_order(start_ps: NDArray[np.int64]) -> Rows:
    """Return the order by start, a slice where that is the order already."""
    return slice(None) if np.all(start_ps[1:] >= start_ps[:-1]) else np.argsort(start_ps, kind="stable")


def _program_index(events: OpEvents, program_id: int) -> int:
    for k, program in enumerate(events.programs):
        if program.program_id is not None and same_id(program.program_id, program_id):
            return k
    return -1


def _runs_by_division(
    events: OpEvents,
    device: int,
    rows: NDArray[np.intp],
    program: NDArray[np.int32],
    expected: NDArray[np.int64],
) -> tuple[NDArray[np.int32], _Found]:
    run = np.full(len(rows), -1, np.int32)
    order = np.arange(len(rows))[_time_order(events.start_ps[rows])]
    found: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]] = []
    num_found = 0
    for index in unique(program).tolist():
        mine = order[program[order] == index]
        op, start = events.op[rows[mine]], events.start_ps[rows[mine]]
        seen = np.bincount(op, minlength=len(expected))
        num_runs = _number_of_runs(seen, expected)
        fits = (seen % (num_runs * np.maximum(expected, 1)) == 0)[op]
        number = occurrence_numbers(op, len(expected))
        dealt_to = (number.astype(np.int64) * num_runs // seen[op]).astype(np.int32)
        lost = ~fits
        if lost.any():
            dealt_to[lost] = _deal_by_time(op, start, dealt_to, lost, num_runs)
        run[mine] = num_found + dealt_to
        begin, _ = _extent(dealt_to, start, num_runs)
        _, end = _extent(dealt_to, start + events.duration_ps[rows[mine]], num_runs)
        found.append((np.full(num_runs, index, np.int32), begin, end - begin))
        num_found += num_runs
    programs, starts, durations = (
        _joined([part[k] for part in found], dtype) for k, dtype in enumerate((np.int32, np.int64, np.int64))
    )
    return run, _Found(device, programs, starts, durations)


def _extent(
    ids: NDArray[np.signedinteger], moments: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last moment of each id."""
    first, last = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(first, ids, moments)
    np.maximum.at(last, ids, moments)
    return first, last


def _deal_by_time(
    op: NDArray[np.int32], start: NDArray[np.int64], sure: NDArray[np.int32], lost: NDArray[np.bool_], num_runs: int
) -> NDArray[np.intp]:
    """Return the run of each `lost` event; the runs of the other events are `sure`.

    An event belongs to the last run that began before it, unless it lies between two runs and is of an op that
    opens a run, as the first run shows:

                 run 0                run 1
        |open|fits … fits|tail|  |open|fits … fits|tail|
    """
    begins, lasts = _extent(sure[~lost], start[~lost], num_runs)
    moment, of = start[lost], op[lost]
    opening = np.isin(of, of[moment < begins[0]])
    last_begun = np.maximum(np.searchsorted(begins, moment, side="right") - 1, 0)
    between = moment > lasts[last_begun]
    result: NDArray[np.intp] = np.minimum(last_begun + (opening & between), num_runs - 1)
    return result


def _number_of_runs(seen: NDArray[np.int64], expected: NDArray[np.int64]) -> int:
    """Return the number of runs that explains the event counts of most ops, each a whole number of times.

    Ops can leave several kernels per execution, so counts are multiples of it; and the profiler can lose the
    name of single kernels, so not every count need be one.
    """
    once = np.maximum(expected, 1)
    whole = (seen > 0) & (seen % once == 0)
    if not whole.any():
        return 1
    times = seen[whole] // once[whole]
    common = int(np.gcd.reduce(times))
    candidates: list[int] = sorted({*times.tolist(), *([common] if common > 1 else [])})
    return max(candidates, key=lambda runs: (np.count_nonzero(times % runs == 0), runs))


def _missing_runs(events: OpEvents, runs: Runs) -> list[Caveat]:
    """Return a caveat where devices ran a program unequally often: a profile that lost module executions."""
    caveats = []
    num_devices = len(events.devices)
    known = runs.program >= 0
    per_device = counts(runs.program[known] * num_devices + runs.device[known], len(events.programs) * num_devices)
    for program, times in zip(
        events.programs, per_device.reshape(len(events.programs), num_devices).tolist(), strict=True
    ):
        ran = {name: n for name, n in zip(events.devices, times, strict=True) if n}
        if len(ran) > 1 and len(set(ran.values())) > 1:
            least, most = min(ran, key=lambda n: ran[n]), max(ran, key=lambda n: ran[n])
            caveats.append(
                Caveat(
                    "missing-runs",
                    f"{program.name} ran {ran[most]} times on {most} but {ran[least]} times on {least}: "
                    "the trace may have lost module executions.",
                )
            )
    return caveats

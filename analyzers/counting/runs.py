"""Module runs: one execution of a compiled module on one device, and the run each op event belongs to.

A CPU trace says the run of every op (`run_id`; one that does not is read as a GPU's). A TPU trace has a line of
module executions, but on the event clock, which can be off by 198 ms against the device clock of the ops, so ops
are dealt to runs by counting wherever the counts come out, and by time only where they do not. A GPU trace says
nothing: the number of runs is the number by which the events of most ops of the module can be divided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.counting.arrays import dense, occurrence_numbers
from analyzers.counting.ops import OpEvents, same_id, split_module_name
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
    device: int
    program: int
    start_ps: int
    duration_ps: int


def find_runs(
    columns: XSpaceColumns, events: OpEvents, expected: NDArray[np.int64], left_out: NDArray[np.intp]
) -> tuple[Runs, NDArray[np.int32], list[Caveat]]:
    """Return all module runs, the run of each op event (-1 for none), and what could not be told.

    `expected` is the number of executions per run by op, -1 where unknown; the rows `left_out` get no run.
    """
    program_of_op = np.array([op.program for op in events.ops], np.int32)
    program = program_of_op[events.op] if len(events.op) else np.zeros(0, np.int32)
    program[left_out] = -1
    run = np.full(len(program), -1, np.int32)
    found: list[_Found] = []
    caveats: list[Caveat] = []
    for device, name in enumerate(events.devices):
        rows = np.flatnonzero((events.device == device) & (program >= 0))
        if name.startswith("CPU") and events.run_id is not None and (events.run_id[rows] != ABSENT).any():
            _runs_by_id(events, device, rows, program, run, found)
        elif name.startswith("TPU"):
            caveats += _runs_by_module_events(columns, events, device, rows, program, expected, run, found)
        else:
            _runs_by_division(events, device, rows, program, expected, run, found)
    runs, position = _ordered(found)
    placed = run >= 0
    run[placed] = position[run[placed]]
    return runs, run, [*caveats, *_missing_runs(events, runs)]


def _ordered(found: list[_Found]) -> tuple[Runs, NDArray[np.int32]]:
    order = sorted(range(len(found)), key=lambda k: (found[k].device, found[k].program, found[k].start_ps))
    position = np.empty(len(found), np.int32)
    position[order] = np.arange(len(found), dtype=np.int32)
    device = np.array([found[k].device for k in order], np.int32)
    program = np.array([found[k].program for k in order], np.int32)
    key, distinct = dense(device, program)
    return (
        Runs(
            device=device,
            program=program,
            number=occurrence_numbers(key, max(len(distinct), 1)),
            start_ps=np.array([found[k].start_ps for k in order], np.int64),
            duration_ps=np.array([found[k].duration_ps for k in order], np.int64),
        ),
        position,
    )


def _runs_by_id(
    events: OpEvents,
    device: int,
    rows: NDArray[np.intp],
    program: NDArray[np.int32],
    run: NDArray[np.int32],
    found: list[_Found],
) -> None:
    if len(rows) == 0:
        return
    assert events.run_id is not None
    ids, distinct = dense(program[rows], events.run_id[rows])
    start = np.full(len(distinct), np.iinfo(np.int64).max)
    end = np.full(len(distinct), np.iinfo(np.int64).min)
    np.minimum.at(start, ids, events.start_ps[rows])
    np.maximum.at(end, ids, events.start_ps[rows] + events.duration_ps[rows])
    run[rows] = ids + len(found)
    found += [_Found(device, key[0], int(s), int(e - s)) for key, s, e in zip(distinct, start, end, strict=True)]


def _module_events(columns: XSpaceColumns, device_name: str) -> Iterator[tuple[int, int, int]]:
    """Yield (program id, start_ps, duration_ps) of each module execution, on the event clock."""
    for line in columns.lines:
        plane = columns.planes[line.plane]
        if line.kind is not LineKind.MODULES or plane.kind is not PlaneKind.TPU:
            continue
        if plane.name.removeprefix("/device:") != device_name:
            continue
        for row in range(line.first, line.last):
            metadata = int(columns.events.metadata[row])
            _, program_id = split_module_name(plane.metadata[metadata].name) if metadata >= 0 else ("", None)
            if program_id is not None:
                start, duration = columns.events.event_start_ps[row], columns.events.event_duration_ps[row]
                yield program_id, int(start), int(duration)


def _runs_by_module_events(
    columns: XSpaceColumns,
    events: OpEvents,
    device: int,
    rows: NDArray[np.intp],
    program: NDArray[np.int32],
    expected: NDArray[np.int64],
    run: NDArray[np.int32],
    found: list[_Found],
) -> list[Caveat]:
    rows = _in_time_order(rows, events.start_ps)
    by_program: dict[int, list[_Found]] = defaultdict(list)
    for program_id, start, duration in _module_events(columns, events.devices[device]):
        index = _program_index(events, program_id)
        by_program[index].append(_Found(device, index, start, duration))
    by_time: list[str] = []
    for index in sorted(set(np.unique(program[rows]).tolist()) | set(by_program)):
        mine = rows[program[rows] == index]
        module_runs = sorted(by_program.get(index, []), key=lambda r: r.start_ps)
        if not module_runs:
            continue
        base = len(found)
        found += module_runs
        if len(mine) == 0:
            continue
        dealt, unsure = _dealt(events.op[mine], len(module_runs), expected)
        if unsure.any():
            starts = np.array([r.start_ps for r in module_runs], np.int64)
            some = mine[unsure]
            dealt[unsure] = np.maximum(np.searchsorted(starts, events.event_start_ps[some], side="right") - 1, 0)
            by_time += sorted({events.ops[k].name for k in np.unique(events.op[some])})
        run[mine] = base + dealt
    if not by_time:
        return []
    return [
        Caveat(
            "runs-by-time",
            f"{len(by_time)} instructions on {events.devices[device]} did not run equally often in every module "
            f"execution ({', '.join(by_time[:3])}{', …' if len(by_time) > 3 else ''}); they were dealt to executions "
            "by the host-aligned clock, which can be off.",
        )
    ]


def _in_time_order(rows: NDArray[np.intp], start_ps: NDArray[np.int64]) -> NDArray[np.intp]:
    start = start_ps[rows]
    return rows if np.all(start[1:] >= start[:-1]) else rows[np.argsort(start, kind="stable")]


def _dealt(
    op: NDArray[np.int32], num_runs: int, expected: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Deal events (in time order) to runs by counting; the second array marks where that does not come out."""
    seen = np.bincount(op, minlength=len(expected))
    per_run = np.where(expected > 0, expected, seen // num_runs)
    fits = (per_run > 0) & (seen == per_run * num_runs)
    number = occurrence_numbers(op, len(expected))
    return (number // np.maximum(per_run, 1)[op]).astype(np.int32), ~fits[op]


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
    run: NDArray[np.int32],
    found: list[_Found],
) -> None:
    rows = _in_time_order(rows, events.start_ps)
    for index in np.unique(program[rows]).tolist():
        mine = rows[program[rows] == index]
        op, start = events.op[mine], events.start_ps[mine]
        seen = np.bincount(op, minlength=len(expected))
        num_runs = _number_of_runs(seen, expected)
        fits = (seen % (num_runs * np.maximum(expected, 1)) == 0)[op]
        number = occurrence_numbers(op, len(expected))
        dealt = (number.astype(np.int64) * num_runs // seen[op]).astype(np.int32)
        lost = ~fits
        if lost.any():
            dealt[lost] = _deal_by_time(op, start, dealt, lost, num_runs)
        run[mine] = len(found) + dealt
        for k in range(num_runs):
            inside = mine[dealt == k]
            begin = int(events.start_ps[inside].min())
            end = int((events.start_ps[inside] + events.duration_ps[inside]).max())
            found.append(_Found(device, index, begin, end - begin))


def _deal_by_time(
    op: NDArray[np.int32], start: NDArray[np.int64], dealt: NDArray[np.int32], lost: NDArray[np.bool_], num_runs: int
) -> NDArray[np.intp]:
    """Return the run of each `lost` event; the other events are `dealt` already.

    An event belongs to the last run that began before it, unless it lies between two runs and is of an op that
    opens a run, as the first run shows:

                 run 0                run 1
        |open|fits … fits|tail|  |open|fits … fits|tail|
    """
    begins = np.array([start[~lost & (dealt == k)].min() for k in range(num_runs)], np.int64)
    lasts = np.array([start[~lost & (dealt == k)].max() for k in range(num_runs)], np.int64)
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
    for index, program in enumerate(events.programs):
        per_device = {
            name: int(np.count_nonzero((runs.program == index) & (runs.device == device)))
            for device, name in enumerate(events.devices)
        }
        ran = {name: n for name, n in per_device.items() if n}
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

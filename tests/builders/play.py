"""Plays a compiled module: what runs when, for how long, in which iteration of which loop.

The truth of a built trace. This is an interpreter of its own over the raw proto; it shares no code with
`analyzers.counting`. All times are integer picoseconds, and multiples of `TICK_PS` where the durations are.

    entry  |op|- while ---------------------------------------------|op|
               |own|--body 0: a b--|--body 1: a b--| ... |own|
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from analyzers.reading.protos import hlo_pb2

TICK_PS = 1250
"""Period of the clock of a TPU v6e."""

Durations = Callable[[str, int, tuple[int, ...]], int]
"""Own time in ps of an instruction in a step, in the given iterations of the loops around it."""

_SILENT = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
_CONTAINERS = {"while", "call", "conditional"}
_GAP_PS = 4 * TICK_PS


@dataclass(frozen=True)
class Execution:
    """One execution. `start_ps` counts from the start of the trace."""

    instruction: str
    opcode: str
    scope: str
    loops: tuple[tuple[str, int], ...]
    """Name and iteration of each enclosing loop, outermost first."""
    start_ps: int
    duration_ps: int
    self_ps: int
    pieces: tuple[tuple[int, int], ...]
    """(start_ps, duration_ps) of the pieces that do the work; one unless several were asked for."""

    @property
    def iterations(self) -> tuple[int, ...]:
        return tuple(iteration for _, iteration in self.loops)

    @property
    def container(self) -> bool:
        return self.opcode in _CONTAINERS


@dataclass(frozen=True)
class Run:
    """One run of the module on one device."""

    device: int
    step: int
    start_ps: int
    duration_ps: int
    executions: tuple[Execution, ...]
    module_event: bool = True
    """Whether the trace shows the run as a module execution, on layouts that do so."""

    def clipped(self, keep: float) -> Run:
        """Return the run without what happened after the fraction `keep` of its time."""
        until = self.start_ps + int(self.duration_ps * keep)
        return replace(self, executions=tuple(e for e in self.executions if e.start_ps + e.duration_ps <= until))


@dataclass(frozen=True)
class Program:
    """A compiled module with the id it has in a trace."""

    hlo_proto: bytes
    program_id: int = 12
    branch: int = 0
    """Which branch every conditional takes."""
    trips: Mapping[str, int] = field(default_factory=dict)
    """Trip counts of loops for which the compiler found none."""

    @property
    def module(self) -> hlo_pb2.Module:
        return hlo_pb2.HloProto.FromString(self.hlo_proto).hlo_module

    @property
    def name(self) -> str:
        return self.module.name.decode()


def default_durations(name: str, step: int, iterations: tuple[int, ...]) -> int:
    """Different for every instruction, step and iteration, so that a mix-up cannot add up by chance."""
    key = f"{name} {step} {iterations}".encode()
    return TICK_PS * (40 + zlib.crc32(key) % 1000)


def play(
    program: Program,
    durations: Durations = default_durations,
    *,
    devices: int = 1,
    steps: int = 1,
    pieces: Callable[[str], int] = lambda name: 1,
    conditions: bool = False,
) -> list[Run]:
    """Run the program `steps` times on each of `devices`.

    Args:
        program: What runs.
        durations: Own time of each execution; device d adds d ticks to it.
        devices: Number of devices.
        steps: Number of runs on each device.
        pieces: Into how many pieces of work an instruction falls apart. Pieces of neighbours interleave.
        conditions: Whether the instructions of loop conditions leave something, too.

    """
    module = program.module
    runs = []
    for device in range(devices):
        clock = 1_000 * TICK_PS + 17 * TICK_PS * device
        for step in range(steps):
            player = _Player(program, module, durations, step, device, pieces, conditions)
            end = player.computation(module.entry_computation_id, clock, (), gap=_GAP_PS)
            runs.append(Run(device, step, clock, end - clock, tuple(player.done)))
            clock = end + 300 * TICK_PS
    return runs


def added(
    runs: Iterable[Run],
    key: Callable[[Run, Execution], Hashable | None],
    value: Callable[[Execution], int] = lambda e: e.self_ps,
) -> dict[Hashable, int]:
    """Add up a value of all executions by key; those with key None are left out."""
    result: dict[Hashable, int] = defaultdict(int)
    for run in runs:
        for execution in run.executions:
            k = key(run, execution)
            if k is not None:
                result[k] += value(execution)
    return dict(result)


class _Player:
    def __init__(self, program, module, durations, step, device, pieces, conditions) -> None:
        self.computations = {c.id: c for c in module.computations}
        self.schedule = module.schedule.sequences
        self.program, self.durations, self.step, self.device = program, durations, step, device
        self.pieces, self.conditions = pieces, conditions
        self.done: list[Execution] = []

    def computation(self, computation_id: int, clock: int, loops: tuple[tuple[str, int], ...], gap: int = 0) -> int:
        leaves: list[hlo_pb2.Instruction] = []
        for instruction in self._in_order(computation_id):
            opcode = instruction.opcode.decode()
            if opcode in _SILENT:
                continue
            if opcode not in _CONTAINERS:
                leaves.append(instruction)
                continue
            clock = self._leaves(leaves, clock, loops, gap)
            leaves = []
            clock = self._container(instruction, opcode, clock, loops) + gap
        return self._leaves(leaves, clock, loops, gap)

    def _in_order(self, computation_id: int) -> Sequence[hlo_pb2.Instruction]:
        computation = self.computations[computation_id]
        if computation_id not in self.schedule:
            return computation.instructions
        by_id = {i.id: i for i in computation.instructions}
        return [by_id[k] for k in self.schedule[computation_id].instruction_ids]

    def _own(self, instruction: hlo_pb2.Instruction, loops: tuple[tuple[str, int], ...]) -> int:
        iterations = tuple(iteration for _, iteration in loops)
        return self.durations(instruction.name.decode(), self.step, iterations) + self.device * TICK_PS

    def _leaves(self, leaves, clock: int, loops, gap: int) -> int:
        """Play a stretch of plain instructions; with several pieces each, all first pieces come first."""
        left = [_cut(self._own(i, loops), self.pieces(i.name.decode())) for i in leaves]
        placed: list[list[tuple[int, int]]] = [[] for _ in leaves]
        while any(left):
            for cuts, pieces in zip(left, placed, strict=True):
                if cuts:
                    pieces.append((clock, cuts.pop(0)))
                    clock += pieces[-1][1] + gap
        for instruction, pieces in zip(leaves, placed, strict=True):
            start, end = pieces[0][0], pieces[-1][0] + pieces[-1][1]
            work = sum(duration for _, duration in pieces)
            self._record(instruction, loops, start, end - start, work, pieces)
        return clock

    def _container(self, instruction, opcode: str, start: int, loops) -> int:
        own = self._own(instruction, loops)
        slot = len(self.done)
        clock = start + own // (2 * TICK_PS) * TICK_PS
        called = list(instruction.called_computation_ids)
        if opcode == "while":
            name = instruction.name.decode()
            for iteration in range(self._trips(instruction)):
                clock = self._condition(called[1], clock, loops)
                clock = self.computation(called[0], clock, (*loops, (name, iteration)))
            clock = self._condition(called[1], clock, loops)
        else:
            clock = self.computation(called[0 if opcode == "call" else self.program.branch], clock, loops)
        end = clock + own - own // (2 * TICK_PS) * TICK_PS
        self._record(instruction, loops, start, end - start, own, [(start, end - start)])
        self.done.insert(slot, self.done.pop())
        return end

    def _condition(self, computation_id: int, clock: int, loops) -> int:
        return self.computation(computation_id, clock, loops) if self.conditions else clock

    def _trips(self, instruction: hlo_pb2.Instruction) -> int:
        name = instruction.name.decode()
        if name in self.program.trips:
            return self.program.trips[name]
        return int(json.loads(instruction.backend_config)["known_trip_count"]["n"])

    def _record(self, instruction, loops, start: int, duration: int, own: int, pieces) -> None:
        self.done.append(
            Execution(
                instruction=instruction.name.decode(),
                opcode=instruction.opcode.decode(),
                scope=instruction.metadata.op_name.decode(),
                loops=loops,
                start_ps=start,
                duration_ps=duration,
                self_ps=own,
                pieces=tuple(pieces),
            )
        )


def _cut(duration: int, pieces: int) -> list[int]:
    """Cut into one big piece at the end and small ones before it, as a CPU does with the copies of a sort."""
    small = [TICK_PS * (k + 1) for k in range(pieces - 1)]
    return [*small, duration - sum(small)]

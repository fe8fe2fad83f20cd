"""Which buffers are alive when, the peak, and why it moved between two compilations or did not.

Two sources: the live ranges that XLA dumps beside a module (all buffers, every backend), and the heap simulation in a
buffer assignment (temporary memory only; complete on CPU, partial on TPU). A buffer's life is given in positions of the
module's flattened schedule.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from analyzers.counting.buffers import HBM, Buffer, without_numbers
from analyzers.counting.hlo import Module, Shape
from analyzers.counting.scopes import Pass, attribute, effective_scope

Where = tuple[str, tuple[int, ...]]
"""A value: name of the instruction that defines it, and index into its (tuple) result."""

_SEQUENCE = re.compile(r"^    (\d+):(\S+)$", re.MULTILINE)
_RANGE = re.compile(r"^    ([^\s{]+)\{([\d, ]*)\}:(\d+)-(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """One buffer of HBM with the positions of its first and last use."""

    buffer: Buffer
    start: int
    end: int
    first: str
    """Instruction at `start`."""
    last: str
    """Instruction at `end`."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which most bytes are alive."""

    size_bytes: int
    """Bytes alive then; what the compiler reserves can be more, for alignment and gaps."""
    instruction: str
    scope: str
    pass_: Pass
    alive: tuple[LiveBuffer, ...]
    """Largest first."""
    with_arguments: bool
    """Whether arguments, constants and results are among them; else it is temporary memory alone."""


@dataclass(frozen=True, slots=True)
class _Values:
    sizes: Mapping[Where, int]
    slots: Mapping[Where, tuple[int, int]]
    """Allocation and offset: values in one slot are one piece of memory."""


def live_peak(module: Module, live_ranges: str = "") -> Peak | None:
    """Return the peak of a module, from the text of XLA's live ranges or, without it, from its heap simulation.

    None if there is neither.
    """
    values = _values(module)
    lives = _lives_of_text(live_ranges, values) if live_ranges else _lives_of_simulation(module, values)
    if lives is None:
        return None
    ranges, order = lives
    at, size = _highest(ranges, values)
    attributions = attribute(module)
    alive = [
        LiveBuffer(_buffer(module, where, values.sizes[where], attributions), start, end, order[start], order[end])
        for where, (start, end) in _alive(ranges, values, at).items()
    ]
    alive.sort(key=lambda live: (-live.buffer.size_bytes, live.start, live.buffer.instruction))
    name = order[at]
    return Peak(
        size_bytes=size,
        instruction=name,
        scope=effective_scope(module, module.instructions[name]) if name in module.instructions else "",
        pass_=attributions[name].pass_ if name in attributions else Pass.UNKNOWN,
        alive=tuple(alive),
        with_arguments=bool(live_ranges),
    )


def _values(module: Module) -> _Values:
    assignment = module.proto.buffer_assignment
    names = {i.id: _text(i.name) for c in module.proto.hlo_module.computations for i in c.instructions}
    by_id: dict[int, Where] = {}
    sizes: dict[Where, int] = {}
    for logical in assignment.logical_buffers:
        location = logical.defined_at
        name = names.get(location.instruction_id) or _text(location.instruction_name)
        where = name, tuple(location.shape_index)
        if logical.color == HBM:
            by_id[logical.id] = where
            sizes[where] = logical.size
    slots = {
        by_id[a.logical_buffer_id]: (allocation.index, a.offset)
        for allocation in assignment.buffer_allocations
        if not allocation.is_thread_local
        for a in allocation.assigned
        if a.logical_buffer_id in by_id
    }
    return _Values({where: size for where, size in sizes.items() if where in slots}, slots)


Lives = tuple[dict[Where, tuple[int, int]], dict[int, str]]


def _lives_of_text(text: str, values: _Values) -> Lives | None:
    order = {int(position): name for position, name in _SEQUENCE.findall(text)}
    ranges = {}
    for name, index, start, end in _RANGE.findall(text):
        where = name, tuple(int(i) for i in index.replace(" ", "").split(",") if i)
        if where in values.sizes:
            ranges[where] = int(start), min(int(end), max(order, default=0))
    return (ranges, defaultdict(str, order)) if ranges and order else None


def _lives_of_simulation(module: Module, values: _Values) -> Lives | None:
    """Return lives in positions of the simulation's own events, the largest one over HBM."""
    names = {i.id: _text(i.name) for c in module.proto.hlo_module.computations for i in c.instructions}
    where_of = {
        b.id: (
            names.get(b.defined_at.instruction_id) or _text(b.defined_at.instruction_name),
            tuple(b.defined_at.shape_index),
        )
        for b in module.proto.buffer_assignment.logical_buffers
    }
    best: Lives | None = None
    for trace in module.proto.buffer_assignment.heap_simulator_traces:
        ranges: dict[Where, tuple[int, int]] = {}
        order: dict[int, str] = defaultdict(str)
        for position, event in enumerate(trace.events):
            order[position] = _text(event.instruction_name)
            where = where_of.get(event.buffer_id)
            if where is None or where not in values.sizes:
                continue
            start = ranges[where][0] if where in ranges else position
            ranges[where] = start, position - (event.kind == event.FREE)
        if ranges and (best is None or len(ranges) > len(best[0])):
            best = ranges, order
    return best


def _highest(ranges: Mapping[Where, tuple[int, int]], values: _Values) -> tuple[int, int]:
    """Return the position at which most bytes are alive, and how many; a slot counts once, as its largest value."""
    by_start = sorted(ranges, key=lambda where: ranges[where][0])
    ending: list[tuple[int, Where]] = []
    slots: dict[tuple[int, int], dict[Where, int]] = defaultdict(dict)
    size, best = 0, (0, 0)
    for at, starting in groupby(by_start, key=lambda where: ranges[where][0]):
        while ending and ending[0][0] < at:
            where = heapq.heappop(ending)[1]
            slot = slots[values.slots[where]]
            before = max(slot.values())
            del slot[where]
            size += max(slot.values(), default=0) - before
        for where in starting:
            slot = slots[values.slots[where]]
            before = max(slot.values(), default=0)
            slot[where] = values.sizes[where]
            size += max(slot.values()) - before
            heapq.heappush(ending, (ranges[where][1], where))
        if size > best[1]:
            best = at, size
    return best


def _alive(ranges: Mapping[Where, tuple[int, int]], values: _Values, at: int) -> dict[Where, tuple[int, int]]:
    by_slot: dict[tuple[int, int], Where] = {}
    for where, (start, end) in ranges.items():
        if start <= at <= end:
            slot = values.slots[where]
            if slot not in by_slot or values.sizes[where] > values.sizes[by_slot[slot]]:
                by_slot[slot] = where
    return {where: ranges[where] for where in by_slot.values()}


def _buffer(module: Module, where: Where, size: int, attributions: Mapping[str, object]) -> Buffer:
    name, index = where
    instruction = module.instructions.get(name)
    if instruction is None:
        return Buffer(size, "", name, "", "", Pass.UNKNOWN)
    shape: Shape = instruction.shape
    for position in index:
        if position < len(shape.elements):
            shape = shape.elements[position]
    found = attributions.get(name)
    opcode = instruction.opcode
    if opcode == "fusion":
        inner = list(module.fused(instruction))
        opcode = f"fusion of {inner[-1].opcode}" if inner else opcode
    return Buffer(
        size_bytes=size,
        shape=str(shape),
        instruction=name,
        opcode=opcode,
        scope=effective_scope(module, instruction),
        pass_=getattr(found, "pass_", Pass.UNKNOWN),
        data_bytes=shape.size_bytes,
        index=index,
    )


@dataclass(frozen=True, slots=True)
class PeakChange:
    """What the move of the peak comes to: bytes at both peaks, and what is alive at only one of them."""

    a_bytes: int
    b_bytes: int
    only_a: tuple[Buffer, ...]
    only_b: tuple[Buffer, ...]
    same_place: bool
    """Whether both peaks are in the same pass and scope."""
    removed_alive: tuple[Buffer, ...]
    """Those of the buffers that B no longer has anywhere which were alive at A's peak."""
    removed: tuple[Buffer, ...]
    """Buffers of A that B no longer has anywhere, largest first."""


def peak_change(a: Peak, b: Peak, removed: tuple[Buffer, ...]) -> PeakChange:
    """Compare two peaks; `removed` are the buffers of A that B has no more, by shape and scope."""
    keys_a = [live.buffer for live in a.alive]
    keys_b = [live.buffer for live in b.alive]
    at_peak = {(live.buffer.instruction, live.buffer.index) for live in a.alive}
    return PeakChange(
        a_bytes=a.size_bytes,
        b_bytes=b.size_bytes,
        only_a=_without(keys_a, keys_b),
        only_b=_without(keys_b, keys_a),
        same_place=(a.pass_, without_numbers(a.scope)) == (b.pass_, without_numbers(b.scope)),
        removed_alive=tuple(x for x in removed if (x.instruction, x.index) in at_peak),
        removed=removed,
    )


def _without(these: list[Buffer], those: list[Buffer]) -> tuple[Buffer, ...]:
    left: dict[str, int] = defaultdict(int)
    for buffer in those:
        left[buffer.shape] += 1
    result = []
    for buffer in these:
        if buffer.shape.startswith("("):
            continue  # a table of pointers
        if left[buffer.shape]:
            left[buffer.shape] -= 1
        else:
            result.append(buffer)
    return tuple(result)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")

"""A view of one compiled module: its instructions, which of them execute, and how often.

`Module` answers the questions the rest of the package asks (what is this instruction, which loops enclose it,
how many times does it run per execution of the module) so that nobody else touches protobuf fields.

Facts relied on, from openxla/xla `xla/service/hlo.proto` and `xla/xla_data.proto`: a `while` calls its body
and its condition, in this order; `backend_config` of a `while` carries `known_trip_count` once the compiler
has found it; only `while`, `call`, `conditional` and `async-start` run their called computations as
instructions of their own, a fusion runs as one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from google.protobuf.message import DecodeError

from analyzers.counting.tripcounts import trip_counts
from analyzers.reading.protos import hlo_pb2

_DTYPES: Mapping[int, tuple[str, float]] = {
    1: ("pred", 1),
    2: ("s8", 1),
    3: ("s16", 2),
    4: ("s32", 4),
    5: ("s64", 8),
    6: ("u8", 1),
    7: ("u16", 2),
    8: ("u32", 4),
    9: ("u64", 8),
    10: ("f16", 2),
    11: ("f32", 4),
    12: ("f64", 8),
    15: ("c64", 8),
    16: ("bf16", 2),
    17: ("token", 0),
    18: ("c128", 16),
    19: ("f8e5m2", 1),
    20: ("f8e4m3fn", 1),
    21: ("s4", 0.5),
    22: ("u4", 0.5),
    23: ("f8e4m3b11fnuz", 1),
    24: ("f8e5m2fnuz", 1),
    25: ("f8e4m3fnuz", 1),
    26: ("s2", 0.25),
    27: ("u2", 0.25),
    28: ("f8e4m3", 1),
    29: ("f8e3m4", 1),
    32: ("f4e2m1fn", 0.5),
    33: ("f8e8m0fnu", 1),
}
_TUPLE = 13

_CONTROL_FLOW = frozenset({"while", "call", "conditional", "async-start"})


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of an instruction's result; a tuple has `elements` and neither dtype nor dimensions."""

    dtype: str
    dimensions: tuple[int, ...]
    elements: tuple[Shape, ...] = ()

    def __str__(self) -> str:
        """Return the HLO spelling without layout, e.g. `s32[4096]` or `(s32[8], f32[8,2])`."""
        if self.dtype == "tuple":
            return "(" + ", ".join(map(str, self.elements)) + ")"
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"

    @property
    def size_bytes(self) -> int:
        """Bytes of the data, without padding or tiling."""
        if self.dtype == "tuple":
            return sum(element.size_bytes for element in self.elements)
        width = next((width for name, width in _DTYPES.values() if name == self.dtype), 0)
        return math.ceil(math.prod(self.dimensions) * width)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One HLO instruction. `operands` and `called` are names, `scope` is its op_name, empty if it has none."""

    name: str
    opcode: str
    scope: str
    shape: Shape
    operands: tuple[str, ...]
    called: tuple[str, ...]
    computation: str
    custom_call_target: str
    dimensions: tuple[int, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Loop:
    """One `while` that encloses an instruction."""

    name: str
    scope: str
    body: str
    trip_count: int | None
    """Iterations per execution of the loop, None if the compiler could not tell."""
    reversed: bool
    """Whether the loop walks its scanned axis from the end, as the transpose of a `lax.scan` does."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an instruction executes and how often per execution of its module."""

    loops: tuple[Loop, ...]
    """Enclosing loops, outermost first."""
    executions: int | None
    """Executions per module execution, None when a loop's trip count is unknown or a branch may be skipped."""
    why_unknown: str = ""


class ModuleError(ValueError):
    """The bytes are no HloProto, or its module is not consistent."""


class Module:
    """One compiled module, parsed from a serialized xla.HloProto.

    Raises `ModuleError` if the bytes are not one or hold no computations.
    """

    def __init__(self, hlo_proto: bytes) -> None:
        try:
            self.proto = hlo_pb2.HloProto.FromString(hlo_proto)
        except DecodeError as error:
            raise ModuleError("the bytes are not a serialized HloProto") from error
        if not self.proto.hlo_module.computations:
            raise ModuleError("the HloProto holds no computations")
        self.name = _text(self.proto.hlo_module.name)
        self._serialized = hlo_proto

    def __reduce__(self) -> tuple[type[Module], tuple[bytes]]:
        # Worker processes hand modules back: as bytes, not as a tree of Python objects.
        return Module, (self._serialized,)

    @cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        """All instructions by name, those inside fusions and comparators included. Names are unique in a module."""
        module = self.proto.hlo_module
        computation_names = {c.id: _text(c.name) for c in module.computations}
        # Operand ids are unique within the module in current XLA; older dumps count per computation.
        result: dict[str, Instruction] = {}
        for computation in module.computations:
            names = {i.id: _text(i.name) for i in computation.instructions}
            where = computation_names[computation.id]
            for i in computation.instructions:
                result[names[i.id]] = Instruction(
                    name=names[i.id],
                    opcode=_text(i.opcode),
                    scope=_text(i.metadata.op_name),
                    shape=_shape(i.shape),
                    operands=tuple(names[o] for o in i.operand_ids if o in names),
                    called=tuple(computation_names[c] for c in i.called_computation_ids if c in computation_names),
                    computation=where,
                    custom_call_target=_text(i.custom_call_target),
                    dimensions=tuple(i.dimensions),
                    source=f"{_text(i.metadata.source_file)}:{i.metadata.source_line}"
                    if i.metadata.source_file
                    else "",
                )
        return result

    @cached_property
    def computations(self) -> Mapping[str, tuple[Instruction, ...]]:
        """Instructions of each computation, operands before users."""
        result: dict[str, list[Instruction]] = {_text(c.name): [] for c in self.proto.hlo_module.computations}
        for instruction in self.instructions.values():
            result[instruction.computation].append(instruction)
        return {name: tuple(items) for name, items in result.items()}

    @cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the instructions that take each instruction as an operand."""
        result: dict[str, list[str]] = defaultdict(list)
        for instruction in self.instructions.values():
            for operand in instruction.operands:
                result[operand].append(instruction.name)
        return {name: tuple(users) for name, users in result.items()}

    @cached_property
    def entry(self) -> str:
        """Name of the entry computation."""
        module = self.proto.hlo_module
        by_id = {c.id: _text(c.name) for c in module.computations}
        return by_id.get(module.entry_computation_id) or _text(module.entry_computation_name)

    @property
    def num_devices(self) -> int | None:
        """Number of devices the module was compiled to run on at once, None where it does not say."""
        assigned = self.proto.hlo_module.device_assignment
        return assigned.replica_count * assigned.computation_count or None

    @cached_property
    def placements(self) -> Mapping[str, Placement]:
        """Placement of every instruction that executes as one, by name.

        Instructions inside fusions, comparators and reducers are absent: they run as part of their caller.
        A computation with several call sites adds up; its loops are then those that enclose all of them.
        The condition of a loop runs once more than its body, so it is not in that loop.
        """
        result: dict[str, Placement] = {}
        self._place(self.entry, Placement((), 1), result)
        return result

    def _place(self, computation: str, placement: Placement, result: dict[str, Placement]) -> None:
        for instruction in self.computations.get(computation, ()):
            known = result.get(instruction.name)
            result[instruction.name] = placement if known is None else _added(known, placement)
            if instruction.opcode not in _CONTROL_FLOW:
                continue
            for position, called in enumerate(instruction.called):
                self._place(called, self._inside(instruction, position, placement), result)

    def _inside(self, caller: Instruction, position: int, outer: Placement) -> Placement:
        if caller.opcode == "conditional":
            return Placement(outer.loops, None, f"it runs in a branch of {caller.name}")
        if caller.opcode != "while":
            return outer
        loop = self.loops[caller.name]
        if loop.trip_count is None:
            return Placement((*outer.loops, loop), None, f"the trip count of {caller.name} is unknown")
        in_condition = position == 1
        runs = loop.trip_count + in_condition
        executions = None if outer.executions is None else outer.executions * runs
        loops = outer.loops if in_condition else (*outer.loops, loop)
        return Placement(loops, executions, outer.why_unknown)

    @cached_property
    def loops(self) -> Mapping[str, Loop]:
        """Every `while` of the module by name."""
        return {name: self._loop(name, count) for name, count in trip_counts(self.proto.hlo_module).items()}

    def _loop(self, name: str, trip_count: int | None) -> Loop:
        instruction = self.instructions[name]
        body = instruction.called[0] if instruction.called else ""
        backwards = self._walks_backwards(instruction.scope, body)
        return Loop(name=name, scope=instruction.scope, body=body, trip_count=trip_count, reversed=backwards)

    def _walks_backwards(self, scope: str, body: str) -> bool:
        # A reversed lax.scan indexes its inputs by `length - 1 - i`: jax emits a `sub` directly in the body's
        # scope, which a forward scan has no use for. (Seen in compiled CPU and TPU modules.)
        return bool(scope) and any(
            inner.opcode == "subtract" and inner.scope == f"{scope}/body/sub"
            for instruction in self.computations.get(body, ())
            for inner in (instruction, *self.fused(instruction))
        )

    def fused(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the instructions a fusion computes, also those of fusions nested in it."""
        if instruction.opcode != "fusion":
            return
        for called in instruction.called:
            for inner in self.computations.get(called, ()):
                yield inner
                yield from self.fused(inner)


def _added(known: Placement, other: Placement) -> Placement:
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(known.loops, other.loops, strict=False)))
    loops = known.loops[:shared]
    if known.executions is None or other.executions is None:
        return Placement(loops, None, known.why_unknown or other.why_unknown)
    return Placement(loops, known.executions + other.executions)


def _shape(proto: hlo_pb2.Shape) -> Shape:
    if proto.element_type == _TUPLE:
        return Shape("tuple", (), tuple(_shape(element) for element in proto.tuple_shapes))
    dtype, _ = _DTYPES.get(proto.element_type, (f"type{proto.element_type}", 0))
    return Shape(dtype, tuple(proto.dimensions))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")

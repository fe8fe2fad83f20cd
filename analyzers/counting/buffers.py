"""The buffers of a compiled module, from its buffer assignment: bytes, shape, defining instruction, scope.

Facts relied on, from openxla/xla `xla/service/hlo.proto`: a logical buffer is defined by one instruction at one
index of its (tuple) result; an allocation holds logical buffers that share memory over time. An allocation
that is neither parameter, constant, thread-local nor result is temporary memory: on CPU these add up to the
`temp_size_in_bytes` of the compiler's memory analysis. On TPU a colour says which memory: 0 is HBM, others are
the core's own (seen in dumps for TPU7x: 1 vmem, 2 smem); only HBM is counted here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from analyzers.counting.hlo import Instruction, Module, Shape
from analyzers.counting.scopes import Pass, attribute, effective_scope

HBM = 0
"""Colour of the memory that is scarce: a TPU's or GPU's HBM, a CPU's main memory."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One logical buffer that a module's instruction writes (parameters and constants are left out)."""

    size_bytes: int
    """Bytes in memory; a TPU tiles the last two dimensions (seen on v6e: 6 rows take the space of 8)."""
    shape: str
    instruction: str
    opcode: str
    scope: str
    pass_: Pass
    repeats: bool = False
    """Whether it holds copies of rows: a broadcast of an array, as `jnp.repeat` compiles to."""
    data_bytes: int = 0
    """Bytes of the data alone, without the padding of tiles."""
    index: tuple[int, ...] = ()
    """Which part of the instruction's result it is, where that is a tuple."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies the buffer across compilations: shape, scope without numbering, pass."""
        return self.shape, without_numbers(self.scope), self.pass_.value


@dataclass(frozen=True, slots=True)
class MemoryTotals:
    """Bytes of the allocations of one module: what it takes on each device that runs it."""

    temp_bytes: int
    argument_bytes: int
    allocated_bytes: int
    """All allocations together: what one execution of the module holds, as every allocation lives as long as the
    execution (temporary buffers share theirs over time). This is the peak that is compared, on every backend:
    jaxlib's own figure leaves temporary memory out on CPU, and on TPU it can be that of another memory (seen on
    TPU7x: the arguments plus the largest simulation of any memory, there vmem)."""


@dataclass(frozen=True, slots=True)
class Buffers(MemoryTotals):
    """All buffers of one module, largest first, and the totals of its allocations."""

    buffers: tuple[Buffer, ...]

    def of_size(self, data_bytes: int) -> tuple[Buffer, ...]:
        """Return the buffers whose data are of exactly this size."""
        return tuple(b for b in self.buffers if b.data_bytes == data_bytes)

    def repeats(self, data_bytes: int) -> tuple[Buffer, ...]:
        """Return the buffers of the forward pass, first run or recomputed, that repeated rows of this size fill."""
        passes = (Pass.FORWARD, Pass.RECOMPUTE)
        return tuple(b for b in self.of_size(data_bytes) if b.repeats and b.pass_ in passes)


@dataclass(frozen=True, slots=True)
class BufferChange:
    """Buffers of one shape and scope whose number differs between two modules."""

    example: Buffer
    count_a: int
    count_b: int


def buffers(module: Module) -> Buffers | None:
    """Return the module's buffers, None if its HloProto carries no buffer assignment."""
    assignment = module.proto.buffer_assignment
    if not assignment.buffer_allocations:
        return None
    names = {
        i.id: i.name.decode("utf-8", "backslashreplace")
        for c in module.proto.hlo_module.computations
        for i in c.instructions
    }
    attributions = attribute(module)
    found = []
    for logical in assignment.logical_buffers:
        location = logical.defined_at
        name = names.get(location.instruction_id) or location.instruction_name.decode("utf-8", "backslashreplace")
        instruction = module.instructions.get(name)
        if logical.color != HBM:
            continue
        # A thread-local buffer (of a comparator, a reducer) is no memory of its own.
        if instruction is None or name not in attributions or instruction.opcode in ("parameter", "constant"):
            continue
        shape = _at(instruction.shape, location.shape_index)
        if shape.dtype == "tuple":
            continue  # a table of pointers
        found.append(
            Buffer(
                size_bytes=logical.size,
                shape=str(shape),
                instruction=name,
                opcode=_telling_opcode(module, instruction),
                scope=effective_scope(module, instruction),
                pass_=attributions[name].pass_,
                repeats=_repeats(module, instruction),
                data_bytes=shape.size_bytes,
                index=tuple(location.shape_index),
            )
        )
    found.sort(key=lambda b: (-b.size_bytes, b.scope, b.instruction))
    totals = memory_totals(module)
    assert totals is not None
    return Buffers(totals.temp_bytes, totals.argument_bytes, totals.allocated_bytes, tuple(found))


def memory_totals(module: Module) -> MemoryTotals | None:
    """Return the totals of the module's allocations, None if its HloProto carries no buffer assignment."""
    assignment = module.proto.buffer_assignment
    if not assignment.buffer_allocations:
        return None
    allocations = [a for a in assignment.buffer_allocations if a.color == HBM]
    return MemoryTotals(
        temp_bytes=sum(
            a.size
            for a in allocations
            if not (a.is_entry_computation_parameter or a.is_constant or a.is_thread_local or a.maybe_live_out)
        ),
        argument_bytes=sum(a.size for a in allocations if a.is_entry_computation_parameter),
        allocated_bytes=sum(a.size for a in allocations if not a.is_thread_local),
    )


def changes(a: Buffers, b: Buffers) -> tuple[BufferChange, ...]:
    """Return the shapes and scopes whose number of buffers differs, largest bytes first.

    Instruction names mean nothing across compilations, so buffers are matched by `Buffer.key`.
    """
    count_a, count_b = _count(a.buffers), _count(b.buffers)
    example = {buffer.key: buffer for buffer in (*b.buffers, *a.buffers)}
    differing = [key for key in example if count_a[key] != count_b[key]]
    differing.sort(key=lambda key: (-example[key].size_bytes * abs(count_a[key] - count_b[key]), key))
    return tuple(BufferChange(example[key], count_a[key], count_b[key]) for key in differing)


def without_numbers(scope: str) -> str:
    """Return a scope path without the numbers that a compilation or a layer index puts into it."""
    return re.sub(r"\d+", "#", scope)


def _count(items: Iterable[Buffer]) -> Counter[tuple[str, str, str]]:
    return Counter(buffer.key for buffer in items)


def _at(shape: Shape, index: Iterable[int]) -> Shape:
    for position in index:
        if position < len(shape.elements):
            shape = shape.elements[position]
    return shape


def _repeats(module: Module, instruction: Instruction) -> bool:
    found = [*module.fused(instruction)][-1:] or [instruction]
    while found[0].opcode in ("bitcast", "reshape", "copy", "transpose") and found[0].operands:
        found = [module.instructions[found[0].operands[0]]]
    root = found[0]
    if root.opcode != "broadcast" or not root.operands:
        return False
    source = module.instructions[root.operands[0]].shape
    return 1 < math.prod(source.dimensions) < math.prod(root.shape.dimensions)


def _telling_opcode(module: Module, instruction: Instruction) -> str:
    """Return the opcode, for a fusion that of its root: what the buffer really holds."""
    if instruction.opcode != "fusion":
        return instruction.opcode
    inner = list(module.fused(instruction))
    return f"fusion of {inner[-1].opcode}" if inner else "fusion"

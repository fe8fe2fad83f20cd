"""How often a `while` iterates: as the compiler noted it, else read from the counting loop itself.

CPU and GPU compilers note `known_trip_count` in the `while`'s backend config. The TPU compiler does not (seen in
modules for v5e, v6e and tpu7x), but its loops from `lax.scan` are plain counting loops: the condition compares one
element of the loop's state with a constant, the state starts at a constant, and the body adds a constant to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from analyzers.reading.protos import hlo_pb2

_PASSED_THROUGH = (b"copy", b"bitcast", b"reshape", b"convert", b"copy-done", b"copy-start")


def trip_counts(module: hlo_pb2.Module) -> dict[str, int | None]:
    """Return the iterations of every `while` of the module by name, None where neither source tells."""
    computations = {c.id: c for c in module.computations}
    return {
        loop.name.decode("utf-8", "backslashreplace"): _noted(loop.backend_config)
        or _counted(loop, computation, computations)
        for computation in module.computations
        for loop in computation.instructions
        if loop.opcode == b"while"
    }


def _noted(backend_config: bytes) -> int | None:
    try:
        return int(json.loads(backend_config)["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return None


def _counted(
    loop: hlo_pb2.Instruction, around: hlo_pb2.Computation, computations: Mapping[int, hlo_pb2.Computation]
) -> int | None:
    if len(loop.called_computation_ids) != 2 or not loop.operand_ids:
        return None
    body, condition = (computations.get(k) for k in loop.called_computation_ids)
    if body is None or condition is None:
        return None
    outside, inside, test = (_by_id(c) for c in (around, body, condition))
    start_state, next_state = outside.get(loop.operand_ids[0]), inside.get(body.root_id)
    compare = test.get(condition.root_id)
    if start_state is None or next_state is None or compare is None or compare.opcode != b"compare":
        return None
    if compare.comparison_direction != b"LT" or start_state.opcode != b"tuple" or next_state.opcode != b"tuple":
        return None
    counter = _state_index(compare.operand_ids[0], test)
    if counter is None:
        return None
    limit = _constant(compare.operand_ids[1], test)
    if limit is None:
        # The limit may be an element of the state that the body hands on unchanged.
        index = _state_index(compare.operand_ids[1], test)
        if index is not None and _state_index(next_state.operand_ids[index], inside) == index:
            limit = _constant(start_state.operand_ids[index], outside)
    start = _constant(start_state.operand_ids[counter], outside)
    step = _step(next_state.operand_ids[counter], inside, counter)
    if limit is None or start is None or step is None or step <= 0:
        return None
    return max(0, -(-(limit - start) // step))


def _by_id(computation: hlo_pb2.Computation) -> dict[int, hlo_pb2.Instruction]:
    return {instruction.id: instruction for instruction in computation.instructions}


def _resolved(instruction_id: int, by_id: Mapping[int, hlo_pb2.Instruction]) -> hlo_pb2.Instruction | None:
    found = by_id.get(instruction_id)
    while found is not None and found.opcode in _PASSED_THROUGH and found.operand_ids:
        found = by_id.get(found.operand_ids[0])
    return found


def _constant(instruction_id: int, by_id: Mapping[int, hlo_pb2.Instruction]) -> int | None:
    found = _resolved(instruction_id, by_id)
    if found is None or found.opcode != b"constant":
        return None
    literal = found.literal
    for values in (literal.s32s, literal.s64s, literal.u32s, literal.u64s):
        if len(values) == 1:
            return int(values[0])
    return None


def _state_index(instruction_id: int, by_id: Mapping[int, hlo_pb2.Instruction]) -> int | None:
    """Return which element of the loop's state the instruction reads, None if it is not one."""
    found = _resolved(instruction_id, by_id)
    if found is None or found.opcode != b"get-tuple-element":
        return None
    source = by_id.get(found.operand_ids[0])
    return found.tuple_index if source is not None and source.opcode == b"parameter" else None


def _step(instruction_id: int, by_id: Mapping[int, hlo_pb2.Instruction], counter: int) -> int | None:
    """Return the constant that the body adds to element `counter` of the state, None if it does anything else."""
    found = _resolved(instruction_id, by_id)
    if found is None or found.opcode != b"add":
        return None
    one, other = found.operand_ids
    if _state_index(one, by_id) == counter:
        return _constant(other, by_id)
    return _constant(one, by_id) if _state_index(other, by_id) == counter else None

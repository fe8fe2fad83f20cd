"""Modules written by hand, for what this backend's compiler never produces."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from analyzers.counting.hlo import Module
from analyzers.reading.protos import hlo_pb2

S32 = 4


@dataclass
class Op:
    """One instruction; `operands` and `called` are names."""

    name: str
    opcode: str
    operands: Sequence[str] = ()
    called: Sequence[str] = ()
    scope: str = ""
    target: str = ""
    config: str = ""
    dimensions: Sequence[int] = field(default=(8,))


def handmade(entry: str, **computations: Sequence[Op]) -> Module:
    """Return a module of the given computations; callees come before their callers, as in real ones."""
    return Module(handmade_proto(entry, **computations))


def handmade_proto(entry: str, **computations: Sequence[Op]) -> bytes:
    proto = hlo_pb2.HloProto()
    module = proto.hlo_module
    module.name, module.entry_computation_name = b"jit_f", entry.encode()
    computation_ids = {name: k + 1 for k, name in enumerate(computations)}
    instruction_ids = {op.name: k + 1 for k, op in enumerate(o for ops in computations.values() for o in ops)}
    for name, ops in computations.items():
        computation = module.computations.add(name=name.encode(), id=computation_ids[name])
        for op in ops:
            instruction = computation.instructions.add(
                name=op.name.encode(),
                opcode=op.opcode.encode(),
                id=instruction_ids[op.name],
                operand_ids=[instruction_ids[o] for o in op.operands],
                called_computation_ids=[computation_ids[c] for c in op.called],
                custom_call_target=op.target.encode(),
                backend_config=op.config.encode(),
            )
            instruction.shape.element_type = S32
            instruction.shape.dimensions.extend(op.dimensions)
            instruction.metadata.op_name = op.scope.encode()
    module.entry_computation_id = computation_ids[entry]
    return proto.SerializeToString()


def trips(count: int) -> str:
    """Return the backend config of a `while` with a known trip count."""
    return f'{{"known_trip_count":{{"n":"{count}"}}}}'

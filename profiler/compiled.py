"""One variant, compiled: the step that runs, and what the compiler says of it, kept beside the traces.

A trace may lack the compiled module (jax-ml/jax issue 37533), so a run stores it itself, and takes the copy
of a trace where that is the fuller one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from analyzers.files import write_whole
from analyzers.reading.protos import hlo_pb2
from analyzers.reading.run import CompiledVariant, MemoryAnalysis
from profiler.fingerprint import fingerprint
from workloads.program import Program
from workloads.registry import find_variant


@dataclass(frozen=True, slots=True)
class Compiled:
    """A variant that can be run."""

    program: Program
    executable: Any
    """`jax.stages.Compiled` of the program's step."""
    record: CompiledVariant

    def warmed_up(self) -> Callable[[], None]:
        """A function that runs one step and waits for it, after one that was run here.

        It holds the arguments, which are made anew: drop it to free them.
        """
        arguments = self.program.make_args()

        def step() -> None:
            jax.block_until_ready(self.executable(*arguments))

        step()
        return step


def compile_program(program: Program, folder: Path) -> Compiled:
    """Compile the program and write its optimised HLO into `folder`/<variant>/hlo."""
    started = time.perf_counter()
    step: Any = program.step  # a jax.jit wrapper, whose type jax keeps to itself
    executable = step.lower(*program.abstract_args).compile()
    seconds = time.perf_counter() - started
    (module,) = executable.runtime_executable().hlo_modules()
    statistics = executable.memory_analysis()
    module_proto = module.as_serialized_hlo_module_proto()
    assignment = statistics.serialized_buffer_assignment_proto if statistics is not None else b""
    text = executable.as_text()
    place = folder / program.variant / "hlo"
    place.mkdir(parents=True)
    proto_file, text_file = place / f"{module.name}.hlo.pb", place / f"{module.name}.txt"
    write_whole(proto_file, hlo_proto(module_proto, assignment))
    write_whole(text_file, text.encode())
    return Compiled(
        program,
        executable,
        CompiledVariant(
            name=program.variant,
            summary=find_variant(program.workload, program.variant).summary,
            module=module.name,
            fingerprint=fingerprint(text, module_proto),
            compile_seconds=round(seconds, 3),
            memory=memory_analysis(statistics),
            hlo_proto=proto_file.relative_to(folder).as_posix(),
            hlo_text=text_file.relative_to(folder).as_posix(),
            buffer_assignment=bool(assignment),
            dispatch_input_bytes=program.dispatch_input_bytes,
            top_k_buffer_bytes=program.top_k_buffer_bytes,
        ),
    )


def keep_embedded(record: CompiledVariant, embedded: bytes | None, folder: Path) -> CompiledVariant:
    """Store the copy of the program that a trace embeds in place of the compiler's, if it says more of buffers.

    On CPU it adds the heap simulation, from which one can tell what is alive when; on TPU the whole buffer
    assignment. Returns the record as it is afterwards.
    """
    if embedded is None:
        return record
    ours = hlo_pb2.HloProto.FromString((folder / record.hlo_proto).read_bytes())
    theirs = hlo_pb2.HloProto.FromString(embedded)
    richer = theirs.buffer_assignment.ByteSize() > ours.buffer_assignment.ByteSize()
    if not richer or _instructions(ours) != _instructions(theirs):
        return record
    write_whole(folder / record.hlo_proto, embedded)
    return replace(record, buffer_assignment=True)


def _instructions(proto: hlo_pb2.HloProto) -> list[tuple[bytes, bytes]]:
    return [
        (instruction.name, instruction.opcode)
        for computation in proto.hlo_module.computations
        for instruction in computation.instructions
    ]


def hlo_proto(module: bytes, assignment: bytes) -> bytes:
    """A serialized xla.HloProto of a serialized module and a buffer assignment (may be empty).

    Put together on the wire: parsing and writing them again would keep every field, but not every byte.
    """
    fields = hlo_pb2.HloProto.DESCRIPTOR.fields_by_name
    parts = [_field(fields["hlo_module"].number, module)]
    if assignment:
        parts.append(_field(fields["buffer_assignment"].number, assignment))
    return b"".join(parts)


def _field(number: int, content: bytes) -> bytes:
    # A length-delimited field of the protobuf wire format: tag, length as a varint, content.
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def memory_analysis(statistics: Any) -> MemoryAnalysis | None:
    """What a compiled program says of its memory; None where the backend does not say."""
    if statistics is None:
        return None
    return MemoryAnalysis(
        argument_bytes=statistics.argument_size_in_bytes,
        output_bytes=statistics.output_size_in_bytes,
        alias_bytes=statistics.alias_size_in_bytes,
        temp_bytes=statistics.temp_size_in_bytes,
        peak_bytes=statistics.peak_memory_in_bytes,
        generated_code_bytes=statistics.generated_code_size_in_bytes,
    )

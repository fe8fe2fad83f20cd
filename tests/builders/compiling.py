"""Really compiled modules of small functions, as the HloProto that a trace embeds."""

from collections.abc import Callable

import jax

from analyzers.reading.protos import hlo_pb2


def compiled_hlo(function: Callable, *args) -> bytes:
    """Compile `function` for this backend; return the serialized HloProto with its buffer assignment."""
    return hlo_of(jax.jit(function).lower(*args).compile())


def hlo_of(compiled) -> bytes:
    """Return the serialized HloProto of a compiled jax function."""
    (module,) = compiled.runtime_executable().hlo_modules()
    statistics = compiled.memory_analysis()
    return hlo_pb2.HloProto(
        hlo_module=hlo_pb2.Module.FromString(module.as_serialized_hlo_module_proto()),
        buffer_assignment=hlo_pb2.BufferAssignment.FromString(statistics.serialized_buffer_assignment_proto),
    ).SerializeToString()

"""Buffers of really compiled modules against the compiler's own memory analysis."""

import jax
import jax.numpy as jnp
import pytest

from analyzers.counting.buffers import buffers, changes, without_numbers
from analyzers.counting.hlo import Module
from analyzers.counting.scopes import Pass
from analyzers.reading.protos import hlo_pb2
from tests.builders.compiling import hlo_of
from tests.builders.handmade import Op, handmade

TOKENS, HIDDEN, TOP_K = 64, 32, 4
X = jnp.ones((TOKENS, HIDDEN))
W = jnp.ones((HIDDEN, HIDDEN))


def _loop(x, w):
    with jax.named_scope("layers"):
        return jax.lax.scan(lambda c, _: (jnp.sort(jnp.sin(c @ w), axis=0), None), x, None, length=3)[0].sum()


def _repeated(x, w):
    with jax.named_scope("dispatch"):
        rows = jnp.sort(jnp.repeat(x, TOP_K, axis=0), axis=0)
    return (rows @ w).sum()


def _direct(x, w):
    return (jnp.sort(x, axis=0) @ w).sum()


FUNCTIONS = {
    "loop": _loop,
    "gradient of a loop": jax.grad(_loop, argnums=(0, 1)),
    "repeat": _repeated,
    "direct": _direct,
    "nothing": lambda x, w: x,
    "top_k": lambda x, w: jax.lax.top_k(x @ w, 4),
}


def _compiled(name: str):
    compiled = jax.jit(FUNCTIONS[name]).lower(X, W).compile()
    return compiled.memory_analysis(), buffers(Module(hlo_of(compiled)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_totals_are_those_of_the_compiler(name) -> None:
    analysis, found = _compiled(name)
    assert found is not None
    assert found.temp_bytes == analysis.temp_size_in_bytes
    assert found.argument_bytes == analysis.argument_size_in_bytes


def test_a_buffer_knows_its_size_shape_scope_and_pass() -> None:
    _, found = _compiled("repeat")
    size = TOP_K * TOKENS * HIDDEN * 4
    sorted_rows = [b for b in found.of_size(size) if b.opcode == "sort"]
    assert sorted_rows
    (buffer,) = sorted_rows
    assert buffer.shape == f"f32[{TOP_K * TOKENS},{HIDDEN}]"
    assert "dispatch" in buffer.scope
    assert buffer.pass_ is Pass.FORWARD
    sizes = [b.size_bytes for b in found.buffers]
    assert sizes == sorted(sizes, reverse=True)


def test_the_buffer_that_a_change_removed_is_named_first() -> None:
    (_, a), (_, b) = _compiled("repeat"), _compiled("direct")
    first = changes(a, b)[0]
    assert first.example.size_bytes == TOP_K * TOKENS * HIDDEN * 4
    assert (first.count_a > 0, first.count_b) == (True, 0)
    assert changes(a, a) == ()


def test_changes_seen_from_the_other_side_are_the_same_ones() -> None:
    (_, a), (_, b) = _compiled("repeat"), _compiled("loop")
    there = {c.example.key: (c.count_a, c.count_b) for c in changes(a, b)}
    back = {c.example.key: (c.count_b, c.count_a) for c in changes(b, a)}
    assert there == back


def test_without_a_buffer_assignment_nothing_is_claimed() -> None:
    assert buffers(handmade("main", main=[Op("x", "parameter")])) is None


def test_numbers_in_scopes_do_not_tell_buffers_apart() -> None:
    assert without_numbers("jit(f)/layer_3/fusion.12") == "jit(f)/layer_#/fusion.#"


def test_a_buffer_of_repeated_rows_is_told_by_its_broadcast() -> None:
    def module_of(opcode: bytes, source: list[int]) -> Module:
        proto = hlo_pb2.HloProto()
        proto.hlo_module.name = b"jit_f"
        proto.hlo_module.entry_computation_id = 1
        entry = proto.hlo_module.computations.add(name=b"main", id=1, root_id=2)
        entry.instructions.add(
            name=b"x", id=1, opcode=b"parameter", shape=hlo_pb2.Shape(element_type=16, dimensions=source)
        )
        entry.instructions.add(
            name=b"y",
            id=2,
            opcode=opcode,
            operand_ids=[1],
            shape=hlo_pb2.Shape(element_type=16, dimensions=[64, 6, 32]),
        )
        assignment = proto.buffer_assignment
        assignment.logical_buffers.add(id=1, size=64 * 6 * 32 * 2).defined_at.instruction_id = 2
        assignment.buffer_allocations.add(index=0, size=64 * 6 * 32 * 2)
        return Module(proto.SerializeToString())

    def repeats(opcode: bytes, source: list[int]) -> bool:
        found = buffers(module_of(opcode, source))
        assert found is not None
        (only,) = found.buffers
        return only.repeats

    assert repeats(b"broadcast", [64, 32])
    assert not repeats(b"broadcast", [])  # zeros, not copies of rows
    assert not repeats(b"gather", [64, 32])


def test_only_the_forward_pass_repeats_tokens() -> None:
    """The gradient of a sum over `top_k` fills as large a buffer with repeated rows, but those are no tokens."""

    def sum_over_slots(rows):
        return (rows.sum(1) ** 3).sum()

    compiled = jax.jit(jax.grad(sum_over_slots)).lower(jnp.ones((TOKENS, TOP_K, HIDDEN))).compile()
    found = buffers(Module(hlo_of(compiled)))
    size = TOKENS * TOP_K * HIDDEN * 4
    assert found is not None
    assert {b.pass_ for b in found.of_size(size) if b.repeats} == {Pass.BACKWARD}
    assert found.repeats(size) == ()

"""Trip counts: noted by the CPU compiler, counted in the loops that a TPU compiler leaves without a note."""

import jax
import jax.numpy as jnp
import pytest

from analyzers.counting.tripcounts import trip_counts
from analyzers.reading.protos import hlo_pb2

_S32 = hlo_pb2.Shape(element_type=4)


def _loop(start=0, limit=5, step=1, *, limit_in_state=False, direction=b"LT", changes_limit=False):
    """A module whose one `while` counts from `start` to `limit`, spelled as TPU modules spell it."""
    ids = iter(range(1, 100))
    module = hlo_pb2.Module(name=b"jit_f", entry_computation_id=3)

    def computation(number):
        return module.computations.add(name=b"c%d" % number, id=number)

    def add(where, opcode, operands=(), **fields):
        new = where.instructions.add(
            name=b"i%d" % next(ids), opcode=opcode, operand_ids=[o.id for o in operands], shape=_S32, **fields
        )
        new.id = int(new.name[1:])
        where.root_id = new.id
        return new

    def constant(where, value):
        return add(where, b"constant", literal=hlo_pb2.Literal(s32s=[value]))

    body, condition, entry = computation(1), computation(2), computation(3)
    state = add(body, b"parameter")
    counter = add(body, b"copy", [add(body, b"get-tuple-element", [state], tuple_index=1)])
    kept = add(body, b"get-tuple-element", [state], tuple_index=0)
    kept = add(body, b"add", [kept, constant(body, 1)]) if changes_limit else kept
    add(body, b"tuple", [kept, add(body, b"add", [constant(body, step), counter])])

    state = add(condition, b"parameter")
    counter = add(condition, b"get-tuple-element", [state], tuple_index=1)
    bound = (
        add(condition, b"get-tuple-element", [state], tuple_index=0) if limit_in_state else constant(condition, limit)
    )
    add(condition, b"compare", [counter, bound], comparison_direction=direction)

    initial = add(entry, b"tuple", [constant(entry, limit), add(entry, b"copy", [constant(entry, start)])])
    add(entry, b"while", [initial], called_computation_ids=[1, 2])
    return module


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, 5),
        ({"start": 2}, 3),
        ({"limit": 6, "step": 2}, 3),
        ({"limit": 7, "step": 2}, 4),
        ({"start": 9, "limit": 5}, 0),
        ({"limit_in_state": True, "limit": 8}, 8),
        ({"limit_in_state": True, "changes_limit": True}, None),
        ({"step": -1}, None),
        ({"direction": b"GE"}, None),
    ],
)
def test_a_counting_loop_is_counted(arguments, expected):
    assert list(trip_counts(_loop(**arguments)).values()) == [expected]


def test_a_note_of_the_compiler_wins():
    module = _loop()
    loop = next(i for c in module.computations for i in c.instructions if i.opcode == b"while")
    loop.backend_config = b'{"known_trip_count":{"n":"4"}}'
    assert list(trip_counts(module).values()) == [4]


def test_nested_scans_as_this_backend_compiles_them():
    def f(x):
        def outer(y, _):
            return jax.lax.scan(lambda z, _: (jnp.sin(z) * 1.5, None), y, None, length=3)[0] + 1, None

        return jax.lax.scan(outer, x, None, length=7)[0]

    serialized = jax.jit(f).lower(jnp.ones((64, 64))).compile().runtime_executable().hlo_modules()[0]
    module = hlo_pb2.Module.FromString(serialized.as_serialized_hlo_module_proto())
    noted = trip_counts(module)
    assert sorted(noted.values()) == [3, 7]

"""What runs in a module, in which loops, and how often."""

import jax
import jax.numpy as jnp
import pytest

from analyzers.counting.hlo import Module, ModuleError
from tests.builders.compiling import compiled_hlo
from tests.builders.handmade import Op, handmade, trips


def _executions(module: Module) -> dict[str, int | None]:
    return {name: placement.executions for name, placement in module.placements.items()}


def _loops(module: Module, name: str) -> list[tuple[str, int | None]]:
    return [(loop.name, loop.trip_count) for loop in module.placements[name].loops]


@pytest.fixture(scope="module")
def nested() -> Module:
    return handmade(
        "main",
        less=[Op("compare", "compare")],
        also_less=[Op("compare.2", "compare")],
        add_one=[Op("add_inside_fusion", "add")],
        inner_body=[Op("sort.1", "sort"), Op("fusion.1", "fusion", called=["add_one"])],
        outer_body=[
            Op("copy.1", "copy"),
            Op("inner", "while", called=["inner_body", "less"], config=trips(3)),
        ],
        main=[Op("x", "parameter"), Op("outer", "while", called=["outer_body", "also_less"], config=trips(4))],
    )


def test_an_instruction_runs_as_often_as_the_loops_around_it(nested) -> None:
    assert _executions(nested) == {
        "x": 1,
        "outer": 1,
        "copy.1": 4,
        "inner": 4,
        "sort.1": 12,
        "fusion.1": 12,
        "compare": 16,
        "compare.2": 5,
    }


def test_loops_are_named_from_the_outside_in(nested) -> None:
    assert _loops(nested, "sort.1") == [("outer", 4), ("inner", 3)]
    assert _loops(nested, "inner") == [("outer", 4)]
    # A condition decides whether its loop goes on: it is not in that loop.
    assert _loops(nested, "compare") == [("outer", 4)]
    assert _loops(nested, "compare.2") == []


def test_what_is_inside_a_fusion_runs_as_part_of_it(nested) -> None:
    assert "add_inside_fusion" not in nested.placements
    assert [i.name for i in nested.fused(nested.instructions["fusion.1"])] == ["add_inside_fusion"]


def test_call_sites_add_up_in_the_loops_they_share() -> None:
    module = handmade(
        "main",
        shared=[Op("sort.1", "sort")],
        less=[Op("compare", "compare")],
        body=[
            Op("call.1", "call", called=["shared"]),
            Op("call.2", "call", called=["shared"]),
        ],
        main=[
            Op("loop", "while", called=["body", "less"], config=trips(4)),
            Op("call.3", "call", called=["shared"]),
        ],
    )
    assert module.placements["sort.1"].executions == 9
    assert _loops(module, "sort.1") == []


def test_two_call_sites_in_one_loop_stay_in_it() -> None:
    module = handmade(
        "main",
        shared=[Op("sort.1", "sort")],
        less=[Op("compare", "compare")],
        body=[Op("call.1", "call", called=["shared"]), Op("call.2", "call", called=["shared"])],
        main=[Op("loop", "while", called=["body", "less"], config=trips(4))],
    )
    assert module.placements["sort.1"].executions == 8
    assert _loops(module, "sort.1") == [("loop", 4)]


def test_nobody_can_tell_how_often_a_branch_runs() -> None:
    hlo = compiled_hlo(
        lambda p, x: jax.lax.cond(p, lambda v: jnp.sort(v), lambda v: jnp.cumsum(v * 2), x), True, jnp.arange(64.0)
    )
    module = Module(hlo)
    (sort,) = [i.name for i in module.instructions.values() if i.opcode == "sort" and i.name in module.placements]
    placement = module.placements[sort]
    assert placement.executions is None
    assert "branch of " in placement.why_unknown


def test_a_loop_that_ends_when_data_says_so_has_no_trip_count() -> None:
    hlo = compiled_hlo(
        lambda x: jax.lax.while_loop(lambda v: v.sum() < 100.0, lambda v: v + jnp.sort(v), x), jnp.ones(8)
    )
    module = Module(hlo)
    (loop,) = module.loops.values()
    assert loop.trip_count is None
    inside = [p for p in module.placements.values() if p.loops]
    assert inside
    assert all(p.executions is None and loop.name in p.why_unknown for p in inside)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_reversed_scan_is_told_from_a_forward_one(reverse) -> None:
    def scan(x, xs):
        return jax.lax.scan(lambda c, v: (jnp.sin(c @ v), c.sum()), x, xs, reverse=reverse)

    module = Module(compiled_hlo(scan, jnp.ones((4, 4)), jnp.ones((5, 4, 4))))
    (loop,) = module.loops.values()
    assert loop.trip_count == 5
    assert loop.reversed == reverse


def test_the_transpose_of_a_scan_walks_backwards() -> None:
    def loss(x, xs):
        return jax.lax.scan(lambda c, v: (jnp.sin(c @ v), None), x, xs)[0].sum()

    module = Module(compiled_hlo(jax.grad(loss), jnp.ones((4, 4)), jnp.ones((5, 4, 4))))
    directions = {"transpose(" in loop.scope: loop.reversed for loop in module.loops.values()}
    assert directions == {False: False, True: True}


def test_shapes_read_as_in_hlo_text() -> None:
    module = Module(compiled_hlo(lambda x: (jnp.sort(x), x > 2), jnp.ones((3, 5), jnp.bfloat16)))
    shapes = {str(i.shape) for i in module.instructions.values()}
    assert {"bf16[3,5]", "(bf16[3,5], pred[3,5])"} <= shapes
    assert {i.shape.size_bytes for i in module.instructions.values() if str(i.shape) == "bf16[3,5]"} == {30}


@pytest.mark.parametrize("junk", [b"", b"\xff\xff\xff", b"hello"])
def test_what_is_no_module_is_refused(junk) -> None:
    with pytest.raises(ModuleError):
        Module(junk)

"""The loop nest against modules whose trips and sorts are known by hand."""

from analyzers.counting.hlo import Module
from analyzers.counting.loops import loop_nest
from analyzers.counting.scopes import Pass
from tests.analyzers.counting.nest import NUM_CHUNKS, NUM_LAYERS, nest_program
from tests.builders.handmade import Op, handmade, trips

LAYERS = "jit(f)/jvp(layers)/while"


def _sort(name: str) -> Op:
    return Op(name, "sort", ["p." + name], scope=f"{LAYERS}/body/sort")


def _with_sorts(*names: str) -> list[Op]:
    return [Op("p." + name, "parameter") for name in names] + [_sort(name) for name in names]


def _module(inner_config: str) -> Module:
    return handmade(
        "main",
        test=[Op("t", "constant")],
        inner=_with_sorts("sort.1", "sort.2"),
        outer=[
            *_with_sorts("sort.3"),
            Op("while.9", "while", ["p.sort.3"], ["inner", "test"], LAYERS + "/body/chunks/while", config=inner_config),
        ],
        other=_with_sorts("sort.4"),
        main=[
            Op("x", "parameter"),
            Op("while.1", "while", ["x"], ["outer", "test"], LAYERS, config=trips(4)),
            Op("while.2", "while", ["x"], ["other", "test"], "jit(f)/elsewhere/while", config=trips(7)),
        ],
    )


def test_each_iteration_has_its_sorts_and_those_of_the_loops_inside() -> None:
    nest = loop_nest(_module(trips(3)))
    assert [(n.name, n.depth, n.role, n.trip_count, n.executions, n.own_sorts, n.sorts) for n in nest] == [
        ("while.1", 0, "layer", 4, 1, 1, 1 + 3 * 2),
        ("while.9", 1, "chunk", 3, 4, 2, 2),
        ("while.2", 0, "", 7, 1, 1, 1),
    ]
    assert nest[0].pass_ is Pass.FORWARD


def test_what_an_unknown_trip_count_hides_is_not_made_up() -> None:
    outer, inner, other = loop_nest(_module(""))
    assert (inner.trip_count, inner.executions, inner.sorts) == (None, 4, 2)
    assert (outer.trip_count, outer.sorts, outer.own_sorts) == (4, None, 1)
    assert (other.sorts, other.own_sorts) == (1, 1)


def test_a_sort_in_a_branch_may_or_may_not_run() -> None:
    module = handmade(
        "main",
        test=[Op("t", "constant")],
        taken=_with_sorts("sort.1"),
        skipped=[Op("q", "parameter")],
        body=[Op("b", "parameter"), Op("cond.1", "conditional", ["b"], ["taken", "skipped"])],
        main=[Op("x", "parameter"), Op("while.1", "while", ["x"], ["body", "test"], LAYERS, config=trips(4))],
    )
    (loop,) = loop_nest(module)
    assert (loop.sorts, loop.own_sorts) == (None, 1)


def test_a_really_compiled_nest() -> None:
    nest = loop_nest(Module(nest_program().hlo_proto))
    found = [(n.depth, n.role, n.pass_, n.trip_count, n.executions, n.reversed) for n in nest]
    forward = [
        (0, "layer", Pass.FORWARD, NUM_LAYERS, 1, False),
        (1, "chunk", Pass.FORWARD, NUM_CHUNKS, NUM_LAYERS, False),
    ]
    backward = [
        (0, "layer", Pass.BACKWARD, NUM_LAYERS, 1, True),
        (1, "chunk", Pass.BACKWARD, NUM_CHUNKS, NUM_LAYERS, True),
    ]
    assert found in (forward + backward, backward + forward)

"""Pass, layer and chunk from scope paths and from loops."""

import re

import jax
import jax.numpy as jnp
import pytest

from analyzers.counting.hlo import Module
from analyzers.counting.scopes import (
    DEFAULT_PATTERNS,
    Pass,
    ScopePatterns,
    attribute,
    attribute_by_scope,
    effective_scope,
    index_in_scope,
    pass_of_scope,
)
from tests.analyzers.counting.facts import facts_of, self_ps_by_place
from tests.builders.compiling import compiled_hlo
from tests.builders.handmade import Op, handmade, trips
from tests.builders.play import Program, added, play
from tests.builders.spaces import tpu_space


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("jit(f)/jvp(layers)/while/body/sin", Pass.FORWARD),
        ("jit(f)/transpose(jvp(layers))/while/body/mul", Pass.BACKWARD),
        ("jit(f)/transpose(jvp(f))/checkpoint/rematted_computation/sort", Pass.RECOMPUTE),
        ("jit(f)/adam/mul", Pass.OTHER),
        ("", Pass.UNKNOWN),
    ],
)
def test_the_pass_is_what_jax_wrapped_around_the_scope(scope, expected) -> None:
    assert pass_of_scope(scope, differentiated=True) is expected


def test_without_a_backward_pass_all_is_forward() -> None:
    assert pass_of_scope("jit(f)/sort", differentiated=False) is Pass.FORWARD


@pytest.mark.parametrize(
    ("scope", "layer"),
    [
        ("jit(f)/layer_3/sort", 3),
        ("jit(f)/layers_12/moe/sort", 12),
        ("jit(f)/jvp(layer_3)/sort", 3),
        ("jit(f)/transpose(jvp(layer_3))/sort", 3),
        ("jit(f)/dense_layers_0/mlp/dot", 0),
        ("jit(f)/Block_7/attention", 7),
        ("jit(f)/Layer5/x", 5),
        ("jit(f)/layer_1/layer_2/sort", 2),
        ("jit(f)/layers/while/body/sort", None),
        ("jit(f)/layer_norm/mul", None),
        ("jit(f)/layer_3_norm/mul", None),
        ("jit(f)/player_3/mul", None),
        ("jit(f)/sort", None),
        ("", None),
    ],
)
def test_a_layer_s_index_is_read_from_a_whole_segment(scope, layer) -> None:
    assert index_in_scope(scope, DEFAULT_PATTERNS.layer) == layer
    assert attribute_by_scope(scope).layer == layer


@pytest.mark.parametrize(
    ("scope", "chunk"),
    [("a/chunk_2/b", 2), ("a/jvp(emb_chunks_1)/b", 1), ("a/chunks/b", None), ("a/chunked_2/b", None)],
)
def test_a_chunk_s_index_is_read_from_a_whole_segment(scope, chunk) -> None:
    assert index_in_scope(scope, DEFAULT_PATTERNS.chunk) == chunk


def test_patterns_are_the_user_s_to_choose() -> None:
    patterns = ScopePatterns(layer=re.compile(r"decoder(\d+)"), chunk=re.compile(r"slice_(\d+)"))
    told = attribute_by_scope("jit(f)/decoder4/slice_1/sort", patterns)
    assert (told.layer, told.chunk) == (4, 1)
    assert attribute_by_scope("jit(f)/layer_4/chunk_1/sort", patterns).layer is None


def _unrolled(x, weights):
    for index in range(3):
        with jax.named_scope(f"layer_{index}"):
            with jax.named_scope("chunks"):
                x, _ = jax.lax.scan(lambda c, w: (jnp.sin(c @ w), None), x, weights[index])
            x = jnp.sort(x, axis=0)
    return x.sum()


@pytest.fixture(scope="module")
def unrolled() -> Program:
    return Program(compiled_hlo(jax.grad(_unrolled), jnp.ones((4, 4)), jnp.ones((3, 2, 4, 4))))


def test_unrolled_layers_with_scanned_chunks_have_exact_times(unrolled, tmp_path) -> None:
    runs = play(unrolled, steps=2)
    found = self_ps_by_place(facts_of(tmp_path, tpu_space(unrolled, runs)))

    def place(run, e):
        match = re.search(r"layer_(\d)", e.scope)
        if match is None or not e.loops:
            return None
        backward = "transpose(" in e.scope
        chunk = 1 - e.iterations[0] if backward else e.iterations[0]
        return 0, run.step, "backward" if backward else "forward", int(match[1]), chunk

    truth = added(runs, place)
    assert len(truth) == 2 * 2 * 3 * 2
    assert {key: value for key, value in found.items() if key[4] >= 0} == truth


def test_every_sort_of_an_unrolled_layer_is_in_it(unrolled) -> None:
    module = Module(unrolled.hlo_proto)
    attributions = attribute(module)
    sorts = [i for i in module.instructions.values() if i.opcode == "sort" and i.name in attributions]
    assert sorts
    for sort in sorts:
        match = re.search(r"layer_(\d)", sort.scope)
        assert match
        assert attributions[sort.name].layer == int(match[1])
        assert attributions[sort.name].chunk_loop is None


def _remat(x, weights):
    @jax.checkpoint
    def layer(carry, weight):
        order = jnp.argsort(carry[:, 0])
        return jnp.sin(carry[order] @ weight), None

    with jax.named_scope("layers"):
        return jax.lax.scan(layer, x, weights)[0].sum()


def test_a_rematerialised_sort_is_recompute_in_the_layer_loop() -> None:
    module = Module(compiled_hlo(jax.grad(_remat), jnp.ones((8, 8)), jnp.ones((4, 8, 8))))
    attributions = attribute(module)
    sorts = {n: a for n, a in attributions.items() if module.instructions[n].opcode == "sort"}
    assert {a.pass_ for a in sorts.values()} == {Pass.FORWARD, Pass.RECOMPUTE}
    assert {a.layer_loop for a in sorts.values()} == {0}
    assert not any(a.layer_is_guess for a in sorts.values())


def _looping(scope: str, body: list[Op]) -> Module:
    return handmade(
        "main",
        less=[Op("less", "compare")],
        body=body,
        main=[Op("loop", "while", called=["body", "less"], scope=scope, config=trips(4))],
    )


def test_an_unnamed_differentiated_loop_is_taken_for_the_layers_and_said_to_be_a_guess() -> None:
    module = _looping("jit(f)/jvp()/while", [Op("sort.1", "sort", scope="jit(f)/jvp()/while/body/sort")])
    told = attribute(module)["sort.1"]
    assert told.layer_loop == 0
    assert told.layer_is_guess


@pytest.mark.parametrize("inside", ["layer", "moe_layers"])
def test_a_loop_is_named_by_the_scope_in_its_body(inside) -> None:
    body = [Op("sort.1", "sort", scope=f"jit(f)/jvp()/while/body/closed_call/{inside}/sort")]
    told = attribute(_looping("jit(f)/jvp()/while", body))["sort.1"]
    assert told.layer_loop == 0
    assert not told.layer_is_guess


def test_a_chunk_loop_in_a_layer_s_body_does_not_name_the_layer_loop() -> None:
    module = handmade(
        "main",
        less=[Op("less", "compare")],
        inner=[Op("sort.1", "sort", scope="jit(f)/jvp()/while/body/chunks/while/body/sort")],
        outer=[
            Op(
                "chunks",
                "while",
                called=["inner", "less"],
                scope="jit(f)/jvp()/while/body/chunks/while",
                config=trips(3),
            )
        ],
        main=[Op("loop", "while", called=["outer", "less"], scope="jit(f)/jvp()/while", config=trips(4))],
    )
    told = attribute(module)["sort.1"]
    assert (told.layer_loop, told.chunk_loop) == (0, 1)


def test_a_nameless_op_takes_the_pass_of_its_loop() -> None:
    module = _looping("jit(f)/transpose(jvp(layers))/while", [Op("sort.1", "sort")])
    told = attribute(module)["sort.1"]
    assert told.pass_ is Pass.BACKWARD
    assert told.layer_loop == 0


def test_a_nameless_op_takes_the_scope_of_what_uses_it_then_of_what_it_is_made_from() -> None:
    module = handmade(
        "main",
        main=[
            Op("x", "parameter"),
            Op("made", "add", ["x"], scope="jit(f)/made"),
            Op("nameless", "copy", ["made"]),
            Op("user", "add", ["nameless"], scope="jit(f)/used"),
            Op("last", "copy", ["user"]),
        ],
    )
    assert effective_scope(module, module.instructions["nameless"]) == "jit(f)/used"
    assert effective_scope(module, module.instructions["last"]) == "jit(f)/used"

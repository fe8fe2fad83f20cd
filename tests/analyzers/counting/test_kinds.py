"""Argsort, sort and top-k told apart, on modules that jax compiled and on what only a GPU compiles to."""

import jax
import jax.numpy as jnp
import pytest

from analyzers.counting.hlo import Module
from analyzers.counting.kinds import Kind, kind, kind_by_name, sorts_in
from tests.builders.compiling import compiled_hlo
from tests.builders.handmade import Op, handmade

INTS = jnp.arange(4096, dtype=jnp.int32)[::-1] % 64
FLOATS = jnp.linspace(0.0, 1.0, 4096).reshape(64, 64)


def _packed(x):
    return jnp.sort((x << 12) | jnp.arange(x.size, dtype=jnp.int32)) & 0xFFF


SORTING = {
    "argsort": (jnp.argsort, INTS, Kind.ARGSORT),
    "argsort of a mask": (lambda x: jnp.argsort(x < 5), INTS, Kind.ARGSORT),
    "argsort by hand": (lambda x: jax.lax.sort_key_val(x, jnp.arange(x.size))[1], INTS, Kind.ARGSORT),
    "sort": (jnp.sort, INTS, Kind.SORT),
    "packed keys": (_packed, INTS, Kind.SORT),
    "keys with a payload": (lambda x: jax.lax.sort_key_val(x, x * 3 + 1), INTS, Kind.SORT),
    "top_k": (lambda x: jax.lax.top_k(x, 4), FLOATS, Kind.TOP_K),
    "indices of top_k": (lambda x: jax.lax.top_k(x, 4)[1], FLOATS, Kind.TOP_K),
    "top_k of halves": (lambda x: jax.lax.top_k(x.astype(jnp.bfloat16), 4), FLOATS, Kind.TOP_K),
}


def _kinds(module: Module) -> list[Kind]:
    found = (kind(module, module.instructions[name]) for name in module.placements)
    return [k for k in found if k.is_sort]


@pytest.mark.parametrize("name", SORTING)
def test_sorts_are_told_apart(name) -> None:
    function, argument, expected = SORTING[name]
    assert _kinds(Module(compiled_hlo(function, argument))) == [expected]


def test_a_scatter_that_inverts_a_permutation_is_no_sort() -> None:
    module = Module(compiled_hlo(lambda p: jnp.zeros_like(p).at[p].set(jnp.arange(p.size)), INTS))
    kinds = {kind(module, module.instructions[name]) for name in module.placements}
    assert Kind.SCATTER in kinds
    assert _kinds(module) == []


def test_a_gather_and_a_matmul_are_known_inside_fusions() -> None:
    module = Module(compiled_hlo(lambda x, i: (x[i] * 2) @ x.T, FLOATS, INTS[:128] % 64))
    kinds = {kind(module, module.instructions[name]) for name in module.placements}
    assert {Kind.GATHER, Kind.MATMUL} <= kinds


def _radix(scope: str, payload: str) -> Module:
    return handmade(
        "main",
        main=[
            Op("keys", "parameter"),
            Op("iota", "iota"),
            Op("payload", "parameter"),
            Op("sort", "custom-call", ["keys", payload], scope=scope, target="__cub$DeviceRadixSort$pairs"),
        ],
    )


@pytest.mark.parametrize(
    ("scope", "payload", "expected"),
    [
        ("jit(f)/jit(argsort)/sort", "payload", Kind.ARGSORT),
        ("jit(f)/sort", "iota", Kind.ARGSORT),
        ("jit(f)/sort", "payload", Kind.SORT),
        ("", "iota", Kind.ARGSORT),
    ],
)
def test_a_gpu_s_radix_sort_is_a_sort(scope, payload, expected) -> None:
    module = _radix(scope, payload)
    assert kind(module, module.instructions["sort"]) is expected
    assert sorts_in(module, module.instructions["sort"]) == 1


def test_a_fusion_of_two_sorts_counts_as_two() -> None:
    module = handmade(
        "main",
        inside=[Op("a", "parameter"), Op("sort.1", "sort", ["a"]), Op("sort.2", "sort", ["sort.1"])],
        main=[Op("x", "parameter"), Op("fusion", "fusion", ["x"], ["inside"])],
    )
    fusion = module.instructions["fusion"]
    assert kind(module, fusion) is Kind.SORT
    assert sorts_in(module, fusion) == 2


def test_a_sort_that_lost_its_name_comes_from_the_top_k_that_uses_it() -> None:
    module = handmade(
        "main",
        main=[
            Op("x", "parameter"),
            Op("iota", "iota"),
            Op("sort", "sort", ["x", "iota"]),
            Op("slice", "slice", ["sort"], scope="jit(f)/router/top_k"),
        ],
    )
    assert kind(module, module.instructions["sort"]) is Kind.TOP_K


@pytest.mark.parametrize(
    ("opcode", "scope", "expected"),
    [
        ("sort", "jit(f)/jit(argsort)/sort:", Kind.ARGSORT),
        ("sort", "jit(f)/top_k:", Kind.TOP_K),
        ("sort", "", Kind.SORT),
        ("all-gather-start", "", Kind.COLLECTIVE),
        ("ragged-all-to-all", "", Kind.COLLECTIVE),
        ("copy-done", "", Kind.COPY),
        ("while", "", Kind.CONTROL_FLOW),
        ("custom-call", "", Kind.CUSTOM_CALL),
        ("broadcast", "jit(f)/sort_tokens/broadcast", Kind.OTHER),
    ],
)
def test_without_a_module_names_must_do(opcode, scope, expected) -> None:
    assert kind_by_name(opcode, scope) is expected

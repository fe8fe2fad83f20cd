"""Counts before the compiler, against programs whose counts are known by construction."""

import jax
import jax.numpy as jnp
import pytest

from analyzers.comparing.funnel import Count, sorts, steps
from analyzers.counting.hlo import Module
from analyzers.counting.sites import LoopSite, Site, compiled_sites, path_of
from profiler.funnel import lowered_sites, traced_sites
from tests.builders.compiling import hlo_of

X = jnp.arange(64.0)


def levels(function, *args):
    traced = jax.jit(function).trace(*args)
    lowered = traced.lower()
    return {
        "traced": traced_sites(traced.jaxpr, traced.fun_name),
        "lowered": lowered_sites(lowered.compiler_ir("stablehlo")),
        "compiled": compiled_sites(Module(hlo_of(lowered.compile()))),
    }


def _loop(x):
    def outer(c, _):
        def inner(d, _):
            return jnp.sort(jnp.sin(d)), None

        with jax.named_scope("chunks"):
            return jax.lax.scan(inner, c, None, length=4)[0], None

    with jax.named_scope("layers"):
        return jax.lax.scan(outer, x, None, length=3)[0]


def test_loops_multiply_on_every_level():
    found = levels(_loop, X)
    loops = (LoopSite("layers", 3), LoopSite("layers/chunks", 4))
    for level, sites in found.items():
        assert [s.loops for s in sites if s.kind == "sort"] == [loops], level
        assert sorts(sites) == Count(12), level
        assert sorts(sites, in_loop="chunks") == Count(12)
        assert sorts(sites, in_loop="other") == Count(0)
    assert steps(found) == ()


def test_the_backward_pass_through_custom_vjp_and_remat():
    @jax.custom_vjp
    def permuted(x):
        return x[jnp.argsort(x)]

    def forward(x):
        return permuted(x), x

    def backward(x, g):
        return (g[jnp.argsort(jnp.argsort(x))],)

    permuted.defvjp(forward, backward)

    def loss(x):
        def body(c, _):
            with jax.named_scope("dispatch"):
                return jax.checkpoint(lambda v: permuted(jnp.sin(v)))(c), None

        with jax.named_scope("layers"):
            return (jax.lax.scan(body, x, None, length=5)[0] * x).sum()

    found = levels(jax.grad(loss), X)
    for level, sites in found.items():
        counts = {p: sorts(sites, p).times for p in ("forward", "recompute", "backward")}
        assert counts == {"forward": 5, "recompute": 0, "backward": 10}, level
        assert all(s.kind == "argsort" for s in sites if "sort" in s.kind)


def test_dead_code_that_jax_drops_as_it_lowers():
    def step(x):
        with jax.named_scope("unused"):
            jnp.argsort(x)
        return x + 1

    found = levels(step, X)
    assert [sorts(found[k]).times for k in found] == [1, 0, 0]
    (lost,) = steps(found)
    assert (lost.path, lost.before_level, lost.after_level, lost.is_guess) == ("unused", "traced", "lowered", False)
    assert "dead code" in lost.story


def test_a_sort_that_the_compiler_hoists_says_from_where_to_where():
    def step(x, keys):
        def body(c, _):
            with jax.named_scope("dispatch"):
                return c[jnp.argsort(keys)] + 1, None

        with jax.named_scope("chunks"):
            return jax.lax.scan(body, x, None, length=4)[0]

    found = levels(jax.jit(step), X, jnp.arange(64))
    # jax hoists loop invariants out of a scan only when it differentiates; here XLA does it.
    assert [sorts(found[k]).times for k in found] == [4, 4, 1]
    (moved,) = steps(found)
    assert (moved.before, moved.after) == (4, 1)
    assert moved.story == "hoisted out of the loop chunks to entry"
    assert not moved.is_guess


def test_equal_sorts_that_the_compiler_merges_are_a_marked_guess():
    def step(x):
        with jax.named_scope("chunk_0"):
            a = jnp.argsort(x)
        with jax.named_scope("chunk_1"):
            b = jnp.argsort(x)
        return a + 2 * b

    found = levels(step, X)
    assert [sorts(found[k]).times for k in found] == [2, 2, 1]
    (lost,) = steps(found)
    assert lost.is_guess


@pytest.mark.parametrize("what", ["branch", "while"])
def test_what_runs_nobody_knows_how_often_is_not_counted_but_said(what):
    def step(x):
        if what == "branch":
            return jax.lax.cond(x[0] > 0, jnp.sort, lambda v: v, x)
        return jax.lax.while_loop(lambda v: v[0] < 9, lambda v: jnp.sort(v) + 1, x)

    for level, sites in levels(step, X).items():
        assert sorts(sites) == Count(0, 1), level
        (reason,) = (s.why_unknown for s in sites if s.kind == "sort")
        assert ("branch" if what == "branch" else "trip count") in reason


def test_kinds_are_told_apart():
    def step(x, i):
        return jnp.sort(x), jnp.argsort(x), jax.lax.top_k(x, 4), x.at[i].add(1.0), x[i]

    found = levels(step, X, jnp.arange(5))
    for level in ("traced", "lowered"):
        kinds = sorted(s.kind for s in found[level])
        assert kinds == ["argsort", "gather", "scatter", "sort", "top_k"], level


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("jit(f)/jvp(layers)/while/body/closed_call/dispatch/jit(argsort)/sort", "layers/dispatch"),
        (
            "jit(f)/transpose(jvp())/shard_map/layers/while/body/checkpoint/rematted_computation/chunks/add",
            "layers/chunks",
        ),
        ("sort", ""),
        ("", ""),
    ],
)
def test_paths_hold_named_scopes_only(scope, path):
    assert path_of(scope) == path


def test_steps_name_what_cannot_be_compared():
    known = Site("sort", "", "forward", "a", (), 1, "")
    unknown = Site("sort", "", "forward", "a", (), None, "it runs in a branch")
    (step,) = steps({"traced": [known], "compiled": [unknown]})
    assert step.story == "not comparable: it runs in a branch"

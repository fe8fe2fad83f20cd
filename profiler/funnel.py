"""Counts work before the compiler sees it: in the jaxpr (traced) and in StableHLO (lowered).

Both walk every call, loop and branch and multiply by trip counts, and give the same `Site`s that
`analyzers.counting.sites` gives for the compiled module.

Facts relied on (seen in jax 0.10.2): the name stack of an equation is relative to the jaxpr it stands in, and so is the
location of an op in a StableHLO function; `lax.scan` knows its length, and lowers to a `while` whose condition
compares a counter that starts at 0 with a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analyzers.counting.kinds import Kind
from analyzers.counting.scopes import pass_of_scope
from analyzers.counting.sites import LoopSite, Site, path_of

_TRACED_KINDS = {
    "top_k": Kind.TOP_K,
    "approx_top_k": Kind.TOP_K,
    "gather": Kind.GATHER,
    "copy": Kind.COPY,
    "copy_p": Kind.COPY,
}
_TRACED_COLLECTIVES = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "psum2": "all-reduce",
    "psum_invariant": "all-reduce",
    "all_gather_invariant": "all-gather",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "psum_scatter": "reduce-scatter",
}
_KERNELS = ("pallas_call", "mpmd_map")
"""Primitives of Pallas kernels; `mpmd_map` is a kernel for SparseCores."""
_LOWERED_KINDS = {
    "stablehlo.sort": Kind.SORT,
    "chlo.top_k": Kind.TOP_K,
    "stablehlo.gather": Kind.GATHER,
    "stablehlo.dynamic_gather": Kind.GATHER,
    "stablehlo.scatter": Kind.SCATTER,
    "stablehlo.custom_call": Kind.CUSTOM_CALL,
}
_ANNOTATIONS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"})
"""Custom calls that only carry a remark for the partitioner."""
_LOWERED_COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "reduce_scatter",
        "collective_permute",
        "collective_broadcast",
    )
)


@dataclass(frozen=True, slots=True)
class _Place:
    scope: str = ""
    loops: tuple[LoopSite, ...] = ()
    times: int | None = 1
    why_unknown: str = ""

    def named(self, scope: str) -> _Place:
        return replace(self, scope="/".join(part for part in (self.scope, scope) if part))

    def in_loop(self, trips: int | None, what: str) -> _Place:
        loop = LoopSite(path_of(self.scope + "/while"), trips)
        if trips is None:
            return replace(
                self, loops=(*self.loops, loop), times=None, why_unknown=f"the trip count of {what} is unknown"
            )
        times = None if self.times is None else self.times * trips
        return replace(self, loops=(*self.loops, loop), times=times)

    def in_branch(self) -> _Place:
        return replace(self, times=None, why_unknown=self.why_unknown or "it runs in a branch of a conditional")


def traced_sites(closed_jaxpr: Any, name: str = "") -> tuple[Site, ...]:
    """Return the sites of a `ClosedJaxpr`, which `jax.jit(f).trace(...)` has as `.jaxpr`; `name` is the function's."""
    place = _Place(f"jit({name})" if name else "")
    return _sited(list(_walk_jaxpr(closed_jaxpr.jaxpr, place)))


def _walk_jaxpr(jaxpr: Any, place: _Place) -> Iterator[tuple[Kind, str, _Place]]:
    for equation in jaxpr.eqns:
        here = place.named(str(equation.source_info.name_stack))
        primitive = equation.primitive.name
        found = _traced_kind(equation, primitive, here)
        if found is not None:
            yield (*found, here.named(primitive))
        if primitive in _KERNELS:
            continue  # what a kernel does inside is one custom call
        for inner, position in _inner_jaxprs(equation):
            yield from _walk_jaxpr(inner, _enter(equation, primitive, position, here))


def _traced_kind(equation: Any, primitive: str, place: _Place) -> tuple[Kind, str] | None:
    if primitive == "sort":
        last = place.scope.rsplit("/", 1)[-1]
        by_name = "argsort" in last
        # Sorting fewer keys than operands carries positions, or values, along; jnp.argsort says so by its name.
        return (Kind.ARGSORT if by_name or _carries_positions(equation) else Kind.SORT), ""
    if primitive.startswith("scatter"):
        return Kind.SCATTER, ""
    if primitive in _TRACED_COLLECTIVES:
        return Kind.COLLECTIVE, _TRACED_COLLECTIVES[primitive]
    if primitive in _TRACED_KINDS:
        return _TRACED_KINDS[primitive], ""
    if primitive in _KERNELS:
        info = equation.params.get("name_and_src_info")
        return Kind.CUSTOM_CALL, str(getattr(info, "name", "") or equation.params.get("name") or "pallas_call")
    if primitive == "ffi_call":
        return Kind.CUSTOM_CALL, str(equation.params.get("target_name", primitive))
    return None


def _carries_positions(equation: Any) -> bool:
    extra = equation.invars[int(equation.params.get("num_keys", 1)) :]
    return any(getattr(v.aval.dtype, "kind", "") == "i" and v.aval.ndim == 1 for v in extra)


def _inner_jaxprs(equation: Any) -> Iterator[tuple[Any, str]]:
    for key, value in equation.params.items():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            jaxpr = getattr(item, "jaxpr", item)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr, key


def _enter(equation: Any, primitive: str, key: str, here: _Place) -> _Place:
    if primitive == "scan":
        return here.in_loop(int(equation.params["length"]), here.scope).named("while/body")
    if primitive == "while":
        return here.in_loop(None, f"a while loop in {path_of(here.scope + '/while') or 'no scope'}").named("while/body")
    if primitive == "cond":
        return here.in_branch()
    name = equation.params.get("name")
    if primitive in ("jit", "pjit"):
        return here.named(f"jit({name})")
    return here.named("checkpoint" if primitive in ("remat2", "checkpoint") else primitive)


def lowered_sites(module: Any) -> tuple[Site, ...]:
    """Return the sites of a StableHLO module as `Lowered.compiler_ir("stablehlo")` gives it."""
    functions = {
        str(op.attributes["sym_name"]).strip('"'): op for op in module.body.operations if "sym_name" in op.attributes
    }
    main = functions.get("main")
    if main is None:
        return ()
    return _sited(list(_walk_blocks(main, functions, _Place())))


def _walk_blocks(operation: Any, functions: dict[str, Any], place: _Place) -> Iterator[tuple[Kind, str, _Place]]:
    for region in operation.regions:
        for block in region.blocks:
            for wrapped in block.operations:
                yield from _walk_operation(wrapped.operation, functions, place)


def _walk_operation(op: Any, functions: dict[str, Any], place: _Place) -> Iterator[tuple[Kind, str, _Place]]:
    own = _location(op)
    here = place.named(own)
    name = op.name
    found = _lowered_kind(op, name, here)
    if found is not None:
        yield (*found, here)
        return
    if name in ("func.call", "call"):
        callee = functions.get(str(op.attributes["callee"]).lstrip("@"))
        if callee is not None:
            yield from _walk_blocks(callee, functions, here)
    elif name == "stablehlo.while":
        inside = place.named(own.removesuffix("/while")).in_loop(
            _trips(op), "a while loop in " + (path_of(here.scope) or "no scope")
        )
        # Scopes inside a loop repeat the loop's own.
        yield from _walk_blocks(op, functions, replace(inside, scope=place.scope))
    elif name in ("stablehlo.case", "stablehlo.if"):
        yield from _walk_blocks(op, functions, place.in_branch())
    elif name in ("sdy.manual_computation",):
        yield from _walk_blocks(op, functions, here)


def _lowered_kind(op: Any, name: str, place: _Place) -> tuple[Kind, str] | None:
    if name in _LOWERED_COLLECTIVES:
        return Kind.COLLECTIVE, name.removeprefix("stablehlo.").replace("_", "-")
    kind = _LOWERED_KINDS.get(name)
    if kind is Kind.SORT:
        last = place.scope.split("/")[-2:]
        return (Kind.ARGSORT if any("argsort" in s for s in last) or len(op.operands) > 1 else kind), ""
    if kind is Kind.CUSTOM_CALL:
        target = str(op.attributes["call_target_name"]).strip('"')
        if target in _ANNOTATIONS:
            return None
        if "top_k" in target.lower() or target in ("TopK", "mhlo.topk"):
            return Kind.TOP_K, ""
        kernel = str(op.attributes["kernel_name"]).strip('"') if "kernel_name" in op.attributes else target
        return kind, kernel
    return None if kind is None else (kind, "")


def _location(op: Any) -> str:
    """Return the scope that an op's location names, relative to the function it stands in.

    A call's location wraps the scope in the name of its primitive, `closed_call:`.
    """
    location = op.location
    while getattr(location, "is_a_name", lambda: True)():
        try:
            text = str(location.name_str)
            child = location.child_loc
        except (ValueError, AttributeError):
            return ""
        if not text.endswith(":"):
            return text
        location = child
    return ""


def _trips(op: Any) -> int | None:
    """Return the trips of a `while` that counts from 0 by 1 up to a constant, as `lax.scan` lowers to; else None."""
    condition = op.regions[0].blocks[0]
    for wrapped in condition.operations:
        inner = wrapped.operation
        if inner.name == "stablehlo.compare" and "LT" in str(inner.attributes["comparison_direction"]):
            start = _initial_value(inner.operands[0], op, condition)
            limit = _constant(inner.operands[1])
            if limit is None:
                limit = _initial_value(inner.operands[1], op, condition)
            return limit - start if start is not None and limit is not None else None
    return None


def _initial_value(value: Any, loop: Any, condition: Any) -> int | None:
    for number, argument in enumerate(condition.arguments):
        if argument == value:
            return _constant(loop.operands[number])
    return None


def _constant(value: Any) -> int | None:
    owner = getattr(value, "owner", None)
    op = getattr(owner, "operation", owner)
    if op is None or getattr(op, "name", "") != "stablehlo.constant":
        return None
    text = str(op.attributes["value"])
    digits = text.removeprefix("dense<").split(">")[0]
    return int(digits) if digits.lstrip("-").isdigit() else None


def _sited(found: Sequence[tuple[Kind, str, _Place]]) -> tuple[Site, ...]:
    differentiated = any("jvp(" in place.scope for _, _, place in found)
    return tuple(
        Site(
            kind=kind.value,
            name=name,
            pass_=pass_of_scope(place.scope, differentiated).value,
            path=path_of(place.scope),
            loops=place.loops,
            times=place.times,
            why_unknown=place.why_unknown,
        )
        for kind, name, place in found
    )

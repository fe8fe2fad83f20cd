"""Where in the model an instruction belongs: its pass, layer and chunk.

Two sources: the scope path (`op_name`), which jax builds from transformations and named scopes, and the loops
that enclose the instruction in the compiled module. Layers and chunks walked by `lax.scan` share one scope and
one instruction, so there the index is the iteration of the loop.

What jax writes (seen in traces of jax 0.8 to 0.12): `jvp(...)` around the differentiated forward,
`transpose(jvp(...))` around the backward, `rematted_computation` for a forward recomputed inside the backward,
`while/body` for each scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from analyzers.counting.hlo import Instruction, Loop, Module, Placement


class Pass(Enum):
    """Part of a training step an instruction belongs to."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    OTHER = "other"
    """Neither: in a module with a backward pass, what was not differentiated (optimiser, metrics)."""
    UNKNOWN = "unattributed"


@dataclass(frozen=True, slots=True)
class ScopePatterns:
    """Regular expressions that name layers and chunks.

    Each is matched against one whole segment of a scope path. A group captures the index (`layer_3`); a
    segment that matches without an index (`layers`) marks the loop it encloses as the layer or chunk loop.
    """

    layer: re.Pattern[str]
    chunk: re.Pattern[str]


DEFAULT_PATTERNS = ScopePatterns(
    # Ours (`layers`, `layer_3`), MaxText (`moe_layers`, `dense_layers_0`), Flax and NNX (`layers_3`, `Block_3`).
    layer=re.compile(r"(?:\w*_)?(?:[lL]ayers?|[bB]locks?)(?:_?(\d+))?"),
    chunk=re.compile(r"(?:\w*_)?[cC]hunks?(?:_?(\d+))?"),
)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Pass, and how to find layer and chunk of each execution of one instruction.

    `layer` and `chunk` are fixed indices from the scope path; `layer_loop` and `chunk_loop` are positions in
    `Placement.loops`, to be used where the index is an iteration. All are None where nothing tells.
    """

    pass_: Pass
    layer: int | None
    chunk: int | None
    layer_loop: int | None
    chunk_loop: int | None
    layer_is_guess: bool
    """True when no scope named the layer loop and the outermost loop was taken for it."""


def attribute_by_scope(
    scope: str, patterns: ScopePatterns = DEFAULT_PATTERNS, differentiated: bool = True
) -> Attribution:
    """Return the attribution of an op whose module is not at hand, from its scope path alone."""
    return Attribution(
        pass_=pass_of_scope(scope, differentiated),
        layer=index_in_scope(scope, patterns.layer),
        chunk=index_in_scope(scope, patterns.chunk),
        layer_loop=None,
        chunk_loop=None,
        layer_is_guess=False,
    )


def attribute(module: Module, patterns: ScopePatterns = DEFAULT_PATTERNS) -> dict[str, Attribution]:
    """Return the attribution of every executed instruction of `module`, by name."""
    differentiated = any("jvp(" in i.scope for i in module.instructions.values())
    roles = {name: _loop_role(module, loop, patterns) for name, loop in module.loops.items()}
    guess_allowed = "layer" not in roles.values()
    return {
        name: _attribute_one(
            module, module.instructions[name], placement, patterns, roles, differentiated, guess_allowed
        )
        for name, placement in module.placements.items()
    }


def pass_of_scope(scope: str, differentiated: bool) -> Pass:
    """Return the pass a scope path names; `differentiated` says whether its module has a backward pass."""
    if not scope:
        return Pass.UNKNOWN
    if "rematted_computation" in scope:
        return Pass.RECOMPUTE
    if "transpose(" in scope:
        return Pass.BACKWARD
    if "jvp(" in scope or not differentiated:
        return Pass.FORWARD
    return Pass.OTHER


def effective_scope(module: Module, instruction: Instruction) -> str:
    """Return the instruction's scope, or the scope of what it was made from when it has none of its own.

    The compiler drops `op_name` when it rewrites (top-k into a sort, fusions of several ops). What is inside a
    fusion still carries it; else the nearest users do, because they were left as they were; else the operands.
    """
    if instruction.scope:
        return instruction.scope
    inner = next((i.scope for i in module.fused(instruction) if "/" in i.scope), "")
    return inner or _nearest(module, instruction, forwards=True) or _nearest(module, instruction, forwards=False)


_NEAREST_DEPTH = 4


def _nearest(module: Module, start: Instruction, *, forwards: bool) -> str:
    seen = {start.name}
    frontier = [start]
    for _ in range(_NEAREST_DEPTH):
        names = [
            name
            for i in frontier
            for name in (module.users.get(i.name, ()) if forwards else i.operands)
            if name not in seen
        ]
        seen.update(names)
        frontier = [module.instructions[name] for name in dict.fromkeys(names)]
        scopes = [scope for i in frontier for scope in _scopes(module, i)]
        if scopes:
            return scopes[0]
    return ""


def _scopes(module: Module, instruction: Instruction) -> Iterable[str]:
    if "/" in instruction.scope:
        return (instruction.scope,)
    return tuple(i.scope for i in module.fused(instruction) if "/" in i.scope)[:1]


def _attribute_one(
    module: Module,
    instruction: Instruction,
    placement: Placement,
    patterns: ScopePatterns,
    roles: dict[str, str],
    differentiated: bool,
    guess_allowed: bool,
) -> Attribution:
    scope = effective_scope(module, instruction)
    pass_ = pass_of_scope(scope, differentiated)
    if pass_ in (Pass.UNKNOWN, Pass.OTHER) and placement.loops:
        # Nothing names it, but the loop it runs in is named.
        pass_ = next(
            (
                p
                for loop in reversed(placement.loops)
                if (p := pass_of_scope(loop.scope, differentiated)) is not Pass.UNKNOWN
            ),
            pass_,
        )
    layer = index_in_scope(scope, patterns.layer)
    chunk = index_in_scope(scope, patterns.chunk)
    layer_loop = _position(placement.loops, roles, "layer") if layer is None else None
    chunk_loop = _position(placement.loops, roles, "chunk") if chunk is None else None
    guess = layer is None and layer_loop is None and guess_allowed and _may_be_layers(placement.loops, roles)
    return Attribution(
        pass_=pass_,
        layer=layer,
        chunk=chunk,
        layer_loop=0 if guess else layer_loop,
        chunk_loop=chunk_loop,
        layer_is_guess=guess,
    )


def _may_be_layers(loops: tuple[Loop, ...], roles: dict[str, str]) -> bool:
    # Loops that jax itself makes (random numbers, cumulative sums) lie under a named `jit(...)` of their own.
    return bool(loops) and roles[loops[0].name] == "" and ("jvp(" in loops[0].scope) and (loops[0].trip_count or 0) > 1


_WRAPPERS = frozenset({"eval_jaxpr", "closed_call", "checkpoint", "rematted_computation", "core_call", "remat"})
"""Segments that jax puts around what it calls; they name nothing of the model."""


def _loop_role(module: Module, loop: Loop, patterns: ScopePatterns) -> str:
    """Return "layer", "chunk" or "" for a loop, by the scope around it and the scope just inside its body."""
    # `.../layers/while`: the scope the scan was called in says what it walks. An indexed scope (`layer_1/while`)
    # is a layer that contains the loop, not the name of the loop.
    outside = set([s for s in _segments(loop.scope)[:-1] if s not in _WRAPPERS][-1:])
    inside = _first_segments_inside(module, loop)
    for segments in (outside, inside):
        for role, pattern in (("chunk", patterns.chunk), ("layer", patterns.layer)):
            if segments and all(_names_without_index(pattern, segment) for segment in segments):
                return role
    return ""


def _names_without_index(pattern: re.Pattern[str], segment: str) -> bool:
    match = pattern.fullmatch(segment)
    return match is not None and (not match.groups() or match.group(1) is None)


def _first_segments_inside(module: Module, loop: Loop) -> set[str]:
    """Return the first named scopes in a loop's body, those left out that belong to a loop nested in it."""
    prefix = f"{loop.scope}/body/"
    found: set[str] = set()
    for instruction in module.computations.get(loop.body, ()):
        if loop.scope and instruction.scope.startswith(prefix):
            rest = [s for s in _segments(instruction.scope[len(prefix) :]) if s not in _WRAPPERS]
            found.update(rest[:1] if len(rest) > 1 and rest[1] != "while" else ())
    return found


def _position(loops: tuple[Loop, ...], roles: dict[str, str], role: str) -> int | None:
    return next((k for k, loop in enumerate(loops) if roles[loop.name] == role), None)


def index_in_scope(scope: str, pattern: re.Pattern[str]) -> int | None:
    """Return the index the last matching segment of `scope` carries, None if no segment has one."""
    for segment in reversed(_segments(scope)):
        match = pattern.fullmatch(segment)
        if match and match.groups() and match.group(1) is not None:
            return int(match.group(1))
    return None


_WRAPPED = re.compile(r"^(?:\w+\()+([^()]*)\)+$")


def _segments(scope: str) -> list[str]:
    """Split a scope path; `transpose(jvp(layers))` becomes `layers`."""
    return [_WRAPPED.sub(r"\1", segment) for segment in scope.split("/")]

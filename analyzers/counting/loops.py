"""The loops of a compiled module: what nests in what, how often each runs, and which walks the layers.

For a user whose layers or chunks are not told: the scopes of the loops show what `--layer-scope` and
`--chunk-scope` have to match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from analyzers.counting.hlo import Loop, Module, Placement
from analyzers.counting.kinds import sort_kind, sorts_in
from analyzers.counting.scopes import (
    DEFAULT_PATTERNS,
    Attribution,
    Pass,
    ScopePatterns,
    attribute,
)

Role = Literal["layer", "layer (a guess)", "chunk", ""]


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """One `while` that executes."""

    name: str
    depth: int
    """Number of loops around it."""
    pass_: Pass
    scope: str
    trip_count: int | None
    """Iterations per execution of the loop, None where the compiler could not tell."""
    executions: int | None
    """Executions of the loop per execution of the module, None where that cannot be told."""
    reversed: bool
    """Whether it walks its axis from the end, as the backward of a scan does."""
    role: Role
    """What its iterations are taken for; empty if for nothing."""
    sorts: int | None
    """Sorts in one iteration, with those of the loops inside; None where that cannot be told."""
    own_sorts: int
    """Sort instructions of its own body, in no loop inside, each counted for as many sorts as it performs."""


def loop_nest(module: Module, patterns: ScopePatterns = DEFAULT_PATTERNS) -> tuple[LoopFacts, ...]:
    """Return the loops of `module`, each followed by those inside it."""
    attributions = attribute(module, patterns)
    placements = module.placements
    roles = _roles(placements, attributions)
    own, nested = _sorts(module, placements)
    inner: dict[str, list[str]] = {"": []}
    for name in module.loops:
        if name in placements:
            around = placements[name].loops
            inner.setdefault(around[-1].name if around else "", []).append(name)

    def facts(name: str, depth: int) -> Iterator[LoopFacts]:
        loop = module.loops[name]
        yield LoopFacts(
            name=name,
            depth=depth,
            pass_=attributions[name].pass_,
            scope=loop.scope,
            trip_count=loop.trip_count,
            executions=placements[name].executions,
            reversed=loop.reversed,
            role=roles.get(name, ""),
            sorts=nested[name],
            own_sorts=own[name],
        )
        for child in inner.get(name, ()):
            yield from facts(child, depth + 1)

    return tuple(row for name in inner[""] for row in facts(name, 0))


def _roles(placements: Mapping[str, Placement], attributions: Mapping[str, Attribution]) -> dict[str, Role]:
    """Return what loops are taken for, as the attribution of the instructions in them says."""
    roles: dict[str, Role] = {}
    for name, attribution in attributions.items():
        loops = placements[name].loops
        if attribution.layer_loop is not None:
            roles[loops[attribution.layer_loop].name] = "layer (a guess)" if attribution.layer_is_guess else "layer"
        if attribution.chunk_loop is not None:
            roles[loops[attribution.chunk_loop].name] = "chunk"
    return roles


def _sorts(module: Module, placements: Mapping[str, Placement]) -> tuple[dict[str, int], dict[str, int | None]]:
    """Return the sorts of each loop's own body, and those of one iteration of it with all loops inside."""
    own = dict.fromkeys(module.loops, 0)
    nested: dict[str, int | None] = dict.fromkeys(module.loops, 0)
    for name, placement in placements.items():
        instruction = module.instructions[name]
        if sort_kind(module, instruction) is None or not placement.loops:
            continue
        sorts = sorts_in(module, instruction)
        own[placement.loops[-1].name] += sorts
        for loop, times in _times_per_iteration(placement):
            so_far = nested[loop.name]
            nested[loop.name] = None if so_far is None or times is None else so_far + sorts * times
    return own, nested


def _times_per_iteration(placement: Placement) -> Iterator[tuple[Loop, int | None]]:
    """Yield each loop around an instruction with its executions in one iteration of that loop."""
    times: int | None = 1
    if placement.executions is None and all(loop.trip_count is not None for loop in placement.loops):
        times = None  # It is in a branch that may be skipped.
    for loop in reversed(placement.loops):
        yield loop, times
        times = None if times is None or loop.trip_count is None else times * loop.trip_count

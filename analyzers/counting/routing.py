"""The sort table: how many sorts a step executes, by pass and kind, beside what the compiled module promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from analyzers.counting.hlo import Module
from analyzers.counting.kinds import Kind, sort_kind, sorts_in
from analyzers.counting.scopes import DEFAULT_PATTERNS, Pass, ScopePatterns, attribute

SortKey = tuple[Pass, Kind]


@dataclass(frozen=True, slots=True)
class CompiledSorts:
    """Sorts of one compiled module per execution of it."""

    by_pass_and_kind: Mapping[SortKey, int]
    """Instructions × trip counts of the loops around them."""
    in_loops: Mapping[SortKey, int]
    """The part of them that runs inside a loop."""
    unknown: tuple[str, ...]
    """Reasons for sorts that are left out because nobody can tell how often they run."""


def compiled_sorts(module: Module, patterns: ScopePatterns = DEFAULT_PATTERNS) -> CompiledSorts:
    """Count the sorts one execution of `module` performs, by pass and kind."""
    attributions = attribute(module, patterns)
    everywhere: dict[SortKey, int] = defaultdict(int)
    in_loops: dict[SortKey, int] = defaultdict(int)
    unknown = []
    for name, placement in module.placements.items():
        instruction = module.instructions[name]
        kind = sort_kind(module, instruction)
        if kind is None:
            continue
        if placement.executions is None:
            unknown.append(f"{name}: {placement.why_unknown}")
            continue
        times = placement.executions * sorts_in(module, instruction)
        everywhere[attributions[name].pass_, kind] += times
        if placement.loops:
            in_loops[attributions[name].pass_, kind] += times
    return CompiledSorts(dict(everywhere), dict(in_loops), tuple(unknown))

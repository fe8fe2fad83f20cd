"""Where work stands in a program, on every level of its way to the device, in one form that can be compared.

A `Site` is one sort, gather, custom call … of a jaxpr, a StableHLO module or a compiled module, with the loops
around it and how often it runs. Its path holds the named scopes only: what jax and XLA add to an op_name differs
between the levels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from analyzers.counting.hlo import Instruction, Module
from analyzers.counting.kinds import Kind, kind_by_name, sort_kind, sorts_in
from analyzers.counting.scopes import DEFAULT_PATTERNS, ScopePatterns, attribute, effective_scope

COUNTED = (
    *(Kind.ARGSORT, Kind.SORT, Kind.TOP_K, Kind.GATHER, Kind.SCATTER),
    *(Kind.CUSTOM_CALL, Kind.COLLECTIVE, Kind.COPY),
)
"""The kinds of work that are followed from level to level."""


@dataclass(frozen=True, slots=True)
class LoopSite:
    """One loop around a site: its path and its trips, None where nobody can tell."""

    path: str
    trips: int | None


@dataclass(frozen=True, slots=True)
class Site:
    """One instruction of one level that does work of a counted kind."""

    kind: str
    name: str
    """Of a custom call or a collective: which one; else empty."""
    pass_: str
    path: str
    """Named scopes, outermost first, joined by `/`."""
    loops: tuple[LoopSite, ...]
    times: int | None
    """Executions per execution of the program on one device, None where nobody can tell."""
    why_unknown: str


_BOOKKEEPING = frozenset(
    {"AllocateBuffer", "ConcatBitcast", "PrepareAsyncCallStart", "PrepareAsyncCallDone", "Sharding"}
)
"""Custom calls of the compiler itself that do no work (seen in modules for v6e and TPU7x)."""

_JAX_SEGMENTS = frozenset(
    {
        *("", "while", "body", "cond", "closed_call", "core_call", "shard_map", "checkpoint", "remat", "remat2"),
        *(
            "rematted_computation",
            "custom_vjp_call",
            "custom_jvp_call",
            "custom_vjp_call_jaxpr",
            "eval_jaxpr",
            "xla_call",
        ),
    }
)
_WRAPPED = re.compile(r"^(?:(?:jvp|transpose|vmap)\()+([^()]*)\)+$")


def path_of(scope: str) -> str:
    """Return the named scopes of an op_name: without primitive, transformations, and what jax calls its own calls."""
    segments = [_WRAPPED.sub(r"\1", segment) for segment in scope.rstrip(":").split("/")[:-1]]
    return "/".join(s for s in segments if s not in _JAX_SEGMENTS and not re.match(r"(jit|pjit|branch_\d+)\b", s))


def compiled_sites(module: Module, patterns: ScopePatterns = DEFAULT_PATTERNS) -> tuple[Site, ...]:
    """Return the sites of a compiled module."""
    attributions = attribute(module, patterns)
    found = []
    for name, placement in module.placements.items():
        instruction = module.instructions[name]
        scope = effective_scope(module, instruction)
        for kind, label, count in _work(module, instruction):
            found.append(
                Site(
                    kind=kind.value,
                    name=label,
                    pass_=attributions[name].pass_.value,
                    path=path_of(scope),
                    loops=tuple(LoopSite(path_of(loop.scope), loop.trip_count) for loop in placement.loops),
                    times=None if placement.executions is None else placement.executions * count,
                    why_unknown=placement.why_unknown,
                )
            )
    return tuple(found)


def _work(module: Module, instruction: Instruction) -> Iterator[tuple[Kind, str, int]]:
    """Yield kind, name and number of the counted work that one execution of an instruction does."""
    sort = sort_kind(module, instruction)
    if sort is not None:
        yield sort, "", sorts_in(module, instruction)
        return
    inside = [i for i in (instruction, *module.fused(instruction)) if not i.opcode.endswith("-done")]
    plain = [(kind_by_name(i.opcode, i.scope), i) for i in inside]
    for kind in (Kind.GATHER, Kind.SCATTER):
        if count := sum(k is kind for k, _ in plain):
            yield kind, "", count
    if plain and instruction.opcode != "fusion":
        kind = plain[0][0]
        if kind is Kind.CUSTOM_CALL and instruction.custom_call_target not in _BOOKKEEPING:
            yield kind, kernel_name(instruction), 1
        elif kind is Kind.COLLECTIVE:
            yield kind, instruction.opcode.removesuffix("-start"), 1
        elif kind is Kind.COPY:
            yield kind, "", 1


def kernel_name(instruction: Instruction) -> str:
    """Return what a custom call calls: for a Pallas kernel its name, else the target.

    The instruction of a TPU kernel is called after the kernel (`sc_ragged_gather.5.cloned.1`).
    """
    target = instruction.custom_call_target
    if target != "tpu_custom_call":
        return target
    return re.sub(r"(\.\d+|\.cloned|\.clone|\.remat\d*)*(\.call-start)?$", "", instruction.name)

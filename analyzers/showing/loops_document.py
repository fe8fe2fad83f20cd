"""The loop nest of a trace's module, for choosing what is a layer: what `moe-prof show --loops` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from analyzers.counting.loops import LoopFacts, loop_nest
from analyzers.counting.scopes import ScopePatterns
from analyzers.showing.as_json import SCHEMA_VERSION
from analyzers.showing.format import NOT_AVAILABLE, short_scope
from analyzers.showing.tables import Column, Document, Paragraph, Table, cells
from analyzers.trace import Trace

_SCOPE_WIDTH = 60


def loops_document(trace: Trace, patterns: ScopePatterns) -> Document:
    """Return the document; `patterns` are those with which the trace was loaded."""
    heading = f"{trace.name}: loops of module {trace.sessions[0][0].module_name or NOT_AVAILABLE}"
    notes = tuple(map(str, trace.caveats))
    if trace.module is None:
        return Document(heading, (Paragraph(f"Loops: {NOT_AVAILABLE}, the trace holds no HLO of the module."),), notes)
    nest = loop_nest(trace.module, patterns)
    if not nest:
        return Document(heading, (Paragraph("Loops: none, the module runs every instruction once."),), notes)
    return Document(heading, (_table(nest), *(Paragraph(line) for line in _advice(nest, patterns))), notes)


def _table(nest: Sequence[LoopFacts]) -> Table:
    return Table(
        "Loops, each above those inside it",
        (
            Column("loop", numeric=False),
            Column("taken for", numeric=False),
            Column("pass", numeric=False),
            Column("iterations"),
            Column("executed per step"),
            Column("sorts per iteration"),
            Column("of its own"),
            Column("scope", numeric=False),
        ),
        tuple(
            cells(
                "· " * loop.depth + loop.name,
                loop.role or "–",
                loop.pass_.value,
                _count(loop.trip_count) + (" (from the end)" if loop.reversed else ""),
                _count(loop.executions),
                _count(loop.sorts),
                str(loop.own_sorts),
                short_scope(loop.scope, _SCOPE_WIDTH),
            )
            for loop in nest
        ),
    )


def _advice(nest: Sequence[LoopFacts], patterns: ScopePatterns) -> list[str]:
    lines = []
    for what, pattern in (("layer", patterns.layer), ("chunk", patterns.chunk)):
        if not any(loop.role == what for loop in nest):
            lines.append(
                f"No loop is named as one over {what}s ({pattern.pattern}): give --{what}-scope a regular expression "
                "that matches the whole segment of the scope before the loop's `while`, or the first one in its body."
            )
    return lines


def _count(count: int | None) -> str:
    return NOT_AVAILABLE if count is None else str(count)


def loops_json(traces: Sequence[Trace], patterns: ScopePatterns) -> str:
    """Return the JSON text of `moe-prof show --loops --json`."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "kind": "moe-prof show --loops",
        "traces": [
            {
                "name": trace.name,
                "path": trace.path,
                "module": trace.sessions[0][0].module_name,
                "loops": [_loop(loop) for loop in loop_nest(trace.module, patterns)] if trace.module else None,
            }
            for trace in traces
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def _loop(loop: LoopFacts) -> dict[str, Any]:
    return {
        "name": loop.name,
        "depth": loop.depth,
        "role": loop.role or None,
        "pass": loop.pass_.value,
        "scope": loop.scope,
        "trip_count": loop.trip_count,
        "executions": loop.executions,
        "reversed": loop.reversed,
        "sorts_per_iteration": loop.sorts,
        "own_sorts": loop.own_sorts,
    }

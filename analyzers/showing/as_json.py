"""Traces and comparisons as JSON. Times are whole picoseconds, sizes bytes; docs/json.md describes every field."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from analyzers.caveats import Caveat
from analyzers.comparing.deltas import TimeDelta
from analyzers.comparing.devices import device_spread
from analyzers.comparing.diff import Diff, Unknown
from analyzers.comparing.statistics import Estimate, Saving
from analyzers.counting.buffers import Buffer
from analyzers.counting.hosts import host_names, ops_of, programs_of
from analyzers.showing.buffer_tables import alive_json
from analyzers.trace import Blocks, SortRow, Trace

SCHEMA_VERSION = 1


def show_json(traces: Sequence[Trace]) -> str:
    """Return the JSON text of `moe-prof show --json`."""
    return _dump({"schema_version": SCHEMA_VERSION, "kind": "moe-prof show", "traces": [_trace(t) for t in traces]})


def diff_json(diffs: Sequence[Diff], tables: Sequence[dict[str, Any]] = ()) -> str:
    """Return the JSON text of `moe-prof diff --json`; `tables` has what `--by` asks for, one for each comparison."""
    found = [_diff(d) for d in diffs]
    if tables:
        found = [one | {"table": table} for one, table in zip(found, tables, strict=True)]
    return _dump({"schema_version": SCHEMA_VERSION, "kind": "moe-prof diff", "diffs": found})


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def _trace(trace: Trace) -> dict[str, Any]:
    first = trace.sessions[0][0]
    return {
        "name": trace.name,
        "path": trace.path,
        "devices": list(trace.devices),
        "device_types": list(first.device_types),
        "hosts": _hosts(trace),
        "module": first.module_name,
        "sessions": len(trace.sessions),
        "steps": [list(session[0].step_labels) for session in trace.sessions],
        "step_source": first.step_source,
        "at_least": trace.at_least,
        "sorts": [_sort_row(row) for row in trace.sorts],
        "step_wall_ps": _ps(trace.step_wall_ps),
        "self_ps": _ps(trace.self_ps()),
        "self_ps_by_pass": {p.value: _ps(trace.self_ps(pass_=p)) for p in trace.passes},
        "self_ps_by_layer": {str(k): _ps(trace.self_ps(layer=k)) for k in trace.layers},
        "self_ps_by_chunk": {str(k): _ps(trace.self_ps(chunk=k)) for k in trace.chunks},
        "self_ps_by_layer_and_chunk": {
            str(layer): {str(chunk): _ps(trace.self_ps(layer=layer, chunk=chunk)) for chunk in trace.chunks}
            for layer in trace.layers
        },
        "self_ps_without_layer": _ps(trace.self_ps(layer=-1)),
        "self_ps_without_chunk": _ps(trace.self_ps(chunk=-1)),
        "self_ps_by_device": {device.name: _ps(device.self_ps) for device in device_spread(trace).devices},
        "ops": _ops(trace),
        "modules": [
            {"name": p.name, "program_id": p.program_id, "executions": p.runs, "self_ps": p.self_ps}
            for p in programs_of(trace.sessions[0])
        ],
        "memory": _memory(trace),
        "caveats": [_caveat(c) for c in trace.caveats],
    }


def _sort_row(row: SortRow) -> dict[str, Any]:
    return {
        "pass": row.pass_.value,
        "kind": row.kind.value,
        "executed_min": row.executed[0],
        "executed_max": row.executed[1],
        "compiled": row.compiled,
        "self_ps": _ps(row.self_ps),
    }


def _ps(blocks: Blocks) -> list[list[int]]:
    return [[round(float(value)) for value in block] for block in blocks]


def _ops(trace: Trace) -> list[dict[str, Any]]:
    """Executions and self time of each op of the first session, over all its hosts, devices and steps."""
    return [
        {
            "name": op.name,
            "opcode": op.opcode,
            "kind": op.kind.value,
            "pass": op.pass_.value,
            "shape": op.shape,
            "scope": op.scope,
            "executions": executions,
            "compiled_per_step": op.expected if op.expected >= 0 else None,
            "self_ps": self_ps,
        }
        for op, executions, self_ps in ops_of(trace.sessions[0])
    ]


def _hosts(trace: Trace) -> list[dict[str, Any]]:
    """The files of the first session."""
    session = trace.sessions[0]
    return [
        {
            "name": host,
            "path": file.path,
            "devices": len(file.devices),
            "steps": list(file.step_labels),
            "memory_per_device": asdict(file.memory) if file.memory else None,
        }
        for host, file in zip(host_names(session), session, strict=True)
    ]


def _memory(trace: Trace) -> dict[str, Any]:
    found, variant = trace.buffers, trace.variant
    return {
        "temp_bytes": found.temp_bytes if found else None,
        "argument_bytes": found.argument_bytes if found else None,
        "peak_bytes": trace.peak_bytes,
        "dispatch_input_bytes": variant.dispatch_input_bytes if variant else None,
        "top_k_buffer_bytes": variant.top_k_buffer_bytes if variant else None,
        "buffers": [_buffer(b) for b in found.buffers] if found else None,
        "alive_at_peak": alive_json(trace.peak),
    }


def _buffer(buffer: Buffer) -> dict[str, Any]:
    return {
        "size_bytes": buffer.size_bytes,
        "shape": buffer.shape,
        "instruction": buffer.instruction,
        "opcode": buffer.opcode,
        "scope": buffer.scope,
        "pass": buffer.pass_.value,
    }


def _caveat(caveat: Caveat) -> dict[str, Any]:
    return {"name": caveat.name, "message": caveat.message, "lower_bound": caveat.lower_bound}


def _diff(diff: Diff) -> dict[str, Any]:
    found = diff.per_chunk_per_layer
    return {
        "a": _trace(diff.a),
        "b": _trace(diff.b),
        "comparability": [{"name": f.name, "a": f.a, "b": f.b} for f in diff.comparability.facts],
        "one_program": diff.one_program,
        "sorts": [
            {
                "pass": row.pass_.value,
                "kind": row.kind.value,
                "a": _sort_row(row.a) if row.a else None,
                "b": _sort_row(row.b) if row.b else None,
            }
            for row in diff.sorts
        ],
        "step_wall": delta_json(diff.step_wall),
        "self_time": delta_json(diff.self_time),
        "sort_time": delta_json(diff.sort_time),
        "by_pass": [delta_json(row) for row in diff.by_pass],
        "by_layer": [delta_json(row) for row in diff.by_layer],
        "by_chunk": [delta_json(row) for row in diff.by_chunk],
        "without_layer": delta_json(diff.unattributed),
        "without_chunk": delta_json(diff.without_chunk),
        "per_chunk_per_layer": _unknown(found)
        if isinstance(found, Unknown)
        else {label: _saving(saving) for label, saving in found.items()},
        "ops": [
            {"pass": row.pass_.value, "opcode": row.opcode, "shape": row.shape, "scope": row.scope}
            | delta_json(row.time)
            for row in diff.ops
        ],
        "other_ops": [delta_json(row) for row in diff.other_ops],
        "op_total": delta_json(diff.op_total),
        "buffer_totals": _unknown(diff.buffer_totals)
        if isinstance(diff.buffer_totals, Unknown)
        else {row.label: {"a_bytes": row.a_bytes, "b_bytes": row.b_bytes} for row in diff.buffer_totals},
        "buffer_changes": _unknown(diff.buffer_changes)
        if isinstance(diff.buffer_changes, Unknown)
        else [
            {"example": _buffer(row.example), "count_a": row.count_a, "count_b": row.count_b}
            for row in diff.buffer_changes
        ],
        "top_k_buffers": _unknown(diff.top_k_buffers)
        if isinstance(diff.top_k_buffers, Unknown)
        else {
            "size_bytes": diff.top_k_buffers.size_bytes,
            "dispatch_input_bytes": diff.top_k_buffers.dispatch_input_bytes,
            "a_by_pass": diff.top_k_buffers.a,
            "b_by_pass": diff.top_k_buffers.b,
            "a_repeats": diff.top_k_buffers.a_repeats,
            "b_repeats": diff.top_k_buffers.b_repeats,
        },
        "caveats": [_caveat(c) for c in diff.caveats],
    }


def _unknown(unknown: Unknown) -> dict[str, str]:
    return {"not_available": unknown.reason}


def delta_json(row: TimeDelta) -> dict[str, Any]:
    """Return one comparison of times."""
    return {
        "label": row.label,
        "a": _estimate(row.a),
        "b": _estimate(row.b),
        "saving": _saving(row.saving) if row.saving else None,
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {
        "median_ps": round(estimate.median),
        "min_ps": round(estimate.low),
        "max_ps": round(estimate.high),
        "samples": estimate.samples,
        "mean_ps": round(estimate.mean),
    }


def _saving(saving: Saving) -> dict[str, Any]:
    known = not math.isnan(saving.low)
    return {
        "value_ps": round(saving.value),
        "low_ps": round(saving.low) if known else None,
        "high_ps": round(saving.high) if known else None,
        "verdict": saving.verdict.name.lower(),
        "footnotes": list(saving.footnotes),
        "rank_test": asdict(saving.rank) if saving.rank else None,
    }

"""Compiled programs as documents: what `moe-prof compile` prints. And the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from analyzers.comparing.executed import Executed
from analyzers.comparing.funnel import EXECUTED, Count, Place, count, funnel, places, steps
from analyzers.compiled import CompiledProgram, repeated_buffers
from analyzers.counting.buffers import changes
from analyzers.counting.kinds import Kind
from analyzers.counting.sites import Site
from analyzers.showing.buffer_tables import alive_json, buffer_table, peak_story, peak_table
from analyzers.showing.format import NOT_AVAILABLE, ratio, short_scope, size
from analyzers.showing.tables import Cell, Column, Document, Paragraph, Table, cells

Levels = Mapping[str, Sequence[Site]]

_ALWAYS = frozenset(k.value for k in Kind if k.is_sort)


def compile_document(program: CompiledProgram, top: int = 10, executed: Executed | None = None) -> Document:
    """Return the document of one program; `top` limits buffers, `executed` adds the counts of a run as a level."""
    levels: dict[str, Sequence[Site]] = dict(program.levels)
    if executed is not None:
        levels[EXECUTED] = executed.sites
    parts: list[Table | Paragraph] = [_funnel_table(levels), _steps_table(levels)]
    parts += [_place_table(levels["compiled"]), *_memory(program, top)]
    notes = (*(executed.notes if executed else ()), *_notes(program, levels))
    return Document(heading(program), tuple(parts), notes)


def heading(program: CompiledProgram) -> str:
    """Return one line that says what was compiled, for what, with what."""
    about, record = program.manifest, program.record.compiled
    versions = ", ".join(f"{n} {about.versions[n]}" for n in ("jax", "libtpu") if about.versions.get(n))
    if about.target == "cpu":
        versions = f"jax {about.versions.get('jax')}"
    mode = f" {about.mode}" if about.mode else ""
    what = about.workload if about.workload.endswith(f":{program.name}") else f"{about.workload}{mode}, {program.name}"
    return f"{what}: compiled for {about.target} ({about.device_kind}) in {record.compile_seconds:.1f} s, {versions}"


def _notes(program: CompiledProgram, levels: Levels) -> tuple[str, ...]:
    about = program.manifest
    notes = [f"flags: {flags}" for flags in (about.xla_flags, about.libtpu_init_args) if flags]
    reasons = dict.fromkeys(
        f"{level}: {s.kind} in {s.path or 'no scope'} not counted, {s.why_unknown}"
        for level, sites in levels.items()
        for s in sites
        if s.times is None and s.kind in _ALWAYS
    )
    if any(step.is_guess for step in steps(levels)):
        notes.append("? marks a guess: no level names what it merged or moved, so it is told from what is left")
    return (*notes, *reasons)


def _number(found: Count) -> str:
    return f"{found.times}{f' + {found.unknown}×?' if found.unknown else ''}"


def _funnel_table(levels: Levels) -> Table | Paragraph:
    rows = [row for row in funnel(levels) if row.kind != Kind.COPY.value or any(c.times for c in row.counts.values())]
    if not rows:
        return Paragraph("Funnel: nothing sorts, gathers, scatters, copies or communicates on any level.")
    names = list(levels)
    # A run counts sorts only.
    table = [
        cells(
            row.kind + (f" {row.name}" if row.name else ""),
            row.pass_,
            *(
                NOT_AVAILABLE if level == EXECUTED and row.kind not in _ALWAYS else _number(row.counts[level])
                for level in names
            ),
        )
        for row in rows
    ]
    sorted_ = [s for s in _ALWAYS if s != Kind.TOP_K.value]
    table.append(
        cells("all sorts but top_k", "", *(_number(count(s for s in levels[n] if s.kind in sorted_)) for n in names))
    )
    return Table(
        "Funnel: executions per step and device",
        (Column("work", numeric=False), Column("pass", numeric=False), *(Column(n) for n in names)),
        tuple(table),
        total_rows=1,
    )


def _steps_table(levels: Levels) -> Table | Paragraph:
    rows = [
        cells(
            f"{s.before_level} → {s.after_level}",
            s.kind,
            s.pass_,
            s.path or "(no scope)",
            str(s.before),
            str(s.after),
            Cell(s.story + (" ?" if s.is_guess else ""), "dim" if s.is_guess else ""),
        )
        for s in steps(levels)
    ]
    if not rows:
        return Paragraph("Every sort of one level is on the next, in the same loops.")
    return Table(
        "Where sorts are lost, gained or moved",
        (
            Column("level", numeric=False),
            Column("kind", numeric=False),
            Column("pass", numeric=False),
            Column("scope", numeric=False),
            Column("before"),
            Column("after"),
            Column("what happened", numeric=False),
        ),
        tuple(rows),
    )


def _place_table(sites: Sequence[Site]) -> Table | Paragraph:
    rows = [
        cells(p.pass_, p.kind, p.path or "(no scope)", _loops(p), NOT_AVAILABLE if p.times is None else str(p.times))
        for p in places(sites)
    ]
    if not rows:
        return Paragraph("Compiled sorts: none.")
    return Table(
        "Compiled sorts by place",
        (
            Column("pass", numeric=False),
            Column("kind", numeric=False),
            Column("scope", numeric=False),
            Column("in loops", numeric=False),
            Column("executions"),
        ),
        tuple(rows),
    )


def _loops(place: Place) -> str:
    return (
        " › ".join(f"{(loop.path or 'unnamed').split('/')[-1]} × {loop.trips or '?'}" for loop in place.loops)
        or "none (entry)"
    )


def _memory(program: CompiledProgram, top: int) -> list[Table | Paragraph]:
    found = program.buffers
    if found is None:
        return [Paragraph(f"Buffers: {NOT_AVAILABLE}, the compiler gave no buffer assignment.")]
    reference = program.record.compiled.dispatch_input_bytes
    devices = program.module.num_devices or 1
    at_once = f" allocated, {size(program.peak.size_bytes)} of it alive at once" if program.peak else ""
    totals = (
        f"Memory {f'on each of {devices} devices' if devices > 1 else 'on the device'}: peak {size(program.peak_bytes)}"
        f"{at_once}; temporary {size(found.temp_bytes)}, arguments {size(found.argument_bytes)}"
        + (f"; dispatch input of a layer {size(reference)}" if reference else "")
    )
    parts: list[Table | Paragraph] = [Paragraph(totals)]
    parts.append(
        buffer_table(
            f"Largest buffers ({min(top, len(found.buffers))} of {len(found.buffers)})",
            found.buffers[:top],
            reference,
            program.peak,
        )
    )
    if program.peak is not None:
        parts.append(peak_table(program.peak, found, reference, top))
    return parts


def compile_diff_document(a: CompiledProgram, b: CompiledProgram, top: int = 10) -> Document:
    """Return what changed between two programs compiled for one target: sorts, buffers, the peak."""
    parts: list[Table | Paragraph] = []
    if a.record.compiled.fingerprint == b.record.compiled.fingerprint:
        parts.append(Paragraph(f"{a.name} and {b.name} compile to one and the same program."))
    parts.append(_sort_comparison(a, b))
    if a.buffers is None or b.buffers is None:
        parts.append(Paragraph(f"Buffers: {NOT_AVAILABLE}, the compiler gave no buffer assignment."))
    else:
        parts += _buffer_comparison(a, b, top)
        parts += [Paragraph(line) for line in _peak_lines(a, b)]
    return Document(f"{a.name} → {b.name} on {a.manifest.target}", tuple(parts))


def _sort_comparison(a: CompiledProgram, b: CompiledProgram) -> Table | Paragraph:
    rows = funnel({"a": a.levels["compiled"], "b": b.levels["compiled"]})
    table = [
        cells(row.kind, row.pass_, _number(row.counts["a"]), _number(row.counts["b"]))
        for row in rows
        if row.kind in _ALWAYS
    ]
    if not table:
        return Paragraph("Sorts: none in either.")
    return Table(
        "Compiled sorts per step and device",
        (Column("kind", numeric=False), Column("pass", numeric=False), Column(a.name), Column(b.name)),
        tuple(table),
    )


def _buffer_comparison(a: CompiledProgram, b: CompiledProgram, top: int) -> list[Table | Paragraph]:
    assert a.buffers is not None
    assert b.buffers is not None
    reference = a.record.compiled.dispatch_input_bytes
    rows = [
        cells(
            name,
            size(x),
            size(y),
            "0" if x == y else ("+" if (y or 0) > (x or 0) else "−") + size(abs((y or 0) - (x or 0))),
        )
        for name, x, y in (
            ("peak", a.peak_bytes, b.peak_bytes),
            ("temporary", a.buffers.temp_bytes, b.buffers.temp_bytes),
            ("arguments", a.buffers.argument_bytes, b.buffers.argument_bytes),
        )
    ]
    totals = Table(
        "Memory per device", (Column("", numeric=False), Column(a.name), Column(b.name), Column("change")), tuple(rows)
    )
    found = changes(a.buffers, b.buffers)
    if not found:
        return [totals, Paragraph("Buffers that come and go: none.")]
    table = Table(
        f"Buffers that come and go ({min(top, len(found))} of {len(found)} shapes and scopes)",
        (
            Column("shape", numeric=False),
            Column("made by", numeric=False),
            Column("pass", numeric=False),
            Column("size of one"),
            Column("× dispatch input"),
            Column(f"in {a.name}"),
            Column(f"in {b.name}"),
            Column("scope", numeric=False),
        ),
        tuple(
            cells(
                c.example.shape,
                c.example.opcode,
                c.example.pass_.value,
                size(c.example.size_bytes),
                ratio(c.example.size_bytes, reference),
                str(c.count_a),
                str(c.count_b),
                short_scope(c.example.scope),
            )
            for c in found[:top]
        ),
    )
    return [totals, table, *(Paragraph(line) for line in top_k_lines(a, b))]


def top_k_lines(a: CompiledProgram, b: CompiledProgram) -> list[str]:
    """Return sentences on the buffer that `top_k` repeats of the tokens fill: who has it, in which pass.

    Nothing for a workload whose variants never repeat tokens.
    """
    bytes_ = a.record.compiled.top_k_buffer_bytes
    found = {program.name: repeated_buffers(program) for program in (a, b)}
    if not bytes_ or not (any(found.values()) or a.manifest.workload == "permute"):
        return []
    times = f"{bytes_ / a.record.compiled.dispatch_input_bytes:.1f} × the dispatch input, {size(bytes_)} of data"
    lines = []
    for name, buffers in found.items():
        where = ", ".join(f"{x.shape} ({x.pass_.value} pass, {size(x.size_bytes)} in memory)" for x in buffers)
        lines.append(
            f"{name}: tokens repeated top_k times, {times}, fill {where}."
            if buffers
            else f"{name}: no buffer of the forward pass holds tokens repeated top_k times ({times})."
        )
    return lines


def _peak_lines(a: CompiledProgram, b: CompiledProgram) -> list[str]:
    if a.peak is None or b.peak is None or a.buffers is None or b.buffers is None:
        return [f"Peak: {NOT_AVAILABLE}, the compiler gave no live ranges."]
    return peak_story(a.name, b.name, (a.buffers, b.buffers), (a.peak, b.peak))


def compile_json(programs: Sequence[CompiledProgram], executed: Sequence[Executed | None] = ()) -> str:
    """Return the JSON text of `moe-prof compile --json`; sizes are bytes, `executed` as for `compile_document`."""
    both = zip_longest(programs, executed)
    content = {"schema_version": 1, "kind": "moe-prof compile report", "programs": [_program(*p) for p in both]}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def _program(program: CompiledProgram, executed: Executed | None) -> dict[str, Any]:
    about, found = program.manifest, program.buffers
    levels = dict(program.levels) | ({EXECUTED: executed.sites} if executed else {})
    return {
        "name": program.name,
        "path": str(program.folder),
        "workload": about.workload,
        "mode": about.mode,
        "target": about.target,
        "device_kind": about.device_kind,
        "xla_flags": about.xla_flags,
        "libtpu_init_args": about.libtpu_init_args,
        "fingerprint": program.record.compiled.fingerprint,
        "compile_seconds": program.record.compiled.compile_seconds,
        "funnel": [
            {"kind": r.kind, "name": r.name, "pass": r.pass_}
            | {
                level: {"executions": c.times, "unknown": c.unknown} if level != EXECUTED or r.kind in _ALWAYS else None
                for level, c in r.counts.items()
            }
            for r in funnel(levels)
        ],
        "steps": [asdict(s) for s in steps(levels)],
        "sorts": [
            {
                "pass": p.pass_,
                "kind": p.kind,
                "scope": p.path,
                "loops": [asdict(loop) for loop in p.loops],
                "executions": p.times,
            }
            for p in places(program.levels["compiled"])
        ],
        "memory": {
            "peak_bytes": program.peak_bytes,
            "temp_bytes": found.temp_bytes if found else None,
            "argument_bytes": found.argument_bytes if found else None,
            "dispatch_input_bytes": program.record.compiled.dispatch_input_bytes or None,
            "top_k_buffer_bytes": program.record.compiled.top_k_buffer_bytes or None,
            "alive_at_peak": alive_json(program.peak),
            "buffers": [
                {
                    "size_bytes": b.size_bytes,
                    "shape": b.shape,
                    "instruction": b.instruction,
                    "opcode": b.opcode,
                    "scope": b.scope,
                    "pass": b.pass_.value,
                }
                for b in found.buffers
            ]
            if found
            else None,
        },
    }

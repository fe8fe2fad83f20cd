"""One trace as a document: what `moe-prof show` prints."""

from __future__ import annotations

from analyzers.comparing.statistics import estimate
from analyzers.counting.hosts import host_names, num_devices, ops_of, programs_of
from analyzers.showing.buffer_tables import buffer_table, peak_table
from analyzers.showing.devices_document import device_table
from analyzers.showing.format import NOT_AVAILABLE, estimate_us, executions, microseconds, short_scope, size
from analyzers.showing.tables import Cell, Column, Document, Paragraph, Table, cells
from analyzers.trace import Trace

_AT_PEAK = 5
"""Buffers to list that are alive at the peak."""


def trace_document(trace: Trace, top: int = 10) -> Document:
    """Return the document of one trace; `top` limits the ops and buffers that are listed."""
    parts: list[Table | Paragraph] = [_sort_table(trace), _time_table(trace)]
    parts += [table for table in (_index_table(trace, "layer"), _index_table(trace, "chunk")) if table]
    if by_device := device_table(trace):
        parts.append(by_device)
    parts.append(_op_table(trace, top))
    if len(trace.sessions[0][0].programs) > 1:
        parts.append(_program_table(trace))
    parts += _buffer_parts(trace, top)
    return Document(heading(trace), tuple(parts), tuple(map(str, trace.caveats)))


def heading(trace: Trace) -> str:
    """Return one line that says what was measured, on what."""
    first = trace.sessions[0][0]
    types = ", ".join(first.device_types)
    devices = f"{len(trace.devices)} × {types}" if types else _devices(trace.devices)
    sessions = len(trace.sessions)
    steps = f"{trace.num_steps} steps" + (f" in {sessions} sessions" if sessions > 1 else "")
    module = first.module_name or NOT_AVAILABLE
    return f"{trace.name}: {steps} of module {module}, told by {first.step_source}, on {devices}"


def _devices(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]} ({len(names)} devices)"


def _sort_table(trace: Trace) -> Table | Paragraph:
    if not trace.sorts:
        return Paragraph("Sorts: none in this module's steps.")
    rows = []
    for row in trace.sorts:
        agrees = row.compiled is None or row.executed == (row.compiled, row.compiled)
        rows.append(
            cells(
                row.pass_.value,
                row.kind.value,
                Cell(executions(row.executed, trace.at_least), "" if agrees else "bad"),
                NOT_AVAILABLE if row.compiled is None else str(row.compiled),
                estimate_us(estimate(row.self_ps)),
            )
        )
    total = trace.sort_executions()
    compiled = sum(trace.compiled.by_pass_and_kind.values()) if trace.compiled else None
    rows.append(
        cells(
            "all",
            "",
            executions(total, trace.at_least),
            NOT_AVAILABLE if compiled is None else str(compiled),
            estimate_us(estimate(trace.self_ps_of_ops(lambda op: op.kind.is_sort))),
        )
    )
    notes = tuple(f"not counted as compiled: {reason}" for reason in (trace.compiled.unknown if trace.compiled else ()))
    return Table(
        "Sorts per step and device",
        (
            Column("pass", numeric=False),
            Column("kind", numeric=False),
            Column("executed"),
            Column("compiled"),
            Column("µs per step: median (min–max)"),
        ),
        tuple(rows),
        total_rows=1,
        footnotes=notes,
    )


def _time_table(trace: Trace) -> Table:
    rows = [cells(p.value, estimate_us(estimate(trace.self_ps(pass_=p)))) for p in trace.passes]
    rows.append(cells("all ops", estimate_us(estimate(trace.self_ps()))))
    rows.append(cells("step, wall time of the slowest device", estimate_us(estimate(trace.step_wall_ps))))
    return Table(
        "Time per step: self time of ops, mean over devices",
        (Column("pass", numeric=False), Column("µs: median (min–max)")),
        tuple(rows),
        total_rows=2,
    )


def _index_table(trace: Trace, what: str) -> Table | None:
    indices = trace.layers if what == "layer" else trace.chunks
    if not indices:
        return None

    def row(k: int) -> tuple[Cell, ...]:
        blocks = trace.self_ps(layer=k) if what == "layer" else trace.self_ps(chunk=k)
        return cells(str(k), estimate_us(estimate(blocks)))

    rest = trace.self_ps(layer=-1) if what == "layer" else trace.self_ps(chunk=-1)
    rows = [*(row(k) for k in indices), cells(f"no {what}", estimate_us(estimate(rest)))]
    return Table(
        f"Time per step by {what}",
        (Column(what, numeric=False), Column("µs: median (min–max)")),
        tuple(rows),
        total_rows=1,
        by_index=True,
    )


def _op_table(trace: Trace, top: int) -> Table:
    session = trace.sessions[0]
    ran = ops_of(session)
    shares = max(session[0].num_steps, 1) * max(num_devices(session), 1)
    rows = [
        cells(
            op.name,
            op.pass_.value,
            op.kind.value,
            f"{executed / shares:g}",
            str(op.expected) if op.expected >= 0 else NOT_AVAILABLE,
            microseconds(self_ps / shares),
            short_scope(op.scope),
        )
        for op, executed, self_ps in sorted(ran, key=lambda row: -row[2])[:top]
        if self_ps
    ]
    return Table(
        f"Ops with most self time ({len(rows)} of {len(ran)}), per step and device",
        (
            Column("op", numeric=False),
            Column("pass", numeric=False),
            Column("kind", numeric=False),
            Column("executed"),
            Column("compiled"),
            Column("µs, mean"),
            Column("scope", numeric=False),
        ),
        tuple(rows),
    )


def _program_table(trace: Trace) -> Table:
    session = trace.sessions[0]
    ordered = sorted(programs_of(session), key=lambda p: -p.self_ps)
    outside_ps = sum(file.outside_ps for file in session)
    rows = [cells(p.name, str(p.runs), microseconds(p.self_ps)) for p in ordered]
    if outside_ps:
        rows.append(cells("no module (copies, memsets)", "", microseconds(outside_ps)))
    return Table(
        "Modules that ran, all devices" + (", first session" if len(trace.sessions) > 1 else ""),
        (Column("module", numeric=False), Column("executions"), Column("self time, µs")),
        tuple(rows),
        total_rows=1 if outside_ps else 0,
        by_index=True,
    )


def _buffer_parts(trace: Trace, top: int) -> list[Table | Paragraph]:
    found = trace.buffers
    if found is None:
        return [Paragraph(f"Buffers: {NOT_AVAILABLE}, the trace holds no buffer assignment of the module.")]
    reference = trace.variant.dispatch_input_bytes if trace.variant else None
    totals = ", ".join(
        f"{what} {size(count)}"
        for what, count in (
            ("peak", trace.peak_bytes),
            ("temporary", found.temp_bytes),
            ("arguments", found.argument_bytes),
        )
    )
    title = f"Largest buffers ({min(top, len(found.buffers))} of {len(found.buffers)}); per device {totals}"
    parts: list[Table | Paragraph] = [buffer_table(title, found.buffers[:top], reference, trace.peak)]
    if trace.peak is not None:
        parts.append(peak_table(trace.peak, found, reference, min(top, _AT_PEAK)))
    return [*parts, *_memory_by_host(trace)]


def _memory_by_host(trace: Trace) -> list[Table | Paragraph]:
    """Return what a device of each host takes, nothing for one host: hosts can run different compilations."""
    session = trace.sessions[0]
    if len(session) < 2:
        return []
    if len({file.memory for file in session}) == 1:
        return [Paragraph(f"Memory: the same on each device of all {len(session)} hosts.")]
    rows = [
        cells(
            host,
            str(len(file.devices)),
            *(size(n) for n in (memory.allocated_bytes, memory.temp_bytes, memory.argument_bytes)),
        )
        if (memory := file.memory)
        else cells(host, str(len(file.devices)), *[NOT_AVAILABLE] * 3)
        for host, file in zip(host_names(session), session, strict=True)
    ]
    columns = (
        Column("host", numeric=False),
        Column("devices"),
        Column("peak"),
        Column("temporary"),
        Column("arguments"),
    )
    return [Table("Memory on each device, by host: they run different compilations", columns, tuple(rows))]

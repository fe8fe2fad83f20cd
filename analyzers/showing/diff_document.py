"""A comparison as a document: what `moe-prof diff` prints."""

from __future__ import annotations

from collections.abc import Sequence

from analyzers.comparing.deltas import TimeDelta
from analyzers.comparing.diff import Diff, Unknown
from analyzers.comparing.statistics import Verdict
from analyzers.showing.buffer_tables import peak_story
from analyzers.showing.format import (
    NOT_AVAILABLE,
    change,
    estimate_us,
    executions,
    ratio,
    saving_us,
    short_scope,
    signed_microseconds,
    size,
)
from analyzers.showing.tables import Cell, Column, Document, Paragraph, Table, cells
from analyzers.showing.trace_document import heading
from analyzers.trace import Trace

_LONGEST_NAME = 20


def diff_document(diff: Diff, top: int = 10) -> Document:
    """Return the document of a comparison; `top` limits the buffers that are listed."""
    a, b = names(diff)
    parts: list[Table | Paragraph] = [
        *(Paragraph(line, "bad") for line in differences(diff)),
        Paragraph(f"A  {heading(diff.a)}"),
        Paragraph(f"B  {heading(diff.b)}"),
        *(Paragraph(line) for line in claims(diff)),
        _sort_table(diff, a, b),
        _time_table(
            "Time per step: self time of ops, mean over devices",
            "pass",
            [*diff.by_pass, diff.sort_time, diff.self_time, diff.step_wall],
            a,
            b,
            total_rows=3,
            footnotes=_rank_tests(diff),
        ),
    ]
    for what, rows, rest in (
        ("layer", diff.by_layer, diff.unattributed),
        ("chunk", diff.by_chunk, diff.without_chunk),
    ):
        if rows:
            parts.append(_time_table(f"Time per step by {what}", what, [*rows, rest], a, b, total_rows=1))
    parts += [
        _per_part(diff),
        _op_table(diff, a, b),
        _buffer_totals(diff, a, b),
        _buffer_changes(diff, a, b, top),
        *(Paragraph(line) for line in (*top_k_lines(diff), *_peak_lines(diff))),
    ]
    return Document(f"{a} → {b}", tuple(parts), (*_footnotes(diff), *map(str, diff.caveats)))


def names(diff: Diff) -> tuple[str, str]:
    """Return what the two sides are called; A and B where their names are equal or too long for a column."""
    if diff.a.name == diff.b.name or max(len(diff.a.name), len(diff.b.name)) > _LONGEST_NAME:
        return "A", "B"
    return diff.a.name, diff.b.name


def differences(diff: Diff) -> tuple[str, ...]:
    """Return a sentence for each difference between the sides that is not the variant itself."""
    a, b = names(diff)
    return tuple(
        f"The sides differ in {fact.name}: {a} has {fact.a}, {b} has {fact.b}."
        for fact in diff.comparability.differences
    )


def claims(diff: Diff) -> list[str]:
    """Return what the comparison comes to, in sentences."""
    a, b = names(diff)
    lines = []
    if diff.one_program:
        lines.append(f"{a} and {b} compile to one and the same program: any difference in time below is noise.")
    low_a, high_a = diff.a.sort_executions()
    low_b, high_b = diff.b.sort_executions()
    if low_a == high_a and low_b == high_b:
        moved = ", ".join(_moved(diff)) or "in no pass"
        word = "fewer" if high_b < high_a else "more"
        count = abs(high_a - high_b)
        lines.append(
            f"{b} executes as many sorts per step as {a}: {high_a}."
            if count == 0
            else f"{b} executes {count} {word} sorts per step than {a}: {high_a} → {high_b} ({moved})."
        )
    for what, row in (("Sorts take", diff.sort_time), ("The step takes", diff.step_wall)):
        if row.saving is not None:
            lines.append(f"{what} {_sentence(row)}.")
    return lines


def _moved(diff: Diff) -> list[str]:
    by_pass: dict[str, int] = {}
    for row in diff.sorts:
        difference = (row.b.executed[1] if row.b else 0) - (row.a.executed[1] if row.a else 0)
        by_pass[row.pass_.value] = by_pass.get(row.pass_.value, 0) + difference
    return [f"{name} {'+' if n > 0 else '−'}{abs(n)}" for name, n in by_pass.items() if n]


def _sentence(row: TimeDelta) -> str:
    saving = row.saving
    if saving is None:
        return NOT_AVAILABLE
    interval = f"95 % interval {signed_microseconds(saving.low)} to {signed_microseconds(saving.high)} µs"
    if saving.verdict is Verdict.TOO_FEW:
        return f"{signed_microseconds(-saving.value)} µs per step, with too few steps for an interval"
    if saving.verdict is Verdict.NO_DIFFERENCE:
        return f"no measurably different time (saving {signed_microseconds(saving.value)} µs per step, {interval})"
    word = "less" if saving.value > 0 else "more"
    return f"{signed_microseconds(abs(saving.value))[1:]} µs {word} per step (saving {interval})"


def _sort_table(diff: Diff, a: str, b: str) -> Table | Paragraph:
    if not diff.sorts:
        return Paragraph("Sorts: none in either module's steps.")
    rows = []
    for row in diff.sorts:
        done = [(side.executed if side else (0, 0)) for side in (row.a, row.b)]
        rows.append(
            cells(
                row.pass_.value,
                row.kind.value,
                executions(done[0], diff.a.at_least),
                executions(done[1], diff.b.at_least),
                change(done[0][1], done[1][1]),
                _compiled(diff.a, row.a.compiled if row.a else 0),
                _compiled(diff.b, row.b.compiled if row.b else 0),
            )
        )
    done = [diff.a.sort_executions(), diff.b.sort_executions()]
    rows.append(
        cells(
            "all",
            "",
            executions(done[0], diff.a.at_least),
            executions(done[1], diff.b.at_least),
            change(done[0][1], done[1][1]),
            _compiled(diff.a, sum(diff.a.compiled.by_pass_and_kind.values()) if diff.a.compiled else 0),
            _compiled(diff.b, sum(diff.b.compiled.by_pass_and_kind.values()) if diff.b.compiled else 0),
        )
    )
    return Table(
        "Sorts per step and device",
        (
            Column("pass", numeric=False),
            Column("kind", numeric=False),
            Column(f"executed {a}"),
            Column(f"executed {b}"),
            Column("change"),
            Column(f"compiled {a}"),
            Column(f"compiled {b}"),
        ),
        tuple(rows),
        total_rows=1,
        footnotes=_disagreements(diff),
    )


def _compiled(trace: Trace, count: int | None) -> str:
    return NOT_AVAILABLE if trace.compiled is None or count is None else str(count)


def _disagreements(diff: Diff) -> tuple[str, ...]:
    lines = []
    for trace in (diff.a, diff.b):
        wrong = [
            f"{row.pass_.value} {row.kind.value}"
            for row in trace.sorts
            if row.compiled is not None and row.executed != (row.compiled, row.compiled)
        ]
        if wrong:
            lines.append(f"{trace.name}: executed and compiled disagree for {', '.join(wrong)}")
        if trace.compiled is not None:
            lines += [f"{trace.name}: not counted as compiled: {reason}" for reason in trace.compiled.unknown]
    return tuple(lines)


def _time_table(
    title: str,
    what: str,
    rows: Sequence[TimeDelta],
    a: str,
    b: str,
    total_rows: int = 0,
    footnotes: tuple[str, ...] = (),
) -> Table:
    return Table(
        title,
        (
            Column(what, numeric=False),
            Column(f"{a}, µs: median (min–max)"),
            Column(f"{b}, µs: median (min–max)"),
            Column("saving, µs [95 % interval]"),
        ),
        tuple(cells(row.label, estimate_us(row.a), estimate_us(row.b), saving_us(row.saving)) for row in rows),
        total_rows=total_rows,
        footnotes=footnotes,
        by_index=True,
    )


def _rank_tests(diff: Diff) -> tuple[str, ...]:
    """Return the p values beside the intervals of whole steps, where there are samples enough for a small one."""
    rows = [(row.label, row.saving.rank) for row in (diff.sort_time, diff.self_time, diff.step_wall) if row.saving]
    found = [(label, rank) for label, rank in rows if rank is not None and rank.smallest_p <= 0.05]
    if not found:
        return ()
    values = ", ".join(f"{label} p = {rank.p:.2g}" for label, rank in found)
    return (f"rank test beside the intervals ({found[-1][1].over}): {values}",)


def _op_table(diff: Diff, a: str, b: str) -> Table:
    rows = [
        cells(
            row.pass_.value,
            row.opcode,
            row.shape,
            short_scope(row.scope),
            estimate_us(row.time.a) if row.time.a else f"only in {b}",
            estimate_us(row.time.b) if row.time.b else f"only in {a}",
            saving_us(row.time.saving),
        )
        for row in diff.ops
    ]
    for rest in diff.other_ops:
        count, _, where = rest.label.partition(" more ")
        where = {"only in A": f"only in {a}", "only in B": f"only in {b}"}.get(where, where)
        rows.append(
            cells("", f"{count} more", "", where, estimate_us(rest.a), estimate_us(rest.b), saving_us(rest.saving))
        )
    total = diff.op_total
    rows.append(cells(total.label, "", "", "", estimate_us(total.a), estimate_us(total.b), saving_us(total.saving)))
    return Table(
        "Ops whose self time moved most, per step",
        (
            Column("pass", numeric=False),
            Column("opcode", numeric=False),
            Column("shape", numeric=False),
            Column("scope", numeric=False),
            Column(f"{a}, µs"),
            Column(f"{b}, µs"),
            Column("saving, µs [95 % interval]"),
        ),
        tuple(rows),
        total_rows=1,
        footnotes=_op_footnotes(diff),
    )


def _op_footnotes(diff: Diff) -> tuple[str, ...]:
    notes = ["the rows of every step add up to all ops; medians of parts do not add up to the median of the whole"]
    means = [(row.a.mean if row.a else 0, row.b.mean if row.b else 0) for row in (diff.op_total, diff.self_time)]
    if any(abs(x - y) > 1 + 1e-9 * y for x, y in zip(*means, strict=True)):
        notes.append("SparseCore ops are among them; the step's time leaves them out: a TensorCore op waits for each")
    return tuple(notes)


def _per_part(diff: Diff) -> Table | Paragraph:
    found = diff.per_chunk_per_layer
    title = "Saving per chunk and layer"
    if isinstance(found, Unknown):
        return Paragraph(f"{title}: {NOT_AVAILABLE}, {found.reason}.")
    layers = len(set(diff.a.layers) | set(diff.b.layers))
    chunks = len(set(diff.a.chunks) | set(diff.b.chunks))
    return Table(
        f"{title}: the saving of a step divided by {layers} layers × {chunks} chunks",
        (Column("pass", numeric=False), Column("saving, µs [95 % interval]")),
        tuple(cells(label, saving_us(saving)) for label, saving in found.items()),
        total_rows=1,
    )


def _buffer_totals(diff: Diff, a: str, b: str) -> Table | Paragraph:
    found = diff.buffer_totals
    if isinstance(found, Unknown):
        return Paragraph(f"Buffers: {NOT_AVAILABLE}, {found.reason}.")
    rows = [
        cells(
            row.label,
            size(row.a_bytes),
            size(row.b_bytes),
            _size_change(row.a_bytes, row.b_bytes),
        )
        for row in found
    ]
    return Table(
        "Memory of the compiled module, per device",
        (Column("", numeric=False), Column(a), Column(b), Column("change")),
        tuple(rows),
    )


def _size_change(a: int | None, b: int | None) -> Cell:
    if a is None or b is None:
        return Cell(NOT_AVAILABLE)
    if a == b:
        return Cell("0", "dim")
    return Cell(("+" if b > a else "−") + size(abs(b - a)), "bad" if b > a else "good")


def _buffer_changes(diff: Diff, a: str, b: str, top: int) -> Table | Paragraph:
    found = diff.buffer_changes
    if isinstance(found, Unknown):
        return Paragraph(f"Buffers that come and go: {NOT_AVAILABLE}, {found.reason}.")
    if not found:
        return Paragraph("Buffers that come and go: none, both sides have the same shapes in the same scopes.")
    reference = diff.a.variant.dispatch_input_bytes if diff.a.variant else None
    rows = [
        cells(
            row.example.shape,
            row.example.opcode,
            row.example.pass_.value,
            size(row.example.size_bytes),
            ratio(row.example.size_bytes, reference),
            str(row.count_a),
            str(row.count_b),
            short_scope(row.example.scope),
        )
        for row in found[:top]
    ]
    return Table(
        f"Buffers that come and go ({len(rows)} of {len(found)} shapes and scopes)",
        (
            Column("shape", numeric=False),
            Column("made by", numeric=False),
            Column("pass", numeric=False),
            Column("size of one"),
            Column("× dispatch input"),
            Column(f"in {a}"),
            Column(f"in {b}"),
            Column("scope", numeric=False),
        ),
        tuple(rows),
    )


def top_k_lines(diff: Diff) -> list[str]:
    """Return sentences on the buffer of `top_k` copies of the dispatch input: is it there, or fused away."""
    found = diff.top_k_buffers
    if isinstance(found, Unknown):
        return [] if diff.a.variant is None else [f"Buffer of top_k copies: {NOT_AVAILABLE}, {found.reason}."]
    times = found.size_bytes / found.dispatch_input_bytes
    lines = [
        f"Buffers of exactly top_k × the dispatch input ({size(found.size_bytes)} = {times:.1f} × "
        f"{size(found.dispatch_input_bytes)}):"
    ]
    for name, passes, repeats in zip(names(diff), (found.a, found.b), (found.a_repeats, found.b_repeats), strict=True):
        have = ", ".join(f"{count} in {pass_}" for pass_, count in passes.items()) or "none"
        repeated = (
            f"{repeats} of them hold{'s' if repeats == 1 else ''} tokens repeated for the forward pass"
            if repeats
            else "none holds tokens repeated for the forward pass: where the source repeats them, the compiler fused "
            "that away"
        )
        lines.append(f"  {name}: {have}; {repeated}")
    return lines


def _peak_lines(diff: Diff) -> list[str]:
    a, b = diff.a, diff.b
    if a.buffers is None or b.buffers is None or a.peak is None or b.peak is None:
        return []
    return peak_story(*names(diff), (a.buffers, b.buffers), (a.peak, b.peak))


def _footnotes(diff: Diff) -> tuple[str, ...]:
    rows = [diff.step_wall, diff.self_time, diff.sort_time, *diff.by_pass]
    notes = dict.fromkeys(note for row in rows if row.saving for note in row.saving.footnotes)
    own, wall = diff.self_time.a, diff.step_wall.a
    if own and wall and own.median > 1.02 * wall.median:
        notes["Ops ran on several threads at once: their self times add up to more than the step took."] = None
    unknown = [fact.name for fact in diff.comparability.unknown]
    if unknown:
        notes[f"Not compared, because a side does not say: {', '.join(unknown)}."] = None
    return tuple(notes)

"""Tables that span all variants, and those of the HTML report that a terminal has no room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from analyzers.comparing.diff import Diff
from analyzers.comparing.statistics import Saving, Verdict
from analyzers.counting.totals import PASSES
from analyzers.showing.buffer_tables import peak_table
from analyzers.showing.diff_document import names
from analyzers.showing.format import NOT_AVAILABLE, change, estimate_us, executions, saving_us
from analyzers.showing.tables import Cell, Column, Document, Paragraph, Table, cells
from analyzers.trace import Trace

_AT_PEAK = 5
"""Buffers to list that are alive at the peak."""


def summary(diffs: Sequence[Diff]) -> Document:
    """Return what stands before several comparisons with one baseline: a sentence and a row per variant."""
    return Document(f"{len(diffs)} variants against {diffs[0].a.name}", (Paragraph(verdicts(diffs)), overview(diffs)))


def overview(diffs: Sequence[Diff]) -> Table:
    """Return a table with a row for each variant: sorts, their time, the step's time, what is saved of each."""
    base = diffs[0].a
    rows = [
        cells(
            base.name,
            executions(base.sort_executions(), base.at_least),
            "",
            estimate_us(diffs[0].sort_time.a),
            "",
            estimate_us(diffs[0].step_wall.a),
            "",
        )
    ]
    rows += [
        cells(
            diff.b.name,
            executions(diff.b.sort_executions(), diff.b.at_least),
            change(base.sort_executions()[1], diff.b.sort_executions()[1]),
            estimate_us(diff.sort_time.b),
            saving_us(diff.sort_time.saving),
            estimate_us(diff.step_wall.b),
            saving_us(diff.step_wall.saving),
        )
        for diff in diffs
    ]
    return Table(
        f"Every variant against {base.name}",
        (
            Column("variant", numeric=False),
            Column("sorts per step"),
            Column("change"),
            Column("sorts, µs per step"),
            Column("saving of sorts, µs [95 % interval]"),
            Column("step, µs"),
            Column("saving of the step, µs [95 % interval]"),
        ),
        tuple(rows),
    )


def verdicts(diffs: Sequence[Diff]) -> str:
    """Return in one sentence how many variants shorten the step; none is picked as the best, which noise may be."""
    found = [diff.step_wall.saving for diff in diffs]

    def count(*wanted: Verdict) -> int:
        return sum(saving is not None and saving.verdict in wanted for saving in found)

    few = sum(saving is None or saving.verdict is Verdict.TOO_FEW for saving in found)
    parts = [f"{count(Verdict.FASTER)} of {len(diffs)} variants shorten the step of {diffs[0].a.name}"]
    for number, what in (
        (count(Verdict.SLOWER), "longer"),
        (count(Verdict.NO_DIFFERENCE), "not to be told from it"),
        (few, "unknown for lack of steps"),
    ):
        if number:
            parts.append(f"{number} {'is' if number == 1 else 'are'} {what}")
    savings = [saving for saving in found if saving is not None]
    return ", ".join(parts) + ("." if not savings else f". {_range(savings)}")


def _range(savings: Sequence[Saving]) -> str:
    least, most = min(savings, key=lambda s: s.value), max(savings, key=lambda s: s.value)
    return (
        f"Savings per step go from {saving_us(least).text.removeprefix('~ ')} to "
        f"{saving_us(most).text.removeprefix('~ ')} µs, with 95 % intervals."
    )


def funnel_table(sides: Sequence[Trace]) -> Table | Paragraph:
    """Return how many sorts of each variant the compiled module promises and the devices executed, by pass."""
    passes = [p for p in PASSES if any(row.pass_ is p for side in sides for row in side.sorts)]
    if not passes:
        return Paragraph("Funnel: no variant sorts.")
    rows = []
    for side in sides:
        promised = sum(side.compiled.by_pass_and_kind.values()) if side.compiled else None
        done = side.sort_executions()
        agrees = promised is None or done == (promised, promised)
        rows.append(
            cells(
                side.name,
                NOT_AVAILABLE if promised is None else str(promised),
                Cell(executions(done, side.at_least), "" if agrees else "bad"),
                *(executions(side.sort_executions(p), side.at_least) for p in passes),
            )
        )
    return Table(
        "Funnel: sorts per step and device, compiled and executed, by pass",
        (
            Column("variant", numeric=False),
            Column("compiled"),
            Column("executed"),
            *(Column(f"in {p.value}") for p in passes),
        ),
        tuple(rows),
        footnotes=(
            "compiled: instructions of the optimised module × trips of their loops; traced and lowered levels: n/a, a "
            "trace holds neither, moe-prof compile counts them",
        ),
    )


def peak_parts(diff: Diff) -> tuple[Table | Paragraph, ...]:
    """Return what is alive at the peak of each side, largest first, or why that is not known."""
    parts: list[Table | Paragraph] = []
    for name, side in zip(names(diff), (diff.a, diff.b), strict=True):
        if side.buffers is None or side.peak is None:
            reason = "no buffer assignment of its module is at hand" if side.buffers is None else "no heap simulation"
            parts.append(Paragraph(f"Buffers at the peak of {name}: {NOT_AVAILABLE}, {reason}."))
            continue
        reference = side.variant.dispatch_input_bytes if side.variant else None
        table = peak_table(side.peak, side.buffers, reference, _AT_PEAK)
        parts.append(replace(table, title=f"{name}: {table.title[0].lower()}{table.title[1:]}"))
    return tuple(parts)


def versions(sides: Sequence[Trace]) -> Table | Paragraph:
    """Return when, how and with which software the runs were captured."""
    manifests = {side.path: side.manifest for side in sides if side.manifest is not None}
    if not manifests:
        read = ", ".join(dict.fromkeys(side.path for side in sides))
        return Paragraph(f"Versions: {NOT_AVAILABLE}, neither side is a run that recorded them. Read from {read}.")
    software = dict.fromkeys(name for manifest in manifests.values() for name in sorted(manifest.versions))
    recorded = [
        ("captured", *(m.created for m in manifests.values())),
        ("command", *(" ".join(m.argv) for m in manifests.values())),
        *((name, *(m.versions.get(name) or "none" for m in manifests.values())) for name in software),
    ]
    return Table(
        "Captured with",
        (Column("", numeric=False), *(Column(path, numeric=False) for path in manifests)),
        tuple(tuple(Cell(text) for text in row) for row in recorded),
    )

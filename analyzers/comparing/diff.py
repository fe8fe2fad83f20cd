"""What changed between two traces: sorts, time by pass, layer and chunk, ops, buffers.

Everything is matched by what it is (pass, kind, layer, chunk, opcode, shape, scope without numbering), never by
instruction name: names change with every compilation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analyzers.caveats import Caveat
from analyzers.comparing.comparability import Comparability, comparability
from analyzers.comparing.deltas import TimeDelta, reconcile, time_delta
from analyzers.comparing.matching import OpDelta, matched_ops
from analyzers.comparing.noise import noise_warnings
from analyzers.comparing.statistics import Blocks, Saving, Verdict
from analyzers.counting.buffers import BufferChange, changes
from analyzers.counting.kinds import Kind
from analyzers.counting.scopes import Pass
from analyzers.counting.totals import PASSES
from analyzers.trace import SortRow, Trace

if TYPE_CHECKING:
    import pandas as pd

    from analyzers.comparing.rows import By


@dataclass(frozen=True, slots=True)
class SortDelta:
    """Sorts of one kind in one pass on both sides; a side that has none of them is None."""

    pass_: Pass
    kind: Kind
    a: SortRow | None
    b: SortRow | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A figure that cannot be had, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class BufferTotals:
    """Bytes of both sides; None where a side does not say."""

    label: str
    a_bytes: int | None
    b_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopKBuffers:
    """Buffers as big as `top_k` copies of the dispatch input, by pass: how many each side has."""

    size_bytes: int
    dispatch_input_bytes: int
    a: dict[str, int]
    b: dict[str, int]
    a_repeats: int
    b_repeats: int
    """Those of them that hold copies of tokens: repeated rows in the forward pass (`Buffers.repeats`)."""


@dataclass(frozen=True, slots=True)
class Diff:
    """Everything that two traces differ in, as data."""

    a: Trace
    b: Trace
    comparability: Comparability
    """What differs without being the variant; to be read before any number."""
    one_program: bool
    """Both sides are the same program: any difference in time is noise."""
    sorts: tuple[SortDelta, ...]
    step_wall: TimeDelta
    self_time: TimeDelta
    sort_time: TimeDelta
    by_pass: tuple[TimeDelta, ...]
    by_layer: tuple[TimeDelta, ...]
    by_chunk: tuple[TimeDelta, ...]
    unattributed: TimeDelta
    """Ops without a layer."""
    without_chunk: TimeDelta
    """Ops without a chunk."""
    per_chunk_per_layer: dict[str, Saving] | Unknown
    """By pass, and `step` for all passes: the saving of a step divided by layers × chunks."""
    ops: tuple[OpDelta, ...]
    """Largest changes of self time by op, matched across compilations; ops of one side only among them."""
    other_ops: tuple[TimeDelta, ...]
    """All other ops, added up: on both sides, only in A, only in B."""
    op_total: TimeDelta
    """All ops: `ops` and `other_ops` add up to it in every step. SparseCore ops are among them; `self_time` leaves
    them out, because a TensorCore op waits for each."""
    buffer_totals: tuple[BufferTotals, ...] | Unknown
    buffer_changes: tuple[BufferChange, ...] | Unknown
    top_k_buffers: TopKBuffers | Unknown
    caveats: tuple[Caveat, ...]

    # Shorthands of the public API. What they stand for lies in rooms that import this one, so they import it late.
    def to_frame(self, by: By = "op") -> pd.DataFrame:
        """Return every op, scope, layer, chunk or device of both sides as rows, see `frames.differences`."""
        from analyzers.showing.frames import differences

        return differences([self], by)

    def report(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the comparison as a page (.html) or as Markdown (.md), see `analyzers.report`; return the path."""
        from analyzers.showing.writing import report

        return report([self], path, overwrite=overwrite)


def diff(a: Trace, b: Trace, *, top: int = 10) -> Diff:
    """Compare two traces; savings are positive where `b` took less. `top` limits the rows of `ops`.

    Raises ReconciliationError where parts of a step do not add up to the step.
    """
    passes = [p for p in PASSES if p in a.passes or p in b.passes]
    layers = sorted(set(a.layers) | set(b.layers))
    chunks = sorted(set(a.chunks) | set(b.chunks))
    by_pass = tuple(_delta(p.value, a, b, lambda t, p=p: t.self_ps(pass_=p), len(passes)) for p in passes)  # type: ignore[misc]
    self_time = _delta("all ops", a, b, lambda t: t.self_ps())
    step_wall = _delta("step", a, b, lambda t: t.step_wall_ps)
    ops = matched_ops(a, b, top)
    for trace in (a, b):
        _reconcile(trace)
    return Diff(
        a=a,
        b=b,
        comparability=comparability(a, b),
        one_program=_one_program(a, b),
        sorts=_sorts(a, b),
        step_wall=step_wall,
        self_time=self_time,
        sort_time=_delta("sorts", a, b, lambda t: t.self_ps_of_ops(lambda op: op.kind.is_sort)),
        by_pass=by_pass,
        by_layer=tuple(
            _delta(f"layer {k}", a, b, lambda t, k=k: t.self_ps(layer=k), len(layers) + 1)  # type: ignore[misc]
            for k in layers
        ),
        by_chunk=tuple(
            _delta(f"chunk {k}", a, b, lambda t, k=k: t.self_ps(chunk=k), len(chunks) + 1)  # type: ignore[misc]
            for k in chunks
        ),
        unattributed=_delta("no layer", a, b, lambda t: t.self_ps(layer=-1), len(layers) + 1),
        without_chunk=_delta("no chunk", a, b, lambda t: t.self_ps(chunk=-1), len(chunks) + 1),
        per_chunk_per_layer=_per_chunk_per_layer(by_pass, self_time, layers, chunks),
        ops=ops.rows,
        other_ops=ops.rest,
        op_total=ops.total,
        buffer_totals=_buffer_totals(a, b),
        buffer_changes=_buffer_changes(a, b),
        top_k_buffers=_top_k_buffers(a, b),
        caveats=(*_caveats(a, b), *noise_warnings(a, b), *hidden_saving(self_time.saving, step_wall.saving)),
    )


def _reconcile(trace: Trace) -> None:
    whole = trace.self_ps()
    reconcile("passes", (trace.self_ps(pass_=p) for p in trace.passes), whole)
    reconcile("layers", (trace.self_ps(layer=k) for k in (*trace.layers, -1)), whole)
    reconcile("chunks", (trace.self_ps(chunk=k) for k in (*trace.chunks, -1)), whole)


def hidden_saving(device: Saving | None, wall: Saving | None) -> tuple[Caveat, ...]:
    """Return the note that a saving on the device does not shorten the step, or cannot be seen to."""
    if device is None or wall is None or device.verdict is not Verdict.FASTER or wall.verdict is Verdict.FASTER:
        return ()
    if wall.high < device.value:
        return (
            Caveat(
                "hidden-saving",
                "the ops save time that the step does not: it is hidden behind something else that runs meanwhile "
                "(overlap), or lost to waiting",
            ),
        )
    return (
        Caveat(
            "unseen-saving",
            "the ops save time, but the wall time of the step varies too much to tell whether it gets shorter",
        ),
    )


def _delta(label: str, a: Trace, b: Trace, samples: Callable[[Trace], Blocks], family: int = 1) -> TimeDelta:
    return time_delta(label, samples(a), samples(b), family)


def _one_program(a: Trace, b: Trace) -> bool:
    return a.variant is not None and b.variant is not None and a.variant.fingerprint == b.variant.fingerprint


def _sorts(a: Trace, b: Trace) -> tuple[SortDelta, ...]:
    rows_a = {(row.pass_, row.kind): row for row in a.sorts}
    rows_b = {(row.pass_, row.kind): row for row in b.sorts}
    kinds = list(Kind)
    keys = sorted(rows_a.keys() | rows_b.keys(), key=lambda k: (PASSES.index(k[0]), kinds.index(k[1])))
    return tuple(SortDelta(p, k, rows_a.get((p, k)), rows_b.get((p, k))) for p, k in keys)


def _per_chunk_per_layer(
    by_pass: Iterable[TimeDelta], whole: TimeDelta, layers: list[int], chunks: list[int]
) -> dict[str, Saving] | Unknown:
    if not layers:
        return Unknown("no scope and no loop tells the layers")
    if not chunks:
        return Unknown("no scope and no loop tells the chunks")
    parts = len(layers) * len(chunks)
    rows = {row.label: row.saving.scaled(parts) for row in by_pass if row.saving is not None}
    if whole.saving is not None:
        rows["step"] = whole.saving.scaled(parts)
    return rows


def _buffer_totals(a: Trace, b: Trace) -> tuple[BufferTotals, ...] | Unknown:
    if a.buffers is None or b.buffers is None:
        return Unknown(_no_buffers(a, b))
    return (
        BufferTotals("peak", a.peak_bytes, b.peak_bytes),
        BufferTotals("temporary", a.buffers.temp_bytes, b.buffers.temp_bytes),
        BufferTotals("arguments", a.buffers.argument_bytes, b.buffers.argument_bytes),
    )


def _buffer_changes(a: Trace, b: Trace) -> tuple[BufferChange, ...] | Unknown:
    if a.buffers is None or b.buffers is None:
        return Unknown(_no_buffers(a, b))
    return changes(a.buffers, b.buffers)


def _no_buffers(a: Trace, b: Trace) -> str:
    missing = [t.name for t in (a, b) if t.buffers is None]
    return f"no buffer assignment for {' and '.join(missing)}"


def _top_k_buffers(a: Trace, b: Trace) -> TopKBuffers | Unknown:
    if a.variant is None or b.variant is None:
        return Unknown("only a run knows the bytes of its dispatch input")
    if a.buffers is None or b.buffers is None:
        return Unknown(_no_buffers(a, b))
    size = a.variant.top_k_buffer_bytes
    if size != b.variant.top_k_buffer_bytes:
        return Unknown("the two sides have different dispatch inputs")

    def by_pass(trace: Trace) -> dict[str, int]:
        found = trace.buffers.of_size(size) if trace.buffers else ()
        return {p.value: n for p in PASSES if (n := sum(buffer.pass_ is p for buffer in found))}

    def repeats(trace: Trace) -> int:
        return len(trace.buffers.repeats(size)) if trace.buffers else 0

    return TopKBuffers(size, a.variant.dispatch_input_bytes, by_pass(a), by_pass(b), repeats(a), repeats(b))


def _caveats(a: Trace, b: Trace) -> tuple[Caveat, ...]:
    both = set(a.caveats) & set(b.caveats)
    shared = [c for c in a.caveats if c in both]
    own = [Caveat(c.name, f"{t.name}: {c.message}", c.lower_bound) for t in (a, b) for c in t.caveats if c not in both]
    return (*shared, *own)

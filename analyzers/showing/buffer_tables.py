"""Tables and sentences about the buffers of compiled modules, for compile results and traces alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analyzers.counting.buffers import Buffer, Buffers, changes
from analyzers.counting.liveness import Peak, peak_change
from analyzers.showing.format import ratio, short_scope, size
from analyzers.showing.tables import Column, Table, cells


def buffer_table(title: str, rows: Sequence[Buffer], reference: int | None, peak: Peak | None) -> Table:
    """Return a table of buffers; `reference` is the bytes of the dispatch input, `peak` tells which are alive at it."""
    alive = {(live.buffer.instruction, live.buffer.index) for live in peak.alive} if peak else set()
    return Table(
        title,
        (
            Column("shape", numeric=False),
            Column("made by", numeric=False),
            Column("pass", numeric=False),
            Column("size"),
            Column("× dispatch input"),
            Column("at peak", numeric=False),
            Column("scope", numeric=False),
        ),
        tuple(
            cells(
                b.shape,
                b.opcode,
                b.pass_.value,
                size(b.size_bytes),
                ratio(b.size_bytes, reference),
                "alive" if (b.instruction, b.index) in alive else "",
                short_scope(b.scope),
            )
            for b in rows
        ),
    )


def peak_table(peak: Peak, found: Buffers, reference: int | None, top: int) -> Table:
    """Return a table of the `top` largest buffers that are alive at the peak, with their lives."""
    rows = [
        cells(
            live.buffer.shape,
            live.buffer.opcode,
            live.buffer.pass_.value,
            size(live.buffer.size_bytes),
            ratio(live.buffer.size_bytes, reference),
            f"{live.start}–{live.end}",
            short_scope(live.buffer.scope),
        )
        for live in peak.alive[:top]
    ]
    what = "" if peak.with_arguments else f" of {size(found.temp_bytes)} temporary memory"
    return Table(
        f"Alive at the peak, {size(peak.size_bytes)}{what} at {peak.instruction} in the {peak.pass_.value} pass, "
        f"{short_scope(peak.scope)} ({len(rows)} of {len(peak.alive)})",
        (
            Column("shape", numeric=False),
            Column("made by", numeric=False),
            Column("pass", numeric=False),
            Column("size"),
            Column("× dispatch input"),
            Column("lives from–to"),
            Column("scope", numeric=False),
        ),
        tuple(rows),
    )


def alive_json(peak: Peak | None) -> list[dict[str, Any]] | None:
    """Return the buffers that are alive at the peak, largest first, for JSON; None where the peak is not known."""
    if peak is None:
        return None
    return [
        {
            "size_bytes": live.buffer.size_bytes,
            "shape": live.buffer.shape,
            "instruction": live.buffer.instruction,
            "scope": live.buffer.scope,
            "pass": live.buffer.pass_.value,
            "start": live.start,
            "end": live.end,
        }
        for live in peak.alive
    ]


def peak_story(a: str, b: str, buffers: tuple[Buffers, Buffers], peaks: tuple[Peak, Peak]) -> list[str]:
    """Return in sentences why the peak moved from one program to another or did not; `a` and `b` are their names."""
    removed = tuple(c.example for c in changes(*buffers) if c.count_b == 0)
    found = peak_change(*peaks, removed)
    where = f"{short_scope(peaks[1].scope)} in the {peaks[1].pass_.value} pass"
    what = "" if all(peak.with_arguments for peak in peaks) else " of temporary memory"
    if found.a_bytes == found.b_bytes:
        lines = [f"The peak does not move: {size(found.a_bytes)}{what} are alive at it in both, at {where}."]
    else:
        word = "falls" if found.b_bytes < found.a_bytes else "rises"
        lines = [
            f"The peak {word} by {size(abs(found.b_bytes - found.a_bytes))}: {size(found.a_bytes)} → "
            f"{size(found.b_bytes)}{what}, now at {where}."
        ]
    reserved = buffers[1].allocated_bytes - buffers[0].allocated_bytes
    if found.a_bytes == found.b_bytes and reserved:
        lines.append(
            f"What is allocated {'falls' if reserved < 0 else 'rises'} by {size(abs(reserved))} all the same: the "
            "compiler packs the buffers in another way."
        )
    for buffer in found.removed[:1]:
        alive = buffer in found.removed_alive
        lines.append(
            f"The largest buffer that {b} no longer has, {buffer.shape} ({size(buffer.size_bytes)}, "
            f"{buffer.pass_.value} pass, {short_scope(buffer.scope)}), was {'alive' if alive else 'not alive'} at "
            f"{a}'s peak"
            + ("." if alive else f", which is at {short_scope(peaks[0].scope)}: removing it cannot lower that peak.")
        )
    if found.a_bytes != found.b_bytes:
        for name, only in ((a, found.only_a), (b, found.only_b)):
            if only:
                first = ", ".join(f"{x.shape} ({size(x.size_bytes)})" for x in only[:3])
                lines.append(f"Alive at the peak of {name} only: {first}.")
    return lines

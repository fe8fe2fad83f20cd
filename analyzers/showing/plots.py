"""Charts for notebooks. Each draws on the given matplotlib axes, or new ones, labels units, and returns the axes.

Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), told apart by all common kinds of colour vision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzers.comparing.diff import Diff
from analyzers.comparing.funnel import sorts
from analyzers.comparing.places import place_savings, places
from analyzers.counting.sites import path_of
from analyzers.counting.totals import PASSES
from analyzers.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from analyzers.compiled import CompiledProgram, CompileResult
    from analyzers.counting.buffers import Buffer

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_PS_PER_US = 1e6
_BYTES_PER_MIB = 2**20


def step_times(traces: Sequence[Trace], ax: Axes | None = None) -> Axes:
    """Draw every step's wall time as a dot, the median as a bar; sessions of one trace stand beside each other."""
    ax = _axes(ax)
    for row, trace in enumerate(traces):
        blocks = trace.step_wall_ps
        for number, block in enumerate(blocks):
            y = row + 0.5 * ((number + 0.5) / len(blocks) - 0.5)
            ax.plot(block / _PS_PER_US, np.full(len(block), y), "o", ms=4, alpha=0.7, color=_colour(row))
        median = np.median(np.concatenate(blocks)) / _PS_PER_US
        ax.plot([median, median], [row - 0.35, row + 0.35], color="#000000", lw=2)
    ax.set_yticks(range(len(traces)), [trace.name for trace in traces])
    ax.invert_yaxis()
    ax.set(xlabel="wall time of a step, µs", title="Steps: one dot each, bar at the median")
    return ax


def sorts_by_pass(traces: Sequence[Trace], ax: Axes | None = None) -> Axes:
    """Draw how many sorts a step executes in each pass (the most over devices and steps), one bar per trace."""
    ax = _axes(ax)
    passes = [p for p in PASSES if any(row.pass_ is p for trace in traces for row in trace.sorts)]
    width = 0.8 / max(len(traces), 1)
    for k, trace in enumerate(traces):
        counts = [trace.sort_executions(p)[1] for p in passes]
        bars = ax.bar(
            np.arange(len(passes)) + (k + 0.5) * width - 0.4, counts, width, label=trace.name, color=_colour(k)
        )
        ax.bar_label(bars)
    ax.set_xticks(range(len(passes)), [p.value for p in passes])
    ax.set(ylabel="sorts executed per step and device", title="Sorts by pass")
    ax.legend()
    return ax


def layer_chunk(subject: Trace | Diff, ax: Axes | None = None) -> Axes:
    """Draw a map of layer × chunk: median self time per step of a trace, or the saving of a comparison, in µs.

    Raises ValueError where neither layers nor chunks are told.
    """
    traces = (subject.a, subject.b) if isinstance(subject, Diff) else (subject,)
    layers = sorted({k for t in traces for k in t.layers})
    chunks = sorted({k for t in traces for k in t.chunks})
    if not layers and not chunks:
        raise ValueError("no scope and no loop tells layers or chunks")
    found = [places(t, layers or (-1,), chunks or (-1,)) for t in traces]
    ax = _axes(ax)
    if isinstance(subject, Diff):
        savings = place_savings(*found)
        values = np.array([[s.value if s else np.nan for s in row] for row in savings]) / _PS_PER_US
        limit = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
        image = ax.imshow(values, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
        label = f"saving per step, µs: {subject.a.name} → {subject.b.name}"
    else:
        image = ax.imshow(found[0].median_ps / _PS_PER_US, cmap="cividis", vmin=0, aspect="auto")
        label = f"self time per step, µs: {subject.name}"
    ax.figure.colorbar(image, ax=ax, label=label)
    ax.set_xticks(range(max(len(chunks), 1)), [str(k) for k in chunks] or ["none"])
    every = max(len(layers) // 12, 1)
    ax.set_yticks(range(0, max(len(layers), 1), every), [str(k) for k in layers[::every]] or ["none"])
    ax.set(xlabel="chunk", ylabel="layer", title="By layer × chunk")
    return ax


def buffer_sizes(traces: Sequence[Trace], top: int = 10, ax: Axes | None = None) -> Axes:
    """Draw the sizes of the `top` largest buffers of each compiled module, by rank, in MiB.

    Raises ValueError where a trace has no buffer assignment.
    """
    ax = _axes(ax)
    for k, trace in enumerate(traces):
        if trace.buffers is None:
            raise ValueError(f"{trace.name} has no buffer assignment")
        sizes = [b.size_bytes / _BYTES_PER_MIB for b in trace.buffers.buffers[:top]]
        # The first are drawn larger, so that equal sides do not hide each other.
        ms = max(11 - 4 * k, 4)
        ax.plot(range(1, len(sizes) + 1), sizes, "os^Dv"[k % 5] + "-", ms=ms, label=trace.name, color=_colour(k))
    reference = next((t.variant.dispatch_input_bytes for t in traces if t.variant), None)
    if reference:
        ax.axhline(reference / _BYTES_PER_MIB, ls="--", color="#555555", label="dispatch input")
    ax.set(xlabel="rank of the buffer", ylabel="size, MiB", title=f"{top} largest buffers", ylim=(0, None))
    ax.legend()
    return ax


def funnel(compiled: CompileResult, pass_: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw how many sorts (top-k left out) each program has on each level, of one pass or of all, one bar per program.

    Hatched on top of a compiled bar: those that stand in a loop over chunks. Sorts that run nobody knows how often are
    left out; `frames.funnel` counts them.
    """
    ax = _axes(ax)
    programs = compiled.programs
    levels = list(programs[0].levels)
    width = 0.8 / len(programs)
    for k, program in enumerate(programs):
        at = np.arange(len(levels)) + (k + 0.5) * width - 0.4
        counts = [sorts(program.levels[level], pass_).times for level in levels]
        ax.bar_label(ax.bar(at, counts, width, label=program.name, color=_colour(k)))
        inside = sorts(program.levels["compiled"], pass_, in_loop="chunks").times
        if inside:
            ax.bar(at[-1], inside, width, fill=False, hatch="//", edgecolor="#000000", label="of these in chunk loops")
    ax.set_xticks(range(len(levels)), levels)
    ax.set(xlabel="level", ylabel="sorts per step and device", title=f"Funnel: sorts, {pass_ or 'all passes'}")
    # Room for the legend above the bars.
    ax.set_ylim(top=1.3 * ax.get_ylim()[1])
    ax.legend(loc="upper left", ncols=2)
    return ax


def peak(programs: Sequence[CompiledProgram | Trace], top: int = 6, ax: Axes | None = None) -> Axes:
    """Draw what is alive at the peak of each program as a stacked bar in MiB: `top` largest scopes, then the rest.

    Raises ValueError where nothing tells the peak of one.
    """
    ax = _axes(ax)
    by_scope: list[dict[str, float]] = []
    for program in programs:
        if program.peak is None:
            raise ValueError(f"nothing tells the peak of {program.name}")
        sizes: dict[str, float] = defaultdict(float)
        for live in program.peak.alive:
            sizes[_label(live.buffer)] += live.buffer.size_bytes / _BYTES_PER_MIB
        by_scope.append(sizes)
    largest = {scope: max(sizes.get(scope, 0.0) for sizes in by_scope) for sizes in by_scope for scope in sizes}
    shown = sorted(largest, key=lambda scope: -largest[scope])[:top]
    left = np.zeros(len(programs))
    for k, scope in enumerate(shown):
        widths = np.array([sizes.get(scope, 0.0) for sizes in by_scope])
        ax.barh(range(len(programs)), widths, left=left, label=scope, color=_colour(k), edgecolor="white")
        left += widths
    rest = np.array([sum(sizes.values()) for sizes in by_scope]) - left
    ax.barh(range(len(programs)), rest, left=left, label="all others", color="#BBBBBB", edgecolor="white")
    ax.set_yticks(range(len(programs)), [program.name for program in programs])
    ax.invert_yaxis()
    ax.set(xlabel="alive at the peak, MiB per device", title="Buffers at the peak")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize="small")
    return ax


def _label(buffer: Buffer) -> str:
    """Return what writes a buffer: innermost named scope, opcode, pass."""
    if buffer.opcode == "parameter":
        return "parameters"
    scope = path_of(buffer.scope).split("/")[-1]
    return (f"{scope}: " if scope else "") + f"{buffer.opcode} ({buffer.pass_.value})"


def _axes(ax: Axes | None) -> Any:
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]

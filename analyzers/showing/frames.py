"""Traces and comparisons as pandas frames: one row per thing that was measured, the unit in the column's name.

import analyzers
from analyzers.showing import frames
frames.times(analyzers.load("RUN", variant="cached")).groupby("pass", observed=True).self_ps.sum()
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from analyzers.comparing.deltas import TimeDelta
from analyzers.comparing.diff import Diff
from analyzers.comparing.funnel import funnel as funnel_rows
from analyzers.comparing.rows import FIELDS, By, Sort, rows
from analyzers.comparing.statistics import Estimate
from analyzers.counting.hosts import host_names
from analyzers.counting.totals import PASSES
from analyzers.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from analyzers.comparing.budget import Check
    from analyzers.compiled import CompiledProgram, CompileResult

What = Literal["times", "executions", "steps", "sorts", "buffers"]


def frame_of(trace: Trace, what: What) -> pd.DataFrame:
    """Return one of the frames below by its name. Raises ValueError for another name."""
    makers = {"times": times, "executions": executions, "steps": steps, "sorts": sorts, "buffers": buffers}
    if what not in makers:
        raise ValueError(f"there is no frame {what!r}; choose one of {', '.join(get_args(What))}")
    return makers[what](trace)


def variants_frame(traces: Sequence[Trace], what: What) -> pd.DataFrame:
    """Return the frames of several traces as one; the first column, `variant`, has the name of each."""
    import pandas as pd

    parts = [frame_of(trace, what) for trace in traces]
    for trace, part in zip(traces, parts, strict=True):
        part.insert(0, "variant", trace.name)
    return pd.concat(parts, ignore_index=True)


def times(trace: Trace) -> pd.DataFrame:
    """Return executions and self time by session, host, device, step, pass, layer and chunk.

    `layer` and `chunk` are missing where nothing tells them. Columns: session, host, device, step, pass, layer,
    chunk, executions, self_ps; self times of one device and step add up to all its ops.
    """
    import pandas as pd

    parts = []
    for session, files in enumerate(trace.sessions):
        for file in files:
            table = file.by_place
            keys = table.keys
            parts.append(
                pd.DataFrame(
                    {
                        "session": session,
                        "host": file.hostname,
                        "device": pd.Categorical.from_codes(keys["device"], list(file.devices)).astype(str),
                        "step": np.asarray(file.step_labels, np.int64)[keys["step"]],
                        "pass": pd.Categorical.from_codes(keys["pass"], [p.value for p in PASSES]),
                        "layer": _optional(keys["layer"]),
                        "chunk": _optional(keys["chunk"]),
                        "executions": table.executions,
                        "self_ps": table.self_ps,
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


def executions(trace: Trace) -> pd.DataFrame:
    """Return executions and time of every op by session, host, device and step.

    Columns: session, host, device, step, op, opcode, kind, pass, shape, scope, executions, duration_ps (with what ran
    inside: added up over ops it counts loops twice), self_ps. Rows of one op, device and step are one.
    """
    import pandas as pd

    parts = []
    for session, files in enumerate(trace.sessions):
        for host, file in zip(host_names(files), files, strict=True):
            table, ops = file.by_op, file.ops
            op = table.keys["op"]
            facts = {
                "op": [o.name for o in ops],
                "opcode": [o.opcode for o in ops],
                "kind": [o.kind.value for o in ops],
                "pass": [o.pass_.value for o in ops],
                "shape": [o.shape for o in ops],
                "scope": [o.scope for o in ops],
            }
            parts.append(
                pd.DataFrame(
                    {
                        "session": session,
                        "host": host,
                        "device": np.asarray(file.devices, object)[table.keys["device"]],
                        "step": np.asarray(file.step_labels, np.int64)[table.keys["step"]],
                        **{name: np.asarray(values, object)[op] for name, values in facts.items()},
                        "executions": table.executions,
                        "duration_ps": table.duration_ps,
                        "self_ps": table.self_ps,
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


def steps(trace: Trace) -> pd.DataFrame:
    """Return session, position and wall time of each step: session, step, wall_ps (slowest device)."""
    import pandas as pd

    rows = [(s, k, ps) for s, block in enumerate(trace.step_wall_ps) for k, ps in enumerate(block.tolist())]
    return pd.DataFrame(rows, columns=["session", "step", "wall_ps"])


def sorts(trace: Trace) -> pd.DataFrame:
    """Return sorts by pass and kind: pass, kind, executed_min, executed_max, compiled (per step), self_ps (median)."""
    import pandas as pd

    rows = [
        {
            "pass": row.pass_.value,
            "kind": row.kind.value,
            "executed_min": row.executed[0],
            "executed_max": row.executed[1],
            "compiled": row.compiled,
            "self_ps": float(np.median(np.concatenate(row.self_ps))),
        }
        for row in trace.sorts
    ]
    columns = ["pass", "kind", "executed_min", "executed_max", "compiled", "self_ps"]
    return pd.DataFrame(rows, columns=columns).astype({"compiled": "Int64"})


def buffers(trace: Trace) -> pd.DataFrame:
    """Return the buffers of the compiled module, largest first; no rows where no buffer assignment is at hand.

    Columns: size_bytes, dispatch_input_ratio (missing for a trace that is no run), shape, opcode, pass, scope,
    instruction.
    """
    import pandas as pd

    reference = trace.variant.dispatch_input_bytes if trace.variant else None
    rows: list[dict[str, Any]] = [
        {
            "size_bytes": b.size_bytes,
            "dispatch_input_ratio": b.size_bytes / reference if reference else None,
            "shape": b.shape,
            "opcode": b.opcode,
            "pass": b.pass_.value,
            "scope": b.scope,
            "instruction": b.instruction,
        }
        for b in (trace.buffers.buffers if trace.buffers else ())
    ]
    columns = ["size_bytes", "dispatch_input_ratio", "shape", "opcode", "pass", "scope", "instruction"]
    return pd.DataFrame(rows, columns=columns)


def funnel(compiled: CompileResult) -> pd.DataFrame:
    """Return how often counted work runs per step and device, by program and level; nothing of it was run.

    Columns: program, pass, kind (sort, argsort, top_k, gather, …), name (of a kernel or collective), level (traced,
    lowered, compiled), executions, unknown (instructions that are left out: nobody can tell how often they run).
    """
    import pandas as pd

    rows = [
        (p.name, row.pass_, row.kind, row.name, level, count.times, count.unknown)
        for p in compiled.programs
        for row in funnel_rows(p.levels)
        for level, count in row.counts.items()
    ]
    return pd.DataFrame(rows, columns=["program", "pass", "kind", "name", "level", "executions", "unknown"])


def alive_at_peak(subject: Trace | CompiledProgram) -> pd.DataFrame:
    """Return the buffers that are alive when most memory is, largest first; no rows where nothing tells the peak.

    Columns: size_bytes, shape, opcode, pass, scope, instruction, first, last (instructions between which it is alive).
    """
    import pandas as pd

    rows = [
        (b.size_bytes, b.shape, b.opcode, b.pass_.value, b.scope, b.instruction, live.first, live.last)
        for live in (subject.peak.alive if subject.peak else ())
        for b in (live.buffer,)
    ]
    columns = ["size_bytes", "shape", "opcode", "pass", "scope", "instruction", "first", "last"]
    return pd.DataFrame(rows, columns=columns)


def checks(found: Sequence[Check]) -> pd.DataFrame:
    """Return the limits of a budget with what was found: limit, measured, allowed, outcome, reason."""
    import pandas as pd

    rows = [(c.name, c.measured, c.allowed, c.outcome.name.lower(), c.reason) for c in found]
    return pd.DataFrame(rows, columns=["limit", "measured", "allowed", "outcome", "reason"])


def differences(
    diffs: Sequence[Diff],
    by: By = "op",
    *,
    sort: Sort | None = None,
    pattern: re.Pattern[str] | None = None,
    top: int | None = None,
) -> pd.DataFrame:
    """Return the rows of comparisons cut by `by`, see `analyzers.comparing.rows.rows`, one per group and comparison.

    Columns: a, b (names of the sides), what `by` names (pass, opcode, shape and scope of an op), then per side the
    median, least, greatest and mean self time per step (a_median_ps, …; missing on a side that has no such ops),
    saving_ps with its interval saving_low_ps and saving_high_ps, and the verdict. Times are whole picoseconds.
    """
    import pandas as pd

    found = [
        {"a": diff.a.name, "b": diff.b.name}
        | dict(zip(FIELDS[by], key, strict=True))
        | _estimate("a", row.a)
        | _estimate("b", row.b)
        | _saving(row)
        for diff in diffs
        for key, row in rows(diff.a, diff.b, by, sort=sort, pattern=pattern, top=top).groups.rows
    ]
    sides = [f"{side}_{what}_ps" for side in "ab" for what in ("median", "min", "max", "mean")]
    times = [*sides, "saving_ps", "saving_low_ps", "saving_high_ps"]
    frame = pd.DataFrame(found, columns=["a", "b", *FIELDS[by], *times, "verdict"])
    indices = [name for name in FIELDS[by] if name in ("layer", "chunk")]
    return frame.astype(dict.fromkeys([*times, *indices], "Int64"))


def _estimate(side: str, estimate: Estimate | None) -> dict[str, int | None]:
    if estimate is None:
        return dict.fromkeys(f"{side}_{what}_ps" for what in ("median", "min", "max", "mean"))
    return {
        f"{side}_median_ps": round(estimate.median),
        f"{side}_min_ps": round(estimate.low),
        f"{side}_max_ps": round(estimate.high),
        f"{side}_mean_ps": round(estimate.mean),
    }


def _saving(row: TimeDelta) -> dict[str, int | str | None]:
    saving = row.saving
    if saving is None:
        return {"saving_ps": None, "saving_low_ps": None, "saving_high_ps": None, "verdict": None}
    known = not math.isnan(saving.low)
    return {
        "saving_ps": round(saving.value),
        "saving_low_ps": round(saving.low) if known else None,
        "saving_high_ps": round(saving.high) if known else None,
        "verdict": saving.verdict.name.lower(),
    }


def _optional(indices: NDArray[np.int32]) -> Any:
    """Return indices as nullable integers, missing where they are -1."""
    import pandas as pd

    return pd.arrays.IntegerArray(indices.astype(np.int64), indices < 0)

"""Traces as pandas frames, for notebooks: one row per thing that was measured, the unit in the column's name.

import analyzers
from analyzers.showing import frames
frames.times(analyzers.load("RUN", variant="cached")).groupby("pass", observed=True).self_ps.sum()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analyzers.counting.totals import PASSES
from analyzers.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


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


def _optional(indices: NDArray[np.int32]) -> Any:
    """Return indices as nullable integers, missing where they are -1."""
    import pandas as pd

    return pd.arrays.IntegerArray(indices.astype(np.int64), indices < 0)

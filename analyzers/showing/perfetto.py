"""One trace file in the Chrome JSON format that ui.perfetto.dev opens, with sorts and layers as named tracks.

Per device there is a process with the tracks `sorts`, `layers`, and one for each line of ops. Times count from the
first event of each host: clocks of hosts differ, and nothing in a trace says by how much. A slice of `layers` is a
stretch of ops of one pass and layer. Slices of a track nest or follow each other.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.counting.executions import Executions
from analyzers.counting.kinds import kind, kind_by_name
from analyzers.counting.ops import Op

_PS_PER_US = 1e6
_SORTS, _LAYERS, _FIRST_LINE = 1, 2, 10


def perfetto(hosts: Mapping[str, Executions]) -> bytes:
    """Return all device ops of all hosts as gzipped Chrome trace JSON, timestamps and durations in µs.

    Keys are the names of the hosts; processes are called after host and device, or the device where there is one host.
    """
    out: list[dict[str, Any]] = []
    first_pid = 1
    for host, done in hosts.items():
        out += _of_host(done, f"{host}:" if len(hosts) > 1 else "", first_pid)
        first_pid += len(done.events.devices)
    return gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": out}).encode(), mtime=0)


def _of_host(done: Executions, prefix: str, first_pid: int) -> list[dict[str, Any]]:
    events = done.events
    zero = int(events.start_ps.min()) if len(events.op) else 0
    sorting = np.array([_sorts(done, op) for op in done.ops], bool)
    out: list[dict[str, Any]] = []
    for device, name in enumerate(events.devices):
        rows = np.flatnonzero(events.device == device)
        if len(rows) == 0:
            continue
        pid = first_pid + device
        lines = {line: _FIRST_LINE + k for k, line in enumerate(np.unique(events.line[rows]).tolist())}
        tracks = {_SORTS: "sorts", _LAYERS: "layers", **{tid: f"ops {k}" for k, tid in enumerate(lines.values())}}
        out.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": prefix + name}})
        out += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track}}
            for tid, track in tracks.items()
        ]
        out += [_slice(done, row, pid, lines[int(events.line[row])], zero) for row in rows.tolist()]
        out += [_slice(done, row, pid, _SORTS, zero) for row in rows[sorting[events.op[rows]]].tolist()]
        out += _layers(done, rows, pid, zero)
    return out


def _sorts(done: Executions, op: Op) -> bool:
    module = done.programs[op.program].module if op.program >= 0 else None
    if module and op.instruction:
        return kind(module, op.instruction).is_sort
    return kind_by_name(op.opcode, op.scope).is_sort


def _slice(done: Executions, row: int, pid: int, tid: int, zero: int) -> dict[str, Any]:
    events = done.events
    index = int(events.op[row])
    op = done.ops[index]
    return {
        "ph": "X",
        "name": op.name,
        "pid": pid,
        "tid": tid,
        "ts": (int(events.start_ps[row]) - zero) / _PS_PER_US,
        "dur": int(events.duration_ps[row]) / _PS_PER_US,
        "args": {
            "pass": done.attributions[index].pass_.value,
            "layer": int(done.layer[row]),
            "chunk": int(done.chunk[row]),
            "opcode": op.opcode,
            "scope": op.scope,
        },
    }


def _layers(done: Executions, rows: NDArray[np.intp], pid: int, zero: int) -> list[dict[str, Any]]:
    """Return one slice per stretch of ops of one pass and layer; a stretch ends where the next one begins."""
    events = done.events
    rows = rows[(done.layer[rows] >= 0) & (done.self_ps[rows] > 0)]
    rows = rows[np.argsort(events.start_ps[rows], kind="stable")]
    keys = [(int(done.layer[r]), done.attributions[int(events.op[r])].pass_.value) for r in rows.tolist()]
    starts = [k for k in range(len(keys)) if k == 0 or keys[k] != keys[k - 1]]
    out = []
    for first, after in zip(starts, [*starts[1:], len(keys)], strict=True):
        own = rows[first:after]
        begin = int(events.start_ps[own[0]])
        end = int((events.start_ps[own] + events.duration_ps[own]).max())
        if after < len(rows):
            end = min(end, int(events.start_ps[rows[after]]))
        layer, pass_ = keys[first]
        out.append(
            {
                "ph": "X",
                "name": f"layer {layer} {pass_}",
                "pid": pid,
                "tid": _LAYERS,
                "ts": (begin - zero) / _PS_PER_US,
                "dur": (end - begin) / _PS_PER_US,
            }
        )
    return out

"""Ops of two compilations, matched by what they are: pass, opcode, shape and scope without numbering.

Instruction names change with every compilation and say nothing here. What has no counterpart stays, as an op of
one side only; what a table has no room for is added up into a row. All rows together are every op of every step,
which is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analyzers.comparing.deltas import TimeDelta, grouped, largest_change_first
from analyzers.comparing.statistics import Blocks
from analyzers.counting.buffers import without_numbers
from analyzers.counting.facts import OpFacts
from analyzers.counting.scopes import Pass
from analyzers.trace import Trace

OpKey = tuple[Pass, str, str, str]
"""Pass, opcode, shape, scope without numbering."""


@dataclass(frozen=True, slots=True)
class OpDelta:
    """Ops that are the same by pass, opcode, shape and scope without numbering, and their time on both sides."""

    pass_: Pass
    opcode: str
    shape: str
    scope: str
    time: TimeDelta


@dataclass(frozen=True, slots=True)
class MatchedOps:
    """Every op of two traces, in rows."""

    rows: tuple[OpDelta, ...]
    """Largest change of self time first; on the side that has no such op, the estimate is None."""
    rest: tuple[TimeDelta, ...]
    """What `rows` has no room for, added up: ops of both sides, only of A, only of B; labels say how many."""
    total: TimeDelta
    """All ops: `rows` and `rest` add up to it in every step."""


def matched_ops(a: Trace, b: Trace, top: int) -> MatchedOps:
    """Match the ops of two traces; the `top` largest changes get a row of their own."""
    totals = [trace.self_ps_of_ops(lambda op: True) for trace in (a, b)]
    return match(samples_by_op(a), samples_by_op(b), totals[0], totals[1], top)


def match(
    a: Mapping[OpKey, Blocks], b: Mapping[OpKey, Blocks], total_a: Blocks, total_b: Blocks, top: int
) -> MatchedOps:
    """Match ops by key. Raises ReconciliationError where the ops of a side do not add up to its total."""
    found = grouped("ops", a, b, (total_a, total_b), largest_change_first, top, label=lambda key: key[1])
    return MatchedOps(tuple(OpDelta(*key, row) for key, row in found.rows), found.rest, found.total)


def samples_by_op(trace: Trace) -> dict[OpKey, Blocks]:
    """Self time per step in ps, mean over devices, of each group of ops that are the same by their key."""
    result: dict[OpKey, list[np.ndarray]] = {}
    for number, session in enumerate(trace.sessions):
        steps = min(file.num_steps for file in session)
        devices = sum(int(np.count_nonzero((f.step_wall_ps >= 0).any(axis=1))) for f in session)
        for file in session:
            table = file.by_op
            keys = [_op_key(op) for op in file.ops]
            numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
            of_op = np.array([numbers[key] for key in keys], np.int64)
            sums = np.zeros((len(numbers), max(file.num_steps, steps)), np.int64)
            np.add.at(sums, (of_op[table.keys["op"]], table.keys["step"]), table.self_ps)
            for key, n in numbers.items():
                if not sums[n].any():
                    continue
                blocks = result.setdefault(key, [])
                while len(blocks) <= number:
                    blocks.append(np.zeros(min(f.num_steps for f in trace.sessions[len(blocks)])))
                blocks[number] = blocks[number] + sums[n, :steps] / max(devices, 1)
    for blocks in result.values():
        while len(blocks) < len(trace.sessions):
            blocks.append(np.zeros(min(f.num_steps for f in trace.sessions[len(blocks)])))
    return {key: tuple(blocks) for key, blocks in result.items()}


def _op_key(op: OpFacts) -> OpKey:
    opcode = op.opcode
    if opcode == "custom-call":
        # All kernels share the opcode; the stem of the instruction's name is the kernel's.
        opcode += f" {without_numbers(op.name.split('.')[0])}"
    return op.pass_, opcode, op.shape, without_numbers(op.scope)

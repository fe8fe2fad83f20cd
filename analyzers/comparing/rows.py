"""One table of a comparison, cut the way a reader asks for: by op, scope, layer, chunk or device.

Every cut takes all of a step apart, so that rows, what a filter leaves out and what has no room add up to the
step, which is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from analyzers.comparing.deltas import Groups, TimeDelta, grouped, largest_change_first
from analyzers.comparing.matching import samples_by_op
from analyzers.comparing.statistics import Blocks, Estimate
from analyzers.counting.hosts import device_names, self_ps_by_device
from analyzers.trace import Trace

By = Literal["op", "scope", "layer", "chunk", "device"]
Sort = Literal["saving", "a", "b", "name"]
Key = tuple[str | int | None, ...]
"""Values of `FIELDS`; a layer or chunk of None is what nothing attributes."""

CUTS: tuple[By, ...] = get_args(By)
SORTS: tuple[Sort, ...] = get_args(Sort)
FIELDS: Mapping[By, tuple[str, ...]] = {
    "op": ("pass", "opcode", "shape", "scope"),
    "scope": ("pass", "scope"),
    "layer": ("layer",),
    "chunk": ("chunk",),
    "device": ("device",),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """A comparison cut one way. Times are self times per step in ps: means over devices, but by device its own."""

    by: By
    sort: Sort
    pattern: str | None
    groups: Groups[Key]
    partial_steps: bool = False
    """By device: steps that did not run on all devices of a side are left out."""


def default_sort(by: By) -> Sort:
    """Return the order that a cut has by itself: layers, chunks and devices in theirs, all else by change."""
    return "saving" if by in ("op", "scope") else "name"


def default_top(by: By) -> int | None:
    """Return how many rows a printed cut has by itself: None (all) of layers, chunks and devices, ten of all else."""
    return 10 if by in ("op", "scope") else None


def rows(
    a: Trace,
    b: Trace,
    by: By,
    *,
    sort: Sort | None = None,
    pattern: re.Pattern[str] | None = None,
    top: int | None = None,
) -> Rows:
    """Compare two traces cut by `by`.

    Args:
        a: The side compared with.
        b: The side whose savings are positive.
        by: What a row is.
        sort: `saving` puts the largest change first, `a` and `b` the longest time of that side, `name` the names in
            order, numbers in them as numbers; `default_sort` by default.
        pattern: Only rows in whose name it is found, see `name_of`; the others are added up.
        top: How many rows to give; the others are added up. All by default.

    Raises ReconciliationError where the rows do not add up to the step.

    """
    sort = sort or default_sort(by)
    samples, totals, partial = _samples(a, b, by)
    return Rows(
        by=by,
        sort=sort,
        pattern=pattern.pattern if pattern else None,
        groups=grouped(
            f"{by}s",
            *samples,
            totals,
            _ORDERS[sort],
            top,
            (lambda key: pattern.search(name_of(by, key)) is not None) if pattern else (lambda key: True),
            lambda key: name_of(by, key),
        ),
        partial_steps=partial,
    )


def name_of(by: By, key: Key) -> str:
    """Return a row's name: `layer 3`, `no chunk`, or its fields with spaces between."""
    if by in ("layer", "chunk"):
        return f"no {by}" if key[0] is None else f"{by} {key[0]}"
    return " ".join(str(part) for part in key if part)


_Sides = tuple[dict[Key, Blocks], dict[Key, Blocks]]


def _samples(a: Trace, b: Trace, by: By) -> tuple[_Sides, tuple[Blocks, Blocks], bool]:
    """Return the samples of each group on both sides, the samples of the whole, and whether steps are left out."""
    if by == "device":
        (of_a, total_a, partial_a), (of_b, total_b, partial_b) = _devices(a), _devices(b)
        return (of_a, of_b), (total_a, total_b), partial_a or partial_b
    of: Callable[[Trace], dict[Key, Blocks]] = {
        "op": _ops,
        "scope": _scopes,
        "layer": _layers,
        "chunk": _chunks,
    }[by]
    # Ops of a SparseCore are no part of layers and chunks: a TensorCore op waits for each.
    whole = [t.self_ps_of_ops(lambda op: True) if by in ("op", "scope") else t.self_ps() for t in (a, b)]
    return (of(a), of(b)), (whole[0], whole[1]), False


def _ops(trace: Trace) -> dict[Key, Blocks]:
    return {(p.value, opcode, shape, scope): s for (p, opcode, shape, scope), s in samples_by_op(trace).items()}


def _scopes(trace: Trace) -> dict[Key, Blocks]:
    found: dict[Key, Blocks] = {}
    for (pass_, _, _, scope), samples in samples_by_op(trace).items():
        key = (pass_.value, scope)
        found[key] = tuple(x + y for x, y in zip(found[key], samples, strict=True)) if key in found else samples
    return found


def _layers(trace: Trace) -> dict[Key, Blocks]:
    return _present({(None if k < 0 else k,): trace.self_ps(layer=k) for k in (*trace.layers, -1)})


def _chunks(trace: Trace) -> dict[Key, Blocks]:
    return _present({(None if k < 0 else k,): trace.self_ps(chunk=k) for k in (*trace.chunks, -1)})


def _present(samples: dict[Key, Blocks]) -> dict[Key, Blocks]:
    return {key: blocks for key, blocks in samples.items() if any(block.any() for block in blocks)}


def _devices(trace: Trace) -> tuple[dict[Key, Blocks], Blocks, bool]:
    """Return the time of each device in the steps that ran on all of them, their sum, and whether others are left."""
    of: dict[Key, list[np.ndarray]] = {}
    totals, partial = [], False
    for number, session in enumerate(trace.sessions):
        steps = min(file.num_steps for file in session)
        ran = np.concatenate([file.step_wall_ps[:, :steps] >= 0 for file in session])
        times = np.concatenate([self_ps_by_device(file)[:, :steps] for file in session]).astype(np.float64)
        names = np.array(device_names(session))
        used = ran.any(axis=1)
        whole = ran[used].all(axis=0)
        partial |= not whole.all()
        totals.append(times[used][:, whole].sum(axis=0))
        for name, own in zip(names[used].tolist(), times[used][:, whole], strict=True):
            blocks = of.setdefault((name,), [])
            blocks += [np.zeros(len(totals[k])) for k in range(len(blocks), number)]
            blocks.append(own)
    for blocks in of.values():
        blocks += [np.zeros(len(totals[k])) for k in range(len(blocks), len(totals))]
    return {key: tuple(blocks) for key, blocks in of.items()}, tuple(totals), partial


_Rows = Sequence[tuple[Key, TimeDelta]]


def _longest_first(side: Callable[[TimeDelta], Estimate | None]) -> Callable[[_Rows], _Rows]:
    def order(found: _Rows) -> _Rows:
        return sorted(found, key=lambda row: -estimate.median if (estimate := side(row[1])) else 0.0)

    return order


def _by_name(found: _Rows) -> _Rows:
    return sorted(found, key=lambda row: [_natural(part) for part in row[0]])


def _natural(part: str | int | None) -> tuple[tuple[int, int, str], ...]:
    """Return what sorts text with the numbers in it as numbers, and None last."""
    if part is None:
        return ((2, 0, ""),)
    pieces = re.split(r"(\d+)", str(part))
    return tuple((0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces if piece)


_ORDERS: Mapping[Sort, Callable[[_Rows], _Rows]] = {
    "saving": largest_change_first,
    "a": _longest_first(lambda row: row.a),
    "b": _longest_first(lambda row: row.b),
    "name": _by_name,
}

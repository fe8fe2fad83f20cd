"""Time of one group of ops on both sides, and what was saved; and the check that groups add up to the whole."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from analyzers.comparing.statistics import Blocks, Estimate, Saving, estimate, saving

K = TypeVar("K", bound=Hashable)

_TOLERANCE_PS = 1.0


class ReconciliationError(RuntimeError):
    """Parts of a step do not add up to the step: a fault of this program, never of what it read."""


@dataclass(frozen=True, slots=True)
class TimeDelta:
    """Time per step of one group of ops on both sides, in ps; a side without such ops is None."""

    label: str
    a: Estimate | None
    b: Estimate | None
    saving: Saving | None
    """None where a side is missing."""


def time_delta(label: str, blocks_a: Blocks, blocks_b: Blocks, family: int = 1) -> TimeDelta:
    """Compare the samples of one group; `family` is the number of groups whose intervals are to hold together."""
    present_a, present_b = (any(np.any(block) for block in blocks) for blocks in (blocks_a, blocks_b))
    enough = all(any(len(block) for block in blocks) for blocks in (blocks_a, blocks_b))
    return TimeDelta(
        label=label,
        a=estimate(blocks_a) if present_a else None,
        b=estimate(blocks_b) if present_b else None,
        saving=saving(blocks_a, blocks_b, family) if enough and (present_a or present_b) else None,
    )


def added(parts: Iterable[Blocks], like: Blocks) -> Blocks:
    """Return the sum of samples, step by step; zeros in the shape of `like` where there are none."""
    total = [np.zeros(len(block)) for block in like]
    for part in parts:
        for k, block in enumerate(part):
            total[k] = total[k] + block
    return tuple(total)


def reconcile(what: str, parts: Iterable[Blocks], whole: Blocks) -> None:
    """Check that the parts of every step add up to it, within rounding. Raises ReconciliationError."""
    for session, (found, expected) in enumerate(zip(added(parts, whole), whole, strict=True)):
        wrong = np.abs(found - expected) > _TOLERANCE_PS + 1e-9 * np.abs(expected)
        if wrong.any():
            step = int(np.argmax(wrong))
            raise ReconciliationError(
                f"{what} of step {step} in session {session} add up to {found[step]:.0f} ps, "
                f"not {expected[step]:.0f} ps"
            )


@dataclass(frozen=True, slots=True)
class Groups(Generic[K]):
    """All groups of ops of two traces: some in rows of their own, the others added up."""

    rows: tuple[tuple[K, TimeDelta], ...]
    rest: tuple[TimeDelta, ...]
    """Wanted groups without a row: of both sides, only of A, only of B; labels say how many."""
    num_wanted: int
    """Wanted groups, with a row or without."""
    wanted: TimeDelta
    """All of those: `rows` and `rest`."""
    unwanted: TimeDelta | None
    """All others; None where there are none."""
    total: TimeDelta
    """`wanted` and `unwanted` add up to it in every step."""


def grouped(
    what: str,
    a: Mapping[K, Blocks],
    b: Mapping[K, Blocks],
    totals: tuple[Blocks, Blocks],
    order: Callable[[Sequence[tuple[K, TimeDelta]]], Sequence[tuple[K, TimeDelta]]],
    top: int | None = None,
    wanted: Callable[[K], bool] = lambda key: True,
    label: Callable[[K], str] = str,
) -> Groups[K]:
    """Compare two sides group by group; the first `top` wanted ones in `order` get a row (None: all).

    The rows shown may be picked for being the largest, so their intervals hold for all groups together. Raises
    ReconciliationError where the groups of a side do not add up to its total.
    """
    keys = list(dict.fromkeys((*a, *b)))
    zeros = tuple(added((), total) for total in totals)
    every = [
        (key, time_delta(label(key), a.get(key, zeros[0]), b.get(key, zeros[1]), max(len(keys), 1)))
        for key in keys
        if wanted(key)
    ]
    every = list(order(every))
    end = len(every) if top is None else top
    shown, left = every[:end], [key for key, _ in every[end:]]
    chosen = {key for key, _ in every}
    others = [key for key in keys if key not in chosen]

    def together(group: Sequence[K]) -> tuple[Blocks, Blocks]:
        sides = zip((a, b), totals, strict=True)
        first, second = (added((side[key] for key in group if key in side), total) for side, total in sides)
        return first, second

    rest = []
    parts = [together([key]) for key, _ in shown]
    for where, group in (
        ("on both sides", [key for key in left if key in a and key in b]),
        ("only in A", [key for key in left if key not in b]),
        ("only in B", [key for key in left if key not in a]),
    ):
        if group:
            parts.append(together(group))
            rest.append(time_delta(f"{len(group)} more {where}", *parts[-1], len(keys)))
    picked = added((x for x, _ in parts), totals[0]), added((y for _, y in parts), totals[1])
    left_out = together(others)
    for number, side in enumerate("AB"):
        reconcile(f"{what} of {side}", (picked[number], left_out[number]), totals[number])
    return Groups(
        rows=tuple(shown),
        rest=tuple(rest),
        num_wanted=len(every),
        wanted=time_delta(f"{len(every)} wanted", *picked),
        unwanted=time_delta(f"{len(others)} others", *left_out) if others else None,
        total=time_delta(f"all {what}", *totals),
    )


def largest_change_first(rows: Sequence[tuple[K, TimeDelta]]) -> list[tuple[K, TimeDelta]]:
    """Return groups by how much their time changed, whatever the sign."""
    return sorted(rows, key=lambda row: -abs(row[1].saving.value) if row[1].saving else 0.0)

"""Time of one group of ops on both sides, and what was saved; and the check that groups add up to the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analyzers.comparing.statistics import Blocks, Estimate, Saving, estimate, saving

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

"""Time and savings by layer × chunk: where in the model a change lands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.comparing.statistics import Saving, saving
from analyzers.trace import Trace


@dataclass(frozen=True)
class Places:
    """Self time of one trace by place. -1 among `layers` and `chunks` is what no layer or chunk claims."""

    layers: tuple[int, ...]
    chunks: tuple[int, ...]
    samples_ps: tuple[NDArray[np.float64], ...]
    """One array per session, shape [steps, layers, chunks]: ps per step, mean over devices."""

    @property
    def median_ps(self) -> NDArray[np.float64]:
        """Return the median over all steps, shape [layers, chunks]."""
        return np.asarray(np.median(np.concatenate(self.samples_ps), axis=0))


def places(trace: Trace, layers: Sequence[int], chunks: Sequence[int]) -> Places:
    """Return the self time of `trace` by step and place; places that are not named are left out."""
    samples = []
    for session in trace.sessions:
        steps = min(file.num_steps for file in session)
        total = np.zeros((steps, len(layers), len(chunks)), np.int64)
        devices = 0
        for file in session:
            table = file.by_place
            step = table.keys["step"]
            layer, chunk = _positions(table.keys["layer"], layers), _positions(table.keys["chunk"], chunks)
            inside = (step < steps) & (layer >= 0) & (chunk >= 0)
            np.add.at(total, (step[inside], layer[inside], chunk[inside]), table.self_ps[inside])
            devices += int(np.count_nonzero((file.step_wall_ps >= 0).any(axis=1)))
        samples.append(total / max(devices, 1))
    return Places(tuple(layers), tuple(chunks), tuple(samples))


def place_savings(a: Places, b: Places) -> tuple[tuple[Saving | None, ...], ...]:
    """Return the saving in every place, one tuple per layer; None where neither side spends time.

    Raises ValueError where the sides have different places.
    """
    if (a.layers, a.chunks) != (b.layers, b.chunks):
        raise ValueError("two sides are compared by place, so they need the same layers and chunks")
    return tuple(
        tuple(
            _saving([s[:, i, j] for s in a.samples_ps], [s[:, i, j] for s in b.samples_ps])
            for j in range(len(a.chunks))
        )
        for i in range(len(a.layers))
    )


def _saving(a: Sequence[NDArray[np.float64]], b: Sequence[NDArray[np.float64]]) -> Saving | None:
    if not any(block.any() for block in (*a, *b)) or not (any(map(len, a)) and any(map(len, b))):
        return None
    return saving(a, b)


def _positions(values: NDArray[np.int32], wanted: Sequence[int]) -> NDArray[np.int64]:
    """Return where each value stands in `wanted`, -1 where it does not."""
    size = max((*wanted, int(values.max(initial=-1)))) + 2
    position = np.full(size, -1, np.int64)
    position[np.asarray(wanted, np.int64) + 1] = np.arange(len(wanted))
    return position[values.astype(np.int64) + 1]

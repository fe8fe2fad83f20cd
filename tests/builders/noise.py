"""Step times with known truth: what noise does to a comparison, one array per session, sessions taken A B B A.

Each kind of noise draws both sides of one comparison; the second side takes `slower` times as long. `like` makes
a kind from what a real capture did: its steps around their session's median, drawn again, on sessions that differ
from one another as much as its own do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Side = list[NDArray[np.float64]]
Noise = Callable[[np.random.Generator, int, int], tuple[Side, Side]]
"""Random numbers, rounds, steps → both sides, of a step that takes about 1000 and is the same on both."""

STEP_TIMES = Path(__file__).parents[1] / "data" / "step-times.json"


@dataclass(frozen=True)
class Capture:
    """Times of a real capture: by side and what was timed, shape [rounds, steps]."""

    name: str
    sides: Mapping[str, Mapping[str, NDArray[np.float64]]]


def captures(path: Path = STEP_TIMES) -> list[Capture]:
    """Return the captures that are kept with the tests."""
    return [
        Capture(
            run["name"],
            {side: {what: np.array(times, float) for what, times in of.items()} for side, of in run["sides"].items()},
        )
        for run in json.loads(path.read_text())["runs"]
    ]


@dataclass(frozen=True)
class Level:
    """How noisy a capture was, as parts of the time of a step."""

    within: float
    """Standard deviation of steps around their session's median, told from the middle of the deviations."""
    between: float
    """Standard deviation over rounds of the difference of the two sides' session medians, less its mean."""
    offset: float
    """Of a session's own offset: what of `between` the steps within sessions do not explain."""


def level(a: NDArray[np.float64], b: NDArray[np.float64]) -> Level:
    """Measure the noise of two sides, shape [rounds, steps] each."""
    steps = a.shape[1]
    deviations = np.concatenate([np.abs(x / np.median(x, axis=1, keepdims=True) - 1) for x in (a, b)])
    within = 1.4826 * float(np.median(np.sort(deviations, axis=1)[:, 1:]))
    differences = np.log(np.median(a, axis=1)) - np.log(np.median(b, axis=1))
    between = float(differences.std(ddof=1))
    rest = between**2 / 2 - math.pi / 2 * within**2 / steps
    return Level(within, between, math.sqrt(max(rest, 0.0)))


def like(a: NDArray[np.float64], b: NDArray[np.float64]) -> Noise:
    """Return noise like that of a capture, shape [rounds, steps] on each side."""
    ratios = np.concatenate([(x / np.median(x, axis=1, keepdims=True)).ravel() for x in (a, b)])
    offset = level(a, b).offset
    shared = np.median(np.concatenate([a, b], axis=1), axis=1)
    shared = shared / np.median(shared)

    def draw(rng: np.random.Generator, rounds: int, steps: int) -> tuple[Side, Side]:
        machine = rng.choice(shared, rounds)
        sides = [
            [1000 * m * math.exp(rng.normal(0, offset)) * rng.choice(ratios, steps) for m in machine] for _ in range(2)
        ]
        return sides[0], sides[1]

    return draw


_GAP = 4
"""Steps' worth of time between two sessions: seen in captures of preset tiny, 5 steps of 0.2 to 0.4 s each."""


def _independent(of_step: Callable[[np.random.Generator, int], NDArray[np.float64]]) -> Noise:
    def draw(rng: np.random.Generator, rounds: int, steps: int) -> tuple[Side, Side]:
        a, b = ([1000 + of_step(rng, steps) for _ in range(rounds)] for _ in range(2))
        return a, b

    return draw


def _in_order(series: Callable[[np.random.Generator, int], NDArray[np.float64]]) -> Noise:
    """Noise that goes on from session to session, in the order they are taken: A B B A …

    Between two sessions pass `_GAP` steps that nobody times, as the warm-up of the next one does in a capture.
    """

    def draw(rng: np.random.Generator, rounds: int, steps: int) -> tuple[Side, Side]:
        every = 1000 + series(rng, 2 * rounds * (steps + _GAP))
        sessions = list(every.reshape(2 * rounds, steps + _GAP)[:, :steps])
        sides: tuple[Side, Side] = ([], [])
        for number in range(rounds):
            first, second = sessions[2 * number : 2 * number + 2]
            for side, block in zip(sides, (first, second) if number % 2 == 0 else (second, first), strict=True):
                side.append(block)
        return sides

    return draw


def _autocorrelated(rng: np.random.Generator, samples: int) -> NDArray[np.float64]:
    values = rng.normal(0, 20, samples)
    for k in range(1, samples):
        values[k] = 0.8 * values[k - 1] + 0.6 * values[k]
    return values


def _offsets(rng: np.random.Generator, rounds: int, steps: int) -> tuple[Side, Side]:
    shared = rng.normal(0, 40, rounds)
    a, b = ([1000 + m + rng.normal(0, 20) + rng.normal(0, 20, steps) for m in shared] for _ in range(2))
    return a, b


KINDS: dict[str, Noise] = {
    "gaussian": _independent(lambda rng, n: rng.normal(0, 20, n)),
    "heavy tail": _independent(lambda rng, n: 15 * np.abs(rng.standard_t(2, n))),
    "bimodal": _independent(lambda rng, n: rng.normal(0, 10, n) + 80 * (rng.random(n) < 0.3)),
    "drift": _in_order(lambda rng, n: np.linspace(0, 150, n) + rng.normal(0, 20, n)),
    "autocorrelated": _in_order(_autocorrelated),
    "offsets by round and session": _offsets,
}


def resampled(times: NDArray[np.float64], rng: np.random.Generator, rounds: int) -> tuple[Side, Side]:
    """Return both sides of a comparison of one variant with itself, from its sessions, shape [sessions, steps].

    A side's session and the other's were taken one after the other, as in a capture; which is whose is drawn.
    """
    start = int(rng.integers(2))
    pairs = [(k, k + 1) for k in range(start, len(times) - 1, 2)]
    chosen = np.sort(rng.choice(len(pairs), rounds, replace=rounds > len(pairs)))
    a, b = [], []
    for k in chosen:
        first, second = rng.permutation(pairs[k])
        a.append(times[first])
        b.append(times[second])
    return a, b

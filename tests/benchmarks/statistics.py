"""How often a comparison is wrong: a program with itself (A/A), and with one that is 3 % slower (A/B).

    python -m tests.benchmarks.statistics [RUN ...] [--trials 200] [--rounds R] [--steps S] [--seed N]

A/A: a difference may be called in 5 % of the comparisons, and by chance in a few more; on steps of real captures
(sessions of one variant, taken one after the other and drawn by round), and on synthetic noise of several kinds.
A/B: the second side takes 3 % longer, on noise like that of each capture, by rounds and steps. Warnings: how often
each named warning stands beside an A/A comparison. Without RUN the captures are those in tests/data/step-times.json;
a RUN needs two variants and 12 or more rounds. Rounds and steps are by default those of `moe-prof capture`.
Stopping: A/A again, where each comparison goes on as `moe-prof capture --rounds auto` does, with the precision that
half of them reach in 15 rounds: there, looking does most harm. Exit code 1 if A/A or Stopping fails anywhere, or A/B
finds less than 90 % at the given rounds and steps on the quietest capture.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from analyzers.comparing import noise as warnings
from analyzers.comparing.statistics import Verdict, saving
from profiler.stopping import MIN_ROUNDS, progressed
from tests.builders.noise import KINDS, Capture, Side, captures, level, like, resampled

Draw = Callable[[np.random.Generator], tuple[Side, Side]]

SLOWER = 1.03
ALLOWED = 0.05
WANTED = 0.90
WARNINGS = ("drift", "outlier-steps", "cold-first-step")
LONGEST = 40
GRID = ((3, 5), (5, 5), (8, 5), (10, 5), (12, 5), (16, 5), (8, 10), (10, 10))


def wrong(draw: Draw, trials: int, seed: int) -> float:
    """Return the share of comparisons of a thing with itself in which a difference is called."""
    rng = np.random.default_rng(seed)
    return sum(saving(*draw(rng)).verdict is not Verdict.NO_DIFFERENCE for _ in range(trials)) / trials


def found(draw: Draw, trials: int, seed: int) -> float:
    """Return the share of comparisons in which a slowdown of 3 % is called one."""
    rng = np.random.default_rng(seed)
    verdicts = []
    for _ in range(trials):
        a, b = draw(rng)
        verdicts.append(saving(a, [block * SLOWER for block in b]).verdict)
    return sum(verdict is Verdict.SLOWER for verdict in verdicts) / trials


def warned(draw: Draw, trials: int, seed: int) -> Counter[str]:
    """Return in how many comparisons each named warning appears."""
    rng = np.random.default_rng(seed)
    names: Counter[str] = Counter()
    for _ in range(trials):
        sides = [warnings.Side(name, tuple(blocks)) for name, blocks in zip("AB", draw(rng), strict=True)]
        caveats = [warnings.drift(*sides, alternating=True)]
        caveats += [check(side) for side in sides for check in (warnings.outliers, warnings.cold)]
        names.update({caveat.name for caveat in caveats if caveat})
    return names


def stopping(draw: Draw, precision: float, trials: int, seed: int) -> tuple[float, float]:
    """Return the share of A/A comparisons that call a difference if they stop at a precision, and the mean rounds.

    `draw` gives as many rounds as are taken at most.
    """
    rng = np.random.default_rng(seed)
    called, taken = 0, 0
    for _ in range(trials):
        a, b = draw(rng)
        rounds = next((n for n in range(MIN_ROUNDS, len(a)) if _half_width(a[:n], b[:n]) <= precision), len(a))
        called += saving(a[:rounds], b[:rounds]).verdict is not Verdict.NO_DIFFERENCE
        taken += rounds
    return called / trials, taken / trials


def precision_at(draw: Draw, rounds: int, trials: int, seed: int) -> float:
    """Return the precision that half of all comparisons have after `rounds`."""
    rng = np.random.default_rng(seed)
    widths = []
    for _ in range(trials):
        a, b = draw(rng)
        widths.append(_half_width(a[:rounds], b[:rounds]))
    return float(np.median(widths))


def _half_width(a: Side, b: Side) -> float:
    known = progressed({"a": a, "b": b})
    if known is None:
        raise ValueError("a half-width needs two rounds")
    return known.half_width


def made_cases(real: list[Capture], rounds: int, steps: int) -> dict[str, Draw]:
    """Return the kinds of made noise, by name: synthetic ones and those like the captures."""
    cases: dict[str, Draw] = {}
    for name, kind in KINDS.items():
        cases[name] = lambda rng, k=kind: k(rng, rounds, steps)  # type: ignore[misc]
    for capture in real:
        drawn = like(*(side["step"] for side in capture.sides.values()))
        cases[f"like {capture.name}"] = lambda rng, d=drawn: d(rng, rounds, steps)  # type: ignore[misc]
    return cases


def allowed(trials: int) -> float:
    """Return the share up to which a rate of 5 % may come out by chance: three standard errors above."""
    return ALLOWED + 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / trials)


def aa_cases(real: list[Capture], rounds: int, steps: int) -> dict[str, Draw]:
    """Return everything that is compared with itself, by name."""
    cases: dict[str, Draw] = {}
    for capture in real:
        for side, times in capture.sides.items():
            for what, values in times.items():
                cases[f"{capture.name}: {what} of {side}"] = lambda rng, v=values: resampled(v, rng, rounds)  # type: ignore[misc]
    return cases | made_cases(real, rounds, steps)


def of_run(path: Path) -> Capture:
    """Read the step times of a run."""
    from analyzers.reading.run import load_run
    from analyzers.trace import load_variants

    run = load_run(path)
    traces = load_variants(run, [variant.name for variant in run.manifest.variants][:2])
    return Capture(
        path.name,
        {
            trace.name: {
                "step": np.array(trace.step_wall_ps) / 1e3,
                "sorts": np.array(trace.self_ps_of_ops(lambda op: op.kind.is_sort)) / 1e3,
            }
            for trace in traces
        },
    )


def default_of(name: str) -> int:
    """Return what `moe-prof capture` takes for an option that is not given."""
    from profiler.cli.capture import command

    return next(int(str(parameter.default)) for parameter in command.params if parameter.name == name)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=default_of("rounds"))
    parser.add_argument("--steps", type=int, default=default_of("steps"))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    real = [of_run(path) for path in given.runs] or captures()
    size = f"{given.rounds} rounds × {given.steps} steps"
    limit = allowed(given.trials)
    failed = False

    print("Noise of the captures: standard deviations in % of a step")
    print("| capture | steps within a session | sides of a round | a session's own offset |\n|---|---:|---:|---:|")
    levels = [level(*(side["step"] for side in capture.sides.values())) for capture in real]
    for capture, one in zip(real, levels, strict=True):
        print(f"| {capture.name} | {one.within:.1%} | {one.between:.1%} | {one.offset:.1%} |")

    print(f"\nA/A: {given.trials} comparisons with itself, {size}; up to {limit:.1%} can be chance")
    print(f"| what | difference called | {' | '.join(WARNINGS)} |\n|---|---:|---:|---:|---:|")
    for name, draw in aa_cases(real, given.rounds, given.steps).items():
        rate = wrong(draw, given.trials, given.seed)
        failed |= rate > limit
        shares = ["", "", ""]
        if ": sorts of" not in name:  # warnings are about whole steps
            counts = warned(draw, given.trials, given.seed)
            shares = [f"{counts[warning] / given.trials:.1%}" for warning in WARNINGS]
        print(f"| {name} | {rate:.1%}{' !' if rate > limit else ''} | " + " | ".join(shares) + " |")

    trials = min(given.trials, 400)
    print(
        f"\nStopping: {trials} comparisons with itself, from {MIN_ROUNDS} to {LONGEST} rounds × {given.steps} steps, "
        f"until --precision is reached; up to {allowed(trials):.1%} can be chance"
    )
    print("| what | --precision | rounds taken | difference called |\n|---|---:|---:|---:|")
    for name, draw in made_cases(real, LONGEST, given.steps).items():
        precision = precision_at(draw, 15, 100, given.seed + 1)
        rate, rounds = stopping(draw, precision, trials, given.seed)
        failed |= rate > allowed(trials)
        print(f"| {name} | {precision:.1%} | {rounds:.1f} | {rate:.1%}{' !' if rate > allowed(trials) else ''} |")

    print(f"\nA/B: a slowdown of 3 % found, in % of {given.trials} comparisons, on noise like that of each capture")
    sizes = sorted({*GRID, (given.rounds, given.steps)}, key=lambda one: (one[1], one[0]))
    print("| noise | " + " | ".join(f"{rounds} × {steps}" for rounds, steps in sizes) + " |")
    print("|---|" + "---:|" * len(sizes))
    quietest = min(range(len(real)), key=lambda k: levels[k].between)
    for k, capture in enumerate(real):
        drawn = like(*(side["step"] for side in capture.sides.values()))
        rates = {
            one: found(lambda rng, d=drawn, o=one: d(rng, *o), given.trials, given.seed)  # type: ignore[misc]
            for one in sizes
        }
        if k == quietest:
            failed |= rates[given.rounds, given.steps] < WANTED
        print(f"| like {capture.name} | " + " | ".join(f"{rates[one]:.0%}" for one in sizes) + " |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

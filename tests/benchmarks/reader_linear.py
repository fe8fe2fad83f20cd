"""What a byte of a trace costs, from 5 MB to 3 GB: `python -m tests.benchmarks.reader_linear [EVENTS...] [--rounds N]`.

Runs `moe-prof show --timings` on synthetic traces of growing size, each once before it is measured, so that the
file is in the page cache, then N rounds, of which the best is shown. A line, seconds = fixed + slope × bytes, is put
through reading + counting, with equal weight to equal relative errors; the last column says how far each size lies
from it. Prints a Markdown table. The largest trace takes 3 GB of disk and about 8 GB of memory.
"""

from __future__ import annotations

import argparse

import numpy as np

from tests.benchmarks.processes import Measured, measure, moe_prof, parts, synthetic_trace

EVENTS = (100_000, 1_000_000, 10_000_000, 15_400_000, 30_000_000, 61_200_000)
"""49 bytes each: 5 MB to 3 GB, past the 2 GiB where protobuf ends."""


def fitted(sizes: list[float], seconds: list[float]) -> tuple[float, float]:
    """Return (fixed, slope) of the line with the least squares of relative errors."""
    x, y = np.array(sizes), np.array(seconds)
    fixed, slope = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(y)), rcond=None)[0]
    return float(fixed), float(slope)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("events", nargs="*", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: list[tuple[int, float, Measured]] = []
    for events in options.events:
        path = synthetic_trace(events)
        source = moe_prof("show", str(path), "--timings")
        measure(source)
        best = min(measure(source) for _ in range(options.rounds))
        rows.append((events, path.stat().st_size / 1e6, best))
    work = [parts(best.errors)["reading"] + parts(best.errors)["counting"] for _, _, best in rows]
    fixed, slope = fitted([size for _, size, _ in rows], work)
    print("| events | MB | whole process, s | peak MB | reading, s | counting, s | both, ns per byte | off the line |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for (events, size, best), seconds in zip(rows, work, strict=True):
        of = parts(best.errors)
        off = seconds / (fixed + slope * size) - 1
        print(
            f"| {events:,} | {size:,.0f} | {best.seconds:.2f} | {best.peak_mb:,.0f} | {of['reading']:.3f} | "
            f"{of['counting']:.3f} | {seconds / size * 1e3:.2f} | {off:+.0%} |"
        )
    print(f"\nReading and counting take {fixed * 1e3:.0f} ms + {slope * 1e3:.2f} ns per byte.")


if __name__ == "__main__":
    main()

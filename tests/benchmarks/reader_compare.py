"""Seconds and peak memory of whole processes that read the same trace, side by side in one run.

    python -m tests.benchmarks.reader_compare [EVENTS...] [--rounds N] [--only NAME]

Every command runs once before it is measured, so that the file is in the page cache; then the commands take
turns, N rounds, and the best of each is shown. Where others use the machine too, CPU seconds say more. Traces are
written to a folder below the system's temporary one and stay there. Prints Markdown tables. Add a row by adding
to `COMMANDS`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.reader_synthetic import write_trace

ROOT = Path(__file__).resolve().parents[2]

_OURS = (
    "from analyzers.reading.xspace import read_xspace\n"
    "assert len(read_xspace({trace!r}, reader={reader!r}).events) >= {events}"
)

COMMANDS: Mapping[str, tuple[str, int]] = {
    # name: (Python source with {trace} and {events}, most events it is given)
    "start of Python with numpy": ("import numpy", 10**9),
    "moe-prof reader, C": (_OURS.replace("{reader!r}", "'c'"), 10**9),
    "moe-prof reader, Python": (_OURS.replace("{reader!r}", "'python'"), 10**6),
    "moe-prof show": ("from profiler.cli.main import main\nmain(['show', {trace!r}])", 10**9),
    "moe-prof diff, two such traces": (
        "from profiler.cli.main import main\nmain(['diff', {trace!r}, {trace!r}])",
        10**7,
    ),
    "python protobuf, parse and touch every event": (
        "from analyzers.reading.protos.xplane_pb2 import XSpace\n"
        "space = XSpace.FromString(open({trace!r}, 'rb').read())\n"
        "assert sum(e.duration_ps > 0 for p in space.planes for l in p.lines for e in l.events) >= {events}",
        10**7,
    ),
    "jax.profiler.ProfileData, touch every event": (
        "from jax.profiler import ProfileData\n"
        "data = ProfileData.from_file({trace!r})\n"
        "assert sum(e.duration_ns > 0 for p in data.planes for l in p.lines for e in l.events) >= {events}",
        10**7,
    ),
    "xprof hlo_stats": (
        "from xprof.convert import raw_to_tool_data\n"
        "assert raw_to_tool_data.xspace_to_tool_data([{trace!r}], 'hlo_stats', {{}})[0]",
        10**7,
    ),
}


def synthetic_trace(events: int) -> Path:
    """Return a trace with `events` op events, written where it is not there yet."""
    folder = Path(tempfile.gettempdir()) / "moe-prof-benchmarks"
    folder.mkdir(exist_ok=True)
    path = folder / f"{events}.xplane.pb"
    if not path.exists():
        write_trace(path, events)
    return path


def measure(source: str) -> tuple[float, float, float]:
    """Run Python source in a process of its own; return its seconds, CPU seconds and peak resident MB."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        raise RuntimeError(f"{source}\n{errors.decode(errors='replace')[-2000:]}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def compare(events: int, rounds: int, only: str) -> None:
    """Print the table for one size of trace."""
    trace = synthetic_trace(events)
    with tempfile.TemporaryDirectory() as folder:  # xprof writes files of its own beside the trace.
        copy = Path(folder) / "host.xplane.pb"
        os.symlink(trace, copy)
        sources = {
            name: source.format(trace=str(copy), events=events)
            for name, (source, most) in COMMANDS.items()
            if events <= most and only in name
        }
        best: dict[str, tuple[float, float, float]] = {}
        for round_number in range(rounds + 1):
            for name, source in sources.items():
                for cache in Path(folder).glob("*_v2.pb"):
                    cache.unlink()
                result = measure(source)
                if round_number and (name not in best or result < best[name]):
                    best[name] = result
    print(f"\n{events:,} events, {trace.stat().st_size / 1e6:.0f} MB\n")
    print("| whole process | seconds | CPU seconds | peak MB |\n| --- | ---: | ---: | ---: |")
    for name, (seconds, cpu, megabytes) in best.items():
        print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {megabytes:.0f} |")


def compare_walk(events: int) -> None:
    """Print what the walk costs beside a bare loop over the same bytes, where there is a C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "walk"
        source = ROOT / "tests" / "benchmarks" / "reader_walk.c"
        subprocess.run([compiler, "-O3", "-std=gnu11", "-o", program, source], check=True)
        out = subprocess.run(
            [program, synthetic_trace(events), "15"], check=True, capture_output=True, text=True
        ).stdout
    seconds = {name: float(value) for name, value in (line.split() for line in out.splitlines())}
    walk, bare = seconds["walk"], seconds["bare"]
    print(
        f"\nThe walk of {events:,} events alone: {walk:.3f} s of CPU, {walk / events * 1e9:.0f} ns per event; "
        f"a bare C loop over the same bytes {bare:.3f} s: {walk / bare:.2f} times as much."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("events", nargs="*", type=int, default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="only commands whose name contains this")
    options = parser.parse_args()
    for events in options.events:
        compare(events, options.rounds, options.only)
    compare_walk(min(1_000_000, max(options.events)))


if __name__ == "__main__":
    main()

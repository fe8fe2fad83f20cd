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
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.processes import ROOT, Measured, measure, moe_prof, parts, synthetic_trace

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
    # It reads both folders anew: what it keeps beside a trace is deleted before each run.
    "xprof diff_sessions, two such traces": (
        "import json\n"
        "from xprof.cli.tools.oss.diff_sessions_tool import diff_sessions\n"
        "found = diff_sessions(\n"
        "    baseline_session_id={folder!r}, optimized_session_id={folder!r} + '-copy', bypass_cache=True)\n"
        "assert json.loads(found)",
        10**6,
    ),
}


def compare(events: int, rounds: int, only: str) -> None:
    """Print the table for one size of trace."""
    trace = synthetic_trace(events)
    with tempfile.TemporaryDirectory() as name:  # xprof writes files of its own beside the trace.
        folders = [Path(name) / "trace", Path(name) / "trace-copy"]
        for folder in folders:
            folder.mkdir()
            os.symlink(trace, folder / "host.xplane.pb")
        sources = {
            name: source.format(trace=str(folders[0] / "host.xplane.pb"), folder=str(folders[0]), events=events)
            for name, (source, most) in COMMANDS.items()
            if events <= most and only in name
        }
        best: dict[str, Measured] = {}
        for round_number in range(rounds + 1):
            for name, source in sources.items():
                for extra in (path for folder in folders for path in folder.iterdir() if not path.is_symlink()):
                    extra.unlink()
                result = measure(source)
                if round_number:
                    best[name] = min(result, best.get(name, result))
    print(f"\n{events:,} events, {trace.stat().st_size / 1e6:.0f} MB\n")
    print("| whole process | seconds | CPU seconds | peak MB |\n| --- | ---: | ---: | ---: |")
    for name, found in best.items():
        print(f"| {name} | {found.seconds:.2f} | {found.cpu_seconds:.2f} | {found.peak_mb:.0f} |", flush=True)


def compare_parts(events: int, rounds: int) -> dict[str, float]:
    """Return the seconds of each part of `moe-prof show`, of the fastest of several runs."""
    source = moe_prof("show", str(synthetic_trace(events)), "--timings")
    return parts(min(measure(source) for _ in range(rounds + 1)).errors)


def walk_seconds(events: int) -> dict[str, float] | None:
    """Return the CPU seconds of the walk, and of a bare loop over the same bytes; None without a C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "walk"
        source = ROOT / "tests" / "benchmarks" / "reader_walk.c"
        subprocess.run([compiler, "-O3", "-std=gnu11", "-o", program, source], check=True)
        command = [program, synthetic_trace(events), "15" if events <= 10**6 else "5"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: float(value) for name, value in (line.split() for line in out.splitlines())}


def print_parts(sizes: list[int], rounds: int) -> None:
    """Print where the seconds of `moe-prof show` go, and how much of them the walk is."""
    found = {events: compare_parts(events, rounds) for events in sizes}
    walks = {events: walk_seconds(events) for events in sizes}
    names = list(dict.fromkeys(name for of in found.values() for name in of))
    print("\n| part of `moe-prof show`, s | " + " | ".join(f"{events:,} events" for events in sizes) + " |")
    print("| --- |" + " ---: |" * len(sizes))
    for name in names:
        print(f"| {name} | " + " | ".join(f"{found[events].get(name, 0.0):.3f}" for events in sizes) + " |")
    rows = {
        "the walk, part of reading": lambda events, walk: f"{walk['walk']:.3f}",
        "its share of all": lambda events, walk: f"{walk['walk'] / found[events]['all']:.0%}",
        "a bare C loop over the same bytes": lambda events, walk: f"{walk['bare']:.3f}",
        "the walk ÷ the bare loop": lambda events, walk: f"{walk['walk'] / walk['bare']:.2f}",
    }
    for name, cell in rows.items():
        cells = ["n/a, no C compiler" if (walk := walks[events]) is None else cell(events, walk) for events in sizes]
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("events", nargs="*", type=int, default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="only commands whose name contains this")
    options = parser.parse_args()
    for events in options.events:
        compare(events, options.rounds, options.only)
    if not options.only:
        print_parts(list(options.events), options.rounds)


if __name__ == "__main__":
    main()

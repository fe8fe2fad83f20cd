"""Many files side by side: `python -m tests.benchmarks.hosts_scaling [--files 8 16 32 64] [--jobs 1 2] [--events N]`.

Copies one synthetic trace to one file per host of a log directory (64 files of 1 M events are 3.2 GB of disk, removed
again at the end) and runs `moe-prof show LOGDIR --jobs J` as a whole process, once before it is measured, then N
rounds, of which the best is shown. Perfect scaling is all the CPU time of one process, start included, spread over
the workers; not its wall time, for one process uses a second core already where passes over events overlap.

All processes are watched through /proc every 20 ms, so that up to that much of a process's end is not seen. Memory is
what is not file pages (those are the system's cache, and it takes them back when memory is short): the most
that one process had, and the most that all had together. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.processes import ENVIRONMENT, ROOT, folder, moe_prof, synthetic_trace

_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True, order=True)
class Whole:
    """One run of a process and all its workers."""

    seconds: float
    cpu_seconds: float
    largest_mb: float
    """Most memory of one process, without file pages."""
    together_mb: float
    """Most memory of all processes at one moment, without file pages."""


@contextmanager
def log_directory(trace: Path, files: int) -> Iterator[Path]:
    """Yield a log directory with a copy of the trace for each of that many hosts."""
    with tempfile.TemporaryDirectory(dir=folder()) as name:
        session = Path(name) / "plugins" / "profile" / "2026_01_01_00_00_00"
        session.mkdir(parents=True)
        for host in range(files):
            shutil.copyfile(trace, session / f"host{host:03}.xplane.pb")
        os.sync()  # Else the disk is still busy with the copies while reading is measured.
        yield Path(name)


def measure_all(source: str) -> Whole:
    """Run Python source in a session of its own and watch all processes of that session."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    cpu: dict[int, float] = {}
    largest = together = 0.0
    while process.poll() is None:
        cpu |= session_cpu_seconds(process.pid)
        memory = [own_memory_mb(pid) for pid in cpu]
        largest, together = max(largest, *memory, 0.0), max(together, sum(memory))
        time.sleep(_SAMPLE_SECONDS)
    seconds = time.perf_counter() - begin
    if process.returncode:
        assert process.stderr is not None
        raise RuntimeError(process.stderr.read()[-2000:])
    return Whole(seconds, sum(cpu.values()), largest, together)


def session_cpu_seconds(session: int) -> dict[int, float]:
    """Return the CPU seconds of every process of a session (proc(5), stat: session is field 6, times 14 and 15)."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It ended meanwhile.
        if int(fields[3]) == session:
            found[int(path.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def own_memory_mb(pid: int) -> float:
    """Return the memory of a process that is not file pages, in 10^6 bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon:")), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", nargs="*", type=int, default=[8, 16, 32, 64])
    parser.add_argument("--jobs", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    trace = synthetic_trace(options.events)
    print(f"{trace.stat().st_size / 1e6:.0f} MB per file\n")
    print("| files | workers | s | CPU s | × perfect | memory of the largest process, MB | of all together, MB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for files in options.files:
        with log_directory(trace, files) as log:
            alone = None
            for jobs in options.jobs:
                source = moe_prof("show", str(log), "--jobs", str(jobs))
                measure_all(source)
                best = min(measure_all(source) for _ in range(options.rounds))
                alone = best if jobs == 1 else alone
                times = "n/a" if alone is None or jobs == 1 else f"{best.seconds * jobs / alone.cpu_seconds:.2f}"
                print(
                    f"| {files} | {jobs} | {best.seconds:.2f} | {best.cpu_seconds:.2f} | {times} | "
                    f"{best.largest_mb:,.0f} | {best.together_mb:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""What a whole process costs: seconds, CPU seconds, peak memory; and the traces that benchmarks of readers share."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""As a user has it: compiled modules are kept, so that not every process compiles all it imports anew."""


@dataclass(frozen=True, order=True)
class Measured:
    """One run of a process; ordered by its seconds."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    """Most resident memory, in 10^6 bytes, the mapped file included."""
    errors: str


def moe_prof(*arguments: str) -> str:
    """Return Python source that runs the command line."""
    return f"from profiler.cli.main import main\nmain({list(arguments)!r})"


def measure(source: str, *, exit_codes: tuple[int, ...] = (0,)) -> Measured:
    """Run Python source in a process of its own; raise RuntimeError with what it said where it fails."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", source], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if os.waitstatus_to_exitcode(status) not in exit_codes:
        raise RuntimeError(f"{source}\n{errors[-2000:]}")
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, errors)


def parts(errors: str) -> dict[str, float]:
    """Return the seconds of each part that `--timings` printed."""
    rows = [line.split() for line in errors.splitlines()]
    return {row[0]: float(row[1]) for row in rows if len(row) == 3 and row[2] == "s"}


def folder() -> Path:
    """Return where the traces of benchmarks are kept."""
    path = Path(tempfile.gettempdir()) / "moe-prof-benchmarks"
    path.mkdir(exist_ok=True)
    return path


def synthetic_trace(events: int) -> Path:
    """Return a trace with `events` op events, written where it is not there yet.

    A process of its own writes it: the peak memory of a process counts in that of those it starts later.
    """
    path = folder() / f"{events}.xplane.pb"
    if not path.exists():
        command = [sys.executable, "-m", "tests.benchmarks.reader_synthetic", str(events), str(path)]
        subprocess.run(command, cwd=ROOT, check=True)
    return path

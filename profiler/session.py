"""One profiling session: annotated steps of one variant, nothing else."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from profiler import backends
from profiler.readback import STEP_NAME


def profile(step: Callable[[], None], steps: int, folder: Path, options: dict[str, int | str]) -> tuple[int, ...]:
    """Run `step` under the profiler, which writes into `folder`; return each step's wall time in ns.

    `step` must wait for what it started, so that its ops lie inside its annotation.
    """
    walls = []
    with _no_garbage_collection(), _session(folder, options):
        for number in range(steps):
            started = time.perf_counter_ns()
            with jax.profiler.StepTraceAnnotation(STEP_NAME, step_num=number):
                step()
            walls.append(time.perf_counter_ns() - started)
    return tuple(walls)


@contextmanager
def _session(folder: Path, options: dict[str, int | str]) -> Iterator[None]:
    jax.profiler.start_trace(str(folder), profiler_options=backends.make_profile_options(options))
    try:
        yield
    finally:
        # Also after an interrupt: a session that is left open blocks every later one of this process.
        jax.profiler.stop_trace()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

"""Variants of one built program: a loop over chunks in a loop over layers that sorts in each chunk, or once per layer.

The first two are played and read from files; more are the same traces with all times multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from analyzers.counting.facts import FileFacts
from analyzers.counting.totals import Totals
from analyzers.trace import Trace, load
from tests.builders.compiling import compiled_hlo
from tests.builders.play import TICK_PS, Program, default_durations, play
from tests.builders.spaces import tpu_space, trace_file


def sorting_program(layers: int, chunks: int, *, cached: bool) -> Program:
    """Compile the gradient of `layers` × `chunks` steps, each of which takes its rows in sorted order."""

    def layer(carry: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
        order = jnp.argsort(carry[:, 0]) if cached else None

        def chunk(carry: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            with jax.named_scope("dispatch"):
                rows = carry[jnp.argsort(carry[:, 0]) if order is None else order]
            with jax.named_scope("experts"):
                return jnp.sin(rows @ weight), None

        with jax.named_scope("chunks"):
            return jax.lax.scan(chunk, carry, weights)

    def loss(x: jax.Array, weights: jax.Array) -> jax.Array:
        with jax.named_scope("layers"):
            return jax.lax.scan(layer, x, weights)[0].sum()

    x, weights = jnp.ones((64, 32)), jnp.ones((layers, chunks, 32, 32))
    return Program(compiled_hlo(jax.grad(loss, argnums=(0, 1)), x, weights))


def variants(folder: Path, layers: int, chunks: int, count: int, *, sessions: int = 3, steps: int = 3) -> list[Trace]:
    """Return `count` traces on two devices: `recompute`, `cached`, and `variant-2` and on, each 3 % faster."""
    found = []
    for name, cached in (("recompute", False), ("cached", True)):
        program = sorting_program(layers, chunks, cached=cached)
        read = []
        for session in range(sessions):
            runs = play(program, _noisy(session), devices=2, steps=steps)
            read.append(load(trace_file(folder / name / str(session), tpu_space(program, runs))))
        found.append(replace(read[0], name=name, path=name, sessions=tuple(t.sessions[0] for t in read)))
    for number in range(2, count):
        found.append(slower(found[1], 0.97 ** (number - 1), f"variant-{number}"))
    return found[:count]


def slower(trace: Trace, factor: float, name: str) -> Trace:
    """Return the trace under another name, with all times multiplied by `factor`."""
    sessions = tuple(tuple(_file(file, factor) for file in session) for session in trace.sessions)
    return replace(trace, name=name, path=name, sessions=sessions)


def _file(file: FileFacts, factor: float) -> FileFacts:
    return replace(
        file,
        by_op=_times(file.by_op, factor),
        by_place=_times(file.by_place, factor),
        sorts_by_place=_times(file.sorts_by_place, factor),
        step_wall_ps=np.round(file.step_wall_ps * factor).astype(np.int64),
    )


def _times(table: Totals, factor: float) -> Totals:
    self_ps, duration_ps = (np.round(x * factor).astype(np.int64) for x in (table.self_ps, table.duration_ps))
    return replace(table, self_ps=self_ps, duration_ps=duration_ps)


def _noisy(session: int) -> Callable[[str, int, Sequence[int]], int]:
    """Own times that a layer stretches, and a session and a step by up to a percent."""

    def own(name: str, step: int, iterations: tuple[int, ...]) -> int:
        base = default_durations(name, 0, ()) * (5 if "sort" in name else 1)
        noise = default_durations("noise", step + 10 * session, ()) % (10 * TICK_PS) * 0.001 / TICK_PS
        layer = 1 + (iterations[0] if iterations else 0) / 100
        return round(base * layer * (1 + noise) / TICK_PS) * TICK_PS

    return own

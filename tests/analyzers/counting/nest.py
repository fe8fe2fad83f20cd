"""The program of most tests here: a loop over 3 chunks in a loop over 4 layers, forward and backward."""

from functools import cache

import jax
import jax.numpy as jnp

from tests.builders.compiling import compiled_hlo
from tests.builders.play import Execution, Program, Run

NUM_LAYERS, NUM_CHUNKS = 4, 3


def _chunk(carry, weight):
    return jnp.sin(carry @ weight), None


def _layer(carry, weights):
    with jax.named_scope("chunks"):
        return jax.lax.scan(_chunk, carry, weights)


def _loss(x, weights):
    with jax.named_scope("layers"):
        out, _ = jax.lax.scan(_layer, x, weights)
    return jnp.sum(out)


@cache
def nest_program() -> Program:
    x, weights = jnp.ones((4, 4)), jnp.ones((NUM_LAYERS, NUM_CHUNKS, 4, 4))
    return Program(compiled_hlo(jax.grad(_loss, argnums=(0, 1)), x, weights))


Place = tuple[str, int, int]


@cache
def _backward_loops() -> frozenset[str]:
    module = nest_program().module
    return frozenset(
        i.name.decode()
        for c in module.computations
        for i in c.instructions
        if i.opcode == b"while" and b"transpose(" in i.metadata.op_name
    )


def place(e: Execution) -> Place | None:
    """Return (pass, layer, chunk) of what runs in a loop; the backward loops walk both axes from the end."""
    if not e.loops:
        return None
    layer, chunk = (*e.iterations, -1)[:2]
    if e.loops[0][0] not in _backward_loops():
        return "forward", layer, chunk
    return "backward", NUM_LAYERS - 1 - layer, NUM_CHUNKS - 1 - chunk if chunk >= 0 else -1


def places(run: Run, e: Execution) -> tuple[int, int, str, int, int] | None:
    """Return (device, step, pass, layer, chunk)."""
    where = place(e)
    return (run.device, run.step, *where) if where else None

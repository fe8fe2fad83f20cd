"""The two row movers that routing is made of, and which implementation of them to use.

`jax` is plain operations and runs anywhere; `pallas` is the SparseCore kernels for TPUs that have one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

from workloads.errors import WorkloadError
from workloads.kernels import plain

GatherFn = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
GatherReduceFn = Callable[
    [jax.Array, jax.Array, jax.Array | None, jax.Array, jax.Array | None, int],
    jax.Array,
]


class Kernels(NamedTuple):
    """`gather` and `gather_reduce` as documented in `workloads.kernels.plain`."""

    gather: GatherFn
    gather_reduce: GatherReduceFn


def choose(name: str) -> Kernels:
    """The kernels called `name`. Raises WorkloadError for a name that is not known."""
    if name == "jax":
        return Kernels(plain.ragged_gather, plain.ragged_gather_reduce)
    if name == "pallas":
        from workloads.kernels import sparsecore

        return Kernels(sparsecore.ragged_gather, sparsecore.ragged_gather_reduce)
    raise WorkloadError(f"unknown kernels {name!r}; choose one of jax, pallas.")

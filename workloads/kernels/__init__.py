"""The two row movers that routing is made of, and which implementation of them to use.

`jax` is plain operations and runs anywhere; `pallas` is the SparseCore kernels for TPUs that have one.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from workloads.errors import WorkloadError
from workloads.kernels import plain
from workloads.targets import target_of

GatherFn = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
GatherReduceFn = Callable[
    [jax.Array, jax.Array, jax.Array | None, jax.Array, jax.Array | None, int],
    jax.Array,
]


class Kernels(NamedTuple):
    """`gather` and `gather_reduce` as documented in `workloads.kernels.plain`."""

    gather: GatherFn
    gather_reduce: GatherReduceFn


def choose(name: str, device_kind: str) -> Kernels:
    """The kernels called `name`, for a device that says `device_kind`.

    Raises WorkloadError for a name that is not known, and for `pallas` on a device without SparseCores.
    """
    if name == "jax":
        return Kernels(plain.ragged_gather, plain.ragged_gather_reduce)
    if name == "pallas":
        from workloads.kernels import sparsecore

        target = target_of(device_kind)
        return Kernels(
            partial(sparsecore.ragged_gather, target=target),
            partial(sparsecore.ragged_gather_reduce, target=target),
        )
    raise WorkloadError(f"unknown kernels {name!r}; choose one of jax, pallas.")

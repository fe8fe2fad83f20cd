"""The two row movers that routing is made of, and which implementation of them to use.

`jax` is plain operations and runs anywhere; `pallas` is the SparseCore kernels for TPUs that have one.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from workloads.errors import WorkloadError
from workloads.kernels import plain
from workloads.targets import Target

GatherFn = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
GatherReduceFn = Callable[
    [jax.Array, jax.Array, jax.Array | None, jax.Array, jax.Array | None, int],
    jax.Array,
]


class Kernels(NamedTuple):
    """`gather` and `gather_reduce` as documented in `workloads.kernels.plain`."""

    gather: GatherFn
    gather_reduce: GatherReduceFn


def choose(name: str, target: Target | None = None, interpret: bool = False) -> Kernels:
    """The kernels called `name`; those of `pallas` for `target`, or for the interpreter of that target.

    Raises WorkloadError for a name that is not known, and for `pallas` without a target.
    """
    if name == "jax":
        return Kernels(plain.ragged_gather, plain.ragged_gather_reduce)
    if name == "pallas":
        if target is None:
            raise WorkloadError("the kernels `pallas` are built for one TPU generation; name a target.")
        from workloads.kernels import sparsecore

        return Kernels(
            partial(sparsecore.ragged_gather, target=target, interpret=interpret),
            partial(sparsecore.ragged_gather_reduce, target=target, interpret=interpret),
        )
    raise WorkloadError(f"unknown kernels {name!r}; choose one of jax, pallas.")

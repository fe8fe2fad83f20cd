"""What a kernel must know of the TPU it is built for, written down here and passed in.

Compiling for a TPU that is not there, `jax.devices()` shows the CPU: asking it would build for the wrong
chip. This module imports no jax, so that a command line can list the targets quickly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from workloads.errors import WorkloadError


@dataclass(frozen=True)
class Target:
    """One TPU generation, seen as one JAX device.

    `device_kind` is what `jax.Device.device_kind` says on that TPU. `sparse_cores` counts the SparseCores
    that one JAX device owns (a tpu7x chip has four and shows as two devices, so two); 0 where there are none.
    `subcores` counts the vector subcores of one SparseCore, `lanes` the 32-bit elements of one of their
    vector registers, `subcore_vmem_bytes` the local memory of one subcore. `tensor_cores` counts the
    TensorCores of one JAX device (two in megacore mode).
    """

    name: str
    device_kind: str
    tensor_cores: int
    sparse_cores: int
    subcores: int
    lanes: int
    subcore_vmem_bytes: int

    @property
    def workers(self) -> int:
        """Vector subcores of all SparseCores of one device: what a kernel's work is split over."""
        return self.sparse_cores * self.subcores


# The figures are those of the hardware table of JAX 0.10.2 (jax._src.pallas.mosaic.tpu_info).
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            Target("tpu7x", "TPU7x", 1, 2, 16, 16, 512 * 1024),
            Target("v6e", "TPU v6 lite", 1, 2, 16, 8, 256 * 1024),
            Target("v5p", "TPU v5", 2, 4, 16, 8, 512 * 1024),
            Target("v5e", "TPU v5 lite", 1, 0, 0, 0, 0),
        )
    }
)


def target_named(name: str) -> Target:
    """The target called `name` (or by a topology name such as `tpu7x:2x2x1`).

    Raises WorkloadError for a name that is not known.
    """
    target = TARGETS.get(name.partition(":")[0])
    if target is None:
        raise WorkloadError(f"unknown TPU target {name!r}; choose one of {', '.join(TARGETS)}.")
    return target


def target_of(device_kind: str) -> Target:
    """The target whose devices say `device_kind`. Raises WorkloadError where that is no TPU known here."""
    for target in TARGETS.values():
        if target.device_kind == device_kind:
            return target
    raise WorkloadError(
        f"SparseCore kernels are built for {', '.join(TARGETS)}, but the device is {device_kind!r}; "
        "use the kernels `jax` there."
    )

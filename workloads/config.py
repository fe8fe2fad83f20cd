"""The description of a routing problem (`Config`) and of how a variant routes it (`Choices`).

Both are plain frozen dataclasses without jax types: a run writes them to its manifest and reads them back.
"""

from dataclasses import dataclass

from workloads.errors import WorkloadError

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Config:
    """One routing problem and the stack of layers around it.

    `num_tokens` counts the tokens of the whole mesh. `ep` and `fsdp` are the sizes of the mesh axes: tokens
    are sharded over both, experts over `ep`, the hidden dimension of the expert weights over `fsdp`.
    `buffer_factor` bounds a shard's buffer of rows to that multiple of the even share (tokens seen × top_k /
    ep); rows beyond it are dropped. None means a buffer that can hold the worst case, so that nothing is
    dropped.
    """

    preset: str
    num_tokens: int
    hidden_dim: int
    expert_dim: int
    num_experts: int
    top_k: int
    num_layers: int
    num_chunks: int
    ep: int
    dtype: str
    scan_layers: bool = True
    remat: bool = True
    seed: int = 0
    scan_chunks: bool = True
    remat_policy: str = "nothing"  # what remat keeps besides a variant's routing arrays: "nothing" | "dots"
    fsdp: int = 1
    buffer_factor: float | None = None
    kernels: str = "jax"  # "jax" | "pallas" | "maxtext"
    vocab_size: int = 256  # of the decoder that mode `train` puts around the layers

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return self.ep * self.fsdp

    @property
    def itemsize(self) -> int:
        """Bytes of one element of activations and expert weights."""
        return DTYPE_BYTES[self.dtype]

    @property
    def tokens_per_device(self) -> int:
        """Tokens that live on one device."""
        return self.num_tokens // self.num_devices

    @property
    def tokens_per_ring(self) -> int:
        """Tokens that all shards of one ring (one `ep` group) hold together."""
        return self.num_tokens // self.fsdp

    @property
    def experts_per_shard(self) -> int:
        """Experts whose weights one shard of the `ep` axis holds."""
        return self.num_experts // self.ep


@dataclass(frozen=True)
class Choices:
    """How a variant routes, one orthogonal choice a field.

    sort_key: `stable` (two-operand argsort), `packed` (one int32 key), `counting` (one-hot cumulative sum, no
    sort).
    inverse: how a permutation is inverted where its inverse is needed: `argsort`, `scatter`, or `reuse`
    (inverted once by argsort in the forward pass and handed on; the backward re-derives nothing).
    backward_inverse: the same choice for the backward pass alone: `same` as `inverse`, or one of its values.
    activations: `repeat` (copy every token top_k times, then gather) or `gather` (gather from the originals).
    validity: the permutation that puts valid rows first, `recompute` per call, `cached` once per
    layer, or `none` where a workload has no mask to sort.
    across_remat: whether routing arrays are recomputed by `jax.checkpoint` (`recompute`) or `saved` by name.
    """

    sort_key: str = "stable"
    inverse: str = "argsort"
    activations: str = "gather"
    validity: str = "recompute"
    across_remat: str = "recompute"
    backward_inverse: str = "same"

    @property
    def inverse_in_backward(self) -> str:
        """How the backward pass inverts a permutation: `argsort`, `scatter` or `reuse`."""
        return self.inverse if self.backward_inverse == "same" else self.backward_inverse


CHOICE_VALUES = {
    "sort_key": ("stable", "packed", "counting"),
    "inverse": ("argsort", "scatter", "reuse"),
    "activations": ("repeat", "gather"),
    "validity": ("none", "recompute", "cached"),
    "across_remat": ("recompute", "saved"),
    "backward_inverse": ("same", "argsort", "scatter", "reuse"),
}


_COUNTS = (
    *("num_tokens", "hidden_dim", "expert_dim", "num_experts", "top_k"),
    *("num_layers", "num_chunks", "ep", "fsdp", "vocab_size"),
)


def check_config(config: Config) -> None:
    """Raise WorkloadError if the sizes do not fit together, naming the first that does not."""
    for name in _COUNTS:
        _positive(name, getattr(config, name))
    _one_of("dtype", config.dtype, tuple(DTYPE_BYTES))
    _one_of("kernels", config.kernels, ("jax", "pallas", "maxtext"))
    _one_of("remat_policy", config.remat_policy, ("nothing", "dots"))
    if config.top_k > config.num_experts:
        raise WorkloadError(f"top_k {config.top_k} exceeds num_experts {config.num_experts}; lower top_k.")
    _divides("num_tokens", config.num_tokens, "ep × fsdp", config.num_devices)
    _divides("num_experts", config.num_experts, "ep", config.ep)
    _divides("hidden_dim", config.hidden_dim, "num_chunks", config.num_chunks)
    _divides("hidden_dim", config.hidden_dim, "fsdp", config.fsdp)
    if config.buffer_factor is not None and not config.buffer_factor > 0:
        raise WorkloadError(f"buffer_factor is {config.buffer_factor}; it must be positive, or left out.")


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise WorkloadError(f"{name} is {value}; it must be at least 1.")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise WorkloadError(f"unknown {name} {value!r}; choose one of {', '.join(known)}.")


def _divides(name: str, value: int, by: str, divisor: int) -> None:
    if value % divisor:
        raise WorkloadError(f"{name} {value} is not divisible by {by} ({divisor}); change one of the two.")

"""Ragged gather and ragged gather-reduce on the SparseCores of a TPU, in Pallas.

The work is split over all vector subcores of all SparseCores of one device; what each does is in
`workloads.kernels.subcore`. The arrays keep the tiled layout of the TensorCore, so that float32 needs no
relayout; indirect DMA moves 32-bit words only, so bfloat16 rows are handed over two to an int32, which costs
elementwise passes over them before and after.

What each kernel computes is written in `workloads.kernels.plain`, which is the same in plain operations.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.sharding import AbstractDevice, AbstractMesh

from workloads.errors import WorkloadError
from workloads.kernels.subcore import (
    INDEX_CHUNK,
    GatherPlan,
    ReducePlan,
    Ref,
    gather_rows,
    reduce_rows,
)
from workloads.targets import Target

WORD_COLUMNS = 128  # columns of one tile, the least that a row's DMA moves
MAX_BLOCK_TOKENS = 64
VMEM_SHARE = 0.75  # of a subcore's memory, for row buffers and accumulators; the rest is for indices


def ragged_gather(
    source: jax.Array, indices: jax.Array, num_valid: jax.Array, *, target: Target, interpret: bool = False
) -> jax.Array:
    """Rows [buffer_rows, width] with `rows[r] = source[indices[r]]` for r < num_valid and zero beyond.

    source: [n, width], bfloat16 or float32, width a multiple of 128. indices: int32[buffer_rows]; beyond
    num_valid of any value, never followed. num_valid: int32 scalar. `interpret` runs the same kernel body in
    Pallas' interpreter on the backend at hand, one subcore after the other and every DMA at its start.

    Raises WorkloadError for a target without SparseCores, and for a dtype or width the kernel does not take.
    """
    _check(source, target, "source")
    buffer_rows = indices.shape[0]
    words = _to_words(source)
    columns = _fitting_columns(words.shape[1], 2 * target.lanes * 4, target)
    groups = pl.cdiv(buffer_rows, target.lanes)
    plan = GatherPlan(target.lanes, words.shape[1], columns, groups)
    rows = _launch(
        partial(gather_rows, plan),
        "ragged_gather",
        (words, _pad_to_chunk(indices), jnp.full((INDEX_CHUNK,), num_valid, jnp.int32)),
        (groups * target.lanes, words.shape[1]),
        {
            "count": pltpu.VMEM((INDEX_CHUNK,), jnp.int32),
            "index": pltpu.VMEM((2 * INDEX_CHUNK,), jnp.int32),
            "buffers": pltpu.VMEM((2, target.lanes, columns), words.dtype),
            "arrived": pltpu.SemaphoreType.DMA((2,)),
            "written": pltpu.SemaphoreType.DMA((2,)),
        },
        target,
        interpret,
    )
    return _from_words(rows[:buffer_rows], source)


def ragged_gather_reduce(
    rows: jax.Array,
    positions: jax.Array,
    weights: jax.Array | None,
    valid: jax.Array,
    sorted_by_validity: jax.Array | None,
    top_k: int,
    *,
    target: Target,
    interpret: bool = False,
) -> jax.Array:
    """Per token, the weighted sum of its valid slots' rows: [num_tokens, width] in `rows.dtype`.

    `out[t] = sum over k with valid[t*top_k+k] of weights[t*top_k+k] * rows[positions[t*top_k+k]]`, summed in
    float32 in the order of k.

    rows: [buffer_rows, width], bfloat16 or float32, width a multiple of 128. positions: int32[N], N =
    num_tokens * top_k; where not valid of any value, never followed. weights: float32[N], or None for 1.
    valid: bool[N]. sorted_by_validity: int32[N], the stable permutation that puts valid slots first (they
    then lie in token order, which the kernel relies on); None has it computed here, by one sort in a scope
    `validity`. `interpret` is as in `ragged_gather`.

    Raises WorkloadError for a target without SparseCores, for a dtype or width the kernel does not take, and
    where N is not a multiple of top_k.
    """
    _check(rows, target, "rows")
    slots = positions.shape[0]
    if top_k < 1 or slots == 0 or slots % top_k:
        raise WorkloadError(
            f"the gather-reduce kernel got {slots} slots for top_k {top_k}; it needs a positive multiple."
        )
    if sorted_by_validity is None:
        with jax.named_scope("validity"):
            sorted_by_validity = jnp.argsort(~valid, stable=True).astype(jnp.int32)
    words = _to_words(rows)
    tokens = slots // top_k
    plan = _plan_reduce(tokens, top_k, words, weights is not None, target)
    starts, ends = _slot_ranges(valid, plan)
    inputs = [words, _pad_to_chunk(sorted_by_validity), positions, starts, ends]
    scratch = {
        "bounds": pltpu.VMEM((2 * INDEX_CHUNK,), jnp.int32),
        "slots": pltpu.VMEM((2 * INDEX_CHUNK,), jnp.int32),
        "positions": pltpu.VMEM((2 * INDEX_CHUNK,), jnp.int32),
        "buffers": pltpu.VMEM((2, target.lanes, plan.columns), words.dtype),
        "sums": pltpu.VMEM((plan.block_tokens, plan.columns), jnp.float32),
        "arrived": pltpu.SemaphoreType.DMA((2,)),
        "looked_up": pltpu.SemaphoreType.DMA,
    }
    if weights is not None:
        inputs.append(weights.astype(jnp.float32))
        scratch["weights"] = pltpu.VMEM((2 * INDEX_CHUNK,), jnp.float32)
    if plan.paired:
        scratch["high_sums"] = pltpu.VMEM((plan.block_tokens, plan.columns), jnp.float32)
        scratch["packed"] = pltpu.VMEM((plan.block_tokens, plan.columns), jnp.int32)
    out = _launch(
        partial(reduce_rows, plan),
        "ragged_gather_reduce",
        inputs,
        (plan.blocks * plan.block_tokens, plan.row_words),
        scratch,
        target,
        interpret,
    )
    return _from_words(out[:tokens], rows)


def _check(rows: jax.Array, target: Target, name: str) -> None:
    if not target.workers:
        raise WorkloadError(f"{target.name} has no SparseCore; use the kernels `jax` for it.")
    if rows.dtype not in (jnp.bfloat16, jnp.float32):
        raise WorkloadError(f"SparseCore kernels move bfloat16 or float32 rows, but {name} is {rows.dtype}.")
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] == 0 or rows.shape[1] % WORD_COLUMNS:
        raise WorkloadError(
            f"SparseCore kernels need rows whose width is a multiple of {WORD_COLUMNS}, "
            f"but {name} has shape {tuple(rows.shape)}; choose a hidden size per chunk that is one."
        )


def _pair_words(width: int) -> int:
    """Words of a row of `width` bfloat16: half of it, in whole tiles."""
    return pl.cdiv(width, 2 * WORD_COLUMNS) * WORD_COLUMNS


def _to_words(rows: jax.Array) -> jax.Array:
    """The rows as 32-bit words [n, a multiple of 128]: float32 as it is, bfloat16 two to an int32.

    Column c shares a word with column c + words. Neighbouring columns would be the plain bitcast, but that
    interleaves the lanes of a register: XLA transposes the array twice for it, where this is elementwise.
    """
    if rows.dtype == jnp.float32:
        return rows
    words = _pair_words(rows.shape[1])
    bits = lax.bitcast_convert_type(rows, jnp.uint16).astype(jnp.uint32)
    high = jnp.pad(bits[:, words:], ((0, 0), (0, 2 * words - rows.shape[1])))
    return lax.bitcast_convert_type(bits[:, :words] | (high << 16), jnp.int32)


def _from_words(words: jax.Array, like: jax.Array) -> jax.Array:
    """Undo `_to_words`, for rows of the width and dtype of `like`."""
    if like.dtype == jnp.float32:
        return words
    bits = lax.bitcast_convert_type(words, jnp.uint32)
    halves = jnp.concatenate([bits & 0xFFFF, bits >> 16], axis=1)[:, : like.shape[1]]
    return lax.bitcast_convert_type(halves.astype(jnp.uint16), jnp.bfloat16)


def _pad_to_chunk(indices: jax.Array) -> jax.Array:
    return jnp.pad(indices.astype(jnp.int32), (0, -indices.shape[0] % INDEX_CHUNK))


def _fitting_columns(row_words: int, bytes_per_column: int, target: Target) -> int:
    """The widest equal share of a row, in whole tiles, for which `bytes_per_column` each fits in a subcore."""
    tiles = row_words // WORD_COLUMNS
    room = int(target.subcore_vmem_bytes * VMEM_SHARE) // (bytes_per_column * WORD_COLUMNS)
    return max(share for share in range(1, tiles + 1) if tiles % share == 0 and share <= max(room, 1)) * (WORD_COLUMNS)


def _plan_reduce(tokens: int, top_k: int, words: jax.Array, weighted: bool, target: Target) -> ReducePlan:
    paired = words.dtype == jnp.int32
    # Enough blocks that every subcore has one, in whole tiles of 8 rows.
    block_tokens = min(MAX_BLOCK_TOKENS, pl.cdiv(pl.cdiv(tokens, target.workers), 8) * 8)
    bytes_per_column = 4 * (2 * target.lanes + block_tokens * (3 if paired else 1))
    return ReducePlan(
        lanes=target.lanes,
        top_k=top_k,
        row_words=words.shape[1],
        columns=_fitting_columns(words.shape[1], bytes_per_column, target),
        block_tokens=block_tokens,
        blocks=pl.cdiv(tokens, block_tokens),
        paired=paired,
        weighted=weighted,
    )


def _slot_ranges(valid: jax.Array, plan: ReducePlan) -> tuple[jax.Array, jax.Array]:
    """Per block of tokens, where its valid slots start and end among all valid slots in order."""
    block_slots = plan.block_tokens * plan.top_k
    flags = jnp.pad(valid, (0, plan.blocks * block_slots - valid.shape[0]))
    counts = jnp.sum(flags.reshape(plan.blocks, block_slots), axis=1, dtype=jnp.int32)
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    return _pad_to_chunk(ends - counts), _pad_to_chunk(ends)


def _launch(
    body: Callable[..., None],
    name: str,
    inputs: Sequence[jax.Array],
    out_shape: tuple[int, int],
    scratch: dict[str, Any],
    target: Target,
    interpret: bool,
) -> jax.Array:
    """Run `body(worker, num_workers, refs)` on every vector subcore; `refs` are inputs, output, scratch."""
    out_type = jax.ShapeDtypeStruct(out_shape, inputs[0].dtype)
    if interpret:
        # Pallas binds a SparseCore mesh's axes only when it compiles for a TPU; a grid gives the interpreter
        # the same numbers.
        whole = pl.BlockSpec(memory_space=pl.ANY)

        def interpreted(*refs: Ref) -> None:
            arrays, buffers = refs[: len(inputs) + 1], refs[len(inputs) + 1 :]
            body(pl.program_id(0), target.workers, *arrays, **dict(zip(scratch, buffers, strict=True)))

        out: jax.Array = pl.pallas_call(
            interpreted,
            out_shape=out_type,
            grid=(target.workers,),
            in_specs=[whole] * len(inputs),
            out_specs=whole,
            scratch_shapes=list(scratch.values()),
            interpret=True,
            name=name,
        )(*inputs)
        return out

    def compiled(*arrays: Ref, **buffers: Ref) -> None:
        worker = lax.axis_index("sparse_core") * target.subcores + lax.axis_index("subcore")
        body(worker, target.workers, *arrays, **buffers)

    with _seeing(target):
        mesh = plsc.VectorSubcoreMesh(
            core_axis_name="sparse_core",
            subcore_axis_name="subcore",
            num_cores=target.sparse_cores,
            num_subcores=target.subcores,
        )
        rows: jax.Array = pl.kernel(
            compiled,
            out_type=out_type,
            mesh=mesh,
            scratch_types=scratch,
            compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
            name=name,
        )(*inputs)
    return rows


@contextlib.contextmanager
def _seeing(target: Target) -> Iterator[None]:
    """Have Pallas look up the target's chip, not the default device's, while it traces and lowers."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.abstract_device is not None and mesh.abstract_device.device_kind == target.device_kind:
        yield
        return
    device = AbstractDevice(device_kind=target.device_kind, num_cores=target.tensor_cores, platform="tpu")
    seen = AbstractMesh((), (), abstract_device=device) if mesh.empty else mesh.update(abstract_device=device)
    with jax.sharding.use_abstract_mesh(seen):
        yield

"""Ragged gather and ragged gather-reduce on the SparseCores of a TPU, in Pallas.

Both move whole rows by indirect DMA, `lanes` rows at a time into two buffers, so that the rows of one group
travel while those of the group before are used. The work is split over all vector subcores of all SparseCores
of the device. The arrays keep the tiled layout of the TensorCore, so that float32 needs no relayout; indirect
DMA moves 32-bit words only, so bfloat16 rows are handed over two to an int32, which costs one elementwise pass
over them before and after.

What each kernel computes is written in `workloads.kernels.plain`, which is the same in plain operations.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.sharding import AbstractDevice, AbstractMesh

from workloads.errors import WorkloadError
from workloads.targets import Target

Ref = Any  # Pallas gives references no public type

# A one-dimensional int32 array is tiled by 128 in HBM: index arrays are read in aligned pieces of that size.
INDEX_CHUNK = 128
WORD_COLUMNS = 128  # columns of one tile, the least that a row's DMA moves
MAX_BLOCK_TOKENS = 64
VMEM_SHARE = 0.75  # of a subcore's memory, for row buffers and accumulators; the rest is for indices


def ragged_gather(
    source: jax.Array, indices: jax.Array, num_valid: jax.Array, *, target: Target, interpret: bool = False
) -> jax.Array:
    """Rows [buffer_rows, width] with `rows[r] = source[indices[r]]` for r < num_valid and zero beyond.

    source: [n, width], bfloat16 or float32, width a multiple of 128. indices: int32[buffer_rows]; beyond
    num_valid of any value, never followed. num_valid: int32 scalar. `interpret` runs the same kernel body in
    Pallas' interpreter on the backend at hand, one subcore after the other.

    Raises WorkloadError for a target without SparseCores, and for a dtype or width the kernel does not take.
    """
    _check(source, target, "source")
    buffer_rows = indices.shape[0]
    words = _to_words(source)
    columns = _fitting_columns(words.shape[1], 2 * target.lanes * 4, target)
    padded_rows = pl.cdiv(buffer_rows, target.lanes) * target.lanes
    body = _gather_body(target.lanes, words.shape[1], columns, padded_rows)
    rows = _launch(
        body,
        "ragged_gather",
        (words, _pad_to_chunk(indices), jnp.full((INDEX_CHUNK,), num_valid, jnp.int32)),
        (padded_rows, words.shape[1]),
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
        _reduce_body(plan),
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


@dataclass(frozen=True)
class _ReducePlan:
    """How a gather-reduce is cut: blocks of tokens, each walked in column shares of its rows."""

    lanes: int
    top_k: int
    row_words: int
    columns: int  # words of a row that one pass over a block moves
    block_tokens: int
    blocks: int
    paired: bool  # a word is two bfloat16
    weighted: bool


def _plan_reduce(tokens: int, top_k: int, words: jax.Array, weighted: bool, target: Target) -> _ReducePlan:
    paired = words.dtype == jnp.int32
    # Enough blocks that every subcore has one, in whole tiles of 8 rows.
    block_tokens = min(MAX_BLOCK_TOKENS, pl.cdiv(pl.cdiv(tokens, target.workers), 8) * 8)
    bytes_per_column = 4 * (2 * target.lanes + block_tokens * (3 if paired else 1))
    return _ReducePlan(
        lanes=target.lanes,
        top_k=top_k,
        row_words=words.shape[1],
        columns=_fitting_columns(words.shape[1], bytes_per_column, target),
        block_tokens=block_tokens,
        blocks=pl.cdiv(tokens, block_tokens),
        paired=paired,
        weighted=weighted,
    )


def _slot_ranges(valid: jax.Array, plan: _ReducePlan) -> tuple[jax.Array, jax.Array]:
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

        return pl.pallas_call(
            interpreted,
            out_shape=out_type,
            grid=(target.workers,),
            in_specs=[whole] * len(inputs),
            out_specs=whole,
            scratch_shapes=list(scratch.values()),
            interpret=True,
            name=name,
        )(*inputs)

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
        return pl.kernel(
            compiled,
            out_type=out_type,
            mesh=mesh,
            scratch_types=scratch,
            compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
            name=name,
        )(*inputs)


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


def _even_share(worker: jax.Array, num_workers: int, first: Any, last: Any) -> tuple[jax.Array, jax.Array]:
    """The contiguous part of [first, last) that `worker` takes, equal to within one."""
    each, rest = lax.div(last - first, num_workers), lax.rem(last - first, num_workers)
    low = first + worker * each + jnp.minimum(worker, rest)
    return low, low + each + jnp.where(worker < rest, 1, 0)


def _pick(vector: jax.Array, lane: jax.Array, lanes: int) -> jax.Array:
    """The element of a register at a lane known only at run time."""
    return jnp.sum(jnp.where(lax.iota(jnp.int32, lanes) == lane, vector, 0))


def _rows_at(source: Ref, indices: jax.Array, column: jax.Array, columns: int) -> Ref:
    return source.at[indices, pl.ds(column, columns)]


def _gather_body(lanes: int, row_words: int, columns: int, padded_rows: int) -> Callable[..., None]:
    groups_per_chunk = INDEX_CHUNK // lanes

    def body(
        worker: jax.Array,
        num_workers: int,
        source: Ref,
        indices: Ref,
        num_valid: Ref,
        out: Ref,
        *,
        count: Ref,
        index: Ref,
        buffers: Ref,
        arrived: Ref,
        written: Ref,
    ) -> None:
        pltpu.sync_copy(num_valid, count)
        valid_rows = jnp.clip(count[pl.ds(0, lanes)][0], 0, padded_rows)
        valid_groups = lax.div(valid_rows + (lanes - 1), lanes)
        low, high = _even_share(worker, num_workers, jnp.int32(0), valid_groups)

        def out_rows(group: jax.Array, column: jax.Array) -> Ref:
            first = pl.multiple_of(group * lanes, lanes)
            return out.at[pl.ds(first, lanes), pl.ds(column, columns)]

        def arrival(rows: jax.Array, column: jax.Array, slot: jax.Array) -> Any:
            return pltpu.make_async_copy(_rows_at(source, rows, column, columns), buffers.at[slot], arrived.at[slot])

        def write(group: jax.Array, column: jax.Array, slot: jax.Array) -> Any:
            return pltpu.make_async_copy(buffers.at[slot], out_rows(group, column), written.at[slot])

        def fetch(group: jax.Array, column: jax.Array) -> None:
            chunk = lax.div(group, groups_per_chunk)
            base = lax.rem(chunk, 2) * INDEX_CHUNK

            @pl.when((group == low) | (lax.rem(group, groups_per_chunk) == 0))
            def _() -> None:
                first = pl.multiple_of(chunk * INDEX_CHUNK, INDEX_CHUNK)
                pltpu.sync_copy(
                    indices.at[pl.ds(first, INDEX_CHUNK)],
                    index.at[pl.ds(pl.multiple_of(base, INDEX_CHUNK), INDEX_CHUNK)],
                )

            offset = pl.multiple_of(base + lax.rem(group, groups_per_chunk) * lanes, lanes)
            row = group * lanes + lax.iota(jnp.int32, lanes)
            # An index beyond the valid rows may point anywhere: row 0 is read in its place.
            rows = jnp.where(row < valid_rows, index[pl.ds(offset, lanes)], 0)
            arrival(rows, column, lax.rem(group - low, 2)).start()

        def clear_from(first: jax.Array, slot: jax.Array) -> None:
            @pl.loop(first, lanes)
            def _(row: jax.Array) -> None:
                @pl.loop(0, columns, step=lanes)
                def _(at: jax.Array) -> None:
                    at = pl.multiple_of(at, lanes)
                    buffers[slot, row, pl.ds(at, lanes)] = jnp.zeros((lanes,), buffers.dtype)

        @pl.loop(0, row_words, step=columns)
        def _(column: jax.Array) -> None:
            column = pl.multiple_of(column, columns)

            @pl.when(low < high)
            def _() -> None:
                fetch(low, column)

            @pl.loop(low, high)
            def _(group: jax.Array) -> None:
                slot = lax.rem(group - low, 2)

                @pl.when(group + 1 < high)
                def _() -> None:
                    @pl.when(group > low)
                    def _() -> None:
                        write(group - 1, column, 1 - slot).wait()

                    fetch(group + 1, column)

                arrival(jnp.zeros((lanes,), jnp.int32), column, slot).wait()

                @pl.when((group + 1) * lanes > valid_rows)
                def _() -> None:
                    clear_from(valid_rows - group * lanes, slot)

                write(group, column, slot).start()

            # Both writes that no later fetch has waited for.
            @pl.when(high - low > 1)
            def _() -> None:
                write(high - 2, column, lax.rem(high - 2 - low, 2)).wait()

            @pl.when(high > low)
            def _() -> None:
                write(high - 1, column, lax.rem(high - 1 - low, 2)).wait()

        clear_from(jnp.int32(0), jnp.int32(0))
        low_empty, high_empty = _even_share(worker, num_workers, valid_groups, jnp.int32(padded_rows // lanes))

        @pl.loop(0, row_words, step=columns)
        def _(column: jax.Array) -> None:
            column = pl.multiple_of(column, columns)

            @pl.loop(low_empty, high_empty)
            def _(group: jax.Array) -> None:
                pltpu.sync_copy(buffers.at[0], out_rows(group, column))

    return body


def _halves(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The bfloat16 in the low and in the high half of each int32, as float32."""
    low = lax.bitcast_convert_type(lax.shift_left(words, jnp.int32(16)), jnp.float32)
    high = lax.bitcast_convert_type(words & jnp.int32(-65536), jnp.float32)
    return low, high


def _rounded(values: jax.Array) -> jax.Array:
    """The bits of float32 rounded to bfloat16, to nearest even, in the low half of int32."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    high = lax.shift_right_logical(bits, jnp.int32(16))
    nearest = lax.shift_right_logical(bits + 0x7FFF + (high & 1), jnp.int32(16))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000  # rounding could carry a NaN into infinity or zero
    return jnp.where(is_nan, high | 0x40, nearest)


def _reduce_body(plan: _ReducePlan) -> Callable[..., None]:
    lanes, columns, block_tokens = plan.lanes, plan.columns, plan.block_tokens
    groups_per_chunk = INDEX_CHUNK // lanes

    def body(
        worker: jax.Array,
        num_workers: int,
        rows: Ref,
        order: Ref,
        all_positions: Ref,
        starts: Ref,
        ends: Ref,
        *weights_and_out: Ref,
        bounds: Ref,
        slots: Ref,
        positions: Ref,
        buffers: Ref,
        sums: Ref,
        arrived: Ref,
        looked_up: Ref,
        weights: Ref = None,
        high_sums: Ref = None,
        packed: Ref = None,
    ) -> None:
        out = weights_and_out[-1]

        def bound(array: Ref, block: jax.Array, half: int) -> jax.Array:
            first = pl.multiple_of(lax.div(block, INDEX_CHUNK) * INDEX_CHUNK, INDEX_CHUNK)
            pltpu.sync_copy(array.at[pl.ds(first, INDEX_CHUNK)], bounds.at[pl.ds(half * INDEX_CHUNK, INDEX_CHUNK)])
            group = pl.multiple_of(lax.div(lax.rem(block, INDEX_CHUNK), lanes) * lanes, lanes)
            return _pick(bounds[pl.ds(half * INDEX_CHUNK + group, lanes)], lax.rem(block, lanes), lanes)

        def look_up(chunk: jax.Array, base: jax.Array) -> None:
            """Fetch a chunk of valid slots, then each one's position and weight, all in flight at once."""
            first = pl.multiple_of(chunk * INDEX_CHUNK, INDEX_CHUNK)
            base = pl.multiple_of(base, INDEX_CHUNK)
            pltpu.sync_copy(order.at[pl.ds(first, INDEX_CHUNK)], slots.at[pl.ds(base, INDEX_CHUNK)])
            copies = []
            for offset in range(0, INDEX_CHUNK, lanes):
                here = pl.ds(pl.multiple_of(base + offset, lanes), lanes)
                slot = slots[here]
                copies.append(pltpu.make_async_copy(all_positions.at[slot], positions.at[here], looked_up))
                if plan.weighted:
                    copies.append(pltpu.make_async_copy(weights_and_out[0].at[slot], weights.at[here], looked_up))
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()

        def offset_of(group: jax.Array) -> jax.Array:
            half = lax.rem(lax.div(group, groups_per_chunk), 2) * INDEX_CHUNK
            return pl.multiple_of(half + lax.rem(group, groups_per_chunk) * lanes, lanes)

        def clear(tile: Ref) -> None:
            @pl.loop(0, block_tokens)
            def _(token: jax.Array) -> None:
                @pl.loop(0, columns, step=lanes)
                def _(at: jax.Array) -> None:
                    tile[token, pl.ds(pl.multiple_of(at, lanes), lanes)] = jnp.zeros((lanes,), tile.dtype)

        def add(token: jax.Array, slot: jax.Array, lane: int, weight: jax.Array | None) -> None:
            @pl.loop(0, columns, step=lanes)
            def _(at: jax.Array) -> None:
                here = pl.ds(pl.multiple_of(at, lanes), lanes)
                words = buffers[slot, lane, here]
                parts = _halves(words) if plan.paired else (words,)
                for tile, part in zip((sums, high_sums), parts, strict=False):
                    tile[token, here] += part if weight is None else weight * part

        def pack() -> None:
            @pl.loop(0, block_tokens)
            def _(token: jax.Array) -> None:
                @pl.loop(0, columns, step=lanes)
                def _(at: jax.Array) -> None:
                    here = pl.ds(pl.multiple_of(at, lanes), lanes)
                    low, high = _rounded(sums[token, here]), _rounded(high_sums[token, here])
                    packed[token, here] = low | lax.shift_left(high, jnp.int32(16))

        def reduce_block(block: jax.Array, column: jax.Array) -> None:
            start, end = bound(starts, block, 0), bound(ends, block, 1)
            low = lax.div(start, lanes)
            high = jnp.where(end > start, lax.div(end + (lanes - 1), lanes), low)
            first_token = block * block_tokens

            def arrival(indices: jax.Array, slot: jax.Array) -> Any:
                return pltpu.make_async_copy(
                    _rows_at(rows, indices, column, columns), buffers.at[slot], arrived.at[slot]
                )

            def fetch(group: jax.Array) -> None:
                @pl.when((group == low) | (lax.rem(group, groups_per_chunk) == 0))
                def _() -> None:
                    chunk = lax.div(group, groups_per_chunk)
                    look_up(chunk, lax.rem(chunk, 2) * INDEX_CHUNK)

                place = group * lanes + lax.iota(jnp.int32, lanes)
                # The position of a slot that is not valid may point anywhere: row 0 is read in its place.
                here = (place >= start) & (place < end)
                indices = jnp.where(here, positions[pl.ds(offset_of(group), lanes)], 0)
                arrival(indices, lax.rem(group - low, 2)).start()

            def use(group: jax.Array, slot: jax.Array) -> None:
                here = pl.ds(offset_of(group), lanes)
                tokens = lax.div(slots[here], jnp.full((lanes,), plan.top_k, jnp.int32)) - first_token
                lane_weights = weights[here] if plan.weighted else None
                for lane in range(lanes):
                    place = group * lanes + lane

                    @pl.when((place >= start) & (place < end))
                    def _(lane: int = lane) -> None:
                        weight = None if lane_weights is None else lane_weights[lane]
                        add(tokens[lane], slot, lane, weight)

            clear(sums)
            if plan.paired:
                clear(high_sums)

            @pl.when(low < high)
            def _() -> None:
                fetch(low)

            @pl.loop(low, high)
            def _(group: jax.Array) -> None:
                slot = lax.rem(group - low, 2)

                @pl.when(group + 1 < high)
                def _() -> None:
                    fetch(group + 1)

                arrival(jnp.zeros((lanes,), jnp.int32), slot).wait()
                use(group, slot)

            if plan.paired:
                pack()
            pltpu.sync_copy(
                packed if plan.paired else sums,
                out.at[pl.ds(pl.multiple_of(first_token, 8), block_tokens), pl.ds(column, columns)],
            )

        low_block, high_block = _even_share(worker, num_workers, jnp.int32(0), jnp.int32(plan.blocks))

        @pl.loop(low_block, high_block)
        def _(block: jax.Array) -> None:
            @pl.loop(0, plan.row_words, step=columns)
            def _(column: jax.Array) -> None:
                reduce_block(block, pl.multiple_of(column, columns))

    return body

"""What one vector subcore of a SparseCore does in the ragged gather and in the ragged gather-reduce.

Rows travel by indirect DMA, a group of `lanes` rows at a time, into two buffers: the rows of one group are on
their way while those of the group before are used. References are Pallas references: arrays in HBM first, then
the subcore's own memory and semaphores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Ref = Any  # Pallas gives references no public type

# A one-dimensional int32 array is tiled by 128 in HBM: index arrays are read in aligned chunks of that size, into
# one of two halves of a buffer, so that a group's indices stay while the next chunk is read.
INDEX_CHUNK = 128


@dataclass(frozen=True)
class GatherPlan:
    """How a gather is cut: groups of `lanes` rows, each moved in column shares."""

    lanes: int
    row_words: int
    columns: int  # words of a row that one pass moves
    groups: int


@dataclass(frozen=True)
class ReducePlan:
    """How a gather-reduce is cut: blocks of tokens, each walked in column shares of its rows."""

    lanes: int
    row_words: int
    columns: int  # words of a row that one pass over a block moves
    top_k: int
    block_tokens: int
    blocks: int
    paired: bool  # a word is two bfloat16
    weighted: bool


def gather_rows(
    plan: GatherPlan,
    worker: jax.Array,
    num_workers: int,
    source: Ref,
    indices: Ref,
    num_valid: Ref,
    out: Ref,
    *,
    count: Ref,
    **scratch: Ref,
) -> None:
    """Copy this subcore's share of the valid rows, then write zeros to its share of the others."""
    pltpu.sync_copy(num_valid, count)
    valid_rows = jnp.clip(count[pl.ds(0, plan.lanes)][0], 0, plan.groups * plan.lanes)
    valid_groups = lax.div(valid_rows + (plan.lanes - 1), plan.lanes)
    low, high = _even_share(worker, num_workers, jnp.int32(0), valid_groups)
    share = _GatherShare(plan, source, indices, out, valid_rows, low, high, **scratch)
    _for_columns(plan, share.copy_valid)
    share.clear_from(jnp.int32(0), jnp.int32(0))
    empty = _even_share(worker, num_workers, valid_groups, jnp.int32(plan.groups))
    _for_columns(plan, lambda column: share.write_zeros(column, *empty))


@dataclass(frozen=True)
class _GatherShare:
    """The groups [low, high) of one subcore, which hold valid rows."""

    plan: GatherPlan
    source: Ref
    indices: Ref
    out: Ref
    valid_rows: jax.Array
    low: jax.Array
    high: jax.Array
    index: Ref
    buffers: Ref
    arrived: Ref
    written: Ref

    def copy_valid(self, column: jax.Array) -> None:
        low, high = self.low, self.high

        @pl.when(low < high)
        def _() -> None:
            self.fetch(low, column)

        pl.loop(low, high)(lambda group: self._copy(group, column))

        # The writes of the last two groups, which no fetch has waited for.
        @pl.when(high - low > 1)
        def _() -> None:
            self.write(high - 2, column).wait()

        @pl.when(high > low)
        def _() -> None:
            self.write(high - 1, column).wait()

    def _copy(self, group: jax.Array, column: jax.Array) -> None:
        lanes = self.plan.lanes

        @pl.when((group + 1 < self.high) & (group > self.low))
        def _() -> None:
            self.write(group - 1, column).wait()  # it empties the buffer that the next group arrives in

        @pl.when(group + 1 < self.high)
        def _() -> None:
            self.fetch(group + 1, column)

        self.arrival(group, jnp.zeros((lanes,), jnp.int32), column).wait()

        @pl.when((group + 1) * lanes > self.valid_rows)
        def _() -> None:
            self.clear_from(self.valid_rows - group * lanes, self.buffer_of(group))

        self.write(group, column).start()

    def fetch(self, group: jax.Array, column: jax.Array) -> None:
        """Start to read a group's rows; at the start of a chunk of indices, read those first."""

        @pl.when(_opens_chunk(group, self.low, self.plan.lanes))
        def _() -> None:
            _read_chunk(self.indices, self.index, lax.div(group * self.plan.lanes, INDEX_CHUNK))

        row = group * self.plan.lanes + lax.iota(jnp.int32, self.plan.lanes)
        # An index beyond the valid rows may point anywhere: row 0 is read in its place.
        rows = jnp.where(row < self.valid_rows, self.index[_indices_of(group, self.plan.lanes)], 0)
        self.arrival(group, rows, column).start()

    def buffer_of(self, group: jax.Array) -> jax.Array:
        return lax.rem(group - self.low, 2)

    def arrival(self, group: jax.Array, rows: jax.Array, column: jax.Array) -> Any:
        buffer = self.buffer_of(group)
        here = self.source.at[rows, pl.ds(column, self.plan.columns)]
        return pltpu.make_async_copy(here, self.buffers.at[buffer], self.arrived.at[buffer])

    def write(self, group: jax.Array, column: jax.Array) -> Any:
        buffer = self.buffer_of(group)
        there = self.out_rows(group, column)
        return pltpu.make_async_copy(self.buffers.at[buffer], there, self.written.at[buffer])

    def out_rows(self, group: jax.Array, column: jax.Array) -> Ref:
        first = pl.multiple_of(group * self.plan.lanes, self.plan.lanes)
        return self.out.at[pl.ds(first, self.plan.lanes), pl.ds(column, self.plan.columns)]

    def clear_from(self, first: jax.Array, buffer: jax.Array) -> None:
        """Zero the rows of a buffer from `first` on."""
        zeros = jnp.zeros((self.plan.lanes,), self.buffers.dtype)

        def clear(row: jax.Array, here: Any) -> None:
            self.buffers[buffer, row, here] = zeros

        _for_vectors(self.plan, first, self.plan.lanes, clear)

    def write_zeros(self, column: jax.Array, low: jax.Array, high: jax.Array) -> None:
        """Write the first buffer, which must hold zeros, to the groups [low, high)."""
        pl.loop(low, high)(lambda group: pltpu.sync_copy(self.buffers.at[0], self.out_rows(group, column)))


def reduce_rows(
    plan: ReducePlan,
    worker: jax.Array,
    num_workers: int,
    rows: Ref,
    order: Ref,
    all_positions: Ref,
    starts: Ref,
    ends: Ref,
    *rest: Ref,
    bounds: Ref,
    **scratch: Ref,
) -> None:
    """Sum the valid rows of this subcore's share of the blocks of tokens. `rest` is weights, if any, and out."""
    low, high = _even_share(worker, num_workers, jnp.int32(0), jnp.int32(plan.blocks))
    all_weights = rest[0] if plan.weighted else None

    def reduce_block(block: jax.Array) -> None:
        start = _bound(starts, bounds, block, plan.lanes)
        end = _bound(ends, bounds, block, plan.lanes)
        share = _Block(plan, rows, order, all_positions, all_weights, rest[-1], block, start, end, **scratch)
        _for_columns(plan, share.reduce)

    pl.loop(low, high)(reduce_block)


@dataclass(frozen=True)
class _Block:
    """One block of tokens, whose valid slots are the places [start, end) of `order`."""

    plan: ReducePlan
    rows: Ref
    order: Ref
    all_positions: Ref
    all_weights: Ref
    out: Ref
    block: jax.Array
    start: jax.Array
    end: jax.Array
    slots: Ref
    positions: Ref
    buffers: Ref
    sums: Ref
    arrived: Ref
    looked_up: Ref
    weights: Ref = None
    high_sums: Ref = None
    packed: Ref = None

    @property
    def low(self) -> jax.Array:
        """The first group of places that holds one of this block."""
        return lax.div(self.start, self.plan.lanes)

    @property
    def high(self) -> jax.Array:
        """One past the last such group."""
        after = lax.div(self.end + (self.plan.lanes - 1), self.plan.lanes)
        return jnp.where(self.end > self.start, after, self.low)

    def reduce(self, column: jax.Array) -> None:
        plan, low, high = self.plan, self.low, self.high
        _for_vectors(plan, 0, plan.block_tokens, self._clear)

        @pl.when(low < high)
        def _() -> None:
            self.fetch(low, column)

        @pl.loop(low, high)
        def _(group: jax.Array) -> None:
            @pl.when(group + 1 < high)
            def _() -> None:
                self.fetch(group + 1, column)

            self.arrival(group, jnp.zeros((plan.lanes,), jnp.int32), column).wait()
            self.add_group(group)

        if plan.paired:
            _for_vectors(plan, 0, plan.block_tokens, self._pack)
        first = pl.multiple_of(self.block * plan.block_tokens, 8)
        there = self.out.at[pl.ds(first, plan.block_tokens), pl.ds(column, plan.columns)]
        pltpu.sync_copy(self.packed if plan.paired else self.sums, there)

    def fetch(self, group: jax.Array, column: jax.Array) -> None:
        """Start to read a group's rows; at the start of a chunk of places, look those up first."""

        @pl.when(_opens_chunk(group, self.low, self.plan.lanes))
        def _() -> None:
            self.look_up(lax.div(group * self.plan.lanes, INDEX_CHUNK))

        place = group * self.plan.lanes + lax.iota(jnp.int32, self.plan.lanes)
        mine = (place >= self.start) & (place < self.end)
        # The position of a slot that is not valid may point anywhere: row 0 is read in its place.
        rows = jnp.where(mine, self.positions[_indices_of(group, self.plan.lanes)], 0)
        self.arrival(group, rows, column).start()

    def look_up(self, chunk: jax.Array) -> None:
        """Read a chunk of slots, then the position and weight of each, all in flight at once."""
        base = _read_chunk(self.order, self.slots, chunk)

        def look_ups(offset: jax.Array) -> list[Any]:
            here = pl.ds(pl.multiple_of(base + offset, self.plan.lanes), self.plan.lanes)
            slot = self.slots[here]
            pairs = [(self.all_positions, self.positions)]
            if self.plan.weighted:
                pairs.append((self.all_weights, self.weights))
            return [pltpu.make_async_copy(far.at[slot], near.at[here], self.looked_up) for far, near in pairs]

        @pl.loop(0, INDEX_CHUNK, step=self.plan.lanes)
        def _(offset: jax.Array) -> None:
            for copy in look_ups(offset):
                copy.start()

        @pl.loop(0, INDEX_CHUNK, step=self.plan.lanes)
        def _(offset: jax.Array) -> None:
            for copy in look_ups(offset):
                copy.wait()

    def arrival(self, group: jax.Array, rows: jax.Array, column: jax.Array) -> Any:
        buffer = self.buffer_of(group)
        here = self.rows.at[rows, pl.ds(column, self.plan.columns)]
        return pltpu.make_async_copy(here, self.buffers.at[buffer], self.arrived.at[buffer])

    def buffer_of(self, group: jax.Array) -> jax.Array:
        return lax.rem(group - self.low, 2)

    def add_group(self, group: jax.Array) -> None:
        """Add the rows of a group that has arrived to the sums of their tokens."""
        plan = self.plan
        here = _indices_of(group, plan.lanes)
        tokens = lax.div(self.slots[here], jnp.full((plan.lanes,), plan.top_k, jnp.int32))
        tokens = tokens - self.block * plan.block_tokens
        weights = self.weights[here] if plan.weighted else None
        for lane in range(plan.lanes):  # a register's elements are taken out at lanes known when compiling
            place = group * plan.lanes + lane

            @pl.when((place >= self.start) & (place < self.end))
            def _(lane: int = lane) -> None:
                self._add_row(group, lane, tokens[lane], None if weights is None else weights[lane])

    def _add_row(self, group: jax.Array, lane: int, token: jax.Array, weight: jax.Array | None) -> None:
        def add(row: jax.Array, here: Any) -> None:
            words = self.buffers[self.buffer_of(group), row, here]
            parts = _halves(words) if self.plan.paired else (words,)
            for tile, part in zip((self.sums, self.high_sums), parts, strict=False):
                tile[token, here] += part if weight is None else weight * part

        _for_vectors(self.plan, lane, lane + 1, add)

    def _clear(self, token: jax.Array, here: Any) -> None:
        self.sums[token, here] = jnp.zeros((self.plan.lanes,), jnp.float32)
        if self.plan.paired:
            self.high_sums[token, here] = jnp.zeros((self.plan.lanes,), jnp.float32)

    def _pack(self, token: jax.Array, here: Any) -> None:
        low, high = _rounded(self.sums[token, here]), _rounded(self.high_sums[token, here])
        self.packed[token, here] = low | lax.shift_left(high, jnp.int32(16))


def _even_share(worker: jax.Array, num_workers: int, first: Any, last: Any) -> tuple[jax.Array, jax.Array]:
    """The contiguous part of [first, last) that `worker` takes, equal to within one."""
    each, rest = lax.div(last - first, num_workers), lax.rem(last - first, num_workers)
    low = first + worker * each + jnp.minimum(worker, rest)
    return low, low + each + jnp.where(worker < rest, 1, 0)


def _for_columns(plan: GatherPlan | ReducePlan, body: Callable[[jax.Array], None]) -> None:
    """Call `body(column)` for the first column of every share of a row."""
    pl.loop(0, plan.row_words, step=plan.columns)(lambda column: body(pl.multiple_of(column, plan.columns)))


def _for_vectors(plan: GatherPlan | ReducePlan, low: Any, high: Any, body: Callable[[jax.Array, Any], None]) -> None:
    """Call `body(row, slice)` for every register-wide slice of the rows [low, high) of a share."""

    @pl.loop(low, high)
    def _(row: jax.Array) -> None:
        @pl.loop(0, plan.columns, step=plan.lanes)
        def _(at: jax.Array) -> None:
            body(row, pl.ds(pl.multiple_of(at, plan.lanes), plan.lanes))


def _opens_chunk(group: jax.Array, low: jax.Array, lanes: int) -> jax.Array:
    """Whether `group` is the first of a share that starts at `low`, or of a chunk of indices."""
    opens: jax.Array = (group == low) | (lax.rem(group, INDEX_CHUNK // lanes) == 0)
    return opens


def _half_of(chunk: jax.Array) -> jax.Array:
    """Where a chunk lies in a buffer for two."""
    half: jax.Array = pl.multiple_of(lax.rem(chunk, 2) * INDEX_CHUNK, INDEX_CHUNK)
    return half


def _read_chunk(array: Ref, buffer: Ref, chunk: jax.Array) -> jax.Array:
    """Copy a chunk of a one-dimensional array into its half of `buffer`; returns where that half begins."""
    first = pl.multiple_of(chunk * INDEX_CHUNK, INDEX_CHUNK)
    half = _half_of(chunk)
    pltpu.sync_copy(array.at[pl.ds(first, INDEX_CHUNK)], buffer.at[pl.ds(half, INDEX_CHUNK)])
    return half


def _indices_of(group: jax.Array, lanes: int) -> Any:
    """The slice of a buffer for two chunks that holds a group's indices."""
    per_chunk = INDEX_CHUNK // lanes
    half = _half_of(lax.div(group, per_chunk))
    return pl.ds(pl.multiple_of(half + lax.rem(group, per_chunk) * lanes, lanes), lanes)


def _bound(array: Ref, buffer: Ref, block: jax.Array, lanes: int) -> jax.Array:
    """Element `block` of an array: scalars come out of registers, at a lane found by a mask and a sum."""
    _read_chunk(array, buffer, lax.div(block, INDEX_CHUNK))
    vector = buffer[_indices_of(lax.div(block, lanes), lanes)]
    return jnp.sum(jnp.where(lax.iota(jnp.int32, lanes) == lax.rem(block, lanes), vector, 0))


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

"""The SparseCore kernels: what they compute, in Pallas' interpreter, and what a TPU compiler makes of them."""

import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workloads.errors import WorkloadError
from workloads.kernels import choose, sparsecore, subcore
from workloads.targets import TARGETS, target_named, target_of

# Two cores of two subcores, so that work is split unevenly; registers of 4 lanes, because the interpreter takes
# long to compile many; in NARROW so little memory that rows go in several passes.
TARGET = replace(TARGETS["tpu7x"], sparse_cores=2, subcores=2, lanes=4)
FULL_REGISTERS = replace(TARGET, lanes=16)
NARROW = replace(TARGET, subcore_vmem_bytes=16 * 1024)
NOWHERE = np.int32(2**30)  # a row far beyond every array: following it would fail or read another's memory
SOURCE_ROWS = 20
BUFFER_ROWS = 300  # no multiple of the 16 rows of a group; over twice the 128 indices of a chunk
TOKENS = 45  # no multiple of any block of tokens


@functools.cache
def compiled_gather(target):
    return jax.jit(functools.partial(sparsecore.ragged_gather, target=target, interpret=True))


@functools.cache
def compiled_reduce(target):
    kernel = functools.partial(sparsecore.ragged_gather_reduce, target=target, interpret=True)
    return jax.jit(kernel, static_argnums=5)


def as_float64(array):
    return np.asarray(array.astype(jnp.float32)).astype(np.float64)


def small_integers(rng, shape, dtype):
    """Whole numbers and their sums are exact in every dtype and order, so equality is to the bit."""
    return jnp.asarray(rng.integers(-8, 9, shape), dtype)


def expected_reduce(rows, positions, weights, valid, top_k):
    rows = as_float64(rows)
    out = np.zeros((valid.size // top_k, rows.shape[1]))
    for slot in np.flatnonzero(valid):
        weight = 1.0 if weights is None else float(weights[slot])
        out[slot // top_k] += weight * rows[positions[slot]]
    return out


def reduce_problem(top_k, share_valid, rng):
    valid = rng.random(TOKENS * top_k) < share_valid
    positions = np.where(valid, rng.integers(0, SOURCE_ROWS, valid.size), NOWHERE).astype(np.int32)
    return valid, positions


def order_of(valid):
    """The validity permutation without a sort: places of the valid slots, then of the others."""
    return np.concatenate([np.flatnonzero(valid), np.flatnonzero(~valid)]).astype(np.int32)


@pytest.mark.parametrize(
    ("target", "dtype", "width"),
    [
        (FULL_REGISTERS, jnp.float32, 128),
        (TARGET, jnp.bfloat16, 128),
        (TARGET, jnp.bfloat16, 384),
        (NARROW, jnp.float32, 896),
    ],
)
def test_gather_returns_the_rows_asked_for_and_zeros_beyond(target, dtype, width):
    rng = np.random.default_rng(0)
    source = small_integers(rng, (SOURCE_ROWS, width), dtype)
    for num_valid in (0, 1, 37, 128, 299, 300):
        indices = rng.integers(0, SOURCE_ROWS, BUFFER_ROWS).astype(np.int32)
        indices[num_valid:] = rng.choice([NOWHERE, -NOWHERE], BUFFER_ROWS - num_valid)
        rows = compiled_gather(target)(source, jnp.asarray(indices), jnp.int32(num_valid))
        assert rows.dtype == dtype
        expected = np.zeros((BUFFER_ROWS, width))
        expected[:num_valid] = as_float64(source)[indices[:num_valid]]
        np.testing.assert_array_equal(as_float64(rows), expected)


@pytest.mark.parametrize("top_k", [1, 2, 8])
@pytest.mark.parametrize(("dtype", "width"), [(jnp.float32, 128), (jnp.bfloat16, 384)])
def test_gather_reduce_sums_the_valid_rows_of_every_token(top_k, dtype, width):
    rng = np.random.default_rng(top_k)
    rows = small_integers(rng, (SOURCE_ROWS, width), dtype)
    for share_valid in (0.0, 0.03, 0.4, 1.0):
        valid, positions = reduce_problem(top_k, share_valid, rng)
        weights = (2.0 ** rng.integers(-1, 2, valid.size)).astype(np.float32)
        out = compiled_reduce(TARGET)(rows, positions, weights, valid, order_of(valid), top_k)
        assert out.dtype == dtype
        expected = expected_reduce(rows, positions, weights, valid, top_k)
        np.testing.assert_array_equal(as_float64(out), as_float64(jnp.asarray(expected, dtype)))


def test_gather_reduce_in_registers_of_full_size():
    rng = np.random.default_rng(2)
    rows = small_integers(rng, (SOURCE_ROWS, 128), jnp.bfloat16)
    for share_valid in (0.03, 0.4):
        valid, positions = reduce_problem(8, share_valid, rng)
        out = compiled_reduce(FULL_REGISTERS)(rows, positions, None, valid, order_of(valid), 8)
        expected = expected_reduce(rows, positions, None, valid, 8)
        np.testing.assert_array_equal(as_float64(out), as_float64(jnp.asarray(expected, jnp.bfloat16)))


def test_gather_reduce_without_weights_in_several_passes_over_a_row():
    rng = np.random.default_rng(3)
    rows = small_integers(rng, (SOURCE_ROWS, 896), jnp.float32)
    valid, positions = reduce_problem(8, 0.4, rng)
    out = compiled_reduce(NARROW)(rows, positions, None, valid, order_of(valid), 8)
    np.testing.assert_array_equal(as_float64(out), expected_reduce(rows, positions, None, valid, 8))


def test_gather_reduce_finds_the_validity_permutation_itself():
    rng = np.random.default_rng(4)
    rows = small_integers(rng, (SOURCE_ROWS, 128), jnp.float32)
    valid, positions = reduce_problem(2, 0.4, rng)
    out = compiled_reduce(TARGET)(rows, positions, None, valid, None, 2)
    np.testing.assert_array_equal(as_float64(out), expected_reduce(rows, positions, None, valid, 2))


def test_bfloat16_is_summed_in_float32_and_rounded_once():
    # 256 + 1 is not a bfloat16: summing in bfloat16 would lose every 1, rounding once keeps 256 + 7 = 264.
    rows = jnp.zeros((SOURCE_ROWS, 384), jnp.bfloat16).at[0].set(256).at[1].set(1)
    rows = rows.at[2].set(jnp.nan).at[3].set(jnp.inf)
    positions = np.zeros(TOKENS * 8, np.int32)
    positions[:8] = [0, 1, 1, 1, 1, 1, 1, 1]
    positions[8:16], positions[16:24] = 2, 3
    valid = np.arange(TOKENS * 8) < 24
    ones = np.ones(valid.size, np.float32)
    out = as_float64(compiled_reduce(TARGET)(rows, positions, ones, valid, order_of(valid), 8))
    assert (out[0] == 264).all()
    assert np.isnan(out[1]).all()
    assert np.isposinf(out[2]).all()
    assert (out[3:] == 0).all()


def test_rows_that_are_not_finite_stay_out_of_the_tokens_that_do_not_use_them():
    # Row 0 is what an invalid slot reads instead: it must not reach any sum, not even times zero.
    rows = jnp.ones((SOURCE_ROWS, 128), jnp.float32).at[0].set(jnp.nan)
    valid = np.arange(TOKENS * 2) % 3 == 0
    positions = np.where(valid, 1, NOWHERE).astype(np.int32)
    ones = np.ones(valid.size, np.float32)
    out = compiled_reduce(TARGET)(rows, positions, ones, valid, order_of(valid), 2)
    np.testing.assert_array_equal(np.asarray(out)[:, 0], valid.reshape(TOKENS, 2).sum(axis=1))


@pytest.fixture
def rows_read(monkeypatch):
    """Collects the row numbers of every indirect DMA: the interpreter clamps what would stop a TPU."""
    seen = []

    def spy_on(share):
        arrival = share.arrival

        def spied(self, group, rows, column):
            jax.debug.callback(lambda read: seen.append(np.asarray(read)), rows)
            return arrival(self, group, rows, column)

        monkeypatch.setattr(share, "arrival", spied)

    spy_on(subcore._GatherShare)
    spy_on(subcore._Block)
    return seen


def test_gather_never_reads_at_an_index_beyond_the_valid_rows(rows_read):
    indices = np.full(23, NOWHERE, np.int32)
    indices[:10] = np.arange(10, 20)
    source = jnp.ones((SOURCE_ROWS, 128), jnp.float32)
    out = sparsecore.ragged_gather(source, indices, jnp.int32(10), target=TARGET, interpret=True)
    jax.block_until_ready(out)
    jax.effects_barrier()
    assert set(np.concatenate(rows_read)) == {0, *range(10, 20)}


def test_gather_reduce_never_reads_at_the_position_of_an_invalid_slot(rows_read):
    valid = np.arange(TOKENS * 2) % 3 == 0
    positions = np.where(valid, 7, NOWHERE).astype(np.int32)
    rows = jnp.ones((SOURCE_ROWS, 128), jnp.float32)
    out = sparsecore.ragged_gather_reduce(
        rows, positions, None, valid, order_of(valid), 2, target=TARGET, interpret=True
    )
    jax.block_until_ready(out)
    jax.effects_barrier()
    assert set(np.concatenate(rows_read)) == {0, 7}


@pytest.mark.parametrize("width", [0, 64, 200])
def test_a_width_that_is_no_multiple_of_128_is_refused(width):
    rows = jnp.zeros((4, width), jnp.float32)
    with pytest.raises(WorkloadError, match="multiple of 128"):
        sparsecore.ragged_gather(rows, jnp.zeros(8, jnp.int32), jnp.int32(1), target=TARGET)


def test_what_the_kernels_cannot_take_is_refused_in_words():
    rows, indices = jnp.zeros((4, 128), jnp.float32), jnp.zeros(8, jnp.int32)
    with pytest.raises(WorkloadError, match="v5e has no SparseCore"):
        sparsecore.ragged_gather(rows, indices, jnp.int32(1), target=TARGETS["v5e"])
    with pytest.raises(WorkloadError, match="bfloat16 or float32"):
        sparsecore.ragged_gather(rows.astype(jnp.int32), indices, jnp.int32(1), target=TARGET)
    with pytest.raises(WorkloadError, match="8 slots for top_k 3"):
        sparsecore.ragged_gather_reduce(rows, indices, None, indices == 0, None, 3, target=TARGET)
    with pytest.raises(WorkloadError, match="the device is 'cpu'"):
        choose("pallas", "cpu")


def test_targets_are_found_by_name_topology_and_device_kind():
    assert target_named("tpu7x:2x2x1") is target_of("TPU7x") is TARGETS["tpu7x"]
    with pytest.raises(WorkloadError, match="choose one of tpu7x"):
        target_named("v7x")
    with pytest.raises(WorkloadError, match="the device is 'cpu'"):
        target_of("cpu")


def test_the_chosen_kernels_are_built_for_the_device_named():
    rows, indices = jnp.zeros((4, 128), jnp.float32), jnp.zeros(8, jnp.int32)
    with pytest.raises(WorkloadError, match="v5e has no SparseCore"):
        choose("pallas", "TPU v5 lite").gather(rows, indices, jnp.int32(1))


# Compiling for a TPU that is not there happens in a child process: libtpu can bring its process down, and the
# topology's name must be in the environment before jax starts.
TPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("topology", "accelerator"), [("tpu7x:2x2x1", "tpu7x-8"), ("v6e:2x2", "v6e-4"), ("v5p:2x2x1", "v5p-8")]
)
def test_tpu_compiler_keeps_both_kernels_and_sorts_only_without_the_permutation(topology, accelerator):
    environment = {**os.environ, **TPU_ENVIRONMENT, "TPU_ACCELERATOR_TYPE": accelerator}
    root = Path(__file__).resolve().parents[2]
    worker = subprocess.run(
        [sys.executable, "-m", "tests.workloads.test_sparsecore", topology],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert worker.returncode == 0, worker.stderr[-2000:]
    counts = json.loads(worker.stdout.splitlines()[-1])
    kernels = {"ragged_gather": 1, "ragged_gather_reduce": 1}
    assert counts["cached bfloat16"] == {"kernels": kernels, "sorts": 0}
    assert counts["recomputed bfloat16"] == {"kernels": kernels, "sorts": 1}
    assert counts["cached float32 sharded"] == {"kernels": kernels, "sorts": 0}


def instruction_counts(hlo):
    """Sorts and kernels among the instructions of optimised HLO, by opcode and custom-call target."""
    calls = [line for line in hlo.splitlines() if re.search(r"= .* custom-call\(", line)]
    names = [
        re.search(r'op_name="[^"]*?(ragged_gather(_reduce)?)/', line).group(1)
        for line in calls
        if 'custom_call_target="tpu_custom_call"' in line
    ]
    sorts = [line for line in hlo.splitlines() if re.search(r"^\s*(ROOT )?%\S+ = .*? sort\(", line)]
    return {"kernels": {name: names.count(name) for name in sorted(names)}, "sorts": len(sorts)}


def compile_for(topology):
    """Compile gather then gather-reduce for one device of `topology`, and in a shard_map over all of them."""
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    target = target_named(topology)
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    tokens, top_k, width = 64, 6, 256

    def step(source, indices, num_valid, positions, weights, valid, order):
        rows = sparsecore.ragged_gather(source, indices, num_valid, target=target)
        return sparsecore.ragged_gather_reduce(rows, positions, weights, valid, order, top_k, target=target)

    def counts_of(function, dtype, mesh):
        def argument(shape, dtype):
            sharding = NamedSharding(mesh, P("ep") if shape else P())
            return jax.ShapeDtypeStruct((shape[0] * mesh.size, *shape[1:]) if shape else (), dtype, sharding=sharding)

        slots = (tokens * top_k,)
        arguments = [
            argument((tokens, width), dtype),
            argument((512,), jnp.int32),
            argument((), jnp.int32),
            argument(slots, jnp.int32),
            argument(slots, jnp.float32),
            argument(slots, jnp.bool_),
            argument(slots, jnp.int32),
        ]
        return instruction_counts(jax.jit(function).lower(*arguments).compile().as_text())

    one, every = Mesh(np.array(devices[:1]), ("ep",)), Mesh(np.array(devices), ("ep",))
    specs = (P("ep"), P("ep"), P(), P("ep"), P("ep"), P("ep"), P("ep"))
    sharded = jax.shard_map(step, mesh=every, in_specs=specs, out_specs=P("ep"), check_vma=False)
    return {
        "cached bfloat16": counts_of(step, jnp.bfloat16, one),
        "recomputed bfloat16": counts_of(lambda *args: step(*args[:-1], None), jnp.bfloat16, one),
        "cached float32 sharded": counts_of(sharded, jnp.float32, every),
    }


if __name__ == "__main__":
    print(json.dumps(compile_for(sys.argv[1])))

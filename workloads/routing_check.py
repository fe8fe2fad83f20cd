"""Is the routing of a variant exactly right? Permutations and group sizes against numpy, and how sizes accumulate.

These are integers, so that they are compared exactly. How group sizes are accumulated is read from the traced program,
because on a small problem a too narrow type still counts right.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from workloads import a2a, permute, ring
from workloads.config import Choices, Config
from workloads.kernels import Kernels, plain
from workloads.model import TOKENS, make_mesh
from workloads.reference import Buffers, buffers_of
from workloads.registry import check
from workloads.sizes import block_rows

ACCUMULATING = ("scatter-add", "scatter_add", "cumsum", "reduce_sum", "reduce_window_sum", "dot_general", "psum")
WIDE_ENOUGH = ("int32", "uint32", "int64", "uint64")


def check_routing(workload: str, variant: str, config: Config, devices: Sequence[jax.Device]) -> tuple[str, ...]:
    """What is wrong with a variant's routing, one sentence each; none where all is right.

    Routes random, skewed and one-sided assignments of experts on the configuration's mesh.
    """
    found, config = check(workload, variant, config, "forward")
    mesh = make_mesh(config, devices)
    route = _on_mesh(workload, found.choices, config, mesh)
    shape = jax.ShapeDtypeStruct((config.num_tokens, config.top_k), np.int32)
    problems = list(accumulation_problems(jax.make_jaxpr(route)(shape)))
    for name, experts in _assignments(config).items():
        got = jax.tree.map(np.asarray, jax.jit(route)(experts))
        problems += [f"{name} routing: {problem}" for problem in _differences(workload, config, experts, got)]
    return tuple(problems)


def accumulation_problems(jaxpr: Any) -> Iterator[str]:
    """A sentence per operation of a traced routing that accumulates in a type other than int32 or wider."""
    for equation in _equations(jaxpr):
        dtype = equation.outvars[0].aval.dtype.name if equation.outvars else ""
        if equation.primitive.name in ACCUMULATING and dtype not in WIDE_ENOUGH:
            yield (
                f"group sizes accumulate in {dtype} ({equation.primitive.name}), which cannot count to the number of "
                f"rows; accumulate in int32"
            )


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for parameter in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(parameter, "eqns") or hasattr(parameter, "jaxpr"):
                yield from _equations(parameter)


def _on_mesh(workload: str, choices: Choices, config: Config, mesh: Mesh) -> Any:
    """A function of experts int32[num_tokens, top_k] to a dict of arrays with a leading axis of devices."""

    def local(experts: jax.Array) -> dict[str, jax.Array]:
        arrays = _route_shard(workload, choices, config, experts)
        return {name: array[None] for name, array in arrays.items()}

    return jax.shard_map(local, mesh=mesh, in_specs=TOKENS, out_specs=PartitionSpec(("fsdp", "ep")), check_vma=False)


def _route_shard(workload: str, choices: Choices, config: Config, experts: jax.Array) -> dict[str, jax.Array]:
    if workload == "ring":
        plan = ring.plan_for(config, choices, Kernels(plain.ragged_gather, plain.ragged_gather_reduce))
        routing = ring.route_ring(lax.all_gather(experts, "ep", tiled=True).reshape(-1), plan)
        arrays = {
            "sort_indices": routing.sort_indices,
            "positions": routing.positions,
            "group_sizes": routing.group_sizes,
            "rows per local expert": ring.local_group_sizes(routing.group_sizes, plan),
        }
        if routing.sorted_by_validity is not None:
            arrays["sorted_by_validity"] = routing.sorted_by_validity
        return arrays
    names = ("sort_indices", "positions", "group_sizes")
    arrays = dict(zip(names, permute.route_local(experts.reshape(-1), config, choices), strict=True))
    if workload == "a2a":
        a2a_plan = a2a.plan_for(config, choices)
        sizes = a2a.kept_sizes(arrays["group_sizes"], a2a_plan)
        received = lax.all_to_all(sizes, "ep", 0, 0, tiled=True)
        arrays["rows per destination"] = sizes
        arrays["received sort_indices"] = a2a.route_received(received, a2a_plan, choices).forth
    return arrays


def _assignments(config: Config) -> dict[str, np.ndarray]:
    """Experts int32[num_tokens, top_k] of each token, distinct within a token."""
    generator = np.random.default_rng(config.seed)
    shape = (config.num_tokens, config.num_experts)
    uniform = generator.random(shape)
    slope = np.linspace(0, 2, config.num_experts)
    fixed = np.broadcast_to(np.arange(config.num_experts, dtype=float), shape)
    return {
        name: np.argsort(scores, axis=1)[:, : config.top_k].astype(np.int32)
        for name, scores in (("random", uniform), ("skewed", uniform + slope), ("one-sided", fixed))
    }


def _differences(workload: str, config: Config, experts: np.ndarray, got: dict[str, np.ndarray]) -> Iterator[str]:
    for device in range(config.num_devices):
        want = _expected(workload, config, experts, device)
        for name, values in got.items():
            if not np.array_equal(values[device], want[name]):
                where = int(np.argmax(values[device].reshape(-1) != want[name].reshape(-1)))
                yield (
                    f"{name} on device {device} differs first at {where}: "
                    f"{values[device].reshape(-1)[where]} instead of {want[name].reshape(-1)[where]}"
                )


def _expected(workload: str, config: Config, experts: np.ndarray, device: int) -> dict[str, np.ndarray]:
    ring_of, shard = divmod(device, config.ep)
    groups, group = (config.fsdp, ring_of) if workload == "ring" else (config.num_devices, device)
    flat = np.split(experts, groups)[group].reshape(-1)
    sort_indices = np.argsort(flat, kind="stable")
    want = {
        "sort_indices": sort_indices,
        "positions": np.argsort(sort_indices),
        "group_sizes": np.bincount(flat, minlength=config.num_experts),
    }
    buffers = buffers_of(workload, config)
    if workload == "ring":
        kept = _kept(flat, shard, config, buffers)
        local = flat[kept] - shard * config.experts_per_shard
        want["rows per local expert"] = np.bincount(local, minlength=config.experts_per_shard)
        want["sorted_by_validity"] = np.argsort(~kept, kind="stable")
    if workload == "a2a":
        sizes = [_block_sizes(flat, destination, config, buffers) for destination in range(config.ep)]
        want["rows per destination"] = np.array(sizes)
        peers = [np.split(experts, groups)[ring_of * config.ep + peer].reshape(-1) for peer in range(config.ep)]
        received = [_block_sizes(peer, shard, config, buffers) for peer in peers]
        want["received sort_indices"] = _received_order(received, block_rows(config))
    return want


def _kept(flat: np.ndarray, shard: int, config: Config, buffers: Buffers | None) -> np.ndarray:
    """bool[N]: the slot belongs to an expert of `shard` and fits its buffer."""
    order = [slot for slot in np.argsort(flat, kind="stable") if flat[slot] // config.experts_per_shard == shard]
    kept = np.zeros(flat.shape, bool)
    kept[order[: buffers.rows if buffers else len(order)]] = True
    return kept


def _block_sizes(flat: np.ndarray, shard: int, config: Config, buffers: Buffers | None) -> np.ndarray:
    local = flat[_kept(flat, shard, config, buffers)] - shard * config.experts_per_shard
    return np.bincount(local, minlength=config.experts_per_shard)


def _received_order(sizes: list[np.ndarray], rows: int) -> np.ndarray:
    """Rows of the received blocks by local expert, block by block, and then the padding."""
    per_block = [np.repeat(np.arange(len(block)), block) for block in sizes]
    padding = len(sizes[0])
    keys = [np.pad(block, (0, rows - len(block)), constant_values=padding) for block in per_block]
    return np.argsort(np.concatenate(keys), kind="stable")


def check_kernels(kernels: Kernels, width: int = 128) -> tuple[str, ...]:
    """What is wrong with a pair of kernels, judged on rows that must not be read: those are NaN.

    width: columns of the rows moved.
    """
    generator = np.random.default_rng(0)
    tokens, top_k, num_valid, rows = 8, 2, 11, 24
    source = generator.standard_normal((tokens, width), dtype=np.float32)
    source[-1] = np.nan
    indices = np.full(rows, tokens - 1, np.int32)
    indices[:num_valid] = generator.integers(tokens - 1, size=num_valid)
    gathered = np.asarray(kernels.gather(*map(jnp.asarray, (source, indices, np.int32(num_valid)))))
    problems = []
    if not np.array_equal(gathered[:num_valid], source[indices[:num_valid]]):
        problems.append("the gather returns other rows than those its indices name")
    if gathered[num_valid:].any():
        problems.append("the gather leaves padding unmasked: rows beyond the valid ones are not zero")

    valid = np.zeros(tokens * top_k, bool)
    valid[[0, 1, 5, 6, 12]] = True
    buffer = np.full((rows, width), np.nan, np.float32)
    buffer[:5] = generator.standard_normal((5, width), dtype=np.float32)
    positions = np.full(tokens * top_k, rows - 1, np.int32)
    positions[valid] = [3, 0, 4, 1, 2]
    weights = generator.random(tokens * top_k, dtype=np.float32)
    want = np.zeros((tokens, width), np.float32)
    for slot in np.flatnonzero(valid):
        want[slot // top_k] += weights[slot] * buffer[positions[slot]]
    order = np.argsort(~valid, kind="stable").astype(np.int32)
    arrays = [jnp.asarray(array) for array in (buffer, positions, weights, valid, order)]
    got = np.asarray(kernels.gather_reduce(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], top_k))
    if np.isnan(got).any():
        problems.append("the gather-reduce reads rows of slots that are not valid")
    elif not np.allclose(got, want, rtol=1e-6, atol=1e-6):
        problems.append("the gather-reduce does not sum each token's valid rows with their weights")
    return tuple(problems)

"""Arithmetic on a configuration: buffer rows, bytes, FLOPs. Importable without jax."""

import math
from dataclasses import dataclass

from workloads.config import Config


@dataclass(frozen=True)
class Sizes:
    """What a workload's step is made of; sizes in bytes, counts per step over the whole mesh unless said
    otherwise.

    dispatch_input_bytes, top_k_buffer_bytes: one layer on one device. buffer_rows: rows of one device's
    buffer of dispatched rows. flops: of the matmuls, for the (token, slot) pairs there are, padding left out,
    the forward pass that remat repeats included.
    """

    tokens_seen: int
    buffer_rows: int
    dispatch_input_shape: tuple[int, int]
    expert_weight_shapes: tuple[tuple[int, int, int], ...]
    dispatch_input_bytes: int
    top_k_buffer_bytes: int
    parameters: int
    parameter_bytes: int
    flops: int


def describe(workload: str, config: Config, mode: str) -> Sizes:
    """The sizes of one step of `workload` in `mode`."""
    experts, hidden, inner = config.num_experts, config.hidden_dim, config.expert_dim
    return Sizes(
        tokens_seen=tokens_seen(workload, config),
        buffer_rows=rows_held(workload, config),
        dispatch_input_shape=(tokens_seen(workload, config), hidden),
        expert_weight_shapes=((experts, hidden, inner), (experts, hidden, inner), (experts, inner, hidden)),
        dispatch_input_bytes=dispatch_input_bytes(workload, config),
        top_k_buffer_bytes=top_k_buffer_bytes(workload, config),
        parameters=parameter_count(config),
        parameter_bytes=parameter_bytes(config),
        flops=step_flops(config, mode),
    )


def step_flops(config: Config, mode: str) -> int:
    """Floating-point operations of the matmuls of one step over the whole mesh.

    Per layer and token: 2 × hidden × num_experts in the router and 2 × 3 × hidden × expert_dim in each of
    top_k experts. A backward pass is twice a forward pass (one product for each operand's gradient); remat
    adds a forward pass. `train` adds the tied head, 2 × hidden × vocab_size per token, forward and backward.
    """
    per_token = 2 * config.hidden_dim * (config.num_experts + 3 * config.top_k * config.expert_dim)
    forward = config.num_layers * config.num_tokens * per_token
    if mode == "forward":
        return forward
    stack = forward * (4 if config.remat else 3)
    head = 2 * config.num_tokens * config.hidden_dim * config.vocab_size
    return stack + (3 * head if mode == "train" else 0)


def tokens_seen(workload: str, config: Config) -> int:
    """Tokens that one device dispatches: those of its whole ring in `ring`, otherwise its own."""
    return config.tokens_per_ring if workload == "ring" else config.tokens_per_device


def rows_held(workload: str, config: Config) -> int:
    """Rows of one device's buffer of dispatched rows, padding included."""
    if workload == "ring":
        return buffer_rows(config)
    if workload == "a2a":
        return config.ep * block_rows(config)
    return config.tokens_per_device * config.top_k


def buffer_rows(config: Config) -> int:
    """Rows of a shard's local buffer in `ring`.

    A token's top_k experts are distinct, so at most min(top_k, experts per shard) of its slots land on one
    shard; that bound holds for every routing. A buffer factor asks for that multiple of the even share
    instead, and rows beyond are dropped.
    """
    return _bounded(config.tokens_per_ring, config)


def block_rows(config: Config) -> int:
    """Rows that one shard sends to one other shard in `a2a`, padding included; bounded as in `buffer_rows`."""
    return _bounded(config.tokens_per_device, config)


def _bounded(tokens: int, config: Config) -> int:
    worst = tokens * min(config.top_k, config.experts_per_shard)
    if config.buffer_factor is None:
        return worst
    return min(worst, max(1, math.ceil(config.buffer_factor * tokens * config.top_k / config.ep)))


def dispatch_input_bytes(workload: str, config: Config) -> int:
    """Bytes of the dispatch input of one layer on one device: tokens seen there × hidden × itemsize."""
    return tokens_seen(workload, config) * config.hidden_dim * config.itemsize


def top_k_buffer_bytes(workload: str, config: Config) -> int:
    """Bytes of the dispatch input with every token copied top_k times."""
    return config.top_k * dispatch_input_bytes(workload, config)


def parameter_count(config: Config) -> int:
    """Trained numbers of the stack: three matrices per expert and the router, per layer."""
    per_expert = 3 * config.hidden_dim * config.expert_dim
    return config.num_layers * config.num_experts * (per_expert + config.hidden_dim)


def parameter_bytes(config: Config) -> int:
    """Bytes of the trained arrays: expert weights in the configured dtype, routers in float32."""
    router = 4 * config.num_layers * config.num_experts * config.hidden_dim
    return router + config.itemsize * (parameter_count(config) - router // 4)


def estimate_bytes(workload: str, config: Config, mode: str, platform: str) -> int:
    """Roughly what one step needs over all devices, arguments and results included, erring upwards.

    The factors count the live copies of each kind of array and were set against XLA's own memory analysis on
    CPU (tests/workloads/test_sizes.py holds them to it). On CPU a grouped matmul is expanded to a dense one
    over all experts at hand, which holds every row once per expert in float32.
    """
    gradient = mode != "forward"
    seen, hidden = tokens_seen(workload, config), config.hidden_dim
    experts = config.num_experts if workload == "permute" else config.experts_per_shard
    rows = rows_held(workload, config)
    activations = (
        seen * hidden * config.itemsize * (8 if gradient else 4)
        + rows * hidden * config.itemsize * (8 if gradient else 3)
        + rows * config.expert_dim * 4 * (10 if gradient else 4)
        + config.num_layers * config.tokens_per_device * hidden * config.itemsize * 2
    )
    # Weights and their gradients; in training also the optimiser's two moments, old and new.
    copies = {"forward": 1, "train": 7}.get(mode, 3)
    weights = copies * parameter_bytes(config) // config.num_devices
    gathered = 3 * experts * hidden * config.expert_dim * config.itemsize * (4 if gradient else 2)
    head = 0
    if mode == "train":
        head = 4 * config.vocab_size * (7 * hidden + 4 * config.tokens_per_device)
    dense = 0
    if platform == "cpu":
        width = max(hidden // config.num_chunks, config.expert_dim)
        dense = rows * experts * width * 4 * (6 if gradient else 3)
    return config.num_devices * (activations + weights + gathered + head + dense)

"""Arithmetic on a configuration: bytes of the dispatch input, of the top_k buffer, and of a whole step."""

from workloads.config import Config


def tokens_seen(workload: str, config: Config) -> int:
    """Tokens that one device dispatches: its own in `permute`, those of its whole ring in `ring`."""
    return config.tokens_per_ring if workload == "ring" else config.tokens_per_device


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
    ring = workload == "ring"
    seen, hidden = tokens_seen(workload, config), config.hidden_dim
    experts = config.experts_per_shard if ring else config.num_experts
    rows = seen * min(config.top_k, experts)
    activations = (
        seen * hidden * config.itemsize * (8 if gradient else 4)
        + rows * hidden * config.itemsize * (6 if gradient else 3)
        + rows * config.expert_dim * 4 * (10 if gradient else 4)
        + config.num_layers * config.tokens_per_device * hidden * config.itemsize * 2
    )
    weights = parameter_bytes(config) * (3 if gradient else 1) // config.num_devices
    gathered = 3 * experts * hidden * config.expert_dim * config.itemsize * (4 if gradient else 2)
    dense = 0
    if platform == "cpu":
        width = max(hidden // config.num_chunks, config.expert_dim)
        dense = rows * experts * width * 4 * (6 if gradient else 3)
    return config.num_devices * (activations + weights + gathered + dense)

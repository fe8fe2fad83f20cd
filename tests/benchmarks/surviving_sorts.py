"""How many sorts of each variant survive compilation, on a CPU and on TPUs that are not there.

    python -m tests.benchmarks.surviving_sorts [cpu v6e:2x2 tpu7x:2x2x1 ...] [--only WORKLOAD/VARIANT]
    python -m tests.benchmarks.surviving_sorts [cpu v6e:2x2 tpu7x:2x2x1 ...] --inverses

Compiles one step of mode backward per variant (preset tiny: 2 layers, 4 chunks; ring and a2a over 4 devices, bfloat16
for TPUs) in a process of its own per target, and counts instructions × trip counts per step. TPU targets need the
extra `tpu`. With --inverses it compiles permute with every choice of inverse, for the forward (un-permute) and for the
backward pass, instead of the named variants. Prints a Markdown table: forward + recompute + backward = all, and in
brackets how many of them run inside a chunk loop.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

ACCELERATORS = {"v5e:2x2": "v5litepod-4", "v5p:2x2x1": "v5p-8", "v6e:2x2": "v6e-4", "tpu7x:2x2x1": "tpu7x-8"}
INVERSES = {
    "argsort everywhere": "activations=gather+inverse=argsort",
    "scatter in the backward alone": "activations=gather+inverse=argsort+backward_inverse=scatter",
    "reuse in the backward (argsort once)": "activations=gather+inverse=reuse",
    "argsort in the backward alone": "activations=gather+inverse=scatter+backward_inverse=argsort",
    "scatter everywhere": "activations=gather+inverse=scatter",
    "reuse in the backward (scatter once)": "activations=gather+inverse=scatter+backward_inverse=reuse",
}
"""Choices of permute's inverse that --inverses compares, as variants spelled out."""
PASSES = ("forward", "recompute", "backward")


_ALL_INVERSES = "inverses"


def environment(target: str) -> dict[str, str]:
    """The environment in which jax compiles for `target` on a machine without a TPU."""
    common = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    if target == "cpu":
        return common
    return {
        **common,
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        # Another compiler on this machine holds libtpu's lock; none of them touches a chip.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": ACCELERATORS[target],
    }


def count(target: str, only: str | None, kernels: str = "jax") -> dict[str, Any]:
    """Sorts per variant on `target`, from a process of its own (a compiler that crashes takes only that along)."""
    command = [sys.executable, "-m", "tests.benchmarks.surviving_sorts", "--worker", target, "--kernels", kernels]
    done = subprocess.run(
        [*command, *(["--only", only] if only else [])],
        env=environment(target),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"compiling for {target} failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _work(target: str, only: str | None, kernels: str) -> None:
    import jax

    from workloads.registry import WORKLOADS

    if target == "cpu":
        devices = jax.devices()
    else:
        from jax.experimental import topologies

        devices = list(topologies.get_topology_desc(platform="tpu", topology_name=target).devices)
    if only == _ALL_INVERSES:
        wanted = {name: ("permute", variant) for name, variant in INVERSES.items()}
    else:
        named = [(workload.name, variant.name) for workload in WORKLOADS.values() for variant in workload.variants]
        wanted = {f"{w}/{v}": (w, v) for w, v in named if only in (None, f"{w}/{v}")}
    result = {name: _count_one(*found, target, devices, kernels) for name, found in wanted.items()}
    print(json.dumps(result))


def _count_one(workload: str, variant: str, target: str, devices: list[Any], kernels: str) -> dict[str, Any]:
    from analyzers.counting.hlo import Module
    from analyzers.counting.kinds import sort_kind, sorts_in
    from analyzers.counting.scopes import attribute
    from analyzers.reading.protos import hlo_pb2
    from workloads.registry import build, preset_config

    wide = {"hidden_dim": 512} if kernels == "pallas" else {}
    config = preset_config(
        "tiny",
        1,
        ep=1 if workload == "permute" else 4,
        dtype="float32" if target == "cpu" else "bfloat16",
        kernels=kernels,
        **wide,
    )
    program = build(workload, variant, config, "backward", devices[: config.num_devices])
    compiled = program.step.lower(*program.abstract_args).compile()
    proto = hlo_pb2.HloProto()
    proto.hlo_module.ParseFromString(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
    module = Module(proto.SerializeToString())
    attributions = attribute(module)
    passes = dict.fromkeys(PASSES, 0)
    in_chunks, unknown = 0, []
    for name, placement in module.placements.items():
        instruction = module.instructions[name]
        if sort_kind(module, instruction) is None:
            continue
        if placement.executions is None:
            unknown.append(f"{name}: {placement.why_unknown}")
            continue
        times = placement.executions * sorts_in(module, instruction)
        passes[attributions[name].pass_.value] += times
        in_chunks += times if attributions[name].chunk_loop is not None else 0
    return {"passes": passes, "in_chunk_loops": in_chunks, "unknown": unknown}


def main() -> None:
    """Print the table for the targets given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=["cpu"])
    parser.add_argument("--only", help="one WORKLOAD/VARIANT")
    parser.add_argument("--inverses", action="store_const", const=_ALL_INVERSES, dest="only", help="of permute")
    parser.add_argument("--kernels", default="jax", choices=["jax", "pallas"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options.worker, options.only, options.kernels)
        return
    found = {target: count(target, options.only, options.kernels) for target in options.targets}
    print("| variant | " + " | ".join(options.targets) + " |")
    print("| --- |" + " --- |" * len(options.targets))
    for variant in next(iter(found.values())):
        print(f"| {variant} | " + " | ".join(_cell(found[target][variant]) for target in options.targets) + " |")


def _cell(row: dict[str, Any]) -> str:
    if row["unknown"]:
        return "n/a: " + "; ".join(row["unknown"])
    parts = " + ".join(str(row["passes"][name]) for name in PASSES)
    inside = f" ({row['in_chunk_loops']} in chunk loops)" if row["in_chunk_loops"] else ""
    return f"{parts} = {sum(row['passes'].values())}{inside}"


if __name__ == "__main__":
    main()

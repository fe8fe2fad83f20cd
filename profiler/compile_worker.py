"""The process that compiles one program: `python -m profiler.compile_worker REQUEST FOLDER`.

REQUEST is a pickled `CompileRequest`; the result is written into FOLDER. The environment must be that of
`profiler.compile.worker_environment`. What the user can mend goes into `failure.txt` beside REQUEST.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from analyzers.compiled import MANIFEST, CompileManifest, CompileRecord
from analyzers.errors import UserError
from analyzers.files import write_whole
from analyzers.reading.run import CompiledVariant
from profiler.compile import CompileRequest, UserFunction, UserModule, Workload
from profiler.compiled import hlo_proto, memory_analysis
from profiler.fingerprint import fingerprint
from profiler.funnel import lowered_sites, traced_sites
from profiler.versions import installed_versions
from workloads.errors import WorkloadError
from workloads.registry import Config, build, find_variant

_OUR_FLAGS = re.compile(r" *--xla_(?:dump_[a-z_]+|force_host_platform_device_count)(?:=\S*)?")


def main(arguments: Sequence[str]) -> int:
    """Compile; return the exit code."""
    asked, folder = map(Path, arguments)
    request: CompileRequest = pickle.loads(asked.read_bytes())  # written by the process that started this one
    try:
        compile_one(request, folder, dump_folder())
    except (UserError, WorkloadError) as error:
        (asked.parent / "failure.txt").write_text(str(error))
        return 1
    except Exception as error:
        # Whatever a user's function or the compiler raises is for the user to read, in one sentence.
        text = " ".join(str(error).split())[:600]
        (asked.parent / "failure.txt").write_text(
            f"{request.name} does not compile for {request.target}: {type(error).__name__}: {text}"
        )
        import traceback

        traceback.print_exc()
        return 1
    return 0


def dump_folder() -> Path:
    """Where XLA dumps to, according to XLA_FLAGS."""
    (found,) = re.findall(r"--xla_dump_to=(\S+)", os.environ["XLA_FLAGS"])[-1:]
    return Path(found)


def compile_one(request: CompileRequest, folder: Path, dump: Path) -> None:
    """Compile the program of the request and write the result into `folder`."""
    devices = find_devices(request)
    step, arguments, about = program(request, devices)
    traced = step.trace(*arguments)
    lowered = traced.lower()
    started = time.perf_counter()
    executable = lowered.compile()
    seconds = time.perf_counter() - started
    (module,) = executable.runtime_executable().hlo_modules()
    place = folder / request.name
    place.mkdir(parents=True)
    proto = _dumped(dump, f".{module.name}.", "after_optimizations.hlo.pb")
    text = executable.as_text()
    analysis = executable.memory_analysis()
    module_proto = module.as_serialized_hlo_module_proto()
    if proto is None:
        proto = hlo_proto(module_proto, analysis.serialized_buffer_assignment_proto if analysis else b"")
    report = _dumped(dump, f".{module.name}.", "after_optimizations-memory-usage-report.txt") or b""
    names = {
        "pb": f"{module.name}.hlo.pb",
        "txt": f"{module.name}.txt",
        "report": "memory-usage-report.txt",
        "lives": "live-range.txt",
    }
    write_whole(place / names["pb"], proto)
    write_whole(place / names["txt"], text.encode())
    write_whole(place / names["report"], report)
    write_whole(place / names["lives"], _dumped(dump, f".{module.name}.", "after_optimizations-live-range.txt") or b"")
    record = CompileRecord(
        compiled=CompiledVariant(
            name=request.name,
            summary=about["summary"],
            module=module.name,
            fingerprint=fingerprint(text, module_proto),
            compile_seconds=round(seconds, 3),
            memory=memory_analysis(analysis),
            hlo_proto=f"{request.name}/{names['pb']}",
            hlo_text=f"{request.name}/{names['txt']}",
            buffer_assignment=True,
            dispatch_input_bytes=about["dispatch_input_bytes"],
            top_k_buffer_bytes=about["top_k_buffer_bytes"],
        ),
        memory_report=f"{request.name}/{names['report']}",
        live_ranges=f"{request.name}/{names['lives']}",
        traced=traced_sites(traced.jaxpr, traced.fun_name),
        lowered=lowered_sites(lowered.compiler_ir("stablehlo")),
    )
    manifest = CompileManifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        target=request.target,
        device_kind=devices[0].device_kind,
        num_devices=len(devices),
        workload=about["workload"],
        mode=about["mode"],
        config=about["config"],
        xla_flags=_OUR_FLAGS.sub("", os.environ["XLA_FLAGS"]).strip(),
        libtpu_init_args=os.environ.get("LIBTPU_INIT_ARGS", ""),
        versions=installed_versions(),
        programs=(record,),
    )
    write_whole(folder / MANIFEST, manifest.to_json().encode())


def find_devices(request: CompileRequest) -> Sequence[Any]:
    """The devices of the target; for a TPU they need not exist. Raises UserError for a topology libtpu refuses."""
    if request.target == "cpu":
        return jax.devices("cpu")
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=request.target).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"libtpu knows no topology {request.target!r}: {reason}") from error


def program(request: CompileRequest, devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The jitted function, its abstract arguments, and what the manifest says of them."""
    source = request.source
    if isinstance(source, Workload):
        config = Config(**source.config)
        built = build(source.workload, source.variant, config, source.mode, devices)
        about = {
            "workload": source.workload,
            "mode": source.mode,
            "config": asdict(built.config),
            "summary": find_variant(source.workload, source.variant).summary,
            "dispatch_input_bytes": built.dispatch_input_bytes,
            "top_k_buffer_bytes": built.top_k_buffer_bytes,
        }
        return built.step, built.abstract_args, about
    if isinstance(source, UserModule):
        function, arguments = _asked(source, devices)
        name = f"{Path(source.file).name}:{source.function}"
    else:
        function, arguments = _imported(source), pickle.loads(bytes.fromhex(source.arguments))
        name = f"{Path(source.file).name}:{source.qualname}"
        if callable(arguments):
            arguments = arguments(devices)
    about = {
        "workload": name,
        "mode": "",
        "config": {},
        "summary": "",
        "dispatch_input_bytes": 0,
        "top_k_buffer_bytes": 0,
    }
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    return jitted, jax.tree.map(lambda leaf: _placed(leaf, devices), tuple(arguments)), about


def _asked(source: UserModule, devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    maker = getattr(_load(source.file), source.function, None)
    if not callable(maker):
        raise UserError(f"{source.file} has no function {source.function!r}.")
    made = maker(devices) if inspect.signature(maker).parameters else maker()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], (tuple, list))):
        raise UserError(
            f"{source.file}:{source.function} must return (function, arguments), the arguments a tuple of "
            f"jax.ShapeDtypeStruct or arrays; it returned {type(made).__name__}."
        )
    return made[0], tuple(made[1])


def _load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).resolve().parent))
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _imported(source: UserFunction) -> Any:
    sys.path[:0] = [p for p in source.search_path if p not in sys.path]
    try:
        found: Any = importlib.import_module(source.module)
    except ImportError:
        found = _load(source.file)
    for part in source.qualname.split("."):
        found = getattr(found, part)
    return found


def _placed(leaf: Any, devices: Sequence[Any]) -> Any:
    """An abstract value on a device of the target: without a sharding it would be on this machine's CPU."""
    sharding = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(devices[0])
    abstract = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: jax.numpy.asarray(leaf))
    return jax.ShapeDtypeStruct(abstract.shape, abstract.dtype, sharding=sharding)


def _dumped(dump: Path, module: str, ending: str) -> bytes | None:
    """The file that XLA dumped for the module, None if there is none (CPU's are called `cpu_after_…`)."""
    found = [f for f in sorted(dump.glob(f"*{ending}")) if module in f.name]
    return found[-1].read_bytes() if found else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

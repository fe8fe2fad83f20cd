"""Compiles for a device that need not be there, in a worker process, and keeps the results by their content.

The compiler runs in a process of its own: what steers it must be in the environment before jax starts, and when
libtpu crashes it takes only the worker along. Nothing here imports jax.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import workloads
from analyzers.compiled import MANIFEST, SCHEMA_VERSION, CompileResult, load_compiled
from analyzers.errors import UserError
from analyzers.files import open_permissions, sync_folder, write_whole
from profiler import backends
from profiler.versions import installed_versions, version_of

ACCELERATOR_TYPES = {"tpu7x": "tpu7x-8", "v6e": "v6e-4", "v5p": "v5p-8", "v5e": "v5litepod-4"}
"""What libtpu wants TPU_ACCELERATOR_TYPE to say for each generation; the topology name decides the size."""

_TOPOLOGY = re.compile(r"([a-z0-9]+):\d+x\d+(?:x\d+)?")


@dataclass(frozen=True, slots=True)
class Workload:
    """A variant of a workload of this package; `config` holds the fields of `workloads.Config`."""

    workload: str
    variant: str
    mode: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserModule:
    """`FUNCTION` of `FILE.py`: called with the devices if it takes an argument, it returns (function, arguments)."""

    file: str
    function: str


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function at the top level of an importable module, and a pickle of its abstract arguments."""

    module: str
    file: str
    qualname: str
    search_path: tuple[str, ...]
    arguments: str
    """Pickled arguments, hexadecimal."""


Source = Workload | UserModule | UserFunction


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What to compile, for what, with which flags. Extra flags come after those of the environment."""

    source: Source
    target: str = "cpu"
    xla_flags: str = ""
    libtpu_args: str = ""
    num_devices: int = 1
    """Devices a CPU has to simulate."""

    @property
    def name(self) -> str:
        """What the program is called in results."""
        if isinstance(self.source, Workload):
            return self.source.variant
        return self.source.function if isinstance(self.source, UserModule) else self.source.qualname

    @property
    def generation(self) -> str:
        """`cpu`, or the TPU generation before the colon."""
        return self.target.partition(":")[0]


Report = Callable[[int, int, str, bool], None]
"""Called before each program with its number, how many there are, its name, and whether it is already known."""


def check_target(target: str) -> None:
    """Raise UserError if the target has no such form or name, or its compiler is not installed or does not fit."""
    if target == "cpu":
        return
    match = _TOPOLOGY.fullmatch(target)
    if match is None or match[1] not in ACCELERATOR_TYPES:
        known = ", ".join(f"{name}:{'2x2' if name in ('v5e', 'v6e') else '2x2x1'}" for name in ACCELERATOR_TYPES)
        raise UserError(f"unknown target {target!r}; write cpu, or a TPU topology such as {known}.")
    if version_of("libtpu") is None:
        raise UserError(
            f"compiling for {target} needs the TPU compiler, which is not installed; "
            'install it with `pip install "moe-prof[tpu]"` (no TPU is needed).'
        )
    backends.check_versions()


def compile_all(
    requests: Sequence[CompileRequest], *, use_cache: bool = True, report: Report | None = None
) -> tuple[CompileResult, ...]:
    """Compile the requests one after another, each looked up in the cache first; return one result for each.

    Raises UserError for a target that cannot be compiled for, a program that the compiler refuses, and a compiler that
    crashes.
    """
    results = []
    for number, request in enumerate(requests):
        check_target(request.target)
        place = cache_folder() / cache_key(request)
        known = _cached(place) if use_cache else None
        if report:
            report(number, len(requests), request.name, known is not None)
        results.append(known or _compile(request, place))
    return tuple(results)


def _cached(place: Path) -> CompileResult | None:
    try:
        return load_compiled(place)
    except UserError:  # of an older version, or damaged: as good as not there
        return None


def cache_folder() -> Path:
    """Where results are kept: `moe-prof/compile` in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moe-prof" / "compile"


def cache_key(request: CompileRequest) -> str:
    """Hash of all that the result depends on: program, target, flags, versions, and the sources of the program.

    Of a user's function, only the file that it stands in is looked at, not what that imports.
    """
    content = asdict(request) | {
        "schema": SCHEMA_VERSION,
        "versions": installed_versions(),
        "environment": {k: os.environ.get(k, "") for k in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")},
        "sources": _source_hash(request.source),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _source_hash(source: Source) -> str:
    own = isinstance(source, Workload)
    files = sorted(Path(workloads.__path__[0]).rglob("*.py")) if own else [Path(source.file)]  # type: ignore[union-attr]
    files += [Path(__file__).with_name(name) for name in ("compile_worker.py", "funnel.py")]
    digest = hashlib.sha256()
    for file in files:
        try:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror}).") from error
    return digest.hexdigest()


def _compile(request: CompileRequest, place: Path) -> CompileResult:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".partial-", dir=place.parent))
    except OSError as error:
        raise UserError(
            f"{place.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that can."
        ) from error
    try:
        _run_worker(request, folder)
        open_permissions(folder)
        if place.exists():
            shutil.rmtree(place)
        folder.rename(place)
        sync_folder(place.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return load_compiled(place)


def _run_worker(request: CompileRequest, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="moe-prof-compile-") as scratch:
        asked = Path(scratch) / "request.pickle"
        asked.write_bytes(pickle.dumps(request))
        environment = worker_environment(request, Path(scratch) / "dump", os.environ)
        command = [sys.executable, "-m", "profiler.compile_worker", str(asked), str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, check=False, stdin=subprocess.DEVNULL)
        failure = Path(scratch) / "failure.txt"
        if failure.is_file():
            raise UserError(failure.read_text())
    if done.returncode == 0 and (folder / MANIFEST).is_file():
        return
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    how = f"ended with code {done.returncode}"
    if done.returncode < 0:
        how = f"crashed ({signal.Signals(-done.returncode).name})"
    last = f"; its last words: {lines[-1].strip()[:300]}" if lines else ""
    raise UserError(
        f"the compiler {how} while compiling {request.name} for {request.target} "
        f"(jax {version_of('jax')}, jaxlib {version_of('jaxlib')}, libtpu {version_of('libtpu')}){last}"
    )


def worker_environment(request: CompileRequest, dump: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the worker: all of it must be there before jax starts.

    For TPUs it is what lets libtpu compile with no TPU in the machine and beside other processes that do the same.
    """
    result = dict(environ)
    flags = [environ.get("XLA_FLAGS", ""), request.xla_flags]
    if request.target == "cpu":
        # The last mention of a flag wins.
        flags.append(f"--xla_force_host_platform_device_count={request.num_devices}")
    flags.append(f"--xla_dump_to={dump} --xla_dump_hlo_as_proto --xla_dump_hlo_as_text")
    result["XLA_FLAGS"] = " ".join(flag for flag in flags if flag)
    # jax itself must never look for a device: the target comes from the request.
    result["JAX_PLATFORMS"] = "cpu"
    roots = [str(Path(__file__).parent.parent), environ.get("PYTHONPATH", "")]
    result["PYTHONPATH"] = os.pathsep.join(root for root in roots if root)
    arguments = " ".join(a for a in (environ.get("LIBTPU_INIT_ARGS", ""), request.libtpu_args) if a)
    if arguments:
        result["LIBTPU_INIT_ARGS"] = arguments
    if request.target != "cpu":
        result |= {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_ACCELERATOR_TYPE": ACCELERATOR_TYPES[request.generation],
            # No device is touched, so several compilers may share the machine.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
    return result


def check_output(output: Path) -> None:
    """Raise UserError if something is at `output` already."""
    if os.path.lexists(output):
        raise UserError(f"{output} exists and is not overwritten; give another name with -o, or remove it.")


def merged(results: Sequence[CompileResult], output: Path) -> CompileResult:
    """Copy the results, which must have different names, into one at `output`. Raises UserError if it exists."""
    check_output(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror}); give another place with -o.") from error
    try:
        for result in results:
            for record in result.manifest.programs:
                shutil.copytree(result.path / record.compiled.name, folder / record.compiled.name)
        manifest = replace(
            results[0].manifest, programs=tuple(r for result in results for r in result.manifest.programs)
        )
        write_whole(folder / MANIFEST, manifest.to_json().encode())
        open_permissions(folder)
        folder.rename(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return load_compiled(output)

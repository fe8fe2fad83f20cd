"""What each device needs before and while it is profiled: flags, profiler options, memory, matching versions.

Nothing here imports jax at import time, because some of it must be settled before jax is.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers.errors import UserError
from profiler.versions import version_of

if TYPE_CHECKING:
    import jax

_HOST_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_GPU_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm60-plugin", "jax-rocm7-plugin")
_NO_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="


def prepare_environment(num_devices: int, environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Set the XLA flags that a capture on `num_devices` needs; to be called before jax is imported.

    A CPU simulates the devices. On a GPU, command buffers are turned off: under them kernels lose the name of
    the instruction they run (openxla/xprof issue 3070). Returns sentences that tell the user what was changed.

    Raises UserError if XLA_FLAGS already asks for fewer devices.
    """
    flags = environ.get("XLA_FLAGS", "")
    notes = []
    asked = _HOST_DEVICES.findall(flags)
    if asked and int(asked[-1]) < num_devices:
        raise UserError(
            f"XLA_FLAGS asks for {asked[-1]} host devices, the mesh has {num_devices}; "
            "remove --xla_force_host_platform_device_count from XLA_FLAGS, or lower --ep."
        )
    if not asked and num_devices > 1:
        flags = f"{flags} --xla_force_host_platform_device_count={num_devices}"
    if any(version_of(plugin) for plugin in _GPU_PLUGINS) and _NO_COMMAND_BUFFERS not in flags:
        flags = f"{flags} {_NO_COMMAND_BUFFERS}"
        notes.append("command buffers (CUDA graphs) are off: under them kernels lose their instruction names")
    if flags.strip():
        environ["XLA_FLAGS"] = flags.strip()
    return tuple(notes)


def find_devices(count: int) -> Sequence[jax.Device]:
    """The first `count` devices of the default backend. Raises UserError if there are fewer."""
    import jax

    devices = jax.devices()
    if len(devices) < count:
        platform = devices[0].platform
        how = "use a smaller --ep"
        if platform == "cpu":
            how = f"set XLA_FLAGS=--xla_force_host_platform_device_count={count} before jax is imported"
        raise UserError(f"the mesh needs {count} devices, this process sees {len(devices)} ({platform}); {how}.")
    return devices[:count]


def is_simulated(devices: Sequence[jax.Device]) -> bool:
    """Whether the devices are threads of one CPU, which share its cores and its memory."""
    return devices[0].platform == "cpu" and len(devices) > 1


def profiler_options(platform: str) -> dict[str, int | str]:
    """Options of the profiling session, by `ProfileOptions` field; `tpu_trace_mode` is an advanced one.

    No Python tracer: it has been seen to slow a step threefold. On CPU, host level 1 is the least that
    records ops and step annotations.
    """
    options: dict[str, int | str] = {"python_tracer_level": 0, "host_tracer_level": 1}
    if platform == "tpu":
        options["tpu_trace_mode"] = "TRACE_ONLY_XLA"
    return options


def make_profile_options(options: dict[str, int | str]) -> Any:
    """`options` as `jax.profiler.ProfileOptions`."""
    import jax

    made: Any = jax.profiler.ProfileOptions()
    advanced = {}
    for name, value in options.items():
        if name.startswith("tpu_"):
            advanced[name] = value
        else:
            setattr(made, name, value)
    if advanced:
        made.advanced_configuration = advanced
    return made


def check_versions() -> None:
    """Raise UserError if libtpu and jax do not belong together; reads package metadata only.

    A libtpu of another release crashes inside the profiler, even on a CPU, and nothing can be said after a
    crash. jax's own requirement for its extra `tpu` names the libtpu it was released with.
    """
    libtpu = version_of("libtpu")
    if libtpu is None:
        return
    for requirement in importlib.metadata.requires("jax") or ():
        match = re.fullmatch(r'libtpu==([\d.]+?)(?:\.\*)? *; *extra == [\'"]tpu[\'"]', requirement.strip())
        if match and not f"{libtpu}.".startswith(f"{match[1]}."):
            raise UserError(
                f"libtpu {libtpu} does not belong to jax {version_of('jax')}, which needs libtpu {match[1]}; "
                f"install the pair with `pip install 'jax[tpu]=={version_of('jax')}'`, or uninstall libtpu."
            )


def available_bytes(devices: Sequence[jax.Device]) -> int | None:
    """Memory free for a capture, over all `devices` together, in bytes; None if nothing says."""
    if devices[0].platform == "cpu":
        return free_host_bytes()
    free = 0
    for device in devices:
        stats = device.memory_stats() or {}
        if "bytes_limit" not in stats:
            return None
        free += stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return free


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process can still get: the lesser of what the system and its control group leave."""
    limits = [_free_system_bytes(root), _free_group_bytes(root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _free_system_bytes(root: Path) -> int | None:
    try:
        match = re.search(r"^MemAvailable: *(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    if match:
        return int(match[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _free_group_bytes(root: Path) -> int | None:
    group = root / "sys/fs/cgroup"
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no control group, or its limit is `max`
        return None


def cpu_model() -> str:
    """The processor's name, empty where the system does not say."""
    try:
        match = re.search(r"^model name\s*: *(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return match[1].strip() if match else ""


def load_average() -> tuple[float, ...]:
    """Load over 1, 5 and 15 minutes, empty where the system does not say."""
    try:
        return os.getloadavg()
    except OSError:
        return ()

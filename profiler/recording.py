"""Facts that the manifest records about devices, machine, flags and files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analyzers.reading.run import DeviceRecord, Flags, MachineRecord, TraceFile
from profiler import backends

if TYPE_CHECKING:
    import jax

_FOLDERS = re.compile(r"(?<![\w.\-/])/(?:[^/\s:,]+/)+")


def bare_paths(text: str) -> str:
    """`text` with the folders of absolute paths cut away: a run says nothing of where it was made."""
    return _FOLDERS.sub("", text)


def device_record(devices: Sequence[jax.Device]) -> DeviceRecord:
    """What the steps ran on."""
    first = devices[0]
    return DeviceRecord(first.platform, first.device_kind, len(devices), backends.is_simulated(devices))


def machine_record(pinned_cpus: tuple[int, ...] | None = None) -> MachineRecord:
    """The host and its load now."""
    return MachineRecord(os.cpu_count() or 1, backends.cpu_model(), backends.load_average(), pinned_cpus)


def flags_record(profiler_options: dict[str, int | str]) -> Flags:
    """The environment's flags as the process has them, and the options of the sessions."""
    xla, libtpu = (os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
    return Flags(
        bare_paths(xla) if xla is not None else None,
        bare_paths(libtpu) if libtpu is not None else None,
        profiler_options,
    )


def trace_file(file: Path, run: Path) -> TraceFile:
    """Size and hash of a trace file, flushed to disk, which the profiler does not see to."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
        os.fsync(content.fileno())
    return TraceFile(file.relative_to(run).as_posix(), file.stat().st_size, digest.hexdigest())

"""Whether two sides may be compared at all: what they ran, on what, with what, side by side.

A saving means something when the variant is all that differs. What a run recorded of itself (its manifest) is
compared field by field; of a trace without one only what the trace tells can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analyzers.counting.hlo import Module, Shape
from analyzers.counting.hosts import host_names
from analyzers.reading.run import Manifest
from analyzers.trace import Trace


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that should be equal on both sides; None where a side does not say."""

    name: str
    a: str | None
    b: str | None

    @property
    def differs(self) -> bool:
        """Return whether both sides say what they have, and it is not the same."""
        return None not in (self.a, self.b) and self.a != self.b


@dataclass(frozen=True, slots=True)
class Comparability:
    """All facts that were compared."""

    facts: tuple[Fact, ...]

    @property
    def differences(self) -> tuple[Fact, ...]:
        """Return what differs without being the variant."""
        return tuple(fact for fact in self.facts if fact.differs)

    @property
    def unknown(self) -> tuple[Fact, ...]:
        """Return what at least one side does not say."""
        return tuple(fact for fact in self.facts if None in (fact.a, fact.b))


def comparability(a: Trace, b: Trace) -> Comparability:
    """Return what should be equal in two traces for their difference to be the variant's."""
    sides = [_facts(trace) for trace in (a, b)]
    names = dict.fromkeys(name for side in sides for name in side)
    return Comparability(tuple(Fact(name, *(side.get(name) for side in sides)) for name in names))


def _facts(trace: Trace) -> dict[str, str | None]:
    types = dict.fromkeys(name for file in trace.sessions[0] for name in file.device_types)
    facts: dict[str, str | None] = {
        "hosts": _hosts(trace),
        "devices": str(len(trace.devices)),
        "sessions": str(len(trace.sessions)),
        "steps": str(trace.num_steps),
    }
    if types:
        facts["device type"] = ", ".join(types)
    if trace.module is not None:
        facts["module arguments"] = _arguments(trace.module)
    manifest = trace.manifest
    return facts | (_UNKNOWN if manifest is None else _recorded(manifest))


def _hosts(trace: Trace) -> str:
    """Return the number of hosts; with several, their names, too: which hosts a job gets matters to it.

    The name in a single file may be that of whatever container it was written in, and is nobody's choice.
    """
    hosts = sorted(host_names(trace.sessions[0]))
    return "1" if len(hosts) == 1 else f"{len(hosts)} ({', '.join(hosts)})"


def _arguments(module: Module) -> str:
    """Return how many arrays of which type the module takes, and their bytes on one device: shapes and dtypes."""
    arrays = [i.shape for i in module.computations[module.entry] if i.opcode == "parameter"]
    flat = [leaf for shape in arrays for leaf in _leaves(shape)]
    types = Counter(leaf.dtype for leaf in flat)
    counts = ", ".join(f"{count} {dtype}" for dtype, count in sorted(types.items()))
    return f"{counts or 'none'}; {sum(leaf.size_bytes for leaf in flat):,} bytes"


def _leaves(shape: Shape) -> Iterator[Shape]:
    if shape.dtype != "tuple":
        yield shape
    for element in shape.elements:
        yield from _leaves(element)


_UNKNOWN: dict[str, str | None] = dict.fromkeys(
    ("workload", "mode", "device kind", "jax", "jaxlib", "XLA_FLAGS", "profiler options")
)
"""What a reader misses most in a trace that is no run."""


def _recorded(manifest: Manifest) -> dict[str, str | None]:
    device = manifest.device
    options = ", ".join(f"{name}={value}" for name, value in sorted(manifest.flags.profiler_options.items()))
    return {
        "workload": manifest.workload,
        "mode": manifest.mode,
        "device kind": f"{device.platform} {device.kind}" + (" (simulated)" if device.simulated else ""),
        **{name: _text(manifest.versions[name]) for name in sorted(manifest.versions)},
        "XLA_FLAGS": _text(manifest.flags.xla_flags),
        "LIBTPU_INIT_ARGS": _text(manifest.flags.libtpu_init_args),
        "profiler options": options or "none",
        "host CPU": f"{manifest.machine.cpu_count} × {manifest.machine.cpu_model}",
        "pinned to CPUs": _text(manifest.machine.pinned_cpus and ", ".join(map(str, manifest.machine.pinned_cpus))),
        **{f"config {name}": _text(value) for name, value in manifest.config.items()},
    }


def _text(value: Any) -> str:
    return "none" if value is None else str(value)

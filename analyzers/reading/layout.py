"""Which planes and lines of a trace hold what, told by their names.

Planes are matched exactly and lines by name, because ids differ between versions of the profiler. Lines that
repeat the same time in another grouping (`Steps`, `Framework Ops`, the `TEC` lines of a SparseCore, …) are
not kept: adding them up would count the same work twice.
Source: openxla/xla xla/tsl/profiler/utils/xplane_schema.cc.
"""

from __future__ import annotations

import re

from analyzers.reading.columns import LineKind, PlaneKind

_PLANE_KINDS = (
    (re.compile(r"/device:TPU:\d+"), PlaneKind.TPU),
    (re.compile(r"/device:TPU:\d+ SparseCore .*\d+"), PlaneKind.SPARSE_CORE),
    (re.compile(r"/device:GPU:\d+"), PlaneKind.GPU),
    (re.compile(r"/host:CPU"), PlaneKind.HOST),
    (re.compile(r"/host:metadata"), PlaneKind.METADATA),
)

_LINE_KINDS = {
    (PlaneKind.TPU, "XLA Ops"): LineKind.OPS,
    (PlaneKind.TPU, "Async XLA Ops"): LineKind.ASYNC,
    (PlaneKind.TPU, "XLA Modules"): LineKind.MODULES,
    (PlaneKind.SPARSE_CORE, "Sparse Core Ops"): LineKind.OPS,
    (PlaneKind.SPARSE_CORE, "Sparse Core Modules"): LineKind.MODULES,
}


def plane_kind(name: str) -> PlaneKind:
    """Return what the plane called `name` describes."""
    return next((kind for pattern, kind in _PLANE_KINDS if pattern.fullmatch(name)), PlaneKind.OTHER)


def line_kind(plane: PlaneKind, name: str) -> LineKind | None:
    """Return what the events of a plane's line called `name` are, or None for a line that is not read."""
    if plane is PlaneKind.HOST:
        return LineKind.HOST
    if plane is PlaneKind.GPU:
        return LineKind.OPS if name.startswith("Stream") else None
    return _LINE_KINDS.get((plane, name))

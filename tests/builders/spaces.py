"""Writes the XSpace that the runs of a program would leave, in the layout of each backend.

Layouts as profilers write them: openxla/xla xla/tsl/profiler/utils/xplane_schema.cc, and traces of TPU v6e,
MI300X and CPUs. `trace_file` puts the result where a profiler would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analyzers.reading.protos import hlo_pb2, xplane_pb2
from tests.builders.play import TICK_PS, Execution, Program, Run

Value = int | str | bytes
_LINE_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Offload:
    """Work that a TensorCore op hands to SparseCores."""

    launcher: str
    """Instruction on the TensorCore that starts it."""
    op: str
    """What runs on the SparseCore."""
    start_id: int
    duration_ps: int
    cores: tuple[int, ...] = (0,)
    delay_ps: int = 0
    """From the end of the launching op to the start of the work."""


@dataclass(frozen=True)
class Defects:
    """What is wrong with the trace."""

    dropped_traces: int = 0
    without_hlo: bool = False
    unnamed: frozenset[str] = frozenset()
    """Instructions whose kernels have lost `hlo_op`."""
    all_unnamed: bool = False
    without_run_ids: bool = False


@dataclass
class _Plane:
    space: xplane_pb2.XSpace
    name: str
    stats: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.proto = self.space.planes.add()
        self.proto.id = len(self.space.planes)
        self.proto.name = self.name.encode()
        self._stats: dict[str, int] = {}
        self._events: dict[str, int] = {}
        self._lines: dict[str, xplane_pb2.XLine] = {}
        self.fill(self.proto, self.stats)

    def fill(self, holder, stats: Mapping[str, Value], refer: bool = False) -> None:
        for name, value in stats.items():
            stat = holder.stats.add()
            stat.metadata_id = self._stat(name)
            if isinstance(value, str) and refer:
                stat.ref_value = self._stat(value)
            elif isinstance(value, str):
                stat.str_value = value.encode()
            elif isinstance(value, bytes):
                stat.bytes_value = value
            elif value >= 2**63:
                stat.uint64_value = value
            else:
                stat.int64_value = value

    def _stat(self, name: str) -> int:
        if name not in self._stats:
            self._stats[name] = len(self._stats) + 1
            entry = self.proto.stat_metadata[self._stats[name]]
            entry.id, entry.name = self._stats[name], name.encode()
        return self._stats[name]

    def metadata(self, name: str, display: str = "", stats: Mapping[str, Value] | None = None) -> int:
        if name not in self._events:
            self._events[name] = len(self._events) + 1
            entry = self.proto.event_metadata[self._events[name]]
            entry.id, entry.name, entry.display_name = self._events[name], name.encode(), display.encode()
            self.fill(entry, stats or {}, refer=True)
        return self._events[name]

    def event(self, line: str, metadata: int, start_ps: int, duration_ps: int, **stats: Value) -> None:
        if line not in self._lines:
            self._lines[line] = self.proto.lines.add()
            self._lines[line].id = len(self._lines)
            self._lines[line].name = line.encode()
            self._lines[line].timestamp_ns = _LINE_NS
        event = self._lines[line].events.add()
        event.metadata_id, event.offset_ps, event.duration_ps = metadata, start_ps, duration_ps
        self.fill(event, stats, refer=True)


def tpu_space(
    program: Program,
    runs: Sequence[Run],
    *,
    skew_ps: int = 198_000_000,
    wrong_clock: bool = True,
    offloads: Sequence[Offload] = (),
    annotate: bool = True,
    annotated_steps: int | None = None,
    defects: Defects = Defects(),
) -> xplane_pb2.XSpace:
    """Write a TPU trace.

    Args:
        program: What ran.
        runs: Its runs.
        skew_ps: By how much the event clock is ahead of the device clock.
        wrong_clock: Every seventh op has an event clock that is wrong by 40 µs, on top.
        offloads: Work on SparseCores.
        annotate: Whether the host thread shows step annotations.
        annotated_steps: How many steps are annotated; as many as ran by default.
        defects: What is wrong.

    """
    space = xplane_pb2.XSpace()
    for device in sorted({run.device for run in runs}):
        dropped = {"dropped_traces": defects.dropped_traces} if defects.dropped_traces else {}
        plane = _Plane(space, f"/device:TPU:{device}", {"device_type_string": "TPU v6 Lite", **dropped})
        mine = [run for run in runs if run.device == device]
        _tpu_core(plane, program, mine, skew_ps, wrong_clock, offloads)
        for core in sorted({core for offload in offloads for core in offload.cores}):
            _sparse_core(_Plane(space, f"/device:TPU:{device} SparseCore {core}"), program, mine, offloads, core)
    _host(space, program, runs, annotate, annotated_steps, defects)
    return space


def _tpu_core(plane: _Plane, program: Program, runs: Sequence[Run], skew: int, wrong: bool, offloads) -> None:
    module_event = plane.metadata(f"{program.name}({program.program_id})")
    launches = {offload.launcher: offload for offload in offloads}
    texts = _texts(program)
    count = 0
    for run in runs:
        if run.module_event:
            plane.event("XLA Modules", module_event, run.start_ps + skew, run.duration_ps, run_id=run.step)
        # Derived lines, which show the same time once more.
        step = plane.metadata(str(run.step))
        plane.event("Steps", step, run.start_ps + skew, run.duration_ps, **_device(run.start_ps, run.duration_ps))
        for e in run.executions:
            count += 1
            off = 40_000_000 if wrong and count % 7 == 0 and not e.container else 0
            stats: dict[str, Value] = dict(_device(e.start_ps, e.duration_ps))
            if e.instruction in launches:
                offload = launches[e.instruction]
                stats |= {"tc_offload_start_id": offload.start_id, "offload_core_id": offload.cores[0]}
            plane.event("XLA Ops", _tpu_op(plane, program, e, texts), e.start_ps + skew + off, e.duration_ps, **stats)
            scope = plane.metadata(f"framework {e.scope}")
            for line in ("Framework Name Scope", "Framework Ops", "Source code"):
                plane.event(line, scope, e.start_ps + skew, e.duration_ps)
        done = next((e for e in run.executions if not e.container), None)
        if done is not None:
            asynchronous = plane.metadata("copy-start.99", "copy-start.99", {"program_id": program.program_id})
            for k in range(3):
                start = done.start_ps + skew + k * TICK_PS
                plane.event("Async XLA Ops", asynchronous, start, 50 * TICK_PS, hlo_op="copy-done.99", _a=1)


def _tpu_op(plane: _Plane, program: Program, e: Execution, texts: Mapping[str, str]) -> int:
    category = {"fusion": "loop fusion", "dot": "convolution"}.get(e.opcode, e.opcode)
    stats: dict[str, Value] = {"hlo_category": category, "program_id": program.program_id, "symbol_id": 7}
    if e.scope:
        stats["tf_op"] = e.scope + ":"
    return plane.metadata(texts[e.instruction], e.instruction, stats)


def _texts(program: Program) -> dict[str, str]:
    return {
        i.name.decode(): f"%{i.name.decode()} = {i.opcode.decode()}(...)"
        for c in program.module.computations
        for i in c.instructions
    }


def _device(start_ps: int, duration_ps: int) -> dict[str, int]:
    return {"device_offset_ps": start_ps, "device_duration_ps": duration_ps}


def _sparse_core(plane: _Plane, program: Program, runs: Sequence[Run], offloads, core: int) -> None:
    """One SparseCore: every line shows the same work in another grouping; only the ops line is to be counted."""
    for run in runs:
        for e in run.executions:
            for offload in offloads:
                if offload.launcher != e.instruction or core not in offload.cores:
                    continue
                start, duration = e.start_ps + e.duration_ps + offload.delay_ps, offload.duration_ps
                clock = _device(start, duration)
                module = plane.metadata(f"sc module {offload.op}")
                plane.event(
                    "Sparse Core Modules",
                    module,
                    start,
                    duration,
                    **clock,
                    offload_core_id=offload.cores[0],
                    tc_offload_start_id=offload.start_id,
                )
                op = plane.metadata(
                    f"%{offload.op} = custom-call(...)",
                    offload.op,
                    {"hlo_category": "custom-call", "program_id": program.program_id},
                )
                for line in ("Sparse Core Ops", "Sparse Core Syncs", "TEC 0", "TEC 1", "Sparse Core Steps"):
                    plane.event(line, op, start, duration, **clock)


def gpu_space(
    program: Program,
    runs: Sequence[Run],
    *,
    streams: int = 2,
    copies: int = 0,
    vendor: str = "AMD",
    defects: Defects = Defects(),
) -> xplane_pb2.XSpace:
    """Write a GPU trace: one event per kernel (a piece of an execution), control flow leaves none.

    Both vendors' collectors write the same stats (openxla/xla xla/backends/profiler/gpu/cupti_collector.cc and
    rocm_collector.cc); kernels of AMD are called `.kd`. `copies` is the number of transfers between runs that belong to
    no module, 3 ticks each.
    """
    space = xplane_pb2.XSpace()
    for device in sorted({run.device for run in runs}):
        plane = _Plane(space, f"/device:GPU:{device}", {"device_vendor": vendor})
        for run in (run for run in runs if run.device == device):
            for k in range(copies):
                start = run.start_ps - (k + 1) * 4 * TICK_PS
                plane.event("Stream #1(MemcpyD2D)", plane.metadata("MemcpyD2D"), start, 3 * TICK_PS, correlation_id=k)
            for e in run.executions:
                if not e.container:
                    _kernels(plane, program, e, streams, ".kd" if vendor == "AMD" else "", defects)
    host = _host(space, program, runs, False, None, defects)
    for run in runs:  # the launch of a kernel names its op, too, and is not its work
        for e in run.executions:
            if not e.container:
                launch = {"hlo_op": e.instruction, "hlo_module": program.name, "program_id": program.program_id}
                start = e.start_ps - 9 * TICK_PS
                host.event("Host Threads/1", host.metadata("launch"), start, TICK_PS, correlation_id=start, **launch)
    return space


def _kernels(plane: _Plane, program: Program, e: Execution, streams: int, ending: str, defects: Defects) -> None:
    named: dict[str, Value] = {
        "hlo_op": e.instruction,
        "hlo_module": program.name,
        "program_id": program.program_id,
        "name": e.scope,
        "tf_op": "XlaModule:",
    }
    if defects.all_unnamed or e.instruction in defects.unnamed:
        named = {}
    for k, (start, duration) in enumerate(e.pieces):
        kernel = plane.metadata(f"{e.opcode}_kernel_{k}{ending}")
        plane.event(f"Stream #{k % streams + 1}(Kernel)", kernel, start, duration, correlation_id=start, **named)


def cpu_space(
    program: Program, runs: Sequence[Run], *, threads: int = 2, annotate: bool = True, defects: Defects = Defects()
) -> xplane_pb2.XSpace:
    """Write a CPU trace: one event per piece, on whichever thread; a `while` encloses its body in time."""
    space = xplane_pb2.XSpace()
    host = _host(space, program, runs, annotate, None, defects)
    for run in runs:
        for e in run.executions:
            stats: dict[str, Value] = {
                "hlo_op": e.instruction,
                "hlo_module": program.name,
                "program_id": program.program_id,
                "device_ordinal": run.device,
            }
            if not defects.without_run_ids:
                stats["run_id"] = 268_000_000 + 100 * run.step + run.device
            for k, (start, duration) in enumerate(e.pieces):
                # Each device has threads of its own, as in a pool of one per device.
                thread = 0 if e.container else k % threads
                line = f"tf_XLA{'Execute' if thread == 0 else 'Eigen'}/{10 * run.device + thread}"
                host.event(line, host.metadata(e.instruction), start, duration, **stats)
    return space


def _host(space, program: Program, runs: Sequence[Run], annotate: bool, steps: int | None, defects) -> _Plane:
    host = _Plane(space, "/host:CPU")
    for run in [r for r in runs if r.device == runs[0].device][:steps] if annotate else []:
        # Dispatch is asynchronous: the annotation ends before the step has.
        host.event("python", host.metadata("train"), run.start_ps - 10 * TICK_PS, 5 * TICK_PS, step_num=100 + run.step)
    for step in range(len({r.step for r in runs}), steps or 0):
        host.event("python", host.metadata("train"), 10**12 + step, 5 * TICK_PS, step_num=100 + step)
    host.event("python", host.metadata("$main.py:1 train"), 0, 10**12)
    if not defects.without_hlo:
        metadata = _Plane(space, "/host:metadata")
        metadata.metadata(f"{program.name}({program.program_id})", stats={"Hlo Proto": program.hlo_proto})
    return host


def trace_file(folder: Path, space: xplane_pb2.XSpace, host: str = "host0", session: str = "2026_01_01") -> Path:
    """Write the trace into a log directory as the profiler does; several hosts share a session."""
    where = folder / "plugins" / "profile" / session
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{host}.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return path


def without_trip_counts(hlo_proto: bytes, opcode: bytes = b"while") -> bytes:
    """Return the module as if the compiler could not tell how often its loops run."""
    proto = hlo_pb2.HloProto.FromString(hlo_proto)
    for computation in proto.hlo_module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == opcode:
                instruction.backend_config = b""
    return proto.SerializeToString()

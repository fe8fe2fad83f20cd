"""From events to ops: which instruction of which program each op event belongs to, on which device.

Each backend writes this differently (see the layouts in `_tpu_ops`, `_gpu_ops`, `_host_ops`); after this module
the difference is gone, except for what is known of module runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analyzers.counting.arrays import dense, take, unique
from analyzers.counting.hlo import Instruction, Module, ModuleError
from analyzers.reading.columns import ABSENT, NO_STRING, Line, LineKind, Plane, PlaneKind, XSpaceColumns

_UINT64 = 2**64
_LAYOUT = re.compile(r"\{[^{}]*\}")
_OPCODE = re.compile(r" = .*?\s([a-z][a-z0-9-]*)\(")


@dataclass(frozen=True, slots=True)
class Program:
    """One compiled module that ran. `module` is None when its HLO is not at hand."""

    name: str
    program_id: int | None
    module: Module | None = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction of one program, as the trace names it."""

    program: int
    """Index into `OpEvents.programs`, -1 for work that belongs to no compiled module (copies, memsets)."""
    name: str
    category: str
    """`hlo_category` where the trace has it, else the opcode, else empty."""
    scope: str
    """Scope path (`op_name`), from the module or the trace."""
    shape: str
    instruction: Instruction | None = field(compare=False, repr=False)
    sparse_core: bool = False

    hlo_text: str = ""
    """The instruction as text, where the trace carries it (TPU)."""

    @property
    def opcode(self) -> str:
        """HLO opcode, from the module, the instruction's text, or else guessed from its name (`sort.12`)."""
        if self.instruction is not None:
            return self.instruction.opcode
        # `%sort.12 = (s32[8]{0:T(128)}, …) sort(…)`: a shape has no word that a blank precedes and a bracket follows.
        found = _OPCODE.search(self.hlo_text)
        return found[1] if found else self.name.split(".")[0].strip("%")


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `first` (inclusive) to `last` (exclusive) of `OpEvents`: the op events of one line."""

    first: int
    last: int
    line: int
    """Index into `XSpaceColumns.lines`."""
    device: int | None
    """Index into `OpEvents.devices`; None for a host thread, whose events can be of several."""


@dataclass(frozen=True, slots=True)
class OpEvents:
    """All op events of one file, one row each, in time order within each device's line.

    `run_id` is what the trace says of the module run an event belongs to, `ABSENT` where it says nothing.
    """

    devices: tuple[str, ...]
    programs: tuple[Program, ...]
    ops: tuple[Op, ...]
    spans: tuple[Span, ...]
    """All rows, line by line."""
    op: NDArray[np.int32]
    device: NDArray[np.int32]
    line: NDArray[np.int32]
    run_id: NDArray[np.int64] | None
    start_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    occurrences: NDArray[np.int32]
    negative: int
    """How many events had a negative duration; it is 0 here."""
    event_start_ps: NDArray[np.int64]
    """On the clock that module events use; equal to `start_ps` unless ops have a device clock of their own."""


class Programs:
    """The programs of one file, found by id and name, their modules parsed when first asked for."""

    def __init__(self, hlo_protos: Mapping[str, bytes], own: Mapping[str, Module] | None = None) -> None:
        """`own` holds modules that a run stored itself, by module name; they win over the trace's."""
        self._protos = {split_module_name(name): proto for name, proto in hlo_protos.items()}
        self._own = own or {}
        self._index: dict[tuple[str, int | None], int] = {}
        self.found: list[Program] = []

    def index(self, name: str, program_id: int | None) -> int:
        """Return the program's position in `found`. `name` may be empty when the id is known."""
        key = (name, program_id)
        if key not in self._index:
            self._index[key] = self._find(name, program_id)
        return self._index[key]

    def _find(self, name: str, program_id: int | None) -> int:
        for k, program in enumerate(self.found):
            if _same((program.name, program.program_id), name, program_id):
                return k
        known = next((k for k in self._protos if _same(k, name, program_id)), None)
        full = name or (known[0] if known else "")
        self.found.append(Program(full, program_id, self._module(full, known)))
        return len(self.found) - 1

    def _module(self, name: str, key: tuple[str, int | None] | None) -> Module | None:
        if name in self._own:
            return self._own[name]
        if key is None:
            return None
        try:
            return Module(self._protos[key])
        except ModuleError:
            return None


def device_names(columns: XSpaceColumns) -> tuple[str, ...]:
    """Return what to call the device of each plane: `TPU:0`, for its SparseCores, too.

    Hosts of a merged file each call their first device by the same name: those after the first are `TPU:0 (2)`, ….
    A plane of host threads, whose events name a device each, gives only what to append to that.
    """
    seen: Counter[str] = Counter()
    names = []
    for plane in columns.planes:
        seen[plane.name] += 1
        stem = "" if plane.kind is PlaneKind.HOST else plane.name.removeprefix("/device:").split(" ")[0]
        names.append(stem + (f" ({seen[plane.name]})" if seen[plane.name] > 1 else ""))
    return tuple(names)


def same_id(one: int, other: int) -> bool:
    """Compare program ids, which are signed in one place of a trace and unsigned in another."""
    return (one - other) % _UINT64 == 0


def _same(key: tuple[str, int | None], name: str, program_id: int | None) -> bool:
    if program_id is None or key[1] is None:
        return program_id is key[1] and key[0] == name
    return same_id(key[1], program_id) and (not name or key[0] == name)


def split_module_name(name: str) -> tuple[str, int | None]:
    """Split `jit_f(12)`, the name of a module execution or of a metadata entry."""
    stem, bracket, number = name.rstrip(")").rpartition("(")
    if bracket and number.lstrip("-").isdigit():
        return stem, int(number)
    return name, None


def op_events(columns: XSpaceColumns, own_modules: Mapping[str, Module] | None = None) -> OpEvents:
    """Return the op events of a file: those of its device planes and those the CPU backend ran."""
    programs = Programs(columns.hlo_protos, own_modules)
    for name, program_id in _modules_that_ran(columns):
        programs.index(name, program_id)
    builder = _Builder(columns, programs)
    for line_index, line in enumerate(columns.lines):
        kind = columns.planes[line.plane].kind
        if line.kind is LineKind.OPS and kind in (PlaneKind.TPU, PlaneKind.SPARSE_CORE):
            builder.tpu_line(line_index, line)
        elif line.kind is LineKind.OPS and kind is PlaneKind.GPU:
            builder.stat_line(line_index, line, on_host=False)
        elif line.kind is LineKind.HOST:
            builder.stat_line(line_index, line, on_host=True)
    return builder.build()


def _modules_that_ran(columns: XSpaceColumns) -> list[tuple[str, int | None]]:
    """Return name and id of the modules on module lines; they name programs whose ops carry only the id."""
    names = {
        columns.planes[line.plane].metadata[row].name
        for line in columns.lines
        if line.kind is LineKind.MODULES
        for row in unique(columns.events.metadata[line.first : line.last]).tolist()
        if row >= 0
    }
    return [split_module_name(name) for name in sorted(names)]


class _Builder:
    def __init__(self, columns: XSpaceColumns, programs: Programs) -> None:
        self.columns = columns
        self.programs = programs
        self.names = device_names(columns)
        self.ops: list[Op] = []
        self.op_index: dict[tuple[int, str, bool], int] = {}
        self.devices: list[str] = []
        self.rows: list[NDArray[np.intp] | slice] = []
        self.op: list[NDArray[np.int32]] = []
        self.device: list[NDArray[np.int32] | int] = []
        self.line: list[int] = []

    # TPU: what an event is stands on its metadata: display_name, program_id, hlo_category, tf_op.
    def tpu_line(self, line_index: int, line: Line) -> None:
        plane = self.columns.planes[line.plane]
        rows = self.columns.events.metadata[line.first : line.last]
        if self.columns.reader == "chrome":
            op = self._chrome_ops(line, rows)
            self._append(slice(line.first, line.last), op, self._device(self.names[line.plane]), line_index)
            return
        table = np.array([self._tpu_op(line, row) for row in range(len(plane.metadata))], np.int32)
        op = take(table, rows)
        if len(op) and int(op.min()) < 0:
            op[op < 0] = self._op(-1, "(unknown event)", plane.kind, {})
        self._append(slice(line.first, line.last), op, self._device(self.names[line.plane]), line_index)

    def _chrome_ops(self, line: Line, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the ops of a line of a Chrome trace, which drops program ids: a module owns what runs in its time.

        Both lines carry the device clock there, so that containment in time is exact.
        """
        plane = self.columns.planes[line.plane]
        owner = np.full(len(rows), -1, np.int32)
        starts = self.columns.events.start_ps
        for modules in self.columns.lines:
            if modules.kind is not LineKind.MODULES or modules.plane != line.plane:
                continue
            programs = [split_module_name(m.name) for m in plane.metadata]
            own = self.columns.events.metadata[modules.first : modules.last]
            position = (
                np.searchsorted(starts[modules.first : modules.last], starts[line.first : line.last], "right") - 1
            )
            owner = np.array([self.programs.index(*programs[m]) for m in own] + [-1], np.int32)[position]
        ids, distinct = dense(owner, rows)
        return np.array([self._chrome_op(plane, *row) for row in distinct], np.int32)[ids]

    def _chrome_op(self, plane: Plane, program: int, row: int) -> int:
        if row < 0:
            return self._op(program, "(unknown event)", plane.kind, {})
        metadata = plane.metadata[row]
        name = metadata.display_name or metadata.name
        return self._op(program, name, plane.kind, metadata.stats, metadata.name)

    def _tpu_op(self, line: Line, row: int) -> int:
        plane = self.columns.planes[line.plane]
        metadata = plane.metadata[row]
        if "program_id" not in metadata.stats and not metadata.display_name:
            return -1  # metadata of another line of this plane: no op event refers to it
        program_id = metadata.stats.get("program_id")
        program = self.programs.index("", int(program_id)) if program_id is not None else -1
        name = metadata.display_name or metadata.name.split(" = ")[0].lstrip("%")
        return self._op(program, name, plane.kind, metadata.stats, metadata.name)

    # GPU and CPU: what an event is stands on the event: hlo_op, hlo_module, program_id. A kernel without
    # hlo_op (a copy, or one replayed from a command buffer) is an op of its own name.
    def stat_line(self, line_index: int, line: Line, *, on_host: bool) -> None:
        events = self.columns.events
        window = slice(line.first, line.last)
        hlo_op = self._strings("hlo_op", window)
        if on_host:
            # A host event with a correlation id is the launch of a GPU kernel, not the work itself.
            launches = self._ints("correlation_id", window) != ABSENT
            rows = np.flatnonzero((hlo_op != NO_STRING) & ~launches) + line.first
        else:
            rows = np.arange(line.first, line.last)
        if len(rows) == 0:
            return
        local = rows - line.first
        ids, distinct = dense(
            hlo_op[local],
            self._strings("hlo_module", window)[local],
            self._ints("program_id", window)[local],
            np.where(hlo_op[local] == NO_STRING, events.metadata[rows], -1),
            self._strings("name", window)[local],
        )
        table = np.array([self._stat_op(line, row) for row in distinct], np.int32)
        if on_host:
            ordinals = self._ints("device_ordinal", window)[local]
            device = np.zeros(len(rows), np.int32)
            for ordinal in unique(ordinals):
                number = 0 if ordinal == ABSENT else int(ordinal)
                device[ordinals == ordinal] = self._device(f"CPU:{number}{self.names[line.plane]}")
            self._append(rows, table[ids], device, line_index)
        else:
            self._append(rows, table[ids], self._device(self.names[line.plane]), line_index)

    def _stat_op(self, line: Line, row: tuple[int, ...]) -> int:
        hlo_op, hlo_module, program_id, metadata, scope = row
        strings = self.columns.strings
        plane = self.columns.planes[line.plane]
        if hlo_op == NO_STRING:
            name = plane.metadata[metadata].name if metadata >= 0 else "(unknown event)"
            return self._op(-1, name, plane.kind, {})
        module = strings[hlo_module] if hlo_module != NO_STRING else ""
        program = self.programs.index(module, None if program_id == ABSENT else program_id)
        stats = {"tf_op": strings[scope]} if scope != NO_STRING else {}
        return self._op(program, strings[hlo_op], plane.kind, stats)

    def _op(
        self, program: int, name: str, plane: PlaneKind | None, stats: Mapping[str, object], hlo_text: str = ""
    ) -> int:
        sparse_core = plane is PlaneKind.SPARSE_CORE
        key = (program, name, sparse_core)
        if key not in self.op_index:
            module = self.programs.found[program].module if program >= 0 else None
            instruction = module.instructions.get(name) if module else None
            scope = str(stats.get("tf_op", "")).rstrip(":")
            shape = _LAYOUT.sub("", str(stats.get("shape_with_layout", "")))
            self.op_index[key] = len(self.ops)
            self.ops.append(
                Op(
                    program=program,
                    name=name,
                    category=str(stats.get("hlo_category", "") or (instruction.opcode if instruction else "")),
                    scope=(instruction.scope if instruction else "") or scope,
                    shape=str(instruction.shape) if instruction else shape,
                    instruction=instruction,
                    sparse_core=sparse_core,
                    hlo_text=hlo_text if instruction is None else "",
                )
            )
        return self.op_index[key]

    def _device(self, name: str) -> int:
        if name not in self.devices:
            self.devices.append(name)
        return self.devices.index(name)

    def _append(
        self,
        rows: NDArray[np.intp] | slice,
        op: NDArray[np.int32],
        device: NDArray[np.int32] | int,
        line_index: int,
    ) -> None:
        self.rows.append(rows)
        self.op.append(op)
        self.device.append(device)
        self.line.append(line_index)

    def _ints(self, name: str, window: slice) -> NDArray[np.int64]:
        column = self.columns.events.ints.get(name)
        return column[window] if column is not None else np.full(window.stop - window.start, ABSENT, np.int64)

    def _strings(self, name: str, window: slice) -> NDArray[np.int32]:
        column = self.columns.events.strings.get(name)
        if column is None:
            return np.full(window.stop - window.start, NO_STRING, np.int32)
        return column[window]

    def build(self) -> OpEvents:
        events = self.columns.events
        run_id = events.ints.get("run_id")
        # Devices come in the order their events were met; tables want them by number.
        order = sorted(range(len(self.devices)), key=lambda k: _natural(self.devices[k]))
        position = np.argsort(np.array(order, np.int32)).astype(np.int32)
        devices = [int(position[d]) if isinstance(d, int) else position[d] for d in self.device]
        ends = np.cumsum([0, *(len(op) for op in self.op)]).tolist()
        duration_ps, negative = self._picked(events.duration_ps), 0
        if duration_ps.min(initial=0) < 0:
            negative = int(np.count_nonzero(duration_ps < 0))
            duration_ps = np.maximum(duration_ps, 0)
        return OpEvents(
            devices=tuple(self.devices[k] for k in order),
            programs=tuple(self.programs.found),
            ops=tuple(self.ops),
            spans=tuple(
                Span(first, last, line, device if isinstance(device, int) else None)
                for first, last, line, device in zip(ends, ends[1:], self.line, devices, strict=False)
            ),
            op=_joined(self.op, np.int32),
            device=self._per_row(devices),
            line=self._per_row(self.line),
            run_id=self._picked(run_id) if run_id is not None else None,
            start_ps=self._picked(events.start_ps),
            duration_ps=duration_ps,
            negative=negative,
            occurrences=self._picked(events.occurrences),
            event_start_ps=self._picked(events.event_start_ps),
        )

    def _per_row(self, parts: Sequence[NDArray[np.int32] | int]) -> NDArray[np.int32]:
        return _joined(
            [
                np.broadcast_to(np.int32(part), len(op)) if isinstance(part, int) else part
                for part, op in zip(parts, self.op, strict=True)
            ],
            np.int32,
        )

    def _picked(self, column: NDArray) -> NDArray:  # type: ignore[type-arg]
        return _joined([column[rows] for rows in self.rows], column.dtype)


def is_constant(column: NDArray) -> bool:  # type: ignore[type-arg]
    """Say whether a column is one value, stored once."""
    return len(column) > 0 and column.strides == (0,)


def _natural(name: str) -> tuple[str, int]:
    """Return the sort key by which `GPU:10` comes after `GPU:9`."""
    stem, _, number = name.rpartition(":")
    return (stem, int(number)) if number.isdigit() else (name, 0)


def _joined(parts: list[NDArray], dtype: object) -> NDArray:  # type: ignore[type-arg]
    if len(parts) == 1:
        return parts[0]
    if parts and all(is_constant(part) and part[:1] == parts[0][:1] for part in parts):
        return np.broadcast_to(parts[0][:1], sum(map(len, parts)))
    return np.concatenate(parts) if parts else np.zeros(0, dtype)  # type: ignore[call-overload]

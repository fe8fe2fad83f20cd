"""Writes TPU-shaped traces of any size for measuring readers: `python reader_synthetic.py 1000000 OUT`.

One TensorCore executes the same module over and over. An execution is 100 events of 49 bytes on `XLA Ops`: eleven
ops, then a `while` around eight iterations of eleven ops. Events carry both clocks, as real ones do. All
varints of one kind have the same length, so that numpy can write a million events at a time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from analyzers.reading.protos import hlo_pb2, xplane_pb2

OPS, TRIPS = 11, 8
EVENTS_PER_EXECUTION = OPS + 1 + TRIPS * OPS
FIRST_METADATA_ID = 200  # Two bytes, as in any real trace.
PROGRAM_ID = 1234567890123
OP_PS, GAP_PS = 2_300_000, 7_500
FIRST_OFFSET_PS = 5 * 10**12
DEVICE_SKEW_PS = 10**9
OFFSET_STAT, DURATION_STAT, UNIQUE_STAT, CATEGORY_STAT, SCOPE_STAT, PROGRAM_STAT, RUN_STAT, HLO_STAT = range(1, 9)
_OPCODES = ("sort", "gather", "fusion", "copy", "dot", "reduce", "scatter", "add", "transpose", "select", "iota")


def write_trace(path: Path, events: int) -> None:
    """Write a trace with `events` op events, a multiple of 100, to `path`."""
    executions = events // EVENTS_PER_EXECUTION
    if executions * EVENTS_PER_EXECUTION != events or not events:
        raise ValueError(f"the number of events must be a positive multiple of {EVENTS_PER_EXECUTION}")
    pattern = _execution()
    record = pattern.itemsize
    modules = _modules_line(executions).SerializeToString()
    head = _field(2, b"/device:TPU:0") + _field(3, modules)
    line_head = _field(2, b"XLA Ops")
    line_size = len(line_head) + record * events
    line_tag = b"\x1a" + _varint(line_size)
    tables = _tables().SerializeToString()
    metadata_plane = _metadata_plane().SerializeToString()
    plane_size = len(head) + len(line_tag) + line_size + len(tables)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(b"\x0a" + _varint(plane_size) + head + line_tag + line_head)
        step = 10_000
        for first in range(0, executions, step):
            file.write(_at_executions(pattern, first, min(executions, first + step)))
        file.write(tables + b"\x0a" + _varint(len(metadata_plane)) + metadata_plane)
    part.rename(path)


def _execution() -> np.ndarray:
    """Return the event records of one execution, still without their offsets."""
    varint4, varint7 = np.dtype("4u1"), np.dtype("7u1")
    layout = np.dtype(
        [
            ("event", "u1", 2),
            ("metadata", "u1", 3),
            ("offset_tag", "u1"),
            ("offset", varint7),
            ("duration_tag", "u1"),
            ("duration", varint4),
            ("device_offset_head", "u1", 5),
            ("device_offset", varint7),
            ("device_duration_head", "u1", 5),
            ("device_duration", varint4),
            ("unique", "u1", 10),
        ]
    )
    rows = np.zeros(EVENTS_PER_EXECUTION, layout)
    rows["event"] = (0x22, layout.itemsize - 2)
    ids = np.concatenate([np.arange(OPS + 1), np.tile(np.arange(OPS) + OPS + 1, TRIPS)]) + FIRST_METADATA_ID
    rows["metadata"][:, 0] = 0x08
    rows["metadata"][:, 1:] = _varints(ids, 2)
    durations = np.full(EVENTS_PER_EXECUTION, OP_PS)
    durations[OPS] = _while_ps()
    rows["offset_tag"], rows["duration_tag"] = 0x10, 0x18
    rows["duration"] = rows["device_duration"] = _varints(durations, 4)
    rows["device_offset_head"] = (0x22, 10, 0x08, OFFSET_STAT, 0x18)
    rows["device_duration_head"] = (0x22, 7, 0x08, DURATION_STAT, 0x18)
    rows["unique"] = (0x22, 8, 0x08, UNIQUE_STAT, 0x18, *_varints(np.array([10**9]), 5)[0])
    return rows


def _while_ps() -> int:
    return TRIPS * OPS * (OP_PS + GAP_PS)


def _execution_ps() -> int:
    return OPS * (OP_PS + GAP_PS) + _while_ps() + 100 * GAP_PS


def _offsets() -> np.ndarray:
    """Return where in its execution each event starts, in picoseconds."""
    step = OP_PS + GAP_PS
    inside = np.arange(TRIPS * OPS) * step + OPS * step
    return np.concatenate([np.arange(OPS) * step, [OPS * step], inside])


def _at_executions(pattern: np.ndarray, first: int, last: int) -> bytes:
    """Return the event records of executions `first` to `last` (exclusive)."""
    rows = np.tile(pattern, last - first)
    starts = FIRST_OFFSET_PS + np.arange(first, last)[:, None] * _execution_ps() + _offsets()[None, :]
    rows["offset"] = _varints(starts.ravel(), 7)
    rows["device_offset"] = _varints(starts.ravel() + DEVICE_SKEW_PS, 7)
    return rows.tobytes()


def _varints(values: np.ndarray, size: int) -> np.ndarray:
    """Encode values whose varints all have `size` bytes."""
    values = values.astype(np.int64)
    assert values.min() >= 1 << 7 * (size - 1)
    assert values.max() < 1 << 7 * size
    out = (values[:, None] >> (7 * np.arange(size)) & 0x7F).astype(np.uint8)
    out[:, :-1] |= 0x80
    return out


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _modules_line(executions: int) -> xplane_pb2.XLine:
    line = xplane_pb2.XLine(id=1, name=b"XLA Modules")
    for number in range(executions):
        event = line.events.add(metadata_id=100)
        event.offset_ps = FIRST_OFFSET_PS + number * _execution_ps()
        event.duration_ps = _execution_ps() - 50 * GAP_PS
        event.stats.add(metadata_id=RUN_STAT, int64_value=number)
    return line


def _instructions() -> list[tuple[int, str, str, str]]:
    """Return (event metadata id, instruction, opcode, scope path) of every op."""
    rows = []
    for i in range(OPS):
        rows.append((i, f"{_OPCODES[i]}.{i}", _OPCODES[i], f"jit(step)/jvp(moe)/dispatch/{_OPCODES[i]}"))
    scope = "jit(step)/transpose(jvp(moe))/layers/while"
    rows.append((OPS, "while.1", "while", scope))
    for i in range(OPS):
        name = f"{_OPCODES[i]}.{100 + i}"
        rows.append((OPS + 1 + i, name, _OPCODES[i], f"{scope}/body/dispatch/{_OPCODES[i]}"))
    return [(FIRST_METADATA_ID + number, *rest) for number, *rest in rows]


def _tables() -> xplane_pb2.XPlane:
    """Return what follows the lines on the wire: names and metadata."""
    plane = xplane_pb2.XPlane()
    for key, name in (
        (OFFSET_STAT, b"device_offset_ps"),
        (DURATION_STAT, b"device_duration_ps"),
        (UNIQUE_STAT, b"all_reduce_unique_id"),
        (CATEGORY_STAT, b"hlo_category"),
        (SCOPE_STAT, b"tf_op"),
        (PROGRAM_STAT, b"program_id"),
        (RUN_STAT, b"run_id"),
    ):
        plane.stat_metadata[key].id = key
        plane.stat_metadata[key].name = name
    plane.event_metadata[100].id = 100
    plane.event_metadata[100].name = f"jit_step({PROGRAM_ID})".encode()
    for key, name, opcode, scope in _instructions():
        entry = plane.event_metadata[key]
        entry.id = key
        entry.name = f"%{name} = s32[4096]{{0:T(1024)}} {opcode}(s32[4096]{{0:T(1024)}} %p)".encode()
        entry.display_name = name.encode()
        entry.stats.add(metadata_id=CATEGORY_STAT, str_value=opcode.encode())
        entry.stats.add(metadata_id=SCOPE_STAT, str_value=f"{scope}:".encode())
        entry.stats.add(metadata_id=PROGRAM_STAT, uint64_value=PROGRAM_ID)
    return plane


def _metadata_plane() -> xplane_pb2.XPlane:
    plane = xplane_pb2.XPlane(name=b"/host:metadata")
    plane.stat_metadata[HLO_STAT].id = HLO_STAT
    plane.stat_metadata[HLO_STAT].name = b"Hlo Proto"
    entry = plane.event_metadata[1]
    entry.id = 1
    entry.name = f"jit_step({PROGRAM_ID})".encode()
    entry.stats.add(metadata_id=HLO_STAT, bytes_value=_module().SerializeToString())
    return plane


def _module() -> hlo_pb2.HloProto:
    """Return the compiled module that such executions come from: a loop of known trip count."""
    proto = hlo_pb2.HloProto()
    module = proto.hlo_module
    module.name = b"jit_step"
    module.id = 1
    entry = module.computations.add(id=1, name=b"main")
    body = module.computations.add(id=2, name=b"body")
    condition = module.computations.add(id=3, name=b"condition")
    module.entry_computation_id = 1
    module.entry_computation_name = b"main"
    for number, (_, name, opcode, scope) in enumerate(_instructions()):
        computation = entry if number <= OPS else body
        instruction = computation.instructions.add(id=number + 1, name=name.encode(), opcode=opcode.encode())
        instruction.metadata.op_name = scope.encode()
        instruction.shape.element_type = 4
        instruction.shape.dimensions.append(4096)
        if opcode == "while":
            instruction.called_computation_ids.extend([2, 3])
            instruction.backend_config = f'{{"known_trip_count":{{"n":"{TRIPS}"}}}}'.encode()
    condition.instructions.add(id=100, name=b"lt", opcode=b"compare")
    entry.root_id, body.root_id, condition.root_id = OPS + 1, 2 * OPS + 1, 100
    return proto


if __name__ == "__main__":
    write_trace(Path(sys.argv[2]), int(sys.argv[1]))

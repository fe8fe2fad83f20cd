"""What the columns of a trace are, on traces written by hand and on real ones counted by hand."""

import gzip
from collections import Counter

import numpy as np
import pytest
import zstandard

from analyzers.errors import UserError
from analyzers.reading.columns import ABSENT, NO_STRING, LineKind, PlaneKind
from analyzers.reading.protos import xplane_pb2
from analyzers.reading.xspace import read_xspace
from tests.analyzers.reading.xspaces import add_event, event_id, new_line, new_plane, stat_id

DEVICE = {"device_offset_ps": 0, "device_duration_ps": 0}


@pytest.fixture
def read(tmp_path, reader):
    def read_space(space, **options):
        path = tmp_path / "worker-3.xplane.pb"
        path.write_bytes(space.SerializeToString())
        return read_xspace(path, reader=reader, **options)

    return read_space


def strings(columns, name):
    return [None if i == NO_STRING else columns.strings[i] for i in columns.events.strings[name]]


def test_times_count_from_the_first_line_of_the_plane(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:TPU:0")
    late = new_line(plane, "XLA Ops", timestamp_ns=1_700_000_000_000_000_007)
    early = new_line(plane, "XLA Modules", timestamp_ns=1_700_000_000_000_000_000)
    add_event(plane, late, "sort.1", 500, 20)
    add_event(plane, early, "jit_f(1)", 100, 900)
    columns = read(space)
    assert columns.planes[0].origin_ns == 1_700_000_000_000_000_000
    assert columns.events.event_start_ps.tolist() == [7_500, 100]
    assert columns.events.event_duration_ps.tolist() == [20, 900]
    assert columns.events.line.tolist() == [0, 1]
    assert [(line.name, line.kind, line.first, line.last) for line in columns.lines] == [
        ("XLA Ops", LineKind.OPS, 0, 1),
        ("XLA Modules", LineKind.MODULES, 1, 2),
    ]


def test_device_clock_is_taken_only_where_every_event_of_the_line_has_it(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:TPU:0")
    modules, ops = new_line(plane, "XLA Modules"), new_line(plane, "XLA Ops")
    add_event(plane, modules, "jit_f(1)", 1, 2)
    add_event(plane, modules, "jit_f(1)", 3, 4, {"device_offset_ps": 30, "device_duration_ps": 40})
    add_event(plane, ops, "a", 5, 6, {"device_offset_ps": 50, "device_duration_ps": 60})
    add_event(plane, ops, "b", 7, 8, {"device_offset_ps": 70, "device_duration_ps": 80})
    columns = read(space)
    assert [line.device_clock for line in columns.lines] == [False, True]
    assert columns.events.start_ps.tolist() == [1, 3, 50, 70]
    assert columns.events.duration_ps.tolist() == [2, 4, 60, 80]
    assert columns.events.event_start_ps.tolist() == [1, 3, 5, 7]
    assert columns.events.event_duration_ps.tolist() == [2, 4, 6, 8]


def test_host_lines_keep_ops_and_steps_only(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/host:CPU")
    frames, work = new_line(plane, "python"), new_line(plane, "tf_XLAExecute/1")
    add_event(plane, frames, "$a.py:1 f", 0, 10, {"run_id": 5})
    add_event(plane, work, "noise", 0, 10, {"correlation_id": 9})
    add_event(plane, work, "sort.1", 1, 5, {"hlo_op": "sort.1", "program_id": 12}, by_reference=True)
    add_event(plane, work, "train", 0, 50, {"step_num": 0})
    columns = read(space)
    assert [line.name for line in columns.lines] == ["tf_XLAExecute/1"]
    assert columns.events.event_start_ps.tolist() == [1, 0]
    assert strings(columns, "hlo_op") == ["sort.1", None]
    assert columns.events.ints["step_num"].tolist() == [ABSENT, 0]
    assert columns.events.ints["program_id"].tolist() == [12, ABSENT]
    assert set(columns.events.ints) == {"step_num", "program_id"}
    assert set(columns.events.strings) == {"hlo_op"}


def test_lines_that_repeat_the_same_time_are_not_read(read):
    space = xplane_pb2.XSpace()
    for name, lines in (
        ("/device:TPU:0", ("Steps", "XLA Ops", "Framework Ops", "XLA TraceMe")),
        ("/device:TPU:0 SparseCore 1", ("TEC 0", "Sparse Core Ops")),
        ("/device:GPU:0", ("Stream #7(Kernel)", "XLA Ops")),
        ("#Chip0", ("XLA Ops",)),
    ):
        plane = new_plane(space, name)
        for line in lines:
            add_event(plane, new_line(plane, line), f"{name} {line}", 0, 1)
    columns = read(space)
    assert [line.name for line in columns.lines] == ["XLA Ops", "Sparse Core Ops", "Stream #7(Kernel)"]
    assert [plane.kind for plane in columns.planes] == [
        PlaneKind.TPU,
        PlaneKind.SPARSE_CORE,
        PlaneKind.GPU,
        PlaneKind.OTHER,
    ]


def test_an_aggregate_event_counts_as_many_and_has_no_place_in_time(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:GPU:0")
    line = new_line(plane, "Stream #1")
    add_event(plane, line, "k", 5, 6)
    aggregate = add_event(plane, line, "k", 0, 700)
    aggregate.num_occurrences = 30
    columns = read(space)
    assert columns.events.occurrences.tolist() == [1, 30]
    assert columns.events.start_ps.tolist() == [5, ABSENT]
    assert columns.events.duration_ps.tolist() == [6, 700]


def test_metadata_ids_that_are_absent_or_huge_have_no_row(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:TPU:0")
    line = new_line(plane, "XLA Ops")
    add_event(plane, line, "a", 0, 1)
    for metadata_id in (77, 2**62, -(2**63), 0):
        event = line.events.add()
        event.metadata_id = metadata_id
    big = plane.event_metadata[2**62]
    big.name = b"huge"
    columns = read(space)
    assert columns.events.metadata.tolist() == [0, -1, 1, -1, -1]
    assert [(entry.id, entry.name) for entry in columns.planes[0].metadata] == [(1, "a"), (2**62, "huge")]


def test_metadata_carries_what_events_have_in_common(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:TPU:0")
    event_id(plane, "sort.1", {"tf_op": "jit(f)/sort:", "flops": 7, "program_id": 2**64 - 1, "blob": b"\xff"})
    entry = plane.event_metadata[1].stats.add()
    entry.metadata_id = 10_000
    entry.int64_value = 3
    add_event(plane, new_line(plane, "XLA Ops"), "sort.1", 0, 1)
    metadata = read(space).planes[0].metadata[0]
    assert (metadata.name, metadata.display_name) == ("sort.1", "sort.1")
    assert metadata.stats == {
        "tf_op": "jit(f)/sort:",
        "flops": 7,
        "program_id": 2**64 - 1,
        "blob": b"\xff",
    }


def test_integer_stats_of_events_are_signed_64_bit(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:TPU:0")
    line = new_line(plane, "XLA Ops")
    add_event(plane, line, "a", 0, 1, {"program_id": 2**64 - 1, "flops": 2.75, "run_id": "12"})
    add_event(plane, line, "a", 0, 1, {"program_id": 5, "flops": float("inf")})
    columns = read(space)
    assert columns.events.ints["program_id"].tolist() == [-1, 5]
    assert columns.events.ints["flops"].tolist() == [2, ABSENT]
    assert "run_id" not in columns.events.ints


def test_strings_may_be_inline_referred_or_not_utf8(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:GPU:0")
    line = new_line(plane, "Stream #1")
    add_event(plane, line, "a", 0, 1, {"hlo_op": "fusion.1", "tf_op": b"\xffx"})
    add_event(plane, line, "a", 0, 1, {"hlo_op": "fusion.1"}, by_reference=True)
    event = add_event(plane, line, "a", 0, 1, {"name": "kernel"})
    dangling = event.stats.add()
    dangling.metadata_id = stat_id(plane, "hlo_op")
    dangling.ref_value = 999
    columns = read(space)
    assert strings(columns, "hlo_op") == ["fusion.1", "fusion.1", None]
    assert strings(columns, "tf_op") == ["\\xffx", None, None]
    assert strings(columns, "name") == [None, None, "kernel"]
    assert columns.strings == ("\\xffx", "fusion.1", "kernel")


def test_two_planes_of_one_name_stay_two(read):
    space = xplane_pb2.XSpace()
    for offset in (3, 4):
        plane = new_plane(space, "/device:TPU:0")
        add_event(plane, new_line(plane, "XLA Ops"), f"op{offset}", offset, 1)
    columns = read(space)
    assert [line.plane for line in columns.lines] == [0, 1]
    assert [columns.planes[i].metadata[0].name for i in (0, 1)] == ["op3", "op4"]
    assert columns.events.event_start_ps.tolist() == [3, 4]


def test_negative_durations_are_kept_as_written(read):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:TPU:0")
    add_event(plane, new_line(plane, "XLA Ops", timestamp_ns=-5), "a", -3, -4)
    columns = read(space)
    assert columns.planes[0].origin_ns == -5
    assert (columns.events.start_ps[0], columns.events.duration_ps[0]) == (-3, -4)


def test_what_the_file_says_of_itself(read):
    space = xplane_pb2.XSpace(errors=[b"dropped"], warnings=[b"careful \xff"])
    plane = new_plane(space, "/host:metadata")
    event_id(plane, "jit_f(12)", {"Hlo Proto": b"\x0a\x00", "other": 1})
    columns = read(space)
    assert columns.hostname == "worker-3"
    assert columns.errors == ("dropped", "careful \\xff")
    assert columns.hlo_protos == {"jit_f(12)": b"\x0a\x00"}
    assert columns.planes[0].metadata[0].stats == {"other": 1}
    space.hostnames.append(b"named")
    assert read(space).hostname == "named"
    assert columns.cut_at_byte is None


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_compressed_files_are_read_by_what_they_hold(tmp_path, reader, suffix):
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/device:TPU:0")
    add_event(plane, new_line(plane, "XLA Ops"), "a", 11, 1)
    raw = space.SerializeToString()
    for name, content in (
        ("gz", gzip.compress(raw)),
        ("zst", zstandard.ZstdCompressor().compress(raw)),
        ("zst", zstandard.ZstdCompressor(write_content_size=False).compress(raw)),
    ):
        path = tmp_path / f"host.xplane.pb{suffix}"
        path.write_bytes(content)
        if suffix in ("", f".{name}"):
            columns = read_xspace(path, reader=reader)
            assert columns.events.start_ps.tolist() == [11]
            assert columns.hostname == "host"
    if suffix:
        path.write_bytes(raw)
        with pytest.raises(UserError, match=r"is not .* data, as its name says"):
            read_xspace(path, reader=reader)


def test_real_cpu_trace_has_two_events_per_execution_of_its_sort(real_traces, reader):
    columns = read_xspace(real_traces / "cpu-two-sorts-per-step.xplane.pb", reader=reader)
    counts = Counter(strings(columns, "hlo_op"))
    assert counts["sort.20"] == 6
    assert counts["while.16"] == 3
    assert columns.events.ints["step_num"][columns.events.ints["step_num"] != ABSENT].tolist() == [0, 1, 2]
    sorts = np.array(strings(columns, "hlo_op")) == "sort.20"
    assert set(columns.events.ints["program_id"][sorts].tolist()) == {12}
    assert "jit_f(12)" in columns.hlo_protos


def test_real_tpu_trace_keeps_modules_ops_and_async_ops_of_each_chip(real_traces, reader):
    columns = read_xspace(real_traces / "tpu-v6e-4chip-psum-offload.xplane.pb", reader=reader)
    tpu0 = next(i for i, plane in enumerate(columns.planes) if plane.name == "/device:TPU:0")
    assert {line.name: (line.last - line.first, line.device_clock) for line in columns.lines if line.plane == tpu0} == {
        "XLA Modules": (105, False),
        "XLA Ops": (1504, True),
        "Async XLA Ops": (600, False),
    }
    assert len(columns.hlo_protos) == 4
    assert sum(plane.kind is PlaneKind.TPU for plane in columns.planes) == 4
    first = next(line for line in columns.lines if line.name == "XLA Ops").first
    assert columns.events.start_ps[first] == 5438997127500
    assert columns.events.duration_ps[first] == 4443766250
    assert columns.events.event_start_ps[first] == 5439011744500


def test_real_gpu_traces_carry_their_stats_on_the_event(real_traces, reader):
    columns = read_xspace(real_traces / "gpu-mi355-fused-attention.xplane.pb", reader=reader)
    stream = next(line for line in columns.lines if line.name == "Stream #2")
    assert stream.last - stream.first == 150
    names = strings(columns, "name")
    assert "jit(loss_fn)/jvp()/convert_element_type" in names[stream.first : stream.last]
    columns = read_xspace(real_traces / "gpu-mi300-conv-jax08.xplane.pb", reader=reader)
    assert sum(plane.kind is PlaneKind.GPU for plane in columns.planes) == 8
    streams = [line.last - line.first for line in columns.lines if line.name.startswith("Stream")]
    assert streams == [9, 9, 34, 8] + [25] * 7

"""Files that are not whole, not traces, or hostile: each is refused in one sentence, and none misleads."""

import gzip
import os
import random

import pytest
import zstandard

from analyzers.errors import UserError
from analyzers.reading.protos import xplane_pb2
from analyzers.reading.xspace import read_xspace
from tests.analyzers.reading.xspaces import add_event, new_line, new_plane


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write(folder, content: bytes, name: str = "host.xplane.pb"):
    path = folder / name
    path.write_bytes(content)
    return path


def two_planes() -> xplane_pb2.XSpace:
    space = xplane_pb2.XSpace(hostnames=[b"somewhere"])
    for number in range(2):
        plane = new_plane(space, f"/device:TPU:{number}", plane_id=number)
        for name in ("XLA Modules", "XLA Ops"):
            line = new_line(plane, name, timestamp_ns=1000)
            for event in range(3):
                add_event(plane, line, f"op.{event}", 1000 * number + event, event, {"run_id": event})
    return space


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty (0 bytes)"),
        (b"\x0a", "is not a profile: byte 0 begins no record"),
        (b"\x00", "is not a profile: byte 0 begins no record"),
        (random.Random(7).randbytes(5000), "is not a profile"),
        (b"hello, this is the log of a training run\n" * 50, "is not a profile"),
        (b'{"displayTimeUnit": "ns", "traceEvents": []}', "is not a profile"),
        (b"\x1f\x8b" + random.Random(8).randbytes(500), "cannot be decompressed"),
        (gzip.compress(random.Random(9).randbytes(5000))[:2000], "cannot be decompressed"),
        (gzip.compress(random.Random(9).randbytes(5000)), "is not a profile"),
        (gzip.compress(b""), "is not a profile"),
        (b"\x28\xb5\x2f\xfd" + random.Random(10).randbytes(500), "cannot be decompressed"),
        (field(2, b"only an error message"), "is not a profile: it holds no planes"),
        (field(1, b""), "is not a profile: it holds no planes"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path, reader, content, sentence):
    path = write(tmp_path, content)
    for partial in (False, True):
        with pytest.raises(UserError) as error:
            read_xspace(path, reader=reader, partial=partial)
        assert str(error.value).startswith(str(path))
        # What could be decompressed of a file that was cut is looked at with --partial.
        assert sentence in str(error.value) or (partial and "is not a profile" in str(error.value))
        assert "\n" not in str(error.value)


def test_missing_file_and_refused_format(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_xspace(tmp_path / "gone.xplane.pb")
    with pytest.raises(UserError, match="Riegeli format, which is not read"):
        read_xspace(write(tmp_path, b"x", "host.xplane.riegeli"))


def test_a_file_cut_at_any_byte_gives_the_lines_before_the_cut(tmp_path, reader):
    space = two_planes()
    raw = space.SerializeToString()
    # Where the lines and planes end, told by finding each one's own bytes in the file.
    line_ends, plane_ends, position = [], [0], 0
    for plane in space.planes:
        for line in plane.lines:
            content = line.SerializeToString()
            position = raw.index(content, position) + len(content)
            line_ends.append(position)
        plane_ends.append(raw.index(plane.SerializeToString()) + plane.ByteSize())
    for cut in range(3, len(raw)):
        path = write(tmp_path, raw[:cut])
        whole_lines = sum(end <= cut for end in line_ends)
        at_boundary = cut in plane_ends
        if at_boundary:
            assert len(read_xspace(path, reader=reader).lines) == whole_lines
            continue
        with pytest.raises(UserError) as error:
            read_xspace(path, reader=reader)
        if "is not a profile" in str(error.value):
            assert whole_lines == 0
            continue
        assert f"cut short: it ends at byte {cut:,}" in str(error.value)
        assert f"Before it are {whole_lines} whole lines" in str(error.value)
        columns = read_xspace(path, reader=reader, partial=True)
        assert len(columns.lines) == whole_lines
        assert len(columns.events) == 3 * whole_lines
        assert max([0, *(end for end in line_ends if end <= cut)]) <= columns.cut_at_byte <= cut
        # The names of a plane's stats follow its lines: the plane that was cut has lost them.
        if cut > plane_ends[1]:
            assert columns.events.ints["run_id"].tolist()[:6] == [0, 1, 2] * 2


def test_names_lost_with_the_cut_are_not_invented(tmp_path, reader):
    raw = two_planes().SerializeToString()
    first_plane = two_planes().planes[0]
    cut = raw.index(first_plane.lines[1].SerializeToString()) + first_plane.lines[1].ByteSize()
    columns = read_xspace(write(tmp_path, raw[:cut]), reader=reader, partial=True)
    assert columns.events.metadata.tolist() == [-1] * 6
    assert columns.planes[0].name == "/device:TPU:0"


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor(level=1).compress])
def test_a_compressed_file_that_is_cut_is_read_as_far_as_it_goes(tmp_path, reader, compress):
    space = two_planes()
    space.planes[1].stats.add(bytes_value=random.Random(1).randbytes(300_000))
    whole = compress(space.SerializeToString())
    path = write(tmp_path, whole[: len(whole) // 2], "host.xplane.pb.gz" if whole[0] == 0x1F else "h.xplane.pb.zst")
    with pytest.raises(UserError, match="cannot be decompressed"):
        read_xspace(path, reader=reader)
    columns = read_xspace(path, reader=reader, partial=True)
    assert columns.cut_at_byte is not None
    assert len(columns.events) == 12
    # Two frames, or gzip members, one after the other are one file.
    path.write_bytes(compress(two_planes().SerializeToString()) + compress(two_planes().SerializeToString()))
    assert len(read_xspace(path, reader=reader).events) == 24


@pytest.mark.parametrize("length", [2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("level", ["plane", "line", "event", "stat"])
def test_lengths_that_overflow_are_refused(tmp_path, reader, level, length):
    oversized = {"plane": 1, "line": 3, "event": 4, "stat": 4}[level]
    content = varint(oversized << 3 | 2) + varint(length) + b"abc"
    if level == "stat":
        content = field(4, field(1, 1) + content)
    if level in ("stat", "event"):
        content = field(3, field(2, b"XLA Ops") + content)
    if level != "plane":
        content = field(1, field(2, b"/device:TPU:0") + content)
    path = write(tmp_path, field(1, field(2, b"/device:TPU:1") + field(3, field(1, 4))) + content)
    with pytest.raises(UserError, match=r"is damaged|is cut short"):
        read_xspace(path, reader=reader)
    columns = read_xspace(path, reader=reader, partial=True)
    assert columns.planes[0].name == "/device:TPU:1"
    assert len(columns.events) == 0


def test_a_damaged_event_is_named_by_the_offset_of_its_line(tmp_path, reader):
    good = field(3, field(2, b"XLA Modules") + field(4, field(1, 1) + field(3, 8)))
    bad = field(3, field(2, b"XLA Ops") + field(4, field(1, 1)) + field(4, b"\x18"))
    head = field(2, b"/device:TPU:0")
    path = write(tmp_path, field(1, head + good + bad + good) + field(1, head + good))
    offset = path.read_bytes().index(bad)
    with pytest.raises(UserError, match=rf"is damaged, and the record that begins at byte {offset}\b"):
        read_xspace(path, reader=reader)
    columns = read_xspace(path, reader=reader, partial=True)
    assert columns.cut_at_byte == offset
    assert [(line.name, line.last) for line in columns.lines] == [("XLA Modules", 1)]


def test_damaged_metadata_loses_what_follows_it(tmp_path, reader):
    line = field(3, field(2, b"XLA Ops") + field(4, field(1, 1)))
    entry = field(4, field(1, 1) + field(2, field(1, 1) + field(2, b"sort.1")))
    bad = field(4, field(1, 2) + field(2, b"\x0a\xff\xff"))
    path = write(tmp_path, field(1, field(2, b"/device:TPU:0") + line + entry + bad + line))
    offset = path.read_bytes().index(bad)
    with pytest.raises(UserError, match=f"begins at byte {offset}"):
        read_xspace(path, reader=reader)
    columns = read_xspace(path, reader=reader, partial=True)
    assert columns.cut_at_byte == offset
    assert len(columns.lines) == 1
    assert columns.planes[0].metadata[0].name == "sort.1"


def test_a_million_unknown_fields_are_passed_over(tmp_path, reader):
    unknown = field(1000, 5) + field(2000, b"xy") + varint(3000 << 3 | 1) + bytes(8)
    event = field(4, field(1, 1) + field(2, 3) + unknown * 1000 + field(3, 9))
    line = field(3, field(2, b"XLA Ops") + unknown * 334_000 + event)
    path = write(tmp_path, field(1, field(2, b"/device:TPU:0") + line))
    columns = read_xspace(path, reader=reader)
    assert columns.events.start_ps.tolist() == [3]
    assert columns.events.duration_ps.tolist() == [9]


def test_groups_and_impossible_tags_are_damage(tmp_path, reader):
    good = field(1, field(2, b"/device:TPU:0") + field(3, field(2, b"XLA Ops") + field(4, field(1, 1))))
    for tag in (b"\x0b", b"\x00", b"\xff" * 9 + b"\x01", b"\x80" * 11):
        path = write(tmp_path, good + tag)
        with pytest.raises(UserError, match=f"begins at byte {len(good)} "):
            read_xspace(path, reader=reader)
        assert len(read_xspace(path, reader=reader, partial=True).events) == 1


@pytest.mark.slow
def test_a_file_of_2_4_gigabytes_is_read_to_its_end(tmp_path, reader):
    """A plane that is not read holds 2.4 GB of zeros, sparse on disk; an op line follows it."""
    size = 2_400_000_000
    stat = varint(6 << 3 | 2) + varint(size)
    holder_size = len(stat) + size
    head = field(2, b"#Chip0")
    hole = varint(3 << 3 | 2) + varint(holder_size)
    plane = varint(1 << 3 | 2) + varint(len(head) + len(hole) + holder_size) + head + hole + stat
    tail = field(1, field(2, b"/device:TPU:0") + field(3, field(2, b"XLA Ops") + field(4, field(2, 77))))
    path = tmp_path / "big.xplane.pb"
    with path.open("wb") as file:
        file.write(plane)
        file.seek(size, os.SEEK_CUR)
        file.write(tail)
    assert path.stat().st_size > 2.4e9
    columns = read_xspace(path, reader=reader)
    assert columns.events.start_ps.tolist() == [77]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 3)
    with pytest.raises(UserError, match="is cut short"):
        read_xspace(path, reader=reader)

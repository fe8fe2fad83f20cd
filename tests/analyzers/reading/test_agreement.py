"""The C reader against the protobuf reader, on anything: they agree, or the C one refuses cleanly."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers.errors import UserError
from analyzers.reading import _walker, c_reader, structure
from analyzers.reading.columns import INT_STATS, STRING_STATS
from analyzers.reading.protos import xplane_pb2
from analyzers.reading.xspace import read_xspace
from tests.analyzers.reading.test_bad_files import field
from tests.fuzz.make_seeds import lines

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"

STAT_NAMES = (*INT_STATS, *STRING_STATS, "device_offset_ps", "device_duration_ps", "unknown", "sort.1")
int64 = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
uint64 = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))
names = st.one_of(st.sampled_from([b"sort.1", b"while.2", b"\xff\xfe", b""]), st.binary(max_size=12))
# Ids that exist, that do not, and one far from the others.
ids = st.one_of(st.integers(1, len(STAT_NAMES)), st.sampled_from([0, 40, 2**40, -1]))


@st.composite
def stats(draw):
    stat = xplane_pb2.XStat(metadata_id=draw(ids))
    match draw(st.sampled_from(["", "double", "uint64", "int64", "str", "bytes", "ref"])):
        case "double":
            stat.double_value = draw(st.floats())
        case "uint64":
            stat.uint64_value = draw(uint64)
        case "int64":
            stat.int64_value = draw(int64)
        case "str":
            stat.str_value = draw(names)
        case "bytes":
            stat.bytes_value = draw(names)
        case "ref":
            stat.ref_value = draw(uint64)
    return stat


@st.composite
def events(draw):
    event = xplane_pb2.XEvent(metadata_id=draw(ids), duration_ps=draw(int64))
    if draw(st.integers(0, 5)) == 0:
        event.num_occurrences = draw(int64)
    elif draw(st.booleans()):
        event.offset_ps = draw(int64)
    event.stats.extend(draw(st.lists(stats(), max_size=4)))
    if draw(st.booleans()):
        event.stats.add(metadata_id=STAT_NAMES.index("device_offset_ps") + 1, int64_value=draw(int64))
        event.stats.add(metadata_id=STAT_NAMES.index("device_duration_ps") + 1, uint64_value=draw(uint64))
    return event


@st.composite
def spaces(draw):
    space = xplane_pb2.XSpace(hostnames=draw(st.lists(names, max_size=1)))
    for _ in range(draw(st.integers(1, 3))):
        plane = space.planes.add()
        plane.name = draw(
            st.sampled_from(
                [b"/device:TPU:0", b"/host:CPU", b"/device:GPU:1", b"/device:TPU:0 SparseCore 1", b"#Chip0", b""]
            )
        )
        for number, name in enumerate(STAT_NAMES):
            if draw(st.integers(0, 9)):
                plane.stat_metadata[number + 1].name = name.encode()
        if draw(st.booleans()):
            plane.stat_metadata[2**40].name = draw(st.sampled_from([b"hlo_op", b"run_id", b"other"]))
        for key in draw(st.lists(ids, max_size=5)):
            plane.event_metadata[key].name = draw(names)
        for _ in range(draw(st.integers(0, 3))):
            line = plane.lines.add()
            line.timestamp_ns = draw(int64)
            name = draw(st.sampled_from([b"XLA Ops", b"XLA Modules", b"Async XLA Ops", b"Stream #1", b"Steps", b""]))
            if draw(st.booleans()):
                line.name = name
            else:
                line.display_name = name
            line.events.extend(draw(st.lists(events(), max_size=6)))
    return space


def assert_equal(fast, slow):
    assert fast.planes == slow.planes
    assert fast.lines == slow.lines
    assert fast.strings == slow.strings
    assert fast.hlo_protos == slow.hlo_protos
    assert (fast.hostname, fast.errors, fast.cut_at_byte) == (slow.hostname, slow.errors, slow.cut_at_byte)
    for column in (
        "line",
        "metadata",
        "start_ps",
        "duration_ps",
        "event_start_ps",
        "event_duration_ps",
        "occurrences",
    ):
        left, right = getattr(fast.events, column), getattr(slow.events, column)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right, err_msg=column)
    for group in ("ints", "strings"):
        left, right = getattr(fast.events, group), getattr(slow.events, group)
        assert list(left) == list(right)
        for column in left:
            assert left[column].dtype == right[column].dtype
            np.testing.assert_array_equal(left[column], right[column], err_msg=column)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("agreement") / "host.xplane.pb"


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(spaces())
def test_both_readers_give_identical_columns(path, space):
    space.planes[0].id = 1  # Not a file without a single record in its planes: that is refused.
    path.write_bytes(space.SerializeToString())
    assert_equal(read_xspace(path, reader="c"), read_xspace(path, reader="python"))


def attempt(path, reader, partial):
    try:
        return read_xspace(path, reader=reader, partial=partial)
    except UserError as error:
        return error


def agree_or_refused(path):
    """Read what no one wrote; tell whether both readers understood it."""
    slow, fast = attempt(path, "python", False), attempt(path, "c", False)
    if isinstance(slow, UserError) or isinstance(fast, UserError):
        assert isinstance(fast, UserError)
        attempt(path, "c", True)
        return False
    assert_equal(fast, slow)
    return True


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(spaces(), st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=3))
def test_changed_bytes_are_read_alike_or_refused(path, space, changes):
    content = bytearray(space.SerializeToString())
    for where, value in changes:
        if content:
            content[where % len(content)] = value
    path.write_bytes(content)
    agree_or_refused(path)


def test_changed_bytes_of_a_real_trace_are_read_alike_or_refused(path, real_traces):
    original = (real_traces / "cpu-two-sorts-per-step.xplane.pb").read_bytes()
    chance = random.Random(20)
    understood = 0
    for _ in range(60):
        content = bytearray(original)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        understood += agree_or_refused(path)
    assert 0 < understood < 60


pieces = st.one_of(
    st.binary(max_size=6),
    st.tuples(st.integers(1, 12), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=9))).map(
        lambda piece: field(*piece)
    ),
    st.sampled_from([b"\x80" * n + b"\x01" for n in range(3, 11)]),
)


@given(st.lists(pieces, max_size=8).map(b"".join), st.integers(0, 3))
def test_planes_are_split_alike(content, first):
    first = min(first, len(content))
    data = memoryview(content)
    fast, slow = (split(data, first, len(content)) for split in (c_reader.split_plane, structure.split_plane))
    assert fast == slow


def line_file(path, message: bytes, plane_name: bytes):
    """Write a file whose only line is `message`, with stat ids as the fuzz target has them."""
    tables = xplane_pb2.XPlane(name=plane_name)
    for number, name in enumerate(STAT_NAMES):
        tables.stat_metadata[number + 1].name = name.encode()
    path.write_bytes(field(1, tables.SerializeToString() + field(3, message)))


@pytest.mark.parametrize("plane_name", [b"/host:CPU", b"/device:GPU:0"])
def test_what_fuzzing_kept_is_read_alike_or_refused(path, plane_name):
    inputs = sorted(CORPUS.iterdir())
    assert inputs
    for entry in inputs:
        line_file(path, entry.read_bytes()[1:], plane_name)
        agree_or_refused(path)
    for line in lines():
        line_file(path, line.SerializeToString(), plane_name)
        assert agree_or_refused(path)


def test_a_walker_that_gave_its_columns_away_reads_no_further():
    walker = _walker.Walker(b"", 1)
    walker.begin(False, 0)
    assert walker.end() == (0, 0, 0, 0, 0, 0)
    walker.take(0)
    tables = _walker.Tables(*(np.empty(0, dtype) for dtype in (np.int64, np.int32) * 3))
    for misuse in (
        lambda: walker.begin(False, 0),
        lambda: walker.walk(tables, 0, 0, 0),
        lambda: walker.end(),
        lambda: walker.drop(),
    ):
        with pytest.raises(RuntimeError, match="handed over"):
            misuse()
    with pytest.raises(KeyError):
        walker.take(0)


def test_the_extension_checks_what_it_is_given():
    walker = _walker.Walker(b"abc", 1)
    tables = _walker.Tables(*(np.empty(0, dtype) for dtype in (np.int64, np.int32) * 3))
    for first, last in ((-1, 2), (2, 1), (0, 4)):
        with pytest.raises(ValueError, match="outside the buffer"):
            walker.walk(tables, first, last, 0)
        with pytest.raises(ValueError, match="outside the buffer"):
            walker.line_name(first, last)
        with pytest.raises(ValueError, match="outside the buffer"):
            _walker.split_plane(b"abc", first, last)
    ids, rows = np.array([3, 1], np.int64), np.array([0, 1], np.int32)
    empty = (np.empty(0, np.int64), np.empty(0, np.int32)) * 2
    with pytest.raises(ValueError, match="ascending"):
        _walker.Tables(ids, rows, *empty)
    with pytest.raises(ValueError, match="one int32 row each"):
        _walker.Tables(np.sort(ids), rows[:1], *empty)
    start = np.zeros(3, np.int64)
    parent = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="outside the rows"):
        _walker.nest(np.array([0]), np.array([4]), start, start, 0, parent)
    with pytest.raises(ValueError, match="different lengths"):
        _walker.nest(np.array([0]), np.array([3]), start, start[:2], 0, parent)

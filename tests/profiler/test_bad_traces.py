"""Every kind of bad trace through the whole command: alone it is refused, among good ones it is named and left out."""

import gzip
import json
import random
import shutil

import pytest
import zstandard

from analyzers.reading.protos import xplane_pb2
from profiler.cli.main import main
from tests.analyzers.counting.nest import nest_program
from tests.analyzers.reading.test_bad_files import field, varint
from tests.builders.play import TICK_PS, added, default_durations, play
from tests.builders.spaces import tpu_space, trace_file

STEPS = 3
SESSION = "plugins/profile/2026_01_01"
GARBAGE = random.Random(5).randbytes(4000)


@pytest.fixture
def show(capsys):
    """Run `moe-prof show --json`; return exit code, parsed output (None if there is none) and standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["show", "--json", *(str(a) for a in arguments)])
        captured = capsys.readouterr()
        return left.value.code, json.loads(captured.out)["traces"][0] if captured.out else None, captured.err

    return call


def _slower(name, step, iterations):
    return default_durations(name, step, iterations) + 50 * TICK_PS


@pytest.fixture(scope="module")
def runs():
    return {"good0": play(nest_program(), steps=STEPS), "good1": play(nest_program(), _slower, steps=STEPS)}


@pytest.fixture(scope="module")
def good(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    for host, of_host in runs.items():
        trace_file(folder, tpu_space(nest_program(), of_host), host)
    return folder


def _whole() -> bytes:
    return tpu_space(nest_program(), play(nest_program(), steps=1)).SerializeToString()


BAD = {
    "empty": lambda: b"",
    "one byte": lambda: b"\x0a",
    "random bytes": lambda: GARBAGE,
    "text": lambda: b"step 1: loss 6.47\n" * 300,
    "gzip of garbage": lambda: gzip.compress(GARBAGE),
    "cut gzip": lambda: gzip.compress(_whole())[:500],
    "zstd of garbage": lambda: zstandard.ZstdCompressor().compress(GARBAGE),
    "cut in the middle": lambda: _whole()[:2000],
    "a length that overflows": lambda: field(1, field(2, b"/device:TPU:0") + varint(3 << 3 | 2) + varint(2**63 - 1)),
    "no device ops": lambda: field(1, field(2, b"/host:CPU")),
}
every_bad_file = pytest.mark.parametrize("content", BAD.values(), ids=BAD)


@every_bad_file
def test_alone_it_is_refused_in_one_sentence(show, tmp_path, content):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(content())
    code, found, err = show(path)
    assert (code, found) == (2, None)
    assert err.startswith(f"moe-prof: {path} ")
    assert err.count("\n") == 1


@every_bad_file
def test_among_good_files_it_is_named_and_the_rest_reported(show, good, tmp_path, content):
    expected = show(good)[1]
    shutil.copytree(good, tmp_path / "log")
    bad = tmp_path / "log" / SESSION / "bad.xplane.pb"
    bad.write_bytes(content())
    code, found, err = show(tmp_path / "log")
    assert (code, err) == (1, "")
    (caveat,) = found.pop("caveats")
    assert caveat["name"] == "unreadable-file"
    assert caveat["lower_bound"]
    assert caveat["message"].startswith(f"1 of 3 files could not be read and is left out: {bad} ")
    assert found.pop("at_least")
    for key in ("name", "path", "hosts", "caveats", "at_least"):
        found.pop(key, None)
        expected.pop(key, None)
    assert found == expected


def test_a_torso_without_ops_is_said_to_be_cut(show, tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(field(1, field(2, b"/host:CPU") + field(3, field(2, b"python"))) + field(1, bytes(99))[:2])
    code, found, err = show(path, "--partial")
    assert (code, found) == (2, None)
    assert "holds no device ops before byte 25, where it is cut (its planes are /host:CPU" in err


def _one_file(show, folder, space):
    """Return what `show` says of a trace, and its exit code is that of a trace that can be read."""
    code, found, err = show(trace_file(folder, space))
    assert (code, err) == (0, "")
    return found, [c["name"] for c in found["caveats"]]


def _op_events(space):
    for plane in space.planes:
        for line in plane.lines:
            if line.name == b"XLA Ops":
                yield from ((plane, event) for event in line.events)


def test_a_million_unknown_fields_change_nothing(show, runs, tmp_path):
    space = tpu_space(nest_program(), runs["good0"])
    expected, _ = _one_file(show, tmp_path / "plain", space)
    unknown = field(1000, 5) + field(2000, b"xy") + varint(3000 << 3 | 1) + bytes(8)
    for plane in space.planes:
        if plane.name == b"/device:TPU:0":
            plane.lines[1].MergeFromString(unknown * 200_000)
            plane.MergeFromString(unknown * 134_000)
    found, _ = _one_file(show, tmp_path / "unknown", space)
    for output in (expected, found):
        output.pop("path")
        output.pop("hosts")
    assert found == expected


@pytest.mark.parametrize("unknown_id", [0, 10**6, 2**62, -1])
def test_events_of_no_metadata_are_no_op_s_and_are_missed(show, runs, tmp_path, unknown_id):
    """One execution in a loop loses its name: its instruction then ran too seldom in that step, and that is said."""
    space = tpu_space(nest_program(), runs["good0"])
    lost = next(
        (plane.event_metadata[event.metadata_id].display_name.decode(), event)
        for plane, event in _op_events(space)
        if b"sine" in plane.event_metadata[event.metadata_id].display_name
    )
    name, event = lost
    event.metadata_id = unknown_id
    found, caveats = _one_file(show, tmp_path, space)
    assert "count-mismatch" in caveats
    assert found["at_least"]
    truth = added(runs["good0"], lambda r, e: e.instruction, lambda e: 1)
    truth[name] -= 1
    assert {op["name"]: op["executions"] for op in found["ops"]} == truth


def test_negative_durations_are_counted_and_take_no_time(show, runs, tmp_path):
    space = tpu_space(nest_program(), runs["good0"])
    containers = {e.instruction for e in runs["good0"][0].executions if e.container}
    plane, event = next(
        (plane, event)
        for plane, event in _op_events(space)
        if plane.event_metadata[event.metadata_id].display_name.decode() not in containers
    )
    name = plane.event_metadata[event.metadata_id].display_name.decode()
    own_ps = event.duration_ps
    ids = {entry.name: key for key, entry in plane.stat_metadata.items()}
    event.duration_ps = -7
    for stat in event.stats:
        if stat.metadata_id == ids[b"device_duration_ps"]:
            stat.int64_value = -7
    found, caveats = _one_file(show, tmp_path, space)
    assert caveats == ["negative-duration"]
    assert found["at_least"]
    (op,) = [op for op in found["ops"] if op["name"] == name]
    assert op["executions"] == added(runs["good0"], lambda r, e: e.instruction, lambda e: 1)[name]
    assert op["self_ps"] == added(runs["good0"], lambda r, e: e.instruction)[name] - own_ps


def test_two_planes_of_one_name_are_two_devices(show, good, runs, tmp_path):
    """A file into which the traces of two hosts were merged says what the two files say."""
    merged = xplane_pb2.XSpace()
    for of_host in runs.values():
        space = tpu_space(nest_program(), of_host)
        merged.planes.extend(p for p in space.planes if p.name.startswith(b"/device") or of_host is runs["good0"])
    found, caveats = _one_file(show, tmp_path, merged)
    expected = show(good)[1]
    assert caveats == []
    assert found["devices"] == ["TPU:0", "TPU:0 (2)"]
    assert list(found["self_ps_by_device"].values()) == list(expected["self_ps_by_device"].values())
    for key in ("self_ps", "step_wall_ps", "sorts", "self_ps_by_layer_and_chunk", "modules"):
        assert found[key] == expected[key]

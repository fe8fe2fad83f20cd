"""`moe-prof view`: XProf answers with the run's sessions, nothing is left in it, and Perfetto's file parses back."""

import gzip
import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from analyzers.trace import load
from profiler.cli import view
from profiler.cli.main import main
from tests.builders.handmade import Op, handmade_proto, trips
from tests.builders.play import Program, play
from tests.builders.spaces import tpu_space, trace_file

LAYERS = "jit(f)/layers/while"
PROGRAM = Program(
    handmade_proto(
        "main",
        test=[Op("t", "constant")],
        layer=[Op("p", "parameter"), Op("sort.1", "sort", ["p"], scope=f"{LAYERS}/body/dispatch/jit(argsort)/sort")],
        main=[Op("x", "parameter"), Op("while.1", "while", ["x"], ["layer", "test"], LAYERS, config=trips(4))],
    )
)
ROOT = Path(__file__).resolve().parents[2]


def test_perfetto_has_sorts_and_layers_as_named_tracks(ring_run, tmp_path):
    file = tmp_path / "cached.json.gz"
    with pytest.raises(SystemExit) as left:
        main(["view", str(ring_run), "--variant", "recompute", "--perfetto", str(file)])
    assert not left.value.code
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    by_track = Counter(names[e["pid"], e["tid"]] for e in slices)
    assert {"sorts", "layers"} <= set(by_track)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"CPU:0", "CPU:1"}
    # Each device's sorts run 18 times in each of 2 steps; an execution can be several events.
    for pid in (1, 2):
        own = [e for e in slices if e["pid"] == pid and names[pid, e["tid"]] == "sorts"]
        assert len(own) >= 36
        opcodes = Counter(e["args"]["opcode"] for e in own)
        # 2 top-k in the forward and 2 in the recomputed forward, each one custom call.
        assert set(opcodes) == {"sort", "custom-call"}
        assert opcodes["custom-call"] == 4 * 2
    layers = sorted((e["ts"], e["dur"]) for e in slices if e["pid"] == 1 and names[1, e["tid"]] == "layers")
    assert all(t + d <= after + 1e-6 for (t, d), (after, _) in pairwise(layers))
    assert load(ring_run, variant="recompute").layers == (0, 1)
    assert {e["name"].split()[1] for e in slices if names[e["pid"], e["tid"]] == "layers"} == {"0", "1"}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Two hosts with two devices each, whose devices have the same names; 4 layers, in each 1 sort, 3 steps."""
    folder = tmp_path_factory.mktemp("log")
    runs = play(PROGRAM, devices=2, steps=3)
    for host in ("host0", "host1"):
        trace_file(folder, tpu_space(PROGRAM, runs), host)
    return folder


def _written(file):
    return json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


def _view(*arguments):
    with pytest.raises(SystemExit) as left:
        main(["view", *map(str, arguments)])
    return left.value.code


def test_perfetto_has_the_devices_of_all_hosts(log, tmp_path):
    assert not _view(log, "--perfetto", tmp_path / "all.json.gz")
    events = _written(tmp_path / "all.json.gz")
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(processes.values()) == [f"host{h}:TPU:{d}" for h in (0, 1) for d in (0, 1)]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    for pid in processes:
        own = Counter((tracks[e["pid"], e["tid"]], e["name"]) for e in slices if e["pid"] == pid)
        # By construction: 3 steps × 4 layers.
        assert {name: n for (track, name), n in own.items() if track == "sorts"} == {"sort.1": 12}
        assert [n for (track, name), n in sorted(own.items()) if track == "layers"] == [3, 3, 3, 3]


def test_one_bad_host_is_named_and_the_others_are_written(log, tmp_path, capsys):
    folder = tmp_path / "log"
    shutil.copytree(log, folder)
    (bad,) = folder.rglob("host1.xplane.pb")
    bad.write_bytes(bad.read_bytes()[:1000])
    assert _view(folder, "--perfetto", tmp_path / "some.json.gz") == 1
    said = capsys.readouterr().err
    assert "1 of 2 files left out" in said
    assert "host1.xplane.pb is cut" in said
    names = {e["args"]["name"] for e in _written(tmp_path / "some.json.gz") if e["name"] == "process_name"}
    assert names == {"TPU:0", "TPU:1"}


def test_wrong_calls_are_one_sentence(ring_run, log, tmp_path, capsys):
    file = tmp_path / "x.json.gz"
    taken = tmp_path / "taken.json.gz"
    taken.touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    calls = {
        (ring_run, "--perfetto", file): "is a run with the variants recompute, cached: name one of them with --variant",
        (ring_run, "--variant", "saved", "--perfetto", file): "saved",
        (log, "--variant", "cached", "--perfetto", file): "is a trace, not a run: it has no variants to choose from",
        (ring_run, "--variant", "cached"): "--variant goes with --perfetto",
        (log, "--perfetto", taken): "taken.json.gz",
        (tmp_path / "missing", "--perfetto", file): "missing",
        (tmp_path / "missing",): "missing",
        (empty,): "empty",
    }
    for arguments, said in calls.items():
        assert _view(*arguments) == 2, arguments
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) == 1
    assert not file.exists()
    assert taken.read_bytes() == b""


def test_hosts_of_one_name_are_all_given_to_xprof(tmp_path):
    file = tmp_path / "vm.xplane.pb"
    names = []
    for _ in range(3):
        (unused := view._unused(file)).symlink_to(tmp_path / "nowhere")
        names.append(unused.name)
    assert names == ["vm.xplane.pb", "vm-2.xplane.pb", "vm-3.xplane.pb"]


@pytest.mark.slow
def test_xprof_serves_the_sessions_and_ends_on_interrupt(ring_run):
    before = sorted(ring_run.rglob("*"))
    process = subprocess.Popen(
        [sys.executable, "-m", "profiler", "view", str(ring_run)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        address = line.split()[1]
        with urllib.request.urlopen(address + "data/plugin/profile/runs", timeout=60) as answer:
            body = answer.read()
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(30)
    assert code == 0
    runs = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    assert {str(r).split("/")[0] for r in runs} == {f"{v}_round_{k}" for v in ("recompute", "cached") for k in (0, 1)}
    assert sorted(ring_run.rglob("*")) == before

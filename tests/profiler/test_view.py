"""`moe-prof view`: XProf answers with the run's sessions, nothing is left in it, and Perfetto's file parses back."""

import gzip
import json
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from analyzers.trace import load
from profiler.cli.main import main

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

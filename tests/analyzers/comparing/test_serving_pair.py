"""Two real traces of one serving step before and after kernel changes; truth from the raw Chrome events."""

import gzip
import json
from collections import defaultdict

import pytest

from analyzers.comparing.diff import diff
from analyzers.trace import load

NAMES = ("tpu-serving-baseline.trace.json.gz", "tpu-serving-variant.trace.json.gz")


def _kernel_us(path):
    """Device time of each custom call's name stem in one step, mean over the two cores, from the raw events."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    total = defaultdict(int)
    for event in events:
        arguments = event.get("args", {})
        on_ops = lines.get((event.get("pid"), event.get("tid"))) == "XLA Ops"
        if on_ops and event["ph"] == "X" and arguments.get("hlo_category") == "custom-call":
            total[event["name"].split(".")[0]] += int(arguments["device_duration_ps"])
    return {name: ps / 2 for name, ps in total.items()}


@pytest.fixture(scope="module")
def pair(real_traces):
    a, b = (load(real_traces / name) for name in NAMES)
    return diff(a, b, top=10_000)


def test_the_step_is_the_big_module(pair):
    assert [t.sessions[0][0].module_name for t in (pair.a, pair.b)] == ["jit_step_fun"] * 2
    assert len(pair.a.devices) == 2


def test_the_custom_calls_that_moved_time_are_named(pair, real_traces):
    before, after = (_kernel_us(real_traces / name) for name in NAMES)
    attention = [row for row in pair.ops if row.opcode.startswith("custom-call RPA-bq_#-bkvp_#")]
    expected = sum(ps for name, ps in before.items() if name.startswith("RPA-bq"))
    assert sum(row.time.a.median for row in attention if row.time.a) == pytest.approx(expected, rel=1e-9)
    expected = sum(ps for name, ps in after.items() if name.startswith("RPA-bq"))
    assert sum(row.time.b.median for row in attention if row.time.b) == pytest.approx(expected, rel=1e-9)
    only_after = {row.opcode for row in pair.ops if row.time.a is None and row.time.b and "custom-call" in row.opcode}
    assert "custom-call quantized_matmul_kernel_#_#_#" in only_after


def _collectives(path):
    """Number and device time of the collectives of one step by HLO category, on both cores, from the raw events."""
    found = defaultdict(lambda: [0, 0])
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        category = event.get("args", {}).get("hlo_category", "")
        if category.startswith(("all-", "collective", "reduce-scatter")):
            found[category][0] += 1
            found[category][1] += int(event["args"]["device_duration_ps"])
    return dict(found)


def test_collectives_are_those_of_the_raw_events(pair, real_traces):
    """Neither file holds an all-to-all; what differs is the time of equally many all-reduces."""
    before, after = (_collectives(real_traces / name) for name in NAMES)
    for name, found in zip(NAMES, (before, after), strict=True):
        assert {kind: count for kind, (count, _) in found.items()} == {"all-reduce": 2 * 129, "all-gather": 2 * 2}
        assert b"all-to-all" not in gzip.decompress((real_traces / name).read_bytes())
    for side, raw in (("a", before), ("b", after)):
        shown = defaultdict(float)
        for row in pair.ops:
            time = getattr(row.time, side)
            if row.opcode.startswith("all-") and time:
                shown[row.opcode.removesuffix("-start")] += time.median
        assert shown["all-reduce"] == pytest.approx(raw["all-reduce"][1] / 2, rel=1e-9)
    assert after["all-reduce"][1] > before["all-reduce"][1]


def test_one_step_is_no_interval(pair):
    assert all(row.saving is None or row.saving.low != row.saving.low for row in pair.by_pass)

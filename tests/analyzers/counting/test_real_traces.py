"""Real traces against counts and times worked out by hand from the raw protobuf, and against xprof."""

import json
import shutil
from collections import Counter, defaultdict
from functools import cache

import pytest

from analyzers.counting.executions import executions
from analyzers.counting.facts import FileFacts, file_facts
from analyzers.counting.kinds import Kind
from analyzers.counting.scopes import Pass
from analyzers.reading.xspace import read_xspace
from analyzers.trace import load
from tests.analyzers.counting.facts import by_op, caveat_names
from tests.analyzers.counting.raw import RawEvent, raw_events, raw_module, raw_space

STEPS = 3
TWO_SORTS = "cpu-two-sorts-per-step.xplane.pb"
MAXTEXT = {
    "repeat": ("cpu-maxtext-deepseek-tiny-repeat.xplane.pb", "jit_train_step(36)"),
    "gather": ("cpu-maxtext-deepseek-tiny-gather.xplane.pb", "jit_train_step(21)"),
}
# Each sort runs once in each of the 4 iterations of its loop. Worked out from the compiled modules: forward loop
# body, and backward loop body with its recomputed part (`rematted_computation`) and its own.
MAXTEXT_SORTS = {
    "repeat": {
        Pass.FORWARD: ("sort.98", "sort.99", "sort.101"),
        Pass.RECOMPUTE: ("sort.112", "sort.113", "sort.115"),
        Pass.BACKWARD: ("sort.117",),
    },
    "gather": {
        Pass.FORWARD: ("sort.170", "sort.171", "sort.173", "sort.175"),
        Pass.RECOMPUTE: ("sort.177", "sort.178", "sort.182"),
        Pass.BACKWARD: ("sort.184",),
    },
}
FROM_TOP_K = {"sort.98", "sort.112", "sort.170", "sort.177"}
NUM_LAYERS = 4
TPU = "tpu-v6e-4chip-psum-offload.xplane.pb"


@cache
def _facts(path) -> FileFacts:
    return file_facts(read_xspace(path))


@cache
def _module_events(path, module: str) -> tuple[RawEvent, ...]:
    return tuple(e for e in raw_events(raw_space(path)) if e.stats.get("hlo_module") == module and "hlo_op" in e.stats)


@cache
def _by_run(path, module: str) -> dict[tuple[str, int], list[RawEvent]]:
    """Events in time order by (instruction, step)."""
    events = _module_events(path, module)
    steps = {run: step for step, run in enumerate(sorted({e.stats["run_id"] for e in events}))}
    result = defaultdict(list)
    for event in sorted(events, key=lambda e: e.start_ps):
        result[event.stats["hlo_op"], steps[event.stats["run_id"]]].append(event)
    return dict(result)


def test_two_events_of_a_sort_are_one_execution(real_traces) -> None:
    path = real_traces / TWO_SORTS
    events = _by_run(path, "jit_f")
    facts = _facts(path)
    times = by_op(facts, "self_ps")
    assert sum(len(events["sort.20", step]) for step in range(STEPS)) == 6
    for step in range(STEPS):
        assert by_op(facts)[0, step, "sort.20"] == 1
        assert times[0, step, "sort.20"] == sum(e.duration_ps for e in events["sort.20", step])
    assert load(path).sort_executions() == (1, 1)
    assert caveat_names(facts) == []


def test_a_scatter_in_a_loop_runs_once_per_iteration(real_traces) -> None:
    path = real_traces / TWO_SORTS
    events = _by_run(path, "jit_f")
    done = executions(read_xspace(path))
    found = defaultdict(list)
    for row, op in enumerate(done.events.op.tolist()):
        if done.ops[op].name == "wrapped_scatter":
            step = int(done.runs.number[done.run[row]])
            found[step].append((int(done.iteration(0)[row]), int(done.self_ps[row])))
    assert found == {
        step: [(k, e.duration_ps) for k, e in enumerate(events["wrapped_scatter", step])] for step in range(STEPS)
    }
    assert all(len(rows) == 4 for rows in found.values())


def test_a_loop_on_a_cpu_keeps_the_time_in_which_nothing_inside_it_ran(real_traces) -> None:
    path = real_traces / TWO_SORTS
    events = _by_run(path, "jit_f")
    times = by_op(_facts(path), "self_ps")
    for step in range(STEPS):
        (loop,) = events["while.16", step]
        loop_end = loop.start_ps + loop.duration_ps
        inside = sorted(
            (e.start_ps, e.start_ps + e.duration_ps)
            for (name, s), group in events.items()
            if s == step and name != "while.16"
            for e in group
            if loop.start_ps <= e.start_ps < loop_end
        )
        assert len(inside) == 8
        ends = [loop.start_ps, *(end for _, end in inside)]
        idle = sum(start - end for start, end in zip((*(start for start, _ in inside), loop_end), ends, strict=True))
        assert times[0, step, "while.16"] == idle


@pytest.mark.parametrize("side", MAXTEXT)
def test_sorts_per_step_and_pass_of_a_real_moe_step(side, real_traces) -> None:
    name, module = MAXTEXT[side]
    path = real_traces / name
    sorts = {
        i.name.decode()
        for c in raw_module(raw_space(path), module).computations
        for i in c.instructions
        if i.opcode == b"sort"
    }
    assert sorts == {sort for group in MAXTEXT_SORTS[side].values() for sort in group}
    trace = load(path)
    for pass_, group in MAXTEXT_SORTS[side].items():
        count = NUM_LAYERS * len(group)
        assert trace.sort_executions(pass_) == (count, count)
    total = {"repeat": 28, "gather": 32}[side]
    assert trace.sort_executions() == (total, total)
    assert trace.sort_executions(kind=Kind.TOP_K) == (8, 8)
    assert sum(row.compiled or 0 for row in trace.sorts) == total
    assert "count-mismatch" not in {caveat.name for caveat in trace.caveats}
    assert {op.name for op in _facts(path).ops if op.kind is Kind.TOP_K} == FROM_TOP_K & sorts


@pytest.mark.parametrize("side", MAXTEXT)
def test_time_per_sort_and_layer_of_a_real_moe_step(side, real_traces) -> None:
    name, module = MAXTEXT[side]
    path = real_traces / name
    events = _by_run(path, module.split("(")[0])
    truth = {}
    for pass_, group in MAXTEXT_SORTS[side].items():
        for sort in group:
            for step in range(STEPS):
                mine = events[sort, step]
                each = len(mine) // NUM_LAYERS
                assert each in (1, 2, 3)
                assert each * NUM_LAYERS == len(mine)
                for k in range(NUM_LAYERS):
                    # The backward loop, in which recomputation runs too, walks the layers from the last.
                    layer = k if pass_ is Pass.FORWARD else NUM_LAYERS - 1 - k
                    time = sum(e.duration_ps for e in mine[k * each : (k + 1) * each])
                    truth[step, sort, layer] = (1, time)
    facts = _facts(path)
    table = facts.sorts_by_place
    keys = zip(*(table.keys[key].tolist() for key in ("step", "op", "layer")), strict=True)
    values = zip(table.executions.tolist(), table.self_ps.tolist(), strict=True)
    assert {(step, facts.ops[op].name, layer): v for (step, op, layer), v in zip(keys, values, strict=True)} == truth


@pytest.mark.parametrize("side", MAXTEXT)
def test_time_of_every_op_of_a_real_moe_step_is_that_of_its_events(side, real_traces) -> None:
    name, module = MAXTEXT[side]
    path = real_traces / name
    truth = {
        (0, step, op): sum(e.duration_ps for e in group)
        for (op, step), group in _by_run(path, module.split("(")[0]).items()
    }
    assert by_op(_facts(path), "duration_ps") == truth


def test_kernels_on_eight_gpus(real_traces) -> None:
    path = real_traces / "gpu-mi300-conv-jax08.xplane.pb"
    facts = _facts(path)
    assert facts.devices == tuple(f"GPU:{k}" for k in range(8))
    assert facts.module_name == "jit_forward_3d_conv"
    ops = ("loop_transpose_fusion", "cudnn-conv.1", "input_transpose_fusion", "input_transpose_fusion.1")
    truth = {(device, step, op): 1 for device in range(8) for step in range(5) for op in ops}
    # The profiler lost the names of two kernels on GPU:0: one of the two of a convolution, the one of a transpose.
    counts = by_op(facts)
    (lost,) = truth.keys() - counts.keys()
    assert lost[0] == 0
    assert lost[2] == "input_transpose_fusion.1"
    del truth[lost]
    assert counts == truth
    (caveat,) = facts.caveats
    assert caveat.name == "count-mismatch"
    assert "cudnn-conv.1 (1 of 40 runs), input_transpose_fusion.1 (1 of 40 runs)" in caveat.message
    named = Counter()
    for event in (e for e in _module_events(path, "jit_forward_3d_conv") if "GPU" in e.plane):
        named[event.plane, event.stats["hlo_op"]] += event.duration_ps
    found = Counter()
    for (device, _, op), time in by_op(facts, "self_ps").items():
        found[f"/device:GPU:{device}", op] += time
    assert found == named


def test_kernels_of_fused_attention(real_traces) -> None:
    path = real_traces / "gpu-mi355-fused-attention.xplane.pb"
    facts = _facts(path)
    assert facts.devices == ("GPU:0",)
    assert facts.module_name == "jit_loss_fn"
    assert facts.num_steps == 5
    assert caveat_names(facts) == []
    kernels = [e for e in _module_events(path, "jit_loss_fn") if e.plane == "/device:GPU:0"]
    assert len(kernels) == 150
    ops = {e.stats["hlo_op"] for e in kernels}
    # One backward attention is five kernels, two of them fills; it is one execution.
    assert sum(e.stats["hlo_op"] == "te_fused_attn_backward_ffi.12" for e in kernels) == 5 * 5
    assert by_op(facts) == {(0, step, op): 1 for step in range(5) for op in ops}
    time = Counter()
    for event in kernels:
        time[event.stats["hlo_op"]] += event.duration_ps
    found = Counter()
    for (_, _, op), self_ps in by_op(facts, "self_ps").items():
        found[op] += self_ps
    assert found == time
    backward = {e.stats["hlo_op"] for e in kernels if "transpose(" in str(e.stats.get("name", ""))}
    assert {op.name for op in facts.ops if op.pass_ is Pass.BACKWARD} >= backward


def _tpu_ops(path) -> Counter:
    return Counter((e.plane, e.stats["program_id"], e.name) for e in raw_events(raw_space(path)) if e.line == "XLA Ops")


def test_every_tpu_op_event_is_an_execution(real_traces) -> None:
    path = real_traces / TPU
    facts = _facts(path)
    assert facts.devices == tuple(f"TPU:{k}" for k in range(4))
    assert facts.device_types == ("TPU v6 Lite",)
    assert facts.module_name == "jit_f"
    assert facts.num_steps == 100
    assert {(p.name, p.runs) for p in facts.programs} == {
        ("jit__psum", 12),
        ("jit_broadcast_in_dim", 1),
        ("jit_convert_element_type", 1),
        ("jit_f", 400),
    }
    (program,) = [p.program_id for p in facts.programs if p.name == "jit_f"]
    truth = {(plane, op): n for (plane, owner, op), n in _tpu_ops(path).items() if owner == program}
    counts = Counter()
    for (device, _, op), n in by_op(facts).items():
        assert n == 1
        counts[f"/device:TPU:{device}", op] += n
    assert counts == truth


def test_tpu_time_is_the_device_clock_s_and_nothing_nests(real_traces) -> None:
    path = real_traces / TPU
    done = executions(read_xspace(path))
    assert done.self_ps.tolist() == done.events.duration_ps.tolist()
    truth, found = Counter(), Counter()
    for event in raw_events(raw_space(path)):
        if event.line == "XLA Ops":
            truth[event.plane, event.name] += event.stats["device_duration_ps"]
    for op, device, self_ps in zip(done.events.op, done.events.device, done.self_ps.tolist(), strict=True):
        found[f"/device:{done.events.devices[device]}", done.ops[op].name] += self_ps
    assert found == truth


def test_tpu_time_per_op_equals_that_of_xprof(real_traces, tmp_path) -> None:
    raw_to_tool_data = pytest.importorskip("xprof.convert.raw_to_tool_data")
    copy = shutil.copy(real_traces / TPU, tmp_path)  # xprof writes a cache beside what it reads
    data, _ = raw_to_tool_data.xspace_to_tool_data([str(copy)], "hlo_stats", {})
    table = json.loads(data)
    column = {c["id"]: k for k, c in enumerate(table["cols"])}

    def value(row, name):
        return row["c"][column[name]]["v"]

    xprof = {
        (int(value(row, "program_id")), value(row, "hlo_op_name")): (
            value(row, "occurrences"),
            value(row, "total_self_time"),
        )
        for row in table["rows"]
    }
    done = executions(read_xspace(real_traces / TPU))
    count, time = Counter(), Counter()
    for op, self_ps in zip(done.events.op, done.self_ps.tolist(), strict=True):
        key = (done.programs[done.ops[op].program].program_id % 2**64, done.ops[op].name)
        count[key] += 1
        time[key] += self_ps
    shown = {key for key in count if time[key] or key in xprof}
    assert shown == xprof.keys()
    for key, (occurrences, self_us) in xprof.items():
        assert count[key] == occurrences
        assert time[key] / 1e6 == pytest.approx(self_us, abs=1e-6, rel=0)

"""Work handed to SparseCores is joined to the op that launched it, and no time is added up twice."""

import pytest

from analyzers.counting.executions import executions
from analyzers.counting.kinds import Kind
from analyzers.counting.scopes import Pass
from analyzers.reading.xspace import read_xspace
from analyzers.trace import load
from tests.analyzers.counting.facts import by_op, caveat_names, facts_of, self_ps_by_place
from tests.analyzers.counting.nest import nest_program, place, places
from tests.builders.handmade import Op, handmade_proto, trips
from tests.builders.play import TICK_PS, Program, added, play
from tests.builders.spaces import Offload, tpu_space, trace_file

STEPS = 3
DURATION = 7 * TICK_PS


def _leaf_in_chunk_loops(runs, backward: bool) -> str:
    return next(
        e.instruction
        for e in runs[0].executions
        if len(e.loops) == 2 and not e.container and (place(e)[0] == "backward") == backward
    )


@pytest.fixture(scope="module")
def runs():
    return play(nest_program(), devices=2, steps=STEPS)


@pytest.fixture(scope="module", params=[(0,), (0, 1)], ids=["one core", "two cores"])
def built(request, runs, tmp_path_factory):
    offloads = (
        Offload(_leaf_in_chunk_loops(runs, False), "sc_gather.5.cloned.1", 11, DURATION, request.param),
        Offload(_leaf_in_chunk_loops(runs, True), "sc_scatter.6.cloned.1", 12, 2 * DURATION, request.param),
    )
    facts = facts_of(tmp_path_factory.mktemp("sc"), tpu_space(nest_program(), runs, offloads=offloads))
    return offloads, facts


def test_the_whole_trace_has_no_caveats(built) -> None:
    assert caveat_names(built[1]) == []


def test_modules_of_sparse_cores_are_no_modules_of_their_own(built) -> None:
    assert [(p.name, p.runs) for p in built[1].programs] == [(nest_program().name, 2 * STEPS)]


def test_an_offloaded_op_executes_as_often_as_it_is_launched(built, runs) -> None:
    offloads, facts = built
    counts = by_op(facts)
    for offload in offloads:
        for run in runs:
            launches = sum(e.instruction == offload.launcher for e in run.executions)
            assert launches == 12
            assert counts[run.device, run.step, offload.op] == launches


def test_offloaded_time_is_that_of_the_ops_line_alone(built, runs) -> None:
    offloads, facts = built
    times = by_op(facts, "self_ps")
    for offload in offloads:
        for run in runs:
            assert times[run.device, run.step, offload.op] == 12 * offload.duration_ps


def test_work_on_several_cores_takes_as_long_as_on_the_slowest(runs, tmp_path) -> None:
    offload = Offload(_leaf_in_chunk_loops(runs, True), "sc_scatter.6.cloned.1", 12, DURATION, (0, 1))
    space = tpu_space(nest_program(), runs, offloads=[offload])
    plane = next(p for p in space.planes if p.name == b"/device:TPU:0 SparseCore 1")
    ids = {m.name: key for key, m in plane.stat_metadata.items()}
    for line in plane.lines:
        for stat in (s for event in line.events for s in event.stats):
            if stat.metadata_id == ids[b"device_duration_ps"]:
                stat.int64_value += 3 * TICK_PS
    times = by_op(facts_of(tmp_path, space), "self_ps")
    for step in range(STEPS):
        assert times[0, step, offload.op] == 12 * (DURATION + 3 * TICK_PS)
        assert times[1, step, offload.op] == 12 * DURATION


def test_the_time_of_places_is_that_of_the_tensor_core(built, runs) -> None:
    assert self_ps_by_place(built[1]) == added(runs, places)


def test_an_offloaded_op_knows_its_launcher_and_pass(built) -> None:
    offloads, facts = built
    ops = {op.name: op for op in facts.ops}
    assert ops[offloads[0].op].launched_by == (offloads[0].launcher,)
    assert ops[offloads[0].op].pass_.value == "forward"
    assert ops[offloads[1].op].pass_.value == "backward"
    assert ops[offloads[0].op].sparse_core
    assert ops[offloads[0].op].expected == 12


@pytest.mark.parametrize("delay_ps", [0, 10**9], ids=["at once", "long after later launches"])
def test_offloaded_work_is_in_the_layer_and_chunk_that_launched_it(delay_ps, runs, tmp_path) -> None:
    offload = Offload(_leaf_in_chunk_loops(runs, True), "sc_scatter.6.cloned.1", 12, DURATION, delay_ps=delay_ps)
    done = executions(read_xspace(trace_file(tmp_path, tpu_space(nest_program(), runs, offloads=[offload]))))
    rows = [k for k, op in enumerate(done.events.op.tolist()) if done.ops[op].sparse_core]
    found = sorted(
        zip(
            done.events.device[rows].tolist(),
            done.events.start_ps[rows].tolist(),
            done.layer[rows].tolist(),
            done.chunk[rows].tolist(),
            strict=True,
        )
    )
    truth = sorted(
        (run.device, e.start_ps + e.duration_ps + delay_ps, *place(e)[1:])
        for run in runs
        for e in run.executions
        if e.instruction == offload.launcher
    )
    assert found == truth


def test_sparse_core_work_without_a_launcher_is_named(runs, tmp_path) -> None:
    offload = Offload(_leaf_in_chunk_loops(runs, True), "sc_scatter.6.cloned.1", 12, DURATION)
    space = tpu_space(nest_program(), runs, offloads=[offload])
    for plane in space.planes:
        if b"SparseCore" in plane.name:
            for line in plane.lines:
                if line.name == b"Sparse Core Modules":
                    del line.events[:]
    facts = facts_of(tmp_path, space)
    assert "sparse-core-alone" in caveat_names(facts)
    assert self_ps_by_place(facts) == added(runs, places)


@pytest.mark.parametrize("cores", [(0,), (0, 1)])
def test_a_sort_that_the_compiler_offloaded_is_executed_where_it_runs(cores, tmp_path) -> None:
    """The sort is an instruction of the computation that the TensorCore's async start calls."""
    scope = "jit(f)/jvp(layers)/while/body/jit(argsort)/sort"
    program = Program(
        handmade_proto(
            "main",
            offloaded=[Op("x", "parameter"), Op("sort.1", "sort", ["x"], scope=scope)],
            less=[Op("less", "compare")],
            body=[
                Op("keys", "parameter"),
                Op("call-start.1", "async-start", ["keys"], ["offloaded"], scope=scope),
                Op("add.1", "add", ["keys", "keys"], scope="jit(f)/jvp(layers)/while/body/add"),
                Op("call-done.1", "async-done", ["call-start.1"], scope=scope),
            ],
            main=[Op("loop", "while", called=["body", "less"], scope="jit(f)/jvp(layers)/while", config=trips(4))],
        )
    )
    runs = play(program, steps=STEPS)
    space = tpu_space(program, runs, offloads=[Offload("call-start.1", "sort.1", 5, DURATION, cores)])
    trace = load(trace_file(tmp_path, space))
    assert trace.caveats == ()
    (row,) = trace.sorts
    assert (row.pass_, row.kind, row.executed, row.compiled) == (Pass.FORWARD, Kind.ARGSORT, (4, 4), 4)
    assert row.self_ps[0].tolist() == [4 * DURATION] * STEPS
    # The TensorCore's own time stays its own.
    truth = added(runs, lambda r, e: r.step)
    assert trace.self_ps()[0].tolist() == [truth[step] for step in range(STEPS)]
    (facts,) = trace.sessions[0]
    assert set(facts.sorts_by_place.keys["layer"].tolist()) == {0, 1, 2, 3}

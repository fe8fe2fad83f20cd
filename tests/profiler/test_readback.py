"""What is noticed in a trace that the profiler wrote incompletely. Counts of real traces are hand counts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from analyzers.errors import UserError
from analyzers.reading.protos import xplane_pb2
from analyzers.reading.xspace import read_xspace
from profiler.readback import check_session, ops_per_step
from tests.analyzers.reading.xspaces import add_stats, event_id, new_plane

STEP_PS = 1000


def cpu_trace(file: Path, ops_by_step: Sequence[int], module: str = "jit_f") -> Path:
    """A CPU trace of one step per entry, with so many ops of `module` in it, and an op between any two steps."""
    space = xplane_pb2.XSpace()
    plane = new_plane(space, "/host:CPU")
    steps, ops = plane.lines.add(name=b"python"), plane.lines.add(name=b"tf_XLAEigen/1")
    for number, count in enumerate(ops_by_step):
        start = 2 * STEP_PS * number
        step = steps.events.add(metadata_id=event_id(plane, "step"), offset_ps=start, duration_ps=STEP_PS)
        add_stats(plane, step, {"step_num": number})
        for offset in (*range(1, count + 1), STEP_PS + 1):
            op = ops.events.add(metadata_id=event_id(plane, "sort.1"), offset_ps=start + offset, duration_ps=1)
            add_stats(plane, op, {"hlo_op": "sort.1", "hlo_module": module}, by_reference=True)
    file.write_bytes(space.SerializeToString())
    return file


def refusal(files: Sequence[Path], module: str, steps: int) -> str:
    with pytest.raises(UserError) as error:
        check_session(files, module, steps)
    return str(error.value)


def test_every_step_with_ops_is_a_whole_session(tmp_path: Path) -> None:
    file = cpu_trace(tmp_path / "h.xplane.pb", [3, 1, 2])
    assert ops_per_step(read_xspace(file), "jit_f") == {0: 3, 1: 1, 2: 2}
    check_session([file], "jit_f", 3)


def test_a_step_without_ops_is_named(tmp_path: Path) -> None:
    file = cpu_trace(tmp_path / "h.xplane.pb", [3, 0, 2])
    assert refusal([file], "jit_f", 3) == (
        "the trace of jit_f has no device op in step 1 of 3: the profiler dropped them; "
        "capture again, with fewer --steps."
    )


def test_ops_of_another_module_do_not_count(tmp_path: Path) -> None:
    file = cpu_trace(tmp_path / "h.xplane.pb", [3], module="jit_g")
    assert refusal([file], "jit_f", 1).startswith("the trace of jit_f has no device op in step 0 of 1")


def test_a_missing_step_is_named(tmp_path: Path) -> None:
    file = cpu_trace(tmp_path / "h.xplane.pb", [1, 1])
    assert refusal([file], "jit_f", 3).startswith("the trace of jit_f has no device op in step 2 of 3")


def test_steps_that_were_not_asked_for_are_noticed(tmp_path: Path) -> None:
    file = cpu_trace(tmp_path / "h.xplane.pb", [1, 1, 1])
    assert refusal([file], "jit_f", 2) == "the trace of jit_f has 3 steps instead of 2; capture again."


def test_no_trace_and_an_empty_trace_are_noticed(tmp_path: Path) -> None:
    assert refusal([], "jit_f", 1) == "the profiler wrote no trace of jit_f; capture again, with fewer steps."
    empty = tmp_path / "h.xplane.pb"
    empty.touch()
    assert refusal([empty], "jit_f", 1) == (
        "the profiler wrote an empty trace of jit_f; capture again, with fewer steps."
    )


def test_each_host_must_have_written_its_steps(tmp_path: Path) -> None:
    files = [cpu_trace(tmp_path / "h0.xplane.pb", [1, 1]), cpu_trace(tmp_path / "h1.xplane.pb", [1, 0])]
    assert refusal(files, "jit_f", 2).startswith("the trace of jit_f has no device op in step 1 of 2")


def test_on_a_tpu_steps_are_executions_of_the_module_on_every_chip(real_traces: Path) -> None:
    columns = read_xspace(real_traces / "tpu-v6e-4chip-psum-offload.xplane.pb")
    executions = ops_per_step(columns, "jit_f")
    assert sorted(executions) == list(range(100))
    assert min(executions.values()) > 0
    assert ops_per_step(columns, "jit_other") == {}

"""The door: sessions of several hosts and devices become one trace with one sample per step."""

from dataclasses import replace

import numpy as np
import pytest

from analyzers.counting.scopes import Pass
from analyzers.errors import UserError
from analyzers.trace import LoadOptions, load
from tests.analyzers.counting.nest import NUM_CHUNKS, NUM_LAYERS, nest_program, place
from tests.builders.play import TICK_PS, added, default_durations, play
from tests.builders.spaces import cpu_space, gpu_space, tpu_space, trace_file

DEVICES, STEPS = 2, 3
SPACES = {"tpu": tpu_space, "gpu": gpu_space, "cpu": cpu_space}


@pytest.fixture(scope="module")
def hosts():
    """Two hosts of one run; the second is slower by 100 ticks per execution."""
    program = nest_program()
    slower = lambda name, step, iterations: default_durations(name, step, iterations) + 100 * TICK_PS  # noqa: E731
    return {
        "host0": play(program, devices=DEVICES, steps=STEPS),
        "host1": play(program, slower, devices=DEVICES, steps=STEPS),
    }


@pytest.fixture(scope="module", params=SPACES)
def merged(request, hosts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    for host, runs in hosts.items():
        trace_file(folder, SPACES[request.param](nest_program(), runs), host)
    shown = {
        host: [
            replace(run, executions=tuple(e for e in run.executions if request.param != "gpu" or not e.container))
            for run in runs
        ]
        for host, runs in hosts.items()
    }
    return shown, load(folder)


def _mean(hosts, wanted) -> list[float]:
    """Self time per step of the executions `wanted`, mean over all devices of all hosts."""
    total = added((run for runs in hosts.values() for run in runs), lambda r, e: r.step if wanted(e) else None)
    return [total[step] / (len(hosts) * DEVICES) for step in range(STEPS)]


def test_hosts_and_devices_are_averaged_into_one_sample_per_step(merged) -> None:
    hosts, trace = merged
    assert trace.num_steps == STEPS
    (block,) = trace.self_ps()
    assert block.tolist() == _mean(hosts, lambda e: True)


def test_every_layer_and_chunk_has_its_exact_time(merged) -> None:
    hosts, trace = merged
    assert trace.layers == tuple(range(NUM_LAYERS))
    assert trace.chunks == tuple(range(NUM_CHUNKS))
    for pass_ in (Pass.FORWARD, Pass.BACKWARD):
        for layer in trace.layers:
            for chunk in trace.chunks:
                (block,) = trace.self_ps(pass_=pass_, layer=layer, chunk=chunk)
                here = (pass_.value, layer, chunk)
                assert block.tolist() == _mean(hosts, lambda e, here=here: place(e) == here), here


def test_devices_of_all_hosts_are_told_apart(merged) -> None:
    _, trace = merged
    assert len(trace.devices) == len(set(trace.devices)) == 2 * DEVICES
    assert {device.split(":")[0] for device in trace.devices} == {"host0", "host1"}


def test_a_step_lasts_as_long_as_on_the_slowest_device(merged) -> None:
    hosts, trace = merged
    (wall,) = trace.step_wall_ps
    ends = {
        (host, run.device, run.step): max(e.start_ps + e.duration_ps for e in run.executions)
        - min(e.start_ps for e in run.executions)
        if trace.devices[0].split(":")[1] != "TPU"
        else run.duration_ps
        for host, runs in hosts.items()
        for run in runs
    }
    assert wall.tolist() == [max(v for (_, _, s), v in ends.items() if s == step) for step in range(STEPS)]


def test_a_host_that_lost_a_step_shortens_the_common_ground(hosts, tmp_path) -> None:
    trace_file(tmp_path, tpu_space(nest_program(), hosts["host0"]), "host0")
    short = [run for run in hosts["host1"] if run.step < STEPS - 1]
    trace_file(tmp_path, tpu_space(nest_program(), short), "host1")
    trace = load(tmp_path)
    (block,) = trace.self_ps()
    assert block.tolist() == _mean(hosts, lambda e: True)[: STEPS - 1]
    (caveat,) = trace.caveats
    assert caveat.name == "missing-runs"
    assert "host1 shows 2 of 3" in caveat.message
    assert "times are of the 2 steps that all hosts show" in caveat.message


def test_step_numbers_come_from_the_annotations(hosts, tmp_path) -> None:
    path = trace_file(tmp_path, cpu_space(nest_program(), hosts["host0"]))
    (facts,) = load(path).sessions[0]
    assert facts.step_source == "step annotations"
    assert facts.step_labels == (100, 101, 102)


def test_without_annotations_module_executions_are_the_steps(hosts, tmp_path) -> None:
    path = trace_file(tmp_path, cpu_space(nest_program(), hosts["host0"], annotate=False))
    (facts,) = load(path).sessions[0]
    assert facts.step_source == "module executions"
    assert facts.step_labels == (0, 1, 2)


def test_a_module_that_did_not_run_is_named_with_those_that_did(hosts, tmp_path) -> None:
    path = trace_file(tmp_path, cpu_space(nest_program(), hosts["host0"]))
    with pytest.raises(UserError, match=r"jit_g.*jit__loss"):
        load(path, options=LoadOptions(module="jit_g"))


def test_the_trace_says_how_many_sorts_its_module_promises(hosts, tmp_path) -> None:
    trace = load(trace_file(tmp_path, cpu_space(nest_program(), hosts["host0"])))
    assert trace.sorts == ()
    assert trace.sort_executions() == (0, 0)
    assert trace.buffers is not None
    assert np.all([len(block) == STEPS for block in trace.step_wall_ps])

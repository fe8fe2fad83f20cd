"""Traces whose truth is known: a loop over 3 chunks in a loop over 4 layers, on every layout."""

import pytest

from tests.analyzers.counting.facts import by_op, caveat_names, facts_of, self_ps_by_place
from tests.analyzers.counting.nest import NUM_CHUNKS, NUM_LAYERS, nest_program, places
from tests.builders.play import added, play
from tests.builders.spaces import cpu_space, gpu_space, tpu_space

DEVICES, STEPS = 2, 3


def _pieces(name: str) -> int:
    return 1 + sum(name.encode()) % 3


def _spaces():
    program = nest_program()
    whole = play(program, devices=DEVICES, steps=STEPS)
    in_pieces = play(program, devices=DEVICES, steps=STEPS, pieces=_pieces)
    with_conditions = play(program, devices=DEVICES, steps=STEPS, conditions=True)
    return {
        "tpu": (whole, tpu_space(program, whole)),
        "tpu with conditions": (with_conditions, tpu_space(program, with_conditions)),
        "gpu": (in_pieces, gpu_space(program, in_pieces, copies=2)),
        "gpu cuda": (in_pieces, gpu_space(program, in_pieces, copies=2, streams=3, vendor="Nvidia")),
        "cpu": (in_pieces, cpu_space(program, in_pieces)),
        "cpu with conditions": (with_conditions, cpu_space(program, with_conditions)),
    }


LAYOUTS = ("tpu", "tpu with conditions", "gpu", "gpu cuda", "cpu", "cpu with conditions")


@pytest.fixture(scope="module")
def spaces():
    return _spaces()


@pytest.fixture(scope="module", params=LAYOUTS)
def built(request, spaces, tmp_path_factory):
    runs, space = spaces[request.param]
    shown = [e for run in runs for e in run.executions if not (request.param.startswith("gpu") and e.container)]
    kept = set(map(id, shown))
    return runs, (lambda e: id(e) in kept), facts_of(tmp_path_factory.mktemp("built"), space)


def test_self_time_per_layer_chunk_and_pass_is_exact(built) -> None:
    runs, shown, facts = built
    truth = added(runs, lambda run, e: places(run, e) if shown(e) else None)
    assert self_ps_by_place(facts) == truth
    assert {key[3:] for key in truth} >= {(layer, chunk) for layer in range(NUM_LAYERS) for chunk in range(NUM_CHUNKS)}


def test_every_execution_is_counted_once(built) -> None:
    runs, shown, facts = built
    truth = added(runs, lambda run, e: (run.device, run.step, e.instruction) if shown(e) else None, lambda e: 1)
    assert by_op(facts) == truth


def test_self_time_per_op_is_exact(built) -> None:
    runs, shown, facts = built
    truth = added(runs, lambda run, e: (run.device, run.step, e.instruction) if shown(e) else None)
    assert by_op(facts, "self_ps") == truth


def test_all_self_time_is_somewhere(built) -> None:
    runs, shown, facts = built
    truth = sum(e.self_ps for run in runs for e in run.executions if shown(e))
    assert int(facts.by_place.self_ps.sum()) == int(facts.by_op.self_ps.sum()) == truth


def test_a_whole_trace_has_no_caveats(built) -> None:
    assert caveat_names(built[2]) == []

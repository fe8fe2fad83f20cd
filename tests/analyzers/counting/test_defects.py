"""Every way in which a trace can be less than whole is noticed by name, and what is left is still counted right."""

from dataclasses import replace

import pytest

from analyzers.counting.facts import file_facts
from analyzers.errors import UserError
from analyzers.reading.xspace import read_xspace
from tests.analyzers.counting.facts import by_op, caveat_names, facts_of, self_ps_by_place
from tests.analyzers.counting.nest import nest_program, places
from tests.builders.play import added, play
from tests.builders.spaces import Defects, cpu_space, gpu_space, tpu_space, trace_file, without_trip_counts


@pytest.fixture(scope="module")
def program():
    return nest_program()


@pytest.fixture(scope="module")
def runs(program):
    return play(program, steps=4)


def _caveat(facts, name):
    (found,) = [caveat for caveat in facts.caveats if caveat.name == name]
    return found


def test_a_clipped_run_is_a_count_mismatch_and_a_lower_bound(program, runs, tmp_path) -> None:
    clipped = [runs[0], runs[1].clipped(0.4), *runs[2:]]
    facts = facts_of(tmp_path, tpu_space(program, clipped, skew_ps=0, wrong_clock=False))
    assert _caveat(facts, "count-mismatch").lower_bound
    assert "1 of" in _caveat(facts, "count-mismatch").message
    # What is there is still dealt to the run it belongs to.
    assert self_ps_by_place(facts).items() >= added([r for r in clipped if r.step != 1], places).items()


# A GPU trace says nothing of runs: one that lost more than half can only be told by its counts to be wrong.
@pytest.mark.parametrize(
    ("space", "keep"), [(cpu_space, 0.2), (cpu_space, 0.4), (cpu_space, 0.9), (gpu_space, 0.6), (gpu_space, 0.9)]
)
def test_a_run_clipped_elsewhere_is_a_count_mismatch_of_that_run_alone(keep, space, program, runs, tmp_path) -> None:
    clipped = [runs[0], runs[1].clipped(keep), *runs[2:]]
    facts = facts_of(tmp_path, space(program, clipped))
    assert _caveat(facts, "count-mismatch").lower_bound
    truth = added(
        [r for r in clipped if r.step != 1],
        lambda r, e: places(r, e) if space is cpu_space or not e.container else None,
    )
    found = {key: value for key, value in self_ps_by_place(facts).items() if key[1] != 1}
    assert found == truth


@pytest.mark.parametrize("space", [tpu_space, gpu_space, cpu_space])
def test_one_instruction_that_one_run_lacks_is_noticed(space, program, runs, tmp_path) -> None:
    missing = next(e.instruction for e in runs[0].executions if not e.loops and not e.container)
    less = replace(runs[2], executions=tuple(e for e in runs[2].executions if e.instruction != missing))
    facts = facts_of(tmp_path, space(program, [*runs[:2], less, *runs[3:]]))
    assert f"{missing} (1 of 4 runs)" in _caveat(facts, "count-mismatch").message


def test_a_cpu_trace_without_run_ids_is_divided_into_runs(program, tmp_path) -> None:
    runs = play(program, devices=2, steps=3, pieces=lambda name: 1 + len(name) % 3)
    facts = facts_of(tmp_path, cpu_space(program, runs, defects=Defects(without_run_ids=True)))
    assert caveat_names(facts) == []
    assert self_ps_by_place(facts) == added(runs, places)


def test_a_lost_module_event_is_noticed(program, runs, tmp_path) -> None:
    lost = [runs[0], replace(runs[1], module_event=False), *runs[2:]]
    facts = facts_of(tmp_path, tpu_space(program, lost, skew_ps=0, wrong_clock=False))
    assert "missing-runs" in caveat_names(facts)
    assert "count-mismatch" in caveat_names(facts)


@pytest.mark.parametrize("space", [tpu_space, cpu_space])
def test_runs_that_left_nothing_are_noticed_by_the_annotated_steps(space, program, runs, tmp_path) -> None:
    whole = space(program, runs)
    lost = space(program, [runs[0], *runs[2:]])
    for plane in lost.planes:  # the host thread saw all four steps
        if plane.name == b"/host:CPU":
            plane.CopyFrom(next(p for p in whole.planes if p.name == b"/host:CPU"))
            if space is cpu_space:
                _drop_run(plane, 268_000_100)
    facts = facts_of(tmp_path, lost)
    assert facts.num_steps == 3
    assert _caveat(facts, "missing-runs").lower_bound
    assert "4" in _caveat(facts, "missing-runs").message
    assert "3" in _caveat(facts, "missing-runs").message


def _drop_run(plane, run_id: int) -> None:
    for line in plane.lines:
        kept = [e for e in line.events if all(stat.int64_value != run_id for stat in e.stats)]
        del line.events[:]
        line.events.extend(kept)


def test_a_device_that_ran_less_often_is_noticed(program, tmp_path) -> None:
    runs = play(program, devices=2, steps=3)
    facts = facts_of(tmp_path, tpu_space(program, [r for r in runs if (r.device, r.step) != (1, 1)]))
    assert "3 times on TPU:0 but 2 times on TPU:1" in _caveat(facts, "missing-runs").message


def test_dropped_traces_are_a_lower_bound(program, runs, tmp_path) -> None:
    facts = facts_of(tmp_path, tpu_space(program, runs, defects=Defects(dropped_traces=5)))
    assert _caveat(facts, "dropped-traces").lower_bound


@pytest.mark.parametrize("space", [tpu_space, gpu_space, cpu_space])
def test_without_the_compiled_module_only_events_are_counted(space, program, tmp_path) -> None:
    runs = play(program, steps=2, pieces=lambda name: 2 if name.startswith("dot") else 1)
    facts = facts_of(tmp_path, space(program, runs, defects=Defects(without_hlo=True)))
    # On a TPU an event is an execution.
    assert ("counts are of events" in _caveat(facts, "no-hlo").message) == (space is not tpu_space)
    assert facts.module is None
    assert facts.num_steps == 2
    truth = sum(e.self_ps for r in runs for e in r.executions if not (space is gpu_space and e.container))
    assert int(facts.by_op.self_ps.sum()) == truth


def test_a_run_s_own_module_makes_up_for_one_missing_in_the_trace(program, tmp_path) -> None:
    from analyzers.counting.hlo import Module

    runs = play(program, steps=2, pieces=lambda name: 2)
    space = cpu_space(program, runs, defects=Defects(without_hlo=True))
    facts = facts_of(tmp_path, space, own_modules={program.name: Module(program.hlo_proto)})
    assert caveat_names(facts) == []
    assert self_ps_by_place(facts) == added(runs, places)


def test_kernels_without_names_mean_command_buffers(program, runs, tmp_path) -> None:
    facts = facts_of(tmp_path, gpu_space(program, runs, defects=Defects(all_unnamed=True)))
    assert _caveat(facts, "command-buffers").lower_bound
    assert "xla_gpu_enable_command_buffer" in _caveat(facts, "command-buffers").message


def test_most_kernels_without_names_mean_command_buffers(program, runs, tmp_path) -> None:
    names = {e.instruction for e in runs[0].executions if not e.container}
    unnamed = frozenset(sorted(names)[: len(names) * 3 // 4])
    facts = facts_of(tmp_path, gpu_space(program, runs, defects=Defects(unnamed=unnamed)))
    assert "command-buffers" in caveat_names(facts)
    truth = added(
        runs, lambda r, e: (0, r.step, e.instruction) if e.instruction in names - unnamed else None, lambda e: 1
    )
    assert by_op(facts).items() >= truth.items()


def test_transfers_between_runs_are_no_command_buffers(program, runs, tmp_path) -> None:
    facts = facts_of(tmp_path, gpu_space(program, runs, copies=3))
    assert caveat_names(facts) == []
    assert facts.outside_ps == len(runs) * 3 * 3 * 1250


def test_a_cut_file_is_a_lower_bound(program, runs, tmp_path) -> None:
    path = trace_file(tmp_path, tpu_space(program, runs))
    path.write_bytes(path.read_bytes()[:-1000])
    facts = file_facts(read_xspace(path, partial=True))
    assert _caveat(facts, "truncated").lower_bound


@pytest.mark.parametrize("space", [tpu_space, gpu_space, cpu_space])
def test_loops_of_unknown_length_are_counted_by_their_events(space, program, tmp_path) -> None:
    """Without trip counts layers cannot be told and the module promises nothing; one event per execution is left."""
    blind = replace(program, hlo_proto=without_trip_counts(program.hlo_proto), trips=_trips(program))
    runs = play(blind, steps=2)
    facts = facts_of(tmp_path, space(blind, runs))
    shown = [e for r in runs for e in r.executions if not (space is gpu_space and e.container)]
    truth = added(
        runs,
        lambda r, e: None if space is gpu_space and e.container else (0, r.step, e.instruction),
        lambda e: 1,
    )
    assert by_op(facts) == truth
    assert int(facts.by_op.self_ps.sum()) == sum(e.self_ps for e in shown)
    assert "unknown-count" in caveat_names(facts)
    assert set(facts.by_place.keys["layer"].tolist()) == {-1}


def _trips(program) -> dict[str, int]:
    import json

    return {
        i.name.decode(): int(json.loads(i.backend_config)["known_trip_count"]["n"])
        for c in program.module.computations
        for i in c.instructions
        if i.opcode == b"while"
    }


def test_an_aggregate_counts_as_many_as_it_says(program, tmp_path) -> None:
    """An event with `num_occurrences` has no place in time, so no run; it must not disturb those that have."""
    runs = play(program, steps=2)
    space = tpu_space(program, runs)
    (line,) = [line for plane in space.planes for line in plane.lines if line.name == b"XLA Ops"]
    aggregate = line.events.add()
    aggregate.CopyFrom(line.events[0])
    aggregate.num_occurrences = 5
    facts = facts_of(tmp_path, space)
    found = self_ps_by_place(facts)
    assert found == added(runs, places)


@pytest.mark.parametrize("space", [tpu_space, gpu_space, cpu_space])
def test_events_in_any_order_in_the_file_give_the_same_numbers(space, program, tmp_path) -> None:
    runs = play(program, devices=2, steps=2)
    shuffled = space(program, runs)
    for plane in shuffled.planes:
        for line in plane.lines:
            backwards = list(reversed(line.events))
            del line.events[:]
            line.events.extend(backwards)
    facts = facts_of(tmp_path, shuffled)
    assert caveat_names(facts) == []
    assert self_ps_by_place(facts) == added(
        runs, lambda r, e: places(r, e) if space is not gpu_space or not e.container else None
    )


@pytest.mark.parametrize("space", [tpu_space, gpu_space, cpu_space])
def test_a_trace_without_ops_says_what_there_is(space, program, tmp_path) -> None:
    whole = play(program)
    empty = space(program, whole)
    for plane in empty.planes:
        if plane.name.startswith(b"/device") or space is cpu_space:
            del plane.lines[:]
    with pytest.raises(UserError, match=r"holds no device ops.*capture it again"):
        facts_of(tmp_path, empty)

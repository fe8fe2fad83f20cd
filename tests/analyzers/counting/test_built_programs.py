"""More programs and traces with known truth: branches, calls, remat, several modules, clocks, aggregates."""

from zlib import crc32

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers.counting.kinds import Kind
from analyzers.counting.scopes import Pass
from analyzers.reading.protos import xplane_pb2
from analyzers.trace import load
from tests.analyzers.counting.facts import by_op, caveat_names, facts_of, self_ps_by_place
from tests.analyzers.counting.nest import nest_program, places
from tests.builders.compiling import compiled_hlo
from tests.builders.play import TICK_PS, Program, added, play
from tests.builders.spaces import cpu_space, gpu_space, tpu_space, trace_file

SPACES = {"tpu": tpu_space, "gpu": gpu_space, "cpu": cpu_space}
every_layout = pytest.mark.parametrize("layout", SPACES)


def _counted(layout: str, runs, value=lambda e: 1):
    return added(
        runs,
        lambda r, e: (r.device, r.step, e.instruction) if layout != "gpu" or not e.container else None,
        value,
    )


@pytest.fixture(scope="module")
def branching() -> Program:
    def step(p, x):
        return jax.lax.cond(p, lambda v: jnp.sin(jnp.sort(v)), lambda v: jnp.cumsum(v * 2), x)

    return Program(compiled_hlo(step, True, jnp.arange(64.0)))


@every_layout
@pytest.mark.parametrize("branch", [0, 1])
def test_the_branch_that_ran_is_counted_and_the_other_is_not(layout, branch, branching, tmp_path) -> None:
    program = Program(branching.hlo_proto, branch=branch)
    runs = play(program, steps=3)
    facts = facts_of(tmp_path, SPACES[layout](program, runs))
    assert by_op(facts) == _counted(layout, runs)
    assert by_op(facts, "self_ps") == _counted(layout, runs, lambda e: e.self_ps)
    assert set(caveat_names(facts)) <= {"unknown-count"}


@pytest.fixture(scope="module")
def rematerialised() -> Program:
    @jax.checkpoint
    def layer(carry, weight):
        order = jnp.argsort(carry[:, 0])
        return jnp.sin(carry[order] @ weight), None

    def loss(x, weights):
        with jax.named_scope("layers"):
            return jax.lax.scan(layer, x, weights)[0].sum()

    return Program(compiled_hlo(jax.grad(loss), jnp.ones((8, 8)), jnp.ones((4, 8, 8))))


@every_layout
def test_rematerialised_sorts_are_counted_by_pass(layout, rematerialised, tmp_path) -> None:
    pieces = (lambda name: 2 if name.startswith("sort") else 1) if layout != "tpu" else (lambda name: 1)
    runs = play(rematerialised, steps=2, pieces=pieces)
    trace = load(trace_file(tmp_path, SPACES[layout](rematerialised, runs)))
    assert trace.sort_executions(Pass.FORWARD, Kind.ARGSORT) == (4, 4)
    assert trace.sort_executions(Pass.RECOMPUTE, Kind.ARGSORT) == (4, 4)
    assert trace.sort_executions() == (8, 8)
    for row in trace.sorts:
        truth = added(
            runs,
            lambda r, e, row=row: (
                r.step if e.opcode == "sort" and ("rematted" in e.scope) == (row.pass_ is Pass.RECOMPUTE) else None
            ),
        )
        assert row.compiled == 4
        assert row.self_ps[0].tolist() == [truth[0], truth[1]]
    assert trace.caveats == ()


def _together(*spaces: xplane_pb2.XSpace) -> xplane_pb2.XSpace:
    """Merge traces of several programs on the same device into one."""
    result = xplane_pb2.XSpace()
    for number, space in enumerate(spaces):
        for plane in space.planes:
            if plane.name.startswith(b"/device:"):
                _merge(result, plane, number * 1000)
            else:
                result.planes.add().CopyFrom(plane)
    return result


def _merge(space: xplane_pb2.XSpace, plane: xplane_pb2.XPlane, shift: int) -> None:
    """Add a plane's events to the plane of that name; its ids are shifted to keep them apart."""
    target = next((p for p in space.planes if p.name == plane.name), None) or space.planes.add(name=plane.name)

    def stats(holder) -> None:
        for stat in holder.stats:
            stat.metadata_id += shift
            if stat.WhichOneof("value") == "ref_value":
                stat.ref_value += shift

    for key, metadata in plane.stat_metadata.items():
        target.stat_metadata[key + shift].CopyFrom(metadata)
        target.stat_metadata[key + shift].id = key + shift
    for key, metadata in plane.event_metadata.items():
        target.event_metadata[key + shift].CopyFrom(metadata)
        target.event_metadata[key + shift].id = key + shift
        stats(target.event_metadata[key + shift])
    for line in plane.lines:
        into = next((known for known in target.lines if known.name == line.name), None)
        if into is None:
            into = target.lines.add(id=len(target.lines), name=line.name, timestamp_ns=line.timestamp_ns)
        for event in line.events:
            added_event = into.events.add()
            added_event.CopyFrom(event)
            added_event.metadata_id += shift
            stats(added_event)


@every_layout
def test_the_steps_are_those_of_the_module_that_took_most_time(layout, branching, tmp_path) -> None:
    nest = nest_program()
    runs = play(nest, steps=3)
    other = Program(branching.hlo_proto, program_id=77)
    # The other module runs far after the steps, twice, and has instructions of the same names.
    start = 10**10
    others = [
        type(run)(
            run.device,
            run.step,
            run.start_ps + start,
            run.duration_ps,
            tuple(_moved(e, start) for e in run.executions),
        )
        for run in play(other, steps=2)
    ]
    annotated = {"annotate": False} if layout != "gpu" else {}
    space = _together(SPACES[layout](nest, runs, **annotated), SPACES[layout](other, others, **annotated))
    facts = facts_of(tmp_path, space)
    assert facts.module_name == nest.name
    assert facts.num_steps == 3
    shown = [e for r in runs for e in r.executions if layout != "gpu" or not e.container]
    assert sum(by_op(facts, "self_ps").values()) == sum(e.self_ps for e in shown)
    assert {(p.name, p.runs) for p in facts.programs} == {(nest.name, 3), (other.name, 2)}


def _moved(e, by: int):
    return type(e)(
        e.instruction,
        e.opcode,
        e.scope,
        e.loops,
        e.start_ps + by,
        e.duration_ps,
        e.self_ps,
        tuple((start + by, duration) for start, duration in e.pieces),
    )


@pytest.mark.parametrize("program_id", [2**63 + 5, 2**64 - 1, 12190760917235803885])
def test_program_ids_are_the_same_signed_and_unsigned(program_id, tmp_path) -> None:
    program = Program(nest_program().hlo_proto, program_id=program_id)
    runs = play(program, steps=2)
    facts = facts_of(tmp_path, tpu_space(program, runs))
    assert caveat_names(facts) == []
    assert self_ps_by_place(facts) == added(runs, places)


def test_a_body_that_outlasts_its_loop_by_a_rounded_clock_is_still_in_it(tmp_path) -> None:
    """Device clocks are rounded to ticks: one that starts or ends a tick off its loop still lies inside."""
    program = nest_program()
    runs = play(program, steps=1)
    space = tpu_space(program, runs)
    loop = next(e for e in runs[0].executions if e.opcode == "while")
    last = max((e for e in runs[0].executions if e.loops), key=lambda e: e.start_ps + e.duration_ps)
    facts = facts_of(tmp_path / "exact", space)
    assert by_op(facts, "self_ps")[0, 0, loop.instruction] == loop.self_ps
    for plane in space.planes:
        names = {m.name: key for key, m in plane.stat_metadata.items()}
        for line in plane.lines:
            if line.name != b"XLA Ops":
                continue
            for event in line.events:
                stats = {stat.metadata_id: stat for stat in event.stats}
                if plane.event_metadata[event.metadata_id].display_name.decode() == last.loops[0][0]:
                    # The outermost loop now ends where its last own time began, less 1 ns.
                    own = _tail(runs[0], last)
                    stats[names[b"device_duration_ps"]].int64_value -= own + 1000
    found = by_op(facts_of(tmp_path / "rounded", space), "self_ps")
    outer = next(e for e in runs[0].executions if e.instruction == last.loops[0][0])
    assert found[0, 0, outer.instruction] == outer.self_ps - _tail(runs[0], last) - 1000
    assert found[0, 0, last.instruction] == by_op(facts, "self_ps")[0, 0, last.instruction]


def _tail(run, last) -> int:
    """Own time of the outermost loop after its last nested execution."""
    outer = next(e for e in run.executions if e.instruction == last.loops[0][0])
    inner_end = max(
        e.start_ps + e.duration_ps for e in run.executions if len(e.loops) == 1 and e.loops[0][0] == outer.instruction
    )
    return outer.start_ps + outer.duration_ps - inner_end


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from(sorted(SPACES)),
    devices=st.integers(1, 3),
    steps=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    conditions=st.booleans(),
)
def test_whatever_the_durations_all_time_is_found_where_it_was_spent(
    tmp_path_factory, layout, devices, steps, seed, conditions
) -> None:
    program = nest_program()

    def durations(name: str, step: int, iterations: tuple[int, ...]) -> int:
        return TICK_PS * (13 + crc32(f"{name} {step} {iterations} {seed}".encode()) % 97)

    several = 1 if layout == "tpu" else 3
    runs = play(
        program,
        durations,
        devices=devices,
        steps=steps,
        pieces=lambda name: 1 + crc32(f"{name} {seed}".encode()) % several,
        conditions=conditions,
    )
    facts = facts_of(tmp_path_factory.mktemp("any"), SPACES[layout](program, runs))
    assert caveat_names(facts) == []
    assert self_ps_by_place(facts) == added(
        runs, lambda r, e: places(r, e) if layout != "gpu" or not e.container else None
    )
    assert by_op(facts) == _counted(layout, runs)

"""A module that the TPU compiler really made, played into a TPU trace: counts, loops and self times are known.

The routing of `ring` for four chips of a v6e: loops without trip counts in their configuration, scheduled async
work, scatters that the compiler hands to SparseCores. Nobody has such a trace; the module is as real as it gets.
"""

from collections import Counter, defaultdict
from dataclasses import asdict

import pytest

from analyzers.counting.scopes import Pass
from analyzers.trace import load
from profiler.compile import CompileRequest, Workload, compile_all
from tests.analyzers.counting.facts import by_op, facts_of, self_ps_by_place
from tests.builders.play import TICK_PS, Program, added, play
from tests.builders.spaces import Offload, tpu_space, trace_file
from workloads.registry import preset_config

pytestmark = pytest.mark.tpu

LAYERS, CHUNKS, DEVICES, STEPS = 2, 4, 4, 2
DURATION = 9 * TICK_PS
# Counted in the text of this module by hand: forward, recompute and backward of two layers, and of the
# backward's sorts two in each of its chunk loops.
SORTS = {Pass.FORWARD: 8, Pass.RECOMPUTE: 6, Pass.BACKWARD: 22}


def _loop_names(module) -> dict[str, str]:
    """Scope paths of all loops, from the raw proto."""
    return {
        i.name.decode(): i.metadata.op_name.decode()
        for c in module.computations
        for i in c.instructions
        if i.opcode == b"while"
    }


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # Other compilers on this machine hold libtpu's lock.
        config = asdict(preset_config("tiny", 1, ep=DEVICES, dtype="bfloat16"))
        (result,) = compile_all([CompileRequest(Workload("ring", "recompute", "backward", config), "v6e:2x2")])
        (compiled,) = result.programs
        proto = (compiled.folder / compiled.record.compiled.hlo_proto).read_bytes()
    loops = _loop_names(Program(proto).module)
    # What the workload says, not what the compiler or this package found out.
    trips = {name: LAYERS if scope.endswith("layers/while") else CHUNKS for name, scope in loops.items()}
    assert Counter(trips.values()) == {LAYERS: 2, CHUNKS: 6}
    return Program(proto, program_id=2**63 + 17, trips=trips)


@pytest.fixture(scope="module")
def runs(program):
    return play(program, devices=DEVICES, steps=STEPS)


@pytest.fixture(scope="module")
def offloads(program, runs):
    """Each scatter that the compiler gave to a SparseCore: the async start that runs, and the op that it calls."""
    computations = {c.id: c for c in program.module.computations}
    ran = {e.instruction for e in runs[0].executions}
    found = []
    for instruction in (i for c in program.module.computations for i in c.instructions):
        if instruction.opcode != b"async-start" or instruction.name.decode() not in ran:
            continue
        (called,) = instruction.called_computation_ids
        for op in (o for o in computations[called].instructions if o.opcode == b"call"):
            number = len(found)
            launcher, duration_ps = instruction.name.decode(), DURATION + number * TICK_PS
            found.append(Offload(launcher, op.name.decode(), number, duration_ps, cores=(0, 1)))
    return found


@pytest.fixture(scope="module")
def traced(program, runs, offloads, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tpu")
    path = trace_file(folder, tpu_space(program, runs, offloads=offloads))
    return load(path), facts_of(folder / "facts", tpu_space(program, runs, offloads=offloads))


def test_nothing_is_missed_and_nothing_made_up(traced):
    assert traced[0].caveats == ()
    assert traced[1].num_steps == STEPS


def test_every_execution_is_counted_once_with_its_own_time(traced, runs, offloads):
    facts = traced[1]
    launched = {o.op for o in offloads}
    key = lambda run, e: (run.device, run.step, e.instruction)  # noqa: E731
    on_cores = {k: v for k, v in by_op(facts).items() if k[2] not in launched}
    assert on_cores == added(runs, key, lambda e: 1)
    times = {k: v for k, v in by_op(facts, "self_ps").items() if k[2] not in launched}
    assert times == added(runs, key)
    assert len(times) == DEVICES * STEPS * len({e.instruction for e in runs[0].executions})


def test_the_compiled_module_promises_what_the_loops_of_the_source_make(traced, runs):
    played = Counter(e.instruction for e in runs[0].executions)
    promised = {op.name: op.expected for op in traced[1].ops if op.name in played}
    assert promised == played


def test_sorts_by_pass_and_those_that_the_chunk_loops_repeat(traced, runs):
    trace = traced[0]
    for pass_, count in SORTS.items():
        assert trace.sort_executions(pass_) == (count, count)
        assert sum(row.compiled for row in trace.sorts if row.pass_ is pass_) == count
    in_chunks = sum(e.opcode == "sort" and len(e.loops) == 2 for e in runs[0].executions)
    assert in_chunks == 2 * LAYERS * CHUNKS


def test_self_time_per_layer_and_chunk_is_exact(traced, runs, program):
    loops = _loop_names(program.module)

    def index(name: str, iteration: int, of: int) -> int:
        # The transposed loops walk from the end; a forward that is recomputed inside them does not.
        backwards = "transpose(" in loops[name] and "rematted_computation" not in loops[name]
        return of - 1 - iteration if backwards else iteration

    def place(run, e):
        if not e.loops:
            return None
        (outer, layer), *inner = e.loops
        chunk = index(*inner[0], CHUNKS) if inner else -1
        return run.device, run.step, index(outer, layer, LAYERS), chunk

    found = defaultdict(int)
    for (device, step, _, layer, chunk), ps in self_ps_by_place(traced[1]).items():
        found[device, step, layer, chunk] += ps
    assert found == added(runs, place)


def test_offloaded_scatters_are_joined_to_what_launched_them(traced, runs, offloads):
    facts = traced[1]
    counts, times = by_op(facts), by_op(facts, "self_ps")
    ops = {op.name: op for op in facts.ops}
    assert len(offloads) == 3  # forward, recompute, and the router's backward
    for offload in offloads:
        launches = sum(e.instruction == offload.launcher for e in runs[0].executions)
        assert launches == LAYERS
        assert ops[offload.op].launched_by == (offload.launcher,)
        assert ops[offload.op].expected == launches
        for run in runs:
            assert counts[run.device, run.step, offload.op] == launches
            assert times[run.device, run.step, offload.op] == launches * offload.duration_ps

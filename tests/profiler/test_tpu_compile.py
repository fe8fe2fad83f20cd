"""`moe-prof compile` for TPUs that are not there: what the two changes it is built around leave of sorts and memory."""

import re
from dataclasses import asdict
from fractions import Fraction

import pytest

from analyzers.comparing.budget import exit_code, hold, read_budget
from analyzers.comparing.funnel import sorts
from analyzers.comparing.subjects import subjects_of_result
from analyzers.counting.hlo import Module
from analyzers.counting.scopes import Pass
from analyzers.showing.buffer_tables import peak_story
from analyzers.showing.compile_document import top_k_lines
from profiler.compile import CompileRequest, Workload, compile_all, merged
from workloads.registry import preset_config

pytestmark = [pytest.mark.tpu, pytest.mark.slow]

LAYERS, CHUNKS = 2, 4


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def results(workload, variants, target, mode="backward", scale=Fraction(1, 14), preset="deepseek-v3", **overrides):
    config = preset_config(preset, scale, **overrides)
    sources = [Workload(workload, variant, mode, asdict(config)) for variant in variants]
    return compile_all([CompileRequest(s, target, num_devices=config.num_devices) for s in sources])


@pytest.fixture(scope="module", params=[True, False], ids=["remat", "no-remat"])
def ring(request, cache):
    """Both variants with the SparseCore kernels over the 8 devices of a TPU7x 2x2x1."""
    variants = ("recompute", "cached")
    return request.param, results(
        "ring", variants, "tpu7x:2x2x1", num_layers=LAYERS, kernels="pallas", remat=request.param
    )


def test_caching_leaves_one_set_of_routing_sorts_per_layer_and_none_in_a_chunk_loop(ring, tmp_path):
    remat, found = ring
    recompute, cached = (result.programs[0] for result in found)
    assert recompute.manifest.config["ep"] == recompute.module.num_devices == 8
    validity = [s for s in recompute.levels["compiled"] if s.path.endswith("dispatch/validity")]
    (in_loop,) = [s for s in validity if s.pass_ == "backward"]
    assert [(loop.path, loop.trips) for loop in in_loop.loops] == [("layers", LAYERS), ("layers/chunks", CHUNKS)]
    assert in_loop.times == LAYERS * CHUNKS
    # The combine's backward inverts the permutation in the same loop.
    assert sorts(recompute.levels["compiled"], in_loop="chunks").times == 2 * LAYERS * CHUNKS
    # Remat runs the two sorts of the forward again that the backward needs.
    assert sorts(recompute.levels["compiled"], "recompute").times == (2 * LAYERS if remat else 0)

    assert sorts(cached.levels["compiled"], in_loop="chunks").times == 0
    routing = [s for s in cached.levels["compiled"] if s.kind == "argsort"]
    assert sorted(s.path for s in routing) == [f"layers/dispatch{p}" for p in ("", "/inverse", "/validity")]
    assert {(s.pass_, s.times) for s in routing} == {("forward", LAYERS)}
    # What is left beside them the compiler makes: it sorts the indices of the router's scatter-add.
    (other,) = [s for s in cached.levels["compiled"] if s.kind == "sort"]
    assert (other.pass_, other.path, other.times) == ("backward", "layers/router", LAYERS)
    kernels = {s.name for s in cached.levels["compiled"] if s.kind == "custom call"}
    assert kernels >= {"ragged_gather", "ragged_gather_reduce"}

    budget = tmp_path / "budget.toml"
    for name, code in (("cached", 0), ("recompute", 1)):
        budget.write_text(f"[ring.{name}.backward]\nsorts_in_chunk_loops = 0\nsorts_per_layer = 4\n")
        both = subjects_of_result(merged(found, tmp_path / name))
        assert exit_code(hold(read_budget(budget), both)) == code


def test_the_buffers_are_those_of_the_compilers_own_report(ring):
    for result in ring[1]:
        (program,) = result.programs
        buffers, memory = program.buffers, program.record.compiled.memory
        assert buffers.argument_bytes == memory.argument_bytes
        allocations = program.module.proto.buffer_assignment.buffer_allocations
        results_ = sum(a.size for a in allocations if a.maybe_live_out and not a.is_entry_computation_parameter)
        assert results_ == memory.output_bytes
        thread_local = sum(a.size for a in allocations if a.color == 0 and a.is_thread_local)
        report = re.search(r"default \(color=0\)\s+Total bytes: (\d+)", program.memory_report)
        assert buffers.allocated_bytes + thread_local == int(report[1])
        # jaxlib reckons more temporary memory than the assignment holds, and never less.
        assert buffers.temp_bytes <= memory.temp_bytes
        assert 0.8 * buffers.allocated_bytes <= program.peak.size_bytes <= buffers.allocated_bytes
        assert program.peak.with_arguments


def counted_in_text(text, opcode):
    """Instructions of an opcode in the text of a module, whatever computation they stand in."""
    return len(re.findall(rf"^\s+(?:ROOT )?%\S+ = .*?[\])}}] {opcode}\(", text, re.MULTILINE))


def test_sorts_and_gathers_are_those_of_the_text(ring):
    for result in ring[1]:
        (program,) = result.programs
        module: Module = program.module
        for opcode in ("sort", "while", "scatter", "custom-call"):
            ours = sum(i.opcode == opcode for i in module.instructions.values())
            assert ours == counted_in_text(program.text, opcode) > 0, opcode


def test_gather_removes_the_buffer_of_top_k_copies_on_v6e(cache):
    found = results(
        "permute",
        ("repeat", "gather"),
        "v6e:2x2",
        mode="forward",
        preset="deepseek-v4-284b",
        scale=Fraction(1, 16),
        num_layers=1,
        num_tokens=65536,
        ep=4,
    )
    repeat, gather = (result.programs[0] for result in found)
    tokens, hidden, top_k = 65536 // 4, 256, 6
    dispatch = repeat.record.compiled.dispatch_input_bytes
    assert dispatch == tokens * hidden * 2
    copies = [b for b in repeat.buffers.buffers if b.shape == f"bf16[{tokens},{top_k},{hidden}]" and b.repeats]
    assert [(b.opcode, b.pass_, b.data_bytes / dispatch) for b in copies] == [("broadcast", Pass.FORWARD, 6.0)]
    # A TPU tiles the last two dimensions: six rows take the room of eight.
    assert copies[0].size_bytes == 8 * dispatch
    assert not gather.buffers.repeats(6 * dispatch)
    first, second = top_k_lines(repeat, gather)
    assert first.startswith("repeat: tokens repeated top_k times, 6.0 × the dispatch input, 48.00 MiB of data, fill")
    assert second.startswith("gather: no buffer of the forward pass holds tokens repeated")

    # The peak is elsewhere: the copies are not alive at it, so that removing them does not lower it.
    assert not any(live.buffer.repeats for live in repeat.peak.alive)
    assert repeat.peak.size_bytes == gather.peak.size_bytes
    (moved, *_, removed) = peak_story("repeat", "gather", (repeat.buffers, gather.buffers), (repeat.peak, gather.peak))
    assert moved.startswith("The peak does not move")
    assert "was not alive at repeat's peak" in removed

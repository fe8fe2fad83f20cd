"""`moe-prof compile`: real worker processes for CPU, and what they say of memory and counts."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from analyzers.compiled import load_compiled
from analyzers.counting.hlo import Module
from analyzers.counting.kinds import Kind
from analyzers.errors import UserError
from profiler import compile as compiling
from profiler.cli.main import main
from profiler.compile import CompileRequest, UserModule, Workload, cache_key, compile_all, worker_environment
from workloads.registry import preset_config

EXAMPLES = str(Path(__file__).with_name("compile_examples.py"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def ring(variant, **overrides):
    config = preset_config("tiny", 1, ep=2, **overrides)
    return CompileRequest(Workload("ring", variant, "backward", asdict(config)), "cpu", num_devices=2)


@pytest.fixture(scope="module")
def both(cache):
    return [result.programs[0] for result in compile_all([ring("recompute"), ring("cached")])]


def own(function, **fields):
    return CompileRequest(UserModule(EXAMPLES, function), **fields)


def counted_in_text(text: str) -> int:
    """Sorts of an HLO text per execution: loops by their `known_trip_count`, calls followed; no code of ours."""
    computations, entry, name = {}, "", ""
    for line in text.splitlines():
        if line.endswith("{") and line.startswith(("%", "ENTRY")):
            name = re.search(r"%([\w.\-]+)", line).group(1)
            entry = name if line.startswith("ENTRY") else entry
            computations[name] = []
        elif name:
            computations[name].append(line)

    def sorts(computation: str) -> int:
        total = 0
        for line in computations[computation]:
            if re.search(r" sort\(", line):
                total += 1
            elif " while(" in line:
                trips = int(re.search(r'known_trip_count":\{"n":"(\d+)"', line).group(1))
                total += trips * sorts(re.search(r"body=%([\w.\-]+)", line).group(1))
            elif re.search(r" (?:call|fusion)\(", line):
                total += sum(sorts(called) for called in re.findall(r"(?:to_apply|calls)=%([\w.\-]+)", line))
        return total

    return sorts(entry)


def test_counts_are_those_of_the_text(both):
    for program, known in zip(both, (14, 6), strict=True):
        kinds = (Kind.ARGSORT.value, Kind.SORT.value)
        counted = sum(s.times for s in program.levels["compiled"] if s.kind in kinds)
        assert counted == counted_in_text(program.text) == known


def test_buffers_are_those_of_the_memory_analysis_and_of_the_compilers_report(both):
    for program in both:
        memory, found = program.record.compiled.memory, program.buffers
        assert found.temp_bytes == memory.temp_bytes
        assert found.argument_bytes == memory.argument_bytes
        (total,) = re.findall(r"Total bytes: (\d+)", program.memory_report)
        assignment = program.module.proto.buffer_assignment
        assert sum(a.size for a in assignment.buffer_allocations if a.color == 0) == int(total)


def test_the_peak_fits_in_what_is_allocated_and_is_most_of_it(both):
    for program in both:
        allocated = program.buffers.allocated_bytes
        assert 0.95 * allocated <= program.peak.size_bytes <= allocated
        assert "experts" in program.peak.scope
        assert sum(live.buffer.size_bytes for live in program.peak.alive) == program.peak.size_bytes
        assert all(live.start <= live.end for live in program.peak.alive)


def test_a_known_result_is_not_compiled_again_and_no_cache_does(cache):
    request = own("step_and_arguments")
    seen = []
    for use_cache in (True, True, False):
        compile_all([request], use_cache=use_cache, report=lambda *now: seen.append(now[3]))
    assert seen == [False, True, False]


def test_the_key_changes_with_all_that_the_result_depends_on(tmp_path, monkeypatch):
    file = tmp_path / "f.py"
    file.write_text("a = 1\n")
    requests = [
        ring("recompute"),
        ring("cached"),
        ring("cached", top_k=2),
        CompileRequest(ring("cached").source, "tpu7x:2x2x1", num_devices=2),
        CompileRequest(ring("cached").source, "cpu", "--xla_x=1", num_devices=2),
        CompileRequest(ring("cached").source, "cpu", "", "--y=1", num_devices=2),
        CompileRequest(UserModule(str(file), "f")),
        CompileRequest(UserModule(str(file), "g")),
    ]
    keys = [cache_key(request) for request in requests]
    file.write_text("a = 2\n")
    keys.append(cache_key(requests[-1]))
    monkeypatch.setenv("XLA_FLAGS", "--xla_z=1")
    keys.append(cache_key(requests[0]))
    assert len(set(keys)) == len(keys)


def test_a_damaged_result_in_the_cache_is_made_anew(cache):
    request = own("placed")
    (result,) = compile_all([request])
    (result.path / "compile.json").write_text("{")
    (again,) = compile_all([request])
    assert again.programs[0].levels["traced"]


@pytest.mark.parametrize("function", ["step_and_arguments", "placed"])
def test_a_users_own_function(cache, function):
    (result,) = compile_all([own(function)])
    (program,) = result.programs
    assert result.manifest.workload == f"compile_examples.py:{function}"
    assert {k: sum(s.kind == "argsort" for s in v) for k, v in program.levels.items()} == {
        "traced": 2,
        "lowered": 2,
        "compiled": 2,
    }


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        ("nonsense", "must return (function, arguments)"),
        ("raises", "raises does not compile for cpu: ValueError: no such model"),
        ("crashes", "the compiler crashed (SIGSEGV) while compiling crashes for cpu"),
        ("does_not_trace", "does_not_trace does not compile for cpu: AttributeError"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_what_goes_wrong_in_the_worker_is_one_sentence(cache, function, complaint):
    with pytest.raises(UserError) as raised:
        compile_all([own(function)])
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list((cache / "moe-prof" / "compile").glob(".partial-*"))


@pytest.mark.parametrize("target", ["tpu7x:2x2x1", "v6e:2x2", "v5e:2x2", "v5p:2x2x1"])
def test_without_libtpu_every_tpu_target_says_what_to_install(monkeypatch, capsys, target):
    monkeypatch.setattr(compiling, "version_of", lambda name: None)
    with pytest.raises(SystemExit) as left:
        main(["compile", "ring", "--target", target])
    captured = capsys.readouterr()
    assert (left.value.code, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    assert 'pip install "moe-prof[tpu]"' in captured.err


@pytest.mark.parametrize("target", ["v7x:2x2", "tpu7x", "gpu", "tpu7x:2"])
def test_an_unknown_target_lists_the_known_ones(target, capsys):
    with pytest.raises(SystemExit) as left:
        main(["compile", "ring", "--target", target])
    assert left.value.code == 2
    assert "tpu7x:2x2x1, v6e:2x2, v5p:2x2x1, v5e:2x2" in capsys.readouterr().err


def test_the_worker_gets_what_libtpu_needs_and_the_users_flags_first(tmp_path):
    request = CompileRequest(ring("cached").source, "v6e:2x2", "--xla_b=2", "--d=4")
    found = worker_environment(request, tmp_path, {"XLA_FLAGS": "--xla_a=1", "LIBTPU_INIT_ARGS": "--c=3", "HOME": "/h"})
    assert found["XLA_FLAGS"].startswith("--xla_a=1 --xla_b=2 --xla_dump_to=")
    assert found["LIBTPU_INIT_ARGS"] == "--c=3 --d=4"
    assert found["JAX_PLATFORMS"] == "cpu"
    assert found["TPU_ACCELERATOR_TYPE"] == "v6e-4"
    assert found["HOME"] == "/h"


def test_a_result_that_leads_outside_its_folder_is_refused(cache, both, tmp_path):
    content = json.loads((both[0].folder / "compile.json").read_text())
    content["programs"][0]["compiled"]["hlo_text"] = "../../secret"
    (tmp_path / "compile.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"outside the folder|is missing"):
        load_compiled(tmp_path)


def test_the_command_prints_both_programs_and_what_changed(cache, both, capsys, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["compile", "ring", "--ep", "2", "-o", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert left.value.code == 0
    assert captured.err.splitlines() == ["[1/2] known recompute for cpu", "[2/2] known cached for cpu"]
    assert "hoisted out of the loop layers/chunks to loop layers" in captured.out
    assert "recompute → cached on cpu" in captured.out
    assert [p.name for p in load_compiled(tmp_path / "out").programs] == ["recompute", "cached"]
    assert Module((tmp_path / "out" / "cached" / "jit_ring_backward.hlo.pb").read_bytes()).name == "jit_ring_backward"


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured") / "run"
    arguments = ["--ep", "2", "--variants", "cached", "--steps", "2", "--rounds", "1", "-o", str(folder)]
    with pytest.raises(SystemExit) as left:
        main(["capture", "ring", *arguments])
    assert left.value.code == 0
    return folder


def run_main(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return left.value.code, captured.out, captured.err


def test_a_run_or_a_trace_adds_the_level_executed(cache, both, captured, capsys):
    (trace,) = captured.rglob("*.xplane.pb")
    for given in (captured, trace):
        arguments = ("compile", "ring", "--ep", "2", "--variants", "cached", "--run", given)
        code, out, _ = run_main(capsys, *arguments)
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()]
        assert code == 0
        assert ["argsort", "forward", "6", "6", "6", "6"] in rows
        (gathers,) = [row for row in rows if row[:2] == ["gather", "forward"]]
        assert gathers[-1] == "n/a"
        assert "compiled → executed" not in out
        code, out, _ = run_main(capsys, *arguments, "--json")
        rows = json.loads(out)["programs"][0]["funnel"]
        assert {r["kind"] for r in rows if r["executed"] is None} >= {"gather", "scatter"}
        assert all(r["executed"] == r["compiled"] for r in rows if r["executed"] is not None)


def test_a_run_of_something_else_is_refused_with_the_difference(cache, both, captured, capsys, real_traces):
    arguments = ("compile", "ring", "--ep", "2", "--variants")
    code, out, err = run_main(capsys, *arguments, "cached", "--mode", "forward", "--run", captured)
    assert (code, out) == (2, "")
    assert err.endswith(
        f"{captured} was captured with mode backward, and cached was compiled with mode forward; "
        "give compile and capture the same options.\n"
    )
    code, _, err = run_main(capsys, *arguments, "recompute,cached", "--run", captured)
    assert (code, "no variant 'recompute'" in err) == (2, True)
    trace = real_traces / "cpu-two-sorts-per-step.xplane.pb"
    code, _, err = run_main(capsys, *arguments, "recompute,cached", "--run", trace)
    assert (code, "several were compiled; name one with --variants" in err) == (2, True)
    # A trace says nothing of its options: what does not fit is shown, and said to be a guess.
    code, out, _ = run_main(capsys, *arguments, "cached", "--run", trace)
    assert code == 0
    assert "fewer ran than were compiled: another program, or the trace lost some ?" in out


def test_ctrl_c_leaves_nothing_half_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def interrupted(command, **options):
        (Path(command[-1]) / "compile.json").write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling.subprocess, "run", interrupted)
    code, out, err = run_main(capsys, "compile", "ring", "-o", tmp_path / "out")
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "moe-prof" / "compile").iterdir()) == []

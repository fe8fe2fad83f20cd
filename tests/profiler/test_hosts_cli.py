"""`show` and `diff` of runs on several hosts, built so that every figure is known."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from analyzers.reading.protos import xplane_pb2
from analyzers.showing.devices_document import device_table
from analyzers.showing.trace_document import trace_document
from analyzers.trace import load
from profiler.cli.main import main
from tests.builders.handmade import Op, handmade_proto, trips
from tests.builders.play import TICK_PS, Program, added, default_durations, play
from tests.builders.spaces import tpu_space, trace_file

LAYERS = "jit(f)/layers/while"
CHUNKS = f"{LAYERS}/body/chunks/while"
PROGRAM = Program(
    handmade_proto(
        "main",
        test=[Op("t", "constant")],
        chunk=[
            Op("c", "parameter"),
            Op("dot.1", "dot", ["c", "c"], scope=f"{CHUNKS}/body/experts/dot_general"),
            Op("sort.1", "sort", ["dot.1"], scope=f"{CHUNKS}/body/combine/jit(argsort)/sort"),
        ],
        layer=[
            Op("p", "parameter"),
            Op("sort.2", "sort", ["p"], scope=f"{LAYERS}/body/router/top_k"),
            Op("while.2", "while", ["sort.2"], ["chunk", "test"], CHUNKS, config=trips(3)),
        ],
        main=[
            Op("x", "parameter"),
            Op("while.1", "while", ["x"], ["layer", "test"], LAYERS, config=trips(4)),
            Op("add.1", "add", ["while.1", "x"], scope="jit(f)/add"),
        ],
    )
)
"""Written by hand, so that the whole outputs do not depend on what a compiler makes of a source."""
STEPS = 3
SLOW_TICKS = 300
SLOW = "host1:TPU:1"
SHORT = "host2"
LOST = 1
"""The step that `SHORT` does not show."""
SESSION = "plugins/profile/2026_01_01"


@pytest.fixture
def run(capsys):
    """Run the command line; return exit code, standard output and standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


def _slow(name, step, iterations):
    return default_durations(name, step, iterations) + SLOW_TICKS * TICK_PS


@pytest.fixture(scope="module")
def runs():
    """Runs by host: one device of `host1` is slow, `host2` lost a step in the middle."""
    usual = play(PROGRAM, devices=2, steps=STEPS)
    slow = play(PROGRAM, _slow, devices=2, steps=STEPS)
    return {
        "host0": usual,
        "host1": [r for r in usual if r.device == 0] + [r for r in slow if r.device == 1],
        "host2": [r for r in usual if r.step != LOST],
    }


@pytest.fixture(scope="module")
def log(runs, tmp_path_factory):
    """Log directory of those hosts and of a fourth, whose file is cut."""
    folder = tmp_path_factory.mktemp("many") / "log"
    for host, of_host in runs.items():
        path = trace_file(folder, tpu_space(PROGRAM, of_host), host)
    whole = path.read_bytes()
    (path.parent / "host3.xplane.pb").write_bytes(whole[: len(whole) // 2])
    return folder


def _self_ps(runs):
    """Self time by device and step, from the runs."""
    return {
        f"{host}:TPU:{device}": {
            step: ps for (d, step), ps in added(of_host, lambda r, e: (r.device, r.step)).items() if d == device
        }
        for host, of_host in runs.items()
        for device in range(2)
    }


@pytest.mark.parametrize("command", ["show", "diff"])
def test_one_bad_file_is_named_and_the_rest_reported(run, golden, log, monkeypatch, command):
    monkeypatch.chdir(log.parent)
    paths = ["log"] if command == "show" else ["log", "log"]
    code, out, err = run(command, *paths, "--top", "3")
    assert (code, err) == (1, "")
    golden(f"{command}-hosts.txt", out)
    assert (
        "1 of 4 files could not be read and is left out: log/plugins/profile/2026_01_01/host3.xplane.pb is cut" in out
    )


def test_every_device_has_the_time_it_was_built_with(run, log, runs):
    code, out, _ = run("show", log, "--json")
    (trace,) = json.loads(out)["traces"]
    truth = _self_ps(runs)
    shown = [step for step in range(STEPS) if step != LOST]
    assert code == 1
    assert trace["steps"] == [[100 + step for step in shown]]
    assert trace["self_ps_by_device"] == {name: [[steps[s] for s in shown]] for name, steps in truth.items()}
    assert next(iter(trace["self_ps_by_device"])) == SLOW
    assert trace["self_ps"] == [[round(sum(steps[s] for steps in truth.values()) / 6) for s in shown]]
    assert [(h["name"], h["devices"]) for h in trace["hosts"]] == [("host0", 2), ("host1", 2), ("host2", 2)]
    assert {c["name"]: c["lower_bound"] for c in trace["caveats"]} == {"unreadable-file": True, "missing-runs": False}


def test_ops_and_modules_are_added_up_over_hosts(run, log, runs):
    trace = json.loads(run("show", log, "--json")[1])["traces"][0]
    kept = [r for of_host in runs.values() for r in of_host if r.step != LOST]
    executed, self_ps = {}, {}
    for op in trace["ops"]:
        executed[op["name"]] = executed.get(op["name"], 0) + op["executions"]
        self_ps[op["name"]] = self_ps.get(op["name"], 0) + op["self_ps"]
    assert len(executed) == len(trace["ops"])
    assert executed == added(kept, lambda r, e: e.instruction, lambda e: 1)
    assert self_ps == added(kept, lambda r, e: e.instruction)
    (module,) = trace["modules"]
    assert module["executions"] == sum(len(of_host) for of_host in runs.values())


def test_by_layer_and_by_chunk_nothing_is_left_out(run, log):
    trace = json.loads(run("show", log, "--json")[1])["traces"][0]
    for what in ("layer", "chunk"):
        rows = [*trace[f"self_ps_by_{what}"].values(), trace[f"self_ps_without_{what}"]]
        assert np.sum(rows, axis=0) == pytest.approx(np.array(trace["self_ps"]), abs=len(rows))


@pytest.mark.parametrize("jobs", [1, 2])
def test_who_reads_does_not_change_what_is_said(run, log, jobs):
    assert run("show", log, "--jobs", jobs) == run("show", log)


def test_a_cluster_says_the_same(run, log, ring_run):
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local:
        for path in (log, ring_run):
            assert run("show", path, "--cluster", local.scheduler_address) == run("show", path)


def test_jobs_and_cluster_exclude_each_other(run, log):
    code, out, err = run("show", log, "--jobs", 2, "--cluster", "tcp://x:1")
    assert (code, out) == (2, "")
    assert err == "moe-prof: --jobs is for this machine and --cluster for others; give one of them.\n"


def test_without_one_good_file_there_is_nothing_to_show(run, tmp_path):
    folder = tmp_path / SESSION
    folder.mkdir(parents=True)
    for host in ("a", "b"):
        (folder / f"{host}.xplane.pb").write_bytes(b"no trace")
    code, out, err = run("show", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"moe-prof: None of the 2 files of {tmp_path} can be read. The first: {folder}/a.xplane.pb")
    assert err.count("\n") == 1


def test_a_run_with_a_bad_round_is_shown_by_its_other_rounds(run, ring_run, tmp_path):
    shutil.copytree(ring_run, tmp_path / "run")
    manifest = json.loads((ring_run / "run.json").read_text())
    bad = next(s for s in manifest["sessions"] if s["variant"] == "cached" and s["round"] == 0)["xplane_files"][0]
    path = tmp_path / "run" / bad["path"]
    path.write_bytes(b"\x07" * bad["size_bytes"])
    expected = json.loads(run("show", ring_run, "--json")[1])["traces"]
    code, out, err = run("show", tmp_path / "run", "--json")
    assert (code, err) == (1, "")
    whole, part = json.loads(out)["traces"]
    assert whole["self_ps"] == expected[0]["self_ps"]
    assert whole["caveats"] == expected[0]["caveats"]
    assert part["self_ps"] == expected[1]["self_ps"][1:]
    assert str(path) in next(c["message"] for c in part["caveats"] if c["name"] == "unreadable-file")
    assert run("diff", tmp_path / "run")[0] == 1


def test_steps_are_matched_by_number_where_hosts_show_different_ones(run, log, runs):
    truth = _self_ps(runs)
    slowest = max(truth, key=lambda name: truth[name][2])
    assert slowest == SLOW
    wall = json.loads(run("show", log, "--json")[1])["traces"][0]["step_wall_ps"]
    lasted = {r.step: r.duration_ps for r in runs["host1"] if r.device == 1}
    assert wall == [[lasted[0], lasted[2]]]


def test_hosts_of_one_name_are_told_apart_by_their_files(tmp_path):
    runs = play(PROGRAM, devices=1)
    for host in ("a", "b"):
        space = xplane_pb2.XSpace(hostnames=[b"localhost"])
        space.MergeFrom(tpu_space(PROGRAM, runs))
        trace_file(tmp_path, space, host)
    folder = tmp_path / SESSION
    assert load(tmp_path).devices == (f"{folder}/a.xplane.pb:TPU:0", f"{folder}/b.xplane.pb:TPU:0")


def test_a_host_that_is_not_there_is_missed(tmp_path):
    """A module says on how many devices it was compiled to run."""
    import jax
    import jax.numpy as jnp

    from tests.builders.compiling import compiled_hlo

    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    over_all = jax.NamedSharding(mesh, jax.P("x"))
    program = Program(compiled_hlo(jnp.sin, jax.device_put(jnp.ones((4, 8)), over_all)))
    runs = play(program, devices=2)
    trace_file(tmp_path, tpu_space(program, runs), "host0")
    (caveat,) = load(tmp_path).caveats
    assert caveat.name == "missing-devices"
    assert "compiled to run on 4 devices, but the trace shows 2 of them" in caveat.message
    trace_file(tmp_path, tpu_space(program, runs), "host1")
    assert load(tmp_path).caveats == ()


def test_of_many_devices_the_slowest_and_the_fastest_are_listed(log, runs):
    trace = load(log)
    (first, *_) = trace.sessions[0]
    hosts = tuple(
        replace(
            first,
            hostname=f"h{n:03}",
            by_place=replace(first.by_place, self_ps=first.by_place.self_ps * (10 + n) // 10),
        )
        for n in range(256)
    )
    table = device_table(replace(trace, sessions=(hosts,)))
    assert table is not None
    assert "slowest of 512 is h255:TPU:1, 1.93× the median device" in table.title
    assert [row[0].text for row in table.rows] == [
        "h255:TPU:1",
        "h255:TPU:0",
        "h254:TPU:1",
        "… 506 more (--json has all)",
        "h001:TPU:0",
        "h000:TPU:1",
        "h000:TPU:0",
        "median device",
    ]


def test_the_loops_of_a_run(run, golden, ring_run, monkeypatch):
    monkeypatch.chdir(ring_run.parent)
    code, out, err = run("show", "ring-run", "--loops")
    assert (code, err) == (0, "")
    golden("loops-ring-run.txt", out)
    traces = json.loads(run("show", "ring-run", "--loops", "--json")[1])["traces"]
    sorts = {
        t["name"]: sum(
            n["trip_count"] * n["executions"] * n["sorts_per_iteration"] for n in t["loops"] if n["depth"] == 0
        )
        for t in traces
    }
    # All sorts of this workload are in its layers: what the sort table of `show` gives as compiled.
    assert sorts == {"recompute": 18, "cached": 8}


def test_the_loops_of_the_program(run, log):
    code, out, _ = run("show", log, "--loops", "--json")
    (trace,) = json.loads(out)["traces"]
    keys = ("name", "depth", "role", "trip_count", "executions", "sorts_per_iteration", "own_sorts", "scope")
    assert code == 1
    assert [tuple(loop[key] for key in keys) for loop in trace["loops"]] == [
        ("while.1", 0, "layer", 4, 1, 1 + 3, 1, LAYERS),
        ("while.2", 1, "chunk", 3, 4, 1, 1, CHUNKS),
    ]


def test_a_layer_scope_that_was_picked_there_names_the_loop(run, real_traces):
    path = real_traces / "cpu-maxtext-deepseek-tiny-repeat.xplane.pb"

    def roles(*options):
        (trace,) = json.loads(run("show", path, "--loops", "--json", *options)[1])["traces"]
        return {loop["name"]: loop["role"] for loop in trace["loops"]}

    assert set(roles().values()) == {"layer (a guess)"}
    assert set(roles("--layer-scope", "nothing").values()) == {"layer (a guess)"}
    assert set(roles("--layer-scope", "").values()) == {"layer"}


def test_memory_is_told_by_host_where_hosts_run_different_compilations(ring_run):
    trace = load(ring_run, variant="cached")
    file = trace.sessions[0][0]
    memory = file.memory
    assert memory.allocated_bytes == trace.peak_bytes

    def text(other):
        hosts = replace(file, hostname="a"), replace(file, hostname="b", memory=other)
        document = trace_document(replace(trace, sessions=(hosts,)))
        return [part for part in document.parts if "Memory" in getattr(part, "title", getattr(part, "text", ""))]

    (same,) = text(memory)
    assert same.text == "Memory: the same on each device of all 2 hosts."
    (table,) = text(replace(memory, temp_bytes=3 << 20))
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["a", "2", "506.64 KiB", "468.43 KiB", "21.06 KiB"],
        ["b", "2", "506.64 KiB", "3.00 MiB", "21.06 KiB"],
    ]
    (table,) = text(None)
    assert [cell.text for cell in table.rows[1]] == ["b", "2", "n/a", "n/a", "n/a"]

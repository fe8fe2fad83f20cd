"""Captures of a small workload, judged by what the raw trace files hold."""

import gc
import re
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import pytest

from analyzers.errors import UserError
from analyzers.reading.protos import hlo_pb2, xplane_pb2
from analyzers.reading.run import Run, load_run
from profiler import backends
from profiler import capture as capturing
from profiler.capture import CaptureRequest, Progress, capture, in_turn
from profiler.interrupts import noticed_interrupts
from profiler.stopping import MIN_ROUNDS, Until, progressed
from workloads.registry import build, preset_config

STEPS, ROUNDS = 3, 2
MODULE = b"jit_permute_forward"


def request_for(output: Path, **changes: Any) -> CaptureRequest:
    plain = CaptureRequest(
        workload="permute",
        variants=("repeat", "gather"),
        config=preset_config("tiny", 0.25, num_layers=1),
        mode="forward",
        steps=STEPS,
        rounds=ROUNDS,
        output=output,
        argv=("moe-prof", "capture", "permute", "-o", str(output)),
        rescale=lambda scale: preset_config("tiny", scale, num_layers=1),
    )
    return replace(plain, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("capture")
    return capture(request_for(folder / "not" / "yet" / "RUN"))


def raw_space(run: Run, variant: str, number: int) -> xplane_pb2.XSpace:
    (file,) = (run.path / variant / f"round_{number}").glob("plugins/profile/*/*.xplane.pb")
    return xplane_pb2.XSpace.FromString(file.read_bytes())


def raw_plane(space: xplane_pb2.XSpace, name: bytes) -> xplane_pb2.XPlane:
    (plane,) = (plane for plane in space.planes if plane.name == name)
    return plane


def raw_stats(plane: xplane_pb2.XPlane, holder: Any) -> dict[bytes, Any]:
    values = {}
    for stat in holder.stats:
        value = getattr(stat, stat.WhichOneof("value"))
        if stat.HasField("ref_value"):
            value = plane.stat_metadata[value].name
        values[plane.stat_metadata[stat.metadata_id].name] = value
    return values


SESSIONS = [(variant, number) for variant in ("repeat", "gather") for number in range(ROUNDS)]


@pytest.mark.parametrize(("variant", "number"), SESSIONS)
def test_a_session_has_the_steps_asked_for_and_ops_in_each(run: Run, variant: str, number: int) -> None:
    plane = raw_plane(raw_space(run, variant, number), b"/host:CPU")
    steps, ops = {}, []
    for line in plane.lines:
        for event in line.events:
            stats = raw_stats(plane, event)
            start = line.timestamp_ns * 1000 + event.offset_ps
            if plane.event_metadata[event.metadata_id].name == b"step":
                assert stats[b"step_num"] not in steps
                steps[stats[b"step_num"]] = (start, start + event.duration_ps)
            elif stats.get(b"hlo_module") == MODULE:
                ops.append(start)
    assert sorted(steps) == list(range(STEPS))
    by_step = Counter(step for op in ops for step, (start, end) in steps.items() if start <= op <= end)
    assert sorted(by_step) == list(range(STEPS))
    # The same program runs in each: as many ops in one as in the other, and none outside.
    assert len(set(by_step.values())) == 1
    assert sum(by_step.values()) == len(ops)


def test_sessions_alternate_by_the_clock_of_the_profiler(run: Run) -> None:
    started = {}
    for variant, number in SESSIONS:
        plane = raw_plane(raw_space(run, variant, number), b"Task Environment")
        started[raw_stats(plane, plane)[b"profile_start_time"]] = (variant, number)
    order = [started[time] for time in sorted(started)]
    assert order == [("repeat", 0), ("gather", 0), ("gather", 1), ("repeat", 1)]
    assert order == [(session.variant, session.round) for session in run.manifest.sessions]
    assert [session.order for session in run.manifest.sessions] == [0, 1, 2, 3]


def test_three_variants_go_forward_then_reversed() -> None:
    order = [variant for number in range(3) for variant in in_turn(number, "abc")]
    assert "".join(order) == "abccbaabc"


def test_waiting_for_precision_takes_whole_rounds_and_says_why_it_stopped(tmp_path: Path) -> None:
    told = []
    any_precision = request_for(tmp_path / "RUN", steps=2, rounds=Until(precision=1e6, max_seconds=3600.0))
    manifest = capture(any_precision, told.append).manifest
    assert manifest.rounds == MIN_ROUNDS
    assert Counter(session.variant for session in manifest.sessions) == {"repeat": MIN_ROUNDS, "gather": MIN_ROUNDS}
    assert manifest.stopped is not None
    assert (manifest.stopped.reason, manifest.stopped.precision) == ("precision", 1e6)
    walls = {name: [s.step_wall_ns for s in manifest.sessions if s.variant == name] for name in ("repeat", "gather")}
    known = progressed(walls)
    assert known is not None
    assert manifest.stopped.half_width == known.half_width
    # What a round shows while it runs is what the rounds before it say.
    last = [progress for progress in told if progress.round == MIN_ROUNDS - 1]
    assert {progress.known for progress in last} == {progressed({name: rounds[:-1] for name, rounds in walls.items()})}
    assert {progress.total for progress in told} == {None}

    no_time = request_for(tmp_path / "SHORT", variants=("gather",), steps=1, rounds=Until(1e-9, max_seconds=1e-9))
    manifest = capture(no_time).manifest
    assert manifest.rounds == 1
    assert manifest.stopped is not None
    assert (manifest.stopped.reason, manifest.stopped.half_width) == ("time", None)


def test_step_times_of_the_host_enclose_those_of_the_profiler(run: Run) -> None:
    for session in run.manifest.sessions:
        plane = raw_plane(raw_space(run, session.variant, session.round), b"/host:CPU")
        annotated = {
            raw_stats(plane, event)[b"step_num"]: event.duration_ps // 1000
            for line in plane.lines
            for event in line.events
            if plane.event_metadata[event.metadata_id].name == b"step"
        }
        assert len(session.step_wall_ns) == STEPS
        for number, wall in enumerate(session.step_wall_ns):
            assert annotated[number] <= wall


@pytest.mark.parametrize("variant", ["repeat", "gather"])
def test_the_stored_program_is_what_the_variant_compiles_to(run: Run, variant: str) -> None:
    config = preset_config("tiny", 0.25, num_layers=1)
    program = build("permute", variant, config, "forward", jax.devices())
    again = program.step.lower(*program.abstract_args).compile()
    stored = (run.path / run.variant(variant).hlo_text).read_text()
    # Only where in the sources it was called from may differ.
    assert instructions(stored) == instructions(again.as_text())
    assert len(instructions(stored)) > 20
    record = run.variant(variant)
    assert record.memory is not None
    assert record.memory.temp_bytes == again.memory_analysis().temp_size_in_bytes
    assert record.dispatch_input_bytes == config.num_tokens * config.hidden_dim * 4
    assert record.top_k_buffer_bytes == config.top_k * record.dispatch_input_bytes


def instructions(text: str) -> list[str]:
    return [re.sub(r", metadata=\{[^}]*\}", "", line) for line in text.splitlines() if " = " in line]


@pytest.mark.parametrize("variant", ["repeat", "gather"])
def test_the_stored_proto_is_the_one_the_trace_embeds(run: Run, variant: str) -> None:
    space = raw_space(run, variant, 0)
    host, metadata = raw_plane(space, b"/host:CPU"), raw_plane(space, b"/host:metadata")
    # The metadata plane lists every program of the process; the ops say which of them ran.
    ops = [raw_stats(host, event) for line in host.lines for event in line.events]
    (program,) = {op[b"program_id"] for op in ops if op.get(b"hlo_module") == MODULE}
    (embedded,) = (
        raw_stats(metadata, listed)[b"Hlo Proto"]
        for listed in metadata.event_metadata.values()
        if listed.name == MODULE + b"(%d)" % program
    )
    ours = hlo_pb2.HloProto.FromString((run.path / run.variant(variant).hlo_proto).read_bytes())
    theirs = hlo_pb2.HloProto.FromString(embedded)
    assert ours.hlo_module.name == theirs.hlo_module.name == MODULE
    assert described(ours) == described(theirs)
    assert run.variant(variant).buffer_assignment
    assert len(ours.buffer_assignment.logical_buffers) > 10
    assert ours.buffer_assignment == theirs.buffer_assignment


def described(proto: hlo_pb2.HloProto) -> list[tuple[bytes, bytes, bytes]]:
    return [
        (computation.name, instruction.name, instruction.opcode)
        for computation in proto.hlo_module.computations
        for instruction in computation.instructions
    ]


def test_the_run_reads_back_and_names_no_folder_of_this_machine(run: Run) -> None:
    assert load_run(run.path) == run
    text = (run.path / "run.json").read_text()
    assert str(run.path.parent) not in text
    assert not re.search(r'"/', text)
    assert run.manifest.argv[-1] == "RUN"
    # As it was run: only the ring walks chunks.
    assert run.manifest.config == asdict(replace(preset_config("tiny", 0.25, num_layers=1), num_chunks=1))
    assert run.manifest.versions["jax"] == jax.__version__
    assert run.manifest.device.platform == "cpu"
    assert not run.manifest.device.simulated


def test_nothing_but_the_run_is_left_beside_it(run: Run) -> None:
    assert list(run.path.parent.iterdir()) == [run.path]


STAGES = ("compile", "warm up", "profile", "read back", "write")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, stage: str, error: type[BaseException]) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == stage:
            raise error

    with pytest.raises(error):
        capture(request_for(tmp_path / "RUN", variants=("gather",), rounds=1, steps=1), interrupt)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_inside_a_session_ends_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def interrupted(value: object) -> object:
        ran.append(value)
        if len(ran) == 2:  # the first is the warm-up
            assert not gc.isenabled()
            raise KeyboardInterrupt
        return value

    request = request_for(tmp_path / "RUN", variants=("gather",), rounds=1, steps=1)
    with monkeypatch.context() as patched:
        patched.setattr(jax, "block_until_ready", interrupted)
        with pytest.raises(KeyboardInterrupt):
            capture(request)
    assert list(tmp_path.iterdir()) == []
    assert gc.isenabled()
    # A profiler session that was left open would refuse the next.
    assert capture(request).manifest.steps == 1


@pytest.mark.filterwarnings("error")  # an exception that a callback drops is a warning here
def test_an_interrupt_during_garbage_collection_waits_for_its_end() -> None:
    def press(phase: str, info: object) -> None:
        signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(press)
    try:
        with noticed_interrupts() as check:
            gc.collect()
            with pytest.raises(KeyboardInterrupt):
                check()
    finally:
        gc.callbacks.remove(press)


def test_an_interrupt_that_a_callback_drops_is_not_lost(tmp_path: Path) -> None:
    def dropped(progress: Progress) -> None:
        if progress.stage == "warm up":
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        capture(request_for(tmp_path / "RUN", variants=("gather",), rounds=1, steps=1), dropped)
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("existing", ["run", "empty folder", "file", "dangling link"])
def test_what_exists_is_not_overwritten(tmp_path: Path, existing: str) -> None:
    output = tmp_path / "RUN"
    if existing == "run":
        (output / "gather").mkdir(parents=True)
        (output / "gather" / "trace").write_bytes(b"mine")
    elif existing == "empty folder":
        output.mkdir()
    elif existing == "file":
        output.write_bytes(b"mine")
    else:
        output.symlink_to(tmp_path / "nowhere")
    before = contents(tmp_path)
    with pytest.raises(UserError) as error:
        capture(request_for(output))
    assert str(error.value) == f"{output} exists and is not overwritten; give another name with -o, or remove it."
    assert contents(tmp_path) == before
    assert list(tmp_path.iterdir()) == [output]


def test_a_run_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    output = tmp_path / "RUN"
    request = request_for(output, variants=("gather",), rounds=1, steps=1)
    with pytest.raises(UserError, match="exists and is not overwritten"):
        capture(request, lambda progress: output.mkdir() if progress.stage == "write" else None)
    assert list(tmp_path.rglob("*")) == [output]


@pytest.mark.parametrize("name", ["steps", "rounds"])
@pytest.mark.parametrize("count", [0, -1])
def test_less_than_one_is_refused(tmp_path: Path, name: str, count: int) -> None:
    with pytest.raises(UserError) as error:
        capture(request_for(tmp_path / "RUN", **{name: count}))
    assert str(error.value) == f"--{name} is {count}; it must be at least 1."


def test_too_big_is_refused_before_anything_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def size(scale: float) -> int:
        config = preset_config("tiny", scale, num_layers=1)
        return max(
            build("permute", variant, config, "forward", jax.devices()).estimated_bytes
            for variant in ("repeat", "gather")
        )

    def compiled(*_: object) -> None:
        raise AssertionError("compiled")

    have = int(size(1 / 4) * 1.2)
    assert size(1 / 2) > have
    monkeypatch.setattr(backends, "available_bytes", lambda _: have)
    monkeypatch.setattr(capturing, "compile_program", compiled)
    big = request_for(tmp_path / "RUN", config=preset_config("tiny", 1, num_layers=1))
    with pytest.raises(UserError) as error:
        capture(big)
    assert re.fullmatch(
        r"permute at this size needs about [\d.]+ GiB of memory, [\d.]+ GiB are free; try --scale 1/4\.",
        str(error.value),
    )
    with pytest.raises(UserError, match=r"take a smaller preset, or fewer layers\.$"):
        capture(replace(big, rescale=None))


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"RUN cannot be written \(.+\); give another place with -o\.$"):
        capture(request_for(tmp_path / "file" / "RUN"))

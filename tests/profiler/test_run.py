"""The manifest, and what is said of everything that is no run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from analyzers.errors import UserError
from analyzers.reading.run import (
    CompiledVariant,
    DeviceRecord,
    Flags,
    MachineRecord,
    Manifest,
    MemoryAnalysis,
    Session,
    TraceFile,
    is_run,
    load_run,
)

MEMORY = MemoryAnalysis(1, 2, 3, 4, 5, 6)


def variant(name: str, fingerprint: str, memory: MemoryAnalysis | None) -> CompiledVariant:
    hlo = f"{name}/hlo/jit_f"
    return CompiledVariant(name, "…", "jit_f", fingerprint, 1.5, memory, hlo + ".hlo.pb", hlo + ".txt", True, 8, 16)


def session(name: str, number: int, order: int) -> Session:
    place = f"{name}/round_{number}"
    return Session(number, name, order, place, (TraceFile(f"{place}/h.xplane.pb", 3, "ab" * 32),), 2, (10, 1 << 60))


MANIFEST = Manifest(
    created="2026-01-02T03:04:05+00:00",
    workload="ring",
    mode="backward",
    config={"preset": "tiny", "buffer_factor": None, "ep": 2, "remat": True},
    variants=(variant("a", "11", MEMORY), variant("b", "22", None), variant("c", "11", MEMORY)),
    rounds=1,
    steps=2,
    sessions=(session("a", 0, 0), session("b", 0, 1), session("c", 0, 2)),
    device=DeviceRecord("cpu", "cpu", 2, True),
    versions={"jax": "0.10.2", "libtpu": None},
    flags=Flags("--a", None, {"python_tracer_level": 0, "tpu_trace_mode": "TRACE_ONLY_XLA"}),
    machine=MachineRecord(2, "a processor", (0.5, 1.0, 2.0)),
    argv=("moe-prof", "capture"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A complete run whose traces have the three bytes that the manifest says."""
    run = tmp_path / "RUN"
    for compiled in MANIFEST.variants:
        for file in (compiled.hlo_proto, compiled.hlo_text):
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            (run / file).write_bytes(b"x")
    for taken in MANIFEST.sessions:
        (run / taken.profile_dir).mkdir(parents=True)
        (run / taken.xplane_files[0].path).write_bytes(b"xyz")
    (run / "run.json").write_text(MANIFEST.to_json())
    return run


def edit(run: Path, **changes: Any) -> None:
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(content | changes))


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        load_run(path)
    return str(error.value).replace(str(path), "RUN")


def test_what_is_written_is_read(path: Path) -> None:
    assert is_run(path)
    assert load_run(path).manifest == MANIFEST


def test_a_moved_run_is_the_same_run(path: Path, tmp_path: Path) -> None:
    path.rename(tmp_path / "elsewhere")
    assert load_run(tmp_path / "elsewhere").manifest == MANIFEST


def test_keys_of_a_later_moe_prof_are_passed_over(path: Path) -> None:
    edit(path, later={"x": 1})
    assert load_run(path).manifest == MANIFEST


def test_a_run_answers_for_its_variants(path: Path) -> None:
    run = load_run(path)
    assert run.variant("b") == MANIFEST.variants[1]
    assert run.sessions_of("c") == (MANIFEST.sessions[2],)
    assert run.one_program() == (("a", "c"),)
    with pytest.raises(UserError, match=r"has no variant 'd'; choose one of a, b, c\."):
        run.variant("d")


def test_no_such_path(path: Path) -> None:
    shutil.rmtree(path)
    assert refusal(path) == "RUN does not exist; give the folder that `moe-prof capture` wrote."


def test_a_folder_that_is_no_run(path: Path) -> None:
    (path / "run.json").unlink()
    assert not is_run(path)
    assert refusal(path) == "RUN is not a run: it holds no run.json; give the folder that `moe-prof capture` wrote."


def test_a_file_that_is_no_run(path: Path) -> None:
    assert refusal(path / "run.json").startswith("RUN is not a run: it holds no run.json")


def test_what_an_interrupted_capture_left(tmp_path: Path) -> None:
    left = tmp_path / ".ring.partial-abc"
    left.mkdir()
    assert refusal(left) == (
        "RUN is what an interrupted capture left behind; give the folder that `moe-prof capture` wrote."
    )


def test_text_that_is_no_json(path: Path) -> None:
    (path / "run.json").write_text("{")
    assert refusal(path).startswith("RUN/run.json cannot be read as JSON (")
    assert refusal(path).endswith("); capture the run again.")


@pytest.mark.parametrize("content", ["[]", "{}", '{"kind": "something else"}'])
def test_json_that_is_no_manifest(path: Path, content: str) -> None:
    (path / "run.json").write_text(content)
    assert refusal(path) == 'RUN/run.json is not the manifest of a run: its "kind" is not "moe-prof run".'


def test_a_later_schema(path: Path) -> None:
    edit(path, schema_version=2)
    assert refusal(path) == "RUN/run.json has schema version 2, newer than 1; upgrade moe-prof."


@pytest.mark.parametrize("version", [0, None, "1"])
def test_a_schema_that_never_was(path: Path, version: object) -> None:
    edit(path, schema_version=version)
    assert refusal(path) == (
        f"RUN/run.json has schema version {version!r}, which no moe-prof wrote; capture the run again."
    )


def test_an_incomplete_run(path: Path) -> None:
    edit(path, complete=False)
    assert refusal(path) == "RUN is an incomplete run: its capture was interrupted; capture it again."


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mode": 3}, "mode is 3, not a string"),
        ({"steps": True}, "steps is True, not an integer"),
        ({"rounds": "1"}, "rounds is '1', not an integer"),
        ({"variants": {}}, "variants is not a list"),
        ({"variants": [{}]}, "variants[0].name is missing"),
        ({"device": None}, "device is not an object"),
        ({"versions": {"jax": 1}}, "versions.jax is 1, not a string"),
        (
            {"machine": {"cpu_count": 1, "cpu_model": "", "load_average": ["?"]}},
            "machine.load_average[0] is '?', not a number",
        ),
    ],
)
def test_a_wrong_field_is_named(path: Path, changes: dict[str, Any], what: str) -> None:
    edit(path, **changes)
    assert refusal(path) == f"RUN/run.json is damaged: {what}; capture the run again."


@pytest.mark.parametrize("file", ["a/hlo/jit_f.hlo.pb", "b/hlo/jit_f.txt", "c/round_0/h.xplane.pb"])
def test_a_missing_file(path: Path, file: str) -> None:
    (path / file).unlink()
    assert refusal(path) == f"RUN is missing {file}, which its run.json names; copy the run again, whole."


def test_a_cut_trace(path: Path) -> None:
    (path / "a/round_0/h.xplane.pb").write_bytes(b"xy")
    assert refusal(path) == (
        "RUN/a/round_0/h.xplane.pb has 2 bytes, its run was written with 3; copy the run again, whole."
    )


@pytest.mark.parametrize("outside", ["/etc/passwd", "../other/jit_f.txt"])
def test_a_manifest_does_not_lead_out_of_its_run(path: Path, outside: str) -> None:
    content = json.loads((path / "run.json").read_text())
    content["variants"][0]["hlo_text"] = outside
    edit(path, variants=content["variants"])
    assert refusal(path) == f"RUN/run.json names {outside!r}, which is outside the run; it was not read."

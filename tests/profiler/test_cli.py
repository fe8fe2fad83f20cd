"""The command line as a person meets it: in a process of its own."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from analyzers.reading.run import Run, Stopped
from profiler.cli.capture import print_summary
from profiler.cli.main import COMMANDS
from tests.profiler.test_run import MANIFEST

HEAVY = ("jax", "jaxlib", "numpy", "pandas", "scipy", "matplotlib", "rich", "google")
ROOT = Path(__file__).resolve().parents[2]


def moe_prof(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "profiler", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def refusal(*arguments: str, **options: str) -> str:
    done = moe_prof(*arguments, **options)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["completion", "zsh"], ["workloads"]])
def test_what_only_tells_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom profiler.cli.main import main\n"
        f"try:\n    main({arguments!r})\n"
        f"finally:\n    print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert done.stdout


def test_help_is_immediate() -> None:
    def seconds() -> float:
        started = time.perf_counter()
        moe_prof("--help")
        return time.perf_counter() - started

    assert min(seconds() for _ in range(5)) < 0.3


def test_help_names_every_command_and_so_does_its_own_help() -> None:
    listed = moe_prof("--help").stdout
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", listed, re.MULTILINE)
        own = moe_prof(name, "--help")
        assert own.returncode == 0, own.stderr
        assert own.stdout.startswith(f"Usage: moe-prof {name}")


def test_version_says_what_is_installed() -> None:
    import numpy

    shown = json.loads(moe_prof("version", "--json").stdout)
    assert shown["python"] == ".".join(map(str, sys.version_info[:3]))
    assert shown["numpy"] == numpy.__version__
    assert shown["trace_reader"] in ("c", "python")
    lines = moe_prof("version").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [name.replace("trace_reader", "trace reader") for name in shown]


def test_workloads_scales_presets() -> None:
    whole, part = (
        json.loads(moe_prof("workloads", "--preset", "tiny", *scale, "--json").stdout)["presets"][0]["config"]
        for scale in ([], ["--scale", "1/2"])
    )
    assert part["num_tokens"] * 2 == whole["num_tokens"]
    listed = moe_prof("workloads").stdout
    assert re.search(r"^  \* recompute ", listed, re.MULTILINE)


def test_one_preset_is_described_with_bytes_and_flops() -> None:
    printed = moe_prof("workloads", "--preset", "deepseek-v4-284b").stdout
    # 16384 tokens × 4096 × 2 bytes, and top_k 6 times that; ring sees all tokens on every shard.
    (ring,) = [line for line in printed.splitlines() if line.startswith("| ring")]
    assert "[16384, 4096] | 128.00 MiB | 768.00 MiB" in ring
    # Forward, twice that backward, and the forward again under remat: 3 matmuls of 2 × 4096 × 2048 FLOPs per slot.
    assert f"{4 * 43 * 16384 * 6 * 3 * 2 * 4096 * 2048 / 1e12:.0f}"[:2] == ring.split("|")[-2].split()[0][:2]


def test_completion_offers_workloads_and_variants() -> None:
    def completed(words: str, position: int) -> list[str]:
        done = moe_prof(_MOE_PROF_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(position))
        return [line.split(",", 1)[1] for line in done.stdout.splitlines()]

    assert completed("moe-prof cap", 1) == ["capture"]
    assert completed("moe-prof capture ri", 2) == ["ring"]
    assert "recompute,cached" in completed("moe-prof capture ring --variants recompute,ca", 4)
    assert "_MOE_PROF_COMPLETE=bash_complete" in moe_prof("completion", "bash").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["capture", "rong"], r"moe-prof: unknown workload 'rong'; choose one of permute, ring.*\.\n"),
        (["capture", "ring", "--variants", "x"], r"moe-prof: workload 'ring' has no variant 'x'; choose one of .*\.\n"),
        (["capture", "ring", "--preset", "x"], r"moe-prof: unknown preset 'x'; choose one of tiny, .*\.\n"),
        (["workloads", "--preset", "x"], r"moe-prof: unknown preset 'x'; choose one of tiny, .*\.\n"),
        (["capture", "ring", "--steps", "0"], r"moe-prof: --steps is 0; it must be at least 1\.\n"),
        (["capture", "ring", "--precision", "1%"], r"moe-prof: --precision is for --rounds auto; .*\n"),
        (["capture", "ring", "--max-time", "1m"], r"moe-prof: --max-time is for --rounds auto; .*\n"),
        (
            ["capture", "ring", "--rounds", "auto", "--precision", "0"],
            r".*'0' is no share above zero; .*\n",
        ),
        (["capture", "ring", "--rounds", "auto", "--max-time", "1d"], r".*'1d' is no duration above zero; .*\n"),
        (["capture", "ring", "--rounds", "few"], r".*'few' is neither a number nor 'auto'\. .*\n"),
        (["capture", "ring", "--pin", "2-1"], r".*'2-1' is no list of CPUs; write for instance 0-3,6 or auto\. .*\n"),
        (["capture", "ring", "--pin", "99999"], r"moe-prof: --pin names CPU 99999, but this process may use .*\n"),
        (["capture", "ring", "--top-k", "99"], r"moe-prof: top_k 99 exceeds num_experts 16; .*\.\n"),
        (["capture", "ring", "--scale", "2"], r"moe-prof: scale 2 is not above 0 and at most 1; .*\.\n"),
        (
            ["capture", "ring", "--scale", "x"],
            r"moe-prof: Invalid value for '--scale': 'x' is not a fraction; write for instance 1/64\. See .*\.\n",
        ),
        (
            ["capture", "ring", "--variants", "cached,cached"],
            r"moe-prof: Invalid value for '--variants': 'cached,cached' names 'cached' more than once\. See .*\.\n",
        ),
        (
            ["capture", "ring", "--variants", "cached", "--all-variants"],
            r"moe-prof: --variants and --all-variants exclude each other\. See .*\.\n",
        ),
        (["captain"], r"moe-prof: No such command 'captain'\..*\n"),
        (
            ["capture", "ring", "--preset", "deepseek-v3"],
            r"moe-prof: ring at this size needs about [\d.]+ GiB of memory, [\d.]+ GiB are free; try --scale 1/\d+\.\n",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    assert re.fullmatch(sentence, refusal(*arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_capture_says_what_it_wrote_and_what_to_type_next(tmp_path: Path) -> None:
    arguments = ["capture", "ring", "--scale", "1/4", "--layers", "1", "--mode", "forward", "--rounds", "1"]
    done = moe_prof(*arguments, "--ep", "2", "--steps", "1", cwd=tmp_path, XLA_FLAGS="")
    assert done.returncode == 0, done.stderr
    assert [line.split(" ", 1)[1] for line in done.stderr.splitlines() if line.startswith("[")] == [
        "compile recompute",
        "compile cached",
        "profile recompute, round 1",
        "profile cached, round 1",
    ]
    (run,) = tmp_path.iterdir()
    assert re.fullmatch(r"ring-tiny-\d{8}-\d{6}", run.name)
    lines = done.stdout.splitlines()
    assert re.fullmatch(
        rf"{run.name}: ring forward, recompute, cached; 1 × 1 steps each on 2 simulated devices on \d+ CPU cores",
        lines[0],
    )
    assert lines[-1] == f"next: moe-prof diff {run.name}"
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["flags"]["xla_flags"] == "--xla_force_host_platform_device_count=2"
    assert manifest["device"] == {"platform": "cpu", "kind": "cpu", "count": 2, "simulated": True}
    assert manifest["argv"] == ["moe-prof", *arguments, "--ep", "2", "--steps", "1"]


def test_variants_that_compiled_to_one_program_are_said_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(Run(Path("RUN"), MANIFEST))
    assert "note: a and c compiled to one program; their times differ by noise alone\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stopped", "line"),
    [
        (None, None),
        (Stopped("rounds", 9.0, 0.034, None, None), "the saving of a step is known to ±3.4% of a step"),
        (
            Stopped("precision", 9.0, 0.0199, 0.02, 600.0),
            "the saving of a step is known to ±2.0% of a step, as asked for (±2.0%)",
        ),
        (
            Stopped("time", 61.0, 0.034, 0.02, 60.0),
            "the saving of a step is known to ±3.4% of a step, not to ±2.0%: --max-time 60s was up",
        ),
        (Stopped("time", 9.0, None, 0.02, 1.0), "the saving of a step has no interval: two rounds or more give one"),
    ],
)
def test_the_precision_is_said(stopped: Stopped | None, line: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(Run(Path("RUN"), replace(MANIFEST, stopped=stopped)))
    assert capsys.readouterr().out.splitlines()[1] == (
        line or "note: a and c compiled to one program; their times differ by noise alone"
    )


def test_pin_and_durations_reach_the_capture(tmp_path: Path) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    size = ["--scale", "1/4", "--layers", "1", "--mode", "forward", "--variants", "gather", "--steps", "1"]
    done = moe_prof(
        *["capture", "permute", *size, "--rounds", "auto", "--precision", "50%", "--max-time", "0.001s"],
        *["--pin", cpu, "-o", "RUN"],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "RUN" / "run.json").read_text())
    assert manifest["machine"]["pinned_cpus"] == [int(cpu)]
    assert (manifest["stopped"]["precision"], manifest["stopped"]["max_seconds"]) == (0.5, 0.001)
    assert manifest["rounds"] == 1
    assert "[2] profile gather, round 1\n" in done.stderr


def test_json_is_the_manifest_and_where_it_is(tmp_path: Path) -> None:
    done = moe_prof(
        *["capture", "permute", "--scale", "1/4", "--layers", "1", "--mode", "forward", "--rounds", "1", "--json"],
        *["--variants", "gather", "-o", str(tmp_path / "RUN")],
    )
    shown = json.loads(done.stdout)
    assert shown["path"] == str(tmp_path / "RUN")
    written = json.loads((tmp_path / "RUN" / "run.json").read_text())
    assert shown == written | {"path": str(tmp_path / "RUN")}


def test_control_c_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    terminal, other_end = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "profiler", "capture", "permute", "--scale", "1/4", "--mode", "forward", "-o", "RUN"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    )
    os.close(other_end)
    shown = b""
    while b"profile" not in shown:
        shown += os.read(terminal, 4096)
    child.send_signal(signal.SIGINT)
    try:
        while more := os.read(terminal, 4096):
            shown += more
    except OSError:  # how Linux says that the other end of a terminal is closed
        pass
    os.close(terminal)
    assert child.wait() == 130, shown
    assert b"moe-prof: interrupted" in shown
    assert b"Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m profiler workloads | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""

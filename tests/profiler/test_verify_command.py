"""`moe-prof verify`: what it prints and the exit code that a script goes by."""

import json
from typing import Any

import pytest

import workloads.verify
from profiler.cli.main import main
from workloads.registry import preset_config
from workloads.verify import Comparison, TrainingRun, VariantReport, Verification

SMALL = ["verify", "permute", "--scale", "1/4", "--layers", "1"]


def exit_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def comparison(quantity: str, against: str, routing: str, error: float, problem: str | None = None) -> Comparison:
    return Comparison(quantity, against, routing, error, 7, error == 0, 2e-5, problem)


RIGHT = VariantReport(
    "repeat",
    (
        comparison("output", "oracle", "random", 1e-7),
        comparison("output", "oracle", "skewed", 3e-7),
        comparison("router", "oracle", "random", 2e-6),
    ),
    (),
    (),
    TrainingRun("repeat", (6.5, 2.25), True, None),
)
SAME = VariantReport(
    "gather",
    (comparison("output", "oracle", "random", 1e-7), comparison("output", "repeat", "random", 0.0)),
    (),
    (),
    TrainingRun("gather", (6.5, 2.25), True, None),
)
WRONG = VariantReport(
    "gather",
    (comparison("router", "oracle", "random", 0.5, "gather: the router is off"),),
    ("gather: two tokens share a row",),
    (),
    TrainingRun("gather", (6.5, 2.5), False, "gather: the losses part"),
)


@pytest.fixture
def verifying(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let verification find the reports given."""

    def find(*reports: VariantReport) -> None:
        found = Verification("permute", preset_config("tiny"), reports)
        monkeypatch.setattr(workloads.verify, "verify", lambda *_, **__: found)

    return find


def test_agreement(verifying: Any, capsys: pytest.CaptureFixture[str], golden: Any) -> None:
    verifying(RIGHT, SAME)
    assert exit_code(SMALL) == 0
    golden("verify-agreement.txt", capsys.readouterr().out)


def test_a_wrong_variant_is_named_with_each_problem_and_exit_code_1(
    verifying: Any, capsys: pytest.CaptureFixture[str], golden: Any
) -> None:
    verifying(RIGHT, WRONG)
    assert exit_code(SMALL) == 1
    out = capsys.readouterr().out
    assert "WRONG: gather" in out
    golden("verify-wrong.txt", out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify"], "give a WORKLOAD, or --all without one"),
        (["verify", "ring", "--all"], "give a WORKLOAD, or --all without one"),
        (["verify", "--all", "--variants", "gather"], "--variants and --all exclude each other"),
        (["verify", "rings"], "unknown workload 'rings'"),
    ],
)
def test_what_cannot_be_verified_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(arguments) == 2
    assert said in capsys.readouterr().err


def test_all_verifies_every_workload(verifying: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verifying(RIGHT, SAME)
    assert exit_code(["verify", "--all", "--scale", "1/4"]) == 0
    assert capsys.readouterr().out.count("2 variants agree") == 3


def test_json_says_whether_it_is_ok(verifying: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verifying(RIGHT, WRONG)
    assert exit_code([*SMALL, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is False
    assert shown["workloads"][0]["reports"][1]["routing_problems"] == ["gather: two tokens share a row"]


def test_a_real_variant_agrees_with_the_oracle(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code([*SMALL, "--variants", "gather", "--train-steps", "0", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["workloads"][0]["reports"]
    assert report["variant"] == "gather"
    assert report["training"] is None
    assert {item["against"] for item in report["comparisons"]} == {"oracle"}


def test_an_unknown_variant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code([*SMALL, "--variants", "x"]) == 2
    assert capsys.readouterr().err.startswith("moe-prof: workload 'permute' has no variant 'x'; choose one of repeat,")

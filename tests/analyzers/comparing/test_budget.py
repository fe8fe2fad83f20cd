"""Budgets against figures made up here: what is kept, what is broken, and what nobody can tell."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from analyzers.comparing.budget import Outcome, Unknown, exit_code, first_budget, hold, read_budget
from analyzers.comparing.statistics import saving
from analyzers.errors import UserError
from analyzers.showing.budget_lines import github_annotations, junit_xml, lines


@dataclass
class Figures:
    name: str
    figures: dict = field(default_factory=dict)
    passes: dict = field(default_factory=dict)
    buffer: object = False
    gain: object = Unknown("no times")

    def figure(self, name):
        return self.figures.get(name, Unknown("not measured"))

    def sorts_by_pass(self, pass_):
        return self.passes.get(pass_, Unknown("not measured"))

    def has_buffer(self, name):
        return self.buffer

    def saving(self, against):
        return self.gain


A = ("ring", "recompute", "backward")
B = ("ring", "cached", "backward")


def check(tmp_path: Path, text: str, **b):
    file = tmp_path / "budget.toml"
    file.write_text(text)
    subjects = {A: Figures("recompute", {"peak_bytes": 100.0, "sorts": 14.0}), B: Figures("cached", **b)}
    return hold(read_budget(file), subjects)


@pytest.mark.parametrize(
    ("line", "figures", "outcome"),
    [
        ("sorts = 6", {"sorts": 6.0}, Outcome.KEPT),
        ("sorts = 6", {"sorts": 7.0}, Outcome.BROKEN),
        ("sorts = 6", {}, Outcome.UNKNOWN),
        ("sorts = {min = 6, max = 6}", {"sorts": 5.0}, Outcome.BROKEN),
        ('peak_bytes = {max_ratio_to = "recompute", value = 1.0}', {"peak_bytes": 100.0}, Outcome.KEPT),
        ('peak_bytes = {max_ratio_to = "recompute", value = 1.0}', {"peak_bytes": 101.0}, Outcome.BROKEN),
        ('peak_bytes = {max_ratio_to = "saved", value = 1.0}', {"peak_bytes": 1.0}, Outcome.UNKNOWN),
        ('temp_bytes = {max_ratio_to = "recompute", value = 1.0}', {"temp_bytes": 1.0}, Outcome.UNKNOWN),
    ],
)
def test_a_figure_against_its_limit(tmp_path, line, figures, outcome):
    (found,) = check(tmp_path, f"[ring.cached.backward]\n{line}\n", figures=figures)
    assert found.outcome is outcome
    assert bool(found.reason) == (outcome is Outcome.UNKNOWN)


@pytest.mark.parametrize(
    ("there", "outcome"),
    [(False, Outcome.KEPT), (True, Outcome.BROKEN), (Unknown("no HLO"), Outcome.UNKNOWN)],
)
def test_a_removed_buffer(tmp_path, there, outcome):
    (found,) = check(tmp_path, '[ring.cached.backward]\nremoved_buffer = "top_k"\n', buffer=there)
    assert found.outcome is outcome


def blocks(*values):
    return tuple(np.full(5, value * 1e6) + np.arange(5) for value in values)


@pytest.mark.parametrize(
    ("before", "after", "minimum", "outcome"),
    [
        ((20, 21, 22, 20, 21), (10, 11, 12, 10, 11), 0, Outcome.KEPT),
        ((20, 21, 22, 20, 21), (10, 11, 12, 10, 11), 50, Outcome.BROKEN),
        ((20, 5, 22, 3, 21), (10, 19, 4, 18, 11), 0, Outcome.BROKEN),
    ],
)
def test_a_confident_saving_needs_the_whole_interval(tmp_path, before, after, minimum, outcome):
    text = f"[ring.cached.backward]\nsaving_us_per_chunk_per_layer = {{min = {minimum}, confident = true}}\n"
    (found,) = check(tmp_path, text, gain=saving(blocks(*before), blocks(*after)))
    assert found.outcome is outcome, found


def test_a_confident_saving_cannot_be_told_from_one_step(tmp_path):
    text = "[ring.cached.backward]\nsaving_us_per_chunk_per_layer = {min = 0, confident = true}\n"
    (found,) = check(tmp_path, text, gain=saving((np.array([2e7]),), (np.array([1e7]),)))
    assert (found.outcome, found.measured) == (Outcome.UNKNOWN, "10.00 µs [no interval]")


def test_the_exit_code_prefers_broken_to_unknown(tmp_path):
    text = "[ring.cached.backward]\nsorts = 6\ntemp_bytes = 1\n"
    assert exit_code(check(tmp_path, text, figures={"sorts": 7.0})) == 1
    assert exit_code(check(tmp_path, text, figures={"sorts": 6.0})) == 2
    assert exit_code(check(tmp_path, text, figures={"sorts": 6.0, "temp_bytes": 1.0})) == 0


def test_a_section_that_nothing_measured_is_unknown_and_says_what_there_is(tmp_path):
    (found,) = check(tmp_path, "[ring.cahced.backward]\nsorts = 6\n")
    assert found.outcome is Outcome.UNKNOWN
    assert "[ring.cached.backward]" in found.reason


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no limits"),
        ("sorts = 3\n", "stands in no section"),
        ("[a.b.c]\nsort = 3\n", "limits nothing called 'sort'"),
        ("[a.b.c]\nsorts = 'x'\n", "'x', not a number"),
        ("[a.b.c]\nsorts = true\n", "True, not a number"),
        ("[a.b.c]\nsorts = {maximum = 3}\n", "has no 'maximum'"),
        ("[a.b.c]\nsorts = {confident = true}\n", "gives neither min nor max"),
        ("[a.b.c]\nremoved_buffer = 'x'\n", 'the only buffer with a name is "top_k"'),
        ("[a.b.c]\nsorts_by_pass = {sideways = 3}\n", "must be a table of forward, recompute, backward"),
        ("[a.b.c\n", "cannot be read as TOML"),
    ],
)
def test_a_wrong_budget_is_refused(tmp_path, text, complaint):
    file = tmp_path / "budget.toml"
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        read_budget(file)
    assert complaint in str(raised.value)
    assert str(file) in str(raised.value)


def test_a_first_budget_is_kept_by_what_it_was_made_from_and_broken_by_one_more(tmp_path):
    name = ("ring", "inverse=scatter,validity=cached", "backward")
    figures = {"sorts": 6.0, "sorts_per_layer": 3.0, "peak_bytes": 123456789.0}
    subject = Figures("x", figures, {"backward": 0.0})
    file = tmp_path / "budget.toml"
    file.write_text(first_budget({name: subject}))
    limits = read_budget(file)
    assert len(limits) == 5
    assert exit_code(hold(limits, {name: subject})) == 0
    for key in figures:
        worse = Figures("x", figures | {key: figures[key] + 1}, {"backward": 0.0})
        assert exit_code(hold(limits, {name: worse})) == 1
    assert exit_code(hold(limits, {name: Figures("x", figures, {"backward": 1.0})})) == 1


def test_every_form_of_output_says_the_same(tmp_path):
    text = "[ring.cached.backward]\nsorts = 6\ntemp_bytes = 1\npeak_bytes = 9\n"
    checks = check(tmp_path, text, figures={"sorts": 7.0, "peak_bytes": 9.0})
    *each, total = lines(checks)
    assert each[0] == "ring.cached.backward.sorts       BROKEN: measured 7, limit ≤ 6"
    assert "cannot tell: measured n/a, limit ≤ 1: not measured" in each[1]
    assert total == "1 ok, 1 broken, 1 cannot tell"
    assert github_annotations(checks, "b,1.toml") == [
        "::error file=b%2C1.toml,title=ring.cached.backward.sorts::BROKEN: measured 7, limit ≤ 6",
        "::warning file=b%2C1.toml,title=ring.cached.backward.temp_bytes::"
        "cannot tell: measured n/a, limit ≤ 1: not measured",
    ]
    suite = ElementTree.fromstring(junit_xml(checks))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [[child.tag for child in case] for case in suite] == [["failure"], ["error"], []]

"""What keeps two sides from being compared is found, and nothing else is called a difference."""

from dataclasses import replace

import pytest

from analyzers.comparing.comparability import comparability
from analyzers.reading.run import load_run
from analyzers.trace import load, load_variants


@pytest.fixture(scope="module")
def sides(ring_run):
    return load_variants(load_run(ring_run), ("recompute", "cached"))


def test_variants_of_one_run_differ_in_nothing(sides):
    found = comparability(*sides)
    assert found.differences == ()
    assert found.unknown == ()
    assert {"workload", "mode", "jax", "jaxlib", "XLA_FLAGS", "devices", "config top_k"} <= {
        f.name for f in found.facts
    }


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda m: replace(m, versions=m.versions | {"libtpu": "9.9"}), "libtpu"),
        (lambda m: replace(m, config=m.config | {"dtype": "other"}), "config dtype"),
        (lambda m: replace(m, device=replace(m.device, kind="TPU v6e")), "device kind"),
        (lambda m: replace(m, flags=replace(m.flags, xla_flags="--xla_dump_to=/x")), "XLA_FLAGS"),
        (lambda m: replace(m, mode="forward" if m.mode != "forward" else "train"), "mode"),
    ],
)
def test_each_thing_that_is_not_the_variant_is_named(sides, change, name):
    a, b = sides
    found = comparability(a, replace(b, manifest=change(b.manifest)))
    assert [fact.name for fact in found.differences] == [name]


def test_fewer_rounds_on_a_side_is_a_difference(sides):
    a, b = sides
    found = comparability(a, replace(b, sessions=b.sessions[:1]))
    assert [(f.name, f.a, f.b) for f in found.differences] == [("sessions", "2", "1"), ("steps", "4", "2")]


def test_a_trace_that_is_no_run_leaves_facts_unknown(sides, ring_run):
    (file, *_) = sorted(ring_run.glob("cached/round_0/**/*.xplane.pb")) or sorted(ring_run.glob("**/*.xplane.pb"))
    found = comparability(sides[0], load(file))
    assert {"jax", "workload", "mode", "config top_k"} <= {fact.name for fact in found.unknown}
    assert {fact.name for fact in found.differences} <= {"sessions", "steps"}

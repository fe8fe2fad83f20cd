"""What keeps two sides from being compared is found, and nothing else is called a difference."""

import re
from collections import Counter
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


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dtype", "other"),
        ("num_tokens", 1 << 20),
        ("ep", 1024),
        ("fsdp", 1024),
        ("top_k", 7),
        ("seed", 99),
    ],
)
def test_workload_shapes_and_mesh_are_compared(sides, name, change):
    a, b = sides
    if name not in b.manifest.config:
        pytest.fail(f"{name} is no longer part of a configuration: {sorted(b.manifest.config)}")
    found = comparability(a, replace(b, manifest=replace(b.manifest, config=b.manifest.config | {name: change})))
    assert [fact.name for fact in found.differences] == [f"config {name}"]


@pytest.mark.parametrize("name", ["jax", "jaxlib", "libtpu"])
def test_versions_are_compared(sides, name):
    a, b = (replace(t, manifest=replace(t.manifest, versions=t.manifest.versions | {name: "1.0"})) for t in sides)
    newer = replace(b, manifest=replace(b.manifest, versions=b.manifest.versions | {name: "2.0"}))
    assert comparability(a, b).differences == ()
    assert [(f.name, f.a, f.b) for f in comparability(a, newer).differences] == [(name, "1.0", "2.0")]


def test_arguments_of_the_module_are_those_of_its_text(sides, ring_run):
    a, _ = sides
    entry = (ring_run / a.variant.hlo_text).read_text().split("\nENTRY ")[1].split("\n}")[0]
    types = Counter(re.findall(r"= (\w+)\[[\d,]*\]\S* parameter\(", entry))
    (found,) = (fact.a for fact in comparability(*sides).facts if fact.name == "module arguments")
    assert found.split(";")[0] == ", ".join(f"{n} {dtype}" for dtype, n in sorted(types.items()))


def test_other_arguments_are_a_difference_even_without_a_manifest(real_traces):
    a = load(real_traces / "cpu-maxtext-deepseek-tiny-repeat.xplane.pb")
    other = load(real_traces / "cpu-two-sorts-per-step.xplane.pb")
    assert "module arguments" in {f.name for f in comparability(a, other).differences}
    same = load(real_traces / "cpu-maxtext-deepseek-tiny-gather.xplane.pb")
    assert "module arguments" not in {f.name for f in comparability(a, same).differences}


def test_other_hosts_are_a_difference_where_there_are_several(sides):
    a, b = sides

    def on(trace, *names):
        return replace(trace, sessions=tuple(tuple(replace(s[0], hostname=n) for n in names) for s in trace.sessions))

    assert comparability(on(a, "h0"), on(b, "h1")).differences == ()
    found = comparability(on(a, "h0", "h1"), on(b, "h0", "h2")).differences
    assert [(f.name, f.a, f.b) for f in found] == [("hosts", "2 (h0, h1)", "2 (h0, h2)")]


def test_fewer_rounds_on_a_side_is_a_difference(sides):
    a, b = sides
    found = comparability(a, replace(b, sessions=b.sessions[:1]))
    assert [(f.name, f.a, f.b) for f in found.differences] == [("sessions", "2", "1"), ("steps", "4", "2")]


def test_a_trace_that_is_no_run_leaves_facts_unknown(sides, ring_run):
    (file, *_) = sorted(ring_run.glob("cached/round_0/**/*.xplane.pb")) or sorted(ring_run.glob("**/*.xplane.pb"))
    found = comparability(sides[0], load(file))
    assert {"jax", "workload", "mode", "config top_k"} <= {fact.name for fact in found.unknown}
    assert {fact.name for fact in found.differences} <= {"sessions", "steps"}

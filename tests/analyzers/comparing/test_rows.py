"""Comparisons cut by op, scope, layer, chunk and device, on runs whose every duration is known by construction."""

import re
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from analyzers.comparing.rows import CUTS, name_of, rows
from analyzers.trace import load
from tests.analyzers.counting.nest import NUM_CHUNKS, NUM_LAYERS, nest_program, place
from tests.builders.play import TICK_PS, added, default_durations, play
from tests.builders.spaces import tpu_space, trace_file

DEVICES, STEPS = 3, 5


def _slower_far_out(name, step, iterations):
    """Side B: the third iteration of any outer loop takes 400 ticks more, everything else 7 ticks less."""
    own = default_durations(name, step, iterations)
    return own + (400 if iterations[:1] == (2,) else -7) * TICK_PS


@pytest.fixture(scope="module")
def played():
    program = nest_program()
    return [
        play(program, durations, devices=DEVICES, steps=STEPS) for durations in (default_durations, _slower_far_out)
    ]


@pytest.fixture(scope="module")
def traces(played, tmp_path_factory):
    folders = [tmp_path_factory.mktemp(side) for side in "ab"]
    return [
        load(trace_file(folder, tpu_space(nest_program(), runs))) for folder, runs in zip(folders, played, strict=True)
    ]


def _medians(runs, key, devices=DEVICES):
    """Median over steps of the self time by key, mean over devices."""
    total = added(runs, lambda run, e: (key(run, e), run.step))
    keys = {k for k, _ in total}
    return {k: median(total.get((k, step), 0) / devices for step in range(STEPS)) for k in keys}


def _by_layer(_, e):
    return (place(e)[1] if place(e) else None,)


def _by_chunk(_, e):
    return (place(e)[2] if place(e) and place(e)[2] >= 0 else None,)


@pytest.mark.parametrize(
    ("by", "key", "devices"),
    [
        ("layer", _by_layer, DEVICES),
        ("chunk", _by_chunk, DEVICES),
        ("device", lambda run, _: (f"TPU:{run.device}",), 1),
    ],
)
def test_rows_are_what_was_played(traces, played, by, key, devices):
    expected = [_medians(runs, key, devices) for runs in played]
    found = rows(*traces, by).groups.rows
    assert {k: row.a.median for k, row in found} == pytest.approx(expected[0])
    assert {k: row.b.median for k, row in found} == pytest.approx(expected[1])
    assert {k: row.saving.value for k, row in found} == pytest.approx(
        {k: expected[0][k] - expected[1][k] for k in expected[0]}
    )


@pytest.mark.parametrize("by", ["op", "scope"])
def test_rows_of_scopes_are_what_was_played(traces, played, by):
    field = {"op": 3, "scope": 1}[by]

    def scope(_, e):
        # A loop's own metadata names the loop; the numbers that a compilation gives are not compared.
        return re.sub(r"\d+", "#", e.scope)

    found = {}
    for key, row in rows(*traces, by).groups.rows:
        found[key[field]] = found.get(key[field], 0) + row.a.mean
    total = added(played[0], lambda run, e: scope(run, e))
    assert found == pytest.approx({key: ps / DEVICES / STEPS for key, ps in total.items() if ps})


def test_layers_and_devices_come_in_order_what_nothing_attributes_last(traces):
    assert [key for key, _ in rows(*traces, "layer").groups.rows] == [*((k,) for k in range(NUM_LAYERS)), (None,)]
    assert [key for key, _ in rows(*traces, "chunk").groups.rows] == [*((k,) for k in range(NUM_CHUNKS)), (None,)]
    many = [(f"host{k}:TPU:{k}",) for k in (10, 9, 1)]
    devices = replace(traces[0].sessions[0][0], devices=tuple(name for (name,) in many))
    one = replace(traces[0], sessions=((devices,),))
    assert [key for key, _ in rows(one, one, "device").groups.rows] == many[::-1]


@pytest.mark.parametrize("by", CUTS)
def test_orders(traces, by):
    def column(sort, value):
        return [value(row) for _, row in rows(*traces, by, sort=sort).groups.rows]

    for sort, value in (
        ("saving", lambda row: -abs(row.saving.value)),
        ("a", lambda row: -row.a.median),
        ("b", lambda row: -row.b.median),
    ):
        values = column(sort, value)
        assert values == sorted(values), sort


@pytest.mark.parametrize("by", CUTS)
@pytest.mark.parametrize("top", [1, 2, None])
@pytest.mark.parametrize("regex", [None, "1|no", "no such row"])
def test_rows_rest_and_what_the_filter_leaves_out_are_the_step(traces, by, top, regex):
    found = rows(*traces, by, top=top, pattern=re.compile(regex) if regex else None)
    groups = found.groups
    assert len(groups.rows) == min(top or groups.num_wanted, groups.num_wanted)
    means = [row.a.mean for row in (*(row for _, row in groups.rows), *groups.rest) if row.a]
    assert sum(means) == pytest.approx(groups.wanted.a.mean if groups.wanted.a else 0)
    left_out = groups.unwanted.a.mean if groups.unwanted and groups.unwanted.a else 0
    assert sum(means) + left_out == pytest.approx(groups.total.a.mean)
    each = np.mean(np.concatenate(traces[0].self_ps())) * (DEVICES if by == "device" else 1)
    assert groups.total.a.mean == pytest.approx(each)
    for key, _ in groups.rows:
        assert regex is None or re.search(regex, name_of(by, key))


def test_a_filter_on_a_layer_gives_it_and_adds_up_the_others(traces, played):
    groups = rows(*traces, "layer", pattern=re.compile("layer [02]$")).groups
    assert [key for key, _ in groups.rows] == [(0,), (2,)]
    wanted = added(played[0], lambda run, e: run.step if _by_layer(run, e)[0] in (0, 2) else None)
    assert groups.wanted.a.median == pytest.approx(median(ps / DEVICES for ps in wanted.values()))


def test_a_device_that_missed_a_step_does_not_look_fast(traces):
    (file,) = traces[0].sessions[0]
    wall = file.step_wall_ps.copy()
    wall[1, 3] = -1
    lost = replace(traces[0], sessions=((replace(file, step_wall_ps=wall),),))
    found = rows(lost, traces[1], "device")
    assert found.partial_steps
    assert not rows(*traces, "device").partial_steps
    assert {row.a.samples for _, row in found.groups.rows} == {STEPS - 1}


def test_devices_of_one_side_only_stay(traces):
    (file,) = traces[1].sessions[0]
    renamed = replace(traces[1], sessions=((replace(file, devices=("TPU:0", "TPU:1", "TPU:9")),),))
    found = dict(rows(traces[0], renamed, "device").groups.rows)
    assert found["TPU:9",].a is None
    assert found["TPU:2",].b is None
    assert found["TPU:0",].saving is not None

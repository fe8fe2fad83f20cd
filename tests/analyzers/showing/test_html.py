"""The HTML report in a real browser: it sorts by keyboard, logs no error, asks for nothing, fits phone and paper."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest

from analyzers.comparing.diff import diff
from analyzers.comparing.places import place_savings, places
from analyzers.counting.facts import sort_rows
from analyzers.counting.totals import Totals
from analyzers.reading.run import load_run
from analyzers.showing.html import report_html
from analyzers.trace import load_variants
from tests.analyzers.showing.browser import Browser, find_chromium
from tests.builders.variants import slower, variants

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def sides(ring_run):
    return load_variants(load_run(ring_run), ("recompute", "cached"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    executable = find_chromium()
    if executable is None:
        assert not os.environ.get("CI"), "CI must have Chromium: apt-get install chromium"
        pytest.skip("there is no Chromium")
    browser = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(sides, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report_html([diff(*sides)]))
    return file


def enlarged(trace, layers, chunks, steps, factor=1.0):
    """The trace with made-up time by place: (1 + layer) × (1 + chunk) µs × factor, 1 % more in every next step."""
    step, layer, chunk = (g.ravel().astype(np.int32) for g in np.mgrid[:steps, :layers, :chunks])
    ps = np.round(1e6 * (1 + layer) * (1 + chunk) * factor * 1.01**step).astype(np.int64)
    zero = np.zeros(len(step), np.int32)
    groups = {"pass": zero + 2, "layer": layer, "chunk": chunk}
    first = {name: column[: layers * chunks] for name, column in groups.items()}
    group = (layer * chunks + chunk).astype(np.int32)
    keys = {"device": zero, "step": step, **groups}
    count = zero.astype(np.int64) + 1
    wall = np.array([[int(ps[step == k].sum()) for k in range(steps)]])
    one_op = {"device": zero[:steps], "step": np.arange(steps, dtype=np.int32), "op": zero[:steps]}
    by_op = Totals(one_op, count[:steps], wall[0], wall[0], {"op": zero[:1]}, zero[:steps], steps)
    file = replace(
        trace.sessions[0][0],
        devices=("TPU:0",),
        step_labels=tuple(range(steps)),
        by_place=Totals(keys, count, ps, ps, first, group, steps),
        by_op=by_op,
        sort_rows=sort_rows(trace.sessions[0][0].ops, by_op),
        step_wall_ps=wall,
    )
    return replace(trace, sessions=((file,), (file,), (file,)))


def test_time_by_place_is_what_was_built_and_savings_are_their_differences(sides):
    a, b = enlarged(sides[0], 3, 2, 5), enlarged(sides[1], 3, 2, 5, factor=0.5)
    found = [places(side, (0, 1, 2), (1, -1)) for side in (a, b)]
    # The median of five steps is the third: two times 1 % more than the first.
    expected = np.array([[2, 0], [4, 0], [6, 0]]) * 1e6 * 1.01**2
    np.testing.assert_allclose(found[0].median_ps, expected, rtol=1e-6)
    savings = place_savings(*found)
    assert [row[1] for row in savings] == [None] * 3
    assert [row[0].value for row in savings] == pytest.approx([1e6 * 1.01**2, 2e6 * 1.01**2, 3e6 * 1.01**2], rel=1e-6)


def test_places_of_a_run_are_the_sums_by_layer_and_chunk(sides):
    trace = sides[0]
    found = places(trace, (*trace.layers, -1), (*trace.chunks, -1))
    for i, layer in enumerate(found.layers):
        for j, chunk in enumerate(found.chunks):
            for block, own in zip(found.samples_ps, trace.self_ps(layer=layer, chunk=chunk), strict=True):
                np.testing.assert_allclose(block[:, i, j], own)
    for block, whole in zip(found.samples_ps, trace.self_ps(), strict=True):
        np.testing.assert_allclose(block.sum(axis=(1, 2)), whole)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_the_page_opens_clean_and_never_scrolls_sideways(browser, page, width, dark):
    browser.problems.clear()
    seconds = browser.open(page, width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light is not dark
    assert browser.problems == []
    assert seconds < 2


def test_the_keyboard_sorts_a_table_and_puts_it_back(browser, page):
    browser.problems.clear()
    browser.open(page)
    browser.evaluate("""
        window.table = [...document.querySelectorAll("figure.table")].find(
            (f) => f.querySelector("figcaption").textContent.startsWith("Memory of")).querySelector("table");
        window.column = (k) => [...table.tBodies[0].rows].map((r) => r.cells[k].textContent);
        table.tHead.rows[0].cells[1].querySelector("button").focus();
    """)

    def sizes():
        units = {"B": 1, "KiB": 1024, "MiB": 1024**2}
        return [float(v.split()[0]) * units[v.split()[1]] for v in browser.evaluate("column(1)")]

    before = sizes()
    browser.press("Enter")
    assert sizes() == sorted(before, reverse=True)
    assert browser.evaluate("table.tHead.rows[0].cells[1].ariaSort") == "descending"
    browser.press(" ")
    assert sizes() == sorted(before)
    browser.press("Enter")
    assert sizes() == before
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.textContent") == "cached"
    assert browser.problems == []


def test_numbers_in_cells_are_read_as_numbers(browser, page):
    browser.open(page)
    cells = [
        "~ +2,009.5 [−1.0, +3.0]",
        "−10",
        "≥ 28",
        "24–28",
        "496.75 KiB",
        "2.00 GiB",
        "0.50×",
        "n/a",
        "–",
        "7.5 (1–9)",
    ]
    expected = [2009.5, -10, 28, 24, 496.75 * 1024, 2 * 1024**3, 0.5, None, None, 7.5]
    assert browser.evaluate(f"{json.dumps(cells)}.map(numberIn)") == expected


def test_paper_shows_what_is_folded(browser, page):
    browser.open(page)
    assert browser.evaluate("document.querySelectorAll('details:not([open])').length") > 0
    assert browser.pdf().startswith(b"%PDF")
    assert browser.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    # Chromium repeats no buttons on the next page, so headings are text meanwhile; afterwards they sort again.
    browser.evaluate("dispatchEvent(new Event('beforeprint')); 0")
    assert browser.evaluate("document.querySelectorAll('thead button').length") == 0
    assert browser.evaluate("document.querySelector('thead th').textContent") == "variant"
    browser.evaluate("dispatchEvent(new Event('afterprint')); 0")
    browser.evaluate("document.querySelectorAll('thead button')[1].click()")
    assert browser.evaluate("document.querySelector('th[aria-sort]').textContent") == "sorts per step"


def test_twelve_variants_of_61_layers_and_8_chunks_stay_small(browser, sides, tmp_path):
    traces = [replace(enlarged(sides[1], 61, 8, 5, 1 - k / 50), name=f"variant-{k}") for k in range(12)]
    text = report_html([diff(traces[0], other) for other in traces[1:]])
    assert len(text.encode()) < 3 * MEGABYTE
    assert text.count("<td") > 23 * 61 * 8  # eleven maps of savings, twelve of time
    file = tmp_path / "large.html"
    file.write_text(text)
    browser.problems.clear()
    assert browser.open(file) < 2
    assert browser.problems == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_a_trace_is_called_cannot_become_markup(sides):
    evil = "</title><script>alert(1)</script>"
    text = report_html([diff(replace(sides[0], name=evil[:20]), replace(sides[1], name="<img src=x>"))])
    assert len(re.findall(r"<script\b", text)) == 1
    assert "<img" not in text


def test_a_difference_that_is_not_the_variant_is_an_alarm_on_top(sides):
    b = replace(sides[1], manifest=replace(sides[1].manifest, mode="forward"))
    text = report_html([diff(sides[0], b)])
    assert 0 < text.index('role="alert"') < text.index('class="claim')
    assert "The sides differ in mode: recompute has backward, cached has forward." in text
    assert 'role="alert"' not in report_html([diff(*sides)])


def test_the_arrow_keys_read_a_map(browser, sides, tmp_path):
    file = tmp_path / "map.html"
    file.write_text(report_html([diff(enlarged(sides[0], 3, 2, 5), enlarged(sides[1], 3, 2, 5, factor=0.5))]))
    browser.problems.clear()
    browser.open(file)
    browser.evaluate("""
        window.map = document.querySelector("table.heat");
        window.said = () => map.closest("figure").querySelector("output").textContent;
        map.closest(".scroll").focus();
    """)
    # One stop of the Tab key, on the first cell; the rest of the map is reached by arrows.
    browser.press("Tab")
    # The median of five steps is the third; half of (1 + layer) × (1 + chunk) µs is saved.
    assert browser.evaluate("said()").startswith("layer 0, chunk 0: +0.510 µs, 95 % interval +0.")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        browser.press(key)
    assert browser.evaluate("said()").startswith("layer 2, chunk 1: +3.060 µs, 95 % interval +")
    browser.press("ArrowRight")
    assert browser.evaluate("said()") == "layer 2, no chunk: – µs, nothing ran here"
    browser.press("ArrowRight")
    browser.press("ArrowUp")
    assert browser.evaluate("said()").startswith("layer 1, no chunk")
    assert browser.evaluate("[...map.querySelectorAll('td')].filter((c) => c.tabIndex === 0).length") == 1
    browser.press("Tab")
    assert not browser.evaluate("map.contains(document.activeElement)")
    browser.evaluate("map.tBodies[0].rows[1].cells[2].click()")
    assert browser.evaluate("said()").startswith("layer 1, chunk 1: +2.040 µs")
    assert browser.problems == []


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    return variants(tmp_path_factory.mktemp("twelve"), layers=2, chunks=3, count=12)


def test_of_many_variants_the_page_counts_verdicts_and_the_funnel(twelve, browser, tmp_path):
    noise = replace(twelve[0], name="same")
    slow = slower(twelve[0], 1.5, "slow")
    text = report_html([diff(twelve[0], other) for other in (*twelve[1:], noise, slow)])
    claim = re.search(r'<p class="claim">(.*?)</p>', text).group(1)
    assert claim.startswith(
        "11 of 13 variants shorten the step of recompute, 1 is longer, 1 is not to be told from it. Savings per step go"
    )
    file = tmp_path / "twelve.html"
    file.write_text(text)
    browser.open(file)
    funnel = browser.evaluate("""
        [...[...document.querySelectorAll("figure.table")].find(
            (f) => f.querySelector("figcaption")?.textContent.startsWith("Funnel")).querySelector("tbody").rows]
            .slice(0, 3).map((r) => [...r.cells].map((c) => c.textContent))
    """)
    # One sort in each of 2 layers × 3 chunks, or one in each of 2 layers; all in the forward pass.
    assert funnel == [[name, str(n), str(n), str(n)] for name, n in (("recompute", 6), ("cached", 2), ("variant-2", 2))]


def test_a_link_to_a_comparison_unfolds_it(twelve, browser, tmp_path):
    file = tmp_path / "twelve.html"
    file.write_text(report_html([diff(twelve[0], other) for other in twelve[1:]]))
    browser.problems.clear()
    browser.open(file, width=400)
    browser.evaluate("document.querySelector('a[href=\"#comparison-7\"]').focus()")
    assert browser.evaluate("document.activeElement.textContent") == "variant-7"
    folded = "document.getElementById('comparison-7').closest('details').open"
    assert browser.evaluate(folded) is False
    browser.evaluate("window.moved = new Promise((done) => addEventListener('hashchange', () => done())); 0")
    browser.press("Enter")
    browser.evaluate("moved")
    assert browser.evaluate(folded) is True
    assert browser.problems == []


def test_many_layers_are_folded_and_still_sort(browser, sides, tmp_path):
    file = tmp_path / "many.html"
    file.write_text(report_html([diff(enlarged(sides[0], 61, 2, 5), enlarged(sides[1], 61, 2, 5, factor=0.5))]))
    browser.open(file)
    browser.evaluate("""
        window.figure = [...document.querySelectorAll("figure.table")].find(
            (f) => f.querySelector(".caption")?.textContent === "Time per step by layer (62 rows)");
    """)
    assert browser.evaluate("figure.querySelector('details').open") is False
    browser.evaluate("figure.querySelector('details').open = true")
    browser.evaluate("figure.querySelectorAll('thead button')[1].click()")
    assert browser.evaluate("figure.querySelector('tbody').rows[0].cells[0].textContent") == "layer 60"
    # What no layer claims is a total of its own kind: it stays below.
    assert browser.evaluate("figure.querySelector('tfoot').rows[0].cells[0].textContent") == "no layer"


def test_the_page_holds_every_part_of_a_comparison(sides):
    text = report_html([diff(*sides)])
    order = [
        'class="claim',
        "Every variant against recompute",
        "Funnel: sorts per step and device, compiled and executed, by pass",
        "Wall time of every step on its slowest device",
        "Comparable:",
        "Warning",
        "Saving per step by layer × chunk, µs of self time",
        "Sorts per step and device",
        "Ops whose self time moved most",
        "recompute: alive at the peak",
        "cached: alive at the peak",
        "Each side by itself",
        "Captured with",
    ]
    places_in_page = [text.index(part) for part in order]
    assert places_in_page == sorted(places_in_page)

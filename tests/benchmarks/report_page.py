"""Weight and opening time of report pages: `python -m tests.benchmarks.report_page [RUN ...] [--pictures FOLDER]`.

Makes the page of each RUN, and of built traces with 2 and 12 variants, 1 and 61 layers, 8 chunks; opens each three
times in headless Chromium, of which the median is shown: seconds until the page's load event, with everything on
it laid out. --pictures keeps the pages, and screenshots of each: light, dark, and 400 px wide with all unfolded.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from analyzers.comparing.diff import diff
from analyzers.reading.run import load_run
from analyzers.showing.html import report_html
from analyzers.trace import Trace, load_variants
from tests.analyzers.showing.browser import Browser, find_chromium

_CHUNKS = 8
_UNFOLD = "document.querySelectorAll('details').forEach((d) => d.open = true)"


def subjects(runs: Sequence[Path], folder: Path) -> Iterator[tuple[str, list[Trace]]]:
    """Yield what is compared: a name, and the traces."""
    for run in runs:
        found = load_run(run)
        yield run.name, list(load_variants(found, [v.name for v in found.manifest.variants]))
    from tests.builders.variants import variants

    for layers in (1, 61):
        traces = variants(folder / str(layers), layers, _CHUNKS, 12)
        for count in (2, 12):
            yield f"{count} variants, {layers} × {_CHUNKS}", traces[:count]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--pictures", type=Path)
    arguments = parser.parse_args()
    executable = find_chromium()
    if executable is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.pictures or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        browser = Browser(executable, Path(made) / "profile")
        print("| page | KB | made in, s | opens in, s | problems |\n| --- | ---: | ---: | ---: | --- |")
        for name, traces in subjects(arguments.runs, Path(made)):
            page = folder / f"{name.replace(' ', '-').replace(',', '')}.html"
            started = time.perf_counter()
            diffs = [diff(traces[0], other) for other in traces[1:]]
            page.write_text(report_html(diffs))
            seconds = time.perf_counter() - started
            browser.problems.clear()
            opened = statistics.median(browser.open(page) for _ in range(3))
            problems = "; ".join(browser.problems) or "none"
            print(
                f"| {name} | {page.stat().st_size / 1000:,.0f} | {seconds:.1f} | {opened:.2f} | {problems} |",
                flush=True,
            )
            if arguments.pictures:
                pictures(browser, page)
        browser.close()


def pictures(browser: Browser, page: Path) -> None:
    """Take the screenshots of a page."""
    for suffix, width, dark, unfold in (
        ("light", 1280, False, False),
        ("dark", 1280, True, False),
        ("phone", 400, False, True),
    ):
        browser.open(page, width=width, dark=dark)
        if unfold:
            browser.evaluate(_UNFOLD)
        browser.screenshot(page.with_name(f"{page.stem}-{suffix}.png"), whole=True)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()

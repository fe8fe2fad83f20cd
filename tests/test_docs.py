"""The documentation is held to the program: command lines parse, links lead somewhere, examples run and print that."""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import click
import matplotlib as mpl
import pytest

from profiler.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IDS = [page.name for page in PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def _command_lines(text):
    """Command lines in blocks and in indented lines, without prompts and comments."""
    lines = re.findall(r"^(?: {4,}|\$ |== |)(?:- run: )?(?:\$ )?(moe-prof .+)$", text, re.MULTILINE)
    # Three spaces or a # set a comment off.
    whole = [re.split(r" {3,}|\s#", line)[0].strip() for line in lines]
    return [part for line in whole for part in line.split(" && ") if "…" not in part]


def _spans(text):
    """Command lines in code spans: they may leave arguments out, as `moe-prof show --json` does."""
    return [span for span in re.findall(r"`(moe-prof [^`]+)`", FENCE.sub("", text)) if "…" not in span]


def _parse(line):
    """Parse a command line as the program does, without running it. Raises ClickException where that fails."""
    words = shlex.split(line)[1:]
    while words[0] == "--color":
        del words[:2]
    if words[0] in ("--help", "-h"):
        return
    context = cli.make_context("moe-prof", [words[0]])
    name, command, _ = cli.resolve_command(context, [words[0]])
    # Outputs are checked by callbacks, in a folder that is empty.
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context(name, words[1:], parent=context)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_command_lines_parse(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, wrong = page.read_text(), []
    for line in (*_command_lines(text), *_spans(text)):
        try:
            _parse(line)
        except click.ClickException as error:
            if line not in _spans(text) or not isinstance(error, click.MissingParameter):
                wrong.append(f"{line}: {error.format_message()}")
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "moe-prof show TRACE --sideways",
        "moe-prof view A B",
        "moe-prof show",
        "moe-prof report RUN --top many",
        "moe-prof shew A",
    ],
)
def test_a_wrong_command_line_is_seen(line):
    with pytest.raises(click.ClickException):
        _parse(line)


def test_command_lines_are_found():
    text = "Use `moe-prof show RUN`.\n\n    moe-prof diff A B   two\n\n```\n$ moe-prof check b.toml RUN # now\n```\n"
    assert _command_lines(text) == ["moe-prof diff A B", "moe-prof check b.toml RUN"]
    assert _spans(text) == ["moe-prof show RUN"]


def _anchors(text):
    """GitHub's anchors of the headings outside code."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page):
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file.read_text())):
            broken.append(target)
    assert broken == []


def test_every_command_and_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    linked = {target.partition("#")[0] for target in LINK.findall(index)}
    assert {page.name for page in PAGES[1:]} - linked == {"index.md"}
    for name in cli.list_commands(click.Context(cli)):
        assert f"moe-prof {name}" in index


def test_the_examples_of_the_python_page_run_and_print_what_stands_there(
    ring_run, compiled_ring, tmp_path, monkeypatch
):
    mpl.use("Agg")
    shutil.copytree(ring_run, tmp_path / "ring-run")
    shutil.copytree(compiled_ring, tmp_path / "compiled-ring")
    monkeypatch.chdir(tmp_path)
    blocks = FENCE.findall((ROOT / "docs" / "python.md").read_text())
    names, printed, compared = {}, "", 0
    for language, body in blocks:
        if language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(body, "docs/python.md", "exec"), names)
            printed = output.getvalue()
        elif language == "text":
            assert printed == body
            compared += 1
    assert compared == 4
    assert (tmp_path / "savings.png").stat().st_size > 0
    assert (tmp_path / "report.html").exists()

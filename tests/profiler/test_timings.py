"""`--timings`: what it says of a real command, and that its parts add up."""

import pytest

from profiler.cli.main import main


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


def _parts(err: str) -> dict[str, float]:
    rows = [line.split() for line in err.splitlines()]
    assert all(unit == "s" for *_, unit in rows)
    return {name: float(seconds) for name, seconds, _ in rows}


def _check(err: str, *parts: str) -> None:
    found = _parts(err)
    # The order is that of the process's first use of each part, and other tests used them before.
    assert set(found) == {"starting", *parts, "all"}
    assert all(seconds >= 0 for name, seconds in found.items() if name != "starting")
    assert sum(found.values()) - found["all"] == pytest.approx(found["all"], abs=0.01)


def test_show_says_what_its_parts_cost(run, ring_run):
    code, out, err = run("show", "--timings", str(ring_run))
    assert code == 0
    assert out == run("show", str(ring_run))[1]
    _check(err, "imports", "reading", "counting", "showing")


def test_diff_says_what_its_parts_cost(run, ring_run):
    code, out, err = run("diff", "--timings", "--json", str(ring_run))
    assert code == 0
    assert out == run("diff", "--json", str(ring_run))[1]
    _check(err, "imports", "reading", "counting", "comparing", "showing")


def test_what_workers_read_is_time_spent_on_them(run, ring_run):
    code, _, err = run("show", "--timings", "--jobs", "2", str(ring_run))
    assert code == 0
    _check(err, "imports", "workers", "showing")

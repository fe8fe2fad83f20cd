"""Traces of thousands of steps, as serving leaves them, are compared like those of five."""

import pytest

from analyzers.comparing.diff import diff
from analyzers.comparing.ranks import smallest_rank_sum_p
from analyzers.trace import load
from tests.benchmarks.reader_synthetic import write_trace


def test_the_least_p_of_few_and_of_many_steps() -> None:
    assert smallest_rank_sum_p(3, 3) == pytest.approx(2 / 20)
    assert smallest_rank_sum_p(1, 10_000) == pytest.approx(2 / 10_001)
    assert smallest_rank_sum_p(2, 1_000) == pytest.approx(2 / (1002 * 1001 / 2))
    assert smallest_rank_sum_p(10_000, 10_000) == 0


def test_a_trace_of_a_thousand_steps_is_no_faster_than_itself(tmp_path) -> None:
    path = tmp_path / "host.xplane.pb"
    write_trace(path, 100_000)
    trace = load(path)
    assert trace.num_steps == 1000
    found = diff(trace, trace)
    assert {row.saving.value for row in found.by_pass if row.saving} == {0}

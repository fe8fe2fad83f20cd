"""Every variant of every workload is captured, shown, and executes exactly the sorts that its module promises."""

from pathlib import Path

import pytest

from analyzers.reading.run import load_run
from analyzers.showing.trace_document import trace_document
from analyzers.trace import load_variants
from profiler.cli.main import main
from workloads.registry import WORKLOADS


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "ep"), [("backward", 8), ("forward", 1)])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_variant_executes_what_was_compiled(workload: str, mode: str, ep: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # fmt: off
    arguments = [
        "capture", workload, "--all-variants", "--mode", mode, "--ep", str(ep), "--scale", "1/4",
        "--steps", "2", "--rounds", "1", "-o", str(run),
    ]
    # fmt: on
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    names = [variant.name for variant in WORKLOADS[workload].variants]
    for trace in load_variants(load_run(run), names):
        assert len(trace.devices) == ep
        assert trace.num_steps == 2
        assert trace.compiled is not None
        assert trace.compiled.unknown == ()
        for row in trace.sorts:
            assert row.executed == (row.compiled, row.compiled), (trace.name, row)
        assert trace.sort_executions()[0] == sum(trace.compiled.by_pass_and_kind.values())
        assert [c.name for c in trace.caveats] == []
        heading = trace_document(trace).heading
        assert heading.startswith(f"{trace.name}: 2 steps of module jit_{workload}_{mode}")

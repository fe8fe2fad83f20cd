"""Every variant of every workload is captured, shown, and executes exactly the sorts that its module promises, and that
`moe-prof compile` counts.
"""

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import pytest

from analyzers.comparing.executed import executed_sites
from analyzers.comparing.funnel import Count, sorts
from analyzers.compiled import load_compiled
from analyzers.reading.run import load_run
from analyzers.showing.trace_document import trace_document
from analyzers.trace import load_variants
from profiler.cli.main import main
from profiler.compile import CompileRequest, Workload
from profiler.compile_worker import compile_one
from workloads.registry import WORKLOADS, preset_config

PASSES = ("forward", "recompute", "backward")


@pytest.fixture
def compiled_programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All that was compiled, by its StableHLO. What lowers to the same text is compiled once: that takes most time."""
    known: dict[str, Any] = {}
    compile_anew = jax.stages.Lowered.compile

    def compile_once(self: jax.stages.Lowered, *options: Any, **more: Any) -> Any:
        text = self.as_text()
        if text not in known:
            known[text] = compile_anew(self, *options, **more)
        return known[text]

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_once)
    return known


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "ep"), [("backward", 8), ("forward", 1)])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_variant_executes_what_was_compiled(
    workload: str, mode: str, ep: int, tmp_path: Path, compiled_programs: dict[str, Any]
) -> None:
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
        compiled_by_capture = len(compiled_programs)
        config = preset_config("tiny", Fraction(1, 4), ep=ep)
        request = CompileRequest(Workload(workload, trace.name, mode, asdict(config)), num_devices=ep)
        compile_one(request, tmp_path / trace.name, tmp_path / "no-dump")
        assert len(compiled_programs) == compiled_by_capture, "compile lowers to another program than capture"
        (program,) = load_compiled(tmp_path / trace.name).programs
        for pass_ in PASSES:
            executed = sorts(executed_sites(trace), pass_)
            assert sorts(program.levels["compiled"], pass_) == executed == Count(executed.times), trace.name
        assert sum(s.times for s in program.levels["compiled"] if "sort" in s.kind or s.kind == "top_k") == sum(
            row.compiled for row in trace.sorts
        )

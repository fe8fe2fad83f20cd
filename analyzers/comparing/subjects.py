"""What a budget can be held against: a compiled program, or a variant of a run (or any trace)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzers.comparing.budget import Subject, Unknown
from analyzers.comparing.diff import Unknown as NoSaving
from analyzers.comparing.diff import diff
from analyzers.comparing.funnel import Count, sorts
from analyzers.comparing.statistics import Saving
from analyzers.compiled import CompiledProgram, CompileResult, repeated_buffers
from analyzers.counting.kinds import Kind
from analyzers.counting.scopes import Pass
from analyzers.counting.sites import Site, compiled_sites
from analyzers.trace import Trace


@dataclass(frozen=True)
class CompiledSubject:
    """A compiled program. Sorts are those that its module promises; nothing has run."""

    program: CompiledProgram

    @property
    def name(self) -> str:
        """The variant's name."""
        return self.program.name

    def figure(self, name: str) -> float | Unknown:
        """See `Subject`."""
        sites = self.program.levels["compiled"]
        layers = int(self.program.manifest.config.get("num_layers", 0))
        if name in ("peak_bytes", "temp_bytes"):
            buffers = self.program.buffers
            if buffers is None:
                return Unknown("the compiler gave no buffer assignment")
            return float(buffers.temp_bytes if name == "temp_bytes" else self.program.peak_bytes or 0)
        return _sorts(sites, name, layers)

    def sorts_by_pass(self, pass_: str) -> float | Unknown:
        """See `Subject`."""
        return _known(sorts(self.program.levels["compiled"], pass_))

    def has_buffer(self, name: str) -> bool | Unknown:
        """See `Subject`."""
        if not self.program.record.compiled.top_k_buffer_bytes:
            return Unknown("only a workload of moe-prof knows the bytes of its dispatch input")
        if self.program.buffers is None:
            return Unknown("the compiler gave no buffer assignment")
        return bool(repeated_buffers(self.program))

    def saving(self, against: str) -> Saving | Unknown:
        """See `Subject`."""
        return Unknown("a compile result has no times; check a run")


@dataclass(frozen=True)
class TraceSubject:
    """A variant of a run, or a trace. Sorts are those that were executed."""

    trace: Trace
    others: Mapping[str, Trace]

    @property
    def name(self) -> str:
        """The variant's name, or the trace's."""
        return self.trace.name

    def figure(self, name: str) -> float | Unknown:
        """See `Subject`."""
        if name == "peak_bytes":
            return Unknown("no memory figures in it") if self.trace.peak_bytes is None else float(self.trace.peak_bytes)
        if name == "temp_bytes":
            found = self.trace.buffers
            return Unknown("no buffer assignment in it") if found is None else float(found.temp_bytes)
        if name == "sorts_in_chunk_loops":
            if self.trace.module is None:
                return Unknown("the compiled module is not in it, so loops are not known")
            return _sorts(compiled_sites(self.trace.module), name, 0)
        total = self._executed(None)
        if isinstance(total, Unknown) or name == "sorts":
            return total
        if not self.trace.layers:
            return Unknown("no scope and no loop tells the layers")
        return total / len(self.trace.layers)

    def sorts_by_pass(self, pass_: str) -> float | Unknown:
        """See `Subject`."""
        return self._executed(Pass(pass_))

    def _executed(self, pass_: Pass | None) -> float | Unknown:
        if self.trace.at_least:
            return Unknown("the trace is cut short: a count from it is a lower bound")
        total = 0
        for kind in (Kind.ARGSORT, Kind.SORT):
            low, high = self.trace.sort_executions(pass_, kind)
            if low != high:
                return Unknown(f"devices or steps differ: {low} to {high} sorts")
            total += high
        return float(total)

    def has_buffer(self, name: str) -> bool | Unknown:
        """See `Subject`."""
        if self.trace.variant is None:
            return Unknown("only a run knows the bytes of its dispatch input")
        if self.trace.buffers is None:
            return Unknown("no buffer assignment in it")
        return bool(self.trace.buffers.repeats(self.trace.variant.top_k_buffer_bytes))

    def saving(self, against: str) -> Saving | Unknown:
        """See `Subject`."""
        if against not in self.others:
            return Unknown(f"there is no variant {against!r} in it")
        found = diff(self.others[against], self.trace).per_chunk_per_layer
        if isinstance(found, NoSaving):
            return Unknown(found.reason)
        return found["step"] if "step" in found else Unknown("no op ran on one of the sides")


def subjects_of_result(result: CompileResult) -> dict[tuple[str, ...], Subject]:
    """Return what a compile result offers, by section."""
    about = result.manifest
    found: dict[tuple[str, ...], Subject] = {}
    for program in result.programs:
        section = (about.workload, program.name, about.mode) if about.config else ("module", program.name)
        found[section] = CompiledSubject(program)
    return found


def subjects_of_traces(traces: Sequence[Trace]) -> dict[tuple[str, ...], Subject]:
    """Return what the variants of a run, or a trace, offer, by section."""
    others = {trace.name: trace for trace in traces}
    found: dict[tuple[str, ...], Subject] = {}
    for trace in traces:
        about = trace.manifest
        section = (about.workload, trace.name, about.mode) if about else ("trace",)
        found[section] = TraceSubject(trace, others)
    return found


def _sorts(sites: Sequence[Site], name: str, layers: int) -> float | Unknown:
    total = _known(sorts(sites, in_loop="chunks" if name == "sorts_in_chunk_loops" else None))
    if isinstance(total, Unknown) or name != "sorts_per_layer":
        return total
    return total / layers if layers else Unknown("only a workload of moe-prof says how many layers there are")


def _known(found: Count) -> float | Unknown:
    if found.unknown:
        return Unknown(f"{found.unknown} sorts stand in loops or branches that run nobody knows how often")
    return float(found.times)

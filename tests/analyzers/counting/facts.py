"""Facts of a built trace in the shape of its truth: plain dicts of ints."""

from analyzers.counting.facts import FileFacts, file_facts
from analyzers.counting.totals import PASSES
from analyzers.reading.xspace import read_xspace
from tests.builders.spaces import trace_file


def facts_of(folder, space, **options) -> FileFacts:
    return file_facts(read_xspace(trace_file(folder, space)), **options)


def _rows(table, *keys):
    return zip(*(table.keys[key].tolist() for key in keys), strict=True)


def self_ps_by_place(facts: FileFacts) -> dict:
    """By (device, step, pass, layer, chunk), what is in no layer left out."""
    rows = _rows(facts.by_place, "device", "step", "pass", "layer", "chunk")
    return {
        (device, step, PASSES[pass_].value, layer, chunk): self_ps
        for (device, step, pass_, layer, chunk), self_ps in zip(rows, facts.by_place.self_ps.tolist(), strict=True)
        if layer >= 0
    }


def by_op(facts: FileFacts, column: str = "executions") -> dict:
    """By (device, step, instruction)."""
    rows = _rows(facts.by_op, "device", "step", "op")
    values = getattr(facts.by_op, column).tolist()
    return {(device, step, facts.ops[op].name): value for (device, step, op), value in zip(rows, values, strict=True)}


def caveat_names(facts: FileFacts) -> list[str]:
    return [caveat.name for caveat in facts.caveats]

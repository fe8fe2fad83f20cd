"""What kind of work an instruction is, as far as routing is concerned: argsort, sort, top-k, gather, scatter, …

An argsort, a sort of values and a top-k all compile to the opcode `sort`, or to a custom call, or disappear
into a fusion. They are told apart by what jax called them where the name survived, else by what they compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from analyzers.counting.hlo import Instruction, Module


class Kind(Enum):
    """Kind of work of one instruction."""

    ARGSORT = "argsort"
    SORT = "sort"
    TOP_K = "top_k"
    GATHER = "gather"
    SCATTER = "scatter"
    MATMUL = "matmul"
    COLLECTIVE = "collective"
    COPY = "copy"
    CUSTOM_CALL = "custom call"
    CONTROL_FLOW = "control flow"
    OTHER = "other"

    @property
    def is_sort(self) -> bool:
        """Say whether this counts as a sort of any kind."""
        return self in (Kind.ARGSORT, Kind.SORT, Kind.TOP_K)


_OPCODES = {
    "gather": Kind.GATHER,
    "scatter": Kind.SCATTER,
    "dot": Kind.MATMUL,
    "ragged-dot": Kind.MATMUL,
    "convolution": Kind.MATMUL,
    "copy": Kind.COPY,
    "copy-start": Kind.COPY,
    "copy-done": Kind.COPY,
    "while": Kind.CONTROL_FLOW,
    "conditional": Kind.CONTROL_FLOW,
    "call": Kind.CONTROL_FLOW,
}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "ragged-all-to-all",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
)
# Where several kinds are fused, the fusion is called by the most telling one.
_FUSION_PRECEDENCE = (Kind.MATMUL, Kind.SCATTER, Kind.GATHER)

# GPU: int32 keys go to CUB's radix sort (int64 and float keys do not). Seen in openxla/xla, sort_rewriter.cc.
_RADIX_SORT = "__cub$DeviceRadixSort"
_TOP_K_TARGETS = ("TopK", "__gpu$TopK", "PartialReduce", "ApproxTopK")


def kind(module: Module, instruction: Instruction) -> Kind:
    """Return the kind of an instruction; a fusion that contains a sort is that sort."""
    sort = sort_kind(module, instruction)
    if sort is not None:
        return sort
    if instruction.opcode == "fusion":
        inside = {_plain_kind(inner) for inner in module.fused(instruction)}
        return next((k for k in _FUSION_PRECEDENCE if k in inside), Kind.OTHER)
    return _plain_kind(instruction)


def kind_by_name(opcode: str, scope: str) -> Kind:
    """Return the kind of an op whose module is not at hand, from its opcode or category and its scope path."""
    if opcode == "sort" or _RADIX_SORT in opcode:
        return _sort_by_scope(scope) or Kind.SORT
    return _kind_of_opcode(opcode)


def sort_kind(module: Module, instruction: Instruction) -> Kind | None:
    """Return ARGSORT, SORT or TOP_K for an instruction that sorts, None for one that does not."""
    sorts = list(_sorts_in(module, instruction))
    if not sorts:
        return None
    return min((_kind_of_sort(module, s, instruction) for s in sorts), key=list(Kind).index)


def sorts_in(module: Module, instruction: Instruction) -> int:
    """Return how many sorts one execution of the instruction performs (a fusion can hold several)."""
    return sum(1 for _ in _sorts_in(module, instruction))


def _sorts_in(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    if _is_sort(instruction):
        yield instruction
    yield from (inner for inner in module.fused(instruction) if _is_sort(inner))


def _is_sort(instruction: Instruction) -> bool:
    target = instruction.custom_call_target
    return instruction.opcode in ("sort", "topk") or target.startswith((_RADIX_SORT, *_TOP_K_TARGETS))


def _kind_of_sort(module: Module, sort: Instruction, owner: Instruction) -> Kind:
    if sort.opcode == "topk" or sort.custom_call_target.startswith(_TOP_K_TARGETS):
        return Kind.TOP_K
    named = _sort_by_scope(sort.scope)
    if named is not None:
        return named
    if not sort.scope and _comes_from_top_k(module, owner):
        return Kind.TOP_K
    # Sorting positions along with the keys is an argsort, whatever it was called.
    if any(_is_iota(module, module.instructions[name]) for name in sort.operands[1:]):
        return Kind.ARGSORT
    return Kind.SORT


def _sort_by_scope(scope: str) -> Kind | None:
    # The last segment is the primitive, the one before may be the function it came from: `jit(argsort)/sort`.
    last = scope.rstrip(":").split("/")[-2:]
    if any("argsort" in segment for segment in last):
        return Kind.ARGSORT
    if any("top_k" in segment for segment in last):
        return Kind.TOP_K
    return None


def _comes_from_top_k(module: Module, sort: Instruction) -> bool:
    # The rewrite of a top-k into a sort loses its name, but the slice that takes the first k keeps it.
    users = [module.instructions[name] for name in module.users.get(sort.name, ())]
    return any("top_k" in inner.scope for user in users for inner in (user, *module.fused(user)))


def _is_iota(module: Module, instruction: Instruction) -> bool:
    if instruction.opcode == "iota":
        return True
    if instruction.opcode in ("copy", "bitcast", "reshape", "broadcast") and instruction.operands:
        return _is_iota(module, module.instructions[instruction.operands[0]])
    if instruction.opcode == "fusion":
        computing = [i for i in module.fused(instruction) if i.opcode not in ("parameter", "constant")]
        return bool(computing) and all(i.opcode in ("iota", "bitcast", "copy", "reshape") for i in computing)
    return False


def _plain_kind(instruction: Instruction) -> Kind:
    return _kind_of_opcode(instruction.opcode)


def _kind_of_opcode(opcode: str) -> Kind:
    if opcode.startswith(_COLLECTIVES):
        return Kind.COLLECTIVE
    if opcode in ("custom-call", "custom call"):
        return Kind.CUSTOM_CALL
    return _OPCODES.get(opcode, Kind.OTHER)

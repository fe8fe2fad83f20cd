"""The tables of workloads and their named variants, and which choices can combine. Importable without jax.

A variant is a point in the space of `Choices`. The named ones are those worth telling apart; any other
combination can be asked for by writing its choices out, as `sort_key=packed+inverse=scatter`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from workloads.config import CHOICE_VALUES, Choices, Config
from workloads.errors import WorkloadError
from workloads.sizes import rows_held, tokens_seen


@dataclass(frozen=True)
class Variant:
    """One implementation of a workload's routing; `summary` says in one line what it changes."""

    workload: str
    name: str
    summary: str
    choices: Choices


@dataclass(frozen=True)
class Workload:
    """A computation that can be run, and the variants of its routing. `plain` is the choices others differ
    from.
    """

    name: str
    summary: str
    plain: Choices
    variants: tuple[Variant, ...]
    default_variants: tuple[str, ...]


def _workload(
    name: str, summary: str, plain: Choices, default_variants: tuple[str, ...], *variants: tuple[str, Choices, str]
) -> Workload:
    named = tuple(Variant(name, variant, line, choices) for variant, choices, line in variants)
    return Workload(name, summary, plain, named, default_variants)


_PLAIN = Choices(validity="none")
_GATHER = replace(_PLAIN, activations="gather")
_RING = Choices(validity="recompute")
_SAVED = replace(_RING, inverse="reuse", across_remat="saved")
_CACHED = Choices(inverse="reuse", validity="cached", across_remat="saved")

_PERMUTE_WORKLOAD = _workload(
    "permute",
    "sort local tokens by expert, grouped matmul, un-sort, weighted sum; tokens stay put",
    replace(_PLAIN, activations="repeat"),
    ("repeat", "gather"),
    (
        "repeat",
        replace(_PLAIN, activations="repeat"),
        "copies every token top_k times, gathers the copies in sorted order, inverts by argsort",
    ),
    (
        "repeat+scatter",
        replace(_PLAIN, activations="repeat", inverse="scatter"),
        "repeat, with every permutation inverted by an O(N) scatter instead of an argsort",
    ),
    ("gather", _GATHER, "gathers rows sort_indices // top_k from the original activations, inverts by argsort"),
    (
        "gather+scatter",
        replace(_GATHER, inverse="scatter"),
        "gather, with every permutation inverted by an O(N) scatter instead of an argsort",
    ),
    (
        "gather+backward-scatter",
        replace(_GATHER, backward_inverse="scatter"),
        "gather, with only the backward's own inversions by an O(N) scatter instead of an argsort",
    ),
    (
        "gather+reuse",
        replace(_GATHER, inverse="reuse"),
        "gather, with the backward handed both permutations instead of inverting one again",
    ),
    (
        "gather+saved",
        replace(_GATHER, inverse="reuse", across_remat="saved"),
        "gather+reuse, with the routing arrays saved through remat instead of recomputed",
    ),
    (
        "gather+packed",
        replace(_GATHER, sort_key="packed", inverse="scatter"),
        "gather+scatter, sorting expert and index packed into one int32 key",
    ),
    (
        "gather+counting",
        replace(_GATHER, sort_key="counting", inverse="reuse"),
        "gather+reuse, ordered by a one-hot cumulative sum: no sort at all",
    ),
)

_RING_WORKLOAD = _workload(
    "ring",
    "ring of experts: shards see all tokens, keep their experts' rows, walk the embedding in chunks",
    _RING,
    ("recompute", "cached"),
    ("recompute", _RING, "every gather-reduce sorts its validity mask, the backward re-derives all permutations"),
    (
        "recompute+scatter",
        replace(_RING, inverse="scatter"),
        "recompute, with every permutation inverted by an O(N) scatter instead of an argsort",
    ),
    (
        "recompute+reuse",
        replace(_RING, inverse="reuse"),
        "recompute, with the backward handed the forward permutation instead of re-deriving it",
    ),
    (
        "recompute+packed",
        replace(_RING, sort_key="packed", inverse="scatter"),
        "recompute+scatter, sorting expert and index packed into one int32 key",
    ),
    (
        "validity",
        replace(_RING, inverse="reuse", validity="cached"),
        "the validity permutation once per layer and handed to the backward, but recomputed under remat",
    ),
    (
        "saved",
        _SAVED,
        "routing arrays saved through remat, but every gather-reduce sorts its validity mask",
    ),
    (
        "cached",
        _CACHED,
        "routing and validity permutation once per layer, handed to the backward and through remat",
    ),
    (
        "cached+packed",
        replace(_CACHED, sort_key="packed"),
        "cached, sorting expert and index packed into one int32 key",
    ),
    (
        "cached+counting",
        replace(_CACHED, sort_key="counting"),
        "cached, ordered by a one-hot cumulative sum: only the validity mask is sorted",
    ),
)

_A2A_WORKLOAD = _workload(
    "a2a",
    "all-to-all: tokens travel to the shard of their experts, are sorted there over a valid prefix, and back",
    _PLAIN,
    ("recompute", "saved"),
    ("recompute", _PLAIN, "every permutation is re-derived where it is needed, in the backward and under remat"),
    (
        "scatter",
        replace(_PLAIN, inverse="scatter"),
        "recompute, with every permutation inverted by an O(N) scatter instead of an argsort",
    ),
    (
        "packed",
        replace(_PLAIN, sort_key="packed", inverse="scatter"),
        "scatter, sorting expert and index packed into one int32 key on both sides",
    ),
    (
        "counting",
        replace(_PLAIN, sort_key="counting", inverse="reuse"),
        "ordered by a one-hot cumulative sum on both sides: no sort at all",
    ),
    (
        "saved",
        replace(_PLAIN, inverse="reuse", across_remat="saved"),
        "permutations derived once per layer, handed to the backward and saved through remat",
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {workload.name: workload for workload in (_PERMUTE_WORKLOAD, _RING_WORKLOAD, _A2A_WORKLOAD)}
)


def find_variant(workload: str, variant: str) -> Variant:
    """The named variant, or the one whose choices `variant` spells out (`sort_key=packed+inverse=scatter`).

    Raises WorkloadError that lists the valid names.
    """
    if workload not in WORKLOADS:
        raise WorkloadError(f"unknown workload {workload!r}; choose one of {', '.join(WORKLOADS)}.")
    if "=" in variant:
        return _spelled_out(workload, variant)
    for candidate in WORKLOADS[workload].variants:
        if candidate.name == variant:
            return candidate
    names = ", ".join(candidate.name for candidate in WORKLOADS[workload].variants)
    raise WorkloadError(f"workload {workload!r} has no variant {variant!r}; choose one of {names}.")


def _spelled_out(workload: str, variant: str) -> Variant:
    asked: dict[str, str] = {}
    for pair in variant.split("+"):
        choice, _, value = pair.strip().partition("=")
        if choice not in CHOICE_VALUES:
            known = ", ".join(CHOICE_VALUES)
            raise WorkloadError(f"variant {variant!r} names no choice {choice!r}; choose among {known}.")
        if value not in CHOICE_VALUES[choice]:
            known = ", ".join(CHOICE_VALUES[choice])
            raise WorkloadError(f"variant {variant!r}: {choice} is one of {known}, not {value!r}.")
        asked[choice] = value
    choices = replace(WORKLOADS[workload].plain, **asked)
    summary = ", ".join(f"{name} {value}" for name, value in asdict(choices).items())
    return Variant(workload, variant, summary, choices)


def check_choices(workload: str, choices: Choices, config: Config) -> None:
    """Raise WorkloadError with the reason if a workload cannot route that way, or not with that
    configuration.
    """
    if choices.inverse == "reuse" and choices.inverse_in_backward != "reuse":
        raise WorkloadError(
            f"inverse reuse cannot combine with backward_inverse {choices.backward_inverse}: the backward is handed "
            "the inverse, so there is nothing left to invert; use backward_inverse=same, or inverse=argsort."
        )
    if choices.sort_key == "counting" and choices.inverse != "reuse":
        raise WorkloadError(
            f"sort_key counting cannot combine with inverse {choices.inverse}: counting yields the inverse itself, "
            f"so there is nothing to invert; use inverse=reuse."
        )
    if workload == "ring":
        _check_ring(choices)
    elif choices.validity != "none":
        raise WorkloadError(
            f"{workload} cannot have validity {choices.validity}: its valid rows are all rows or a prefix, and no "
            f"mask is sorted; use validity=none."
        )
    if workload == "a2a" and choices.activations != "gather":
        raise WorkloadError(
            "a2a cannot have activations repeat: rows are gathered into the send buffer slot by slot, which copies "
            "a token exactly as often as it travels; use activations=gather."
        )
    _check_config_for(workload, choices, config)
    if choices.sort_key == "packed":
        for entries, groups in packed_problems(workload, config):
            packed_shift(entries, groups)


def _check_ring(choices: Choices) -> None:
    if choices.activations != "gather":
        raise WorkloadError(
            "ring cannot have activations repeat: each shard gathers a few rows of the all-gathered chunk, and "
            "copies of all of it top_k times would mostly go unread; use activations=gather."
        )
    if choices.validity == "none":
        raise WorkloadError(
            "ring cannot have validity none: a shard holds some of the slots, and the gather-reduce has to put "
            "those first; use validity=recompute or validity=cached."
        )


def _check_config_for(workload: str, choices: Choices, config: Config) -> None:
    if workload == "permute" and config.buffer_factor is not None:
        raise WorkloadError(
            "permute cannot have a buffer factor: its rows never leave their device, so no buffer is shared "
            "and nothing is dropped; leave it out."
        )
    if workload != "ring" and config.kernels != "jax":
        raise WorkloadError(
            f"{workload} cannot use kernels {config.kernels}: only ring moves rows by the ragged gather and "
            f"gather-reduce that these kernels replace; use kernels jax."
        )
    if config.kernels == "maxtext" and choices not in (_RING, _SAVED):
        raise WorkloadError(
            "kernels maxtext route in MaxText's own way, of which only the variants recompute and saved can be "
            "asked for; use one of those, or kernels jax."
        )
    if config.kernels == "maxtext" and config.dtype != "bfloat16":
        raise WorkloadError(
            f"kernels maxtext cannot have dtype {config.dtype}: MaxText's gather-reduce returns bfloat16 whatever "
            f"it is given; use dtype bfloat16, or kernels jax."
        )


def packed_problems(workload: str, config: Config) -> list[tuple[int, int]]:
    """(entries, groups) of every sort that a workload does, of which a packed key has to hold both."""
    local = (tokens_seen(workload, config) * config.top_k, config.num_experts)
    if workload != "a2a":
        return [local]
    # The receiver sorts all rows of its buffer, where padding is one group more.
    return [local, (rows_held(workload, config), config.experts_per_shard + 1)]


def packed_shift(entries: int, groups: int) -> int:
    """Bits of the entry's number in a packed key. Raises WorkloadError if it and the group exceed an int32."""
    shift = max(entries - 1, 1).bit_length()
    if (groups << shift) - 1 > 2**31 - 1:
        raise WorkloadError(
            f"sort_key packed cannot hold {groups} experts and {entries} (token, slot) pairs in one int32 key; "
            f"use fewer tokens, or sort_key=stable."
        )
    return shift

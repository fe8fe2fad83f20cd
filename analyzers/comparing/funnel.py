"""The funnel: how much counted work each level has, and where a level loses or gains some.

Levels are compared by what a site is (pass, kind, named scopes), never by instruction name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from analyzers.counting.kinds import Kind
from analyzers.counting.scopes import Pass
from analyzers.counting.sites import COUNTED, LoopSite, Site

_PASSES = [p.value for p in Pass]
_KINDS = [k.value for k in COUNTED]
_SORTS = frozenset(k.value for k in Kind if k.is_sort)


@dataclass(frozen=True, slots=True)
class Count:
    """Executions of some work per execution of the program on one device."""

    times: int
    unknown: int = 0
    """Instructions that are left out because nobody can tell how often they run."""


@dataclass(frozen=True, slots=True)
class FunnelRow:
    """One kind of work in one pass on every level."""

    pass_: str
    kind: str
    name: str
    counts: Mapping[str, Count]


@dataclass(frozen=True, slots=True)
class Step:
    """What one level lost or gained against the one before, at one place of the program."""

    kind: str
    pass_: str
    path: str
    before_level: str
    after_level: str
    before: int
    after: int
    story: str
    is_guess: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Sorts by the loops they run in: the innermost loop's path, empty for no loop."""

    pass_: str
    kind: str
    loops: tuple[LoopSite, ...]
    times: int | None
    path: str


EXECUTED = "executed"
"""The level that a trace tells; the others are told by programs."""

Levels = Mapping[str, Sequence[Site]]


def funnel(levels: Levels) -> tuple[FunnelRow, ...]:
    """Return the counts of every kind of work, by pass, on the given levels in their order."""
    table: dict[tuple[str, str, str], dict[str, list[Site]]] = defaultdict(lambda: defaultdict(list))
    for level, sites in levels.items():
        for site in sites:
            table[site.pass_, site.kind, site.name][level].append(site)
    order = sorted(table, key=lambda key: (_KINDS.index(key[1]), key[2], _PASSES.index(key[0])))
    return tuple(
        FunnelRow(pass_, kind, name, {level: count(table[pass_, kind, name][level]) for level in levels})
        for pass_, kind, name in order
    )


def count(sites: Iterable[Site]) -> Count:
    """Add up executions."""
    known, unknown = 0, 0
    for site in sites:
        if site.times is None:
            unknown += 1
        else:
            known += site.times
    return Count(known, unknown)


def sorts(sites: Iterable[Site], pass_: str | None = None, in_loop: str | None = None) -> Count:
    """Count sorts of any kind except top-k, in one pass and inside loops whose path ends in `in_loop` (None: all)."""
    return count(
        s
        for s in sites
        if s.kind in (Kind.ARGSORT.value, Kind.SORT.value)
        and pass_ in (None, s.pass_)
        and (in_loop is None or any(loop.path.split("/")[-1] == in_loop for loop in s.loops))
    )


def places(sites: Iterable[Site]) -> tuple[Place, ...]:
    """Return where the sorts run: by pass, kind, scope and enclosing loops."""
    table: dict[tuple[str, str, str, tuple[LoopSite, ...]], int | None] = {}
    for site in sites:
        if site.kind in _SORTS:
            key = (site.pass_, site.kind, site.path, site.loops)
            known = table.get(key, 0)
            table[key] = None if known is None or site.times is None else known + site.times
    found = [Place(p, kind, loops, times, path) for (p, kind, path, loops), times in table.items()]
    return tuple(sorted(found, key=lambda x: (_PASSES.index(x.pass_), _KINDS.index(x.kind), x.path, len(x.loops))))


def steps(levels: Levels) -> tuple[Step, ...]:
    """Return where sorts were lost or gained, between each level and the next."""
    names = list(levels)
    return tuple(
        step
        for before, after in pairwise(names)
        for step in _steps_between(before, levels[before], after, levels[after])
    )


def _steps_between(before: str, old: Sequence[Site], after: str, new: Sequence[Site]) -> list[Step]:
    grouped: dict[tuple[str, str, str], tuple[list[Site], list[Site]]] = defaultdict(lambda: ([], []))
    for side, sites in enumerate((old, new)):
        for site in sites:
            if site.kind in _SORTS:
                grouped[site.kind, site.pass_, site.path][side].append(site)
    found = []
    for (kind, pass_, path), (was, now) in grouped.items():
        a, b = count(was), count(now)
        # Of what was executed nobody knows the loops.
        moved = after != EXECUTED and {_depth(s) for s in was} != {_depth(s) for s in now}
        if a == b and not (moved and was and now):
            continue
        story, guess = _executed_story(a, b) if after == EXECUTED else _story(was, now, new)
        if after == "lowered" and was and not now:
            story, guess = "gone: dead code, which jax drops as it lowers", False
        found.append(Step(kind, pass_, path, before, after, a.times, b.times, story, guess))
    return sorted(found, key=lambda s: (_PASSES.index(s.pass_), _KINDS.index(s.kind), s.path))


def _executed_story(compiled: Count, found: Count) -> tuple[str, bool]:
    """Return what a count of a trace means that is not the compiled one."""
    if compiled.unknown:
        return "only the trace can tell", False
    if found.times < compiled.times:
        return "fewer ran than were compiled: another program, or the trace lost some", True
    return "more ran than were compiled: another program", True


def _story(was: Sequence[Site], now: Sequence[Site], new: Sequence[Site]) -> tuple[str, bool]:
    """Return what became of the sites, and whether that rests on a guess."""
    unknown = [s.why_unknown for s in (*was, *now) if s.times is None]
    if unknown:
        return f"not comparable: {unknown[0]}", False
    if not now:
        twins = {
            (s.pass_, s.path)
            for s in new
            if s.kind == was[0].kind and _stem(s.path) == _stem(was[0].path) and s.pass_ != was[0].pass_
        }
        if twins:
            # Rematerialised work stands right beside the backward that needs it.
            pass_, path = min(twins, key=lambda twin: (twin[0] != Pass.RECOMPUTE.value, twin))
            return f"gone; probably one with that of the {pass_} pass in {path or 'no scope'}", True
        return "gone: merged with an equal one, or its result was not needed", True
    if not was:
        scatters = {(s.pass_, s.path) for s in new if s.kind == Kind.SCATTER.value}
        if now[0].kind == Kind.SORT.value and (now[0].pass_, now[0].path) in scatters:
            return "made by the compiler, probably to sort the indices of the scatter that stands there", True
        return "new here: copied or moved from another scope, or made by the compiler", True
    left = _innermost(was)
    if _depth_max(now) < _depth_max(was) and left is not None:
        here = _innermost(now)
        return (
            f"hoisted out of the loop {left.path or '(unnamed)'} to {'loop ' + here.path if here else 'entry'}",
            False,
        )
    if _depth_max(now) > _depth_max(was):
        return "moved into a loop", False
    if b_more := _extra(was, now):
        return f"part of them run in fewer or more loops: {b_more}", False
    if len(now) < len(was):
        return f"{len(was)} instructions became {len(now)}: equal ones merged", True
    return f"{len(was)} instructions became {len(now)}", False


def _extra(was: Sequence[Site], now: Sequence[Site]) -> str:
    """Return where sites run now that are in other loops than before, empty if all are in the same ones."""
    known = {_depth(s) for s in was}
    moved = [s for s in now if _depth(s) not in known]
    return ", ".join(f"{s.times}× {'in loop ' + s.loops[-1].path if s.loops else 'in entry'}" for s in moved)


def _stem(path: str) -> str:
    return "/".join(s for s in path.split("/") if "chunk" not in s)


def _depth(site: Site) -> tuple[str, ...]:
    return tuple(loop.path for loop in site.loops if loop.trips != 1)


def _depth_max(sites: Sequence[Site]) -> int:
    return max(len(_depth(s)) for s in sites)


def _innermost(sites: Sequence[Site]) -> LoopSite | None:
    loops = max((s.loops for s in sites), key=len)
    return loops[-1] if loops else None

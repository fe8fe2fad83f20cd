"""The door: `load` opens a trace, or a variant of a run, and everything else hangs on what it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.counting.arrays import sums, unique
from analyzers.counting.buffers import Buffers, buffers
from analyzers.counting.facts import FileFacts, OpFacts, file_facts
from analyzers.counting.hlo import Module
from analyzers.counting.hosts import aligned, device_names, file_caveats, missing_devices, num_devices, unreadable
from analyzers.counting.keeping import Keeper
from analyzers.counting.kinds import Kind
from analyzers.counting.liveness import Peak, live_peak
from analyzers.counting.routing import CompiledSorts, compiled_sorts
from analyzers.counting.scopes import DEFAULT_PATTERNS, Pass, ScopePatterns
from analyzers.counting.totals import PASSES, Totals
from analyzers.errors import UserError
from analyzers.reading.hosts import THIS_PROCESS, Unreadable, Workers, map_files
from analyzers.reading.run import CompiledVariant, Manifest, Run, is_run, load_run
from analyzers.reading.sources import Source, find_sources, source
from analyzers.reading.xspace import read_xspace
from analyzers.timings import timed

if TYPE_CHECKING:
    import pandas as pd

    from analyzers.showing.frames import What

_SortKey = tuple[Pass | None, Kind | None]
Blocks = tuple[NDArray[np.float64], ...]
"""Samples by block: one array per profiling session, one value per step."""


@dataclass(frozen=True, slots=True)
class SortRow:
    """Sorts of one kind in one pass."""

    pass_: Pass
    kind: Kind
    executed: tuple[int, int]
    """Fewest and most executions per step over all devices and steps; equal in a whole trace."""
    compiled: int | None
    """Executions per step that the compiled module promises, None without its HLO."""
    self_ps: Blocks
    """Self time per step, mean over devices."""


@dataclass(frozen=True)
class Trace:
    """One side of a comparison: what one variant, or one trace, did in each of its steps."""

    name: str
    path: str
    sessions: tuple[tuple[FileFacts, ...], ...]
    """Profiling sessions (the rounds of a run), each with one entry per host."""
    module: Module | None
    """The compiled module whose runs are the steps."""
    variant: CompiledVariant | None
    """What the run says of this variant; None for a trace that is no run."""
    manifest: Manifest | None = None
    """What the run says of how it was captured; None for a trace that is no run."""
    notes: tuple[Caveat, ...] = ()
    """What came up when its files were put together: files that could not be read, hosts that lack steps."""

    # Shorthands of the public API. Frames are made in a room that imports this one, so they import it late.
    @property
    def executions(self) -> pd.DataFrame:
        """Executions and time of every op by session, host, device and step, see `frames.executions`."""
        return self.to_frame("executions")

    @property
    def routing(self) -> pd.DataFrame:
        """The sort table: sorts per step by pass and kind, executed and compiled, see `frames.sorts`."""
        return self.to_frame("sorts")

    def to_frame(self, what: What = "times") -> pd.DataFrame:
        """Return `times` (by place), `executions` (by op), `steps`, `sorts` or `buffers` as rows, see `frames`.

        Raises ValueError for another name.
        """
        from analyzers.showing.frames import frame_of

        return frame_of(self, what)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of all devices; with several hosts, prefixed by the host."""
        return device_names(self.sessions[0])

    @property
    def num_steps(self) -> int:
        """Steps in all sessions together."""
        return sum(max(file.num_steps for file in session) for session in self.sessions)

    @cached_property
    def caveats(self) -> tuple[Caveat, ...]:
        """What makes the figures less than sure, each once."""
        return tuple(dict.fromkeys((*(c for session in self.sessions for c in file_caveats(session)), *self.notes)))

    @property
    def incomplete(self) -> bool:
        """Whether files of it could not be read."""
        return any(caveat.name == "unreadable-file" for caveat in self.notes)

    @property
    def at_least(self) -> bool:
        """Whether counts and totals are lower bounds."""
        return any(caveat.lower_bound for caveat in self.caveats)

    @cached_property
    def compiled(self) -> CompiledSorts | None:
        """Sorts per step according to the compiled module; None without its HLO."""
        return compiled_sorts(self.module) if self.module else None

    @cached_property
    def buffers(self) -> Buffers | None:
        """Buffers of the compiled module; None where no buffer assignment is at hand."""
        return buffers(self.module) if self.module else None

    @property
    def peak_bytes(self) -> int | None:
        """Memory that one device must have to run the module: all allocations, see `Buffers.allocated_bytes`.

        Without a buffer assignment it is the compiler's own figure; None where there is none either.
        """
        if self.buffers is not None:
            return self.buffers.allocated_bytes
        return (self.variant.memory.peak_bytes or None) if self.variant and self.variant.memory else None

    @cached_property
    def peak(self) -> Peak | None:
        """The moment at which most temporary memory is alive; None where no heap simulation is at hand."""
        return live_peak(self.module) if self.module else None

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layer indices that were told."""
        return self._indices("layer")

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Chunk indices that were told."""
        return self._indices("chunk")

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """Passes in which ops ran, in order."""
        found = {int(p) for file in self._files() for p in unique(file.by_place.groups["pass"])}
        return tuple(PASSES[k] for k in sorted(found))

    def self_ps(self, *, pass_: Pass | None = None, layer: int | None = None, chunk: int | None = None) -> Blocks:
        """Self time per step in ps, mean over devices, of the ops in the given pass, layer and chunk (None: all)."""

        def chosen(file: FileFacts) -> NDArray[np.bool_]:
            keys = file.by_place.groups
            keep = np.ones(len(keys["pass"]), bool)
            for name, wanted in (("layer", layer), ("chunk", chunk)):
                if wanted is not None:
                    keep &= keys[name] == wanted
            if pass_ is not None:
                keep &= keys["pass"] == PASSES.index(pass_)
            return keep

        return self._samples(self._places_by_step, chosen)

    def self_ps_of_ops(self, wanted: Callable[[OpFacts], bool]) -> Blocks:
        """Self time per step in ps, mean over devices, of the ops that `wanted` picks."""

        def chosen(file: FileFacts) -> NDArray[np.bool_]:
            return np.array([wanted(file.ops[k]) for k in file.by_op.groups["op"].tolist()], bool)

        return self._samples(self._ops_by_step, chosen)

    @cached_property
    def step_wall_ps(self) -> Blocks:
        """Wall time of each step on its slowest device, in ps."""
        blocks = []
        for session in self.sessions:
            steps = min(file.num_steps for file in session)
            walls = np.concatenate([file.step_wall_ps[:, :steps] for file in session])
            blocks.append(walls.max(axis=0).astype(np.float64))
        return tuple(blocks)

    @cached_property
    def sorts(self) -> tuple[SortRow, ...]:
        """Sorts by pass and kind: executed, compiled, time."""
        keys = {(op.pass_, op.kind) for file in self._files() for op in file.ops if op.kind.is_sort}
        keys &= self._executed_keys() | (set(self.compiled.by_pass_and_kind) if self.compiled else set())
        keys |= set(self.compiled.by_pass_and_kind) if self.compiled else set()
        order = sorted(keys, key=lambda key: (PASSES.index(key[0]), list(Kind).index(key[1])))
        return tuple(self._sort_row(pass_, kind) for pass_, kind in order)

    def sort_executions(self, pass_: Pass | None = None, kind: Kind | None = None) -> tuple[int, int]:
        """Fewest and most sorts per step over all devices and steps, of the given pass and kind (None: all)."""
        return self._sort_executions.get((pass_, kind), (0, 0))

    @cached_property
    def _sort_executions(self) -> dict[_SortKey, tuple[int, int]]:
        files = [file for file in self._files() if (file.step_wall_ps >= 0).any()]
        found = sorted(
            {(op.pass_, op.kind) for file in files for op in file.ops if op.kind.is_sort},
            key=lambda key: (key[0].value, key[1].value),
        )
        wanted: dict[_SortKey, list[int]] = {}
        for number, (pass_, kind) in enumerate(found):
            asked: tuple[_SortKey, ...] = ((pass_, kind), (pass_, None), (None, kind), (None, None))
            for key in asked:
                wanted.setdefault(key, []).append(number)
        extremes: dict[_SortKey, tuple[int, int]] = {}
        for file in files:
            per_step = _sorts_per_step(file, {key: number for number, key in enumerate(found)})
            for key, numbers in wanted.items():
                executed = per_step[numbers].sum(axis=0)
                least, most = int(executed.min()), int(executed.max())
                known = extremes.get(key, (least, most))
                extremes[key] = min(known[0], least), max(known[1], most)
        return extremes

    def _sort_row(self, pass_: Pass, kind: Kind) -> SortRow:
        compiled = self.compiled
        return SortRow(
            pass_=pass_,
            kind=kind,
            executed=self.sort_executions(pass_, kind),
            compiled=compiled.by_pass_and_kind.get((pass_, kind), 0) if compiled else None,
            self_ps=self.self_ps_of_ops(lambda op: op.kind is kind and op.pass_ is pass_),
        )

    def _executed_keys(self) -> set[tuple[Pass, Kind]]:
        return {
            (file.ops[k].pass_, file.ops[k].kind) for file in self._files() for k in file.by_op.groups["op"].tolist()
        }

    def _files(self) -> list[FileFacts]:
        return [file for session in self.sessions for file in session]

    def _indices(self, key: str) -> tuple[int, ...]:
        found = {int(k) for file in self._files() for k in unique(file.by_place.groups[key])}
        return tuple(sorted(found - {-1}))

    def _samples(self, by_step: tuple[_ByStep, ...], chosen: Callable[[FileFacts], NDArray[np.bool_]]) -> Blocks:
        blocks = []
        for session, merged in zip(self.sessions, by_step, strict=True):
            total = sum(table[chosen(file)].sum(axis=0) for file, table in merged)
            blocks.append(total / max(num_devices(session), 1))
        return tuple(blocks)

    @cached_property
    def _ops_by_step(self) -> tuple[_ByStep, ...]:
        return tuple(_by_step(session, lambda file: file.by_op) for session in self.sessions)

    @cached_property
    def _places_by_step(self) -> tuple[_ByStep, ...]:
        return tuple(_by_step(session, lambda file: file.by_place) for session in self.sessions)


def _sorts_per_step(file: FileFacts, numbers: Mapping[tuple[Pass, Kind], int]) -> NDArray[np.int64]:
    """Return the sorts that a file executed, shape [passes and kinds by number, devices and steps that ran]."""
    table, rows, num_cells = file.by_op, file.sort_rows, file.step_wall_ps.size
    number = np.array([numbers.get((op.pass_, op.kind), 0) for op in file.ops], np.int64)
    sorts = np.array([op.sorts if op.kind.is_sort else 0 for op in file.ops], np.int64)
    op = table.keys["op"][rows]
    cell = number[op] * num_cells + table.keys["device"][rows] * file.num_steps + table.keys["step"][rows]
    executed = sums(cell, table.executions[rows] * sorts[op], len(numbers) * num_cells)
    return executed.reshape(len(numbers), num_cells)[:, (file.step_wall_ps >= 0).ravel()]


_ByStep = tuple[tuple[FileFacts, NDArray[np.int64]], ...]
"""Self time of all devices of a session by group and step: a file for each set of groups, and what all files of
that set add up to, shape [groups, steps]."""


def _by_step(session: Sequence[FileFacts], table_of: Callable[[FileFacts], Totals]) -> _ByStep:
    """Add up the files of a session; those whose groups are the same (hosts of one program) become one table."""
    steps = min(file.num_steps for file in session)
    merged: dict[tuple[int, tuple[bytes, ...]], tuple[FileFacts, NDArray[np.int64]]] = {}
    for file in session:
        table = table_of(file)
        # Equal ops are one tuple, see `Keeper`; where they are not, nothing is lost but a little time.
        key = id(file.ops), tuple(column.tobytes() for column in table.groups.values())
        own = table.self_ps_by_step()[:, :steps]
        known = merged.get(key)
        merged[key] = (file, own) if known is None else (known[0], known[1] + own)
    return tuple(merged.values())


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to read a trace: which session and module, what layers and chunks are called, whether to read a torso.

    `workers` says who reads the files where there are several, `progress` is told how many of how many are read.
    """

    session: str | None = None
    module: str | None = None
    patterns: ScopePatterns = DEFAULT_PATTERNS
    partial: bool = False
    workers: Workers = THIS_PROCESS
    progress: Callable[[int, int], None] | None = None


def load(path: str | os.PathLike[str], *, variant: str | None = None, options: LoadOptions | None = None) -> Trace:
    """Open a trace file, a profile or log directory, or one variant of a run.

    Files that cannot be read are left out, and the trace says so, unless that leaves none.

    Raises UserError where there is nothing to read, or a run has several variants and none is named.
    """
    options = options or LoadOptions()
    where = os.fspath(path)
    if "://" not in where and is_run(Path(where)):
        run = load_run(Path(where))
        names = [v.name for v in run.manifest.variants]
        if variant is None and len(names) > 1:
            raise UserError(f"{where} is a run with the variants {', '.join(names)}: name one of them.")
        return load_variants(run, [variant or names[0]], options)[0]
    if variant is not None:
        raise UserError(f"{where} is a trace, not a run: it has no variants to choose from.")
    files = [_File(found, options.module) for found in find_sources(where, options.session).files]
    sessions, notes = _sessions(where, [list(_read(files, {}, options))])
    return Trace(
        name=Path(where.rstrip("/")).name.removesuffix(".gz").removesuffix(".xplane.pb"),
        path=where,
        sessions=sessions,
        module=next((file.module for file in sessions[0] if file.module), None),
        variant=None,
        notes=notes,
    )


def load_variants(run: Run, names: Sequence[str], options: LoadOptions | None = None) -> tuple[Trace, ...]:
    """Open several variants of a run, all their rounds side by side.

    Raises UserError for a name the run does not have, and where no file of a variant can be read.
    """
    options = options or LoadOptions()
    variants = [run.variant(name) for name in names]
    modules = {variant.name: Module((run.path / variant.hlo_proto).read_bytes()) for variant in variants}
    files = [
        _File(source(os.fspath(run.path / file.path)), options.module or variant.module, variant.name, variant.module)
        for variant in variants
        for session in run.sessions_of(variant.name)
        for file in session.xplane_files
    ]
    found = _read(files, modules, options)
    traces = []
    for variant in variants:
        read = [list(islice(found, len(session.xplane_files))) for session in run.sessions_of(variant.name)]
        sessions, notes = _sessions(f"{run.path}, {variant.name}", read)
        module = modules[variant.name]
        traces.append(Trace(variant.name, str(run.path), sessions, module, variant, run.manifest, notes))
    return tuple(traces)


@dataclass(frozen=True, slots=True)
class _File:
    """One file to read, which module's runs are its steps, and which module its run has stored."""

    source: Source
    steps_of: str | None
    variant: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class _Reduction:
    """What is made of each file: bytes to facts. It travels to worker processes, once to each."""

    modules: Mapping[str, Module]
    """Compiled modules that a run stored itself, by variant."""
    patterns: ScopePatterns
    partial: bool

    def __call__(self, file: _File) -> FileFacts:
        own = {file.module: self.modules[file.variant]} if file.variant else None
        with timed("reading"):
            columns = read_xspace(file.source, partial=self.partial)
        with timed("counting"):
            facts = file_facts(columns, own, self.patterns, file.steps_of)
        # Who asked has the run's own module already.
        return replace(facts, module=None) if own else facts


def _read(
    files: Sequence[_File], modules: Mapping[str, Module], options: LoadOptions
) -> Iterator[FileFacts | Unreadable]:
    """Yield the facts of each file, in order."""
    reduction = _Reduction(modules, options.patterns, options.partial)
    paths = [file.source.path for file in files]
    keeper = Keeper()
    for number, found in enumerate(map_files(reduction, files, options.workers, paths), start=1):
        if options.progress is not None:
            options.progress(number, len(files))
        yield found if isinstance(found, Unreadable) else keeper.keep(found)


def _sessions(
    name: str, read: Sequence[Sequence[FileFacts | Unreadable]]
) -> tuple[tuple[tuple[FileFacts, ...], ...], tuple[Caveat, ...]]:
    """Return the sessions of which anything could be read, and what is to be said about those and the others."""
    reasons = [file.reason for session in read for file in session if isinstance(file, Unreadable)]
    num_files = sum(map(len, read))
    if len(reasons) == num_files:
        if len(set(reasons)) == 1:
            raise UserError(reasons[0])
        raise UserError(f"None of the {num_files} files of {name} can be read. The first: {reasons[0]}")
    notes = list(unreadable(reasons, num_files))
    sessions = []
    for session in read:
        files = [file for file in session if not isinstance(file, Unreadable)]
        if not files:
            continue
        kept, caveats = aligned(files)
        sessions.append(kept)
        module = next((file.module for file in files if file.module), None)
        expected = module.num_devices if module else None
        notes += (*caveats, *missing_devices(kept, expected))
    return tuple(sessions), tuple(dict.fromkeys(notes))

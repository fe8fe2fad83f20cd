"""One trace file, reduced to small tables that can be pickled, merged with those of other files, and compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.counting.arrays import counts, side_by_side, sums, take
from analyzers.counting.buffers import MemoryTotals, memory_totals
from analyzers.counting.executions import Executions, executions
from analyzers.counting.hlo import Module
from analyzers.counting.kinds import Kind, kind, kind_by_name, sorts_in
from analyzers.counting.scopes import DEFAULT_PATTERNS, Pass, ScopePatterns
from analyzers.counting.steps import Steps, find_steps
from analyzers.counting.totals import Totals, totals
from analyzers.errors import UserError
from analyzers.reading.columns import XSpaceColumns

_COPY = re.compile(r"(?i)(__amd_rocclr_|mem)?(cpy|copy|set|fill)")
_MANY_UNNAMED = 0.25
"""Single kernels lose their name in whole traces, too (seen on MI300X); a command buffer hides most of a step."""


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What one op is, without its executions."""

    name: str
    kind: Kind
    pass_: Pass
    opcode: str
    category: str
    scope: str
    shape: str
    expected: int
    """Executions per step according to the compiled module, -1 where it cannot tell."""
    sorts: int
    """Sorts that one execution performs; more than one only in a fusion of several."""
    sparse_core: bool
    launched_by: tuple[str, ...]
    """Names of the TensorCore ops that hand this work to a SparseCore; empty for TensorCore ops."""


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """One module that ran, and its time on all devices of the file."""

    name: str
    program_id: int | None
    runs: int
    self_ps: int


@dataclass(frozen=True)
class FileFacts:
    """One trace file in small tables; `op` columns index `ops`, `device` columns index `devices`."""

    path: str
    hostname: str
    device_types: tuple[str, ...]
    """What the trace says the devices are, e.g. `TPU v6 Lite`; empty where it says nothing."""
    devices: tuple[str, ...]
    module_name: str
    """Name of the module whose runs are the steps."""
    module: Module | None
    """That module; None where its HLO is not at hand."""
    memory: MemoryTotals | None
    """What that module takes on each device of this file; None where no buffer assignment is at hand."""
    step_labels: tuple[int, ...]
    step_source: str
    ops: tuple[OpFacts, ...]
    by_op: Totals
    """Keys: device, step, op."""
    sort_rows: NDArray[np.intp]
    """Rows of it that are of sorts."""
    by_place: Totals
    """Keys: device, step, pass, layer, chunk; without SparseCore work, whose time a TensorCore waits for."""
    sorts_by_place: Totals
    """Keys: device, step, op, layer, chunk; ops that sort only."""
    step_wall_ps: NDArray[np.int64]
    """Shape [devices, steps]: time of each module run, -1 where a device has no such run."""
    programs: tuple[ProgramFacts, ...]
    outside_ps: int
    """Time of device work that belongs to no compiled module (copies, memsets)."""
    caveats: tuple[Caveat, ...]

    @property
    def num_steps(self) -> int:
        """Return the number of steps."""
        return len(self.step_labels)


def file_facts(
    columns: XSpaceColumns,
    own_modules: Mapping[str, Module] | None = None,
    patterns: ScopePatterns = DEFAULT_PATTERNS,
    module: str | None = None,
) -> FileFacts:
    """Reduce one file.

    Args:
        columns: The file.
        own_modules: Compiled modules that a run stored itself, by name; they win over the trace's.
        patterns: What layers and chunks are called.
        module: Regular expression for the name of the module whose runs are the steps; by default the one
            that took most time.

    Raises:
        UserError: where the file has no device ops, or `module` matches none or several.

    """
    done = executions(columns, own_modules, patterns)
    if len(done.events.op) == 0:
        raise UserError(
            f"{columns.path} holds no device ops before byte {columns.cut_at_byte:,}, where it is cut "
            f"({_what_there_is(columns)}): copy it again, whole."
            if columns.cut_at_byte is not None
            else f"{columns.path} holds no device ops ({_what_there_is(columns)}): capture it again with the steps to "
            "be measured inside the profiling session."
        )
    steps = find_steps(columns, done, module)
    launching = done.launching_ops
    ops = tuple(_op_facts(done, k, launching.get(k, ())) for k in range(len(done.ops)))
    # A TensorCore waits for what it offloads: adding the SparseCores' time would count it twice.
    on_tensor_core = np.array([not op.sparse_core for op in ops], bool)
    sorting = np.array([op.kind.is_sort for op in ops], bool)
    by_op, by_place, sorts_by_place = side_by_side(
        len(done.events.op),
        lambda: totals(done, steps, ("op",)),
        lambda: totals(done, steps, ("pass", "layer", "chunk"), only=on_tensor_core),
        lambda: totals(done, steps, ("op", "layer", "chunk"), only=sorting),
    )
    # Every table of ops asks for these; made here, they are made by the workers that read many files.
    _ = by_op.executions_of_groups, by_op.self_ps_of_groups
    steps_of = done.programs[steps.program].module if steps.program >= 0 else None
    return FileFacts(
        path=columns.path,
        hostname=columns.hostname,
        device_types=_device_types(columns),
        devices=done.events.devices,
        module_name=done.programs[steps.program].name if steps.program >= 0 else "",
        module=steps_of,
        memory=memory_totals(steps_of) if steps_of else None,
        step_labels=steps.labels,
        step_source=steps.source,
        ops=ops,
        by_op=by_op,
        sort_rows=sort_rows(ops, by_op),
        by_place=by_place,
        sorts_by_place=sorts_by_place,
        step_wall_ps=_step_wall_ps(done, steps),
        programs=_program_facts(done),
        outside_ps=_outside_ps(done),
        caveats=(*_file_caveats(columns, done), *done.caveats, *steps.caveats),
    )


def sort_rows(ops: Sequence[OpFacts], by_op: Totals) -> NDArray[np.intp]:
    """Return the rows of a table by device, step and op that are of sorts."""
    return np.flatnonzero(take(np.array([op.kind.is_sort for op in ops], np.int32), by_op.keys["op"]))


def _op_facts(done: Executions, index: int, launching: Sequence[int]) -> OpFacts:
    op = done.ops[index]
    module = done.programs[op.program].module if op.program >= 0 else None
    known = module is not None and op.instruction is not None
    return OpFacts(
        name=op.name,
        kind=kind(module, op.instruction) if module and op.instruction else kind_by_name(op.opcode, op.scope),
        pass_=done.attributions[index].pass_,
        opcode=op.opcode,
        category=op.category,
        scope=op.scope,
        shape=op.shape,
        expected=int(done.expected[index]),
        sorts=max(sorts_in(module, op.instruction), 1) if known and module and op.instruction else 1,
        sparse_core=op.sparse_core,
        launched_by=tuple(done.ops[k].name for k in launching),
    )


def _step_wall_ps(done: Executions, steps: Steps) -> NDArray[np.int64]:
    result = np.full((len(done.events.devices), len(steps.labels)), -1, np.int64)
    in_step = steps.of_run >= 0
    result[done.runs.device[in_step], steps.of_run[in_step]] = done.runs.duration_ps[in_step]
    return result


def _program_facts(done: Executions) -> tuple[ProgramFacts, ...]:
    program_of_op = np.array([-1 if op.sparse_core else op.program for op in done.ops], np.int32)
    self_ps = sums(program_of_op, done.self_ps_of_ops, len(done.programs))
    runs = counts(done.runs.program, len(done.programs))
    # A SparseCore's modules are parts of those that ran on the TensorCore: named, but with nothing of their own.
    return tuple(
        ProgramFacts(program.name, program.program_id, int(runs[k]), int(self_ps[k]))
        for k, program in enumerate(done.programs)
        if runs[k] or self_ps[k]
    )


def _outside_ps(done: Executions) -> int:
    outside = np.array([op.program < 0 and not op.sparse_core for op in done.ops], bool)
    return int(done.self_ps_of_ops[outside].sum())


def _device_types(columns: XSpaceColumns) -> tuple[str, ...]:
    names = (plane.stats.get("device_type_string") for plane in columns.planes)
    return tuple(dict.fromkeys(str(name) for name in names if name))


def _what_there_is(columns: XSpaceColumns) -> str:
    names = [plane.name for plane in columns.planes]
    return "its planes are " + ", ".join(names[:6]) if names else "it has no planes"


def _unnamed_share(done: Executions) -> float:
    """Return the part of the time of GPU kernels whose kernels name no HLO op; copies never do."""
    gpus = np.array([name.startswith("GPU") for name in done.events.devices], bool)
    if not gpus.any():
        return 0.0
    copies = np.array([op.program < 0 and _COPY.match(op.name) is not None for op in done.ops], bool)
    unnamed = np.array([op.program < 0 for op in done.ops], bool)
    kernels = gpus[done.events.device] & ~copies[done.events.op]
    total = int(done.self_ps[kernels].sum())
    return int(done.self_ps[kernels & unnamed[done.events.op]].sum()) / total if total else 0.0


def _file_caveats(columns: XSpaceColumns, done: Executions) -> list[Caveat]:
    caveats = []
    if columns.cut_at_byte is not None:
        caveats.append(
            Caveat(
                "truncated",
                f"{columns.path} stops making sense at byte {columns.cut_at_byte:,}: every count and total is at least "
                "what is shown.",
                lower_bound=True,
            )
        )
    if columns.reader == "chrome":
        caveats.append(
            Caveat(
                "chrome-format",
                "The trace is in Chrome's format, which leaves out asynchronous ops, compiled modules and program ids: "
                "an op is taken to belong to the module in whose time it ran. Give the .xplane.pb if there is one.",
            )
        )
    if columns.capped_at is not None:
        caveats.append(
            Caveat(
                "capped",
                f"The trace holds {columns.capped_at:,} events, the most that a writer of its format keeps: every "
                "count and total is at least what is shown.",
                lower_bound=True,
            )
        )
    dropped = [plane.name for plane in columns.planes if plane.stats.get("dropped_traces")]
    if dropped:
        caveats.append(
            Caveat(
                "dropped-traces",
                f"The profiler dropped traces of {', '.join(dropped)}: every count and total is at least what is "
                "shown.",
                lower_bound=True,
            )
        )
    if done.events.negative:
        caveats.append(
            Caveat(
                "negative-duration",
                f"{done.events.negative:,} op events of {columns.path} have a negative duration: they are counted, and "
                "their time is taken for 0.",
                lower_bound=True,
            )
        )
    if (share := _unnamed_share(done)) > _MANY_UNNAMED:
        caveats.append(
            Caveat(
                "command-buffers",
                f"{share:.0%} of the time of GPU kernels names no HLO op: the program ran from command buffers (CUDA "
                "graphs). Turn them off with XLA_FLAGS=--xla_gpu_enable_command_buffer= and capture again.",
                lower_bound=True,
            )
        )
    caveats += [Caveat("profiler-error", f"The profiler wrote: {message}") for message in columns.errors]
    return caveats

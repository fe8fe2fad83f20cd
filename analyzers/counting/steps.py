"""Steps: which module runs make up the training or serving steps of a trace.

The step is the sample of every statistic, so it must be told honestly: by the annotations the program wrote
(`jax.profiler.StepTraceAnnotation`) where there is one for each run of the main module, else by the runs of
the main module themselves. Annotations only give the numbers: dispatch is asynchronous, so a step can run
after its annotation has ended, and its time is taken from the module run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.counting.arrays import sums, unique
from analyzers.counting.executions import Executions
from analyzers.errors import UserError
from analyzers.reading.columns import ABSENT, LineKind, XSpaceColumns


@dataclass(frozen=True)
class Steps:
    """The steps of one file, all of them runs of one program."""

    program: int
    labels: tuple[int, ...]
    """Number of each step, as annotated or counted from 0."""
    of_run: NDArray[np.int32]
    """Step (index into `labels`) of each module run, -1 for runs of other programs."""
    source: str
    """`step annotations` or `module executions`."""
    caveats: tuple[Caveat, ...] = ()


def find_steps(columns: XSpaceColumns, executions: Executions, module: str | None = None) -> Steps:
    """Return the steps: the runs of the program with most self time, or of the one whose name matches `module`.

    `module` is a regular expression for the whole module name. Raises UserError if it matches none or several.
    """
    program = _main_program(executions) if module is None else _matching(executions, module)
    runs = executions.runs
    of_run = np.where(runs.program == program, runs.number, -1).astype(np.int32)
    num_steps = int(of_run.max(initial=-1)) + 1
    annotated = _annotated(columns)
    if num_steps and len(annotated) == num_steps:
        return Steps(program, annotated, of_run, "step annotations")
    # A rare module need not run in every step; the main one must.
    lost = 0 < num_steps < len(annotated) and (module is None or program == _main_program(executions))
    caveats = (_lost_steps(executions.programs[program].name, num_steps, len(annotated)),) if lost else ()
    return Steps(program, tuple(range(num_steps)), of_run, "module executions", caveats)


def _lost_steps(name: str, ran: int, annotated: int) -> Caveat:
    return Caveat(
        "missing-runs",
        f"The program annotated {annotated} steps, but the trace shows {ran} executions of {name}: it lost the others.",
        lower_bound=True,
    )


def _annotated(columns: XSpaceColumns) -> tuple[int, ...]:
    numbers = columns.events.ints.get("step_num")
    if numbers is None:
        return ()
    rows = np.concatenate(
        [np.arange(line.first, line.last) for line in columns.lines if line.kind is LineKind.HOST]
        or [np.zeros(0, np.intp)]
    )
    rows = rows[numbers[rows] != ABSENT]
    order = np.argsort(columns.events.start_ps[rows], kind="stable")
    return tuple(dict.fromkeys(int(n) for n in numbers[rows[order]]))


def _self_ps_of_programs(executions: Executions) -> NDArray[np.int64]:
    program_of_op = np.array([op.program for op in executions.ops], np.int32)
    return sums(program_of_op, executions.self_ps_of_ops, len(executions.programs))


def _main_program(executions: Executions) -> int:
    totals = _self_ps_of_programs(executions)
    ran = unique(executions.runs.program)
    if len(ran) == 0:
        return -1
    return int(ran[np.argmax(totals[ran])])


def _matching(executions: Executions, module: str) -> int:
    names = [program.name for program in executions.programs]
    ran = set(executions.runs.program.tolist())
    matching = [k for k in ran if re.fullmatch(module, names[k])]
    if len(matching) == 1:
        return int(matching[0])
    known = ", ".join(sorted({names[k] for k in ran})) or "none"
    if not matching:
        raise UserError(f"No module that ran is called {module!r}; those that ran are: {known}.")
    # One function compiled more than once: the one with most time is the step, the others its warm-up.
    if len({names[k] for k in matching}) == 1:
        totals = _self_ps_of_programs(executions)
        return int(max(matching, key=lambda k: totals[k]))
    found = ", ".join(sorted(names[k] for k in matching))
    raise UserError(f"{module!r} matches several modules ({found}); give a name that matches one.")

"""The hosts of one profiling session, side by side: what to call them, which steps they share, what is missing.

Every host calls its first device by the same name, and hosts in containers may share a host name, too: a device
is known by its file and its plane (TRACE_FACTS trap 19).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analyzers.caveats import Caveat
from analyzers.counting.arrays import sums
from analyzers.counting.facts import FileFacts, OpFacts, ProgramFacts, sort_rows
from analyzers.counting.totals import Totals

_MOST_NAMES = 3


def host_names(session: Sequence[FileFacts]) -> tuple[str, ...]:
    """Return a name for each host: its host name, or the path of its file where that is missing or not unique."""
    names = [file.hostname for file in session]
    return tuple(
        file.path if not file.hostname or names.count(file.hostname) > 1 else file.hostname for file in session
    )


def device_names(session: Sequence[FileFacts]) -> tuple[str, ...]:
    """Return the names of all devices, in order; with several hosts, prefixed by the host."""
    if len(session) == 1:
        return session[0].devices
    return tuple(
        f"{host}:{device}" for host, file in zip(host_names(session), session, strict=True) for device in file.devices
    )


def self_ps_by_device(file: FileFacts) -> NDArray[np.int64]:
    """Return the self time of all ops, shape [devices, steps], in ps; SparseCore work is left out as elsewhere."""
    table = file.by_place
    cell = table.keys["device"].astype(np.int64) * file.num_steps + table.keys["step"]
    return sums(cell, table.self_ps, file.step_wall_ps.size).reshape(file.step_wall_ps.shape)


def ops_of(session: Sequence[FileFacts]) -> list[tuple[OpFacts, int, int]]:
    """Return each op that ran with its executions and its self time in ps, over all hosts, devices and steps.

    An op is the same on two hosts if all facts of it are the same; two alike ops of one host stay two.
    """
    found: dict[tuple[OpFacts, int], list[int]] = {}
    for file in session:
        table = file.by_op
        ran = table.groups["op"].tolist()
        alike: Counter[OpFacts] = Counter()
        for k, executions, self_ps in sorted(
            zip(ran, table.executions_of_groups.tolist(), table.self_ps_of_groups.tolist(), strict=True)
        ):
            op = file.ops[k]
            total = found.setdefault((op, alike[op]), [0, 0])
            alike[op] += 1
            total[0] += executions
            total[1] += self_ps
    return [(op, executions, self_ps) for (op, _), (executions, self_ps) in found.items() if executions]


def programs_of(session: Sequence[FileFacts]) -> tuple[ProgramFacts, ...]:
    """Return each module that ran, its runs and time added up over all hosts."""
    found: dict[tuple[str, int | None], ProgramFacts] = {}
    for program in (program for file in session for program in file.programs):
        key = program.name, program.program_id
        known = found.get(key)
        found[key] = (
            replace(known, runs=known.runs + program.runs, self_ps=known.self_ps + program.self_ps)
            if known
            else program
        )
    return tuple(found.values())


def num_devices(session: Sequence[FileFacts]) -> int:
    """Return the number of devices on which the module of the steps ran."""
    return sum(int(np.count_nonzero((file.step_wall_ps >= 0).any(axis=1))) for file in session)


def aligned(session: Sequence[FileFacts]) -> tuple[tuple[FileFacts, ...], tuple[Caveat, ...]]:
    """Return the files cut down to the steps that all hosts show, and a caveat where that took something away.

    Steps are matched by the number the program gave them, where every host shows those; else by their order.
    """
    shown = [set(file.step_labels) for file in session]
    common = set.intersection(*shown)
    if all(steps == common for steps in shown):
        return tuple(session), ()
    annotated = all(file.step_source == "step annotations" for file in session)
    if annotated and common:
        caveat = _missing_steps(session, f"the {len(common)} steps that all hosts show")
        return tuple(_with_steps(file, [label in common for label in file.step_labels]) for file in session), (caveat,)
    fewest = min(file.num_steps for file in session)
    caveat = _missing_steps(session, f"the first {fewest}")
    return tuple(_with_steps(file, [k < fewest for k in range(file.num_steps)]) for file in session), (caveat,)


def _missing_steps(session: Sequence[FileFacts], kept: str) -> Caveat:
    every = set().union(*(file.step_labels for file in session))
    short = [
        f"{host} shows {file.num_steps} of {len(every)}"
        for host, file in zip(host_names(session), session, strict=True)
        if len(file.step_labels) < len(every)
    ]
    return Caveat(
        "missing-runs",
        f"Hosts do not show the same steps: {_some(short)}. Their traces may have lost module executions; times are "
        f"of {kept}.",
    )


def missing_devices(session: Sequence[FileFacts], expected: int | None) -> tuple[Caveat, ...]:
    """Return a caveat if fewer devices ran the module of the steps than it was compiled for."""
    ran = num_devices(session)
    if expected is None or not 0 < ran < expected:
        return ()
    name = session[0].module_name
    return (
        Caveat(
            "missing-devices",
            f"{name} was compiled to run on {expected} devices, but the trace shows {ran} of them: files of other "
            "hosts may be missing. Figures per device are means over those that are here.",
        ),
    )


def unreadable(reasons: Sequence[str], num_files: int) -> tuple[Caveat, ...]:
    """Return a caveat that names the files that could not be read, and why; none if all could be."""
    if not reasons:
        return ()
    what = f"{len(reasons)} of {num_files} files could not be read and {'is' if len(reasons) == 1 else 'are'} left out"
    return (Caveat("unreadable-file", f"{what}: {' '.join(reasons)}", lower_bound=True),)


def file_caveats(session: Sequence[FileFacts]) -> list[Caveat]:
    """Return what each file says against itself; what not all hosts say is prefixed by the host that does."""
    shared = set.intersection(*(set(file.caveats) for file in session))
    return [
        caveat if caveat in shared else replace(caveat, message=f"{host}: {caveat.message}")
        for host, file in zip(host_names(session), session, strict=True)
        for caveat in file.caveats
    ]


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _with_steps(file: FileFacts, keep: Sequence[bool]) -> FileFacts:
    """Return the facts of the steps for which `keep` is true."""
    if all(keep):
        return file
    number = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
    by_op = _of_steps(file.by_op, number)
    return replace(
        file,
        step_labels=tuple(label for label, kept in zip(file.step_labels, keep, strict=True) if kept),
        by_op=by_op,
        sort_rows=sort_rows(file.ops, by_op),
        by_place=_of_steps(file.by_place, number),
        sorts_by_place=_of_steps(file.sorts_by_place, number),
        step_wall_ps=file.step_wall_ps[:, np.asarray(keep)],
    )


def _of_steps(table: Totals, number: NDArray[np.int32]) -> Totals:
    step = number[table.keys["step"]]
    kept = step >= 0
    keys: Mapping[str, NDArray[np.int32]] = {
        key: (step if key == "step" else column)[kept] for key, column in table.keys.items()
    }
    return Totals(
        keys=keys,
        executions=table.executions[kept],
        duration_ps=table.duration_ps[kept],
        self_ps=table.self_ps[kept],
        groups=table.groups,
        group=table.group[kept],
        num_steps=int(number.max(initial=-1)) + 1,
    )

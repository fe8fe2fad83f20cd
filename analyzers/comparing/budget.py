"""Budgets: limits in a TOML file, held against what a run, a trace or a compile result shows.

    [ring.cached.backward]
    sorts_per_layer = 3
    sorts = 6
    sorts_in_chunk_loops = 0
    sorts_by_pass = {backward = 0}
    peak_bytes = {max_ratio_to = "recompute", value = 1.0}
    saving_us_per_chunk_per_layer = {against = "recompute", min = 0, confident = true}
    removed_buffer = "top_k"

A table is named after workload, variant and mode, or `trace` for a trace that is no run, or `module` for a user's own
function. A plain number is a maximum; a table may give `min`, `max`, or `max_ratio_to` another variant with `value`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from analyzers.comparing.statistics import Saving, Verdict
from analyzers.errors import UserError


class Outcome(Enum):
    """What became of one limit; the value is the exit code it asks for."""

    KEPT = 0
    BROKEN = 1
    UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class Unknown:
    """A figure that cannot be had, and why."""

    reason: str


class Subject(Protocol):
    """What limits are held against: one variant of something that was measured or compiled."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def figure(self, name: str) -> float | Unknown:
        """A figure of `FIGURES`."""
        ...

    def sorts_by_pass(self, pass_: str) -> float | Unknown:
        """Sorts in one pass per step and device."""
        ...

    def has_buffer(self, name: str) -> bool | Unknown:
        """Whether the buffer `top_k` is there: copies of the tokens in the forward pass."""
        ...

    def saving(self, against: str) -> Saving | Unknown:
        """Saving in ps per chunk and layer against another variant, positive where this one takes less."""
        ...


FIGURES = {
    "sorts": "sorts per step and device",
    "sorts_per_layer": "sorts per layer",
    "sorts_in_chunk_loops": "sorts inside a chunk loop",
    "peak_bytes": "peak bytes",
    "temp_bytes": "temporary bytes",
}
_OTHER = ("sorts_by_pass", "saving_us_per_chunk_per_layer", "removed_buffer")
_PASSES = ("forward", "recompute", "backward")
_PS_PER_US = 1e6


@dataclass(frozen=True, slots=True)
class Limit:
    """One line of a budget: what is limited, and how; `detail` is a pass, a buffer or a variant."""

    section: tuple[str, ...]
    key: str
    detail: str
    minimum: float | None
    maximum: float | None
    ratio_to: str
    confident: bool


@dataclass(frozen=True, slots=True)
class Check:
    """One limit with what was found."""

    limit: Limit
    measured: str
    allowed: str
    outcome: Outcome
    reason: str
    value: float | None = None
    """What `measured` says, as a number; a ratio where the limit is one. None for buffers, and what cannot be told."""

    @property
    def name(self) -> str:
        """The limit as it stands in the file."""
        return ".".join((*self.limit.section, self.limit.key)) + (f".{self.limit.detail}" if self.limit.detail else "")


def read_budget(path: Path) -> tuple[Limit, ...]:
    """Return the limits of a budget file. Raises UserError for what cannot be read or is no limit."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; write one with `moe-prof check {path} RESULT --write`.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} cannot be read as TOML: {error}.") from error
    limits = tuple(_limits(path, content, ()))
    if not limits:
        raise UserError(f"{path} holds no limits; it would pass whatever is measured.")
    return limits


def _limits(path: Path, table: Mapping[str, Any], section: tuple[str, ...]) -> list[Limit]:
    found: list[Limit] = []
    for key, value in table.items():
        if key in FIGURES or key in _OTHER:
            if not section:
                raise UserError(f"{path}: {key} stands in no section; put it under one such as [ring.cached.backward].")
            found += _limit(path, section, key, value)
        elif isinstance(value, dict):
            found += _limits(path, value, (*section, key))
        else:
            known = ", ".join((*FIGURES, *_OTHER))
            raise UserError(f"{path}: [{'.'.join(section)}] limits nothing called {key!r}; choose among {known}.")
    return found


def _limit(path: Path, section: tuple[str, ...], key: str, value: Any) -> list[Limit]:
    where = f"{path}: [{'.'.join(section)}] {key}"
    if key == "removed_buffer":
        if value != "top_k":
            raise UserError(f'{where} is {value!r}; the only buffer with a name is "top_k".')
        return [Limit(section, key, value, None, None, "", False)]
    if key == "sorts_by_pass":
        if not isinstance(value, dict) or not value or set(value) - set(_PASSES):
            raise UserError(f"{where} must be a table of {', '.join(_PASSES)}, each a maximum.")
        return [Limit(section, key, p, None, _number(where, n), "", False) for p, n in value.items()]
    if not isinstance(value, dict):
        if key == "saving_us_per_chunk_per_layer":
            raise UserError(f'{where} must be a table such as {{against = "recompute", min = 0, confident = true}}.')
        return [Limit(section, key, "", None, _number(where, value), "", False)]
    return [_table_limit(where, section, key, value)]


def _table_limit(where: str, section: tuple[str, ...], key: str, value: dict[str, Any]) -> Limit:
    known = {"min", "max", "max_ratio_to", "value", "confident", "against"}
    if set(value) - known:
        raise UserError(f"{where} has no {sorted(set(value) - known)[0]!r}; it may have {', '.join(sorted(known))}.")
    minimum = _number(where, value["min"]) if "min" in value else None
    maximum = _number(where, value["max"]) if "max" in value else None
    ratio_to = str(value.get("max_ratio_to", ""))
    if ratio_to:
        maximum = _number(where, value.get("value"))
    if minimum is None and maximum is None:
        raise UserError(f"{where} gives neither min nor max, nor max_ratio_to with a value.")
    against = str(value.get("against", ""))
    return Limit(section, key, against, minimum, maximum, ratio_to, bool(value.get("confident", False)))


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{where} is {value!r}, not a number.")
    return float(value)


def hold(limits: Sequence[Limit], subjects: Mapping[tuple[str, ...], Subject]) -> tuple[Check, ...]:
    """Hold each limit against the subject that its section names."""
    return tuple(_hold(limit, subjects) for limit in limits)


def exit_code(checks: Sequence[Check]) -> int:
    """Return 1 if a limit is broken, else 2 if one cannot be told, else 0."""
    outcomes = {check.outcome for check in checks}
    return 1 if Outcome.BROKEN in outcomes else 2 if Outcome.UNKNOWN in outcomes else 0


def _hold(limit: Limit, subjects: Mapping[tuple[str, ...], Subject]) -> Check:
    subject = subjects.get(limit.section)
    if subject is None:
        have = ", ".join(f"[{'.'.join(section)}]" for section in subjects)
        return Check(
            limit, "n/a", _allowed(limit), Outcome.UNKNOWN, f"nothing measured is called that; there is {have}"
        )
    if limit.key == "removed_buffer":
        return _hold_buffer(limit, subject)
    if limit.key == "saving_us_per_chunk_per_layer":
        return _hold_saving(limit, subject, subjects)
    found = subject.sorts_by_pass(limit.detail) if limit.key == "sorts_by_pass" else subject.figure(limit.key)
    if isinstance(found, Unknown):
        return Check(limit, "n/a", _allowed(limit), Outcome.UNKNOWN, found.reason)
    if limit.ratio_to:
        return _hold_ratio(limit, found, subjects)
    return _verdict(limit, f"{found:,.10g}", found)


def _hold_ratio(limit: Limit, found: float, subjects: Mapping[tuple[str, ...], Subject]) -> Check:
    section = (limit.section[0], limit.ratio_to, *limit.section[2:])
    other = subjects.get(section)
    base = other.figure(limit.key) if other else Unknown(f"there is no [{'.'.join(section)}] to compare with")
    if isinstance(base, Unknown):
        return Check(limit, "n/a", _allowed(limit), Outcome.UNKNOWN, base.reason)
    if not base:
        return Check(limit, "n/a", _allowed(limit), Outcome.UNKNOWN, f"{limit.ratio_to} has 0 of it")
    return _verdict(limit, f"{found / base:.4f} ({found:,.10g} / {base:,.10g})", found / base)


def _hold_buffer(limit: Limit, subject: Subject) -> Check:
    found = subject.has_buffer(limit.detail)
    if isinstance(found, Unknown):
        return Check(limit, "n/a", _allowed(limit), Outcome.UNKNOWN, found.reason)
    return Check(limit, "there" if found else "none", _allowed(limit), Outcome.BROKEN if found else Outcome.KEPT, "")


def _hold_saving(limit: Limit, subject: Subject, subjects: Mapping[tuple[str, ...], Subject]) -> Check:
    others = [section[1] for section in subjects if len(section) > 1 and section != limit.section]
    against = limit.detail or (others[0] if len(others) == 1 else "")
    found = subject.saving(against) if against else Unknown('say which variant to compare with: against = "…"')
    if isinstance(found, Unknown):
        return Check(limit, "n/a", _allowed(limit), Outcome.UNKNOWN, found.reason)
    value, low = found.value / _PS_PER_US, found.low / _PS_PER_US
    interval = "no interval" if math.isnan(low) else f"{low:,.2f}, {found.high / _PS_PER_US:,.2f}"
    text = f"{value:,.2f} µs [{interval}]"
    if limit.confident:
        if found.verdict is Verdict.TOO_FEW:
            return Check(limit, text, _allowed(limit), Outcome.UNKNOWN, "too few steps for an interval")
        # Confident means: the whole interval keeps the limit.
        ends = ([low] if limit.minimum is not None else []) + (
            [found.high / _PS_PER_US] if limit.maximum is not None else []
        )
        kept = all(_within(limit, end) for end in ends)
        return Check(limit, text, _allowed(limit), Outcome.KEPT if kept else Outcome.BROKEN, "", value)
    return _verdict(limit, text, value)


def _verdict(limit: Limit, measured: str, value: float) -> Check:
    outcome = Outcome.KEPT if _within(limit, value) else Outcome.BROKEN
    return Check(limit, measured, _allowed(limit), outcome, "", value)


def _within(limit: Limit, value: float) -> bool:
    return (limit.minimum is None or value >= limit.minimum) and (limit.maximum is None or value <= limit.maximum)


def _allowed(limit: Limit) -> str:
    if limit.key == "removed_buffer":
        return "none"
    parts = [f"≥ {limit.minimum:,.10g}"] if limit.minimum is not None else []
    if limit.maximum is not None:
        parts.append(f"≤ {limit.maximum:,.10g}" + (f" × {limit.ratio_to}" if limit.ratio_to else ""))
    return " and ".join(parts) + (", confident" if limit.confident else "")


def first_budget(subjects: Mapping[tuple[str, ...], Subject]) -> str:
    """Return the text of a budget that holds exactly what is measured now; what is unknown is left out."""
    lines = ["# What was measured when this file was written. Lower a limit when a change lowers the figure."]
    for section, subject in subjects.items():
        lines += ["", f"[{'.'.join(_quoted(part) for part in section)}]"]
        for name in FIGURES:
            found = subject.figure(name)
            if not isinstance(found, Unknown):
                lines.append(f"{name} = {found:.10g}")
        by_pass = {p: subject.sorts_by_pass(p) for p in _PASSES}
        known = {p: n for p, n in by_pass.items() if not isinstance(n, Unknown)}
        if known:
            lines.append("sorts_by_pass = {" + ", ".join(f"{p} = {n:.10g}" for p, n in known.items()) + "}")
        if subject.has_buffer("top_k") is False:
            lines.append('removed_buffer = "top_k"')
    return "\n".join(lines) + "\n"


def _quoted(part: str) -> str:
    bare = part and all((c.isalnum() and c.isascii()) or c in "-_" for c in part)
    return part if bare else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'

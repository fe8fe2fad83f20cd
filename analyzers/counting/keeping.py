"""Keeps once what the files of a run have in common: the ops, the numbers of the steps, the compiled module."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from analyzers.counting.facts import FileFacts, OpFacts
from analyzers.counting.hlo import Module


@dataclass
class Keeper:
    """Takes in the facts of one file after the other and gives them back to be kept."""

    _ops: dict[tuple[OpFacts, ...], tuple[OpFacts, ...]] = field(default_factory=dict)
    _labels: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    _module: Module | None = None

    def keep(self, facts: FileFacts) -> FileFacts:
        """Return the same facts, sharing what files before them had.

        The module of the steps stays with the first file that has one: hosts of one session run one program.
        """
        module = facts.module if self._module is None else None
        self._module = self._module or module
        return replace(
            facts,
            ops=self._ops.setdefault(facts.ops, facts.ops),
            step_labels=self._labels.setdefault(facts.step_labels, facts.step_labels),
            module=module,
        )

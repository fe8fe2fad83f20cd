"""Keeps the facts of many files without keeping much of each in memory.

What is alike in all files of a run (the ops, the compiled module) is kept once. Tables beyond the first tens of
megabytes go to a temporary file without a name, which ends with the process, and are mapped from there: the
system drops such pages when memory is short and reads them again when they are asked for.
"""

from __future__ import annotations

import logging
import mmap
import pickle
from dataclasses import dataclass, field, replace
from typing import IO

from analyzers.counting.facts import FileFacts, OpFacts
from analyzers.counting.hlo import Module

_IN_MEMORY_BYTES = 64 << 20


@dataclass
class Keeper:
    """Takes in the facts of one file after the other and gives them back to be kept."""

    in_memory_bytes: int = _IN_MEMORY_BYTES
    """Tables of this size are kept in memory before any goes to the disk."""
    _ops: dict[tuple[OpFacts, ...], tuple[OpFacts, ...]] = field(default_factory=dict)
    _module: Module | None = None
    _used_bytes: int = 0
    _file: IO[bytes] | None = None

    def keep(self, facts: FileFacts) -> FileFacts:
        """Return the same facts, sharing what files before them had, with their tables where there is room.

        The module of the steps stays with the first file that has one: hosts of one session run one program.
        """
        first = self._module is None
        self._module = self._module or facts.module
        module = facts.module if first else None
        facts = replace(facts, ops=self._ops.setdefault(facts.ops, facts.ops), module=None)
        return replace(self._placed(facts), module=module)

    def _placed(self, facts: FileFacts) -> FileFacts:
        arrays: list[pickle.PickleBuffer] = []
        ops = facts.ops
        rest = pickle.dumps(replace(facts, ops=()), protocol=5, buffer_callback=arrays.append)
        size = sum(array.raw().nbytes for array in arrays)
        if self._used_bytes + size <= self.in_memory_bytes:
            self._used_bytes += size
            return facts
        try:
            mapped = self._on_disk(arrays)
        except OSError as error:  # No room for temporary files: memory may still suffice.
            logging.getLogger(__name__).warning("moe-prof: tables are kept in memory: %s.", error.strerror or error)
            return facts
        placed: FileFacts = pickle.loads(rest, buffers=mapped)
        return replace(placed, ops=ops)

    def _on_disk(self, arrays: list[pickle.PickleBuffer]) -> list[memoryview]:
        """Append the arrays to the file; return views of what was written, through a map of its own."""
        if self._file is None:
            import tempfile  # Its import costs as much as reading a small trace.

            self._file = tempfile.TemporaryFile(prefix="moe-prof-")  # noqa: SIM115 - lives as long as its maps
        page = mmap.ALLOCATIONGRANULARITY
        begin = -(-self._file.seek(0, 2) // page) * page
        self._file.seek(begin)
        sizes = [self._file.write(_aligned(array.raw())) for array in arrays]
        self._file.flush()
        whole = memoryview(mmap.mmap(self._file.fileno(), sum(sizes), access=mmap.ACCESS_READ, offset=begin))
        views, at = [], 0
        for array, size in zip(arrays, sizes, strict=True):
            views.append(whole[at : at + array.raw().nbytes])
            at += size
        return views


def _aligned(content: memoryview) -> bytes:
    return bytes(content) + bytes(-content.nbytes % 8)

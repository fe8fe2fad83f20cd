"""Large results outside memory: their arrays lie in files without names, mapped, read again when asked for.

The system drops mapped pages when memory is short. So what is kept of many files does not add up in memory, and
what a worker process hands back need not go through a pipe.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
from dataclasses import dataclass
from typing import Any

_WORTH_A_FILE_BYTES = 1 << 20
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Shelved:
    """A result whose arrays are in a file."""

    path: str
    sizes: tuple[int, ...]
    rest: bytes
    """The result without its arrays, pickled."""

    def take(self) -> Any:
        """Return the result, its arrays mapped and read-only; the file then has no name any more."""
        with open(self.path, "rb") as file:
            os.unlink(self.path)
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        views, at = [], 0
        for size in self.sizes:
            views.append(whole[at : at + size])
            at += _aligned(size)
        return pickle.loads(self.rest, buffers=views)


class Shelf:
    """Where results are put: in memory as long as there is room, then in files."""

    def __init__(self, room_bytes: int, folder: str | None = None) -> None:
        """`folder` is where the files are made; by default where the system keeps temporary ones."""
        self._room_bytes = room_bytes
        self._folder = folder

    def put(self, result: Any) -> Any:
        """Return the result itself, or a `Shelved` that stands for it."""
        arrays: list[pickle.PickleBuffer] = []
        rest = pickle.dumps(result, protocol=5, buffer_callback=arrays.append)
        contents = [array.raw() for array in arrays]
        size = sum(content.nbytes for content in contents)
        if size < _WORTH_A_FILE_BYTES or size <= self._room_bytes:
            self._room_bytes -= size
            return result
        try:
            return Shelved(self._write(contents), tuple(content.nbytes for content in contents), rest)
        except OSError as error:  # No room for temporary files: memory may still suffice.
            import logging

            logging.getLogger(__name__).warning("moe-prof: tables are kept in memory: %s.", error.strerror or error)
            self._room_bytes = sys.maxsize
            return result

    def _write(self, contents: list[memoryview]) -> str:
        import tempfile  # Its import costs as much as reading a small trace.

        handle, path = tempfile.mkstemp(prefix="moe-prof-", dir=self._folder)
        try:
            with os.fdopen(handle, "wb", buffering=0) as file:
                for content in contents:
                    _write_all(file.fileno(), content)
                    _write_all(file.fileno(), memoryview(bytes(_aligned(content.nbytes) - content.nbytes)))
        except OSError:
            os.unlink(path)
            raise
        return path


def _write_all(handle: int, content: memoryview) -> None:
    while content.nbytes:
        content = content[os.write(handle, content) :]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT

"""Writes files whole: a reader sees the old content or all of the new, never a part."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` through a temporary file in the same folder, on disk before it gets its name.

    Raises OSError; `path` is then as it was before and no temporary file is left.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, 0o666 & ~_umask())
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new entry in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_permissions(folder: Path) -> None:
    """Give a folder made by `tempfile.mkdtemp` (private to the user) the permissions of an ordinary one."""
    folder.chmod(0o777 & ~_umask())


def _umask() -> int:
    # The process's umask can only be read by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask

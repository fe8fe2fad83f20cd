"""From what a user names to the files of one profiling session.

A user names a trace file, a profile directory (`…/plugins/profile/<session>`) or a log directory, here or on
anything fsspec reads (`gs://`, `s3://`, …). The hosts of one run can sit in different timestamp directories
of one log directory: sessions that begin within a minute of each other and share no host are one run.
Nothing is ever written beside a trace.
"""

from __future__ import annotations

import gzip
import io
import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol

from analyzers.errors import UserError

SourceFormat = Literal["xspace", "chrome"]

XSPACE_SUFFIXES = (".xplane.pb", ".xplane.pb.gz", ".xplane.pb.zst")
CHROME_SUFFIXES = (".trace.json.gz", ".trace.json")
RIEGELI_SUFFIX = ".xplane.riegeli"

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_COMPRESSION_ERRORS = (OSError, EOFError, zlib.error)
_CHUNK_BYTES = 4 << 20
_PLANE_TAG = b"\x0a"
_SESSION_FORMAT = "%Y_%m_%d_%H_%M_%S"
_HOSTS_START_WITHIN = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Source:
    """One trace file that can be read."""

    path: str
    format: SourceFormat

    @property
    def hostname(self) -> str:
        """Return the host's name as the file name gives it, `HOST.xplane.pb`; empty when it gives none."""
        name = self.path.rsplit("/", 1)[-1]
        suffix = next((s for s in XSPACE_SUFFIXES + CHROME_SUFFIXES if name.endswith(s)), name)
        return name[: -len(suffix)]

    def read(self, *, partial: bool = False) -> memoryview:
        """Return the file's bytes, decompressed: a map of a plain local file, else a copy in memory.

        With `partial`, what can be decompressed of a compressed file that is not whole; it then ends in a
        byte that begins a plane, so that it can never be taken for a whole file.

        Raises:
            UserError: where the file is missing, unreadable, empty, or not what its compression says.

        """
        data = self._stored()
        compression = _compression(self.path, data)
        if compression is None:
            return data
        joined = bytearray()
        try:
            for chunk in _decompressed(data, compression):
                joined += chunk
        except _COMPRESSION_ERRORS as error:
            if not partial or not joined:
                raise _cannot_be_decompressed(self.path, error) from error
            joined += _PLANE_TAG
        return memoryview(joined)

    def chunks(self, *, partial: bool = False) -> Iterator[bytes | memoryview]:
        """Yield the file's bytes, decompressed, piece by piece.

        With `partial`, a compressed file that is not whole ends where it can no longer be decompressed.

        Raises:
            UserError: as `read`.

        """
        data = self._stored()
        compression = _compression(self.path, data)
        if compression is None:
            for first in range(0, len(data), _CHUNK_BYTES):
                yield data[first : first + _CHUNK_BYTES]
            return
        try:
            yield from _decompressed(data, compression)
        except _COMPRESSION_ERRORS as error:
            if not partial:
                raise _cannot_be_decompressed(self.path, error) from error

    def _stored(self) -> memoryview:
        data = _remote_bytes(self.path) if is_remote(self.path) else _local_bytes(self.path)
        if len(data) == 0:
            raise UserError(f"{self.path} is empty (0 bytes): the profiler wrote nothing; capture the trace again.")
        return data


@dataclass(frozen=True, slots=True)
class Sources:
    """The trace files of one session, one per host, ordered by path."""

    path: str
    """What the user named."""
    session: str
    """Name of the session's first directory; empty for a single file."""
    files: tuple[Source, ...]
    sessions: tuple[str, ...]
    """All sessions of the log directory, oldest first; what `session` chooses from."""


def is_remote(path: str) -> bool:
    """Tell a URL that fsspec opens from a local path."""
    return "://" in path


def find_sources(path: str | os.PathLike[str], session: str | None = None) -> Sources:
    """Return the files of the session that `path` names: a file, a profile directory or a log directory.

    Of a log directory the latest session is taken, or the one named `session`. Where an xplane file is in a
    directory its Chrome JSON files are left aside: they hold less.

    Raises:
        UserError: where there is no such path, session, or trace in it.

    """
    name = os.fspath(path)
    files = _remote_files(name) if is_remote(name) else _LocalFiles()
    name = name.rstrip("/") or "/"
    if files.is_file(name):
        return Sources(name, "", (source(name),), ())
    if not files.is_directory(name):
        raise UserError(f"{name} does not exist: name a trace file, a profile directory or a log directory.")
    here = _traces(files, name)
    if here:
        own = name.rsplit("/", 1)[-1]
        if session not in (None, own):
            raise UserError(f"{name} is itself the session {own!r}, not {session!r}: name the log directory above it.")
        return Sources(name, own, here, (own,))
    return _latest_session(files, name, session)


def source(path: str) -> Source:
    """Return the trace file `path` as a source, its format told by its name.

    Raises:
        UserError: for a format that is known but not read.

    """
    if path.endswith(RIEGELI_SUFFIX):
        raise UserError(f"{path} is in Riegeli format, which is not read: export the session as .xplane.pb.")
    return Source(path, "chrome" if path.endswith((".json", ".json.gz")) else "xspace")


class _Files(Protocol):
    """What finding traces needs of a file system."""

    def is_file(self, path: str) -> bool: ...
    def is_directory(self, path: str) -> bool: ...
    def names(self, path: str) -> list[str]: ...


class _LocalFiles:
    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            raise UserError(f"{path} cannot be listed: {error.strerror}.") from error


class _RemoteFiles:
    def __init__(self, url: str) -> None:
        import fsspec  # Not needed, and not paid for, with local files.

        self._url = url
        try:
            self._files = fsspec.filesystem(url.split("://", 1)[0])
        except (ImportError, ValueError) as error:
            raise UserError(f"{url} cannot be opened: {error}.") from error

    def is_file(self, path: str) -> bool:
        return bool(self._ask(self._files.isfile, path))

    def is_directory(self, path: str) -> bool:
        return bool(self._ask(self._files.isdir, path))

    def names(self, path: str) -> list[str]:
        found = self._ask(lambda p: self._files.ls(p, detail=False), path)
        assert isinstance(found, list)
        return sorted({str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in found})

    def _ask(self, question: object, path: str) -> object:
        assert callable(question)
        try:
            return question(path)
        except Exception as error:  # Every backend raises errors of its own kinds.
            raise UserError(f"{path} cannot be reached: {_first_line(error)}.") from error


def _remote_files(url: str) -> _Files:
    return _RemoteFiles(url)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _traces(files: _Files, directory: str) -> tuple[Source, ...]:
    """Return the trace files lying directly in `directory`; Chrome JSON only if nothing better is there."""
    names = files.names(directory)
    for suffixes in (XSPACE_SUFFIXES, CHROME_SUFFIXES):
        found = [name for name in names if name.endswith(suffixes)]
        if found:
            return tuple(source(f"{directory}/{name}") for name in found)
    riegeli = [name for name in names if name.endswith(RIEGELI_SUFFIX)]
    if riegeli:
        source(f"{directory}/{riegeli[0]}")
    return ()


def _latest_session(files: _Files, directory: str, session: str | None) -> Sources:
    """Return the session called `session`, or the latest, of the log directory `directory`."""
    traces: dict[str, tuple[Source, ...]] = {}
    for root in (f"{directory}/plugins/profile", f"{directory}/profile", directory):
        if not files.is_directory(root):
            continue
        for name in files.names(root):
            if files.is_directory(f"{root}/{name}"):
                found = _traces(files, f"{root}/{name}")
                if found:
                    traces[name] = found
        if traces:
            break
    if not traces:
        raise UserError(
            f"{directory} holds no trace: there is no *.xplane.pb or *.trace.json.gz in it or in its "
            "plugins/profile/<session> directories."
        )
    sessions = tuple(sorted(traces))
    runs = _runs(traces)
    if session is None:
        chosen = runs[-1]
    else:
        chosen = next((run for run in runs if session in run), ())
        if not chosen:
            raise UserError(f"{directory} holds no session {session!r}: it holds {', '.join(sessions)}.")
    return Sources(directory, chosen[0], tuple(file for name in chosen for file in traces[name]), sessions)


def _runs(traces: dict[str, tuple[Source, ...]]) -> list[tuple[str, ...]]:
    """Join sessions that are one run seen by different hosts; runs and their sessions oldest first."""
    runs: list[tuple[str, ...]] = []
    for name in sorted(traces):
        if runs:
            begun, began = _start_time(runs[-1][0]), _start_time(name)
            hosts = {file.hostname for earlier in runs[-1] for file in traces[earlier]}
            if (
                begun is not None
                and began is not None
                and began - begun <= _HOSTS_START_WITHIN
                and hosts.isdisjoint(file.hostname for file in traces[name])
            ):
                runs[-1] += (name,)
                continue
        runs.append((name,))
    return runs


def _start_time(session: str) -> datetime | None:
    """Return when a session began, as the profiler writes it into its directory's name."""
    try:
        return datetime.strptime(session, _SESSION_FORMAT)
    except ValueError:
        return None


def _local_bytes(path: str) -> memoryview:
    """Map a local file; one that cannot be mapped (a pipe) is read."""
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return memoryview(file.read())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: name a trace file or a directory with traces.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _remote_bytes(url: str) -> memoryview:
    import fsspec

    try:
        with fsspec.open(url, "rb") as file:
            return memoryview(file.read())
    except Exception as error:  # Every backend raises errors of its own kinds.
        raise UserError(f"{url} cannot be read: {_first_line(error)}.") from error


def _compression(path: str, data: memoryview) -> Literal["gzip", "zstd"] | None:
    """Tell how a file is compressed by its first bytes: they can begin neither an XSpace nor JSON.

    Raises:
        UserError: for a file that is called compressed and is not.

    """
    head = bytes(data[:4])
    if head.startswith(_GZIP_MAGIC):
        return "gzip"
    if head == _ZSTD_MAGIC:
        return "zstd"
    for suffix, kind in ((".gz", "gzip"), (".zst", "zstd")):
        if path.endswith(suffix):
            raise UserError(f"{path} is not {kind} data, as its name says: copy or compress it again.")
    return None


def _decompressed(data: memoryview, compression: Literal["gzip", "zstd"]) -> Iterator[bytes]:
    """Yield decompressed pieces; one of `_COMPRESSION_ERRORS` where the data is not whole."""
    if compression == "gzip":
        file = gzip.GzipFile(fileobj=io.BytesIO(data))
        while chunk := file.read1(_CHUNK_BYTES):  # read would lose what there is before an error.
            yield chunk
        return
    import zstandard  # Its import costs more than reading a small trace.

    rest = bytes(data)
    while rest:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            for first in range(0, len(rest), _CHUNK_BYTES):
                yield frame.decompress(rest[first : first + _CHUNK_BYTES])
                if frame.eof:
                    break
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        if not frame.eof:
            raise EOFError("it ends before its data does")
        rest = frame.unused_data + rest[first + _CHUNK_BYTES :]


def _cannot_be_decompressed(path: str, error: Exception) -> UserError:
    return UserError(f"{path} cannot be decompressed: {_first_line(error)}; copy or compress it again.")

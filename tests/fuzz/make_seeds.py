"""Writes the inputs that fuzzing begins from: `python -m tests.fuzz.make_seeds OUT [TRACE...]`.

Lines with every kind of event and stat there is, and the first kilobytes of the lines of real traces: those that
are named, and those of every run that is packed in a named `.tar.xz`.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from analyzers.reading.protos import xplane_pb2

MOST_BYTES = 2000


def lines() -> list[xplane_pb2.XLine]:
    """Return small lines that between them use every field the walker reads."""
    both_clocks = xplane_pb2.XLine(id=3, name=b"XLA Ops", timestamp_ns=17)
    for number in range(4):
        event = both_clocks.events.add(metadata_id=number + 1, offset_ps=10_000 * number, duration_ps=30_000)
        event.stats.add(metadata_id=14, int64_value=5 * 10**12 + number)
        event.stats.add(metadata_id=15, int64_value=2**40)
    every_stat = xplane_pb2.XLine(display_name=b"Stream #1", timestamp_ns=-1)
    for stat in range(1, 17):
        event = every_stat.events.add(metadata_id=stat, offset_ps=-stat, duration_ps=-1)
        event.stats.add(metadata_id=stat, double_value=1.5)
        event.stats.add(metadata_id=stat, uint64_value=2**64 - 1)
        event.stats.add(metadata_id=stat, int64_value=-(2**63))
        event.stats.add(metadata_id=stat, str_value=b"fusion.12345")
        event.stats.add(metadata_id=stat, bytes_value=b"\xff\x00")
        event.stats.add(metadata_id=stat, ref_value=stat)
    host = xplane_pb2.XLine(name=b"python")
    host.events.add(metadata_id=1, num_occurrences=30).stats.add(metadata_id=4, int64_value=0)
    host.events.add(metadata_id=2**62).stats.add(metadata_id=10, str_value=b"sort.1")
    host.events.add(metadata_id=2)
    return [both_clocks, every_stat, host, xplane_pb2.XLine()]


def traces_in(path: Path) -> Iterator[bytes]:
    """Yield the trace that a file is, or each that is packed in it."""
    if path.suffix != ".xz":
        yield path.read_bytes()
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".xplane.pb"):
                packed = archive.extractfile(member)
                assert packed is not None
                yield packed.read()


def main(out: Path, named: list[Path]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    contents = [line.SerializeToString() for line in lines()]
    for trace in (trace for path in named for trace in traces_in(path)):
        for plane in xplane_pb2.XSpace.FromString(trace).planes:
            for line in plane.lines:
                while line.ByteSize() > MOST_BYTES:
                    del line.events[len(line.events) // 2 :]
                contents.append(line.SerializeToString())
    for number, content in enumerate(contents):
        for control in (0, 1, 2, 43):
            (out / f"{number:03}-{control}").write_bytes(bytes([control]) + content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])

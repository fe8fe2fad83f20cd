"""Events straight from the raw protobuf, for counting by hand. Nothing here goes through our columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from analyzers.reading.protos import hlo_pb2, xplane_pb2


@dataclass(frozen=True)
class RawEvent:
    plane: str
    line: str
    name: str
    """Display name of the metadata, else its name."""
    start_ps: int
    duration_ps: int
    stats: dict[str, object]
    """Of the event; those of the metadata where the event has none of that name."""


def raw_space(path: Path) -> xplane_pb2.XSpace:
    return xplane_pb2.XSpace.FromString(path.read_bytes())


def raw_events(space: xplane_pb2.XSpace) -> Iterator[RawEvent]:
    for plane in space.planes:
        names = {key: value.name.decode() for key, value in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                metadata = plane.event_metadata[event.metadata_id]
                yield RawEvent(
                    plane.name.decode(),
                    line.name.decode(),
                    (metadata.display_name or metadata.name).decode("utf-8", "replace"),
                    line.timestamp_ns * 1000 + event.offset_ps,
                    event.duration_ps,
                    {**_stats(metadata.stats, names), **_stats(event.stats, names)},
                )


def _stats(stats, names) -> dict[str, object]:
    result: dict[str, object] = {}
    for stat in stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else None
        if kind == "ref_value":
            value = names.get(value, "")
        result[names.get(stat.metadata_id, "?")] = value.decode("utf-8", "replace") if kind == "str_value" else value
    return result


def raw_module(space: xplane_pb2.XSpace, name: str) -> hlo_pb2.Module:
    """Return the embedded module called `name`, e.g. `jit_f(12)`."""
    for plane in space.planes:
        if plane.name == b"/host:metadata":
            for metadata in plane.event_metadata.values():
                if metadata.name == name.encode():
                    (proto,) = [stat.bytes_value for stat in metadata.stats if stat.bytes_value]
                    return hlo_pb2.HloProto.FromString(proto).hlo_module
    raise LookupError(name)

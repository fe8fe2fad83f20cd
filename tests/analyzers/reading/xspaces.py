"""Small traces written by hand: a plane, its lines and events, with names given instead of ids."""

from collections.abc import Mapping

from analyzers.reading.protos import xplane_pb2

Value = int | float | str | bytes


def new_plane(space: xplane_pb2.XSpace, name: str, plane_id: int = 0) -> xplane_pb2.XPlane:
    plane = space.planes.add()
    plane.id = plane_id
    plane.name = name.encode()
    return plane


def stat_id(plane: xplane_pb2.XPlane, name: str) -> int:
    """Return the id of the stat (or referred string) called `name`, made where it is new."""
    for key, metadata in plane.stat_metadata.items():
        if metadata.name == name.encode():
            return key
    key = len(plane.stat_metadata) + 1
    plane.stat_metadata[key].id = key
    plane.stat_metadata[key].name = name.encode()
    return key


def add_stats(plane: xplane_pb2.XPlane, holder, stats: Mapping[str, Value], by_reference: bool = False) -> None:
    for name, value in stats.items():
        stat = holder.stats.add()
        stat.metadata_id = stat_id(plane, name)
        match value:
            case str() if by_reference:
                stat.ref_value = stat_id(plane, value)
            case str():
                stat.str_value = value.encode()
            case bytes():
                stat.bytes_value = value
            case float():
                stat.double_value = value
            case int() if value > 2**63 - 1:
                stat.uint64_value = value
            case _:
                stat.int64_value = value


def event_id(plane: xplane_pb2.XPlane, name: str, stats: Mapping[str, Value] | None = None) -> int:
    """Return the id of the event metadata called `name`, made where it is new."""
    for key, metadata in plane.event_metadata.items():
        if metadata.name == name.encode():
            return key
    key = len(plane.event_metadata) + 1
    metadata = plane.event_metadata[key]
    metadata.id = key
    metadata.name = name.encode()
    metadata.display_name = name.encode()
    add_stats(plane, metadata, stats or {})
    return key


def new_line(plane: xplane_pb2.XPlane, name: str, timestamp_ns: int = 0) -> xplane_pb2.XLine:
    line = plane.lines.add()
    line.id = len(plane.lines)
    line.name = name.encode()
    line.timestamp_ns = timestamp_ns
    return line


def add_event(
    plane: xplane_pb2.XPlane,
    line: xplane_pb2.XLine,
    name: str,
    offset_ps: int,
    duration_ps: int,
    stats: Mapping[str, Value] | None = None,
    by_reference: bool = False,
) -> xplane_pb2.XEvent:
    event = line.events.add()
    event.metadata_id = event_id(plane, name)
    event.offset_ps = offset_ps
    event.duration_ps = duration_ps
    add_stats(plane, event, stats or {}, by_reference)
    return event

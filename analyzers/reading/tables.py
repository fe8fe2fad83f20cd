"""The small tables of a plane: its stats and its event metadata, decoded.

Strings in a trace need not be UTF-8; bytes that are not are shown as backslash escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from analyzers.reading.columns import EventMetadata, PlaneKind, StatValue
from analyzers.reading.protos import xplane_pb2

_HLO_PROTO_STATS = frozenset({"Hlo Proto", "hlo_proto"})


def text(value: bytes) -> str:
    """Decode a name as UTF-8; bytes that are not UTF-8 become hexadecimal escapes."""
    return value.decode("utf-8", "backslashreplace")


def stat_names(plane: xplane_pb2.XPlane) -> dict[int, str]:
    """Return the names of a plane's stats by their ids; a `ref_value` is such an id too."""
    return {key: text(metadata.name) for key, metadata in plane.stat_metadata.items()}


def stat_value(stat: xplane_pb2.XStat, names: Mapping[int, str]) -> StatValue | None:
    """Return a stat's value with a reference resolved; None where it has none or refers to nothing."""
    match stat.WhichOneof("value"):
        case None:
            return None
        case "str_value":
            return text(stat.str_value)
        case "ref_value":
            return names.get(signed(stat.ref_value))
        case kind:
            value: StatValue = getattr(stat, kind)
            return value


def stat_values(stats: Iterable[xplane_pb2.XStat], names: Mapping[int, str]) -> dict[str, StatValue]:
    """Return stats by name. One whose id has no name, or whose value refers to nothing, is left out."""
    values: dict[str, StatValue] = {}
    for stat in stats:
        name = names.get(stat.metadata_id)
        value = stat_value(stat, names) if name is not None else None
        if name is not None and value is not None:
            values[name] = value
    return values


def event_metadata(plane: xplane_pb2.XPlane, kind: PlaneKind, names: Mapping[int, str]) -> tuple[EventMetadata, ...]:
    """Return a plane's event metadata ordered by id; HLO protos are left to `hlo_protos`."""
    if kind is PlaneKind.OTHER:
        return ()
    metadata_plane = kind is PlaneKind.METADATA
    rows = []
    for key in sorted(plane.event_metadata):
        entry = plane.event_metadata[key]
        stats = (
            [stat for stat in entry.stats if names.get(stat.metadata_id) not in _HLO_PROTO_STATS]
            if metadata_plane
            else entry.stats
        )
        rows.append(EventMetadata(key, text(entry.name), text(entry.display_name), stat_values(stats, names)))
    return tuple(rows)


def hlo_protos(plane: xplane_pb2.XPlane, names: Mapping[int, str]) -> dict[str, bytes]:
    """Return the serialized HLO protos of the plane `/host:metadata` by module name, `jit_f(12)`."""
    return {
        text(entry.name): stat.bytes_value
        for entry in plane.event_metadata.values()
        for stat in entry.stats
        if names.get(stat.metadata_id) in _HLO_PROTO_STATS and stat.WhichOneof("value") == "bytes_value"
    }


def signed(value: int) -> int:
    """Reinterpret a 64-bit value as signed, dropping higher bits as int64 arithmetic does."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value

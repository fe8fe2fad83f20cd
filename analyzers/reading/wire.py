"""The protobuf wire format, as far as the outer structure of a trace needs it.

A protobuf parser is lenient about where a message ends and strict about its size (2 GiB), so whether a file
is whole is decided here: by walking the records of the file and of each of its planes by their lengths.
Groups (wire types 3 and 4) are refused: no profiler writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Buffer = memoryview

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10
_MAX_TAG = 2**32 - 1
_MAX_TAG_BYTES = 5


class Record(NamedTuple):
    """One field of a message, as byte offsets into the whole file."""

    start: int
    """Offset of the tag."""
    field: int
    wire_type: int
    first: int
    """Offset of the first byte of the value (after the length, where there is one)."""
    last: int
    """Offset after the last byte of the value: where the next record starts."""


class BadRecordError(ValueError):
    """A record that is not whole or makes no sense; `offset` is where it starts."""

    def __init__(self, offset: int, reason: str, past_end: bool) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason
        self.past_end = past_end
        """Whether the record runs past the end given, as the last one of a truncated file does."""


def _varint(data: Buffer, position: int, end: int, record: int, most: int = _MAX_VARINT_BYTES) -> tuple[int, int]:
    """Return the varint of at most `most` bytes at `position` and the offset after it."""
    value = shift = 0
    while True:
        if position >= end:
            raise BadRecordError(record, "it ends inside a number", True)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position
        shift += 7
        if shift >= 7 * most:
            raise BadRecordError(record, f"a number in it is longer than {most} bytes", False)


def records(data: Buffer, start: int, end: int) -> Iterator[Record]:
    """Yield the records of the message in `data[start:end]`.

    Raises:
        BadRecordError: at the first record that runs past `end` or is malformed.

    """
    position = start
    while position < end:
        tag, first = _varint(data, position, end, position, _MAX_TAG_BYTES)
        field, wire_type = tag >> 3, tag & 7
        if tag > _MAX_TAG or field == 0:
            raise BadRecordError(position, f"its tag {tag} is not one a message can have", False)
        if wire_type == VARINT:
            _, last = _varint(data, first, end, position)
        elif wire_type == BYTES:
            length, first = _varint(data, first, end, position)
            last = first + length
        elif wire_type in _FIXED_SIZES:
            last = first + _FIXED_SIZES[wire_type]
        else:
            raise BadRecordError(position, f"its wire type {wire_type} is not used in traces", False)
        if last > end:
            raise BadRecordError(position, f"it should reach byte {last:,}", True)
        yield Record(position, field, wire_type, first, last)
        position = last


def length_prefix(data: Buffer, start: int) -> tuple[int, int]:
    """Return the field number and the offset of the value of the length-delimited record at `start`.

    For the last record of a truncated file, whose value is not all there.

    Raises:
        BadRecordError: where not even tag and length are there, or the record has no length.

    """
    tag, first = _varint(data, start, len(data), start, _MAX_TAG_BYTES)
    if tag & 7 != BYTES:
        raise BadRecordError(start, "it has no length", False)
    _, first = _varint(data, first, len(data), start)
    return tag >> 3, first

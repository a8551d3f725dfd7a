"""Taking records out of a batch, for compaction: what stays keeps its bytes.

A record is skipped over rather than unpacked: its length leads to the next one, and only the key is ever cut out. A
batch that is put together again keeps its range of offsets, its producer and its codec; of the header only the count,
the length, the checksum and the largest timestamp follow from what is left.

The base timestamp is what the records' own timestamps are relative to, and also where KIP-534 keeps the delete horizon.
So setting a horizon means writing every timestamp anew; a batch that has one already, or gets none, is cut and pasted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onceflow.errors import MalformedMessage
from onceflow.wire.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    NO_TIMESTAMP,
    OVERHEAD,
    BatchHeader,
)
from onceflow.wire.compression import Codec, compress, decompress
from onceflow.wire.records import RECORD_SIZE_MIN, _int64, _seal, _varint, _varint_of, _zigzag

__all__ = ["Span", "emptied", "spans", "thinned", "unpacked"]

Span = tuple[int, int, int, bytes | None, bool]
"""(start, end, offset, key, has a value): where a record stands in the unpacked bytes of its batch, and what compaction
asks about it. A bare tuple, because there is one for every record of a log."""

_NULL: Final = 1
"""-1, the length of null, as a zigzag varint."""
_ATTRIBUTES: Final = b"\x00"


def unpacked(header: BatchHeader, batch: bytes, max_bytes: int) -> bytes:
    """The records of a batch, end to end."""
    if header.count < 0:
        raise MalformedMessage(f"A record batch with {header.count} records.")
    body = memoryview(batch)[HEADER_SIZE:]
    if header.count == 0 and not len(body):
        return b""
    data = decompress(header.compression, body, max_bytes)
    if header.count * RECORD_SIZE_MIN > len(data):
        raise MalformedMessage(f"{len(data)} bytes cannot hold the {header.count} records of the batch.")
    return data


def spans(header: BatchHeader, data: bytes) -> Iterator[Span]:
    """The records in `data`, the unpacked bytes of a batch. Like `records._read`, it reads short varints in place."""
    base_offset = header.base_offset
    last_offset = header.last_offset
    previous = base_offset - 1
    size = len(data)
    at = 0
    try:
        for _ in range(header.count):
            start = at
            byte = data[at]
            if byte < 0x80:
                length = (byte >> 1) ^ -(byte & 1)
                at += 1
            elif data[at + 1] < 0x80:
                byte = (byte & 0x7F) | data[at + 1] << 7
                length = (byte >> 1) ^ -(byte & 1)
                at += 2
            else:
                length, at = _varint(data, at)
            end = at + length
            if length < 0 or end > size:
                raise MalformedMessage(f"A record of {length} bytes where {size - at} are left.")

            at += 1  # attributes
            while data[at] >= 0x80:  # the timestamp
                at += 1
            at += 1

            byte = data[at]
            if byte < 0x80:
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
                at += 1
            else:
                delta, at = _varint(data, at)
                offset = base_offset + delta
            if not previous < offset <= last_offset:
                raise MalformedMessage(f"Offset {offset} after {previous}, in a batch that ends at {last_offset}.")
            previous = offset

            byte = data[at]
            if byte == _NULL:
                key = None
                at += 1
            else:
                if byte < 0x80:
                    length = (byte >> 1) ^ -(byte & 1)
                    at += 1
                else:
                    length, at = _varint(data, at)
                if length < 0:
                    raise MalformedMessage(f"A record with a key of {length} bytes.")
                key = data[at : at + length]
                at += length
            if at >= end:
                raise MalformedMessage("A record ends before its value.")
            yield start, end, offset, key, data[at] != _NULL
            at = end
    except IndexError:
        raise MalformedMessage("The records of the batch end in the middle of one.") from None
    if at != size:
        raise MalformedMessage(f"{size - at} bytes are left after the {header.count} records of the batch.")


def thinned(header: BatchHeader, data: bytes, kept: list[Span], *, delete_horizon_ms: int | None = None) -> bytes:
    """The batch with only the `kept` records of `data`, at least one.

    `delete_horizon_ms` is for a batch that has none yet; otherwise it stays as it is.
    """
    base_timestamp = header.base_timestamp
    attributes = header.attributes
    max_timestamp = header.max_timestamp
    if not header.is_append_time:
        max_timestamp = _int64(base_timestamp + max(_timestamp_delta(data, span)[0] for span in kept))
    if delete_horizon_ms is None:
        body = b"".join([data[span[0] : span[1]] for span in kept])
    else:
        body = b"".join(_moved(data, kept, base_timestamp - delete_horizon_ms))
        base_timestamp = delete_horizon_ms
        attributes |= DELETE_HORIZON_BIT
    if header.compression != Codec.NONE:
        body = compress(header.compression, body)
    return _seal(
        header._replace(
            length=HEADER_SIZE - OVERHEAD + len(body),
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            count=len(kept),
        ),
        body,
    )


def _timestamp_delta(data: bytes, span: Span) -> tuple[int, int]:
    """The timestamp of a record, relative to that of the batch, and where it ends."""
    at = span[0]
    while data[at] >= 0x80:  # the length
        at += 1
    return _varint(data, at + 1 + len(_ATTRIBUTES), 64)


def _moved(data: bytes, kept: list[Span], by_ms: int) -> Iterator[bytes]:
    """The records as they are written when `by_ms` is to be added to their timestamps, in pieces."""
    for span in kept:
        before, end = _timestamp_delta(data, span)
        timestamp_delta = _zigzag(_int64(before + by_ms))
        rest = data[end : span[1]]
        yield _varint_of(len(_ATTRIBUTES) + len(timestamp_delta) + len(rest))
        yield _ATTRIBUTES
        yield timestamp_delta
        yield rest


def emptied(header: BatchHeader) -> bytes:
    """The batch without any record: it still says where a producer's sequence is, and how far the log goes.

    As in Kafka (`DefaultRecordBatch.writeEmptyHeader`) it keeps its largest timestamp, by which its segment ages.
    """
    return _seal(
        header._replace(
            length=HEADER_SIZE - OVERHEAD,
            attributes=header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT),
            base_timestamp=NO_TIMESTAMP,
            count=0,
        ),
        b"",
    )

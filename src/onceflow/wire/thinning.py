"""Looking through the records of a batch without making any; and taking some out, for compaction.

A record is skipped over rather than unpacked: its length leads to the next one, and of what is inside only the numbers
are read that say where its key and its value are. Headers are passed over whole: a record may have millions of them.

What compaction keeps keeps its bytes. A batch that is put together again keeps its range of offsets, its producer and
its codec; of the header only the count, the length, the checksum and the largest timestamp follow from what is left.

The base timestamp is what the records' own timestamps are relative to, and also where KIP-534 keeps the delete horizon.
So setting a horizon means writing every timestamp anew; a batch that has one already, or gets none, is cut and pasted.

Invariant: the memory that any of this takes, beside the bytes that are unpacked, does not depend on how many records or
headers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from onceflow.errors import MalformedMessage
from onceflow.wire.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from onceflow.wire.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress
from onceflow.wire.records import (
    INT64_MAX,
    INT64_MIN,
    RECORD_SIZE_MIN,
    Bytes,
    _int64,
    _seal,
    _varint,
    _varint_of,
    _zigzag,
)

__all__ = ["Span", "emptied", "recompressed", "spans", "thinned", "unpacked", "unpacked_if_small"]

Span = tuple[int, int, int, int, int, int, int, int]
"""(start, end, offset, timestamp, key at, key size, value at, value size): where a record and what is asked about it
stand in the unpacked bytes of its batch; the size of what is null is -1. A bare tuple, because there is one for every
record of a log."""

SMALL_BATCH: Final = 16 * 1024
SMALL_COUNT: Final = 2_000
SMALL_UNPACKED: Final = 64 * 1024
"""What is looked through in a millisecond or two."""
_ATTRIBUTES: Final = b"\x00"


def unpacked(header: BatchHeader, batch: Bytes, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
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


def unpacked_if_small(header: BatchHeader, batch: Bytes) -> bytes | None:
    """The records of a batch that was read with this header, if they can be looked through in a moment.

    None also if they are corrupt: who looks for long finds out.
    """
    if len(batch) > SMALL_BATCH or header.count > SMALL_COUNT:
        return None
    try:
        return unpacked(header, batch, SMALL_UNPACKED)
    except MalformedMessage:
        return None


def spans(header: BatchHeader, data: bytes) -> Iterator[Span]:
    """The records in `data`, the unpacked bytes of a batch. Like `records._read`, it reads short varints in place.

    They are refused as there, but for what is in their headers.
    """
    base_offset = header.base_offset
    last_offset = header.last_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.is_append_time else None
    # A small delta overflows only where the base is at the very edge of 64 bits.
    wrap = not INT64_MIN + 2**13 <= base_timestamp <= INT64_MAX - 2**13
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

            at += 1  # attributes: no bit of them has a meaning yet

            byte = data[at]
            if byte < 0x80:
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
                at += 1
            elif data[at + 1] < 0x80:
                byte = (byte & 0x7F) | data[at + 1] << 7
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
                at += 2
            else:
                delta, at = _varint(data, at, 64)
                timestamp = _int64(base_timestamp + delta)
            if wrap:
                timestamp = _int64(timestamp)
            if append_time is not None:
                timestamp = append_time

            byte = data[at]
            if byte < 0x80:
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
                at += 1
            elif data[at + 1] < 0x80:
                byte = (byte & 0x7F) | data[at + 1] << 7
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
                at += 2
            else:
                delta, at = _varint(data, at)
                offset = base_offset + delta
            if not previous < offset <= last_offset:
                raise MalformedMessage(f"Offset {offset} after {previous}, in a batch that ends at {last_offset}.")
            previous = offset

            byte = data[at]
            if byte < 0x80:
                key_size = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                key_size, at = _varint(data, at)
            key_at = at
            if key_size > 0:
                at += key_size
            elif key_size < -1:
                raise MalformedMessage(f"A record with a key of {key_size} bytes.")

            byte = data[at]
            if byte < 0x80:
                value_size = (byte >> 1) ^ -(byte & 1)
                at += 1
            elif data[at + 1] < 0x80:
                byte = (byte & 0x7F) | data[at + 1] << 7
                value_size = (byte >> 1) ^ -(byte & 1)
                at += 2
            else:
                value_size, at = _varint(data, at)
            value_at = at
            if value_size > 0:
                at += value_size
            elif value_size < -1:
                raise MalformedMessage(f"A record with a value of {value_size} bytes.")

            # Nothing above moves backwards: if there is a byte left for the headers, all of it was inside the record.
            if at >= end or (at + 1 < end and not data[at]):
                raise MalformedMessage(f"A record of {length} bytes has fields of another length.")
            yield start, end, offset, timestamp, key_at, key_size, value_at, value_size
            at = end
    except IndexError:
        raise MalformedMessage("The records of the batch end in the middle of one.") from None
    if at != size:
        raise MalformedMessage(f"{size - at} bytes are left after the {header.count} records of the batch.")


def thinned(header: BatchHeader, data: bytes, kept: Iterable[Span], *, delete_horizon_ms: int | None = None) -> bytes:
    """The batch with only the `kept` records of `data`, at least one.

    `delete_horizon_ms` is for a batch that has none yet; otherwise it stays as it is.
    """
    base_timestamp = header.base_timestamp
    attributes = header.attributes
    count = run_from = run_to = 0
    max_timestamp = INT64_MIN
    body = bytearray()
    for start, end, _, timestamp, *_ in kept:
        count += 1
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        if delete_horizon_ms is not None:
            body += _moved(data, start, end, base_timestamp - delete_horizon_ms)
        elif start == run_to:
            run_to = end
        else:
            body += data[run_from:run_to]
            run_from, run_to = start, end
    body += data[run_from:run_to]
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
        attributes |= DELETE_HORIZON_BIT
    return _seal(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=header.max_timestamp if header.is_append_time else max_timestamp,
            count=count,
        ),
        _packed(header.compression, body),
    )


def recompressed(
    header: BatchHeader, data: bytes, codec: int, level: int | None, max_timestamp: int, size_max: int
) -> bytes | int:
    """The batch with all its records in another codec; or the size it would have, if that is more than `size_max`.

    Its timestamps are its own: if the broker is to set them, that is done when it is appended.
    """
    body = _packed(codec, data, level)
    size = HEADER_SIZE + len(body)
    if size > size_max:
        return size
    attributes = header.attributes & TRANSACTIONAL_BIT | codec
    return _seal(header._replace(attributes=attributes, max_timestamp=max_timestamp), body)


def _packed(codec: int, body: Bytes, level: int | None = None) -> Bytes:
    return body if codec == Codec.NONE else compress(codec, body, level)


def _moved(data: bytes, start: int, end: int, by_ms: int) -> bytes:
    """A record as it is written when `by_ms` is to be added to its timestamp."""
    while data[start] >= 0x80:  # the length
        start += 1
    before, start = _varint(data, start + 1 + len(_ATTRIBUTES), 64)
    timestamp_delta = _zigzag(_int64(before + by_ms))
    length = len(_ATTRIBUTES) + len(timestamp_delta) + end - start
    return b"".join((_varint_of(length), _ATTRIBUTES, timestamp_delta, data[start:end]))


def emptied(header: BatchHeader) -> bytes:
    """The batch without any record: it still says where a producer's sequence is, and how far the log goes.

    As in Kafka (`DefaultRecordBatch.writeEmptyHeader`) it keeps its largest timestamp, by which its segment ages.
    """
    return _seal(
        header._replace(
            attributes=header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT),
            base_timestamp=NO_TIMESTAMP,
            count=0,
        ),
        b"",
    )

"""The records inside a batch. Compaction, the dump and rare validations come here; the hot path never does.

    record   length varint (of what follows it) | attributes int8, unused | timestamp delta varlong
             | offset delta varint | key length varint, key | value length varint, value
             | header count varint, headers...
    header   key length varint, key (UTF-8) | value length varint, value

Lengths and deltas are zigzag varints of 32 bits (the timestamp delta: 64); a length of -1 is null. Both
deltas are against the base values of the batch. With log append time the timestamp of every record is the
batch's `max_timestamp`.

Invariants:

- Bytes that are not this raise `MalformedMessage`, nothing else, and cost no more than reading them once.
- What was read can be built again: offsets rise strictly inside the batch's range, timestamps and their
  deltas wrap at 64 bits as Java's do, header keys survive even when they are not UTF-8 (librdkafka lets a
  program write any bytes).
- The checksum is not checked here. It was when the batch came in, and `batch.checksum` is there for who
  wants to know.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import google_crc32c

from onceflow.errors import MalformedMessage
from onceflow.wire import batch as wire_batch
from onceflow.wire.batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE, BatchHeader
from onceflow.wire.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress

__all__ = [
    "EndTxnMarker",
    "Header",
    "Record",
    "build_batch",
    "control_type",
    "read_records",
]

Bytes = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]

INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

RECORD_SIZE_MIN: Final = 7
"""One byte for each field of a record without key, value and headers."""


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


# --- reading


def read_records(batch: Bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of one batch, which must be whole.

    Header and compression are checked by the call itself, each record when the iterator comes to it, and
    the count after the last one. Records are made one at a time: 64 MB of them would be 9 million Python
    objects.
    """
    if len(batch) < HEADER_SIZE:
        raise MalformedMessage(f"A record batch has a header of {HEADER_SIZE} bytes; here are only {len(batch)}.")
    header = wire_batch.read_header(batch)
    if header.magic != wire_batch.MAGIC:
        raise MalformedMessage(f"A record batch of magic {header.magic}; only magic {wire_batch.MAGIC} is read.")
    if header.size != len(batch):
        raise MalformedMessage(f"A record batch says it has {header.size} bytes and has {len(batch)}.")
    if header.count < 0:
        raise MalformedMessage(f"A record batch with {header.count} records.")
    body = memoryview(batch)[HEADER_SIZE:]
    if header.count == 0 and not len(body):
        # What compaction leaves to remember a producer by; the attributes may still name a codec.
        return iter(())
    data = decompress(header.compression, body, max_bytes)
    if header.count * RECORD_SIZE_MIN > len(data):
        raise MalformedMessage(f"{len(data)} bytes cannot hold the {header.count} records of the batch.")
    return _read(header, data)


def _read(header: BatchHeader, data: bytes) -> Iterator[Record]:
    """The one long function here. Varints of one or two bytes are read in place, because a call costs as much
    as the rest of a field. Bounds are checked once per record: a slice of `bytes` never reads past the end.
    """
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.is_append_time else None
    # A small delta overflows only where the base is at the very edge of 64 bits.
    wrap = not INT64_MIN + 2**13 <= base_timestamp <= INT64_MAX - 2**13
    size = len(data)
    last_offset_delta = header.last_offset_delta
    last_delta = -1
    at = 0
    new = tuple.__new__
    try:
        for _ in range(header.count):
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
            start, end = at, at + length
            if length < 0 or end > size:
                raise MalformedMessage(f"A record of {length} bytes where {size - at} are left.")

            at += 1  # attributes: no bit of them has a meaning yet

            byte = data[at]
            if byte < 0x80:
                delta = (byte >> 1) ^ -(byte & 1)
                at += 1
            elif data[at + 1] < 0x80:
                byte = (byte & 0x7F) | data[at + 1] << 7
                delta = (byte >> 1) ^ -(byte & 1)
                at += 2
            else:
                delta, at = _varint(data, at, 64)
                wrap = True
            timestamp = base_timestamp + delta
            if wrap:
                timestamp = _int64(timestamp)
            if append_time is not None:
                timestamp = append_time

            byte = data[at]
            if byte < 0x80:
                delta = (byte >> 1) ^ -(byte & 1)
                at += 1
            elif data[at + 1] < 0x80:
                byte = (byte & 0x7F) | data[at + 1] << 7
                delta = (byte >> 1) ^ -(byte & 1)
                at += 2
            else:
                delta, at = _varint(data, at)
            if not last_delta < delta <= last_offset_delta:
                raise MalformedMessage(
                    f"Offset delta {delta} after {last_delta}, in a batch that ends at {last_offset_delta}."
                )
            last_delta = delta

            byte = data[at]
            if byte < 0x80:
                length = (byte >> 1) ^ -(byte & 1)
                at += 1
            else:
                length, at = _varint(data, at)
            if length >= 0:
                key = data[at : at + length]
                at += length
            elif length == -1:
                key = None
            else:
                raise MalformedMessage(f"A record with a key of {length} bytes.")

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
            if length >= 0:
                value = data[at : at + length]
                at += length
            elif length == -1:
                value = None
            else:
                raise MalformedMessage(f"A record with a value of {length} bytes.")

            headers: tuple[Header, ...] = ()
            if data[at]:
                headers, at = _read_headers(data, at)
            else:
                at += 1

            # Nothing above moves backwards: if this holds, every slice was inside the record.
            if at != end:
                raise MalformedMessage(f"A record of {end - start} bytes has fields of {at - start} bytes.")
            yield new(Record, (base_offset + delta, timestamp, key, value, headers))
    except IndexError:
        raise MalformedMessage("The records of the batch end in the middle of one.") from None
    if at != size:
        raise MalformedMessage(f"{size - at} bytes are left after the {header.count} records of the batch.")


def _int64(number: int) -> int:
    """`number` as 64 bits hold it."""
    return (number - INT64_MIN & 2**64 - 1) + INT64_MIN


def _read_headers(data: bytes, at: int) -> tuple[tuple[Header, ...], int]:
    count, at = _varint(data, at)
    if count < 0:
        raise MalformedMessage(f"A record with {count} headers.")
    headers: list[Header] = []
    # A count is only a claim, so it sizes nothing: running out of bytes ends this loop.
    for _ in range(count):
        byte = data[at]
        if byte < 0x80:
            length = (byte >> 1) ^ -(byte & 1)
            at += 1
        else:
            length, at = _varint(data, at)
        if length < 0:
            raise MalformedMessage(f"A record header with a key of {length} bytes.")
        key = data[at : at + length].decode("utf-8", "surrogateescape")
        at += length
        byte = data[at]
        if byte < 0x80:
            length = (byte >> 1) ^ -(byte & 1)
            at += 1
        else:
            length, at = _varint(data, at)
        if length < -1:
            raise MalformedMessage(f"A record header with a value of {length} bytes.")
        if length == -1:
            headers.append((key, None))
        else:
            headers.append((key, data[at : at + length]))
            at += length
    return tuple(headers), at


def _varint(data: bytes, at: int, bits: int = 32) -> tuple[int, int]:
    """A zigzag varint of any length, and where it ends. `IndexError` where the data end."""
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise MalformedMessage(f"A variable-length number that does not end within {bits} bits.")
    if result >> bits:
        raise MalformedMessage(f"A variable-length number that does not fit {bits} bits.")
    return (result >> 1) ^ -(result & 1), at


# --- building


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = wire_batch.NO_PRODUCER_ID,
    producer_epoch: int = wire_batch.NO_PRODUCER_EPOCH,
    base_sequence: int = wire_batch.NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    append_time_ms: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """A batch of these records, with its checksum.

    Offsets come from the records and may have gaps; they rise strictly from `base_offset` on.

    - `last_offset_delta`: where the batch ends, if that is after its last record. Compaction keeps the
      range of the batch it rewrites, or the sequences of an idempotent producer would no longer fit.
    - `append_time_ms`: the broker's time for all records (log append time); their own timestamps are dropped.
    - `base_timestamp`, `max_timestamp`: by default the first and the largest of the records. A batch that
      compaction emptied has no records to ask, and keeps the `max_timestamp` it had.
    - `delete_horizon_ms`: when tombstones in here may go (KIP-534). It takes the place of `base_timestamp`.

    What does not fit the format is a mistake of the caller and raises `ValueError`.
    """
    codec = Codec(codec)
    if delete_horizon_ms is not None:
        if base_timestamp is not None:
            raise ValueError("The delete horizon is stored in the base timestamp: give one of the two.")
        base_timestamp = delete_horizon_ms
    records = list(records)
    if append_time_ms is not None:
        records = [record._replace(timestamp=append_time_ms) for record in records]
        max_timestamp = append_time_ms
    if base_timestamp is None:
        base_timestamp = records[0].timestamp if records else wire_batch.NO_TIMESTAMP
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=wire_batch.NO_TIMESTAMP)
    last_record_delta = records[-1].offset - base_offset if records else -1
    if last_offset_delta is None:
        last_offset_delta = max(last_record_delta, 0)
    if not last_record_delta <= last_offset_delta <= INT32_MAX:
        raise ValueError(f"A last offset delta of {last_offset_delta}, with the last record at {last_record_delta}.")

    body = _write(records, base_offset, base_timestamp)
    if not body:
        codec = Codec.NONE  # as Kafka leaves an emptied batch: some readers would unpack the nothing in it
    elif codec != Codec.NONE:
        body = compress(codec, body, level)
    attributes = (
        codec
        | (wire_batch.TIMESTAMP_TYPE_BIT if append_time_ms is not None else 0)
        | (wire_batch.TRANSACTIONAL_BIT if transactional else 0)
        | (wire_batch.CONTROL_BIT if control else 0)
        | (wire_batch.DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
    )
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=wire_batch.MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )
    return _seal(header, body)


def _seal(header: BatchHeader, body: Bytes) -> bytes:
    """The batch, with the length and the checksum that it then has."""
    length = HEADER_SIZE - wire_batch.OVERHEAD + len(body)
    try:
        packed = wire_batch.HEADER.pack(header[0], length, *header[2:])
    except struct.error as error:
        raise ValueError(f"A field of the batch header is out of range ({error}): {header}.") from None
    sealed = packed[ATTRIBUTES_AT:]
    crc = google_crc32c.extend(google_crc32c.value(sealed), bytes(body))
    return b"".join((packed[:CRC_AT], crc.to_bytes(4, "big"), sealed, body))


def _zigzag(number: int) -> bytes:
    """`number`, of at most 64 bits, as a zigzag varint."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL: Final = tuple(_zigzag(number) for number in range(1024))
"""Most lengths and deltas, ready made."""
_NULL: Final = _zigzag(-1)


def _varint_of(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < 1024 else _zigzag(number)


def _write(records: list[Record], base_offset: int, base_timestamp: int) -> bytes:
    parts: list[bytes] = []
    small = _SMALL
    last_delta = -1
    for offset, timestamp, key, value, headers in records:
        delta = offset - base_offset
        if delta <= last_delta:
            raise ValueError(f"Offset {offset} does not come after {base_offset + last_delta}.")
        last_delta = delta
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise ValueError(f"The timestamp {timestamp} does not fit 64 bits.")
        age = timestamp - base_timestamp
        record = b"".join(
            (
                b"\x00",  # attributes
                small[age] if 0 <= age < 1024 else _zigzag(_int64(age)),
                small[delta] if delta < 1024 else _zigzag(delta),
                _NULL if key is None else _varint_of(len(key)),
                key or b"",
                _NULL if value is None else _varint_of(len(value)),
                value or b"",
                _write_headers(headers) if headers else b"\x00",
            )
        )
        parts += (_varint_of(len(record)), record)
    return b"".join(parts)


def _write_headers(headers: Iterable[Header]) -> bytes:
    parts: list[bytes] = []
    count = 0
    for key, value in headers:
        raw_key = key.encode("utf-8", "surrogateescape")
        parts += (_varint_of(len(raw_key)), raw_key)
        parts += (_NULL,) if value is None else (_varint_of(len(value)), value)
        count += 1
    return _varint_of(count) + b"".join(parts)


# --- control records

_CONTROL_KEY: Final = struct.Struct(">hh")
_END_TXN_VALUE: Final = struct.Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1


def control_type(record: Record) -> int:
    """The type in a control record's key: 0 abort, 1 commit; larger ones belong to Kafka's controllers."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise MalformedMessage(f"The control record at offset {record.offset} has no version and type in its key.")
    version, kind = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise MalformedMessage(f"The control record at offset {record.offset} has a key of version {version}.")
    return int(kind)


class EndTxnMarker(NamedTuple):
    """The end of one producer's transaction on one partition."""

    commit: bool
    coordinator_epoch: int

    @classmethod
    def read(cls, record: Record) -> EndTxnMarker:
        """The marker in a control record. Later versions may only add fields, so a longer value is fine."""
        kind = control_type(record)
        if kind not in (_ABORT, _COMMIT):
            raise MalformedMessage(f"The control record at offset {record.offset} has type {kind}: no marker.")
        if record.value is None or len(record.value) < _END_TXN_VALUE.size:
            raise MalformedMessage(f"The transaction marker at offset {record.offset} has no coordinator epoch.")
        version, coordinator_epoch = _END_TXN_VALUE.unpack_from(record.value)
        if version < 0:
            raise MalformedMessage(f"The transaction marker at offset {record.offset} has version {version}.")
        return cls(kind == _COMMIT, coordinator_epoch)

    def to_record(self, *, offset: int, timestamp: int) -> Record:
        """The control record to put into a batch built with `control=True, transactional=True`."""
        key = _CONTROL_KEY.pack(0, _COMMIT if self.commit else _ABORT)
        return Record(offset, timestamp, key, _END_TXN_VALUE.pack(0, self.coordinator_epoch))

"""The record batch, magic 2: the unit in which records travel, are stored and are served.

Invariants of this file, and of everyone who uses it:

- A batch is bytes. The broker reads its 61-byte header and passes the rest through; only compaction, the dump and a few
  rare validations look at records (`wire.records`).
- The CRC-32C covers everything from `attributes` to the end. `base_offset` and `leader_epoch` stand before it on
  purpose: a broker assigns both without touching the checksum.
- Offsets of a batch are `base_offset .. base_offset + last_offset_delta`. Compaction may remove records from inside,
  never the range: `count` may then be smaller than the range.

    0  base_offset int64 | 8 length int32 (of what follows it) | 12 leader_epoch int32 | 16 magic int8 | 17 crc uint32
    21 attributes int16 | 23 last_offset_delta int32 | 27 base_timestamp int64 | 35 max_timestamp int64
    43 producer_id int64 | 51 producer_epoch int16 | 53 base_sequence int32 | 57 count int32 | 61 records...
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import google_crc32c

from onceflow.errors import CorruptLog

__all__ = [
    "ATTRIBUTES_AT",
    "CRC_AT",
    "HEADER_SIZE",
    "LEADER_EPOCH",
    "MAGIC",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "assign_offset",
    "batches",
    "checksum",
    "read_header",
    "set_max_timestamp",
    "stamp_append_time",
]

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size
OVERHEAD: Final = 12
"""Bytes before and including the length field: a batch's size is its length field plus this."""
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
"""Where the checksummed part begins."""
MAGIC: Final = 2
LEADER_EPOCH: Final = 0
"""Of every batch that is stored here: one node leads every partition, always."""
MIN_LENGTH: Final = HEADER_SIZE - OVERHEAD

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LENGTH_AND_MAGIC: Final = struct.Struct(">iib")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a header

    @property
    def size(self) -> int:
        return self.length + OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the tombstones of this batch may go; compaction keeps it in the base timestamp (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


def read_header(buffer: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
    """The header at a position that is known to hold at least `HEADER_SIZE` bytes. Nothing is checked."""
    return BatchHeader._make(HEADER.unpack_from(buffer, at))


def checksum(batch: bytes | bytearray | memoryview) -> int:
    """CRC-32C of one batch, from its attributes to its end."""
    # The library takes `bytes` only; copying 16 KB costs 0.6 us beside the 1.5 us of the checksum itself.
    return int(google_crc32c.value(bytes(batch[ATTRIBUTES_AT:])))


def assign_offset(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log. Both fields stand outside the checksum."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, OVERHEAD, leader_epoch)


def stamp_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Put the broker's time on a whole batch (`message.timestamp.type=LogAppendTime`), and a right checksum."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_AT, attributes | TIMESTAMP_TYPE_BIT)
    _MAX_TIMESTAMP.pack_into(batch, 35, now_ms)
    _CRC.pack_into(batch, CRC_AT, checksum(batch))


def set_max_timestamp(batch: bytearray | memoryview, timestamp: int) -> None:
    """Correct the largest timestamp, and the checksum."""
    _MAX_TIMESTAMP.pack_into(batch, 35, timestamp)
    _CRC.pack_into(batch, CRC_AT, checksum(batch))


def batches(data: bytes | bytearray | memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each whole batch in `data`, which starts at one; a partial one at the end, where Fetch may cut, is left out."""
    view = memoryview(data)
    at, end = 0, len(view)
    while at + HEADER_SIZE <= end:
        header = read_header(view, at)
        if header.length < MIN_LENGTH or header.magic != MAGIC:
            raise CorruptLog(f"No record batch at byte {at}: length {header.length}, magic {header.magic}.")
        if at + header.size > end:
            return
        yield header, view[at : at + header.size]
        at += header.size

"""What the source that `codegen` writes calls: numbers of variable length, unknown tagged fields, uuids, and
the sentences with which input is refused.
"""

from __future__ import annotations

import functools
import uuid
from typing import Final, NoReturn

from onceflow.errors import MalformedMessage
from onceflow.wire.schema import Buffer

__all__ = [
    "ARRAY_LENGTH_MAX",
    "STRING_LENGTH_MAX",
    "TAGS_MAX",
    "ZERO_UUID",
    "read_varint",
    "refuse",
    "refuse_many",
    "refuse_null",
    "refuse_string",
    "refuse_tag",
    "refuse_tags",
    "refuse_work",
    "skip_tags",
    "to_uuid",
    "varint",
]


ARRAY_LENGTH_MAX: Final = 100_000
"""Ten times the partitions that a topic may have."""
STRING_LENGTH_MAX: Final = 2**15 - 1
"""Kafka's: also where the length is written as a number of variable length."""
TAGS_MAX: Final = 1000
"""Tagged fields in one section. Kafka's own messages have less than ten; the rest is unknown to us and skipped."""


def refuse_tags(count: int) -> NoReturn:
    raise MalformedMessage(f"{count} tagged fields in one section; more than {TAGS_MAX} make no sense.")


def refuse_work(what: str) -> NoReturn:
    raise MalformedMessage(f"{what} has more elements than a request of its kind may have in all.")


def refuse_many(what: str, length: int) -> NoReturn:
    raise MalformedMessage(f"{what} has {length} elements; more than {ARRAY_LENGTH_MAX} make no sense.")


def refuse(what: str, length: int, left: int) -> NoReturn:
    if length < 0:
        raise MalformedMessage(f"{what} has the negative length {length}.")
    raise MalformedMessage(f"{what} claims a length of {length}, which {left} remaining bytes cannot hold.")


def refuse_string(what: str, length: int, left: int) -> NoReturn:
    if length > STRING_LENGTH_MAX:
        raise MalformedMessage(f"{what} claims a length of {length}; a string has at most {STRING_LENGTH_MAX} bytes.")
    refuse(what, length, left)


def refuse_null(what: str) -> NoReturn:
    raise MalformedMessage(f"{what} is null, which this version does not allow.")


def refuse_tag(what: str, claimed: int, read: int) -> NoReturn:
    raise MalformedMessage(f"The tagged field {what} claims {claimed} bytes and has {read}.")


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """An unsigned number of up to 32 bits, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise MalformedMessage("A variable-length number has more than five bytes.")
    if value > 0xFFFFFFFF:
        raise MalformedMessage(f"The variable-length number {value} has more than 32 bits.")
    return value, at


def _make_varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


_VARINTS: Final = tuple(map(_make_varint, range(256)))
"""Lengths are mostly small."""


def varint(value: int) -> bytes:
    return _VARINTS[value] if value < 256 else _make_varint(value)


def skip_tags(data: Buffer, at: int, end: int) -> int:
    """Where a tagged section ends of which we know no field. Each takes two bytes or more, so it does end."""
    count, at = read_varint(data, at)
    if count > TAGS_MAX:
        refuse_tags(count)
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        if size > end - at:
            refuse("A tagged field", size, end - at)
        at += size
    return at


@functools.lru_cache(maxsize=1024)
def to_uuid(raw: bytes) -> uuid.UUID | None:
    """Cached: making a UUID takes longer than reading the rest of a partition, and topics are few."""
    return uuid.UUID(bytes=raw) if any(raw) else None


ZERO_UUID: Final = bytes(16)

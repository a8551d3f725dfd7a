"""Produce, by hand: the one message whose cost every record shares.

Same bytes as `messages.produce` through the codec (a test compares them on random messages); less work: no objects
for the request, and an answer of successes is packed straight from its numbers. Only the flexible versions (9 and
newer, what current clients send) are here; older ones take the general way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from onceflow.errors import MalformedMessage
from onceflow.wire.primitives import (
    ARRAY_LENGTH_MAX,
    STRING_LENGTH_MAX,
    read_varint,
    refuse_string,
    refuse_work,
    skip_tags,
    varint,
)

__all__ = ["BY_HAND_FROM_VERSION", "Batch", "ProduceBody", "Written", "encode_success", "read_produce"]

BY_HAND_FROM_VERSION: Final = 9
TOPIC_IDS_FROM_VERSION: Final = 13

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_INDEX: Final = struct.Struct(">i")
_SUCCESS: Final = struct.Struct(">ihqqqBBB")
"""index, error 0, base offset, append time, log start, then: no record errors, no message, no tags."""
_THROTTLE: Final = struct.Struct(">iB")

TopicKey = str | bytes
"""A topic by its name or, from version 13 on, by the 16 bytes of its id."""
Batch = tuple[int, memoryview]
"""A partition index, and the record batch for it as a view into the frame."""
Written = tuple[int, int, int, int]
"""A partition index, and where its batch went: base offset, append time, log start."""


class ProduceBody(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[Batch]]]


def read_produce(frame: memoryview, at: int, version: int, elements_max: int = ARRAY_LENGTH_MAX) -> ProduceBody:
    """The body of a Produce request of version 9 or newer. Bytes behind it are ignored, as Kafka ignores them.

    It may have so many topics, partitions and tagged fields in all; more are refused before they are read.
    """
    end = len(frame)
    left = elements_max
    try:
        length, at = read_varint(frame, at)
        transactional_id = None
        if length:
            transactional_id, at = _text(frame, at, length - 1)
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, at)
        at += 6
        count, at = read_varint(frame, at)
        topics: list[tuple[TopicKey, list[Batch]]] = []
        if count > 2:  # what is in arrays of one is as many as what they are in
            left = _charged(left, count)
        for _ in range(_bounded(count, end - at)):
            key: TopicKey
            if version >= TOPIC_IDS_FROM_VERSION:
                key, at = bytes(frame[at : at + 16]), at + 16
            else:
                length, at = read_varint(frame, at)
                key, at = _text(frame, at, length - 1)
            count, at = read_varint(frame, at)
            if count > 2:
                left = _charged(left, count)
            batches: list[Batch] = []
            for _ in range(_bounded(count, end - at)):
                (index,) = _INDEX.unpack_from(frame, at)
                length, at = read_varint(frame, at + 4)
                records = frame[at : at + length - 1] if length else frame[at:at]
                if length and len(records) != length - 1:
                    raise MalformedMessage("A Produce request ends in the middle of a record batch.")
                at += len(records)
                if frame[at] == 0:
                    at += 1
                else:
                    at, left = _skip_tags(frame, at, end, left)
                batches.append((index, records))
            if frame[at] == 0:
                at += 1
            else:
                at, left = _skip_tags(frame, at, end, left)
            topics.append((key, batches))
        if frame[at]:
            _skip_tags(frame, at, end, left)
    except (IndexError, struct.error, ValueError):
        raise MalformedMessage(f"A Produce request of version {version} is cut short or garbled.") from None
    return ProduceBody(transactional_id, acks, timeout_ms, topics)


def _bounded(count: int, left: int) -> int:
    """The number of elements behind a compact count; each takes at least a byte."""
    if not 0 < count <= left + 1:
        raise MalformedMessage(f"A Produce request announces {count - 1} elements in {left} bytes.")
    return count - 1


def _charged(left: int, count: int) -> int:
    """How many elements there may be after so many."""
    if count > left:
        refuse_work("A Produce request")
    return left - count


def _skip_tags(frame: memoryview, at: int, end: int, left: int) -> tuple[int, int]:
    """Where the tagged section ends, and how many elements there may be after it."""
    left = _charged(left, read_varint(frame, at)[0])
    return skip_tags(frame, at, end), left


def _text(frame: memoryview, at: int, length: int) -> tuple[str, int]:
    if not 0 <= length <= min(len(frame) - at, STRING_LENGTH_MAX):
        refuse_string("A string of a Produce request", length, len(frame) - at)
    return str(frame[at : at + length], "utf-8"), at + length


def encode_success(topics: Sequence[tuple[TopicKey, Sequence[Written]]], version: int) -> bytes:
    """The body of a Produce response in which every batch was written."""
    parts = [varint(len(topics) + 1)]
    for key, partitions in topics:
        if isinstance(key, bytes):
            parts.append(key)
        else:
            name = key.encode()
            parts += (varint(len(name) + 1), name)
        parts.append(varint(len(partitions) + 1))
        for index, base_offset, append_time_ms, log_start in partitions:
            parts.append(_SUCCESS.pack(index, 0, base_offset, append_time_ms, log_start, 1, 0, 0))
        parts.append(b"\0")
    parts.append(_THROTTLE.pack(0, 0))
    return b"".join(parts)

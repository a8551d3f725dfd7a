"""Frames that no honest client sends, made from frames that one could send.

A corpus of valid requests, several of every API and version that the broker serves, is filled from the schemas with
values that mean something to the broker (its topics, its settings) and values at the edges. `Mutator.next` damages
one of them: flipped bytes, absurd lengths, cuts, splices, noise, tags. The length in front stays right, so that each
frame is judged for itself; frames that lie about their length come from `liars`.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections import Counter
from typing import Any

from onceflow.broker.handlers import APIS
from onceflow.config import TOPIC_SETTINGS
from onceflow.errors import MalformedMessage
from onceflow.wire.codec import decode, read_request_header
from onceflow.wire.messages import request_class
from onceflow.wire.messages.create_partitions import CreatePartitionsRequest
from onceflow.wire.messages.create_topics import CreateTopicsRequest
from onceflow.wire.schema import Field, Message, in_range
from tests.support.raw import batch
from tests.support.raw_client import frame_of

__all__ = ["TOPICS", "Mutator", "api_of", "corpus", "liars", "makes_many_partitions"]

TOPICS = ("fuzz-a", "fuzz-b", "fuzz-c")
ABSURD = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x7f\xff",
    b"\xff\xfe",
    b"\x00\x00\x00\x00",
)
HEADER_END = 4 + 10 + len("raw")
CREATE_TOPICS, CREATE_PARTITIONS = 19, 37
PARTITIONS_MAX = 4

_INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}


class _Filler:
    """Makes messages of any class."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._batches = [
            batch(b"one"),
            batch(b"one", b"two", compression=1),
            batch(b"three", producer=(7, 0), sequence=0),
            batch(None, b"", key=b"k", compression=4),
            b"",
            b"\0" * 61,
        ]

    def message(self, cls: type[Message], version: int) -> Message:
        values = {
            field.name: self._value(field, version)
            for field in cls.FIELDS
            if in_range(version, field.versions) and (field.tag is None or self._dice.random() < 0.3)
        }
        return cls(**values)

    def _value(self, field: Field, version: int) -> Any:
        dice = self._dice
        if in_range(version, field.null) and dice.random() < 0.15:
            return None
        if field.is_array:
            return [self._one(field, version) for _ in range(dice.choice((0, 1, 1, 1, 2, 3)))]
        return self._one(field, version)

    def _one(self, field: Field, version: int) -> Any:
        dice = self._dice
        kind = field.kind
        if not isinstance(kind, str):
            return self.message(kind, version)
        if kind in _INT_BITS:
            return self._number(field.name, kind)
        if kind == "bool":
            return dice.random() < 0.5
        if kind == "uuid":
            return dice.choice((None, uuid.UUID(int=dice.getrandbits(128))))
        if kind == "string":
            return self._text(field.name)
        if kind == "records":
            return dice.choice(self._batches)
        if kind == "float64":
            return dice.choice((0.0, -1.0, float("inf"), float("nan")))
        return dice.randbytes(dice.randrange(4))

    def _number(self, name: str, kind: str) -> int:
        if name in ("num_partitions", "count"):
            return self._dice.choice((-1, 0, 1, 2, 3, 10_001))
        if name == "max_wait_ms":
            return self._dice.choice((0, 1, 5))
        if name == "resource_type":
            return self._dice.choice((2, 2, 4, 0, 127))
        bits = _INT_BITS[kind]
        low, high = (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return self._dice.choice((0, 0, 1, 1, 2, low, high, max(low, -1), max(low, -2)))

    def _text(self, name: str) -> str:
        dice = self._dice
        if "config" in name or name in ("name", "value"):
            common = (*TOPIC_SETTINGS, "0", "1", "100", "-1", "delete", "compact", "true", "nan", "9" * 30)
            if dice.random() < 0.6:
                return dice.choice(common)
        return dice.choice((*TOPICS, *TOPICS, "", "fuzz", "../fuzz", "a" * 249, "a" * 300, "\u00e9\u4e16", "1"))


def api_of(frame: bytes | bytearray) -> tuple[int, int]:
    """Api key and version of a frame."""
    key, version = struct.unpack_from(">hh", frame, 4)
    return key, version


def corpus(dice: random.Random, per_version: int) -> list[bytes]:
    filler = _Filler(dice)
    return [
        frame_of(filler.message(request_class(key), version), version)
        for key, api in APIS.items()
        for version in range(api.min_version, api.max_version + 1)
        for _ in range(per_version)
    ]


class Mutator:
    """Goes through the corpus again and again, each time in another order: no version is left out."""

    def __init__(self, frames: list[bytes], dice: random.Random) -> None:
        self._frames = frames
        self._left: list[bytes] = []
        self._dice = dice
        self.made: Counter[tuple[int, int]] = Counter()
        """Frames by the API and version that they were made from."""
        self._ways = [
            (40, self._as_it_is),
            (25, self._flip_in_body),
            (8, self._flip_anywhere),
            (12, self._absurd_number),
            (8, self._cut_short),
            (5, self._splice),
            (4, self._noise_after_header),
            (3, self._noise),
            (3, self._insert_or_remove),
            (2, self._tags),
        ]
        self._weights = [weight for weight, _ in self._ways]

    def next(self, correlation_id: int) -> bytes:
        """A frame; its correlation id is the given one unless the damage hit just that."""
        while True:
            if not self._left:
                self._left = self._dice.sample(self._frames, len(self._frames))
            frame = bytearray(self._left.pop())
            api = api_of(frame)
            struct.pack_into(">i", frame, 8, correlation_id)
            [(_, way)] = self._dice.choices(self._ways, self._weights)
            body = way(frame)[4:]
            if not makes_many_partitions(body):
                self.made[api] += 1
                return struct.pack(">i", len(body)) + body

    def _place(self, frame: bytearray, start: int = HEADER_END) -> int:
        return self._dice.randrange(min(start, len(frame) - 1), len(frame))

    def _as_it_is(self, frame: bytearray) -> bytearray:
        return frame

    def _flip_in_body(self, frame: bytearray) -> bytearray:
        for _ in range(self._dice.randrange(1, 4)):
            frame[self._place(frame)] = self._dice.randrange(256)
        return frame

    def _flip_anywhere(self, frame: bytearray) -> bytearray:
        for _ in range(self._dice.randrange(1, 3)):
            frame[self._place(frame, 4)] = self._dice.randrange(256)
        return frame

    def _absurd_number(self, frame: bytearray) -> bytearray:
        at = self._place(frame)
        absurd = self._dice.choice(ABSURD)
        frame[at : at + len(absurd)] = absurd
        return frame

    def _cut_short(self, frame: bytearray) -> bytearray:
        del frame[self._dice.randrange(5, len(frame)) :]
        return frame

    def _splice(self, frame: bytearray) -> bytearray:
        other = self._dice.choice(self._frames)
        return frame[: self._place(frame)] + other[self._dice.randrange(4, len(other)) :]

    def _noise_after_header(self, frame: bytearray) -> bytearray:
        return frame[:HEADER_END] + self._dice.randbytes(self._dice.randrange(200))

    def _noise(self, frame: bytearray) -> bytearray:
        return frame[:4] + self._dice.randbytes(self._dice.randrange(1, 300))

    def _insert_or_remove(self, frame: bytearray) -> bytearray:
        at = self._place(frame)
        if self._dice.random() < 0.5:
            del frame[at : at + self._dice.randrange(1, 9)]
        else:
            frame[at:at] = self._dice.randbytes(self._dice.randrange(1, 9))
        return frame

    def _tags(self, frame: bytearray) -> bytearray:
        """Many tagged fields at the end, known and unknown, in frames that can have them and in others."""
        count = self._dice.choice((1, 3, 100, 5000))
        tags = b"".join(bytes((self._dice.randrange(6), 2)) + self._dice.randbytes(2) for _ in range(min(count, 1000)))
        claimed = bytes((count & 0x7F | 0x80, count >> 7)) if count > 127 else bytes((count,))
        return frame[:-1] + claimed + tags


def makes_many_partitions(body: bytes | bytearray) -> bool:
    """Whether this lawfully keeps a broker busy for long: asking for thousands of folders is no protocol error."""
    try:
        header = read_request_header(body)
        api = APIS.get(header.api_key)
        if api is None or header.api_key not in (CREATE_TOPICS, CREATE_PARTITIONS):
            return False
        if not api.min_version <= header.api_version <= api.max_version:
            return False
        request = decode(request_class(header.api_key), header.api_version, body, header.body_at)
    except MalformedMessage:
        return False
    if request.validate_only:  # type: ignore[attr-defined]
        return False
    if isinstance(request, CreateTopicsRequest):
        return any(
            PARTITIONS_MAX < topic.num_partitions <= 10_000 or topic.name not in TOPICS for topic in request.topics
        )
    assert isinstance(request, CreatePartitionsRequest)
    return any(PARTITIONS_MAX < topic.count <= 10_000 for topic in request.topics)


def liars(frames: list[bytes], dice: random.Random) -> bytes:
    """Bytes whose length in front is wrong, or that end before they should."""
    frame = dice.choice(frames)
    lie = dice.choice((0, -1, -(2**31), 2**31 - 1, 104_857_601, 104_857_600, 1 << 20, len(frame), len(frame) - 5, 1, 3))
    return dice.choice(
        (
            struct.pack(">i", lie) + frame[4:],
            frame[: dice.randrange(1, len(frame))],
            frame + frame[: dice.randrange(1, len(frame))],
            dice.randbytes(dice.randrange(1, 600)),
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + dice.randbytes(200),
        )
    )

"""The frames that cost most, made from the schemas: for every API and version, of any size.

What a frame of some size can cost is in what there is most of in it. So each one is filled with one thing:

- an array, wherever the schema has one, with the smallest elements it can have: as many as there is room for, and as
  many as the broker takes (`Api.elements_max`);
- the same with elements that name what exists, over and over, or what does not, each time something else;
- arrays in arrays, all of the same length, or empty, or null where "all" is often meant;
- nulls, which often mean "all", in the elements of an array;
- strings and bytes as long as can be, and arrays of them;
- tagged fields, in the header, in the body and in the elements of arrays.

Batches of records are in `worst_batches`. Frames are made as bytes, not through the codec: eight megabytes of one
element are one multiplication.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from uuid import UUID

from onceflow.broker.handlers import APIS
from onceflow.wire.codec import is_flexible, request_header
from onceflow.wire.messages import request_class
from onceflow.wire.primitives import varint
from onceflow.wire.schema import Field, Message, in_range

__all__ = ["SIZES", "WIDE", "WORST", "Frame", "World", "worst_frames"]

SIZES: Final = {"1 KB": 1 << 10, "64 KB": 1 << 16, "1 MB": 1 << 20, "8 MB": 8 << 20}
WORST: Final = "worst"
"""The name of everything that exists: a topic, a group, a transactional id."""
WIDE: Final = "wide"
"""A topic with many partitions."""
STRING_MAX: Final = 32_767
TAGS_MAX: Final = 1_000
ROOM: Final = 256
"""For what is around what a frame is filled with."""
DIGITS: Final = 8
SHORT: Final = 200
NUMBERS: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "bool": "?",
}


class Step(NamedTuple):
    """One field on the way to what a frame is filled with."""

    name: str
    is_array: bool


Path = tuple[Step, ...]


class Frame(NamedTuple):
    api_key: int
    version: int
    filled_with: str
    data: bytes
    """Without its length."""

    def __str__(self) -> str:
        name = request_class(self.api_key).__name__.removesuffix("Request")
        return f"{name} v{self.version}, {len(self.data)} bytes of {self.filled_with}"


@dataclass(frozen=True)
class World:
    """What there is on the broker."""

    topic_ids: dict[str, UUID] = field(default_factory=dict)
    batch: bytes = b""
    numbers: dict[str, int] = field(default_factory=dict)


# What fields mean to the broker, so that it does something with an element instead of refusing it.
MEANINGS: Final[dict[str, int]] = {
    "acks": -1,
    "timeout_ms": 100,
    "resource_type": 2,
    "resource_type_filter": 2,
    "resource_pattern_type": 3,
    "pattern_type_filter": 1,
    "pattern_type": 3,
    "operation": 2,
    "permission_type": 3,
    "max_bytes": 2**31 - 1,
    "partition_max_bytes": 2**31 - 1,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 2,
    "iterations": 16_384,
    "mechanism": 1,
    "replica_id": -1,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "generation_id_or_member_epoch": -1,
    "generation_id": -1,
    "transaction_timeout_ms": 60_000,
    "response_partition_limit": 2000,
    "config_operation": 0,
    "include_synonyms": 1,
    "include_documentation": 1,
    "include_cluster_authorized_operations": 1,
    "include_topic_authorized_operations": 1,
    "timestamp": 1,
}
TEXTS: Final[dict[str, bytes]] = {
    "protocol_type": b"consumer",
    "subscribed_topic_regex": b"(worst*)*$",
    "principal": b"User:worst",
    "host": b"*",
    "value": b"1000",
    "cluster_id": b"",
    "client_software_name": b"worst",
    "client_software_version": b"1",
}


@dataclass(frozen=True)
class _Style:
    """How the parts of a message are filled that the frame is not about."""

    world: World
    name: bytes = b""
    means_something: bool = False
    nulls: bool = False
    inner: int = 0
    """Elements of arrays that are not on the path."""
    tags: int = 0
    """Unknown tagged fields in the elements of the array at the end of the path."""
    long_name: int = 0
    """The length of the string or bytes at the end of the path."""


def worst_frames(api_key: int, version: int, size: int, world: World) -> Iterator[Frame]:
    """All that this schema allows, of about this size at most."""
    made = _Maker(api_key, version, size, world)
    seen = set()
    for filled_with, body in made.bodies():
        if len(body) <= size and body not in seen:
            if len(body) < 1 << 17:
                seen.add(body)
            yield Frame(api_key, version, filled_with, made.header + body)
    if is_flexible(made.cls, version):
        for tags, filled_with in made.tag_sections():
            yield Frame(api_key, version, f"{filled_with} in the header", made.header[:-1] + tags + made.plain())
    client_id = b"w" * STRING_MAX
    if size > STRING_MAX:
        head = struct.pack(">hhihs", api_key, version, 7, len(client_id), b"")[:10]
        tags = b"\0" if is_flexible(made.cls, version) else b""
        yield Frame(api_key, version, "client id", head + client_id + tags + made.plain())


class _Maker:
    def __init__(self, api_key: int, version: int, size: int, world: World) -> None:
        self.cls = request_class(api_key)
        self.version = version
        self.room = size - ROOM
        self.elements_max = APIS[api_key].elements_max
        self.header = request_header(self.cls, version, 7, WORST)
        self.flexible = is_flexible(self.cls, version)
        plain = _Style(world)
        self.empty = plain
        self.existing = replace(plain, name=WORST.encode(), means_something=True, inner=1)
        self.styles = {
            "the smallest": plain,
            "what exists": self.existing,
            "what exists, without more": replace(self.existing, inner=0),
            "what is wide": replace(self.existing, name=WIDE.encode()),
            "what exists, with nulls": replace(self.existing, nulls=True),
        }

    def plain(self) -> bytes:
        return self.message(self.cls, self.existing, (), ())

    def bodies(self) -> Iterator[tuple[str, bytes]]:
        yield "nothing", self.plain()
        yield "nulls", self.message(self.cls, replace(self.existing, nulls=True, inner=0), (), ())
        for path in _arrays(self.cls, self.version):
            yield from self._with_array(path)
        for path in _outer_arrays(self.cls, self.version):
            yield from self._with_outer_array(path)
        for path, kind in _texts(self.cls, self.version):
            yield from self._with_text(path, kind)
        if self.flexible:
            for tags, filled_with in self.tag_sections():
                yield f"{filled_with} in the body", self.plain()[:-1] + tags

    def _with_array(self, path: Path) -> Iterator[tuple[str, bytes]]:
        depth = _depth(path)
        for called, style in self.styles.items():
            for wide in range(depth):
                fitting = self.room // self._growth(path, style, wide)
                allowed = (self.elements_max - depth) // (depth - wide + style.inner)
                for count in {fitting, min(fitting, allowed)} - {0}:
                    counts = (*(1,) * wide, count, *(1,) * (depth - wide - 1))
                    yield f"{_spelled(path, counts)}, {called}", self._build(path, counts, style)
            if depth > 1:
                side = (self.room / self._growth(path, style, depth - 1)) ** (1 / depth)
                counts = (int(min(side, (self.elements_max / (1 + style.inner)) ** (1 / depth))),) * depth
                if counts[0] > 1:
                    yield f"{_spelled(path, counts)}, {called}", self._build(path, counts, style)
        for wide in range(depth):
            yield from self._with_distinct(path, wide)
        if self.flexible and path[-1].is_array:
            for tags in (1, TAGS_MAX):
                style = replace(self.empty, tags=tags)
                count = self.room // self._growth(path, style, depth - 1)
                if count:
                    counts = (*(1,) * (depth - 1), count)
                    yield f"{_spelled(path, counts)}, {tags} tagged fields each", self._build(path, counts, style)

    def _with_outer_array(self, path: Path) -> Iterator[tuple[str, bytes]]:
        """Elements with arrays that are empty or null, which often means: all of it."""
        depth = _depth(path)
        for called, nulls in (("with nothing in them", False), ("with nulls in them", True)):
            style = replace(self.existing, inner=0, nulls=nulls)
            fitting = self.room // self._growth(path, style, depth - 1)
            for count in {fitting, min(fitting, self.elements_max - depth)} - {0}:
                counts = (*(1,) * (depth - 1), count)
                yield f"{_spelled(path, counts)} {called}", self._build(path, counts, style)

    def _with_distinct(self, path: Path, wide: int) -> Iterator[tuple[str, bytes]]:
        """Elements that differ in every name they have."""
        depth, mark = _depth(path), b"w" + b"#" * DIGITS
        style = replace(self.existing, name=mark)
        _, element, _ = self._build(path, (1,) * depth, style, around=wide, keep=True).split(AROUND)
        if mark not in element:
            return
        count = min(self.room // len(element), self.elements_max // (1 + depth - wide))
        pieces = element.split(mark)
        many = b"".join((b"w%0*d" % (DIGITS, at)).join(pieces) for at in range(count))
        # A frame with one element, and the many in its place.
        before, after = self._build(path, (1,) * depth, style, around=wide).split(AROUND)
        counts = (*(1,) * wide, count, *(1,) * (depth - wide - 1))
        yield f"{_spelled(path, counts)}, each another name", before + self._count(count) + many + after

    def _with_text(self, path: Path, kind: str) -> Iterator[tuple[str, bytes]]:
        depth = _depth(path)
        longest = min(self.room, STRING_MAX) if kind == "string" else self.room
        for length, count in (
            (longest, 1),
            (longest, self.room // (longest + 64)),
            (SHORT, min(self.room // (SHORT + 64), self.elements_max // (depth + 1))),
        ):
            if length < 1 or count < 1 or (count > 1 and not depth):
                continue
            counts = (*(1,) * (depth - 1), count) if depth else ()
            style = replace(self.existing, inner=0, long_name=length)
            yield f"{_spelled(path, counts)} with {length} bytes", self._build(path, counts, style)

    def tag_sections(self) -> Iterator[tuple[bytes, str]]:
        few, many = min(TAGS_MAX, self.room // 3), self.room // 3
        for count in {few, many}:
            # Numbers above those that any schema knows.
            yield varint(count) + b"\x7f\x00" * count, f"{count} tagged fields"
        for count in {few, many}:
            yield varint(count) + b"\x00\x00" * count, f"{count} times the first tagged field"
        yield b"\x01\x7f" + varint(self.room) + bytes(self.room), "a tagged field"

    # Bytes

    def _growth(self, path: Path, style: _Style, wide: int) -> int:
        """By how many bytes a frame grows with one element more at this level."""
        depth = _depth(path)
        one = self._build(path, (1,) * depth, style)
        two = self._build(path, (*(1,) * wide, 2, *(1,) * (depth - wide - 1)), style)
        return max(1, len(two) - len(one))

    def _build(self, path: Path, counts: tuple[int, ...], style: _Style, around: int = -1, keep: bool = False) -> bytes:
        return self.message(self.cls, style, path, counts, around, keep)

    def message(
        self,
        cls: type[Message],
        style: _Style,
        path: Path,
        counts: tuple[int, ...],
        around: int = -1,
        keep: bool = False,
    ) -> bytes:
        """`path` names fields from here on; the arrays on it have so many elements. Where `around` is zero, its array
        is a mark instead, or (`keep`) its one element between two marks."""
        parts, tags = [], []
        for entry in sorted(_present(cls, self.version), key=lambda entry: entry.tag is not None):
            on_path = bool(path) and path[0].name == entry.name
            if entry.tag is not None and not on_path:
                continue
            if on_path:
                value = self._on_path(entry, style, path, counts, around, keep)
            else:
                value = self._value(entry, style)
            if entry.tag is None:
                parts.append(value)
            else:
                tags.append(varint(entry.tag) + varint(len(value)) + value)
        if self.flexible and is_flexible(cls, self.version):
            unknown = 0 if path else style.tags
            parts.append(varint(len(tags) + unknown))
            parts += tags
            parts.append(b"\x7f\x00" * unknown)
        return b"".join(parts)

    def _on_path(
        self, entry: Field, style: _Style, path: Path, counts: tuple[int, ...], around: int, keep: bool
    ) -> bytes:
        rest = path[1:]
        if entry.is_array:
            count = counts[0]
            if isinstance(entry.kind, str):
                longest = style.long_name if not rest else 0
                element = self._one(entry.kind, entry, replace(style, long_name=longest))
            else:
                element = self.message(entry.kind, style, rest, counts[1:], around - 1, keep)
            if around == 0:
                return self._count(1) + AROUND + element + AROUND if keep else AROUND
            return self._count(count) + element * count
        if not isinstance(entry.kind, str):
            present = b"\x01" if in_range(self.version, entry.null) and entry.tag is None else b""
            return present + self.message(entry.kind, style, rest, counts, around, keep)
        return self._one(entry.kind, entry, style)

    def _value(self, entry: Field, style: _Style) -> bytes:
        style = replace(style, long_name=0, tags=0)
        nullable = in_range(self.version, entry.null)
        if entry.is_array:
            if nullable and style.nulls:
                return b"\0" if self.flexible else b"\xff" * 4
            if isinstance(entry.kind, str):
                element = self._one(entry.kind, entry, style)
            else:
                element = self.message(entry.kind, style, (), ())
            return self._count(style.inner) + element * style.inner
        if not isinstance(entry.kind, str):
            if nullable and entry.tag is None:
                return b"\xff" if style.nulls or not style.inner else b"\x01" + self.message(entry.kind, style, (), ())
            return self.message(entry.kind, style, (), ())
        if nullable and style.nulls and entry.kind in ("string", "bytes", "records"):
            return self._null(entry.kind)
        return self._one(entry.kind, entry, style)

    def _null(self, kind: str) -> bytes:
        return b"\0" if self.flexible else b"\xff\xff" if kind == "string" else b"\xff" * 4

    def _one(self, kind: str, entry: Field, style: _Style) -> bytes:
        if kind == "uuid":
            return style.world.topic_ids.get(style.name.decode(), UUID(int=0)).bytes
        if kind in NUMBERS:
            value = MEANINGS.get(entry.name, 0) if style.means_something else 0
            value = style.world.numbers.get(entry.name, value) if style.means_something else value
            return struct.pack(">" + NUMBERS[kind], value)
        if style.long_name:
            text = (b"w" if kind == "string" else b"\0") * style.long_name
        elif kind == "string":
            text = TEXTS.get(entry.name, style.name) if style.means_something else b""
        else:
            text = style.world.batch if kind == "records" and style.means_something else b""
        if self.flexible:
            return varint(len(text) + 1) + text
        return struct.pack(">h" if kind == "string" else ">i", len(text)) + text

    def _count(self, count: int) -> bytes:
        return varint(count + 1) if self.flexible else struct.pack(">i", count)


AROUND: Final = b"\xfe\xdc\xba\x98 here \x98\xba\xdc\xfe"


def _present(cls: type[Message], version: int) -> Iterator[Field]:
    return (entry for entry in cls.FIELDS if in_range(version, entry.versions))


def _walk(cls: type[Message], version: int) -> Iterator[tuple[Path, Field]]:
    for entry in _present(cls, version):
        here = (Step(entry.name, entry.is_array),)
        yield here, entry
        if not isinstance(entry.kind, str):
            for path, last in _walk(entry.kind, version):
                yield here + path, last


def _arrays(cls: type[Message], version: int) -> list[Path]:
    """The arrays that hold no other: each stands for those around it, too."""
    paths = [path for path, last in _walk(cls, version) if last.is_array]
    return [path for path in paths if not any(other[: len(path)] == path for other in paths if other != path)]


def _outer_arrays(cls: type[Message], version: int) -> list[Path]:
    """The arrays that hold others."""
    paths = [path for path, last in _walk(cls, version) if last.is_array]
    return [path for path in paths if any(other[: len(path)] == path for other in paths if other != path)]


def _texts(cls: type[Message], version: int) -> list[tuple[Path, str]]:
    return [(path, last.kind) for path, last in _walk(cls, version) if last.kind in ("string", "bytes", "records")]


def _depth(path: Path) -> int:
    return sum(step.is_array for step in path)


def _spelled(path: Path, counts: tuple[int, ...] = ()) -> str:
    """topics[100].partitions[1]"""
    left = iter(counts)
    return ".".join(f"{step.name}[{next(left, '')}]" if step.is_array else step.name for step in path)

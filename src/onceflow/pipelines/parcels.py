"""How records travel from stage to stage: all that one task has for one shard is one row with a binary column.

Spark's operator with state handles every row and column by itself, in Python and one by one, which costs more than most
steps do; a parcel costs it one row.

In a parcel is what the next step takes (plain tuples), and what is already to be sent and only passes through: dead
letters, and what earlier steps have sent. That is packed at once, as the sink takes it, and never looked at again.
"""

from __future__ import annotations

import marshal
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final

import orjson

from onceflow.errors import ConfigError
from onceflow.pipelines.pipeline import Send, Step
from onceflow.spark.packed_rows import pack_rows

__all__ = ["PARCEL", "Outbox", "Parcels", "opened", "shard_of"]

PARCEL: Final = "shard INT, parcel BINARY"

Parcel = tuple[list[tuple[Any, ...]], list[bytes]]
"""What the step takes, and what passes through."""


def shard_of(key: object, shards: int) -> int:
    """Which shard a key belongs to. Written into checkpoints by way of the state: never to be changed."""
    return zlib.crc32(str(key).encode()) % shards


@lru_cache
def labels(shards: int) -> tuple[int, ...]:
    """The numbers under which Spark knows the shards: such that its hash partitioner deals them out evenly.

    Of the plain numbers 0 to 15 it would give three to one of four tasks and six to another. Written into checkpoints
    like the shards: never to be changed.
    """
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(_spark_hash(number) % shards, number)
        if len(found) == shards:
            return tuple(found[shard] for shard in range(shards))
    raise AssertionError


def _spark_hash(number: int) -> int:
    """Of an INT: Murmur3 (32 bits, seed 42), by which Spark partitions."""

    def rotated(word: int, by: int) -> int:
        return (word << by | word >> 32 - by) & _WORD

    word = rotated(number * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    mixed = rotated(42 ^ word, 13) * 5 + 0xE6546B64 & _WORD
    mixed ^= 4  # the length in bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = (mixed ^ mixed >> shift) * factor & _WORD
    return mixed - 2**32 if mixed >> 31 else mixed


_WORD: Final = 2**32 - 1


def opened(parcels: Iterable[bytes]) -> Parcel:
    """All parcels of a shard as one."""
    items: list[tuple[Any, ...]] = []
    passing: list[bytes] = []
    for parcel in parcels:
        some, packed = marshal.loads(parcel)
        items += some
        passing += packed
    return items, passing


class Parcels:
    """What is on its way to a step, by shard."""

    def __init__(self, step: Step) -> None:
        self._shards = step.shards
        self._items: defaultdict[int, list[Any]] = defaultdict(list)
        self.add = _Adders(self._items, step.shards)
        """`add[key](item)`."""

    def rows(self, passing: Sequence[bytes], turn: int) -> list[tuple[int, bytes]]:
        """Labels of shards, and their parcels.

        What only passes through goes with any of them; `turn` says with which first, or one would have all the work.
        """
        shards = sorted(self._items) or ([0] if passing else [])
        places: defaultdict[int, list[bytes]] = defaultdict(list)
        for number, each in enumerate(passing, turn):
            places[shards[number % len(shards)]].append(each)
        label = labels(self._shards)
        return [(label[shard], marshal.dumps((self._items.get(shard, []), places.get(shard, [])))) for shard in shards]


_Adder = Callable[[tuple[Any, ...]], None]


class _Adders(dict[object, _Adder]):
    """Functions by key, found when they are first asked for.

    Only texts and None are kept among the items of this dict, and integers apart: 1, 1.0 and True are equal, but as
    texts they are not, and the shard of a key must not depend on which of them came first.
    """

    def __init__(self, items: defaultdict[int, list[Any]], shards: int) -> None:
        super().__init__()
        self._items = items
        self._shards = shards
        self._integers: dict[int, _Adder] = {}

    def __missing__(self, key: object) -> _Adder:
        if type(key) is int:
            found = self._integers.get(key)
            if found is None:
                found = self._integers[key] = self._adder(key)
            return found
        found = self._adder(key)
        if key is None or type(key) is str:
            self[key] = found
        return found

    def _adder(self, key: object) -> _Adder:
        return self._items[shard_of(key, self._shards)].append


class Outbox:
    """What is to be sent, by topic."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: what Kafka calls the topics that may be written."""
        self._names = names
        self._rows: dict[str, tuple[list[bytes | None], list[bytes | None]]] = {}

    def add(self, send: Send) -> None:
        topic, key, value = send
        try:
            keys, values = self._rows[topic]
        except KeyError:
            keys, values = self._rows[topic] = self._new(topic)
        keys.append(None if key is None else key.encode())
        if value is None:
            values.append(None)
        else:
            values.append(value.encode() if type(value) is str else orjson.dumps(value))

    def _new(self, topic: str) -> tuple[list[bytes | None], list[bytes | None]]:
        if topic not in self._names:
            raise ConfigError(f"it sends to {topic!r}, which is not declared: there is {', '.join(self._names)}")
        return [], []

    def packed(self) -> list[bytes]:
        """In one piece, if there is anything."""
        return [pack_rows({self._names[topic]: rows for topic, rows in self._rows.items()})] if self._rows else []

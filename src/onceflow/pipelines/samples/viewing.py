"""An evening of viewing: 1,000 users, each with a taste, 50 events a second; one in twenty is not as it should be.

What is wrong comes in rounds: each kind once, in an order that chance decides, then the next round. So each is there
before 2,000 records, and makes about 0.2 percent of them.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from onceflow.pipelines.reference import Message
from onceflow.pipelines.viewing import CATALOGUE

__all__ = ["KINDS", "generate", "labelled"]

TOPIC: Final = "viewing_events"
PARTITIONS: Final = 3
START_MS: Final = 1_767_380_400_000
"""The evening of January 2nd, 2026, 19:00 UTC."""
APART_MS: Final = 20
USERS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
GAP: Final = (6, 30)
"""How many good ones come before each unusual record."""
KEPT: Final = 5_000
"""How many good records are remembered, to come a second time."""
ELSEWHERE: Final = ("Local News", "Cup Final", "Cooking With Bo", "Weather Tonight")
"""Shows that are in no catalogue."""


class _User:
    """Somebody with a taste: favourite genres are watched more often, and to the end."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.name = f"user-{number}"
        self.key = self.name.encode()
        self.seq = 0
        genres = list(CATALOGUE)
        chance.shuffle(genres)
        self.favourites, self.others = genres[:3], genres[3:]


class _Sample:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"viewing {seed}")
        self.users = [_User(number, self.chance) for number in range(USERS)]
        self.now = START_MS
        self.kept: list[tuple[bytes, bytes]] = []
        self.count = 0

    def event(self, age_ms: int = 0, had_one: bool = False) -> tuple[_User, dict[str, str]]:
        """A good event, its fields as JSON. `age_ms`: how long ago it was; `had_one`: its user had one before."""
        chance = self.chance.random
        user = self.users[int(chance() ** 1.5 * USERS)]
        while had_one and not user.seq:
            user = self.users[int(chance() ** 1.5 * USERS)]
        liked = chance() < 0.6
        genres = user.favourites if liked else user.others
        genre = genres[int(chance() * len(genres))]
        show = CATALOGUE[genre][int(chance() * 5)] if chance() < 0.95 else ELSEWHERE[int(chance() * 4)]
        length = 20 + 5 * int(chance() * 9)
        share = 0.75 + 0.3 * chance() if liked else 0.5 * chance() * chance()
        minutes = f"{length * share:.1f}" if chance() < 0.9 else str(int(length * share))
        user.seq += 1
        return user, {
            "user": f'"{user.name}"',
            "seq": str(user.seq),
            "show": f'"{show}"',
            "genre": f'"{genre}"',
            "minutes": minutes,
            "length": str(length),
            "at": str(self.now - int(chance() * 3_000) - age_ms),
        }

    def good(self, age_ms: int = 0) -> tuple[bytes, bytes]:
        user, fields = self.event(age_ms)
        found = user.key, _json(fields)
        if len(self.kept) < KEPT:
            self.kept.append(found)
        else:
            self.kept[self.count % KEPT] = found
        self.count += 1
        return found

    def again(self, back: int) -> tuple[bytes, bytes]:
        """The good record so many before, a second time."""
        return self.kept[(self.count - 1 - min(back, len(self.kept) - 1)) % len(self.kept)]

    def changed(self, **fields: str | None) -> tuple[bytes, bytes]:
        """A good event with other fields; None: without the field. It does not count as one of the user's."""
        user, event = self.event()
        user.seq -= 1
        return user.key, _json({name: text for name, text in {**event, **fields}.items() if text is not None})

    def late(self) -> tuple[bytes, bytes]:
        """Somebody's device was without a network for hours; meanwhile another one counted on."""
        user, event = self.event(age_ms=self.chance.randrange(120, 300) * MINUTE_MS, had_one=True)
        user.seq -= 1
        return user.key, _json(event)

    def value(self, change: Callable[[bytes], bytes]) -> tuple[bytes, bytes]:
        key, value = self.changed()
        return key, change(value)


def _json(fields: Mapping[str, str]) -> bytes:
    return ("{" + ", ".join([f'"{name}": {text}' for name, text in fields.items()]) + "}").encode()


def _harmless(sample: _Sample, **fields: str) -> tuple[bytes, bytes]:
    user, event = sample.event()
    return user.key, _json({**event, **fields})


KINDS: Final[Mapping[str, Callable[[_Sample], tuple[bytes, bytes | None]]]] = {
    "malformed JSON": lambda it: it.value(lambda value: value[:-9]),
    "not a number": lambda it: it.changed(minutes="NaN"),
    "infinite": lambda it: it.changed(minutes="1e999"),
    "half a character": lambda it: it.changed(show='"\\ud83d"'),
    "not UTF-8": lambda it: it.value(lambda value: value.replace(b'"show": "', b'"show": "\xff\xfe')),
    "no value": lambda it: (it.changed()[0], None),
    "empty value": lambda it: (it.changed()[0], b""),
    "not an object": lambda it: it.value(lambda value: b"[" + value + b"]"),
    "missing field": lambda it: it.changed(**{it.chance.choice(("user", "seq", "genre", "minutes", "at")): None}),
    "text for a number": lambda it: it.changed(seq='"7"'),
    "number for a text": lambda it: it.changed(show="42"),
    "fraction for an integer": lambda it: it.changed(length="45.0"),
    "true for a number": lambda it: it.changed(minutes="true"),
    "null": lambda it: it.changed(**{it.chance.choice(("user", "seq", "show", "minutes", "at")): "null"}),
    "integer out of range": lambda it: it.changed(seq=it.chance.choice((str(2**63), str(2**64), "-" + "9" * 30))),
    "extra fields": lambda it: _harmless(it, device='"tv"', tags='["a", {"b": null}]'),
    "key is not the user": lambda it: (b"\xffno text", _harmless(it)[1]),
    "emoji": lambda it: _harmless(it, show='"Caf\\u00e9 \\ud83d\\ude00 ☕"'),
    "empty user": lambda it: it.changed(user='""'),
    "negative seq": lambda it: it.changed(seq="-1"),
    "unknown genre": lambda it: it.changed(genre='"opera"'),
    "negative minutes": lambda it: it.changed(minutes="-3.5"),
    "no length": lambda it: it.changed(length=it.chance.choice(("0", "-45"))),
    "negative time": lambda it: it.changed(at="-1"),
    "from the future": lambda it: it.changed(at=str(it.now + 3 * HOUR_MS)),
    "near duplicate": lambda it: it.again(it.chance.randrange(3)),
    "far duplicate": lambda it: it.again(it.chance.randrange(1_000, KEPT)),
    "an older event": lambda it: it.good(age_ms=it.chance.randrange(5, 55) * MINUTE_MS),
    "late": lambda it: it.late(),
}
"""Everything unusual that is in a sample."""


def generate(seed: int, records: int) -> Iterator[Message]:
    """So many messages; the same for the same seed."""
    return (message for _, message in labelled(seed, records))


def labelled(seed: int, records: int) -> Iterator[tuple[str, Message]]:
    """Each with what it is: one of `KINDS`, or "good"."""
    sample = _Sample(seed)
    kinds: list[str] = []
    ahead = sample.chance.randint(*GAP)
    for number in range(records):
        sample.now = START_MS + number * APART_MS
        if ahead:
            ahead -= 1
            yield "good", _message(sample, *sample.good())
            continue
        ahead = sample.chance.randint(*GAP)
        if not kinds:
            kinds = list(KINDS)
            sample.chance.shuffle(kinds)
        kind = kinds.pop()
        yield kind, _message(sample, *KINDS[kind](sample))


def _message(sample: _Sample, key: bytes, value: bytes | None) -> Message:
    return Message(TOPIC, zlib.crc32(key) % PARTITIONS, key, value, sample.now)

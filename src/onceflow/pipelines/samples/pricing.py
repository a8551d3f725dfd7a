"""Input for the pipeline `pricing`: a morning in 40 regions, with rush hours, rain, drivers on the move, bad records.

About 40 ms pass from one record to the next. It begins with the weather in each region. Demand comes and goes in waves
that reach each region at another time. About one record in thirty is special in one of the ways of `BAD`, in each way
at least once within the first 2,000 records.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from onceflow.pipelines.reference import Message

START_MS: Final = 1_767_596_400_000
"""2026-01-05 07:00 UTC."""
STEP_MS: Final = 40
REGIONS: Final = 40
DRIVERS: Final = 2_000
WAVE_MS: Final = 900_000
BAD_SHARE: Final = 0.032
FIRST_BAD: Final = 1_200
"""By then the sample is old enough for a duplicate from far back."""
BAD_EVERY: Final = 20
NEAR: Final = 30
FAR: Final = 400
HISTORY: Final = 5_000
"""So far back duplicates reach, in messages of a topic. For requests that is seven minutes, more than the window."""
PARTITIONS: Final = {"ride_requests": 3, "driver_locations": 3, "external_data": 1}


class Labelled(NamedTuple):
    """A message, and what is special about it: a key of `BAD`, or None."""

    label: str | None
    message: Message


def generate(seed: int, records: int) -> Iterator[Message]:
    """So many messages; the same for the same seed."""
    for each in labelled(seed, records):
        yield each.message


def labelled(seed: int, records: int) -> Iterator[Labelled]:
    """`generate`, for those who want to know what is bad on purpose."""
    morning = Morning(seed)
    labels = list(BAD)
    for number in range(records):
        place, rest = divmod(number - FIRST_BAD, BAD_EVERY)
        label = None
        if rest == 0 and 0 <= place < len(labels):
            label = labels[place]
        elif number >= FIRST_BAD and morning.chance.random() < BAD_SHARE:
            label = morning.chance.choice(labels)
        yield Labelled(label, morning.next(label))


class Morning:
    """A world that produces records."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = START_MS
        self.past: dict[str, deque[Message]] = {topic: deque(maxlen=HISTORY) for topic in PARTITIONS}
        """Good ones."""
        self._records = 0
        self._requests = 0
        self._regions = [f"region-{number:02d}" for number in range(REGIONS)]
        self._partitions = {
            topic: {region: zlib.crc32(region.encode()) % count for region in self._regions}
            for topic, count in PARTITIONS.items()
        }
        self._drivers = [self.chance.randrange(REGIONS) for _ in range(DRIVERS)]

    def next(self, label: str | None) -> Message:
        self.now += self.chance.randrange(2 * STEP_MS + 1)
        if label is not None:
            return BAD[label](self)
        message = self.external(self._records, kind="weather") if self._records < REGIONS else self.good()
        self.past[message.topic].append(message)
        self._records += 1
        return message

    def good(self) -> Message:
        chance = self.chance.random()
        if chance < 0.01:
            return self.external(self.region())
        number = self.region()
        return self.request(number) if chance < self.demand(number) else self.ping()

    def region(self) -> int:
        return self.chance.randrange(REGIONS)

    def demand(self, number: int) -> float:
        """The share of requests among a region's records: from 0.15 to 0.75."""
        return 0.45 + 0.3 * math.sin(2 * math.pi * ((self.now - START_MS) / WAVE_MS + number / REGIONS))

    def at(self) -> int:
        """Devices are up to three seconds behind."""
        return self.now - int(self.chance.random() ** 2 * 3_000)

    def message(self, topic: str, number: int, value: str | bytes | None) -> Message:
        region = self._regions[number]
        content = value.encode() if isinstance(value, str) else value
        return Message(topic, self._partitions[topic][region], region.encode(), content, self.now)

    def request(self, number: int, distance_m: int | None = None, at: int | None = None, more: str = "") -> Message:
        self._requests += 1
        chance = self.chance.random
        distance = 700 + int(12_000 * chance() * chance()) if distance_m is None else distance_m
        return self.message(
            "ride_requests",
            number,
            f'{{"request_id":"ride-{self._requests}","region":"{self._regions[number]}",'
            f'"rider":"rider-{int(chance() * 20_000)}","distance_m":{distance},'
            f'"at":{self.at() if at is None else at}{more}}}',
        )

    def ping(self, at: int | None = None) -> Message:
        """A driver tells where he is: now and then in another region than before. Every fourth is not available."""
        driver = self.chance.randrange(DRIVERS)
        if self.chance.random() < 0.05:
            self._drivers[driver] = self.region()
        number = self._drivers[driver]
        available = "false" if self.chance.random() < 0.25 else "true"
        return self.message(
            "driver_locations",
            number,
            f'{{"region":"{self._regions[number]}","driver":"driver-{driver}","available":{available},'
            f'"at":{self.at() if at is None else at}}}',
        )

    def external(
        self, number: int, kind: str | None = None, severity: int | None = None, at: int | None = None
    ) -> Message:
        kind = self.chance.choice(("weather", "event", "traffic")) if kind is None else kind
        severity = int(101 * self.chance.random() ** 3) if severity is None else severity
        return self.message(
            "external_data",
            number,
            f'{{"region":"{self._regions[number]}","kind":"{kind}","severity":{severity},'
            f'"at":{self.at() if at is None else at}}}',
        )


# --- what is bad


def _with(morning: Morning, value: str | bytes | None) -> Message:
    """Something else in the place of a good value."""
    topic = morning.chance.choice(tuple(PARTITIONS))
    return morning.message(topic, morning.region(), value)


def _cut_off(morning: Morning) -> Message:
    message = morning.good()
    return message._replace(value=(message.value or b"")[: morning.chance.randrange(1, 30)])


def _changed(morning: Morning, change: Mapping[str, object], gone: str | None = None) -> Message:
    """A good request with other fields."""
    message = morning.request(morning.region())
    fields = {**json.loads(message.value or b"{}"), **change}
    fields.pop(gone, None)
    return message._replace(value=json.dumps(fields, separators=(",", ":")).encode())


def _again(morning: Morning, topic: str, nearest: int, farthest: int) -> Message:
    """A message comes once more. `nearest`, `farthest`: how many of its topic were between."""
    past = morning.past[topic]
    back = morning.chance.randint(min(nearest, len(past)), min(farthest, len(past)))
    return past[len(past) - back]._replace(timestamp=morning.now)


def _someone(morning: Morning, at: int) -> Message:
    """A request or a ping."""
    return morning.request(morning.region(), at=at) if morning.chance.random() < 0.5 else morning.ping(at=at)


BAD: Final[Mapping[str, Callable[[Morning], Message]]] = {
    "no value": lambda morning: _with(morning, None),
    "not UTF-8": lambda morning: _with(morning, b'{"region":"M\xfcnchen","at":1}'),
    "not JSON: cut off": _cut_off,
    "not JSON: NaN": lambda morning: _with(morning, '{"region":"region-00","at":NaN}'),
    "not JSON: half a character": lambda morning: _with(morning, '{"region":"\\ud83d","at":1}'),
    "no object": lambda morning: _with(morning, morning.chance.choice(["[]", "17", '"ride"', "null", "[1,2]"])),
    "a field is missing": lambda morning: _changed(morning, {}, morning.chance.choice(["region", "at", "request_id"])),
    "a field is null": lambda morning: _changed(morning, {morning.chance.choice(["rider", "at"]): None}),
    "wrong type: text": lambda morning: _changed(morning, {"distance_m": "1200"}),
    "wrong type: fraction": lambda morning: _changed(morning, {"distance_m": 1200.0}),
    "wrong type: true": lambda morning: _changed(morning, {"at": True}),
    "wrong type: number": lambda morning: _changed(morning, {"region": 7}),
    "out of range": lambda morning: _changed(morning, {"distance_m": 2**63 + morning.chance.randrange(9)}),
    "beyond 64 bits": lambda morning: _changed(morning, {"at": 10**30}),
    "negative at": lambda morning: _changed(morning, {"at": -morning.now}),
    "negative distance": lambda morning: morning.request(morning.region(), distance_m=-500),
    "no distance": lambda morning: morning.request(morning.region(), distance_m=0),
    "far too long": lambda morning: morning.request(morning.region(), distance_m=40_000_000),
    "unknown kind": lambda morning: morning.external(morning.region(), kind="strike"),
    "severity above 100": lambda morning: morning.external(morning.region(), severity=150),
    "severity below 0": lambda morning: morning.external(morning.region(), severity=-1),
    "from the future": lambda morning: _someone(morning, morning.now + morning.chance.randrange(7_200_000, 10**11)),
    "late": lambda morning: _someone(morning, morning.now - morning.chance.randrange(400_000, 4_000_000)),
    "late external": lambda morning: morning.external(
        morning.region(), at=morning.now - morning.chance.randrange(1_900_000, 9_000_000)
    ),
    "duplicate, near": lambda morning: _again(morning, "ride_requests", 1, NEAR),
    "duplicate, far": lambda morning: _again(morning, "ride_requests", FAR, HISTORY),
    "duplicate ping": lambda morning: _again(morning, "driver_locations", 1, NEAR),
    "duplicate external": lambda morning: _again(morning, "external_data", 1, NEAR),
    "extra fields": lambda morning: morning.request(morning.region(), more=',"app":"4.2","tip":null'),
    "a little late": lambda morning: _someone(morning, morning.now - morning.chance.randrange(20_000, 200_000)),
}

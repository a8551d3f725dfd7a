"""What the pipeline `pricing` must write, recomputed from docs/pipelines/pricing.md.

Slow and plain: a region has lists of the records that were accepted, and each tick looks through them for those in its
window. `explain` recomputes one price from its audit record and the input topics alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Any, Final

from onceflow.pipelines.reference import Expected, Raw

SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
TICK: Final = 30 * SECOND
WINDOW: Final = 5 * MINUTE
VALIDITY: Final = 30 * MINUTE

FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "ride_requests": {"request_id": str, "region": str, "rider": str, "distance_m": int, "at": int},
    "driver_locations": {"region": str, "driver": str, "available": bool, "at": int},
    "external_data": {"region": str, "kind": str, "severity": int, "at": int},
}
KINDS: Final = ("weather", "event", "traffic")
FORMULA_TEXT: Final = (
    "ratio = 1000 * demand // max(supply, 1); "
    "raw = 1000 + max(0, ratio - 1000) // 2 + 3 * weather + 4 * event + 2 * traffic; "
    "capped = min(raw, 3000); dampened = before + (capped - before) * 30 // 100; surge = (dampened + 5) // 10"
)


class Refused(Exception):
    """A record that ends in the dead letters, and why."""


@dataclass(frozen=True)
class Fact:
    """A record that counts."""

    topic: str
    partition: int
    offset: int
    at: int
    fields: Mapping[str, Any]


def fact_of(raw: Raw, values: Mapping[str, Any]) -> Fact:
    return Fact(raw.topic, raw.partition, raw.offset, values["at"], values)


@dataclass
class Region:
    name: str
    time: int
    """The newest `at`."""
    facts: dict[str, list[Fact]] = field(default_factory=lambda: {topic: [] for topic in FIELDS})
    """By topic."""
    last_tick: int | None = None
    dampened: int = 1000
    published: int | None = None

    @property
    def next_tick(self) -> int:
        return (self.time // TICK + 1) * TICK

    def seen_at(self, tick: int, topic: str) -> list[Fact]:
        """What a tick sees of a topic: the window, or what is valid of each kind."""
        if topic != "external_data":
            return [each for each in self.facts[topic] if tick - WINDOW <= each.at < tick]
        valid = [each for each in self.facts[topic] if tick - VALIDITY <= each.at < tick]
        newest = {each.fields["kind"]: each for each in sorted(valid, key=lambda each: each.at)}
        return list(newest.values())

    def forget(self) -> None:
        """Only to be fast enough: what no tick will see again."""
        self.facts = {topic: self.seen_at(self.next_tick, topic) for topic in FIELDS}


class Oracle:
    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def batch(self, records: Sequence[Raw]) -> list[Expected]:
        written: list[Expected] = []
        for raw in records:
            try:
                values = parsed(raw)
            except Refused as problem:
                written.append(_dead_letter_of_bytes(raw, str(problem)))
                continue
            try:
                self._take(raw, values, written)
            except Refused as problem:
                written.append(_dead_letter(raw, str(problem), json.dumps(values, ensure_ascii=False)))
        return written

    def state(self) -> Mapping[str, Any]:
        return {region.name: _state_of(region) for region in self._regions.values()}

    def _take(self, raw: Raw, values: Mapping[str, Any], written: list[Expected]) -> None:
        check_sense(raw, values)
        fact = fact_of(raw, values)
        region = self._regions.get(values["region"])
        if region is None:
            region = self._regions[values["region"]] = Region(values["region"], fact.at)
        _check_place(region, fact)
        for tick in _ticks(region, fact.at):
            written.extend(_price(region, tick))
        if fact.at >= region.next_tick:
            region.time = fact.at
            region.forget()
        region.time = max(region.time, fact.at)
        region.facts[fact.topic].append(fact)


# --- reading


def parsed(raw: Raw) -> dict[str, Any]:
    """The declared fields, or `Refused`."""
    if raw.value is None:
        raise Refused("there is no value")
    found = _json(raw.value)
    if not isinstance(found, dict):
        raise Refused(f"not a JSON object: {_shown(found)}")
    values = {}
    for name, kind in FIELDS[raw.topic].items():
        if name not in found:
            raise Refused(f"no field {name!r}")
        values[name] = found[name]
        if type(values[name]) is not kind:
            wanted = {str: "a text", int: "an integer", bool: "true or false"}[kind]
            raise Refused(f"{name!r} is not {wanted}: {_shown(values[name])}")
        if kind is int and abs(values[name]) >= 2**63:
            raise Refused(f"{name!r} is out of range: {_shown(values[name])}")
    return values


def _json(value: bytes) -> Any:
    """The standard library is more generous than JSON: it takes NaN, infinite numbers and half characters."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Refused("not UTF-8") from None
    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # fails for half a character
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    return found


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(text)
    return number


def _whole(text: str) -> int | float:
    """Integers beyond 64 bits are what most parsers make of them: floating-point numbers."""
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        return _finite(text)
    return int(text)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text[:60] + "..." if len(text) > 60 else text


# --- refusing


def check_sense(raw: Raw, values: Mapping[str, Any]) -> None:
    """What can be said of a record without knowing any other."""
    if values["at"] < 0:
        raise Refused(f"at is negative: {values['at']}")
    if values["at"] - raw.timestamp > HOUR:
        raise Refused("from the future: at is more than an hour after the record's timestamp")
    if "distance_m" in values and values["distance_m"] not in range(1, 1_000_001):
        raise Refused(f"distance_m is not in 1..1000000: {values['distance_m']}")
    if "kind" in values and values["kind"] not in KINDS:
        raise Refused("unknown kind")
    if "severity" in values and values["severity"] not in range(101):
        raise Refused(f"severity is not in 0..100: {values['severity']}")


def _check_place(region: Region, fact: Fact) -> None:
    """Is there still a tick that could see it, and is it new?"""
    if fact.at < region.next_tick - (VALIDITY if fact.topic == "external_data" else WINDOW):
        raise Refused("late")
    if fact.topic == "driver_locations":
        return
    for known in region.seen_at(region.next_tick, fact.topic):
        if fact.topic == "ride_requests" and known.fields["request_id"] == fact.fields["request_id"]:
            raise Refused("duplicate")
        if fact.topic == "external_data" and known.fields["kind"] == fact.fields["kind"] and fact.at <= known.at:
            raise Refused("late" if fact.at < known.at else "duplicate")


def _dead_letter(raw: Raw, reason: str, value: str) -> Expected:
    origin = {"topic": raw.topic, "partition": raw.partition, "offset": raw.offset, "timestamp": raw.timestamp}
    return Expected("pricing_dead_letters", None, {"reason": reason, **origin, "value": value})


def _dead_letter_of_bytes(raw: Raw, reason: str) -> Expected:
    letter = dict(_dead_letter(raw, reason, "").value or {})
    del letter["value"]
    for name, content in (("key", raw.key), ("value", raw.value)):
        try:
            letter[name] = None if content is None else content.decode()
        except UnicodeDecodeError:
            letter[f"{name}_base64"] = base64.b64encode(content or b"").decode()
    return Expected("pricing_dead_letters", None, letter)


# --- pricing


def _ticks(region: Region, at: int) -> list[int]:
    """The ticks that pass, without those that see neither requests nor drivers."""
    if at < region.next_tick:
        return []
    seen = [each.at for topic in ("ride_requests", "driver_locations") for each in region.facts[topic]]
    last = min(at, max(seen, default=0) + WINDOW)
    return [
        tick for tick in range(region.next_tick, last + 1, TICK) if any(tick - WINDOW <= each < tick for each in seen)
    ]


def _price(region: Region, tick: int) -> list[Expected]:
    requests, pings, external = (region.seen_at(tick, topic) for topic in FIELDS)
    before = region.dampened if region.last_tick == tick - TICK else 1000
    result = formula(requests, pings, external, before)
    surge, previous = result["surge"], region.published
    name = {"price_id": f"{region.name}/{tick}", "region": region.name, "tick": tick, "surge": surge}
    is_published = previous is None or abs(surge - previous) >= 5
    audit = {
        **name,
        **result,
        "published": is_published,
        "previous": previous,
        "window_start": tick - WINDOW,
        "formula": "surge-1",
        "formula_text": FORMULA_TEXT,
        "inputs": {topic: _offsets(facts) for topic, facts in zip(FIELDS, (requests, pings, external), strict=True)},
    }
    region.last_tick, region.dampened = tick, result["dampened"]
    written = [Expected("pricing_audit", region.name, audit)]
    if is_published:
        region.published = surge
        written.extend(_announced(name, previous, result["typical_distance_m"]))
    return written


def formula(requests: Sequence[Fact], pings: Sequence[Fact], external: Sequence[Fact], before: int) -> dict[str, Any]:
    """A price, and how it came about."""
    demand = len(requests)
    distances = [each.fields["distance_m"] for each in requests]
    supply = _available(pings)
    factors = dict.fromkeys(KINDS, 0) | {each.fields["kind"]: each.fields["severity"] for each in external}
    ratio = floor(Fraction(1000 * demand, supply or 1))
    excess = floor(Fraction(ratio - 1000, 2)) if ratio > 1000 else 0
    raw = 1000 + excess + 3 * factors["weather"] + 4 * factors["event"] + 2 * factors["traffic"]
    capped = 3000 if raw > 3000 else raw
    dampened = before + floor(Fraction(30, 100) * (capped - before))
    return {
        "demand": demand,
        "supply": supply,
        "typical_distance_m": floor(Fraction(sum(distances), demand)) if distances else None,
        "factors": factors,
        "ratio": ratio,
        "raw": raw,
        "capped": capped,
        "before": before,
        "dampened": dampened,
        "surge": floor(Fraction(dampened, 10) + Fraction(1, 2)),
    }


def _available(pings: Iterable[Fact]) -> int:
    """Drivers whose newest ping, and every ping of that same moment, says so."""
    by_driver: dict[str, list[Fact]] = {}
    for each in pings:
        by_driver.setdefault(each.fields["driver"], []).append(each)
    return sum(
        all(each.fields["available"] for each in theirs if each.at == max(other.at for other in theirs))
        for theirs in by_driver.values()
    )


def _announced(name: Mapping[str, Any], previous: int | None, distance: int | None) -> list[Expected]:
    region, surge = name["region"], name["surge"]
    per_km = floor(Fraction(120 * surge, 100) + Fraction(1, 2))
    fare = floor(Fraction(per_km * distance, 1000) + Fraction(1, 2)) if distance is not None else None
    fares = {"cents_per_km": per_km, "typical_distance_m": distance, "typical_fare_cents": fare}
    written = [
        Expected("pricing_updates", region, {**name, "previous": previous}),
        Expected("rider_updates", region, {**name, **fares}),
    ]
    if (previous or 0) < 150 <= surge:
        written.append(Expected("driver_notifications", region, {**name, "news": "surge began"}))
    if surge < 150 <= (previous or 0):
        written.append(Expected("driver_notifications", region, {**name, "news": "surge ended"}))
    return written


def _offsets(facts: Iterable[Fact]) -> dict[str, Any]:
    return {
        partition: {"first": min(found), "last": max(found), "count": len(found), "offsets": sorted(found)}
        for partition, found in _listed(facts).items()
    }


def _state_of(region: Region) -> dict[str, Any]:
    tick = region.next_tick
    return {
        "tick": tick,
        "slots": [_slot(region, start) for start in range(tick - WINDOW, tick, TICK)],
        "external": {
            each.fields["kind"]: [each.at, each.fields["severity"], each.partition, each.offset]
            for each in region.seen_at(tick, "external_data")
        },
        "priced": region.last_tick,
        "dampened": region.dampened,
        "published": region.published,
    }


def _slot(region: Region, start: int) -> dict[str, Any]:
    """What is remembered of 30 seconds."""
    requests, pings = (
        [each for each in region.facts[topic] if start <= each.at < start + TICK]
        for topic in ("ride_requests", "driver_locations")
    )
    drivers: dict[str, list[Any]] = {}
    for each in sorted(pings, key=lambda each: (each.at, not each.fields["available"])):
        drivers[each.fields["driver"]] = [each.at, each.fields["available"]]
    return {
        "requests": {each.fields["request_id"]: each.fields["distance_m"] for each in requests},
        "drivers": drivers,
        "ride_requests": _listed(requests),
        "driver_locations": _listed(pings),
    }


def _listed(facts: Iterable[Fact]) -> dict[str, list[int]]:
    partitions: dict[str, list[int]] = {}
    for each in facts:
        partitions.setdefault(str(each.partition), []).append(each.offset)
    return partitions


def explain(audit: Mapping[str, Any], read: Callable[[str, int, int], Raw]) -> dict[str, Any]:
    """A price from nothing but the records its audit record names. `read`: a record by topic, partition, offset.

    What comes out has the audit record's own names, to be compared with it.
    """
    used: dict[str, list[Fact]] = {topic: [] for topic in FIELDS}
    for topic, partitions in audit["inputs"].items():
        for partition, named in partitions.items():
            for offset in named["offsets"]:
                raw = read(topic, int(partition), offset)
                used[topic].append(fact_of(raw, parsed(raw)))
    return formula(used["ride_requests"], used["driver_locations"], used["external_data"], audit["before"])

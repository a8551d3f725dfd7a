"""Surge prices for rides, by region, each with an audit record that explains it (docs/pipelines/pricing.md).

    ride_requests ----+                                 +--> pricing_updates
    driver_locations -+--> set_prices, by region, ------+--> driver_notifications
    external_data ----+    a page of state per region   +--> rider_updates
                                                        +--> pricing_audit

A region's time is in its records, and runs in ticks of 30 seconds. When a record is at or after the next tick, the tick
passes first: demand and supply of the five minutes before it make a price. Then the record is taken in.

Invariants:

- A region's page has ten slots of 30 seconds: the window of its next tick. Besides, it has the external data that is
  valid then, and the last price. So it does not grow with time, and to forget is to drop a slot.
- A record either counts or is a dead letter, and a dead letter changes nothing, not even the region's time.
- A price depends on which records are in the window and not on their order. It is computed in whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from onceflow.pipelines.pipeline import Input, Pipeline, Record, Send, State, Step, dead_letter
from onceflow.pipelines.reference import Page
from onceflow.pipelines.tables import Json, Lands, Time

SLIDE_MS: Final = 30_000
SLOTS: Final = 10
WINDOW_MS: Final = SLOTS * SLIDE_MS
EXTERNAL_VALID_MS: Final = 1_800_000
AHEAD_MS_MAX: Final = 3_600_000
"""An `at` further ahead of the record's arrival is an error. Believed, it would make all that follows late."""
DISTANCE_M_MAX: Final = 1_000_000

WEIGHTS: Final = {"weather": 3, "event": 4, "traffic": 2}
"""Thousandths of surge for each percent of severity."""
NO_SURGE: Final = 1000
SURGE_MAX: Final = 3000
DAMPING_PERCENT: Final = 30
"""So much of the way to where the price should be is gone in one tick."""
PUBLISHED_FROM: Final = 5
"""Hundredths. Smaller changes are not worth a message."""
HIGH: Final = 150
"""Hundredths. Drivers are told when a price gets here, and when it leaves."""
CENTS_PER_KM: Final = 120

FORMULA: Final = "surge-1"
FORMULA_TEXT: Final = (
    "ratio = 1000 * demand // max(supply, 1); "
    "raw = 1000 + max(0, ratio - 1000) // 2 + 3 * weather + 4 * event + 2 * traffic; "
    "capped = min(raw, 3000); dampened = before + (capped - before) * 30 // 100; surge = (dampened + 5) // 10"
)


class RideRequest(NamedTuple):
    request_id: str
    region: str
    rider: str
    distance_m: int
    at: int


class DriverLocation(NamedTuple):
    region: str
    driver: str
    available: bool
    at: int


class External(NamedTuple):
    region: str
    kind: str
    """`weather`, `event` or `traffic`."""
    severity: int
    """Percent."""
    at: int


def set_prices(state: State, records: list[Record[Any]]) -> Iterator[Send]:
    pages: dict[str, Any] = {}
    for record in records:
        timestamp, topic, partition, offset, value = record
        region, at = value.region, value.at
        if problem := _nonsense(topic, value, at, timestamp):
            yield dead_letter(record, problem)
            continue
        page = pages.get(region)
        if page is None:
            page = pages[region] = _page(state, region, at)
        if problem := _late_or_known(page, topic, value, at):
            yield dead_letter(record, problem)
            continue
        if at >= page["tick"]:
            yield from _pass_time(region, page, at)
        if topic == "external_data":
            page["external"][value.kind] = [at, value.severity, partition, offset]
            continue
        slot = page["slots"][(at - page["tick"]) // SLIDE_MS]  # from -10 to -1
        slot[topic].setdefault(str(partition), []).append(offset)
        if topic == "ride_requests":
            slot["requests"][value.request_id] = value.distance_m
        else:
            _note_driver(slot["drivers"], value.driver, at, value.available)


def _note_driver(drivers: dict[str, Any], driver: str, at: int, available: bool) -> None:
    """The newest ping decides. Who says two things at the same moment is not available."""
    known = drivers.get(driver)
    if known is None or at > known[0] or (at == known[0] and not available):
        drivers[driver] = [at, available]


# --- what is refused


def _nonsense(topic: str, value: Any, at: int, timestamp: int) -> str | None:
    """What is wrong with a record, whatever else is known."""
    if at < 0:
        return f"at is negative: {at}"
    if at > timestamp + AHEAD_MS_MAX:
        return "from the future: at is more than an hour after the record's timestamp"
    if topic == "ride_requests" and not 0 < value.distance_m <= DISTANCE_M_MAX:
        return f"distance_m is not in 1..{DISTANCE_M_MAX}: {value.distance_m}"
    if topic == "external_data":
        if value.kind not in WEIGHTS:
            return "unknown kind"
        if not 0 <= value.severity <= 100:
            return f"severity is not in 0..100: {value.severity}"
    return None


def _late_or_known(page: dict[str, Any], topic: str, value: Any, at: int) -> str | None:
    """What is wrong with a record in view of those before it."""
    if at < page["tick"] - (EXTERNAL_VALID_MS if topic == "external_data" else WINDOW_MS):
        return "late"
    if topic == "ride_requests":
        request_id = value.request_id
        for slot in page["slots"]:
            if request_id in slot["requests"]:
                return "duplicate"
    if topic == "external_data" and (known := page["external"].get(value.kind)) and at <= known[0]:
        return "duplicate" if at == known[0] else "late"
    return None


# --- time


def _tick_after(at: int) -> int:
    return at - at % SLIDE_MS + SLIDE_MS


def _page(state: State, region: str, at: int) -> dict[str, Any]:
    if region not in state:
        state[region] = {
            "tick": _tick_after(at),  # the next one
            "slots": [_new_slot() for _ in range(SLOTS)],  # oldest first; the last one ends at the tick
            "external": {},  # kind -> at, severity, partition, offset
            "priced": None,  # the last tick that had a price
            "dampened": NO_SURGE,
            "published": None,
        }
    page: dict[str, Any] = state[region]
    return page


def _new_slot() -> dict[str, Any]:
    """`requests`: id -> distance; `drivers`: name -> at, available; and by topic: partition -> offsets of all in it."""
    return {"requests": {}, "drivers": {}, "ride_requests": {}, "driver_locations": {}}


def _pass_time(region: str, page: dict[str, Any], at: int) -> Iterator[Send]:
    """All ticks up to `at`. Those with an empty window are skipped, so there are at most ten, however far `at` is."""
    while at >= page["tick"]:
        if any(slot["requests"] or slot["drivers"] for slot in page["slots"]):
            yield from _price(region, page)
            page["tick"] += SLIDE_MS
            page["slots"] = [*page["slots"][1:], _new_slot()]
        else:
            page["tick"] = _tick_after(at)
        valid = page["tick"] - EXTERNAL_VALID_MS
        page["external"] = {kind: each for kind, each in page["external"].items() if each[0] >= valid}


# --- a price


def _price(region: str, page: dict[str, Any]) -> Iterator[Send]:
    tick, slots, external, previous = page["tick"], page["slots"], page["external"], page["published"]
    demand, supply, distance = _counted(slots)
    factors = {kind: external[kind][1] if kind in external else 0 for kind in WEIGHTS}
    before = page["dampened"] if page["priced"] == tick - SLIDE_MS else NO_SURGE
    computed = _formula(demand, supply, factors, before)
    surge = computed["surge"]
    is_published = previous is None or abs(surge - previous) >= PUBLISHED_FROM
    price = {"price_id": f"{region}/{tick}", "region": region, "tick": tick, "surge": surge}
    if is_published:
        yield from _published(price, previous, distance)
        page["published"] = surge
    page["priced"], page["dampened"] = tick, computed["dampened"]
    audit = {
        **price,
        "published": is_published,
        "previous": previous,
        "window_start": tick - WINDOW_MS,
        "demand": demand,
        "supply": supply,
        "typical_distance_m": distance,
        "factors": factors,
        **computed,
        "formula": FORMULA,
        "formula_text": FORMULA_TEXT,
        "inputs": {
            "ride_requests": _by_offset(slot["ride_requests"] for slot in slots),
            "driver_locations": _by_offset(slot["driver_locations"] for slot in slots),
            "external_data": _by_offset({str(each[2]): [each[3]]} for each in external.values()),
        },
    }
    yield Send("pricing_audit", region, audit)


def _counted(slots: list[dict[str, Any]]) -> tuple[int, int, int | None]:
    """Demand, supply, and the average distance."""
    demand = sum(len(slot["requests"]) for slot in slots)
    distance = sum(sum(slot["requests"].values()) for slot in slots)
    drivers: dict[str, list[Any]] = {}
    for slot in slots:
        drivers.update(slot["drivers"])
    supply = sum(available for _, available in drivers.values())
    return demand, supply, distance // demand if demand else None


def _formula(demand: int, supply: int, factors: Mapping[str, int], before: int) -> dict[str, int]:
    """What `FORMULA_TEXT` says; a change needs a new name for it in `FORMULA`."""
    ratio = 1000 * demand // max(supply, 1)
    raw = NO_SURGE + max(0, ratio - 1000) // 2 + sum(weight * factors[kind] for kind, weight in WEIGHTS.items())
    capped = min(raw, SURGE_MAX)
    dampened = before + (capped - before) * DAMPING_PERCENT // 100
    surge = (dampened + 5) // 10
    return {"ratio": ratio, "raw": raw, "capped": capped, "before": before, "dampened": dampened, "surge": surge}


def _published(price: dict[str, Any], previous: int | None, distance: int | None) -> Iterator[Send]:
    """What everybody is told about a price: all of it or nothing, since it is one transaction."""
    region, surge = price["region"], price["surge"]
    yield Send("pricing_updates", region, {**price, "previous": previous})
    per_km = (CENTS_PER_KM * surge + 50) // 100
    fare = None if distance is None else (per_km * distance + 500) // 1000
    fares = {"cents_per_km": per_km, "typical_distance_m": distance, "typical_fare_cents": fare}
    yield Send("rider_updates", region, {**price, **fares})
    was_high = previous is not None and previous >= HIGH
    if was_high != (surge >= HIGH):
        yield Send("driver_notifications", region, {**price, "news": "surge ended" if was_high else "surge began"})


def _by_offset(used: Iterable[dict[str, list[int]]]) -> dict[str, Any]:
    """Which records of a topic were used, by partition."""
    found: dict[str, list[int]] = {}
    for partitions in used:
        for partition, offsets in partitions.items():
            found.setdefault(partition, []).extend(offsets)
    for offsets in found.values():
        offsets.sort()
    return {
        partition: {"first": offsets[0], "last": offsets[-1], "count": len(offsets), "offsets": offsets}
        for partition, offsets in found.items()
    }


# --- what lands in a database


class Price(NamedTuple):
    region: str
    price_id: str
    tick: Time
    surge: int
    previous: int | None


class Audit(NamedTuple):
    price_id: str
    region: str
    tick: Time
    surge: int
    published: bool
    previous: int | None
    window_start: Time
    demand: int
    supply: int
    typical_distance_m: int | None
    factors: Json
    ratio: int
    raw: int
    capped: int
    before: int
    dampened: int
    formula: str
    formula_text: str
    inputs: Json


PIPELINE: Final = Pipeline(
    name="pricing",
    inputs=[
        Input("ride_requests", RideRequest, partitions=3),
        Input("driver_locations", DriverLocation, partitions=3),
        Input("external_data", External, partitions=1),
    ],
    steps=[Step(set_prices, by="region")],
    outputs={"pricing_updates": 3, "driver_notifications": 3, "rider_updates": 3, "pricing_audit": 3},
    lands=[
        # A region's ticks only grow, and a micro-batch may have several.
        Lands("pricing_updates", Price, key=["region"], mode="upsert", order_by=["tick"], table="current_prices"),
        Lands("pricing_audit", Audit, key=["price_id"]),
    ],
)


def state(pages: Iterable[Page]) -> Mapping[str, Any]:
    """What is known of each region."""
    return {page.name: page.content for page in pages}

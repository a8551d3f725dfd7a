"""The rules of `pricing`, one by one, as docs/pipelines/pricing.md has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from onceflow.pipelines.pipeline import DEAD_LETTERS, Record, Send
from onceflow.pipelines.pricing import FORMULA_TEXT, DriverLocation, External, RideRequest, set_prices

NOON = 1_767_614_400_000
SECOND = 1000
MINUTE = 60 * SECOND


class City:
    """Records one after the other, each in a micro-batch of its own, and what came of them."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._numbers = itertools.count()

    def request(self, at: int, name: str | None = None, distance_m: int = 2000, partition: int = 0) -> list[Send]:
        number = next(self._numbers)
        value = RideRequest(name or f"ride-{number}", "north", "ann", distance_m, at)
        return self.given([Record(NOON + MINUTE, "ride_requests", partition, number, value)])

    def requests(self, at: int, count: int) -> None:
        for _ in range(count):
            self.request(at)

    def ping(self, at: int, driver: str = "bob", available: bool = True, partition: int = 0) -> list[Send]:
        value = DriverLocation("north", driver, available, at)
        return self.given([Record(NOON + MINUTE, "driver_locations", partition, next(self._numbers), value)])

    def external(self, at: int, kind: str = "weather", severity: int = 50) -> list[Send]:
        value = External("north", kind, severity, at)
        return self.given([Record(NOON + MINUTE, "external_data", 0, next(self._numbers), value)])

    def given(self, records: list[Record[Any]]) -> list[Send]:
        return list(set_prices(self.state, records))

    def audits_at(self, at: int) -> list[Any]:
        """Time goes on to `at`, told by a record without effect on the ticks before."""
        return to("pricing_audit", self.external(at, kind="traffic", severity=0))

    def audit_at(self, at: int) -> Any:
        """The one tick that passes when time goes on to `at`."""
        (audit,) = self.audits_at(at)
        return audit


@pytest.fixture
def city() -> City:
    return City()


def to(topic: str, sends: Iterable[Send]) -> list[Any]:
    return [each.value for each in sends if each.topic == topic]


def refused(sends: Iterable[Send]) -> list[str]:
    return [each["reason"] for each in to(DEAD_LETTERS, sends)]


# --- ticks and windows


def test_first_record_of_a_region_has_no_price_yet(city: City) -> None:
    assert city.request(NOON) == []
    assert city.state["north"]["tick"] == NOON + 30 * SECOND


def test_tick_passes_with_the_first_record_at_or_after_it(city: City) -> None:
    city.request(NOON)
    assert city.request(NOON + 30 * SECOND - 1) == []
    (audit,) = to("pricing_audit", city.request(NOON + 30 * SECOND))
    assert audit["tick"] == NOON + 30 * SECOND
    assert audit["demand"] == 2, "the record that lets the tick pass belongs to the next one"


def test_window_is_the_five_minutes_before_the_tick(city: City) -> None:
    city.request(NOON)
    city.request(NOON + 30 * SECOND)
    audits = city.audits_at(NOON + 6 * MINUTE)
    assert [audit["tick"] - NOON for audit in audits] == [seconds * SECOND for seconds in range(60, 331, 30)]
    assert [audit["demand"] for audit in audits] == [2] * 9 + [1]
    assert audits[0]["window_start"] == audits[0]["tick"] - 5 * MINUTE


def test_ticks_with_an_empty_window_are_skipped_however_many(city: City) -> None:
    city.given([Record(10**14, "ride_requests", 0, 0, RideRequest("ride", "north", "ann", 1, NOON))])
    ahead = Record(10**14, "ride_requests", 0, 1, RideRequest("other", "north", "ann", 1, 10**14))
    assert len(to("pricing_audit", city.given([ahead]))) == 10
    assert city.state["north"]["tick"] == 10**14 - 10**14 % (30 * SECOND) + 30 * SECOND


def test_record_that_is_out_of_order_counts_from_the_next_tick_on(city: City) -> None:
    city.request(NOON)
    city.request(NOON + 4 * MINUTE)
    city.request(NOON + 1 * MINUTE)
    assert city.audit_at(NOON + 4 * MINUTE + 30 * SECOND)["demand"] == 3


def test_regions_have_nothing_to_do_with_each_other(city: City) -> None:
    city.request(NOON)
    south = RideRequest("ride-0", "south", "ann", 1, NOON + 3 * MINUTE)
    assert city.given([Record(NOON, "ride_requests", 0, 99, south)]) == []
    assert {name: page["tick"] - NOON for name, page in city.state.items()} == {"north": 30_000, "south": 210_000}


# --- demand and supply


def test_supply_is_drivers_and_not_pings(city: City) -> None:
    for at in (NOON, NOON + 1, NOON + 2):
        city.ping(at, "bob")
    city.ping(NOON, "eve")
    assert city.audit_at(NOON + 30 * SECOND)["supply"] == 2


@pytest.mark.parametrize("minutes", [0, 2], ids=["in one slot", "in two slots"])
def test_newest_ping_of_a_driver_decides_in_whatever_order_they_come(city: City, minutes: int) -> None:
    city.request(NOON + minutes * MINUTE)
    city.ping(NOON + minutes * MINUTE + 5, available=False)
    city.ping(NOON, available=True)
    assert city.audit_at(NOON + minutes * MINUTE + 30 * SECOND)["supply"] == 0


@pytest.mark.parametrize("first", [True, False])
def test_driver_who_says_both_at_the_same_moment_is_not_available(city: City, first: bool) -> None:
    city.ping(NOON, available=first)
    city.ping(NOON, available=not first)
    assert city.audit_at(NOON + 30 * SECOND)["supply"] == 0


def test_driver_who_has_not_been_heard_of_for_five_minutes_is_gone(city: City) -> None:
    city.ping(NOON, "bob")
    city.ping(NOON + 1 * MINUTE, "eve")
    assert [audit["supply"] for audit in city.audits_at(NOON + 5 * MINUTE + 30 * SECOND)] == [2] * 8 + [1]


def test_ping_that_comes_twice_counts_once_and_is_no_dead_letter(city: City) -> None:
    city.ping(NOON)
    assert city.ping(NOON) == []
    audit = city.audit_at(NOON + 30 * SECOND)
    assert (audit["supply"], audit["inputs"]["driver_locations"]["0"]["count"]) == (1, 2)


# --- the formula


@pytest.mark.parametrize(
    ("demand", "supply", "ratio", "raw", "dampened", "surge"),
    [
        (1, 1, 1000, 1000, 1000, 100),
        (0, 1, 0, 1000, 1000, 100),
        (3, 0, 3000, 2000, 1300, 130),
        (4, 3, 1333, 1166, 1049, 105),
        (5, 3, 1666, 1333, 1099, 110),
        (40, 1, 40000, 20500, 1600, 160),
    ],
)
def test_price_is_the_formula_in_whole_numbers(
    city: City, demand: int, supply: int, ratio: int, raw: int, dampened: int, surge: int
) -> None:
    city.requests(NOON, demand)
    for number in range(supply):
        city.ping(NOON, f"driver-{number}")
    audit = city.audit_at(NOON + 30 * SECOND)
    found = {name: audit[name] for name in ("demand", "supply", "ratio", "raw", "dampened", "surge")}
    assert list(found.values()) == [demand, supply, ratio, raw, dampened, surge]
    names = {**audit["factors"], "demand": demand, "supply": supply, "before": audit["before"], "max": max, "min": min}
    exec(FORMULA_TEXT, names)  # what the audit says is what was done
    assert {name: names[name] for name in found} == found


def test_price_goes_thirty_percent_of_the_way_to_its_cap_at_each_tick(city: City) -> None:
    city.requests(NOON, 40)
    audits = city.audits_at(NOON + 6 * MINUTE)
    assert [audit["surge"] for audit in audits] == [160, 202, 231, 252, 266, 276, 283, 288, 292, 294]
    assert [after["before"] for after in audits[1:]] == [audit["dampened"] for audit in audits[:-1]]
    assert {audit["capped"] for audit in audits} == {3000}


def test_after_a_silence_the_price_begins_again(city: City) -> None:
    city.requests(NOON, 40)
    city.request(NOON + 10 * MINUTE)
    audit = city.audit_at(NOON + 10 * MINUTE + 30 * SECOND)
    assert (audit["before"], audit["surge"]) == (1000, 100)
    assert audit["previous"] > 250, "what was published last is still known"


def test_external_data_raises_the_price_by_kind(city: City) -> None:
    for kind, severity in (("weather", 10), ("event", 20), ("traffic", 30)):
        city.external(NOON, kind, severity)
    city.ping(NOON)
    (audit,) = to("pricing_audit", city.ping(NOON + 30 * SECOND))
    assert audit["factors"] == {"weather": 10, "event": 20, "traffic": 30}
    assert audit["raw"] == 1000 + 30 + 80 + 60


def test_external_data_is_valid_for_half_an_hour(city: City) -> None:
    city.external(NOON, severity=50)
    for minutes in (29, 30):
        city.ping(NOON + minutes * MINUTE)
    last, after = to("pricing_audit", city.ping(NOON + 31 * MINUTE))
    assert (last["tick"] - NOON, last["factors"]["weather"]) == (30 * MINUTE + 30 * SECOND, 0)
    assert after["factors"]["weather"] == 0
    assert "weather" not in city.state["north"]["external"]


def test_external_data_counts_at_the_tick_half_an_hour_later(city: City) -> None:
    city.external(NOON, severity=50)
    city.ping(NOON + 30 * MINUTE - 1)
    assert city.audit_at(NOON + 30 * MINUTE)["factors"]["weather"] == 50


# --- what is told


def test_first_price_is_published(city: City) -> None:
    city.ping(NOON)
    sends = city.ping(NOON + 30 * SECOND)
    assert [each["surge"] for each in to("pricing_updates", sends)] == [100]
    assert to("pricing_updates", sends)[0]["previous"] is None
    assert to("driver_notifications", sends) == []


@pytest.mark.parametrize(("severity", "surge", "is_published"), [(49, 104, False), (50, 105, True)])
def test_price_is_published_when_it_changed_by_a_twentieth(
    city: City, severity: int, surge: int, is_published: bool
) -> None:
    city.ping(NOON)
    city.ping(NOON + 30 * SECOND)
    city.external(NOON + 31 * SECOND, severity=severity)
    sends = city.ping(NOON + 60 * SECOND)
    (audit,) = to("pricing_audit", sends)
    assert (audit["surge"], audit["published"]) == (surge, is_published)
    assert bool(to("pricing_updates", sends)) is bool(to("rider_updates", sends)) is is_published


def test_all_topics_name_the_same_price(city: City) -> None:
    city.requests(NOON, 40)
    sends = city.request(NOON + 30 * SECOND)
    assert sorted(each.topic for each in sends) == [
        "driver_notifications",
        "pricing_audit",
        "pricing_updates",
        "rider_updates",
    ]
    assert {
        (each.key, each.value["price_id"], each.value["surge"]) for each in sends if isinstance(each.value, dict)
    } == {("north", f"north/{NOON + 30 * SECOND}", 160)}


def test_drivers_are_told_when_the_surge_begins_and_when_it_ends(city: City) -> None:
    city.requests(NOON, 40)
    began = city.external(NOON + 5 * MINUTE, severity=0)
    assert [each["news"] for each in to("driver_notifications", began)] == ["surge began"]
    city.ping(NOON + 5 * MINUTE)
    ended = city.external(NOON + 9 * MINUTE, severity=0)
    assert [(each["news"], each["surge"]) for each in to("driver_notifications", ended)] == [("surge ended", 147)]


def test_riders_are_told_what_a_kilometre_and_a_typical_ride_costs(city: City) -> None:
    for distance in [1000, 2001] * 20:
        city.request(NOON, distance_m=distance)
    (fare,) = to("rider_updates", city.request(NOON + 30 * SECOND))
    assert fare["cents_per_km"] == 192
    assert (fare["typical_distance_m"], fare["typical_fare_cents"]) == (1500, 288)


def test_no_typical_ride_without_requests(city: City) -> None:
    city.ping(NOON)
    (fare,) = to("rider_updates", city.ping(NOON + 30 * SECOND))
    assert (fare["typical_distance_m"], fare["typical_fare_cents"]) == (None, None)


# --- the audit


def test_audit_names_its_inputs_by_offset(city: City) -> None:
    city.request(NOON, partition=1)
    city.ping(NOON, partition=2)
    city.request(NOON + 1, partition=1)
    city.request(NOON + 2, partition=0)
    city.external(NOON)
    audit = city.audit_at(NOON + 30 * SECOND)
    assert audit["inputs"] == {
        "ride_requests": {
            "1": {"first": 0, "last": 2, "count": 2, "offsets": [0, 2]},
            "0": {"first": 3, "last": 3, "count": 1, "offsets": [3]},
        },
        "driver_locations": {"2": {"first": 1, "last": 1, "count": 1, "offsets": [1]}},
        "external_data": {"0": {"first": 4, "last": 4, "count": 1, "offsets": [4]}},
    }


def test_every_tick_is_in_the_audit_published_or_not(city: City) -> None:
    city.ping(NOON)
    audits = city.audits_at(NOON + 5 * MINUTE)
    assert [audit["published"] for audit in audits] == [True] + [False] * 9


# --- what is refused


def test_record_too_old_for_the_window_of_the_next_tick_is_late(city: City) -> None:
    city.ping(NOON + 5 * MINUTE)
    assert city.request(NOON + 30 * SECOND) == []
    assert refused(city.request(NOON + 30 * SECOND - 1)) == ["late"]
    assert refused(city.ping(NOON + 30 * SECOND - 1)) == ["late"]


def test_external_data_that_is_no_longer_valid_is_late(city: City) -> None:
    city.ping(NOON + 30 * MINUTE)
    assert refused(city.external(NOON + 30 * SECOND - 1)) == ["late"]
    assert city.external(NOON + 30 * SECOND) == []


def test_external_data_older_than_what_is_known_is_late_and_the_same_again_a_duplicate(city: City) -> None:
    city.external(NOON + 5, severity=50)
    assert refused(city.external(NOON + 4, severity=90)) == ["late"]
    assert refused(city.external(NOON + 5, severity=90)) == ["duplicate"]
    assert city.external(NOON + 4, kind="event") == []
    assert city.state["north"]["external"]["weather"][:2] == [NOON + 5, 50]


def test_request_that_comes_again_is_a_duplicate_as_long_as_it_is_in_the_window_and_then_late(city: City) -> None:
    city.request(NOON, "one")
    assert refused(city.request(NOON, "one")) == ["duplicate"]
    city.ping(NOON + 5 * MINUTE - 1)
    assert refused(city.request(NOON, "one")) == ["duplicate"]
    city.ping(NOON + 5 * MINUTE)
    assert refused(city.request(NOON, "one")) == ["late"]


def test_id_is_free_again_when_its_request_has_left_the_window(city: City) -> None:
    city.request(NOON, "one")
    assert refused(city.request(NOON + 5 * MINUTE, "one")) == ["duplicate"]
    city.ping(NOON + 5 * MINUTE)
    assert refused(city.request(NOON + 5 * MINUTE, "one")) == []


@pytest.mark.parametrize("distance_m", [0, -1, 1_000_001])
def test_impossible_distance_is_refused(city: City, distance_m: int) -> None:
    assert refused(city.request(NOON, distance_m=distance_m)) == [f"distance_m is not in 1..1000000: {distance_m}"]


@pytest.mark.parametrize("severity", [-1, 101])
def test_impossible_severity_is_refused(city: City, severity: int) -> None:
    assert refused(city.external(NOON, severity=severity)) == [f"severity is not in 0..100: {severity}"]


def test_unknown_kind_is_refused(city: City) -> None:
    assert refused(city.external(NOON, kind="strike")) == ["unknown kind"]


def test_negative_time_is_refused(city: City) -> None:
    assert refused(city.ping(-1)) == ["at is negative: -1"]


def test_more_than_an_hour_ahead_of_its_arrival_is_from_the_future(city: City) -> None:
    arrival = NOON + MINUTE
    assert city.ping(arrival + 60 * MINUTE) == []
    (reason,) = refused(city.ping(arrival + 60 * MINUTE + 1))
    assert reason.startswith("from the future")


def test_what_is_refused_changes_nothing_and_begins_no_region(city: City) -> None:
    city.external(NOON, kind="strike")
    assert city.state == {}
    city.request(NOON, "one")
    before = repr(city.state)
    city.request(NOON + 20 * MINUTE, "one")
    city.ping(NOON - 10 * MINUTE)
    city.external(NOON + 9 * MINUTE, severity=101)
    assert repr(city.state) == before


def test_dead_letter_says_where_the_record_came_from(city: City) -> None:
    (letter,) = to(DEAD_LETTERS, city.request(-7, name="one", partition=2))
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("ride_requests", 2, 0)
    assert '"request_id": "one"' in letter["value"]


def test_page_is_bounded_by_the_window_however_long_it_runs(city: City) -> None:
    for minute in range(120):
        city.given(
            [Record(10**13, "ride_requests", 0, minute, RideRequest(str(minute), "north", "ann", 1, minute * MINUTE))]
        )
    slots = city.state["north"]["slots"]
    assert len(slots) == 10
    assert [name for slot in slots for name in slot["requests"]] == ["115", "116", "117", "118", "119"]

"""Snapshots over time: rates, latencies, what is bounded, and what is told when no snapshot can be had."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.monitor import watcher as module
from onceflow.monitor.history import POINTS, STEP_MS, quantile
from onceflow.monitor.meters import Stopwatch
from onceflow.monitor.snapshot import (
    Counters,
    Group,
    GroupPartition,
    Partition,
    Producer,
    Snapshot,
    TopicTraffic,
    Transaction,
)
from onceflow.monitor.watcher import Watcher
from onceflow.txn.states import TABLE, State

START_MS = 1_800_000_000_000
EMPTY = Snapshot(at_ms=START_MS, cluster_id="c", software="onceflow", started_ms=START_MS)


def at(seconds: float, **fields: object) -> Snapshot:
    return replace(EMPTY, at_ms=START_MS + round(seconds * 1000), **fields)  # type: ignore[arg-type]


def shown(*snapshots: Snapshot) -> Watcher:
    watcher = Watcher(lambda: EMPTY)
    for each in snapshots:
        watcher.see(each)
    return watcher


def group(name: str, lag: int) -> Group:
    offsets = GroupPartition(topic="t", partition=0, committed=1, lag=lag)
    return Group(group_id=name, state="Stable", protocol="classic", members=1, partitions=(offsets,))


def test_rates_are_per_second_however_irregularly_somebody_looked() -> None:
    seen = [at(seconds, counters=Counters(commits=round(10 * seconds))) for seconds in (0, 1, 4.9, 7, 7.5, 9.9, 30)]
    history = shown(*seen).state()["history"]
    assert history["commits"] == [None, 10.0, 10.0]
    assert history["at_ms"] == [START_MS + 4_900, START_MS + 9_900, START_MS + 30_000]


def test_an_interval_that_has_just_begun_is_taken_together_with_the_one_before() -> None:
    """Nothing was committed in the 0.1 s since; that is no reason to say that nothing is committed."""
    totals = {0: 0, 4.9: 49, 9.9: 99, 10: 99}
    seen = [at(seconds, counters=Counters(commits=total)) for seconds, total in totals.items()]
    assert shown(*seen).state()["history"]["commits"][-1] == pytest.approx(50 / 5.1, rel=0.01)


def test_a_broker_that_was_started_anew_gives_no_rate_rather_than_a_wrong_one() -> None:
    history = shown(at(0, counters=Counters(aborts=500)), at(5, counters=Counters(aborts=3))).state()["history"]
    assert history["aborts"] == [None, None]


def test_what_is_not_known_is_null_and_not_zero() -> None:
    known = TopicTraffic(records_in=0, bytes_in=0, records_out=0, bytes_out=0)
    from_within = shown(at(0, traffic={"t": known}), at(5, traffic={"t": known})).state()
    assert from_within["history"]["records_in"] == [None, 0.0]
    from_outside = shown(at(0, started_ms=None), at(5, started_ms=None)).state()
    assert from_outside["history"]["records_in"] == from_outside["history"]["fencings"] == [None, None]
    assert from_outside["totals"]["fencings"] is None
    assert from_outside["totals"]["commits"] == 0


def test_the_latency_of_a_point_is_of_its_own_five_seconds() -> None:
    stopwatch = Stopwatch()
    seen = []
    for step, lasted in enumerate((0.004, 0.2, None, 0.004)):
        for _ in range(100 if lasted else 0):
            stopwatch.observe(lasted or 0)
        seen.append(at(step * 5, timings={"TxnOffsetCommit": stopwatch.timing()}))
    first, slow, none, fast = shown(*seen).state()["history"]["offset_commit_p99_ms"]
    assert (first, none) == (None, None)
    assert 100 < slow <= 250
    assert 2.5 < fast <= 5


def test_a_quantile_lies_where_prometheus_puts_it() -> None:
    stopwatch = Stopwatch()
    assert quantile(stopwatch.timing(), 0.99) is None
    for _ in range(100):
        stopwatch.observe(0.08)
    assert quantile(stopwatch.timing(), 0.5) == pytest.approx(0.075)
    stopwatch.observe(99)
    assert quantile(stopwatch.timing(), 1.0) == 30.0  # more than the last bound: at least that


def test_an_hour_is_kept_as_a_quarter_of_an_hour_and_ten_groups() -> None:
    names = [f"group-{number}" for number in range(100)]
    groups = tuple(group(name, number) for number, name in enumerate(names))
    watcher = shown(*(at(seconds, groups=groups) for seconds in range(0, 3600, 2)))
    history = watcher.state()["history"]
    assert {len(values) for name, values in history.items() if name not in ("step_ms", "groups")} == {POINTS}
    assert history["at_ms"][-1] - history["at_ms"][0] == pytest.approx((POINTS - 1) * STEP_MS, abs=STEP_MS)
    assert sorted(history["groups"]) == sorted(names[-10:])
    assert len(watcher._rates._samples) < 100


def test_the_oldest_open_transaction_comes_first_and_states_are_counted() -> None:
    def transaction(name: str, state: str, started_s: float | None) -> Transaction:
        started = None if started_s is None else START_MS + round(started_s * 1000)
        return Transaction(transactional_id=name, producer_id=1, epoch=0, state=state, started_ms=started, updated_ms=1)

    states = [("a", "CompleteCommit", None), ("b", "Ongoing", 3), ("c", "PrepareAbort", 1), ("d", "Empty", None)]
    state = shown(at(10, transactions=tuple(transaction(*each) for each in states))).state()
    assert [row["id"] for row in state["transactions"]["rows"][:2]] == ["c", "b"]
    assert state["transactions"]["states"] == {"CompleteCommit": 1, "Ongoing": 1, "PrepareAbort": 1, "Empty": 1}
    assert (state["history"]["open"], state["history"]["oldest_ms"]) == ([2], [9_000])


def test_the_json_is_made_once_per_snapshot_and_can_be_read() -> None:
    watcher = shown(at(0))
    first = watcher.state_json()
    assert watcher.state_json() is first
    watcher.see(at(1))
    assert json.loads(watcher.state_json())["now_ms"] == START_MS + 1_000


def test_a_quick_snapshot_is_taken_when_somebody_asks_but_not_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    taken = []

    def take() -> Snapshot:
        taken.append(now)
        return EMPTY

    quick, slow = Watcher(take), Watcher(take, is_quick=False)
    for now in (100.0, 100.5, 101.0, 101.1):  # noqa: B007  # the clock reads it
        quick.refresh()
        slow.refresh()
    assert taken == [100.0, 101.0]


def test_while_the_cluster_is_away_the_page_shows_what_was_and_a_scrape_is_empty() -> None:
    watcher = shown(at(0))
    assert b"onceflow_build_info" in watcher.metrics("")[0]
    watcher.lost("Nobody answers.")
    watcher.lost("Nobody answers at all.")
    state = watcher.state()
    assert state["problem"]["text"] == "Nobody answers at all."
    assert state["cluster"]["id"] == "c"
    assert watcher.metrics("")[0] == b""
    watcher.see(at(5))
    assert watcher.state()["problem"] is None
    assert b"onceflow_build_info" in watcher.metrics("")[0]


def test_rules_that_cannot_be_looked_at_are_named_to_the_page_and_to_scripts() -> None:
    from_outside, from_within = shown(at(0, started_ms=None)), shown(at(0))
    told = json.loads(from_outside.alerts_json())
    assert "ZombieProducer" in told["unknown"]
    assert json.loads(from_outside.state_json())["unknown"] == told["unknown"]
    assert "ZombieProducer" not in json.loads(from_within.alerts_json())["unknown"]


def test_a_scrape_that_is_made_later_in_a_thread_is_of_one_moment() -> None:
    """Made while the loop goes on to the next snapshot: neither its rates nor, with the clock set back, none at all."""
    watcher = shown(at(0), at(10, counters=Counters(commits=50)))
    scrape = watcher.scrape("")
    watcher.see(at(20, counters=Counters(commits=5_000)))
    watcher.see(at(5))
    text = scrape()[0].decode()
    assert "\nonceflow_transaction_commit_rate 5.0\n" in text
    assert "\nonceflow_transactions_committed_total 50" in text


def test_before_the_first_snapshot_there_is_only_the_reason_why() -> None:
    watcher = Watcher(lambda: EMPTY, is_quick=False)
    watcher.lost("Nobody answers.")
    state = json.loads(watcher.state_json())
    assert (state["now_ms"], state["problem"]["text"]) == (None, "Nobody answers.")
    assert json.loads(watcher.alerts_json())["alerts"] == []
    assert watcher.metrics("")[0] == b""


def test_thousands_of_things_stay_a_page_that_a_phone_can_load() -> None:
    partitions = tuple(
        Partition(topic=f"a-topic-with-a-name-{number // 10}", partition=number % 10, start=0, last_stable=9, end=9)
        for number in range(5_000)
    )
    producers = tuple(
        Producer(topic="t", partition=0, producer_id=number, epoch=0, last_sequence=0, last_write_ms=1)
        for number in range(5_000)
    )
    offsets = tuple(GroupPartition(topic="t", partition=number, committed=1, lag=9) for number in range(1_000))
    groups = tuple(replace(group(f"group-{number}", 0), partitions=offsets) for number in range(300))
    watcher = shown(at(0, partitions=partitions, producers=producers, groups=groups))
    assert len(watcher.state_json()) < 500_000
    state = watcher.state()
    assert sum(len(rows) for _, rows in state["topics"]) == 5_000  # all of them: there is a filter
    assert (state["producers"]["count"], state["groups"]["count"]) == (5_000, 300)
    assert state["groups"]["rows"][0]["partition_count"] == 1_000


def test_the_pages_diagram_has_the_moves_of_the_table() -> None:
    text = Path(module.__file__).with_name("page").joinpath("states.js").read_text()
    listed = re.search(r"MOVES = (\[.*?\n\]);", text, re.DOTALL)
    assert listed is not None
    drawn = {(start, end) for start, end, _ in json.loads(listed[1])}
    moves = {
        (state.label, follows.label)
        for state, row in TABLE.items()
        for follows in row.values()
        if isinstance(follows, State) and follows is not state
    }
    assert drawn == moves

"""Rates over the last minute, and when there are none."""

from __future__ import annotations

import pytest

from onceflow.monitor.meters import Stopwatch
from onceflow.monitor.rates import Rates
from onceflow.monitor.snapshot import Counters, Snapshot, TopicTraffic


def taken(at_s: float, commits: int = 0, traffic: dict[str, int] | None = None, **settings: object) -> Snapshot:
    return Snapshot(
        at_ms=int(at_s * 1000),
        cluster_id="c",
        software="test",
        counters=Counters(commits=commits),
        traffic={
            topic: TopicTraffic(records_in=0, bytes_in=0, records_out=count, bytes_out=0)
            for topic, count in (traffic or {}).items()
        },
        **settings,  # type: ignore[arg-type]
    )


def test_one_look_gives_no_rate_and_two_do() -> None:
    rates = Rates()
    assert rates.minute.per_second("commits") is None
    rates.see(taken(0, 100))
    assert rates.minute.per_second("commits") is None
    rates.see(taken(2, 110))
    assert rates.minute.per_second("commits") == 5


def test_what_is_older_than_a_minute_does_not_count() -> None:
    rates = Rates()
    for second in range(0, 200, 2):
        rates.see(taken(second, 1000 if second >= 100 else 0))
    assert rates.minute.per_second("commits") == 0
    rates.see(taken(200, 1060))
    assert rates.minute.per_second("commits") == pytest.approx(1)


def test_totals_that_begin_anew_count_from_zero() -> None:
    rates = Rates()
    rates.see(taken(0, 500))
    rates.see(taken(10, 510))
    rates.see(taken(20, 30))
    assert rates.minute.per_second("commits") == pytest.approx(2)


def test_a_topic_that_is_deleted_takes_nothing_away() -> None:
    rates = Rates()
    rates.see(taken(0, traffic={"a": 1000, "b": 0}))
    rates.see(taken(10, traffic={"b": 20}))
    assert rates.minute.per_second("records_out") == 2


def test_a_clock_that_is_set_back_begins_a_new_minute() -> None:
    rates = Rates()
    rates.see(taken(1000, 10))
    rates.see(taken(500, 20))
    assert rates.minute.per_second("commits") is None
    rates.see(taken(502, 24))
    assert rates.minute.per_second("commits") == 2


def test_p99_is_of_the_last_minute_and_of_several_requests_together() -> None:
    rates, slow, quick = Rates(), Stopwatch(), Stopwatch()
    slow.observe(9.0)  # long ago
    rates.see(taken(0, timings={"OffsetCommit": slow.timing()}))
    rates.see(taken(2, timings={"OffsetCommit": slow.timing()}))
    assert rates.minute.p99_ms("OffsetCommit", "TxnOffsetCommit") is None
    for _ in range(99):
        quick.observe(0.004)
    slow.observe(0.2)
    rates.see(taken(4, timings={"OffsetCommit": slow.timing(), "TxnOffsetCommit": quick.timing()}))
    assert rates.minute.p99_ms("OffsetCommit", "TxnOffsetCommit") == pytest.approx(5)
    slow.observe(0.2)
    rates.see(taken(6, timings={"OffsetCommit": slow.timing(), "TxnOffsetCommit": quick.timing()}))
    p99_ms = rates.minute.p99_ms("OffsetCommit", "TxnOffsetCommit")
    assert p99_ms is not None
    assert 100 < p99_ms <= 250
    assert rates.minute.requests_per_second()["TxnOffsetCommit"] == pytest.approx(99 / 6)

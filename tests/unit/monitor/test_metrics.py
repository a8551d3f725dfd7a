"""The table of metrics: complete, documented, well-formed, and silent about what is not known."""

from __future__ import annotations

import re

import pytest

from onceflow.monitor.meters import Stopwatch
from onceflow.monitor.metrics import TABLE, documentation, exposition, names
from onceflow.monitor.rates import Rates
from onceflow.monitor.rules import Alert
from onceflow.monitor.snapshot import (
    Coordinator,
    Counters,
    Group,
    GroupPartition,
    MicroBatch,
    Partition,
    Producer,
    Snapshot,
    TopicTraffic,
    Transaction,
)
from tests.support.scraping import OPENMETRICS, Scrape

FORMATS = ("", "text/plain; version=0.0.4", OPENMETRICS, "application/openmetrics-text; version=1.0.0, */*;q=0.1")


def everything(at_ms: int) -> Snapshot:
    """A snapshot in which nothing is unknown."""
    stopwatch = Stopwatch()
    for _ in range(at_ms // 1000):
        stopwatch.observe(0.003)
    timed = ("fsync", "fetch wait", "Produce", "Fetch", "OffsetCommit", "TxnOffsetCommit")
    return Snapshot(
        at_ms=at_ms,
        cluster_id="c",
        software="onceflow 1",
        brokers=("127.0.0.1:9092",),
        started_ms=0,
        partitions=(Partition(topic="t", partition=0, start=1, last_stable=5, end=7, size_bytes=9, leader=1),),
        producers=(Producer(topic="t", partition=0, producer_id=1, epoch=0, last_sequence=4, last_write_ms=1),),
        transactions=(
            Transaction(
                transactional_id="x", producer_id=1, epoch=0, state="Ongoing", timeout_ms=9, started_ms=1, updated_ms=1
            ),
        ),
        groups=(
            Group(
                group_id="g",
                state="Stable",
                protocol="classic",
                members=2,
                partitions=(GroupPartition(topic="t", partition=0, committed=2, lag=3),),
            ),
        ),
        micro_batches=(MicroBatch(app_id="a", batch_id=3, recorded_ms=1),),
        coordinators=(Coordinator(kind="transaction", state="loading", load_ms=2.5),),
        counters=Counters(errors={"E": 1}, connections_refused={"full": 1}, failed_authentications={"PLAIN": 4}),
        traffic={"t": TopicTraffic(records_in=1, bytes_in=2, records_out=3, bytes_out=4)},
        timings=dict.fromkeys(timed, stopwatch.timing()),
        consumers={"read_committed": 1},
        connections_open=3,
    )


def scrape(accept: str = "") -> Scrape:
    rates = Rates()
    rates.see(everything(1000))
    rates.see(everything(3000))
    alert = Alert(rule="R", severity="critical", subject="", summary="", meaning="", action="", since_ms=0, firing=True)
    return Scrape(*exposition(everything(3000), [alert], accept, rates.minute))


@pytest.mark.parametrize("accept", FORMATS)
def test_where_everything_is_known_every_metric_is_there_with_its_kind_labels_and_help(accept: str) -> None:
    found = scrape(accept)
    for metric in TABLE:
        family = found.families[metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert {tuple(name for name in each.labels if name != "le") for each in family.samples} == {metric.labels}


def test_the_content_type_is_what_was_asked_for() -> None:
    assert scrape("").content_type.startswith("text/plain; version=0.0.4")
    assert scrape(OPENMETRICS).content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert scrape(OPENMETRICS).body.endswith(b"# EOF\n")


def test_names_are_unique_and_leave_those_of_spark_jobs_alone() -> None:
    listed = [metric.name for metric in TABLE]
    assert len(listed) == len(set(listed))
    assert all(re.fullmatch(r"(onceflow|kafka)_[a-z0-9_]+", name) for name in listed)
    assert not any(name.startswith("onceflow_microbatch_") for name in listed)
    assert all(metric.name.endswith("_total") == (metric.kind == "counter") for metric in TABLE)
    assert "onceflow_fsync_latency_seconds_bucket" in names()


def test_buckets_hold_everything_up_to_their_bound() -> None:
    found = scrape()
    name = "onceflow_offset_commit_latency_seconds"
    assert found.value(f"{name}_bucket", le="0.0025") == 0
    assert found.value(f"{name}_bucket", le="0.005") == 6
    assert found.value(f"{name}_bucket", le="+Inf") == found.value(f"{name}_count") == 6
    assert found.value(f"{name}_sum") == pytest.approx(0.018)
    assert found.value("onceflow_offset_commit_latency_p99_ms") == pytest.approx(5, abs=0.1)
    assert found.value("onceflow_request_rate", request="Fetch") == 1


def test_a_coordinator_is_in_one_state() -> None:
    states = scrape().families["onceflow_coordinator_state"].samples
    assert {each.labels["state"]: each.value for each in states} == {"active": 0, "loading": 1, "unavailable": 0}


def test_of_another_kafka_what_nobody_could_tell_is_absent_and_not_zero() -> None:
    bare = Scrape(*exposition(Snapshot(at_ms=1000, cluster_id="c", software="Apache Kafka")))
    ours = {name for name in bare.families if name.startswith(("onceflow_", "kafka_"))}
    assert ours == {"onceflow_snapshot_truncated", "onceflow_build_info"}
    assert bare.value("onceflow_build_info", watched="Apache Kafka") == 1


def test_of_our_own_broker_what_has_not_happened_is_zero() -> None:
    """A rule sees the first event only of a counter that was there before."""
    fresh = Scrape(*exposition(Snapshot(at_ms=1000, cluster_id="c", software="onceflow 1", started_ms=1)))
    assert fresh.value("onceflow_transactions_committed_total") == 0
    assert fresh.value("onceflow_transactions_aborted_total", reason="timeout") == 0
    assert fresh.value("onceflow_failed_authentication_total", mechanism="SCRAM-SHA-512") == 0


def test_the_process_shows_its_memory_and_cpu() -> None:
    found = scrape()
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds"):
        value = found.value(name)
        assert value is not None
        assert value > 0


def test_every_metric_is_documented() -> None:
    assert all(f"`{metric.name}" in documentation() for metric in TABLE)

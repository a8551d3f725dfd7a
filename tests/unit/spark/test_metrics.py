"""Metrics of Spark jobs without Spark: what sinks and queries tell goes in, a scrape comes out."""

from __future__ import annotations

import itertools
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from onceflow.errors import ConfigError
from onceflow.spark import listening
from onceflow.spark import metrics as metrics_module
from onceflow.spark.foreach_batch import METRICS_VARIABLE, look_for_metrics
from onceflow.spark.listening import (
    BatchFailure,
    BatchResult,
    Listeners,
    SinkListener,
    Step,
    listen_everywhere,
    stop_listening,
)
from onceflow.spark.metrics import MetricsListener, MetricsServer, serve_by_environment
from onceflow.spark.problems import BatchFailed, QueryStopped, SinkError
from tests.support.sql_sink_cases import UPSERT
from tests.support.sql_sink_places import SqlitePlace
from tests.support.sql_sink_without_spark import Job, without_spark

ANYWHERE = "127.0.0.1:0"


class Scrape:
    def __init__(self, text: bytes) -> None:
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[f"onceflow_{name}", *sorted(labels.items())]

    def has(self, name: str) -> bool:
        return any(key[0] == f"onceflow_{name}" for key in self.samples)


def scraped(listener: MetricsListener) -> Scrape:
    return Scrape(generate_latest(listener.registry))


def read(url: str) -> Scrape:
    with urlopen(url, timeout=10) as answer:
        return Scrape(answer.read())


@pytest.fixture
def listener() -> Iterator[MetricsListener]:
    """It hears all sinks of the process, as that of a server does."""
    listener = MetricsListener()
    listen_everywhere(listener)
    yield listener
    stop_listening(listener)


def result(batch_id: int = 3, **more: Any) -> BatchResult:
    steps = {Step.FENCE: 100.0, Step.PROGRESS: 20.0, Step.WRITE: 2000.0, Step.VERIFY: 4.0, Step.COMMIT: 6.0}
    common = {"query_id": "q", "rows": 10, "bytes": 512, "attempts": 2, "duration_ms": 2200.0, "steps_ms": steps}
    return BatchResult(app_id="app", batch_id=batch_id, **{**common, **more})


# --- micro-batches


def test_a_micro_batch_is_measured_with_the_part_that_the_transaction_took(listener: MetricsListener) -> None:
    listener.on_batch(result())
    listener.on_batch(result(batch_id=4, rows=5, attempts=1))
    scrape = scraped(listener)
    here = {"app": "app", "sink": "kafka"}
    assert scrape.value("microbatch_duration_seconds_count", **here) == 2
    assert scrape.value("microbatch_duration_seconds_sum", **here) == pytest.approx(4.4)
    assert scrape.value("microbatch_duration_seconds_bucket", **here, le="1.0") == 0
    assert scrape.value("microbatch_duration_seconds_bucket", **here, le="2.5") == 2
    assert scrape.value("microbatch_transaction_seconds_sum", **here) == pytest.approx(0.26)
    assert scrape.value("microbatch_step_seconds_sum", **here, step="write") == pytest.approx(4.0)
    assert scrape.value("microbatch_step_seconds_sum", **here, step="fence") == pytest.approx(0.2)
    assert scrape.value("microbatch_rows_total", **here) == 15
    assert scrape.value("microbatch_bytes_total", **here) == 1024
    assert scrape.value("microbatch_attempts_total", **here) == 3
    assert scrape.value("microbatch_last_committed_batch", **here) == 4
    assert scrape.value("microbatch_last_commit_timestamp_seconds", **here) > 1_700_000_000
    assert not scrape.has("microbatch_failures_total")


def test_a_micro_batch_that_is_skipped_counts_as_that_and_as_nothing_else(listener: MetricsListener) -> None:
    listener.on_batch(result(skipped=True))
    scrape = scraped(listener)
    assert scrape.value("microbatch_skipped_total", app="app", sink="kafka") == 1
    assert not scrape.has("microbatch_duration_seconds_count")
    assert not scrape.has("microbatch_last_committed_batch")


def test_failures_are_counted_by_what_was_raised_with_the_attempts_they_took(listener: MetricsListener) -> None:
    for problem in (BatchFailed("a"), BatchFailed("b"), SinkError("c")):
        listener.on_failure(BatchFailure(app_id="app", batch_id=0, sink="sql", attempts=3, problem=problem))
    scrape = scraped(listener)
    assert scrape.value("microbatch_failures_total", app="app", sink="sql", reason="BatchFailed") == 2
    assert scrape.value("microbatch_failures_total", app="app", sink="sql", reason="SinkError") == 1
    assert scrape.value("microbatch_attempts_total", app="app", sink="sql") == 9


def test_a_query_that_is_stopped_in_the_middle_of_a_micro_batch_is_no_failure(listener: MetricsListener) -> None:
    stop = QueryStopped("the query was stopped")
    listener.on_failure(BatchFailure(app_id="app", batch_id=0, sink="sql", attempts=1, problem=stop))
    scrape = scraped(listener)
    assert not scrape.has("microbatch_failures_total")
    assert scrape.value("microbatch_attempts_total", app="app", sink="sql") == 1


def test_applications_and_sinks_are_told_apart(listener: MetricsListener) -> None:
    listener.on_batch(result())
    listener.on_batch(result(sink="sql", rows=7))
    listener.on_batch(BatchResult(app_id="other", batch_id=9, query_id="p", rows=1))
    scrape = scraped(listener)
    found = [
        scrape.value("microbatch_rows_total", app=app, sink=sink)
        for app, sink in (("app", "kafka"), ("app", "sql"), ("other", "kafka"))
    ]
    assert found == [10, 7, 1]


def test_watching_never_raises_and_complains_once(
    listener: MetricsListener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("the registry is broken")

    monkeypatch.setattr(listener, "_see", broken)
    for _ in range(3):
        listener.on_batch(result())
    listener.on_progress("{", lambda _: None)
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


# --- what sinks tell


class Clock:
    """Each question takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = itertools.count(100)
        monkeypatch.setattr(listening.time, "monotonic", lambda: float(next(ticks)))


class Heard(SinkListener):
    def __init__(self) -> None:
        self.results: list[BatchResult] = []
        self.failures: list[BatchFailure] = []

    def on_batch(self, result: BatchResult) -> None:
        self.results.append(result)

    def on_failure(self, failure: BatchFailure) -> None:
        self.failures.append(failure)


def test_steps_are_measured_over_all_attempts_and_anew_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    listeners = Listeners([heard])
    Clock(monkeypatch)

    def write() -> None:
        with listeners.step(Step.WRITE, 0):
            raise RuntimeError("once")

    for _ in range(2):
        with listeners.batch("app", 0):
            with pytest.raises(RuntimeError):
                write()
            with listeners.step(Step.WRITE, 0), listeners.step(Step.COMMIT, 0):
                pass
            listeners.tell(BatchResult(app_id="app", batch_id=0, query_id="q"))
    first, second = heard.results
    assert first.steps_ms == second.steps_ms == {Step.WRITE: 4000, Step.COMMIT: 1000}
    assert first.transaction_ms == 1000
    assert first.duration_ms == second.duration_ms == 7000


def test_what_fails_a_batch_is_told_and_goes_on() -> None:
    heard = Heard()
    listeners = Listeners([heard], sink="sql")
    problem = SinkError("no")

    def fail() -> None:
        with listeners.batch("app", 5), listeners.step(Step.WRITE, 5):
            raise problem

    with pytest.raises(SinkError):
        fail()
    assert heard.failures == [BatchFailure(app_id="app", batch_id=5, sink="sql", attempts=1, problem=problem)]


def test_a_listener_that_raises_when_told_of_a_failure_does_not_hide_it(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SinkListener):
        def on_failure(self, failure: BatchFailure) -> None:
            raise RuntimeError("broken")

    heard = Heard()

    def fail() -> None:
        with Listeners([Broken(), heard]).batch("app", 5):
            raise SinkError("the reason")

    with pytest.raises(SinkError, match="the reason"):
        fail()
    assert len(heard.failures) == 1
    assert "a listener raised" in caplog.text


def test_a_server_hears_sinks_that_were_made_before_it_until_it_is_closed() -> None:
    listeners = Listeners([])
    with MetricsServer(ANYWHERE) as server:
        listeners.tell(result())
        assert read(server.url).value("microbatch_rows_total", app="app", sink="kafka") == 10
    listeners.tell(result())
    assert scraped(server.listener).value("microbatch_rows_total", app="app", sink="kafka") == 10


def test_a_listener_that_was_given_to_a_sink_and_hears_everything_counts_once(listener: MetricsListener) -> None:
    Listeners([listener]).tell(result())
    assert scraped(listener).value("microbatch_rows_total", app="app", sink="kafka") == 10


def test_a_micro_batch_is_counted_even_if_another_listener_then_fails_it(listener: MetricsListener) -> None:
    class Broken(SinkListener):
        def on_batch(self, result: BatchResult) -> None:
            raise RuntimeError("broken")

    listeners = Listeners([Broken()])

    def tell() -> None:
        with listeners.batch("app", 3):
            listeners.tell(result())

    with pytest.raises(RuntimeError):
        tell()
    scrape = scraped(listener)
    assert scrape.value("microbatch_rows_total", app="app", sink="kafka") == 10
    assert scrape.value("microbatch_failures_total", app="app", sink="kafka", reason="RuntimeError") == 1


def test_landing_in_a_database_is_measured_with_its_own_steps(
    listener: MetricsListener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with without_spark(monkeypatch):
        job = Job(SqlitePlace(tmp_path / "landed.db"), UPSERT)
        driver = job.driver().run(0, 1)
        driver.restarted().run(1)
        job.close()
    scrape = scraped(listener)
    here = {"app": job.app_id, "sink": "sql"}
    assert scrape.value("microbatch_duration_seconds_count", **here) == 2
    assert scrape.value("microbatch_rows_total", **here) == sum(each.rows for each in driver.results) > 0
    assert scrape.value("microbatch_skipped_total", **here) == 1
    counts = {step: scrape.value("microbatch_step_seconds_count", **here, step=step.value) for step in Step}
    assert counts == {**dict.fromkeys(Step, 2.0), Step.FENCE: 1.0, Step.PROGRESS: 1.0}
    whole, part = (scrape.value(f"microbatch_{name}_seconds_sum", **here) for name in ("duration", "transaction"))
    assert 0 < part < whole


# --- queries


def progress(batch_id: int = 0, *, ran: bool = True, **more: Any) -> str:
    source = {
        "startOffset": {"in": {"0": 10, "1": 0}},
        "endOffset": json.dumps({"in": {"0": 15, "1": 2}}),
        "latestOffset": {"in": {"0": 25, "1": 2}},
    }
    other = {"startOffset": 7, "endOffset": 9, "latestOffset": None}
    return json.dumps(
        {
            "id": "q",
            "runId": "r",
            "name": None,
            "batchId": batch_id,
            "numInputRows": 7,
            "inputRowsPerSecond": 70.0,
            "processedRowsPerSecond": 35.0,
            "durationMs": {"triggerExecution": 200, **({"addBatch": 150} if ran else {})},
            "stateOperators": [
                {"numRowsTotal": 3, "memoryUsedBytes": 1000},
                {"numRowsTotal": 4, "memoryUsedBytes": 24},
            ],
            "sources": [source, other],
            **more,
        }
    )


def interval(_: str) -> float | None:
    return 2.0


def test_what_spark_says_of_a_query_is_in_the_scrape(listener: MetricsListener) -> None:
    listener.on_batch(result())
    listener.on_progress(progress(0), interval)
    listener.on_progress(progress(1), interval)
    listener.on_progress(progress(2, ran=False), interval)
    scrape = scraped(listener)
    expected = {
        "query_active": 1,
        "query_trigger_seconds_count": 2,
        "query_trigger_seconds_sum": 0.4,
        "query_trigger_interval_seconds": 2,
        "query_input_rows_total": 14,
        "query_input_rows_per_second": 70,
        "query_processed_rows_per_second": 35,
        "consumer_records_consumed_total": 14,
        "query_lag_offsets": 10,
        "query_state_rows": 7,
        "query_state_memory_bytes": 1024,
    }
    assert {name: pytest.approx(scrape.value(name, query="app")) for name in expected} == expected


def test_of_a_source_whose_beginning_is_not_told_the_rows_are_what_it_consumed(listener: MetricsListener) -> None:
    source = {"startOffset": None, "endOffset": {"in": {"0": 15}}, "latestOffset": {}, "numInputRows": 4}
    listener.on_progress(progress(sources=[source]), interval)
    assert scraped(listener).value("consumer_records_consumed_total", query="q") == 4


def test_a_query_is_called_by_its_name_then_by_its_app_then_by_its_id(listener: MetricsListener) -> None:
    listener.on_query_start("a", "named")
    listener.on_batch(result(query_id="a"))
    listener.on_batch(result(query_id="b"))
    for query_id in "abc":
        listener.on_progress(progress(id=query_id), lambda _: None)
    scrape = scraped(listener)
    assert [scrape.value("query_active", query=name) for name in ("named", "app", "c")] == [1, 1, 1]
    assert not scrape.has("query_trigger_interval_seconds")


def test_a_query_that_is_idle_has_no_rate_and_one_that_ended_is_not_active(listener: MetricsListener) -> None:
    listener.on_progress(progress(), interval)
    listener.on_query_idle("q")
    scrape = scraped(listener)
    assert (scrape.value("query_active", query="q"), scrape.value("query_input_rows_per_second", query="q")) == (1, 0)
    listener.on_query_end("q", failed=True)
    scrape = scraped(listener)
    assert scrape.value("query_active", query="q") == 0
    assert scrape.value("query_ended_total", query="q", how="failed") == 1


def test_a_query_that_is_started_again_goes_on_counting_and_is_asked_for_its_interval_again(
    listener: MetricsListener,
) -> None:
    asked: list[str] = []

    def interval(query_id: str) -> float:
        asked.append(query_id)
        return float(len(asked))

    for run_id in ("r1", "r1", "r2"):
        listener.on_progress(progress(runId=run_id), interval)
    scrape = scraped(listener)
    assert asked == ["q", "q"]
    assert scrape.value("query_trigger_interval_seconds", query="q") == 2
    assert scrape.value("query_input_rows_total", query="q") == 21


# --- where they are served


@pytest.mark.parametrize("address", ["4041", ":4041", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused_in_a_sentence(address: str) -> None:
    with pytest.raises(ConfigError, match="should look like HOST:PORT"):
        MetricsServer(address)


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def test_a_port_that_somebody_has_is_refused_in_a_sentence(taken: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot serve metrics at {taken}: address already in use"):
        MetricsServer(taken)


def test_a_closed_server_frees_its_port() -> None:
    with MetricsServer(ANYWHERE) as server:
        address = server.url.removeprefix("http://").removesuffix("/metrics")
    with MetricsServer(address) as again:
        assert again.url == server.url


@pytest.fixture
def _nobody_serves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(metrics_module, "_was_refused", False)
    assert metrics_module._serving == []
    yield
    while metrics_module._serving:
        metrics_module._serving[0].close()


@pytest.mark.usefixtures("_nobody_serves")
@pytest.mark.parametrize("address", [None, "no address"])
def test_an_environment_that_asks_for_the_impossible_is_a_warning_and_no_failed_batch(
    taken: str, address: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        serve_by_environment(address or taken, None, "q")
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert metrics_module._serving == []


@pytest.mark.usefixtures("_nobody_serves")
def test_the_environment_decides_whether_metrics_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []
    monkeypatch.setattr(MetricsServer, "watch_query", lambda _, spark, query_id: watched.append(query_id))
    monkeypatch.delenv(METRICS_VARIABLE, raising=False)
    look_for_metrics(None, "q")
    assert metrics_module._serving == []
    monkeypatch.setenv(METRICS_VARIABLE, ANYWHERE)
    for query_id in ("q", "p"):
        look_for_metrics(None, query_id)
    assert watched == ["q", "p"]
    [server] = metrics_module._serving
    Listeners([]).tell(result())
    assert read(server.url).has("microbatch_rows_total")


@pytest.mark.usefixtures("_nobody_serves")
def test_who_serves_already_is_not_served_again_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched: list[tuple[MetricsServer, str]] = []
    monkeypatch.setattr(MetricsServer, "watch_query", lambda self, spark, query_id: watched.append((self, query_id)))
    with MetricsServer(ANYWHERE) as server:
        serve_by_environment(server.url.removeprefix("http://").removesuffix("/metrics"), None, "q")
        assert metrics_module._serving == [server]
    assert watched == [(server, "q")]
    assert caplog.records == []

"""Metrics of a real query, from a scrape: micro-batches that are committed, skipped and failed, and what Spark says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from onceflow.spark import metrics as metrics_module
from onceflow.spark import serve_metrics
from onceflow.spark.foreach_batch import METRICS_VARIABLE
from onceflow.spark.metrics import MetricsServer
from tests.spark.streams import Streams
from tests.support.brokers import RunningBroker
from tests.support.waiting import eventually


@pytest.fixture
def streams(spark: SparkSession, broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path) -> Streams:
    return Streams(spark, broker.bootstrap, new_name(), tmp_path)


class Scraped:
    """What a server says now, of one application; other queries of the session are in there, too."""

    def __init__(self, server: MetricsServer, app_id: str) -> None:
        self._server, self._app_id = server, app_id

    def value(self, name: str, **labels: str) -> float | None:
        with urlopen(self._server.url, timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        wanted = {"query": self._app_id} if "query_" in name or "consumer_" in name else self._sink
        found = [
            sample.value
            for family in families
            for sample in family.samples
            if (sample.name, sample.labels) == (f"onceflow_{name}", wanted | labels)
        ]
        return found[0] if found else None

    @property
    def _sink(self) -> dict[str, str]:
        return {"app": self._app_id, "sink": "kafka"}


def test_a_query_is_measured_from_its_first_batch_to_its_failure_and_beyond(
    spark: SparkSession, streams: Streams
) -> None:
    with serve_metrics(spark, "127.0.0.1:0") as server:
        scraped = Scraped(server, streams.app_id)
        streams.send(range(10))
        query = streams.start(trigger={"processingTime": "200 milliseconds"}, maxOffsetsPerTrigger=5)
        eventually(lambda: scraped.value("query_trigger_seconds_count") == 2, "Spark has told of two", timeout_s=60)
        query.stop()
        assert scraped.value("microbatch_duration_seconds_count") == 2
        assert scraped.value("microbatch_rows_total") == 10
        assert scraped.value("microbatch_attempts_total") == 2
        assert scraped.value("microbatch_bytes_total") == sum(each.bytes for each in streams.results.all)
        assert scraped.value("microbatch_last_committed_batch") == 1
        for step, count in {"fence": 1, "progress": 1, "write": 2, "verify": 2, "record": 2, "commit": 2}.items():
            assert scraped.value("microbatch_step_seconds_count", step=step) == count
        whole = scraped.value("microbatch_duration_seconds_sum")
        part = scraped.value("microbatch_transaction_seconds_sum")
        assert whole is not None
        assert part is not None
        assert 0 < part < whole
        told = scraped.value("query_trigger_seconds_sum")
        assert told is not None
        assert told > whole - part, "Spark's own time contains the tasks'"
        assert scraped.value("query_trigger_interval_seconds") == 0.2
        assert scraped.value("query_input_rows_total") == 10
        assert scraped.value("consumer_records_consumed_total") == 10
        assert scraped.value("query_lag_offsets") == 0
        eventually(lambda: scraped.value("query_ended_total", how="stopped") == 1, "Spark has told of the end")
        assert scraped.value("query_active") == 0

        streams.forget_last_commit()
        streams.run()
        assert scraped.value("microbatch_skipped_total") == 1
        assert scraped.value("microbatch_rows_total") == 10

        streams.send(range(10, 13))
        broken = sql.when(sql.col("value") == "11", sql.raise_error(sql.lit("no elevens"))).otherwise(sql.col("value"))
        with pytest.raises(StreamingQueryException, match="no elevens"):
            streams.run(streams.sink(retries=1), lambda frame: frame.select("key", broken.alias("value")))
        assert scraped.value("microbatch_failures_total", reason="BatchFailed") == 1
        assert scraped.value("microbatch_attempts_total") == 4, "two of the batch that failed"
        eventually(lambda: scraped.value("query_ended_total", how="failed") == 1, "Spark has told of the failure")

        streams.run()
        assert scraped.value("microbatch_rows_total") == 13
        assert scraped.value("microbatch_last_committed_batch") == 2


@pytest.fixture
def by_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], MetricsServer]]:
    monkeypatch.setenv(METRICS_VARIABLE, "127.0.0.1:0")
    monkeypatch.setattr(metrics_module, "_was_refused", False)

    def server() -> MetricsServer:
        [found] = metrics_module._serving
        return found

    yield server
    server().close()


@pytest.mark.faults
def test_a_variable_in_the_environment_is_enough(streams: Streams, by_environment: Callable[[], MetricsServer]) -> None:
    """In `foreachBatch` the session is a copy; what Spark says must be heard all the same."""
    streams.send(range(3))
    streams.run()
    scraped = Scraped(by_environment(), streams.app_id)
    assert scraped.value("microbatch_rows_total") == 3
    eventually(lambda: scraped.value("query_input_rows_total") == 3, "Spark has told of it")

"""What sinks and queries tell, as metrics: a `SinkListener` with a registry of its own.

All metrics of micro-batches have the labels `app` (the app id) and `sink` (kafka or sql): one query may write into
both. They are about micro-batches that this process has committed, unless they say otherwise.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from onceflow.spark.listening import BatchFailure, BatchResult, SinkListener
from onceflow.spark.metrics_queries import QueryMetrics
from onceflow.spark.problems import QueryStopped

__all__ = ["MetricsListener"]

log = logging.getLogger("onceflow.spark")

BATCH_BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
STEP_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LABELS: Final = ("app", "sink")
PREFIX: Final = "onceflow_microbatch"


class MetricsListener(SinkListener):
    """Give it to sinks (`listeners=[...]`), or let `serve_metrics` do so. It may hear any number of them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._queries = QueryMetrics(self.registry)
        self._has_complained = False
        self._lock = threading.Lock()
        self._duration = self._histogram("duration", "From the call of the sink to the commit", BATCH_BOUNDS_S)
        self._transaction = self._histogram(
            "transaction", "The part of it that exactly-once took: every step but the writing", STEP_BOUNDS_S
        )
        self._step = self._histogram("step", "Each step, all attempts of a micro-batch together", STEP_BOUNDS_S, "step")
        self._rows = self._counter("rows", "Rows written")
        self._dead_letters = self._counter("dead_letters", "Of the rows: those that went to the dead-letter topic")
        self._bytes = self._counter("bytes", "Bytes of record batches sent to Kafka, packed if compression is on")
        self._attempts = self._counter("attempts", "Times that tasks were started, for failed micro-batches as well")
        self._skipped = self._counter("skipped", "Micro-batches that had been committed before")
        self._failures = self._counter("failures", "Calls of the sink that raised, by what", "reason")
        self._last_batch = self._gauge("last_committed_batch", "The number of the last micro-batch")
        self._last_commit = self._gauge("last_commit_timestamp_seconds", "When it was committed, since 1970")

    def on_batch(self, result: BatchResult) -> None:
        self._guarded(lambda: self._see(result))

    def on_failure(self, failure: BatchFailure) -> None:
        self._guarded(lambda: self._see_failure(failure))

    def on_query_start(self, query_id: str, name: str | None) -> None:
        self._guarded(lambda: self._queries.start(query_id, name))

    def on_progress(self, progress: str, interval_s: Callable[[str], float | None]) -> None:
        """Spark's progress, as JSON. `interval_s`: of a query, by its id; asked once for each run of it."""
        self._guarded(lambda: self._queries.see(json.loads(progress), interval_s))

    def on_query_idle(self, query_id: str) -> None:
        self._guarded(lambda: self._queries.idle(query_id))

    def on_query_end(self, query_id: str, *, failed: bool) -> None:
        self._guarded(lambda: self._queries.end(query_id, failed=failed))

    def _see(self, result: BatchResult) -> None:
        self._queries.know(result.query_id, result.app_id)
        labels = (result.app_id, result.sink)
        if result.skipped:
            self._skipped.labels(*labels).inc()
            return
        self._duration.labels(*labels).observe(result.duration_ms / 1000)
        self._transaction.labels(*labels).observe(result.transaction_ms / 1000)
        for step, took_ms in result.steps_ms.items():
            self._step.labels(*labels, step.value).observe(took_ms / 1000)
        self._rows.labels(*labels).inc(result.rows)
        self._dead_letters.labels(*labels).inc(result.dead_letters)
        self._bytes.labels(*labels).inc(result.bytes)
        self._attempts.labels(*labels).inc(result.attempts)
        self._last_batch.labels(*labels).set(result.batch_id)
        self._last_commit.labels(*labels).set(time.time())

    def _see_failure(self, failure: BatchFailure) -> None:
        labels = (failure.app_id, failure.sink)
        if not isinstance(failure.problem, QueryStopped):  # somebody wanted that
            self._failures.labels(*labels, type(failure.problem).__name__).inc()
        self._attempts.labels(*labels).inc(failure.attempts)

    def _guarded(self, see: Callable[[], None]) -> None:
        """Nobody's work ends because somebody watches."""
        try:
            with self._lock:
                see()
        except Exception:
            if not self._has_complained:
                log.warning("metrics are not complete; this is said once", exc_info=True)
            self._has_complained = True

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...], *more: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}_seconds", text, (*LABELS, *more), buckets=bounds, registry=self.registry)

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return Counter(f"{PREFIX}_{name}_total", text, (*LABELS, *more), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, LABELS, registry=self.registry)

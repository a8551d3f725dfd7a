"""What Spark itself says about its streaming queries, as metrics.

The label is `query`: the query's name (`writeStream.queryName`), else the app id of its first sink, else Spark's id of
it. A query that is started again goes on under the same one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from onceflow.spark.planning import behind_latest, offsets_in
from onceflow.spark.query import trigger_interval_s

if TYPE_CHECKING:
    from onceflow.spark.metrics_listener import MetricsListener

__all__ = ["QueryMetrics", "heard_by"]

TRIGGER_BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
PREFIX: Final = "onceflow_query"
LABEL: Final = ("query",)


class QueryMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._names: dict[str, str] = {}  # by Spark's id: what we call a query
        self._runs: dict[str, str] = {}  # the run of each that we have seen last
        self._active = self._gauge("active", "1 while it runs")
        self._ended = Counter(
            f"{PREFIX}_ended_total", "Times that it ended, by how: stopped, failed", (*LABEL, "how"), registry=registry
        )
        self._trigger = Histogram(
            f"{PREFIX}_trigger_seconds",
            "Micro-batches as Spark measures them, from the planning to its own commit log",
            LABEL,
            buckets=TRIGGER_BOUNDS_S,
            registry=registry,
        )
        self._interval = self._gauge("trigger_interval_seconds", "How often a micro-batch is to begin, if it says so")
        self._rows = Counter(f"{PREFIX}_input_rows_total", "Rows read", LABEL, registry=registry)
        self._input = self._gauge("input_rows_per_second", "Rows that came, in the last micro-batch")
        self._processed = self._gauge("processed_rows_per_second", "Rows worked off, in the last micro-batch")
        self._consumed = Counter(
            "onceflow_consumer_records_consumed_total",
            "Offsets by which its Kafka sources have moved: records, and markers of transactions",
            LABEL,
            registry=registry,
        )
        self._lag = self._gauge("lag_offsets", "Offsets between where its Kafka sources are and the end")
        self._state_rows = self._gauge("state_rows", "Rows in its state stores")
        self._state_bytes = self._gauge("state_memory_bytes", "Memory that its state stores take")

    def start(self, query_id: str, name: str | None) -> None:
        if name:
            self._names[query_id] = name

    def know(self, query_id: str, app_id: str) -> None:
        """A sink with this app id belongs to the query."""
        self._names.setdefault(query_id, app_id)

    def see(self, progress: Mapping[str, Any], interval_s: Callable[[str], float | None]) -> None:
        query_id = str(progress["id"])
        self.start(query_id, progress.get("name"))
        name = self._name(query_id)
        self._active.labels(name).set(1)
        self._see_run(query_id, str(progress["runId"]), interval_s)
        self._input.labels(name).set(progress.get("inputRowsPerSecond") or 0)
        self._processed.labels(name).set(progress.get("processedRowsPerSecond") or 0)
        self._see_state(name, progress.get("stateOperators") or ())
        sources = [_Source(each) for each in progress.get("sources") or ()]
        self._lag.labels(name).set(sum(each.behind for each in sources))
        took_ms = progress.get("durationMs") or {}
        if "addBatch" in took_ms:  # now and then Spark tells that there was nothing to do
            self._trigger.labels(name).observe(took_ms.get("triggerExecution", 0) / 1000)
            self._rows.labels(name).inc(progress.get("numInputRows") or 0)
            self._consumed.labels(name).inc(sum(each.moved for each in sources))

    def idle(self, query_id: str) -> None:
        """Nothing comes, and nobody is going to say so again."""
        for gauge in (self._input, self._processed):
            gauge.labels(self._name(query_id)).set(0)

    def end(self, query_id: str, *, failed: bool) -> None:
        name = self._name(query_id)
        self._ended.labels(name, "failed" if failed else "stopped").inc()
        self._active.labels(name).set(0)
        self.idle(query_id)

    def _see_run(self, query_id: str, run_id: str, interval_s: Callable[[str], float | None]) -> None:
        if self._runs.get(query_id) == run_id:
            return
        self._runs[query_id] = run_id
        interval = interval_s(query_id)
        if interval is not None:
            self._interval.labels(self._name(query_id)).set(interval)

    def _see_state(self, name: str, operators: Any) -> None:
        if operators:
            self._state_rows.labels(name).set(sum(each.get("numRowsTotal", 0) for each in operators))
            self._state_bytes.labels(name).set(sum(each.get("memoryUsedBytes", 0) for each in operators))

    def _name(self, query_id: str) -> str:
        return self._names.get(query_id, query_id)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, LABEL, registry=self._registry)


class _Source:
    """A source's part of the progress; one that is not Kafka's has no offsets of ours."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        start, end = (offsets_in(told.get(name)) for name in ("startOffset", "endOffset"))
        if end and not start:  # of its first micro-batch Spark does not say where it began
            self.moved = int(told.get("numInputRows") or 0)
        else:
            self.moved = sum(max(0, at - start[where]) for where, at in end.items() if where in start)
        self.behind = sum(behind_latest(told).values())


class _Ears:
    """Called by Spark's own thread for listeners, apart from the queries'.

    What PySpark's `StreamingQueryListener` is behind the scenes. That one takes each progress to pieces, call by call
    through the gateway: 25 ms of the driver's processor for every micro-batch. As JSON it is two calls, and half a ms.
    """

    def __init__(self, listener: MetricsListener, spark: Any) -> None:
        self._listener = listener
        self._spark = spark

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - the names are Spark's
        self._listener.on_query_start(_id(event), event.name())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        interval_s = functools.partial(trigger_interval_s, self._spark)
        self._listener.on_progress(str(event.progress().json()), interval_s)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self._listener.on_query_idle(_id(event))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._listener.on_query_end(_id(event), failed=bool(event.exception().isDefined()))

    class Java:
        implements: Final = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def _id(event: Any) -> str:
    return str(event.id().toString())


def heard_by(listener: MetricsListener, spark: Any, session: Any) -> Callable[[], None]:
    """Tell it of all queries of a session (Spark's own object). Returns what ends that."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    wrapper = spark._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(_Ears(listener, spark))
    session.streams().addListener(wrapper)
    return lambda: session.streams().removeListener(wrapper)

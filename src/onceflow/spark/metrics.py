"""Metrics of a Spark job for Prometheus, served by its driver.

    metrics = onceflow.spark.serve_metrics(spark, "127.0.0.1:4041")
    print(metrics.url)                                                # http://127.0.0.1:4041/metrics

One line, before or after queries were started: it hears all sinks of the process (`KafkaSink`, `SqlSink`) and all
queries of the session. Without any line: `ONCEFLOW_METRICS=127.0.0.1:4041` in the driver's environment, and
`onceflow run --metrics 127.0.0.1:4041`. What is measured: `metrics_listener.py`, of sinks, and `metrics_queries.py`, of
Spark's own progress.

- Counting begins with the process and goes on when a query is started again in it. After a query has failed, the
  metrics can still be scraped.
- Watching never fails a micro-batch: what goes wrong here is logged, once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from types import TracebackType
from typing import Any

from onceflow.digits import address_of
from onceflow.errors import ConfigError
from onceflow.spark.listening import listen_everywhere, stop_listening
from onceflow.spark.metrics_listener import MetricsListener
from onceflow.spark.metrics_queries import heard_by
from onceflow.spark.query import session_of

__all__ = ["MetricsListener", "MetricsServer", "parse_address", "serve_by_environment", "serve_metrics"]

log = logging.getLogger("onceflow.spark")

_serving: list[MetricsServer] = []
_was_refused = False
_environment_lock = threading.Lock()


class MetricsServer:
    """Serves until it is closed, or the process ends."""

    def __init__(self, address: str) -> None:
        from prometheus_client import start_http_server

        host, port = parse_address(address)
        self.listener = MetricsListener()
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=self.listener.registry)
        except (OSError, UnicodeError) as problem:
            reason = (getattr(problem, "strerror", None) or str(problem)).lower()
            raise ConfigError(f"cannot serve metrics at {address}: {reason}. Another port, or 0 for any?") from None
        bound = f"[{host}]" if ":" in host else host
        self.url = f"http://{bound}:{self._server.server_address[1]}/metrics"
        self._sessions: dict[int, Any] = {}
        self._queries: set[str] = set()
        self._lock = threading.Lock()
        listen_everywhere(self.listener)
        _serving.append(self)

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def watch(self, spark: Any) -> None:
        """Hear the queries of this session as well. Twice is as once."""
        self._hear(spark, spark._jsparkSession)

    def watch_query(self, spark: Any, query_id: str) -> None:
        """Hear the session in which a query was started; in `foreachBatch` it is another one."""
        if query_id not in self._queries:
            self._queries.add(query_id)
            session = session_of(spark, query_id)
            if session is not None:
                self._hear(spark, session)

    def close(self) -> None:
        stop_listening(self.listener)
        if self in _serving:
            _serving.remove(self)
        for forget in self._sessions.values():
            with contextlib.suppress(Exception):  # the session has ended before us
                forget()
        self._sessions.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _hear(self, spark: Any, session: Any) -> None:
        name = int(spark._jvm.java.lang.System.identityHashCode(session.streams()))
        with self._lock:
            if name not in self._sessions:
                self._sessions[name] = heard_by(self.listener, spark, session)


def serve_metrics(spark: Any, address: str = "127.0.0.1:4041") -> MetricsServer:
    """Serve the metrics of this process' sinks and of this session's queries. Port 0: any; `.url` says which.

    Raises `ConfigError` if that is no address, or somebody else listens there.
    """
    server = MetricsServer(address)
    try:
        server.watch(spark)
    except BaseException:
        server.close()
        raise
    return server


def serve_by_environment(address: str, spark: Any, query_id: str) -> None:
    """Unless this process serves them already; and never to the harm of the micro-batch in which it is called."""
    global _was_refused
    try:
        with _environment_lock:
            if _was_refused:
                return
            if not _serving:
                log.info("metrics at %s", MetricsServer(address).url)
            _serving[0].watch_query(spark, query_id)
    except Exception as problem:
        _was_refused = True
        log.warning("ONCEFLOW_METRICS=%s: there are no metrics, or not all: %s", address, problem)


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, with port 0 for any."""
    found = address_of(text)
    if found is None or not found[0]:
        raise ConfigError(f"{text!r} is no address for metrics: it should look like HOST:PORT, 127.0.0.1:4041")
    return found

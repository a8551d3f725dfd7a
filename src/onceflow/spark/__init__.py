"""Spark, exactly once: a Kafka source that needs no jar, and a sink with one transaction per micro-batch.

    spark = onceflow.spark.session("orders", master="local[2]")       # or your own session, and register(spark)
    kafka = {"kafka.bootstrap.servers": "...", "subscribe": "orders"}
    orders = spark.readStream.format("onceflow").options(**kafka).load()
    sink = onceflow.spark.KafkaSink(app_id="orders", bootstrap_servers="...", topic="invoices")
    orders.select("key", "value").writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

Works on any Kafka from 3.6 on. Needs PySpark 4.2 or 4.3: `pip install 'onceflow[spark]'`. Names are
imported when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceflow.spark.listening import BatchFailure, BatchResult, SinkListener, Step
    from onceflow.spark.metrics import serve_metrics
    from onceflow.spark.problems import (
        BatchFailed,
        CheckpointMismatch,
        CommitUnknown,
        NotInAllSinks,
        QueryStopped,
        SinkError,
        TakenOver,
        TransactionTimedOut,
    )
    from onceflow.spark.sessions import session
    from onceflow.spark.sink import KafkaSink, write
    from onceflow.spark.source import DataLossError, lag, register
    from onceflow.spark.together import sinks

__all__ = [
    "BatchFailed",
    "BatchFailure",
    "BatchResult",
    "CheckpointMismatch",
    "CommitUnknown",
    "DataLossError",
    "KafkaSink",
    "NotInAllSinks",
    "QueryStopped",
    "SinkError",
    "SinkListener",
    "Step",
    "TakenOver",
    "TransactionTimedOut",
    "lag",
    "register",
    "serve_metrics",
    "session",
    "sinks",
    "write",
]

_WHERE = {
    "KafkaSink": "sink",
    "write": "sink",
    "register": "source",
    "lag": "source",
    "DataLossError": "source",
    "session": "sessions",
    "sinks": "together",
    "BatchFailure": "listening",
    "BatchResult": "listening",
    "serve_metrics": "metrics",
    "SinkListener": "listening",
    "Step": "listening",
} | dict.fromkeys(
    (
        "BatchFailed",
        "CheckpointMismatch",
        "CommitUnknown",
        "NotInAllSinks",
        "QueryStopped",
        "SinkError",
        "TakenOver",
        "TransactionTimedOut",
    ),
    "problems",
)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_WHERE[name]}")
    return getattr(module, name)

"""What every sink for `foreachBatch` asks of a call before it does anything."""

from __future__ import annotations

import os
import pickle
import threading
from typing import Any, Final

from onceflow.errors import ConfigError
from onceflow.spark.query import MicroBatch, query_is_active

__all__ = ["METRICS_VARIABLE", "BoundToDriver", "check_app_id", "claim", "look_for_metrics", "refuse_connect"]

METRICS_VARIABLE: Final = "ONCEFLOW_METRICS"

_CLASSIC: Final = "use a classic session (spark-submit, or SparkSession.builder.master(...)) for this job"


def check_app_id(app_id: Any, keeper: str) -> None:
    if not isinstance(app_id, str) or not app_id.strip():
        raise ConfigError(f"app_id must be a name: it identifies the application to {keeper}, over restarts")


def look_for_metrics(spark: Any, query_id: str) -> None:
    """With ONCEFLOW_METRICS=HOST:PORT in the environment, the first sink of a process has metrics served there."""
    if address := os.environ.get(METRICS_VARIABLE):
        from onceflow.spark.metrics import serve_by_environment

        serve_by_environment(address, spark, query_id)


# --- Spark Connect


class BoundToDriver(ConfigError, pickle.PickleError):
    """Raised by what pickles a sink. PySpark hands on a `PickleError`, and hides any other exception behind general
    advice."""

    def __init__(self, sink: str) -> None:
        super().__init__(
            f"{sink} works on the driver and cannot be sent elsewhere, as Spark Connect does with what it is given: "
            f"{_CLASSIC}"
        )


def refuse_connect(frame: Any) -> None:
    if type(frame).__module__.startswith("pyspark.sql.connect."):
        raise ConfigError(
            "this DataFrame belongs to Spark Connect, and whoever keeps the transaction must be the driver: "
            f"{_CLASSIC}. Nothing was written"
        )


# --- one query per app id and process, and one call per micro-batch

_claims: dict[tuple[str, str], MicroBatch] = {}  # the last one that was written under this app id
_claims_lock = threading.Lock()


def claim(where: str, app_id: str, batch: MicroBatch, spark: Any, advice: str) -> None:
    """Two queries under one app id would fence each other for ever. And a second call in the same micro-batch, of this
    sink or another one, would find it committed, and skip it.

    `where`: what identifies the cluster or the database, whichever of its addresses was given. `advice`: how to do both
    in one call."""
    key = (where, app_id)
    with _claims_lock:
        last = _claims.get(key)
        if last is not None and (last.run_id, last.batch_id) == (batch.run_id, batch.batch_id):
            raise ConfigError(
                f"the sink of {app_id!r} was called twice in micro-batch {batch.batch_id}, or two sinks of the query "
                f"have this app id; the second call wrote nothing. A micro-batch is one transaction: {advice}"
            )
        if last is not None and last.query_id != batch.query_id and query_is_active(spark, last.query_id):
            raise ConfigError(
                f"two queries of this process write under the app id {app_id!r}: each needs an app_id of its "
                "own. Nothing was written by this one"
            )
        _claims[key] = batch

"""From what a person names to a report: gathers the facts and runs the checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from onceflow.client.settings import ClientSettings

# The checks register themselves when they are imported; reports have them in this order.
from onceflow.doctor import (  # isort: skip
    cluster_checks as cluster_checks,
    topic_checks as topic_checks,
    activity_checks as activity_checks,
    producer_checks as producer_checks,
    consumer_checks as consumer_checks,
    spark_checks as spark_checks,
    together_checks as together_checks,
)
from onceflow.doctor.facts import Case, ClientFacts, SparkFacts
from onceflow.doctor.files import read_clients, read_spark, spark_facts_of
from onceflow.doctor.findings import Report
from onceflow.doctor.gathering import gather
from onceflow.doctor.python_jobs import read_job
from onceflow.doctor.registry import examine_case
from onceflow.errors import ConfigError

__all__ = ["check_spark", "examine"]


def examine(
    *,
    bootstrap: str | None = None,
    kafka: Mapping[str, str] | None = None,
    clients: Iterable[str] = (),
    jobs: Iterable[str] = (),
    topics: Collection[str] = (),
    role: str | None = None,
    flavor: str | None = None,
    processing_ms: int | None = None,
) -> Report:
    """Looks at a cluster, at files of client settings, at Spark jobs (settings or Python), and at all of them together.

    `kafka` are security settings of the cluster; `topics` limits what is looked at there. `role` (producer, consumer,
    streams) and `flavor` (java, librdkafka) are for files that do not tell. `processing_ms` is the longest that a
    transaction, or the work between two polls, takes. Raises `ConfigError` for a file that cannot be read. A cluster
    that cannot be reached is in the report, as `unknown`.
    """
    read = [client for path in clients for client in read_clients(path, role=role, flavor=flavor)]
    found = [read_job(path) if path.endswith(".py") else read_spark(path) for path in jobs]
    settings = ClientSettings(bootstrap=bootstrap, extra=dict(kafka or {})) if bootstrap is not None else None
    return _report(settings, read, found, topics, processing_ms)


def check_spark(
    spark: Any,
    *,
    bootstrap: str | None = None,
    options: Mapping[str, str] | None = None,
    processing_ms: int | None = None,
) -> Report:
    """Looks at a running session: its settings, and `options` of source, sink and query as a file would have them
    (`source.format`, `sink.app_id`, `checkpointLocation`, ...). Raises `ConfigError` for a session of Spark Connect."""
    try:
        context = spark.sparkContext
    except Exception:  # PySpark's own, which only PySpark can name
        raise ConfigError("only a classic session tells its settings: this one is of Spark Connect") from None
    found = spark_facts_of(context.appName, {**dict(context.getConf().getAll()), **(options or {})})
    job = replace(found, version=spark.version)
    settings = ClientSettings(bootstrap=bootstrap) if bootstrap is not None else None
    return _report(settings, [], [job], (), processing_ms)


def _report(
    settings: ClientSettings | None,
    clients: list[ClientFacts],
    jobs: list[SparkFacts],
    topics: Collection[str],
    processing_ms: int | None,
) -> Report:
    ids = {name for each in clients if (name := each.get("transactional.id"))}
    cluster = gather(settings, topics=topics, transactional_ids=ids) if settings is not None else None
    case = Case(cluster=cluster, clients=tuple(clients), jobs=tuple(jobs), processing_ms=processing_ms)
    return Report(lines=tuple(examine_case(case)))

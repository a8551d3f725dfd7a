"""A pipeline as a running Spark query: source, stages, and one transaction per micro-batch.

    with start(ORDERS, JobSettings(bootstrap="kafka:9092", checkpoint="/checkpoints/orders")) as job:
        job.await_end()

Topics must exist (`create_topics` creates them). What the steps send, the dead letters, the source offsets and the
progress of a micro-batch become visible together or not at all. Every record that is written has the header `batch`:
the number of the micro-batch that wrote it.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.pipelines.checkpoints import check_steps, last_micro_batch
from onceflow.pipelines.intake import RECORDS, packing, typing
from onceflow.pipelines.pipeline import Pipeline
from onceflow.pipelines.stages import OBSERVED, good_and_bad, through_steps, topic_names

__all__ = ["Job", "JobSettings", "check", "create_topics", "missing_topics", "on_one_machine", "records_in", "start"]

BATCH_HEADER: Final = "batch"
LOOK_EVERY_S: Final = 0.2
FEW: Final = 2_000
"""So few records are not worth a task for each partition."""
SOCKET_FOLDER_MAX: Final = 50
"""The path of a Unix socket has about a hundred bytes, of which Spark needs half."""
PER_TASK: Final = 25_000
"""Records that a task reads at most: three partitions are no equal work for two cores, eight pieces of them are."""


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    bootstrap: str
    checkpoint: str
    prefix: str = ""
    """What the names of topics, and the app id, begin with."""
    app_id: str | None = None
    """None: the pipeline's name."""
    trigger: str | None = None
    """How long from the start of one micro-batch to the next, "100 milliseconds", "1 second": less often costs less per
    record, and is later. None: the next begins when the last one has ended."""
    available_now: bool = False
    """End when what is there now has been dealt with."""
    per_batch: int | None = 200_000
    """Records in a micro-batch at most."""
    starting_offsets: str = "earliest"
    """For a new checkpoint. "committed": where the app left off. Only for pipelines without steps: the state of steps
    was in the old checkpoint."""
    source_options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `KafkaSink`."""
    sql: str | None = field(default=None, repr=False)
    """The address of a database, which may have a password in it: what the pipeline `lands` goes there, too."""
    sql_schema: str | None = None
    """Where its tables are; None: where the database decides."""
    sql_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `SqlSink`."""

    def app(self, pipeline: Pipeline) -> str:
        return self.app_id or f"{self.prefix}{pipeline.name}"


class Job:
    """A query that runs."""

    def __init__(self, query: Any) -> None:
        self.query = query

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def await_end(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Until the query ends, or `is_over` says so. Raises what the query failed with."""
        while self.query.isActive:
            if is_over():
                return
            time.sleep(LOOK_EVERY_S)
        if (problem := self.query.exception()) is not None:
            raise problem


def on_one_machine() -> dict[str, str]:
    """Settings for a session with a local master.

    The work is Python's: the JVM mostly hands parcels on, and its optimising compiler would take a tenth of two cores,
    in the first minutes a third, from those who do the work. Questions to the state store are short ones: a tenth of a
    small micro-batch is the difference between a TCP and a Unix socket.
    """
    settings = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1", "spark.shuffle.compress": "false"}
    folder = tempfile.gettempdir()
    if hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) <= SOCKET_FOLDER_MAX:
        settings |= {
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.python.unix.domain.socket.dir": folder,
        }
    return settings


def records_in(progress: Any) -> int:
    """How many records a micro-batch has read, by the progress of its query."""
    observed = progress["observedMetrics"].get(OBSERVED)
    if observed is None:  # a pipeline that is plain Spark: its rows are records
        return int(progress["numInputRows"])
    return int(observed[RECORDS] or 0)


def create_topics(
    pipeline: Pipeline, settings: ClientSettings, prefix: str = "", replication_factor: int = -1
) -> list[str]:
    """Those of its topics that do not exist yet; returns their names."""
    missing = missing_topics(pipeline, settings, prefix)
    admin = Admin(settings)
    for name, count in missing.items():
        admin.create(name, partitions=count, replication_factor=replication_factor)
    return list(missing)


def missing_topics(pipeline: Pipeline, settings: ClientSettings, prefix: str = "") -> dict[str, int]:
    """Those of its topics that do not exist, with their numbers of partitions."""
    there = {each.name for each in Admin(settings).topics()}
    wanted = {f"{prefix}{name}": count for name, count in pipeline.topics().items()}
    return {name: count for name, count in wanted.items() if name not in there}


def check(pipeline: Pipeline, settings: JobSettings) -> None:
    """Raises `ConfigError` if the two do not go together."""
    if settings.starting_offsets == "committed" and pipeline.steps:
        raise ConfigError(
            f"the pipeline {pipeline.name!r} keeps state, and that is in its checkpoint: with a new one it cannot go "
            "on where it left off. Bring the checkpoint back, or begin anew with topics and an app id of their own: "
            "a prefix"
        )
    if settings.sql is not None:
        from onceflow.pipelines.landing import database_of

        database_of(pipeline, settings.sql)


def start(pipeline: Pipeline, settings: JobSettings, spark: Any) -> Job:
    """Begin to run. `spark`: a session of `onceflow.spark.session`."""
    check(pipeline, settings)
    names = topic_names(pipeline, settings.prefix)
    frame = _rows(pipeline, _source(spark, settings, pipeline, names), names)
    query = (
        frame.writeStream.outputMode("append" if pipeline.steps else "update")
        .foreachBatch(_sink(pipeline, settings, names))
        .option("checkpointLocation", settings.checkpoint)
        .queryName(settings.app(pipeline))
    )
    if settings.available_now:
        query = query.trigger(availableNow=True)
    elif settings.trigger is not None:
        query = query.trigger(processingTime=settings.trigger)
    check_steps(spark, settings.checkpoint, pipeline)
    if settings.sql is not None:
        from onceflow.pipelines.landing import check_landed

        check_landed(pipeline, settings, last_micro_batch(spark, settings.checkpoint))
    return Job(query.start())


def _source(spark: Any, settings: JobSettings, pipeline: Pipeline, names: Mapping[str, str]) -> Any:
    from onceflow.spark.source import register_converting

    options = {
        "kafka.bootstrap.servers": settings.bootstrap,
        "subscribe": ",".join(names[each.topic] for each in pipeline.inputs),
        "startingOffsets": settings.starting_offsets,
        **({"kafka.group.id": settings.app(pipeline)} if settings.starting_offsets == "committed" else {}),
        "maxRecordsPerPartition": str(PER_TASK),
        "minRecordsPerPartition": str(FEW),
        **({} if settings.per_batch is None else {"maxOffsetsPerTrigger": str(settings.per_batch)}),
        **settings.source_options,
    }
    name = f"onceflow-{pipeline.name}"
    register_converting(spark, name, packing(pipeline, names) if pipeline.steps else typing(pipeline, names))
    return spark.readStream.format(name).options(**options).load()


def _rows(pipeline: Pipeline, source: Any, names: Mapping[str, str]) -> Any:
    if pipeline.build is None:
        return through_steps(source, pipeline, names)
    good, letters = good_and_bad(source, names)
    built = pipeline.build(good)
    if missing := {"topic", "key", "value"} - set(built.columns):
        raise ConfigError(f"what {pipeline.name!r} builds has no column {', '.join(sorted(missing))}")
    from pyspark.sql import functions as sql

    topics = sql.create_map(*(sql.lit(each) for pair in names.items() for each in pair))
    known = sql.coalesce(topics[sql.col("topic")], sql.raise_error(_undeclared(pipeline)))
    return built.select(known.alias("topic"), "key", "value").unionByName(letters)


def _undeclared(pipeline: Pipeline) -> str:
    return (
        f"the pipeline {pipeline.name!r} writes to a topic that is not declared: there is {', '.join(pipeline.outputs)}"
    )


def _sink(pipeline: Pipeline, settings: JobSettings, names: Mapping[str, str]) -> Any:
    from onceflow.spark.sink import KafkaSink

    new_checkpoint = "never" if pipeline.steps else "refuse"
    options = {"batch_header": BATCH_HEADER, "new_checkpoint": new_checkpoint, **settings.sink_options}
    to_kafka = KafkaSink(app_id=settings.app(pipeline), bootstrap_servers=settings.bootstrap, **options)
    if settings.sql is None:
        return to_kafka
    from onceflow.pipelines.landing import sql_sink
    from onceflow.spark.together import sinks

    landing = {"new_checkpoint": new_checkpoint, **settings.sql_options}
    return sinks(sql_sink(pipeline, settings, names, **landing), to_kafka)

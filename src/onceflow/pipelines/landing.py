"""A pipeline's records into a database: `--sql`. What becomes which table is declared in `tables.py`.

All tables of a pipeline are one `SqlSink`, which comes before the `KafkaSink`: a micro-batch is one transaction in the
database and then one in Kafka, each exactly once. Between the two it is in the database and not yet in Kafka; after a
crash there, it is when the job has been started again (`onceflow.spark.sinks`). In this order a record in a topic is a
promise that its row is in the table, and what a database refuses is not in the topics either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from onceflow.errors import ConfigError
from onceflow.pipelines.pipeline import Pipeline
from onceflow.pipelines.tables import Field, Kind, Lands, fields_of, table_name
from onceflow.sinks.databases import Database, open_database
from onceflow.sinks.databases.database import Column, Trouble
from onceflow.sinks.databases.database import Kind as ColumnKind
from onceflow.sinks.progress_table import ProgressTable
from onceflow.sinks.tables import Table
from onceflow.spark.problems import SinkError

if TYPE_CHECKING:
    from onceflow.pipelines.job import JobSettings

__all__ = ["check_database", "check_landed", "database_of", "knock", "sql_sink", "table_names"]

log = logging.getLogger("onceflow.pipelines")

CHECK_LOCK_S: Final = 5.0

_COLUMN_KINDS: Final[Mapping[Kind, str]] = {
    Kind.TEXT: "text",
    Kind.WHOLE: "bigint",
    Kind.NUMBER: "double",
    Kind.FLAG: "boolean",
    Kind.TIME: "timestamp",
    Kind.JSON: "json",
}


def database_of(pipeline: Pipeline, url: str) -> Database:
    """Raises `ConfigError` for an address that nobody understands, and for a pipeline that has nothing for it."""
    if not pipeline.lands:
        raise ConfigError(f"the pipeline {pipeline.name!r} lands nothing in a database: it declares no lands=[...]")
    return open_database(url)


def knock(pipeline: Pipeline, url: str) -> Database:
    """Connect once. Raises `SinkError` if nobody opens."""
    database = database_of(pipeline, url)
    with _troubles():
        database.connect(lock_timeout_s=CHECK_LOCK_S).close()
    return database


def check_database(pipeline: Pipeline, settings: JobSettings) -> Database:
    """That the database can be reached, and that its tables are there and fit; they are created where they are not.
    Raises `ConfigError`, or a `SinkError` that says what the database has answered."""
    from onceflow.sinks.landing import Landing, Patience

    assert settings.sql is not None, "there is a database to check"
    database = knock(pipeline, settings.sql)
    tables = tables_of(pipeline, settings)
    patience = Patience(retries=1, lock_timeout_s=CHECK_LOCK_S, outage_s=0)
    landing = Landing(database, settings.app(pipeline), tables, schema=settings.sql_schema, patience=patience)
    try:
        landing.check([[_column(each) for each in fields_of(lands)] for lands in pipeline.lands])
    finally:
        landing.close()
    return database


def check_landed(pipeline: Pipeline, settings: JobSettings, last: int | None) -> None:
    """That the database has all micro-batches up to `last`, the newest that the checkpoint knows to be done: a run
    without the database would have left a hole in the tables. A database that knows nothing of the app begins here.
    Raises `ConfigError`."""
    if last is None:
        return
    assert settings.sql is not None, "there is a database to check"
    database = database_of(pipeline, settings.sql)
    app_id = settings.app(pipeline)
    progress = ProgressTable(database, settings.sql_schema, app_id)
    landed = _last_landed(database, progress)
    if landed is None:
        log.warning("%s: the tables begin with micro-batch %d: %s is new to it", app_id, last + 1, database.shown)
    elif landed < last:
        raise ConfigError(
            f"the tables of {app_id!r} in {database.shown} have micro-batches up to {landed}, and the checkpoint is at "
            f"{last}: the pipeline has run without the database in between, and they would have a hole. Nothing was "
            "started. Begin anew with another prefix, or, if a hole is what you want, DELETE FROM "
            f"{progress.name} WHERE app_id = '{app_id}'"
        )


def _last_landed(database: Database, progress: ProgressTable) -> int | None:
    with _troubles(), closing(database.connect(lock_timeout_s=CHECK_LOCK_S)) as session:
        if not progress.exists(session):
            return None
        with session.transaction():
            owned = progress.locked(session)
    return None if owned is None or owned.progress is None else owned.progress.batch_id


@contextmanager
def _troubles() -> Iterator[None]:
    """Of the database, before anything has begun."""
    try:
        yield
    except Trouble as trouble:
        raise SinkError(f"{str(trouble).rstrip('.')}. Nothing was started".replace("?.", "?")) from None


def _column(field: Field) -> Column:
    return Column(field.column, ColumnKind(_COLUMN_KINDS[field.kind]))


def sql_sink(pipeline: Pipeline, settings: JobSettings, names: Mapping[str, str], **options: Any) -> Any:
    """`names`: of the topics in Kafka."""
    from onceflow.sinks.sql_sink import SqlSink

    assert settings.sql is not None, "there is a database to land in"
    return SqlSink(
        url=database_of(pipeline, settings.sql),
        app_id=settings.app(pipeline),
        tables=tables_of(pipeline, settings, names),
        schema=settings.sql_schema,
        **options,
    )


def table_names(pipeline: Pipeline, settings: JobSettings) -> list[str]:
    """As they are in the database."""
    return [table_name(lands, settings.prefix, settings.sql_schema) for lands in pipeline.lands]


def tables_of(pipeline: Pipeline, settings: JobSettings, names: Mapping[str, str] | None = None) -> list[Table]:
    """Without the `names` of topics, tables without rows."""
    return [
        Table(
            table_name(lands, settings.prefix, settings.sql_schema),
            key=[lands.column(each) for each in lands.key],
            mode=lands.mode,
            order_by=[lands.column(each) for each in lands.order_by],
            deleted=lands.column(lands.deleted),
            rows=None if names is None else _rows(lands, names[lands.topic]),
            create=True,
        )
        for lands in pipeline.lands
    ]


def _rows(lands: Lands, topic: str) -> Callable[[Any], Any]:
    from onceflow.pipelines.conversion import Conversion

    convert = Conversion(topic, lands.table, tuple(fields_of(lands)))

    def rows(frame: Any) -> Any:
        return frame.mapInArrow(convert, _spark_schema(lands))

    return rows


def _spark_schema(lands: Lands) -> Any:
    from pyspark.sql import types

    from onceflow.sinks.spark_rows import IS_JSON

    plain = {
        Kind.TEXT: types.StringType(),
        Kind.WHOLE: types.LongType(),
        Kind.NUMBER: types.DoubleType(),
        Kind.FLAG: types.BooleanType(),
        Kind.TIME: types.TimestampType(),
        Kind.JSON: types.StringType(),
    }
    return types.StructType(
        [
            types.StructField(each.column, plain[each.kind], metadata=IS_JSON if each.kind is Kind.JSON else None)
            for each in fields_of(lands)
        ]
    )

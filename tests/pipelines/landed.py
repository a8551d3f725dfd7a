"""A reference pipeline with a database, and everything one does with it in a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.pipelines.job import JobSettings, start
from onceflow.pipelines.judging import Differences, Written, compare, cut, offset_log, without_prefix
from onceflow.pipelines.judging_tables import ExpectedTable, compare_table, rows_in
from onceflow.pipelines.reading import everything_in, raw_in, written_in
from onceflow.pipelines.reference import Raw, Reference
from onceflow.pipelines.tables import table_name
from onceflow.sinks.databases import open_database
from onceflow.verify.observers import places_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 3
READ_S = 60.0


def refuse(problem: object, message: object) -> None:
    assert problem is None, problem


class Landed:
    """`reference` under names of its own."""

    def __init__(self, reference: Reference, bootstrap: str, prefix: str, checkpoint: Path, sql: str) -> None:
        self.reference, self.bootstrap, self.prefix, self.checkpoint, self.sql = (
            reference,
            bootstrap,
            prefix,
            checkpoint,
            sql,
        )
        self.pipeline = reference.pipeline
        self.settings = ClientSettings(bootstrap=bootstrap)
        self._fed = 0
        for name, count in self.pipeline.topics().items():
            # Samples are of a fixed time, which is long past.
            Admin(self.settings).create(f"{prefix}{name}", partitions=count, configs={"retention.ms": "-1"})

    def feed(self, count: int) -> None:
        """So many more records of the sample."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 2})
        for number, each in enumerate(self.reference.generate(SEED, self._fed + count)):
            if number >= self._fed:
                topic = f"{self.prefix}{each.topic}"
                producer.produce(topic, each.value, each.key, each.partition, refuse, timestamp=each.timestamp)
        assert producer.flush(30) == 0
        self._fed += count

    def job_settings(self, **changed: Any) -> JobSettings:
        settings: dict[str, Any] = {
            "bootstrap": self.bootstrap,
            "checkpoint": str(self.checkpoint),
            "prefix": self.prefix,
            "available_now": True,
            "sink_options": {"retries": 0},
            "sql": self.sql,
            **changed,
        }
        return JobSettings(**settings)

    def run(self, spark: SparkSession, **changed: Any) -> None:
        """Over all that is there. Raises what the query failed with."""
        with start(self.pipeline, self.job_settings(**changed), spark) as job:
            job.await_end()

    def written(self) -> tuple[list[Raw], list[Written]]:
        """What is in the topics."""
        inputs = {each.topic for each in self.pipeline.inputs}
        places = places_of({f"{self.prefix}{name}": count for name, count in self.pipeline.topics().items()})
        admin = Admin(self.settings)
        # EndTxn is answered before the markers are written.
        eventually(lambda: admin.offsets(places, read_committed=True) == admin.offsets(places), "all is decided")
        raws, written = [], []
        ends = {place: end for place, (_, end) in admin.offsets(places, read_committed=True).items()}
        for message in everything_in(self.settings, ends, READ_S):
            if message.topic().removeprefix(self.prefix) in inputs:
                raws.append(raw_in(message, self.prefix))
            else:
                written.append(written_in(message, self.prefix))
        return raws, written

    def differences(self) -> list[str]:
        """Of topics and tables from what the oracle says."""
        raws, written = self.written()
        log = without_prefix(offset_log(self.checkpoint), self.prefix)
        tables = [ExpectedTable(lands) for lands in self.pipeline.lands]

        def hears(number: int, expected: Any) -> None:
            for each in tables:
                each.hear(number, expected)

        topics = self.pipeline.written()
        compared = compare(self.reference.oracle(), cut(log, raws), written, topics, hears)
        found = Differences()
        for table in tables:
            rows = self.rows(table.lands.table)
            assert rows, f"nothing landed in {table.lands.table}: nothing is compared"
            compare_table(table, rows, found)
        return [each.sentence for each in (*compared.differences, *found)]

    def rows(self, table: str) -> Any:
        [lands] = [each for each in self.pipeline.lands if each.table == table]
        database = open_database(self.sql)
        session = database.connect(lock_timeout_s=5)
        try:
            return rows_in(session, database, lands, table_name(lands, self.prefix))
        finally:
            session.close()

    def progress(self) -> Mapping[str, int]:
        """The micro-batch that each app has come to, by the database."""
        session = open_database(self.sql).connect(lock_timeout_s=5)
        try:
            return dict(session.execute("SELECT app_id, batch_id FROM onceflow_progress").rows)
        finally:
            session.close()

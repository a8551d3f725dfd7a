"""A database and a topic in one query: what is checked before, what is said when one fails, and how it goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.sinks import SqlSink
from onceflow.spark import sinks
from tests.spark.streams import Results, Streams
from tests.support.brokers import RunningBroker
from tests.support.raw import Wire


class Both(Streams):
    """Numbers as text, into a table and then into a topic; number 7 is large."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.file = self.checkpoint.with_name("numbers.db")
        self.landed = Results()
        self.send(range(10))

    def sinks(self, **settings: Any) -> Any:
        table = SqlSink(
            url=f"sqlite:///{self.file}",
            app_id=self.app_id,
            table="numbers",
            rows=lambda frame: frame.selectExpr("CAST(key AS STRING) AS number"),
            create_table=True,
            listeners=[self.landed],
        )
        return sinks(table, self.sink(**settings))

    def run_both(self, **settings: Any) -> None:
        self.run(self.sinks(**settings), self.rows)

    @staticmethod
    def rows(frame: DataFrame) -> DataFrame:
        number = sql.col("value").cast("string")
        return frame.select("key", sql.when(number == "7", sql.repeat(number, 30_000)).otherwise(number).alias("value"))

    def failure(self, **settings: Any) -> str:
        with pytest.raises(StreamingQueryException) as stopped:
            self.run_both(**settings)
        return str(stopped.value)

    def table(self) -> list[int]:
        with closing(sqlite3.connect(self.file)) as connection:
            return sorted(int(number) for (number,) in connection.execute("SELECT number FROM numbers"))


@pytest.fixture
def both(spark: SparkSession, broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path) -> Both:
    return Both(spark, broker.bootstrap, new_name(), tmp_path)


def test_a_missing_topic_is_found_before_the_database_has_the_micro_batch(both: Both, wire: Wire) -> None:
    later = f"{both.target}-later"
    said = both.failure(topic=later)
    assert f"there is no topic '{later}'" in said
    assert both.table() == []
    wire.create_topic(later, 1)
    both.run_both(topic=later)
    assert both.table() == list(range(10))
    assert len(both.output(later)) == 10


def test_a_row_that_is_too_large_goes_to_the_dead_letter_topic_of_a_query_that_it_stopped(both: Both) -> None:
    admin = Admin(ClientSettings(bootstrap=both.bootstrap))
    small, letters = f"{both.target}-small", f"{both.target}-letters"
    admin.create(small, partitions=2, configs={"max.message.bytes": "10000"})
    admin.create(letters, partitions=1)

    said = both.failure(topic=small, batch_bytes=9_000)
    assert f"micro-batch 0 is committed in SqlSink(app_id='{both.app_id}'); it is not in KafkaSink(" in said
    assert "more than the 10,000 that the topic takes (max.message.bytes): the record with key '7'" in said
    assert "visible there" in said
    assert both.table() == list(range(10))
    assert both.output(small) == []

    both.run_both(topic=small, dead_letter_topic=letters)
    assert (both.table(), both.landed.skipped) == (list(range(10)), [0])
    assert sorted(both.values(small)) == [str(number) for number in range(10) if number != 7]
    [letter] = both.output(letters)
    assert (letter.key, letter.value) == (b"7", b"7" * 30_000)
    assert [(each.rows, each.dead_letters) for each in both.results.all if not each.skipped] == [(10, 1)]

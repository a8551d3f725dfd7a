"""SqlSink in Spark, in one session: from a topic, values of every type, other checkpoints, and Kafka beside it."""

from __future__ import annotations

import datetime
import json
import re
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from onceflow.errors import ConfigError
from onceflow.sinks import SqlSink, Table, write
from onceflow.spark import SinkListener, Step, sinks
from tests.spark.streams import Results, Streams
from tests.support.raw import Wire
from tests.support.sql_sink_places import Place

PER_TRIGGER = {"maxOffsetsPerTrigger": 3}
BELOW_SECOND = 654_321


class Landings(Streams):
    """Orders from a topic into a database."""

    def __init__(self, spark: SparkSession, bootstrap: str, place: Place, folder: Path) -> None:
        super().__init__(spark, bootstrap, f"landing-{uuid4().hex[:8]}", folder)
        self.place = place

    def send_orders(self, *orders: tuple[int, str, int]) -> None:
        self.send(json.dumps(dict(zip(("id", "who", "cents"), order, strict=True))) for order in orders)

    def sql(self, **settings: Any) -> SqlSink:
        target = {"table": "orders", "key": ["id"], "mode": "upsert", "order_by": ["offset"], "create_table": True}
        if "tables" in settings:
            target = {}
        common = {"url": self.place.url, "app_id": self.app_id, "listeners": [self.results], "outage_s": 5.0}
        return SqlSink(**{**common, **target, **settings})

    def with_kafka(self, in_kafka: SinkListener | None = None, **settings: Any) -> Any:
        """Into a topic first, then into the database."""
        kafka = self.sink(listeners=[in_kafka] if in_kafka else [])
        value = sql.to_json(sql.struct("*")).alias("value")
        return sinks(lambda frame, batch_id: kafka(frame.select(value), batch_id), self.sql(**settings))

    @staticmethod
    def orders(frame: DataFrame) -> DataFrame:
        fields = sql.from_json(sql.col("value").cast("string"), "id bigint, who string, cents bigint")
        return frame.select("offset", fields.alias("order")).select("order.*", "offset")

    def land(self, sink: Any = None, **options: Any) -> None:
        self.run(sink or self.sql(), self.orders, **{**PER_TRIGGER, **options})

    def found(self) -> list[tuple[Any, ...]]:
        return sorted(self.place.execute("SELECT id, who, cents FROM orders"))


ONE_DAILY = pytest.mark.parametrize(
    "place", [pytest.param("sqlite", marks=pytest.mark.faults), "postgresql"], indirect=True
)
"""`make faults` has them with both databases."""


@pytest.fixture
def landings(spark: SparkSession, bootstrap: str, place: Place, tmp_path: Path) -> Landings:
    return Landings(spark, bootstrap, place, tmp_path)


@ONE_DAILY
def test_a_topic_lands_in_a_table_and_a_micro_batch_that_runs_again_is_skipped(landings: Landings) -> None:
    landings.send_orders((1, "ann", 100), (2, "bob", 200), (1, "ann", 150), (3, "cy", 300), (2, "bo", 250))
    landings.land()
    assert landings.found() == [(1, "ann", 150), (2, "bo", 250), (3, "cy", 300)]
    assert landings.results.committed == [0, 1]
    again = landings.forget_last_commit()
    landings.send_orders((4, "dan", 400))
    landings.land()
    assert landings.results.skipped == [again]
    assert landings.found() == [(1, "ann", 150), (2, "bo", 250), (3, "cy", 300), (4, "dan", 400)]
    progress = landings.place.progress(landings.app_id)
    assert progress is not None
    assert progress.offsets == {landings.source: {"0": 6, "1": 0}}
    assert landings.place.stages() == []


@pytest.mark.faults
def test_several_tables_and_counters_without_doubles(landings: Landings) -> None:
    tables = [
        Table("log", create=True),
        Table(
            "spent",
            key=["who"],
            mode="increment",
            create=True,
            rows=lambda frame: frame.selectExpr("who", "cents", "1L AS orders"),
        ),
    ]
    landings.send_orders((1, "ann", 100), (2, "bob", 200), (3, "ann", 150), (4, "ann", 50), (5, "bob", 1))
    landings.land(landings.sql(tables=tables))
    landings.forget_last_commit()
    landings.land(landings.sql(tables=tables))
    assert landings.results.skipped == [1]
    assert sorted(landings.place.execute("SELECT who, cents, orders FROM spent")) == [("ann", 300, 3), ("bob", 201, 2)]
    assert sorted(landings.place.execute("SELECT id FROM log")) == [(1,), (2,), (3,), (4,), (5,)]


@ONE_DAILY
def test_a_new_checkpoint_is_refused_unless_it_begins_where_the_app_was_or_is_accepted(
    landings: Landings, tmp_path: Path
) -> None:
    landings.send_orders((1, "ann", 100), (2, "bob", 200))
    landings.land()
    landings.checkpoint = tmp_path / "another"
    with pytest.raises(StreamingQueryException, match=r"SqlSink\(new_checkpoint='accept'\)") as refused:
        landings.land()
    assert "Nothing was written" in str(refused.value)
    assert f'startingOffsets={{"{landings.source}": {{"0": 2' in str(refused.value)
    landings.send_orders((3, "cy", 300))
    landings.checkpoint = tmp_path / "where it was"
    landings.land(startingOffsets=json.dumps({landings.source: {"0": 2, "1": 0}}))
    assert landings.found() == [(1, "ann", 100), (2, "bob", 200), (3, "cy", 300)]
    landings.checkpoint = tmp_path / "accepted"
    landings.land(landings.sql(new_checkpoint="accept"))
    assert landings.found() == [(1, "ann", 100), (2, "bob", 200), (3, "cy", 300)]


@ONE_DAILY
def test_rows_that_the_table_does_not_take_end_the_query_before_anything_is_written(landings: Landings) -> None:
    landings.place.execute("CREATE TABLE orders (id bigint PRIMARY KEY, who text)")
    landings.send_orders((1, "ann", 100))
    with pytest.raises(StreamingQueryException, match=r"orders has no column 'cents'.*Nothing was written"):
        landings.land(landings.with_kafka())
    assert landings.output() == []
    assert landings.place.tables() == ["orders"]


class FailsOnce(SinkListener):
    def __init__(self, step: Step) -> None:
        self._step = step
        self._has_failed = False

    def before(self, step: Step, batch_id: int) -> None:
        if step is self._step and batch_id == 1 and not self._has_failed:
            self._has_failed = True
            raise RuntimeError("the driver is gone here")


@ONE_DAILY
@pytest.mark.parametrize(
    "step", [Step.STAGE, pytest.param(Step.COMMIT, marks=pytest.mark.faults)], ids=lambda each: each.name
)
def test_a_crash_between_kafka_and_the_database_leaves_each_with_everything_once(
    landings: Landings, step: Step
) -> None:
    in_kafka, listeners = Results(), [landings.results, FailsOnce(step)]
    landings.send_orders((1, "ann", 100), (2, "bob", 200), (1, "ann", 150), (3, "cy", 300), (2, "bo", 250))
    with pytest.raises(StreamingQueryException, match="the driver is gone here"):
        landings.land(landings.with_kafka(in_kafka, listeners=listeners))
    assert len(landings.output()) == 5
    assert landings.found() == [(1, "ann", 150), (2, "bob", 200)]
    landings.land(landings.with_kafka(in_kafka, listeners=listeners))
    assert (in_kafka.committed, in_kafka.skipped) == ([0, 1], [1])
    assert (landings.results.committed, landings.results.skipped) == ([0, 1], [])
    assert len(landings.output()) == 5
    assert landings.found() == [(1, "ann", 150), (2, "bo", 250), (3, "cy", 300)]
    assert landings.place.stages() == []


# --- without a stream


def test_a_write_with_a_name_is_done_once(spark: SparkSession, place: Place) -> None:
    frame = spark.range(5).selectExpr("id", "id * 2 AS twice")
    settings = {"url": place.url, "app_id": "daily", "table": "numbers", "create_table": True}
    results = [write(frame, once=name, **settings) for name in ("monday", "monday", "tuesday")]
    assert [(each.skipped, each.rows) for each in results] == [(False, 5), (True, 0), (False, 5)]
    write(frame, **settings)
    assert place.rows("numbers") == sorted([(n, 2 * n) for n in range(5)] * 3, key=repr)
    assert place.stages() == []


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[SparkSession]:
    """A session far from UTC."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))


ALL_TYPES = f"""
    SELECT CAST(1 AS bigint) AS id, true AS yes, CAST(-128 AS tinyint) AS tiny, CAST(32767 AS smallint) AS small,
           CAST(-2147483648 AS int) AS whole, CAST(9223372036854775807 AS bigint) AS large,
           CAST(0.1 AS float) AS single, CAST(0.1 AS double) AS twice,
           CAST('12345678901234567890.123456789' AS decimal(38,9)) AS price, 'ä\U0001f600 ''"' AS words,
           X'00FF10' AS bytes, DATE '1969-07-20' AS day, TIMESTAMP '2026-03-08 01:59:59.{BELOW_SECOND}' AS instant,
           TIMESTAMP_NTZ '2026-03-08 02:30:00.{BELOW_SECOND}' AS wall,
           array(1, NULL, 3) AS list, map('k', CAST(NULL AS int)) AS pairs,
           named_struct('a', 1, 'b', CAST(NULL AS string), 'c', array(named_struct('d', CAST(NULL AS int)))) AS nested
"""
INSTANT = datetime.datetime(2026, 3, 8, 6, 59, 59, BELOW_SECOND, tzinfo=datetime.UTC)
WALL = datetime.datetime(2026, 3, 8, 2, 30, 0, BELOW_SECOND)
NESTED = ([1, None, 3], {"k": None}, {"a": 1, "b": None, "c": [{"d": None}]})
PLAIN = (1, True, -128, 32767, -2147483648, 9223372036854775807)
PRICE = Decimal("12345678901234567890.123456789")


def as_read(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays, maps and structs as Python's, single precision as such."""
    parsed = [json.loads(each) if isinstance(each, str) and each else each for each in row[-3:]]
    return (*row[:6], round(row[6], 6) if row[6] is not None else None, *row[7:-3], *parsed)


def test_values_of_every_type_come_back_as_they_were_also_from_a_table_that_is_there(
    elsewhere: SparkSession, place: Place
) -> None:
    frame = elsewhere.sql(ALL_TYPES)
    nothing = [sql.lit(None).cast(each.dataType).alias(each.name) for each in frame.schema[1:]]
    empty = frame.select(sql.lit(2).cast("bigint").alias("id"), *nothing)
    settings = {"url": place.url, "app_id": "types", "table": "kinds", "key": ["id"], "mode": "upsert"}
    write(frame.union(empty), create_table=True, **settings)
    first = place.rows("kinds", frame.columns)
    write(frame.union(empty), **settings)
    assert place.rows("kinds", frame.columns) == first
    full, nulls = map(as_read, first)
    assert nulls == (2, *[None] * (len(frame.columns) - 1))
    if place.name == "postgresql":
        times = (PRICE, "ä\U0001f600 '\"", b"\x00\xff\x10", datetime.date(1969, 7, 20), INSTANT, WALL)
    else:
        day, instant, wall = "1969-07-20", "2026-03-08T06:59:59.654321+00:00", "2026-03-08T02:30:00.654321"
        times = (str(PRICE), "ä\U0001f600 '\"", b"\x00\xff\x10", day, instant, wall)
    assert full == (*PLAIN, 0.1, 0.1, *times, *NESTED)


def test_a_type_that_no_table_has_is_refused_with_advice(spark: SparkSession, place: Place) -> None:
    frame = spark.sql("SELECT INTERVAL '1' DAY AS span")
    with pytest.raises(ConfigError, match=r"column 'span' is interval day.*cast it in Spark.*Nothing was written"):
        write(frame, url=place.url, app_id="types", table="kinds", create_table=True)
    assert place.tables() == []


def test_a_stream_is_not_written_like_a_table_and_a_table_not_like_a_stream(landings: Landings) -> None:
    settings: dict[str, Any] = {"url": landings.place.url, "app_id": "x", "table": "t"}
    with pytest.raises(ConfigError, match=r"this DataFrame streams: use .*foreachBatch"):
        write(landings.frame(), **settings)
    with pytest.raises(ConfigError, match=r"SqlSink is for a streaming query.*onceflow\.sinks\.write"):
        SqlSink(**settings)(landings.spark.range(1), 0)


def restored_after_the_first_of_three(landings: Landings) -> None:
    """Three micro-batches, then the checkpoint as it was after the first."""
    backup = landings.checkpoint.with_name("backup")
    for number in range(3):
        landings.send_orders((number, "ann", 100))
        landings.land()
        if number == 0:
            shutil.copytree(landings.checkpoint, backup)
    shutil.rmtree(landings.checkpoint)
    backup.rename(landings.checkpoint)


@ONE_DAILY
def test_an_older_checkpoint_that_reads_something_new_is_refused_and_nothing_is_lost(landings: Landings) -> None:
    restored_after_the_first_of_three(landings)
    with Wire(landings.bootstrap) as wire:
        wire.create_topic(f"{landings.source}-more")
    landings.send([json.dumps({"id": 9, "who": "new", "cents": 1})], topic=f"{landings.source}-more")
    both = {"subscribe": f"{landings.source},{landings.source}-more"}
    with pytest.raises(StreamingQueryException, match=r"older checkpoint.*Nothing was written") as refused:
        landings.land(**both)
    assert [row[0] for row in landings.found()] == [0, 1, 2]
    start = re.search(r"startingOffsets=(\{.*?\}\})", str(refused.value))
    assert start is not None
    new = {**json.loads(start[1]), f"{landings.source}-more": {"0": 0}}
    landings.checkpoint = landings.checkpoint.with_name("new")
    landings.land(**both, startingOffsets=json.dumps(new))
    assert [row[0] for row in landings.found()] == [0, 1, 2, 9]


@ONE_DAILY
def test_two_sinks_with_one_app_id_are_refused_however_the_address_is_spelled(landings: Landings) -> None:
    first, second = landings.sql(url=landings.place.url), landings.sql(url=landings.place.another_url())

    def both(frame: DataFrame, batch_id: int) -> None:
        first(frame.where("id = 1"), batch_id)
        second(frame.where("id = 2"), batch_id)

    landings.send_orders((1, "ann", 100), (2, "bob", 200))
    for _ in range(2):  # in the replay both would find it committed
        with pytest.raises(StreamingQueryException, match="two sinks of the query have this app id"):
            landings.land(both)
    assert landings.found() == [(1, "ann", 100)]

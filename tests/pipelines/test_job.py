"""Pipelines on Spark and a broker: from JSON in topics to JSON in topics, over restarts of every kind.

A session starts in ten seconds and a query in five, so a test does much with few queries.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.pipelines import Input, Pipeline, Record, Send, State, Step, dead_letter
from onceflow.pipelines.checkpoints import STEPS_FILE
from onceflow.pipelines.job import JobSettings, create_topics, missing_topics, records_in, start
from onceflow.pipelines.parcels import labels
from tests.support.brokers import RunningBroker
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
T0 = time.time_ns() // 1_000_000 - 50 * HOUR_MS
"""Brokers refuse what is of tomorrow, and delete what is older than a week."""


class Payment(NamedTuple):
    shop: str
    card: str
    cents: int


class Spent(NamedTuple):
    card: str
    cents: int


def by_shop(state: State, payments: list[Record[Payment]]) -> Iterator[Any]:
    for record in payments:
        shop, card, cents = record.value
        if cents < 0:
            yield dead_letter(record, "'cents' is below 0")
            continue
        if shop == "closed":
            raise ValueError("this shop is closed")
        state[shop] = state.get(shop, 0) + cents
        yield Send("shops", shop, {"shop": shop, "cents": state[shop], "at": record.timestamp})
        yield Spent(card, cents)


def by_card(state: State, spent: list[Spent]) -> Iterator[Send]:
    for each in spent:
        state[each.card] = state.get(each.card, 0) + each.cents
        yield Send("cards", each.card, {"card": each.card, "cents": state[each.card]})


PAYMENTS = Pipeline(
    name="payments",
    inputs=[Input("paid", Payment, partitions=2)],
    steps=[Step(by_shop, by="shop"), Step(by_card, by="card", takes=Spent)],
    outputs={"shops": 2, "cards": 1},
)


def large_ones(payments: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql

    value = sql.to_json(sql.struct("card", "cents", "offset"))
    return payments.where("cents >= 100").select(
        sql.lit("large").alias("topic"), sql.col("shop").alias("key"), value.alias("value")
    )


LARGE = Pipeline(name="large", inputs=[Input("paid", Payment, partitions=2)], outputs={"large": 1}, build=large_ones)


def refuse(problem: object, message: object) -> None:
    assert problem is None, problem


class Written(NamedTuple):
    value: Any
    batch: int


class Shop:
    """A pipeline under names of its own, and everything one does with it."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, bootstrap: str, prefix: str, folder: Path) -> None:
        self.pipeline, self.spark, self.bootstrap, self.prefix = pipeline, spark, bootstrap, f"{prefix}."
        self.checkpoint = folder / "checkpoint"
        create_topics(pipeline, ClientSettings(bootstrap=bootstrap), self.prefix)

    def pay(self, *payments: Any, partition: int = 0, at: int = T0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 2})
        for each in payments:
            value = each if isinstance(each, str) else json.dumps(Payment(*each)._asdict())
            producer.produce(f"{self.prefix}paid", value, partition=partition, timestamp=at, on_delivery=refuse)
        assert producer.flush(30) == 0

    def add_partition(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        name = f"{self.prefix}paid"
        admin.create_partitions([NewPartitions(name, 3)])[name].result()

    def run(self, **changed: Any) -> int:
        """Over all that is there; returns how many records that was. Raises what the query failed with."""
        settings: dict[str, Any] = {
            "bootstrap": self.bootstrap,
            "checkpoint": str(self.checkpoint),
            "prefix": self.prefix,
            "available_now": True,
            "sink_options": {"retries": 0},
            **changed,
        }
        with start(self.pipeline, JobSettings(**settings), self.spark) as job:
            job.await_end()
            return sum(records_in(each) for each in job.query.recentProgress)

    def failure(self, **changed: Any) -> str:
        with pytest.raises(StreamingQueryException) as failed:
            self.run(**changed)
        return str(failed.value)

    def written(self, topic: str) -> list[Written]:
        """By partition and offset, as read_committed shows it, once no transaction is open."""
        name, found = f"{self.prefix}{topic}", []
        admin = Admin(ClientSettings(bootstrap=self.bootstrap))
        open_ = set(admin.topic(name).partitions)
        places = [(name, number) for number in open_]
        # EndTxn is answered before the markers are written.
        eventually(lambda: admin.offsets(places, read_committed=True) == admin.offsets(places), "all is decided")
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "looks", "enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(*place, 0) for place in places])
            while open_:
                for message in consumer.consume(1000, timeout=1):
                    if message.error() is None:
                        found.append(message)
                    else:
                        open_.discard(message.partition())
        finally:
            consumer.close()
        found.sort(key=lambda each: (each.partition(), each.offset()))
        return [Written(json.loads(each.value()), int(dict(each.headers())["batch"])) for each in found]

    def sums(self, topic: str, name: str) -> dict[str, list[int]]:
        """What was written for each key, in order."""
        found: dict[str, list[int]] = {}
        for each in self.written(topic):
            found.setdefault(each.value[name], []).append(each.value["cents"])
        return found


Open = Callable[[Pipeline], Shop]


@pytest.fixture
def opened(spark: SparkSession, broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path) -> Open:
    return lambda pipeline: Shop(pipeline, spark, broker.bootstrap, new_name(), tmp_path)


def reasons(written: list[Written]) -> Counter[str]:
    return Counter(each.value["reason"] for each in written)


@pytest.mark.timeout(300)
def test_two_steps_write_records_dead_letters_and_batch_numbers_and_go_on_with_their_state(
    opened: Open, spark: SparkSession
) -> None:
    shop = opened(PAYMENTS)
    assert missing_topics(PAYMENTS, ClientSettings(bootstrap=shop.bootstrap), shop.prefix) == {}
    shop.pay(("bakery", "c1", 300), ("bakery", "c2", 200), "{", ("bakery", "c1", -1))
    shop.pay(("florist", "c1", 50), '{"shop": "florist"}', partition=1, at=T0 + 1)
    assert shop.run() == 6, "good and bad ones"
    assert shop.sums("shops", "shop") == {"bakery": [300, 500], "florist": [50]}
    assert shop.sums("cards", "card") == {"c1": [50, 350], "c2": [200]}, "what a step is handed comes sorted"
    letters = shop.written("payments_dead_letters")
    assert reasons(letters) == Counter(["not JSON", "'cents' is below 0", "no field 'card'"])
    [unreadable] = [each.value for each in letters if each.value["reason"] == "not JSON"]
    assert (unreadable["topic"], unreadable["partition"], unreadable["offset"]) == ("paid", 0, 2)
    assert unreadable["value"] == "{"
    assert {each.batch for topic in PAYMENTS.written() for each in shop.written(topic)} == {0}

    # Hours later, with other parallelism, and with a partition more.
    shop.add_partition()
    shop.pay(("bakery", "c3", 1), partition=2, at=T0 + 48 * HOUR_MS)
    shop.pay(("florist", "c2", 7), partition=1, at=T0 + 47 * HOUR_MS)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        shop.run()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)  # to unset it would bring Spark's own 200
    assert shop.sums("shops", "shop") == {"bakery": [300, 500, 501], "florist": [50, 57]}
    assert shop.sums("cards", "card") == {"c1": [50, 350], "c2": [200, 207], "c3": [1]}
    assert [each.batch for each in shop.written("cards")] == [0, 0, 0, 1, 1]
    later = [each.value["at"] - T0 for each in shop.written("shops") if each.batch == 1]
    assert sorted(later) == [47 * HOUR_MS, 48 * HOUR_MS]
    assert len(shop.written("payments_dead_letters")) == 3

    first, *others = PAYMENTS.steps
    shop.pipeline = replace(PAYMENTS, steps=[replace(first, shards=3), *others])
    with pytest.raises(ConfigError, match="the state could not be found again"):
        shop.run()
    (shop.checkpoint / STEPS_FILE).write_text("[{")
    with pytest.raises(ConfigError, match=r"onceflow-steps.json cannot be read: it is damaged"):
        shop.run()
    assert not list(shop.checkpoint.glob("*.new"))


def test_spark_gives_as_many_shards_to_each_task(spark: SparkSession) -> None:
    from pyspark.sql import functions as sql

    shards = spark.createDataFrame([(label,) for label in labels(16)], "shard INT")
    for tasks in (2, 4, 8, 16):
        dealt_out = shards.repartition(tasks, "shard").groupBy(sql.spark_partition_id()).count().collect()
        assert [count for _, count in dealt_out] == [16 // tasks] * tasks


@pytest.mark.timeout(300)
def test_a_step_that_raises_ends_the_query_with_its_name_and_the_reason_and_nothing_is_visible(opened: Open) -> None:
    shop = opened(PAYMENTS)
    shop.pay(("bakery", "c1", 5), ("closed", "c1", 5), "{")
    assert "the step 'by_shop' failed: ValueError: this shop is closed" in shop.failure()
    assert all(shop.written(topic) == [] for topic in PAYMENTS.written())


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_without_its_checkpoint_a_pipeline_with_state_is_refused_and_nothing_is_written(opened: Open) -> None:
    shop = opened(PAYMENTS)
    shop.pay(("bakery", "c1", 5), "{")
    shop.run()
    before = {topic: shop.written(topic) for topic in PAYMENTS.written()}
    assert [len(each) for each in before.values()] == [1, 1, 1]
    shutil.rmtree(shop.checkpoint)
    shop.pay(("bakery", "c1", 7))
    assert "without the state that it had collected" in shop.failure()
    shutil.rmtree(shop.checkpoint)
    with pytest.raises(ConfigError, match="keeps state, and that is in its checkpoint"):
        shop.run(starting_offsets="committed")
    assert not shop.checkpoint.exists()
    assert {topic: shop.written(topic) for topic in PAYMENTS.written()} == before


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_plain_spark_writes_rows_and_dead_letters_and_goes_on_without_its_checkpoint(opened: Open) -> None:
    shop = opened(LARGE)
    shop.pay(("bakery", "c1", 300), ("bakery", "c2", 20), "{", ("bakery", "c1", 100))
    shop.run()
    expected = [{"card": "c1", "cents": 300, "offset": 0}, {"card": "c1", "cents": 100, "offset": 3}]
    assert [each.value for each in shop.written("large")] == expected
    assert reasons(shop.written("large_dead_letters")) == Counter(["not JSON"])
    assert {each.batch for each in shop.written("large")} == {0}

    shutil.rmtree(shop.checkpoint)
    shop.pay(("bakery", "c9", 900), "[]")
    assert "CheckpointMismatch" in shop.failure(), "from the beginning would be twice"
    shutil.rmtree(shop.checkpoint)
    shop.run(starting_offsets="committed")
    expected.append({"card": "c9", "cents": 900, "offset": 4})
    assert [each.value for each in shop.written("large")] == expected
    assert reasons(shop.written("large_dead_letters")) == Counter(["not JSON", "not a JSON object: []"])


def test_what_is_built_must_have_a_topic_a_key_and_a_value(opened: Open) -> None:
    shop = opened(
        Pipeline(name="large", inputs=LARGE.inputs, outputs={"large": 1}, build=lambda frame: frame.select("card"))
    )
    with pytest.raises(ConfigError, match="what 'large' builds has no column key, topic, value"):
        shop.run()
    assert not shop.checkpoint.exists()

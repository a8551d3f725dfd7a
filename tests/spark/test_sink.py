"""The sink in a session of its own process: what it writes, what it records, what it skips, what it refuses."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import onceflow.spark
from onceflow.client.cluster import Cluster
from onceflow.client.offsets import list_offsets
from onceflow.client.settings import ClientSettings
from onceflow.client.shared_transaction import SharedTransaction
from onceflow.errors import ConfigError
from onceflow.spark import BatchFailed, SinkListener, Step
from onceflow.spark.progress import PROGRESS_TOPIC, read_progress
from onceflow.spark.sessions import recommended
from tests.spark.streams import Streams, failure
from tests.support.brokers import RunningBroker
from tests.support.raw import Wire
from tests.support.readers import committed, written
from tests.support.waiting import eventually


@pytest.fixture
def streams(spark: SparkSession, broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path) -> Streams:
    return Streams(spark, broker.bootstrap, new_name(), tmp_path)


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The state store that `onceflow.spark.session` sets."""
    settings = {each.name: each.value for each in recommended(None) if ".stateStore." in each.name}
    # It insists on Hadoop's own local file system, and the session of the tests has a quicker one.
    settings |= {"fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem", "fs.file.impl.disable.cache": "true"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


def _where_librdkafka_puts(streams: Streams, keys: Iterable[int]) -> dict[bytes | None, int]:
    """With the partitioner of Kafka's Java clients."""
    twin = f"{streams.target}-twin"
    with Wire(streams.bootstrap) as wire:
        wire.create_topic(twin, 3)
    producer = Producer({"bootstrap.servers": streams.bootstrap, "partitioner": "murmur2_random", "log_level": 2})
    for key in keys:
        producer.produce(twin, key=str(key))
    assert producer.flush(30) == 0
    return {each.key: each.partition for each in committed(streams.bootstrap, twin)}


class TestWriting:
    @pytest.mark.daily_on_kafka
    def test_copy_has_every_record_once_where_kafkas_partitioner_puts_it(self, streams: Streams) -> None:
        streams.send(range(300), partition=0)
        streams.send(range(300, 500), partition=1)
        streams.run(maxOffsetsPerTrigger=200)
        found = streams.output()
        assert Counter(each.value for each in found) == Counter(str(number).encode() for number in range(500))
        assert {each.key: each.partition for each in found} == _where_librdkafka_puts(streams, range(500))
        assert len(streams.results.committed) >= 2
        assert sum(each.rows for each in streams.results.all) == 500

    def test_offsets_and_progress_are_in_the_same_transaction(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run()
        eventually(lambda: streams.group_offsets() == {0: 10, 1: 0}, "the group has the offsets")
        with Cluster(ClientSettings(bootstrap=streams.bootstrap)) as cluster:
            progress = read_progress(cluster, streams.app_id)
        assert progress is not None
        assert progress.batch_id == streams.results.all[-1].batch_id
        assert dict(progress.offsets) == {(streams.source, 0): 10, (streams.source, 1): 0}

    def test_rows_go_to_many_topics_with_all_their_columns(self, streams: Streams, wire: Wire) -> None:
        other = f"{streams.target}-2"
        wire.create_topic(other, 2)
        streams.send(range(20))

        def rows(frame: DataFrame) -> DataFrame:
            number = sql.col("value").cast("string").cast("int")
            half = sql.encode((number / 2).cast("string"), "utf-8")
            header = sql.struct(sql.lit("half").alias("key"), half.alias("value"))
            return frame.select(
                sql.when(number % 2 == 0, sql.lit(streams.target)).otherwise(sql.lit(other)).alias("topic"),
                sql.when(number % 2 == 1, sql.lit(1)).alias("partition"),
                sql.when(number > 4, sql.col("key")).alias("key"),
                sql.when(number != 7, sql.col("value").cast("string")).alias("value"),
                sql.when(number > 10, sql.array(header)).alias("headers"),
                sql.timestamp_millis(number * 1000).alias("timestamp"),
            )

        streams.run(streams.sink(topic=None), rows)
        even, odd = streams.output(), streams.output(other)
        assert sorted(int(each.value or b"-1") for each in even) == list(range(0, 20, 2))
        assert sorted(int(each.value or b"-1") for each in odd) == [-1, 1, 3, 5, 9, 11, 13, 15, 17, 19]
        assert {each.partition for each in odd} == {1}
        assert {each.value for each in even if each.key is None} == {b"0", b"2", b"4"}
        consumer = Consumer({"bootstrap.servers": streams.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(other, 1, 0)])
        messages = consumer.consume(10, timeout=20)
        consumer.close()
        last = next(each for each in messages if each.value() == b"19")
        assert last.headers() == [("half", b"9.5")]
        assert last.timestamp()[1] == 19_000
        assert streams.results.all[-1].partitions == {streams.target: [0, 1, 2], other: [1]}

    @pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
    def test_every_codec_is_read_back(self, streams: Streams, compression: str) -> None:
        rows = streams.spark.range(5000).selectExpr("cast(id as string) key", "repeat(cast(id as string), 20) value")
        result = onceflow.spark.write(
            rows, bootstrap_servers=streams.bootstrap, topic=streams.target, compression=compression
        )
        assert result.rows == 5000
        assert result.bytes < 5000 * 40
        found = eventually(lambda: len(got := streams.output()) == 5000 and got, "all is committed")
        assert {each.value for each in found} == {str(number).encode() * 20 for number in range(5000)}

    def test_task_partitioning_fills_one_partition_per_task(self, streams: Streams) -> None:
        rows = streams.spark.range(0, 90, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")
        onceflow.spark.write(rows, bootstrap_servers=streams.bootstrap, topic=streams.target, partitioning="task")
        found = eventually(lambda: len(got := streams.output()) == 90 and got, "all is committed")
        assert [int(each.value or b"") for each in found] == list(range(90))
        assert {each.partition for each in found} == {0, 1}

    def test_empty_batch_still_moves_progress(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run(transform=lambda frame: frame.select("key", "value").where("false"))
        eventually(lambda: streams.group_offsets() == {0: 10, 1: 0}, "the group has the offsets")
        assert streams.output() == []

    def test_many_batches_of_many_records_with_small_buffers(self, streams: Streams) -> None:
        """Tasks contend for partitions all the time, and sequences stay without a gap."""
        rows = streams.spark.range(0, 40_000, 1, 8).selectExpr("cast(id as string) key", "cast(id as string) value")
        result = onceflow.spark.write(
            rows, bootstrap_servers=streams.bootstrap, topic=streams.target, batch_bytes=4096, buffer_bytes=20_000
        )
        assert (result.rows, result.tasks, result.attempts) == (40_000, 8, 1)
        found = eventually(lambda: len(got := streams.output()) == 40_000 and got, "all is committed")
        assert {int(each.value or b"") for each in found} == set(range(40_000))

    @pytest.mark.faults
    def test_classic_transactions_serve_older_brokers(self, streams: Streams) -> None:
        streams.send(range(30))
        streams.run(streams.sink(transaction_version=1), maxOffsetsPerTrigger=10)
        eventually(lambda: len(streams.output()) == 30, "all is committed")
        assert streams.values() == sorted(map(str, range(30)))

    def test_at_least_once_writes_without_a_transaction(self, streams: Streams) -> None:
        streams.send(range(30))
        streams.run(streams.sink(guarantee="at_least_once"))
        assert streams.values() == sorted(map(str, range(30)))
        assert all(each.commit_ms == 0 for each in streams.results.all)


class TestReplay:
    @pytest.mark.daily_on_kafka
    def test_batch_that_was_committed_is_skipped(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run()
        last = streams.forget_last_commit()
        streams.send(range(10, 20))
        streams.run()
        assert streams.results.skipped == [last]
        eventually(lambda: len(streams.output()) == 20, "all is committed")
        assert streams.values() == sorted(map(str, range(20)))

    @pytest.mark.faults
    def test_windowed_count_keeps_its_state_over_a_skipped_batch(self, streams: Streams) -> None:
        def count(frame: DataFrame) -> DataFrame:
            timed = frame.select(sql.timestamp_seconds(sql.col("value").cast("string").cast("int")).alias("at"))
            counted = timed.withWatermark("at", "1 hour").groupBy(sql.window("at", "10 seconds")).count()
            start = sql.col("window.start").cast("long").cast("string")
            return counted.select(start.alias("key"), sql.col("count").cast("string").alias("value"))

        for first in (0, 10, 5):
            streams.send(range(first, first + 10))
            streams.run(transform=count, mode="update")
            streams.forget_last_commit()
        streams.run(transform=count, mode="update")
        assert streams.results.skipped, "the batches were run again"
        last = {each.key: each.value for each in streams.output()}
        assert last == {b"0": b"15", b"10": b"15"}

    @pytest.mark.faults
    def test_stream_stream_join_keeps_its_state_over_a_skipped_batch(self, streams: Streams) -> None:
        def joined(frame: DataFrame) -> DataFrame:
            left = frame.where("partition = 0").select(sql.col("value").alias("l"), sql.col("timestamp").alias("lt"))
            right = frame.where("partition = 1").select(sql.col("value").alias("r"), sql.col("timestamp").alias("rt"))
            near = sql.expr("l = r and rt between lt - interval 1 hour and lt + interval 1 hour")
            pairs = left.withWatermark("lt", "1 hour").join(right.withWatermark("rt", "1 hour"), near)
            return pairs.select(sql.col("l").alias("key"), sql.col("r").alias("value"))

        streams.send(range(20), partition=0)
        streams.run(transform=joined)
        streams.forget_last_commit()
        streams.send(range(10), partition=1)
        streams.run(transform=joined)
        streams.forget_last_commit()
        streams.send(range(10, 20), partition=1)
        streams.run(transform=joined)
        assert streams.results.skipped
        eventually(lambda: len(streams.output()) == 20, "all is committed")
        assert streams.values() == sorted(map(str, range(20)))

    @pytest.mark.faults  # of every day: tests/pipelines
    def test_transform_with_state_keeps_its_state_over_a_skipped_batch(self, streams: Streams, rocksdb: None) -> None:
        from tests.spark.programs.counter import counted

        for _ in range(3):
            streams.send([1, 2, 2])
            streams.run(transform=counted, mode="update")
            streams.forget_last_commit()
        streams.run(transform=counted, mode="update")
        assert streams.results.skipped
        last: dict[bytes | None, int] = {}
        for each in streams.output():
            last[each.key] = max(last.get(each.key, 0), int(each.value or b"0"))
        assert last == {b"1": 3, b"2": 6}

    @pytest.mark.faults
    def test_changed_offset_log_is_refused(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run()
        last = streams.forget_last_commit()
        entry = streams.checkpoint / "offsets" / str(last)
        head, offsets = entry.read_text().rsplit("\n", 1)
        moved = json.loads(offsets)
        moved[streams.source]["0"] = 9
        entry.write_text(f"{head}\n{json.dumps(moved)}")
        entry.with_name(f".{last}.crc").unlink(missing_ok=True)
        assert "its offset log was changed" in failure(streams)
        assert len(streams.output()) == 10

    def test_restored_older_checkpoint_that_goes_another_way_is_refused_at_once(self, streams: Streams) -> None:
        streams.send(range(4))
        streams.run()
        shutil.copytree(streams.checkpoint, streams.checkpoint.with_name("backup"))
        for first in (4, 8):
            streams.send(range(first, first + 4))
            streams.run()
        shutil.rmtree(streams.checkpoint)
        streams.checkpoint.with_name("backup").rename(streams.checkpoint)
        streams.send(range(12, 16))
        assert "CheckpointMismatch" in failure(streams)  # one batch where there were two, and more
        assert streams.values() == sorted(map(str, range(12)))


class TestLostCheckpoint:
    def test_committed_start_goes_on_exactly(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run(maxOffsetsPerTrigger=4)
        shutil.rmtree(streams.checkpoint)
        streams.send(range(10, 20), partition=1)
        streams.run(startingOffsets="committed", **{"kafka.group.id": streams.app_id})
        eventually(lambda: len(streams.output()) == 20, "all is committed")
        assert streams.values() == sorted(map(str, range(20)))

    @pytest.mark.faults
    def test_transaction_that_a_dead_driver_left_open_is_not_waited_for(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run()
        shutil.rmtree(streams.checkpoint)
        with Cluster(ClientSettings(bootstrap=streams.bootstrap)) as cluster:
            dead = SharedTransaction(cluster, streams.app_id, timeout_ms=600_000)
            dead.fence()
            dead.add_partitions([(streams.target, 0)])
            dead.commit_offsets(streams.app_id, {(streams.source, 0): 3})
            streams.run(startingOffsets="committed", **{"kafka.group.id": streams.app_id})
        assert streams.values() == sorted(map(str, range(10)))

    def test_other_start_under_a_new_checkpoint_is_refused_and_says_what_to_do(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run()
        shutil.rmtree(streams.checkpoint)
        message = failure(streams)
        assert "CheckpointMismatch" in message
        assert "startingOffsets=committed" in message
        assert len(streams.output()) == 10

    @pytest.mark.faults
    def test_query_with_state_is_refused_even_where_it_left_off(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run(streams.sink(new_checkpoint="never"))
        shutil.rmtree(streams.checkpoint)
        streams.send(range(10, 12))
        start = {"startingOffsets": "committed", "kafka.group.id": streams.app_id}
        message = failure(streams, streams.sink(new_checkpoint="never"), **start)
        assert "without the state that it had collected" in message
        assert len(streams.output()) == 10

    @pytest.mark.faults
    def test_other_start_is_accepted_if_told(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run()
        shutil.rmtree(streams.checkpoint)
        streams.run(streams.sink(new_checkpoint="accept"))
        eventually(lambda: len(streams.output()) == 20, "all is written again")


class _Takeover(SinkListener):
    """Another driver takes the app id while a batch is being written."""

    def __init__(self, streams: Streams, when: Step) -> None:
        self._streams = streams
        self._when = when

    def before(self, step: Step, batch_id: int) -> None:
        if step is self._when:
            with Cluster(ClientSettings(bootstrap=self._streams.bootstrap)) as cluster:
                SharedTransaction(cluster, self._streams.app_id, timeout_ms=60_000).fence()


class _Slow(SinkListener):
    def before(self, step: Step, batch_id: int) -> None:
        if step is Step.COMMIT:
            import time

            time.sleep(2.5)


class TestFencing:
    @pytest.mark.parametrize(
        "step",
        [*(pytest.param(step, marks=pytest.mark.faults) for step in (Step.WRITE, Step.RECORD)), Step.COMMIT],
        ids=lambda step: step.name,
    )
    def test_first_driver_stops_and_says_that_another_has_taken_over(self, streams: Streams, step: Step) -> None:
        streams.send(range(10))
        message = failure(streams, streams.sink(listeners=[_Takeover(streams, step)]))
        assert "TakenOver" in message
        assert "has taken over" in message
        assert streams.output() == []
        streams.run()
        eventually(lambda: len(streams.output()) == 10, "the next driver writes it")
        assert streams.values() == sorted(map(str, range(10)))

    @pytest.mark.faults
    def test_batch_that_outlives_the_transaction_timeout_names_the_setting_and_loses_nothing(
        self, streams: Streams
    ) -> None:
        streams.send(range(10))
        message = failure(streams, streams.sink(listeners=[_Slow()], transaction_timeout_ms=1000))
        assert "TransactionTimedOut" in message
        assert "transaction_timeout_ms" in message
        assert streams.output() == []
        streams.run()
        eventually(lambda: len(streams.output()) == 10, "it is written after a restart")

    def test_two_queries_with_one_app_id_in_one_process_are_refused(self, streams: Streams, tmp_path: Path) -> None:
        streams.send(range(10))
        first = streams.start(trigger={"processingTime": "1 second"})
        try:
            eventually(lambda: len(streams.output()) == 10, "the first query works", timeout_s=60)
            streams.checkpoint = tmp_path / "other"
            assert "an app_id of its own" in failure(streams)
            assert first.isActive
        finally:
            first.stop()


LARGE = "repeat('x', 20000) as value"
"""Between workers there are buffers, which would hold back what is small until the task has failed."""


@pytest.fixture
def small_arrow_batches(spark: SparkSession) -> Iterator[None]:
    """Rows reach the sink ten at a time, so that some are written before the task fails."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "10")
    yield
    spark.conf.set(name, str(before))


def _fails_at_the_end(bootstrap: str, topic: str, flag: str | None) -> Callable[[Any], Any]:
    """For `mapInArrow`: hands on all rows, waits until some of them are in the topic, and throws; with a flag, once."""

    def spoil(batches: Any) -> Any:
        yield from batches
        with Cluster(ClientSettings(bootstrap=bootstrap)) as cluster:
            ends = {(topic, partition): -1 for partition in range(3)}
            eventually(lambda: any(list_offsets(cluster, ends, read_committed=False).values()), "some is written")
        if flag is not None:
            try:
                open(flag, "x").close()
            except FileExistsError:
                return
        raise RuntimeError("at the end")

    return spoil


@pytest.mark.usefixtures("small_arrow_batches")
class TestFailures:
    def test_task_that_throws_leaves_nothing_visible_and_the_batch_is_run_again(
        self, streams: Streams, tmp_path: Path
    ) -> None:
        spoil = _fails_at_the_end(streams.bootstrap, streams.target, str(tmp_path / "flag"))
        streams.send(range(100))
        streams.run(
            streams.sink(buffer_bytes=1024),
            lambda frame: frame.selectExpr("key", LARGE).mapInArrow(spoil, "key binary, value string"),
        )
        assert [each.attempts for each in streams.results.all if each.rows] == [2]
        eventually(lambda: len(streams.output()) == 100, "all is committed")
        assert sorted(int(each.key or b"") for each in streams.output()) == list(range(100))
        assert len(written(streams.bootstrap, streams.target)) > 100, "the first attempt did write something"

    @pytest.mark.faults
    def test_task_that_always_throws_ends_the_query_after_the_retries(self, streams: Streams) -> None:
        streams.send(range(100))
        rows = sql.when(sql.col("value") == b"77", sql.raise_error(sql.lit("no sevens"))).otherwise(sql.col("value"))
        message = failure(
            streams, streams.sink(retries=1), lambda frame: frame.select("key", rows.cast("binary").alias("value"))
        )
        assert "failed 2 times; nothing of it is visible" in message
        assert "no sevens" in message
        assert streams.output() == []

    def test_batch_write_is_all_or_nothing(self, streams: Streams) -> None:
        rows = streams.spark.range(0, 400, 1, 2).selectExpr("cast(id as string) key", LARGE)
        spoil = _fails_at_the_end(streams.bootstrap, streams.target, None)
        rows = rows.mapInArrow(spoil, "key string, value string")
        with pytest.raises(BatchFailed, match="nothing of it is visible"):
            onceflow.spark.write(
                rows, bootstrap_servers=streams.bootstrap, topic=streams.target, retries=0, buffer_bytes=1024
            )
        assert written(streams.bootstrap, streams.target), "some of it had been written"
        assert committed(streams.bootstrap, streams.target) == []

    def test_batch_write_of_nothing_is_no_error(self, streams: Streams) -> None:
        rows = streams.spark.range(0).selectExpr("cast(id as string) value")
        assert onceflow.spark.write(rows, bootstrap_servers=streams.bootstrap, topic=streams.target).rows == 0

    def test_batch_write_with_a_name_is_written_once(self, streams: Streams) -> None:
        rows = streams.spark.range(10).selectExpr("cast(id as string) value")
        where = {"bootstrap_servers": streams.bootstrap, "topic": streams.target, "app_id": streams.app_id}
        assert not onceflow.spark.write(rows, once="monday", **where).skipped
        assert onceflow.spark.write(rows, once="monday", **where).skipped
        assert not onceflow.spark.write(rows, once="tuesday", **where).skipped
        eventually(lambda: len(streams.output()) == 20, "two days are committed")


class TestWrongUse:
    def test_second_call_in_one_micro_batch(self, streams: Streams) -> None:
        """What it would write is not in the transaction of the first call, and a replay would skip it."""
        streams.send(range(10))
        sink = streams.sink()

        def twice(frame: DataFrame, batch_id: int) -> None:
            sink(frame, batch_id)
            sink(frame, batch_id)

        assert "called twice in micro-batch" in failure(streams, twice)

    def test_missing_topic(self, streams: Streams) -> None:
        streams.send(range(10))
        message = failure(streams, streams.sink(topic="no-such-topic"))
        assert "there is no topic 'no-such-topic'" in message
        assert "nothing was written" in message

    @pytest.mark.faults
    def test_missing_topic_in_a_row(self, streams: Streams) -> None:
        streams.send(range(10))
        message = failure(
            streams,
            streams.sink(topic=None),
            lambda frame: frame.select("value", sql.lit("no-such-topic").alias("topic")),
        )
        assert "there is no topic 'no-such-topic'" in message
        assert "Nothing of it is visible" in message

    @pytest.mark.faults
    def test_row_without_a_key_for_a_compacted_topic(self, streams: Streams, wire: Wire) -> None:
        compacted = f"{streams.target}-compacted"
        wire.create_topic(compacted, 1, **{"cleanup_policy": "compact"})
        streams.send(range(10))
        message = failure(streams, streams.sink(topic=compacted), lambda frame: frame.select("value"))
        assert "has no key, and the topic is compacted" in message
        assert "give every row a key" in message

    def test_unknown_column(self, streams: Streams) -> None:
        streams.send(range(10))
        message = failure(streams, None, lambda frame: frame.select("key", "value", sql.lit(1).alias("partitions")))
        assert "column 'partitions' means nothing to Kafka" in message
        assert "Did you mean 'partition'?" in message

    def test_transaction_timeout_above_the_brokers_maximum(self, streams: Streams) -> None:
        streams.send(range(10))
        message = failure(streams, streams.sink(transaction_timeout_ms=10**9))
        assert "transaction.max.timeout.ms" in message

    @pytest.mark.faults
    def test_partition_that_the_topic_does_not_have(self, streams: Streams) -> None:
        streams.send(range(10))
        message = failure(streams, None, lambda frame: frame.select("value", sql.lit(7).alias("partition")))
        assert "a row wants partition 7" in message

    def test_record_that_is_too_large(self, streams: Streams, wire: Wire) -> None:
        streams.send(range(1))
        message = failure(streams, None, lambda frame: frame.select(sql.expr("repeat('x', 3000000)").alias("value")))
        assert "max.message.bytes" in message

    def test_progress_topic_as_a_target(self, streams: Streams) -> None:
        with pytest.raises(ConfigError, match="where progress is kept"):
            streams.sink(topic=PROGRESS_TOPIC)

    def test_dataframe_that_does_not_stream(self, streams: Streams) -> None:
        with pytest.raises(ConfigError, match=r"onceflow\.spark\.write"):
            streams.sink()(streams.spark.range(1).selectExpr("cast(id as string) value"), 0)

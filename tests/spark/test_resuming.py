"""Which micro-batches are skipped, and what is refused: checkpoints and progress that do not belong together."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.spark import SinkListener, Step
from onceflow.spark.progress import PROGRESS_TOPIC, read_progress
from tests.spark.streams import Streams, failure
from tests.support.brokers import RunningBroker
from tests.support.raw import Wire
from tests.support.waiting import eventually


@pytest.fixture
def streams(spark: SparkSession, broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path) -> Streams:
    return Streams(spark, broker.bootstrap, new_name(), tmp_path)


def all_values(streams: Streams, count: int) -> list[str]:
    eventually(lambda: len(streams.output()) >= count, f"{count} records are committed")
    return streams.values()


def go_on_with_a_new_checkpoint(streams: Streams, **options: Any) -> None:
    """What the message advises."""
    streams.checkpoint = streams.checkpoint.with_name("new")
    streams.run(startingOffsets="committed", **{"kafka.group.id": streams.app_id}, **options)


def add_partition(streams: Streams) -> None:
    """The third one, number 2, to the source topic."""
    admin = AdminClient({"bootstrap.servers": streams.bootstrap})
    admin.create_partitions([NewPartitions(streams.source, 3)])[streams.source].result(30)
    with Wire(streams.bootstrap) as wire:
        wire.await_partitions(streams.source, 3)


class OlderCheckpoint:
    """Three micro-batches, then the checkpoint as it was after the first one."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._backup = streams.checkpoint.with_name("backup")

    def keep(self) -> None:
        shutil.copytree(self._streams.checkpoint, self._backup)

    def restore(self) -> None:
        shutil.rmtree(self._streams.checkpoint)
        self._backup.rename(self._streams.checkpoint)


def copy_files(streams: Streams, files: Path, sink: Any = None) -> None:
    """The lines that are new."""
    lines = streams.spark.readStream.format("text").load(str(files)).selectExpr("value")
    writer = lines.writeStream.foreachBatch(sink or streams.sink())
    writer = writer.option("checkpointLocation", str(streams.checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


class TestOlderCheckpoint:
    """Its next micro-batch has a number that was used before. To skip it for its number would lose what is new."""

    @pytest.mark.daily_on_kafka
    def test_a_partition_that_is_new_is_not_lost(self, streams: Streams) -> None:
        older = OlderCheckpoint(streams)
        for first in (0, 4, 8):
            streams.send(range(first, first + 4))
            streams.run()
            if first == 0:
                older.keep()
        older.restore()
        add_partition(streams)
        streams.send(range(12, 16), partition=2)
        assert "CheckpointMismatch" in failure(streams)
        assert streams.values() == sorted(map(str, range(12)))
        go_on_with_a_new_checkpoint(streams)
        assert all_values(streams, 16) == sorted(map(str, range(16)))

    @pytest.mark.faults  # of every day: tests/unit/spark/test_resuming.py
    def test_a_topic_that_is_new_is_not_lost(self, streams: Streams) -> None:
        pattern = {"subscribePattern": f"^{streams.source}", "subscribe": None}
        older = OlderCheckpoint(streams)
        for first in (0, 4, 8):
            streams.send(range(first, first + 4))
            streams.run(**pattern)
            if first == 0:
                older.keep()
        older.restore()
        with Wire(streams.bootstrap) as wire:
            wire.create_topic(f"{streams.source}-more")
        streams.send(range(12, 16), topic=f"{streams.source}-more")
        assert "CheckpointMismatch" in failure(streams, **pattern, maxOffsetsPerTrigger=4)
        assert streams.values() == sorted(map(str, range(12)))
        go_on_with_a_new_checkpoint(streams, **pattern)
        assert all_values(streams, 16) == sorted(map(str, range(16)))

    def test_a_file_that_is_new_is_not_lost(self, streams: Streams, tmp_path: Path) -> None:
        """The offset of a file source is a number in the checkpoint: it is the same for other files."""
        files = tmp_path / "files"
        files.mkdir()
        older = OlderCheckpoint(streams)
        for number in range(3):
            (files / f"{number}.txt").write_text(f"line {number}\n")
            copy_files(streams, files)
            if number == 0:
                older.keep()
        older.restore()
        for each in files.iterdir():
            each.unlink()
        (files / "other.txt").write_text("another line\n")
        with pytest.raises(StreamingQueryException, match="CheckpointMismatch"):
            copy_files(streams, files)
        assert streams.values() == ["line 0", "line 1", "line 2"]

    @pytest.mark.faults  # of every day: tests/unit/spark/test_resuming.py
    def test_a_copy_that_has_gone_another_way_is_refused_whatever_its_number_is(
        self, streams: Streams, tmp_path: Path
    ) -> None:
        """The next number is right, and batch 1 in the copy is not the one that was committed."""
        files, older = tmp_path / "files", OlderCheckpoint(streams)
        files.mkdir()
        for number in range(2):
            (files / f"{number}.txt").write_text(f"line {number}\n")
            copy_files(streams, files)
            if number == 0:
                older.keep()
        older.restore()
        (files / "other.txt").write_text("another line\n")
        copy_files(streams, files, lambda frame, _: frame.write.format("noop").mode("overwrite").save())
        (files / "last.txt").write_text("the last line\n")
        for missing_batches in ("refuse", "accept"):
            with pytest.raises(StreamingQueryException, match="goes another way"):
                copy_files(streams, files, streams.sink(missing_batches=missing_batches))
        assert streams.values() == ["line 0", "line 1"]

    @pytest.mark.faults  # of every day: tests/unit/spark/test_resuming.py
    def test_what_was_not_changed_is_refused_as_well_since_nobody_can_tell(self, streams: Streams) -> None:
        older = OlderCheckpoint(streams)
        for first in (0, 4):
            streams.send(range(first, first + 4))
            streams.run()
            if first == 0:
                older.keep()
        older.restore()
        message = failure(streams)
        assert "older checkpoint" in message
        assert "startingOffsets=committed" in message
        go_on_with_a_new_checkpoint(streams)
        assert streams.values() == sorted(map(str, range(8)))


class TestSeveralSinks:
    def test_two_sinks_with_one_app_id_are_refused_however_their_addresses_are_spelled(self, streams: Streams) -> None:
        port = streams.bootstrap.rpartition(":")[2]
        sinks = [streams.sink(bootstrap_servers=f"{host}:{port}") for host in ("localhost", "127.0.0.1")]
        streams.send(range(4))

        def both(frame: DataFrame, batch_id: int) -> None:
            for sink, values in zip(sinks, ("value > '1'", "value <= '1'"), strict=True):
                sink(frame.where(values), batch_id)

        for _ in range(2):  # in the replay both would find it committed
            message = failure(streams, both)
            assert "two sinks of the query have this app id" in message
            assert "the second call wrote nothing" in message
        assert all_values(streams, 2) == ["2", "3"]

    @pytest.mark.faults  # of every day: tests/unit/spark/test_resuming.py
    def test_a_topic_that_is_read_twice_is_not_started_anew_with_one_offset(self, streams: Streams) -> None:
        """The two readers of a partition stand at different offsets, and one offset is not right for both."""

        def twice(frame: DataFrame) -> DataFrame:
            return frame.union(streams.frame(maxOffsetsPerTrigger=2)).select("key", "value")

        streams.send(range(10))
        query = streams.start(transform=twice, trigger={"processingTime": "1 hour"}, maxOffsetsPerTrigger=6)
        eventually(lambda: len(streams.output()) == 8, "a micro-batch of both is committed")
        query.stop()
        streams.checkpoint = streams.checkpoint.with_name("another")
        start = {"startingOffsets": "committed", "kafka.group.id": streams.app_id}
        message = failure(streams, transform=twice, **start)
        assert "is read by several sources" in message
        assert len(streams.output()) == 8


def forget_progress(streams: Streams) -> None:
    """Deletes the topic with the progress of all applications."""
    admin = AdminClient({"bootstrap.servers": streams.bootstrap})
    admin.delete_topics([PROGRESS_TOPIC])[PROGRESS_TOPIC].result(30)
    with Wire(streams.bootstrap) as wire:
        eventually(lambda: wire.metadata(name=PROGRESS_TOPIC).error_code != 0, "the topic is gone")


class TestLostProgress:
    @pytest.mark.daily_on_kafka
    @pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.faults)])
    def test_a_replay_is_refused_since_the_group_knows_that_it_was_committed(
        self, streams: Streams, batches: int
    ) -> None:
        for first in range(0, 10 * batches, 10):
            streams.send(range(first, first + 10))
            streams.run()
        streams.forget_last_commit()
        forget_progress(streams)
        message = failure(streams)
        assert "progress was lost" in message
        assert "Nothing was written" in message
        assert streams.values() == sorted(map(str, range(10 * batches)))

    @pytest.mark.faults  # of every day: tests/unit/spark/test_resuming.py
    def test_a_replay_of_nothing_but_a_partition_that_was_new_is_refused(self, streams: Streams) -> None:
        """Where it starts, there is no offset of that partition that the group could be compared with."""
        streams.send(range(10))
        streams.run()
        add_partition(streams)
        streams.send(range(10, 20), partition=2)
        streams.run()
        streams.forget_last_commit()
        forget_progress(streams)
        assert "progress was lost" in failure(streams)
        assert streams.values() == sorted(map(str, range(20)))

    @pytest.mark.daily_on_kafka
    def test_a_replay_of_the_first_batch_is_refused_although_no_group_knows_of_it(
        self, streams: Streams, tmp_path: Path
    ) -> None:
        """Nothing of Kafka is read. The coordinator remembers that there was a commit, however often it is tried."""
        files = tmp_path / "files"
        files.mkdir()
        (files / "0.txt").write_text("line 0\n")
        copy_files(streams, files)
        streams.forget_last_commit()
        forget_progress(streams)
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match=r"progress was lost.*Nothing was written"):
                copy_files(streams, files)
        assert streams.values() == ["line 0"]
        copy_files(streams, files, streams.sink(missing_batches="accept"))
        assert all_values(streams, 2) == ["line 0", "line 0"]

    def test_a_first_batch_that_was_aborted_is_written_with_the_next_start(
        self, streams: Streams, tmp_path: Path
    ) -> None:
        files = tmp_path / "files"
        files.mkdir()
        (files / "0.txt").write_text("line 0\n")

        class Failing(SinkListener):
            def before(self, step: Step, batch_id: int) -> None:
                if step is Step.COMMIT:
                    raise RuntimeError("before the commit")

        with pytest.raises(StreamingQueryException, match="before the commit"):
            copy_files(streams, files, streams.sink(listeners=[Failing()]))
        forget_progress(streams)
        copy_files(streams, files)
        assert all_values(streams, 1) == ["line 0"]

    def test_a_query_that_had_ended_goes_on_since_the_group_stands_where_it_starts(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.send(range(10), partition=1)
        streams.run()
        forget_progress(streams)
        streams.send(range(10, 20))
        streams.run()
        assert all_values(streams, 30) == sorted([*map(str, range(20)), *map(str, range(10))])
        with Cluster(ClientSettings(bootstrap=streams.bootstrap)) as cluster:
            assert read_progress(cluster, streams.app_id) is not None

    @pytest.mark.faults  # of every day: tests/unit/spark/test_resuming.py
    def test_without_a_group_that_proves_it_is_refused_unless_told(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run()
        forget_progress(streams)
        admin = AdminClient({"bootstrap.servers": streams.bootstrap})
        admin.delete_consumer_groups([streams.app_id])[streams.app_id].result(30)
        streams.send(range(10, 20))
        assert "Kafka knows nothing of an app" in failure(streams)
        assert len(streams.output()) == 10
        streams.run(streams.sink(missing_batches="accept"))
        assert all_values(streams, 20) == sorted(map(str, range(20)))

    @pytest.mark.faults  # of every day: tests/unit/spark/test_resuming.py
    def test_a_gap_in_the_numbers_is_refused_unless_told(self, streams: Streams) -> None:
        """As if Kafka had lost commits: the sink was not called."""

        def run(sink: Any) -> None:
            streams.send(range(10))
            streams.run(sink)

        run(streams.sink())
        run(lambda frame, batch_id: frame.write.format("noop").mode("overwrite").save())
        run(lambda frame, batch_id: frame.write.format("noop").mode("overwrite").save())
        streams.send(range(10))
        assert "Kafka knows of none after batch 0" in failure(streams)
        streams.run(streams.sink(missing_batches="accept"))
        assert len(all_values(streams, 20)) == 20

    def test_progress_of_a_format_that_is_not_known_is_refused(self, streams: Streams) -> None:
        streams.send(range(10))
        streams.run()
        producer = Producer({"bootstrap.servers": streams.bootstrap, "log_level": 2})
        producer.produce(PROGRESS_TOPIC, b'{"version": 9, "query": "q", "batch": 7, "offsets": {}}', streams.app_id)
        assert producer.flush(30) == 0
        streams.send(range(10))
        assert "version 9 of its format" in failure(streams)
        assert len(streams.output()) == 10


def test_a_batch_is_identified_in_every_format_of_the_offset_log(streams: Streams) -> None:
    setting = "spark.sql.streaming.offsetLog.formatVersion"
    streams.spark.conf.set(setting, "2")
    try:
        streams.send(range(10))
        streams.run()
        last = streams.forget_last_commit()
        streams.send(range(10, 20))
        streams.run()
    finally:
        streams.spark.conf.unset(setting)
    assert (streams.checkpoint / "offsets" / "0").read_text().startswith("v2")
    assert streams.results.skipped == [last]
    assert all_values(streams, 20) == sorted(map(str, range(20)))

"""The source end to end: a real Spark, on Onceflow and on Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StringType, StructType

import onceflow
from onceflow.client import fetching
from onceflow.client.admin import TopicMissingError
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.spark.options import SourceOptions
from onceflow.spark.planning import from_json, lag
from onceflow.spark.positions import Positions, connected, disconnect
from onceflow.spark.source import DataLossError, KafkaSource, StreamReader, register
from tests.support.brokers import RunningBroker
from tests.support.waiting import eventually

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Row = tuple[Any, ...]
Offsets = dict[str, dict[str, Any]]


class Kafka:
    """What the tests do at the broker, through librdkafka."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Records of long ago are kept: brokers look every five minutes for what is older than a week."""
        kept = {"retention.ms": "-1", **(config or {})}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=kept)
        self.admin.create_topics([new])[topic].result(30)
        return topic

    def recreate(self, topic: str) -> None:
        """Another topic under the same name."""
        self.admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
        self.create(topic)

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def delete_below(self, topic: str, offset: int) -> None:
        place = TopicPartition(topic, 0, offset)
        self.admin.delete_records([place])[place].result(30)

    def producer(self, **config: object) -> Producer:
        named = {name.replace("_", "."): value for name, value in config.items()}
        return Producer({"bootstrap.servers": self.bootstrap, **named})

    def send(self, topic: str, values: Iterable[str], partition: int = 0, **record: Any) -> None:
        producer = self.producer(linger_ms=0)
        for value in values:
            producer.produce(topic, value, partition=partition, **record)
        assert producer.flush(30) == 0

    def commit(self, group: str, topic: str, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()


@pytest.fixture
def kafka(broker: RunningBroker) -> Kafka:
    return Kafka(broker.bootstrap)


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def run(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> Callable[..., list[Any]]:
    """Runs a stream over all that is there, on one checkpoint for all runs of a test; returns its progress reports."""

    def run(**options: object) -> list[Any]:
        query = started(spark, kafka, tmp_path, availableNow=True, **options)
        query.awaitTermination(60)
        return list(query.recentProgress)

    return run


@pytest.fixture
def seen(spark: SparkSession, tmp_path: Path) -> Callable[[], list[str]]:
    """The values that the streams of the test have written, in order of topic, partition and offset."""

    def seen() -> list[str]:
        rows = spark.read.schema("topic string, partition int, offset bigint, value string").json(str(tmp_path / "out"))
        return [row.value for row in rows.orderBy("topic", "partition", "offset").collect()]

    return seen


def started(spark: SparkSession, kafka: Kafka, folder: Path, **options: object) -> StreamingQuery:
    trigger = {name: options.pop(name) for name in ("availableNow", "processingTime") if name in options}
    frame = options_of(spark.readStream, kafka, options).load()
    columns = frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
    writer = columns.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(**trigger).start(str(folder / "out"))  # type: ignore[arg-type]


def options_of(reader: Any, kafka: Kafka, options: Mapping[str, object]) -> Any:
    return reader.format("onceflow").options(**{"kafka.bootstrap.servers": kafka.bootstrap, **options})


def loaded(spark: SparkSession, kafka: Kafka, **options: object) -> DataFrame:
    frame: DataFrame = options_of(spark.read, kafka, options).load()
    return frame


def values(frame: DataFrame) -> list[str]:
    return [bytes(row.value).decode() for row in frame.orderBy("partition", "offset").collect()]


def test_a_new_session_can_register_the_source_and_leaves_the_active_one_active(
    spark: SparkSession, kafka: Kafka, new_name: Callable[[], str]
) -> None:
    kafka.create(topic := new_name())
    kafka.send(topic, ["a"])
    other = spark.newSession()
    for _ in range(2):
        register(other)
    assert SparkSession.active()._jsparkSession.equals(spark._jsparkSession)
    assert values(loaded(other, kafka, subscribe=topic)) == ["a"]


# --- columns


def produced(kafka: Kafka, topic: str, codec: str, first: int) -> Iterator[Row]:
    """Sends all kinds of records in one codec; what a reader is to get of them."""
    records = [
        (None, None, None),
        (b"", b"", []),
        (b"key", b"value " * 50, [("a", b"1"), ("a", None), ("\u00e4", b"")]),
        (b"\xff\x00", codec.encode(), None),
    ]
    delivered: list[Row] = []
    producer = kafka.producer(compression_type=codec, linger_ms=200)
    for index, (key, value, headers) in enumerate(records):
        sent = {"key": key, "value": value, "headers": headers, "timestamp": 1_700_000_000_000 + first + index}
        expected = (key, value, sent["timestamp"], headers or None)
        producer.produce(
            topic,
            partition=index % 2,
            on_delivery=lambda error, message, expected=expected: delivered.append(
                (message.partition(), message.offset(), *expected)
            ),
            **{name: each for name, each in sent.items() if each is not None},
        )
    assert producer.flush(30) == 0
    yield from delivered


@pytest.mark.daily_on_kafka
def test_a_batch_query_gives_every_record_as_it_was_produced(
    spark: SparkSession, kafka: Kafka, new_name: Callable[[], str]
) -> None:
    topic = kafka.create(new_name(), partitions=2)
    expected = [row for first, codec in enumerate(CODECS) for row in produced(kafka, topic, codec, first * 1000)]
    frame = loaded(spark, kafka, subscribe=topic, includeHeaders=True)
    found = [
        (
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.ms,
            None if row.headers is None else [(each.key, each.value and bytes(each.value)) for each in row.headers],
        )
        for row in frame.selectExpr("*", "unix_millis(timestamp) as ms").orderBy("partition", "offset").collect()
    ]
    assert found == sorted(
        [
            (*row[:5], None if row[5] is None else [(name, value and bytes(value)) for name, value in row[5]])
            for row in expected
        ]
    )
    assert {(row.topic, row.timestampType) for row in frame.select("topic", "timestampType").collect()} == {(topic, 0)}


def test_the_columns_are_those_of_sparks_kafka_source(
    spark: SparkSession, kafka: Kafka, new_name: Callable[[], str]
) -> None:
    topic = kafka.create(new_name(), config={"message.timestamp.type": "LogAppendTime"})
    empty = loaded(spark, kafka, subscribe=topic)
    assert empty.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert empty.collect() == [], "an empty topic is no error"
    kafka.send(topic, ["x"], timestamp=5)
    [row] = loaded(spark, kafka, subscribe=topic).collect()
    assert (row.timestampType, row.timestamp.year >= 2024) == (1, True)


# --- transactions


@pytest.mark.daily_on_kafka
def test_a_reader_of_committed_records_sees_no_others(
    spark: SparkSession, kafka: Kafka, new_name: Callable[[], str]
) -> None:
    topic = kafka.create(new_name())
    producer = kafka.producer(transactional_id=new_name())
    producer.init_transactions(30)
    for value, end in (("committed", producer.commit_transaction), ("aborted", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(30)
        end(30)
    kafka.send(topic, ["plain"])
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush(30)
    kafka.send(topic, ["behind"])

    everything = ["committed", "aborted", "plain", "open", "behind"]
    uncommitted = {"subscribe": topic, "kafka.isolation.level": "read_uncommitted"}
    assert values(loaded(spark, kafka, subscribe=topic)) == ["committed", "plain"]
    assert values(loaded(spark, kafka, **uncommitted)) == everything
    producer.commit_transaction(30)
    eventually(
        lambda: values(loaded(spark, kafka, subscribe=topic)) == ["committed", "plain", "open", "behind"],
        "the marker is written a moment after the answer",
    )


# --- batch queries


def test_a_batch_query_reads_from_here_to_there_in_as_many_tasks_as_asked(
    spark: SparkSession, kafka: Kafka, new_name: Callable[[], str]
) -> None:
    topic = kafka.create(new_name(), partitions=2)
    kafka.send(topic, [f"a{index}" for index in range(8)])
    kafka.send(topic, ["b0", "b1"], partition=1)
    edges = {
        "startingOffsets": f'{{"{topic}": {{"0": 2, "1": -2}}}}',
        "endingOffsets": f'{{"{topic}": {{"0": 6, "1": -1}}}}',
    }
    frame = loaded(spark, kafka, subscribe=topic, minPartitions=4, **edges)
    assert values(frame) == ["a2", "a3", "a4", "a5", "b0", "b1"]
    assert frame.rdd.getNumPartitions() == 4
    only = loaded(spark, kafka, assign=f'{{"{topic}": [1]}}')
    assert values(only) == ["b0", "b1"]


def test_a_batch_query_reads_between_two_timestamps(
    spark: SparkSession, kafka: Kafka, new_name: Callable[[], str]
) -> None:
    topic = kafka.create(new_name())
    for time in (1000, 2000, 3000, 4000):
        kafka.send(topic, [str(time)], timestamp=time)
    frame = loaded(spark, kafka, subscribe=topic, startingTimestamp=1500, endingTimestamp=4000)
    assert values(frame) == ["2000", "3000"]


# --- streams


def test_a_stream_reads_in_limited_batches_and_goes_on_where_it_was(
    kafka: Kafka, new_name: Callable[[], str], run: Callable[..., list[Any]], seen: Callable[[], list[str]]
) -> None:
    topic = kafka.create(new_name(), partitions=2)
    kafka.send(topic, [f"a{index}" for index in range(6)])
    kafka.send(topic, [f"b{index}" for index in range(6)], partition=1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 8}
    first = run(**options)
    assert [each.numInputRows for each in first if each.numInputRows] == [8, 4]
    assert [lag(each)["maxOffsetsBehindLatest"] for each in first[:2]] == [2, 0]

    kafka.grow(topic, 3)
    kafka.send(topic, ["a6"])
    kafka.send(topic, ["c0", "c1"], partition=2)
    run(**options)
    assert seen() == [*(f"a{index}" for index in range(7)), *(f"b{index}" for index in range(6)), "c0", "c1"]


def test_a_running_stream_starts_at_the_end_and_sees_what_comes(
    spark: SparkSession, kafka: Kafka, new_name: Callable[[], str], tmp_path: Path, seen: Callable[[], list[str]]
) -> None:
    topic = kafka.create(new_name())
    kafka.send(topic, ["before"])
    query = started(spark, kafka, tmp_path, subscribe=topic, processingTime="0 seconds")
    try:
        eventually(lambda: query.lastProgress is not None, "the first batch", timeout_s=60)
        kafka.send(topic, ["after"])
        eventually(lambda: seen() == ["after"], "the record in the output", timeout_s=60)
    finally:
        query.stop()


def test_where_a_stream_began_survives_a_crash_in_its_first_batch(
    spark: SparkSession,
    kafka: Kafka,
    new_name: Callable[[], str],
    tmp_path: Path,
    run: Callable[..., list[Any]],
    seen: Callable[[], list[str]],
) -> None:
    """Spark logs where a batch ends before it runs, and that it is done afterwards: a crash leaves the first alone."""
    topic = kafka.create(new_name())
    kafka.send(topic, ["before"])
    run(subscribe=topic)
    kafka.send(topic, ["after"])
    for done in (tmp_path / "checkpoint" / "commits").iterdir():
        done.unlink()
    run(subscribe=topic)
    assert seen() == ["after"]


def test_a_topic_that_was_created_anew_ends_the_stream_or_is_read_from_its_beginning(
    kafka: Kafka,
    new_name: Callable[[], str],
    tmp_path: Path,
    run: Callable[..., list[Any]],
    seen: Callable[[], list[str]],
) -> None:
    topic = kafka.create(new_name())
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    kafka.send(topic, ["a0", "a1"])
    run(**options)
    kafka.send(topic, ["a2"])
    without_topic_ids(tmp_path / "checkpoint")  # as it was before there were any
    run(**options)
    old = topic_id_in(tmp_path / "checkpoint", topic)
    kafka.recreate(topic)
    kafka.send(topic, [f"b{number}" for number in range(6)])  # it has grown past the old offset
    sentence = rf"topic '{topic}' was deleted and created again: its id was {old} and is .* failOnDataLoss=false"
    with pytest.raises(StreamingQueryException, match=sentence):
        run(**options)
    assert seen() == ["a0", "a1", "a2"]
    run(**options, failOnDataLoss=False)
    assert sorted(seen()) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3", "b4", "b5"]
    assert topic_id_in(tmp_path / "checkpoint", topic) != old
    kafka.send(topic, ["b6"])
    run(**options)
    assert sorted(seen())[-1] == "b6"


def logged_offsets(checkpoint: Path) -> list[Path]:
    return sorted(
        (each for each in (checkpoint / "offsets").iterdir() if each.name.isdigit()), key=lambda p: int(p.name)
    )


def topic_id_in(checkpoint: Path, topic: str) -> str:
    offsets = json.loads(logged_offsets(checkpoint)[-1].read_text().splitlines()[-1])
    return str(offsets["@topic_ids"][topic])


def without_topic_ids(checkpoint: Path) -> None:
    for each in logged_offsets(checkpoint):
        *head, offsets = each.read_text().splitlines()
        old = {topic: of for topic, of in json.loads(offsets).items() if not topic.startswith("@")}
        each.write_text("\n".join([*head, json.dumps(old)]))
        each.with_name(f".{each.name}.crc").unlink(missing_ok=True)


def test_records_that_were_deleted_end_the_query_or_are_left_out(
    spark: SparkSession, kafka: Kafka, new_name: Callable[[], str]
) -> None:
    topic = kafka.create(new_name())
    kafka.send(topic, [str(offset) for offset in range(6)])
    kafka.delete_below(topic, 5)
    options = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 3}}}}'}
    with pytest.raises(PythonException, match=rf"offsets 3 to 4 of {topic}-0 are gone: .* failOnDataLoss=false"):
        loaded(spark, kafka, **options).collect()
    assert values(loaded(spark, kafka, **options, failOnDataLoss=False)) == ["5"]


# --- wrong use


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "earliest"}, "there is no option 'startingoffset': did you mean 'startingOffsets'\\?"),
        ({"kafka.auto.offset.reset": "earliest"}, "option 'kafka.auto.offset.reset' is not taken: "),
        ({"assign": "{}"}, "exactly one of subscribe, subscribePattern, assign"),
    ],
)
def test_wrong_options_are_refused_when_the_query_is_loaded(
    spark: SparkSession, kafka: Kafka, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(AnalysisException, match=sentence):
        loaded(spark, kafka, subscribe="orders", **options)
    with pytest.raises(AnalysisException, match=sentence):
        options_of(spark.readStream, kafka, {"subscribe": "orders", **options}).load()


# --- the same parts without Spark


def test_a_process_keeps_its_connections_until_they_are_given_up(kafka: Kafka) -> None:
    settings = ClientSettings(bootstrap=kafka.bootstrap)
    first = connected(settings)
    assert connected(ClientSettings(bootstrap=kafka.bootstrap)) is first
    disconnect(settings)
    assert connected(settings) is not first
    disconnect(settings)


def test_a_schema_of_ones_own_is_refused() -> None:
    source = KafkaSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"})
    with pytest.raises(ConfigError, match="a schema of one's own cannot be set"):
        source.streamReader(StructType().add("value", StringType()))


def stream_reader(kafka: Kafka, **options: str) -> StreamReader:
    source = KafkaSource({"kafka.bootstrap.servers": kafka.bootstrap, **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    return reader


def rows_until(reader: StreamReader, start: Offsets, end: Offsets) -> list[bytes | None]:
    return [
        value
        for work in reader.partitions(start, end)
        for batch in reader.read(work)
        for value in batch.column("value").to_pylist()
    ]


def test_a_stream_with_an_end_is_refused(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match="endingOffsets is for batch queries: a stream has no end"):
        stream_reader(kafka, subscribe="orders", endingOffsets="latest")


def test_a_stream_picks_up_topics_that_match_its_pattern(kafka: Kafka, new_name: Callable[[], str]) -> None:
    name = new_name()
    kafka.send(kafka.create(f"{name}.a"), ["a"])
    kafka.send(kafka.create(f"other-{name}"), ["other"])
    reader = stream_reader(kafka, subscribePattern=f"^{name}\\..*", startingOffsets="earliest")
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert rows_until(reader, start, first) == [b"a"]
    kafka.send(kafka.create(f"{name}.b"), ["b"])
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert from_json(second) == {(f"{name}.a", 0): 1, (f"{name}.b", 0): 1}
    assert rows_until(reader, first, second) == [b"b"]
    reader.stop()


def test_a_stream_that_lost_records_ends_or_goes_on_with_what_is_there(
    kafka: Kafka, new_name: Callable[[], str]
) -> None:
    topic = kafka.create(new_name())
    kafka.send(topic, [str(offset) for offset in range(6)])
    start, end = {topic: {"0": 1}}, {topic: {"0": 6}}
    strict, lenient = (stream_reader(kafka, subscribe=topic, failOnDataLoss=loss) for loss in ("true", "false"))
    kafka.delete_below(topic, 4)
    with pytest.raises(DataLossError, match=rf"^offsets 1 to 3 of {topic}-0 are gone: "):
        rows_until(strict, start, end)
    assert rows_until(lenient, start, end) == [b"4", b"5"]
    assert rows_until(lenient, start, {topic: {"0": 9}}) == [b"4", b"5"], "an end that does not exist"
    lenient.stop()


def test_records_that_are_deleted_before_a_first_batch_is_replayed_are_lost(
    kafka: Kafka, new_name: Callable[[], str]
) -> None:
    """The driver that planned it died. What "earliest" is now is not where the stream began."""
    topic = kafka.create(new_name())
    kafka.send(topic, [str(offset) for offset in range(6)])
    kafka.delete_below(topic, 1)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    first = stream_reader(kafka, **options)
    logged = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    kafka.delete_below(topic, 4)
    strict, lenient = (stream_reader(kafka, **options, failOnDataLoss=loss) for loss in ("true", "false"))
    with pytest.raises(DataLossError, match=rf"^offsets 1 to 3 of {topic}-0 are gone: "):
        rows_until(strict, strict.initialOffset(), logged)
    assert rows_until(lenient, lenient.initialOffset(), logged) == [b"4", b"5"]
    assert lenient.latestOffset(logged, lenient.getDefaultReadLimit()) == logged, "nothing is new"
    lenient.stop()


def values_of(reader: DataSourceReader, work: Iterable[InputPartition]) -> list[bytes | None]:
    return [value for each in work for batch in reader.read(each) for value in batch.column("value").to_pylist()]  # type: ignore[union-attr]


@pytest.mark.daily_on_kafka
@pytest.mark.parametrize("loss", ["true", pytest.param("false", marks=pytest.mark.faults)])
def test_a_topic_that_is_created_anew_between_plan_and_task_is_not_read_in_place_of_the_old_one(
    kafka: Kafka, new_name: Callable[[], str], loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.create(new_name())
    kafka.send(topic, ["old"] * 3)
    options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": loss}
    stream = stream_reader(kafka, **options)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    source = KafkaSource({"kafka.bootstrap.servers": kafka.bootstrap, **options})
    batch = source.reader(source.schema())  # type: ignore[arg-type]
    planned: list[tuple[Any, Any]] = [(stream, stream.partitions(start, end)), (batch, batch.partitions())]
    kafka.recreate(topic)
    kafka.send(topic, ["new"] * 5)
    for reader, work in planned:
        if loss == "true":
            with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
                values_of(reader, work)
        else:
            assert values_of(reader, work) == []
            assert f"topic '{topic}' was deleted and created again" in caplog.text
        caplog.clear()
    stream.stop()


@pytest.mark.daily_on_kafka
def test_answers_without_records_are_an_error_or_a_warning_and_never_the_end(
    kafka: Kafka, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.create(new_name())
    kafka.send(topic, ["0", "1", "2"])
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafkaConsumer.pollTimeoutMs": "500"}
    strict, lenient = (stream_reader(kafka, **options, failOnDataLoss=loss) for loss in ("true", "false"))
    start, end = strict.initialOffset(), strict.latestOffset(strict.initialOffset(), strict.getDefaultReadLimit())
    whole = fetching.fetch
    with monkeypatch.context() as patched:
        patched.setattr(fetching, "fetch", lambda *given, **named: replace(whole(*given, **named), batches=[]))
        with pytest.raises(DataLossError, match=rf"no records of {topic}-0 came from offset 0 on, .* log ends at 3"):
            rows_until(strict, start, end)
        assert rows_until(lenient, start, end) == []
        assert f"no records of {topic}-0 came from offset 0 on" in caplog.text
    assert rows_until(strict, start, end) == [b"0", b"1", b"2"]
    strict.stop()


def test_starting_offsets_may_say_of_which_topic_they_are(kafka: Kafka, new_name: Callable[[], str]) -> None:
    topic = kafka.create(new_name())
    kafka.send(topic, ["0", "1"])
    given = stream_reader(kafka, subscribe=topic).initialOffset()
    assert stream_reader(kafka, subscribe=topic, startingOffsets=json.dumps(given)).initialOffset() == given
    kafka.recreate(topic)
    kafka.send(topic, ["a"] * 5)
    with pytest.raises(ConfigError, match=f"the offsets are of a topic '{topic}' with the id .*created again"):
        stream_reader(kafka, subscribe=topic, startingOffsets=json.dumps(given)).initialOffset()


def test_a_topic_that_is_not_there_is_named(kafka: Kafka, new_name: Callable[[], str]) -> None:
    name = new_name()
    with pytest.raises(TopicMissingError, match=f"there is no topic '{name}'"):
        stream_reader(kafka, subscribe=name).initialOffset()
    kafka.create(name)
    with pytest.raises(TopicMissingError, match=f"there is no partition {name}-1, which assign asks for"):
        stream_reader(kafka, assign=f'{{"{name}": [0, 1]}}').initialOffset()


def test_committed_goes_on_at_the_offsets_of_the_group(kafka: Kafka, new_name: Callable[[], str]) -> None:
    topic, app = kafka.create(new_name(), partitions=2), new_name()
    kafka.send(topic, ["0", "1", "2"])
    options = {"subscribe": topic, "startingOffsets": "committed", "kafka.group.id": app}
    assert from_json(stream_reader(kafka, **options).initialOffset()) == {(topic, 0): 0, (topic, 1): 0}
    kafka.commit(app, topic, 2)
    assert from_json(stream_reader(kafka, **options).initialOffset()) == {(topic, 0): 2, (topic, 1): 0}


def test_a_topic_that_was_deleted_is_left_out_if_data_may_be_lost(kafka: Kafka, new_name: Callable[[], str]) -> None:
    kept, deleted = kafka.create(new_name()), kafka.create(new_name())
    options = {"subscribe": f"{kept},{deleted}", "failOnDataLoss": "false", "startingOffsets": "earliest"}
    reader = stream_reader(kafka, **options)
    start = reader.initialOffset()
    kafka.admin.delete_topics([deleted])[deleted].result(30)
    kafka.send(kept, ["x"])
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert from_json(end) == {(kept, 0): 1}
    assert rows_until(reader, start, end) == [b"x"]
    reader.stop()


def test_a_pattern_never_matches_the_topics_that_kafka_and_onceflow_keep_for_themselves(
    kafka: Kafka, new_name: Callable[[], str]
) -> None:
    topic = kafka.create(new_name())
    kafka.commit(new_name(), topic, 0)  # there is a topic of groups' offsets now
    options = SourceOptions.of({"kafka.bootstrap.servers": kafka.bootstrap, "subscribePattern": "."})
    topics = {topic for topic, _ in Positions(options).partitions()}
    disconnect(options.settings)
    assert topic in topics
    assert not any(each.startswith("__") for each in topics)


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path, new_name: Callable[[], str]) -> None:
    with onceflow.Broker(tmp_path) as broker:
        address = broker.bootstrap
        kafka = Kafka(address)
        topic = kafka.create(new_name())
        kafka.send(topic, ["x"])
        reader = stream_reader(kafka, subscribe=topic, startingOffsets="earliest")
        start = reader.initialOffset()
        assert rows_until(reader, start, {topic: {"0": 1}}) == [b"x"]
    with ThreadPoolExecutor(1) as asking:
        end = asking.submit(reader.latestOffset, start, reader.getDefaultReadLimit())
        with onceflow.Broker(tmp_path, port=int(address.rpartition(":")[2])):
            assert rows_until(reader, start, end.result(60)) == [b"x"]
    reader.stop()

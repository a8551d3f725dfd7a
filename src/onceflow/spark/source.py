"""The source: `spark.readStream.format("onceflow")` and `spark.read.format("onceflow")`, without a jar.

    onceflow.spark.register(spark)
    spark.readStream.format("onceflow").option("kafka.bootstrap.servers", "...").option("subscribe", "orders").load()

Options and columns are those of Spark's own Kafka source (`options.py` says what differs). The driver plans in
offsets, the tasks fetch stored batches and turn them into Arrow columns; no record becomes a Python object.

Behaviour worth knowing:

- **Where a stream began is in its checkpoint before anything is read.** Spark logs only the end of each batch and asks
  again for the beginning of the first one if that has to be replayed; "latest" would be somewhere else by then, and so
  would "committed". So a stream that starts there has an empty first batch, whose end is the beginning. (The trigger
  `once`, which Spark replaced by `availableNow`, ends after that batch.) Of "earliest" and of times the end of the
  first batch says where they were: what is deleted before it is replayed is lost data, and not a later beginning.
- A partition or topic that appears later is read from its first record.
- What should be there and is gone ends the query (`failOnDataLoss=true`), or is left out with a warning. A partition
  that went back goes on from its end, as in Spark's source.
- **Offsets are of a topic, not of a name**: they carry the topic's id, and so does the work of every task. A topic that
  was deleted and created again is lost data, whatever its offsets are; with `failOnDataLoss=false` the new one is read
  from its beginning. Offsets without ids (checkpoints from before there were any, `startingOffsets`) are taken to be
  of the topic that has the name when the next batch is planned.
- What the broker does not deliver, though it has it by its own account, is never skipped in silence: the task fails, or
  (`failOnDataLoss=false`) goes on without, with a warning, after `kafkaConsumer.pollTimeoutMs`.
- With `read_committed` a stream reads up to the last stable offset: an open transaction holds it up, and nothing of it
  is skipped.
- Python workers serve many batches. They keep their connections, and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import TopicPartition
from onceflow.client.fetching import DataLost, NothingDelivered, read_range
from onceflow.client.offsets import EARLIEST, LATEST
from onceflow.client.topic_ids import TopicRecreated, recreated
from onceflow.errors import ConfigError, DataLossError, OnceflowError
from onceflow.spark.decoding import arrow_batches
from onceflow.spark.options import Everywhere, Offsets, Position, SourceOptions, Timestamps
from onceflow.spark.planning import (
    Range,
    TopicIds,
    begin_in,
    behind,
    from_json,
    gathered,
    lag,
    limited,
    loss,
    other_topics,
    ranges_of,
    split,
    to_json,
    topic_ids_in,
    went_back,
    with_begin,
    without_begin,
)
from onceflow.spark.positions import Positions, connected, disconnect
from onceflow.wire.batch import BatchHeader

__all__ = ["Conversion", "DataLossError", "KafkaSource", "lag", "register", "register_converting"]

log = logging.getLogger(__name__)

COLUMNS: Final = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
HEADERS: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))

FAIL_ADVICE: Final = "With the option failOnDataLoss=false the query would go on with what is there"
RECREATED_ADVICE: Final = (
    "Begin with a new checkpoint and startingOffsets=earliest, or set failOnDataLoss=false: then the query goes on "
    "with the new topic, from its beginning"
)
LOOKS_MAX: Final = 5

JsonOffsets = dict[str, dict[str, Any]]
OffsetsOf = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Conversion:
    """What a source's tasks hand on in place of records: for Python that is next in line, without a way through
    Spark's rows in between."""

    convert: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    """From the records of a task. Each batch is of one partition, and is not empty."""
    schema: str
    """The columns of what comes out."""


def register(spark: SparkSession) -> None:
    """Makes `format("onceflow")` known to this session."""
    _register(spark, KafkaSource)


def register_converting(spark: SparkSession, name: str, conversion: Conversion) -> None:
    """Makes `format(name)` known: the same source, with the same options, whose records are converted where they are
    read."""
    members = {"name": classmethod(lambda _: name), "conversion": conversion}
    _register(spark, type("ConvertingSource", (KafkaSource,), members))


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    try:
        spark.dataSource.register(source)
    except AnalysisException as problem:
        if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # A session that `newSession` made does not know the name, but the active session does, and Spark looks there.
        with _active(spark):
            spark.dataSource.register(source)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """This session is the active one of this thread meanwhile."""
    before = SparkSession.getActiveSession()
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before is not None:
            sessions.setActiveSession(before._jsparkSession)
        else:
            sessions.clearActiveSession()


class KafkaSource(DataSource):
    """What Spark makes at `load()`; wrong options are refused there."""

    conversion: ClassVar[Conversion | None] = None

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.of(options)

    @classmethod
    def name(cls) -> str:
        return "onceflow"

    def schema(self) -> StructType | str:
        if self.conversion is not None:
            return self.conversion.schema
        columns = StructType(list(COLUMNS.fields))
        return columns.add("headers", HEADERS) if self._parsed.include_headers else columns

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return BatchReader(self._parsed, self.conversion)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the names are Spark's
        self._check(schema)
        return StreamReader(self._parsed, conversion=self.conversion)

    def _check(self, schema: StructType) -> None:
        columns = self.schema()
        own = columns.simpleString() if isinstance(columns, StructType) else columns
        if self.conversion is None and schema.simpleString() != own:
            raise ConfigError(f"the columns of this source are {own}; a schema of one's own cannot be set")


class OffsetRanges(InputPartition):
    """The work of one task: `value` is a tuple of ranges."""

    def __init__(self, work: tuple[Range, ...]) -> None:
        super().__init__(work)


class BatchReader(DataSourceReader):
    """A batch query: from here to there, as it is when the query is planned."""

    def __init__(self, options: SourceOptions, conversion: Conversion | None = None) -> None:
        self._options = options
        self._conversion = conversion
        self._starting, self._ending = options.for_batch()

    def partitions(self) -> list[InputPartition]:
        try:
            start, end, topic_ids = self._edges(Positions(self._options))
        finally:
            disconnect(self._options.settings)
        for place in sorted(start.keys() & end.keys()):
            if start[place] > end[place]:
                raise ConfigError(
                    f"the query would start at offset {start[place]} of {place[0]}-{place[1]} and end at {end[place]}"
                )
        return _tasks(self._options, start, end, topic_ids)

    def _edges(self, positions: Positions) -> tuple[OffsetsOf, OffsetsOf, TopicIds]:
        """Both of the same topics: one that is created anew in between is looked at again."""
        for _ in range(LOOKS_MAX):
            start, before = positions.resolve(self._starting), positions.topic_ids
            end, after = positions.resolve(self._ending), positions.topic_ids
            if not (others := other_topics(before, after)):
                return start, end, after
        raise DataLossError(f"{recreated(others[0], before[others[0]], after[others[0]])}. Nothing was read")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._conversion, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream, on the driver: where it begins, how far the next micro-batch goes, and who reads what of it."""

    def __init__(
        self,
        options: SourceOptions,
        positions: Positions | None = None,
        clock: Callable[[], float] = time.monotonic,
        conversion: Conversion | None = None,
    ) -> None:
        self._options = options
        self._conversion = conversion
        self._starting = options.for_stream()
        self._positions = positions or Positions(options)
        self._clock = clock
        self._initial: dict[TopicPartition, int] | None = None
        self._initial_ids: TopicIds = {}
        self._initial_is_logged = _is_reproducible(self._starting)
        self._latest: dict[TopicPartition, int] | None = None
        self._latest_ids: TopicIds = {}
        self._target: dict[TopicPartition, int] | None = None
        self._last_trigger_s: float | None = None
        self._planned: tuple[JsonOffsets, JsonOffsets, list[InputPartition]] | None = None

    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        """Asked more than once for the first batch, and always answered the same."""
        if self._initial is None:
            self._initial = self._positions.resolve(self._starting)
            self._initial_ids = self._positions.topic_ids
            if self._target is not None and not _is_reproducible(self._starting):
                # The end was taken a moment ago, before the beginning.
                self._target |= {place: max(at, self._target.get(place, at)) for place, at in self._initial.items()}
        return to_json(self._initial, self._initial_ids)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._positions.latest({})
        self._latest_ids = self._positions.topic_ids

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What Spark hands back to `latestOffset`, unless the trigger asks for everything."""
        if self._options.records_per_trigger_max is not None:
            return ReadMaxRows(self._options.records_per_trigger_max)
        if self._options.records_per_trigger_min is not None:
            return ReadMinRows(self._options.records_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        known, ids = from_json(start), topic_ids_in(start)
        self._look(known, ids)
        assert self._latest is not None
        if not self._initial_is_logged and known == self._initial:
            self._initial_is_logged = True
            return start
        known = self._of_the_same_topics(known, ids, self._latest_ids)
        end: OffsetsOf | None = self._latest
        if not isinstance(limit, ReadAllAvailable):
            end = self._admitted(known, self._latest)
        return start if end is None else self._end(start, known, to_json(end, self._latest_ids))

    def _end(self, start: JsonOffsets, begin: OffsetsOf, end: JsonOffsets) -> JsonOffsets:
        """Of a batch that begins there. If nothing is new, it is the start to the letter."""
        if end == without_begin(start):
            return start
        is_first = self._initial is not None and from_json(start) == self._initial
        return with_begin(end, begin) if is_first and _is_found(self._starting) else end

    def _look(self, known: OffsetsOf, ids: TopicIds) -> None:
        if self._target is None or other_topics(ids, self._latest_ids) or went_back(known, self._target):
            self._latest = self._positions.latest(known, ids)
            self._latest_ids = self._positions.topic_ids
            if self._target is not None:  # it was another topic's, or a broker was behind
                self._target = self._latest
        else:
            self._latest = self._target

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest, self._latest_ids)

    def _of_the_same_topics(self, known: OffsetsOf, ids: TopicIds, now: TopicIds) -> dict[TopicPartition, int]:
        """Without those of topics that were created anew: all of these is new, if it may be read at all."""
        others = other_topics(ids, now)
        for topic in others:
            self._report(recreated(topic, ids[topic], now[topic]), RECREATED_ADVICE)
        return {place: at for place, at in known.items() if place[0] not in others}

    def _admitted(self, known: OffsetsOf, latest: OffsetsOf) -> OffsetsOf | None:
        """How far the next batch goes; None if it is to wait."""
        new = self._positions.earliest_of_existing(latest.keys() - known.keys())
        begin = {**known, **new}
        # With a target there is no more to wait for.
        least = self._options.records_per_trigger_min if self._target is None else None
        if least is not None and self._is_too_little(behind(begin, latest), least):
            return None
        most = self._options.records_per_trigger_max
        return latest if most is None else limited(most, begin, latest)

    def _is_too_little(self, waiting: int, least: int) -> bool:
        """The first batch and one that is overdue start with whatever there is."""
        now, last = self._clock(), self._last_trigger_s
        overdue = last is None or (now - last) * 1000 >= self._options.trigger_delay_ms_max
        if waiting < least and not overdue:
            return True
        self._last_trigger_s = now
        return False

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        """Spark may ask several times about one batch."""
        if self._planned is None or self._planned[:2] != (start, end):
            self._planned = (start, end, self._plan(start, end))
        return self._planned[2]

    def _plan(self, start: JsonOffsets, logged_end: JsonOffsets) -> list[InputPartition]:
        begin, end = from_json(start), from_json(logged_end)
        begin_ids, end_ids = topic_ids_in(start), topic_ids_in(logged_end)
        if self._planned is None and begin == self._initial:
            begin = self._as_logged(begin, end, logged_end)
        # A batch that is replayed may be of a topic that is gone by now: nothing of it can be read.
        gone = other_topics(end_ids, self._positions.topic_ids)
        end = self._of_the_same_topics(end, end_ids, self._positions.topic_ids)
        begin = {place: at for place, at in begin.items() if place[0] not in gone}
        begin = self._of_the_same_topics(begin, _without(begin_ids, gone), end_ids)
        new = self._positions.earliest_of_existing(end.keys() - begin.keys())
        if problem := loss(begin, end, new):
            self._report(problem)
        return _tasks(self._options, {**begin, **new}, end, {**self._positions.topic_ids, **end_ids})

    def _as_logged(self, begin: OffsetsOf, end: OffsetsOf, logged_end: JsonOffsets) -> dict[TopicPartition, int]:
        """The first batch may be a replay, planned by a driver that died, and the beginning found out anew just now.

        Then it may lie behind the end, which is where the stream really began; and partitions may have appeared since.
        """
        known = {place: at for place, at in begin.items() if place in end}
        if _is_found(self._starting):
            return {**known, **begin_in(logged_end, known)}
        if _is_reproducible(self._starting):
            return known
        return {place: min(at, end[place]) for place, at in known.items()}

    def _report(self, problem: str, advice: str = FAIL_ADVICE) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{problem}. {advice}")
        log.warning("%s; the query goes on without, since failOnDataLoss is false", problem)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._conversion, partition)

    def stop(self) -> None:
        disconnect(self._options.settings)


def _without(topic_ids: TopicIds, topics: Collection[str]) -> TopicIds:
    return {topic: topic_id for topic, topic_id in topic_ids.items() if topic not in topics}


def _is_reproducible(position: Position) -> bool:
    """Whether the same question gets the same answer later (as long as nothing is deleted)."""
    if isinstance(position, Everywhere):
        return position.at != LATEST
    if isinstance(position, Offsets):
        return LATEST not in position.of.values()
    return isinstance(position, Timestamps) and not position.or_latest


def _is_found(position: Position) -> bool:
    """Whether the same question gets the same answer unless something is deleted: then a later one."""
    if isinstance(position, Offsets):
        return _is_reproducible(position) and EARLIEST in position.of.values()
    return _is_reproducible(position)


def _tasks(options: SourceOptions, start: OffsetsOf, end: OffsetsOf, topic_ids: TopicIds) -> list[InputPartition]:
    ranges = split(ranges_of(start, end, topic_ids), options.partitions_min, options.records_per_partition_max)
    return [OffsetRanges(each) for each in gathered(ranges, options.records_per_partition_min)]


def _read(options: SourceOptions, conversion: Conversion | None, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """In a task. A query without any partition has one task nonetheless, with nothing to do."""
    if partition.value is None:
        return
    records = chain.from_iterable(_rows(options, work) for work in partition.value)
    try:
        yield from records if conversion is None else conversion.convert(records)
    except Exception:
        disconnect(options.settings)
        raise


def _rows(options: SourceOptions, work: Range) -> Iterator[pa.RecordBatch]:
    position, end = work.start, work.end
    while position < end:
        try:
            for batches in _fetched(options, work, position, end):
                yield from arrow_batches(
                    batches,
                    position,
                    end,
                    topic=work.topic,
                    partition=work.partition,
                    include_headers=options.include_headers,
                )
                position = batches[-1][0].last_offset + 1
            return
        except DataLost as problem:
            _lost(options, problem)
            position, end = max(position, problem.first), min(end, problem.end)
        except (TopicMissingError, NothingDelivered) as problem:
            _lost(options, problem)
            return


def _fetched(
    options: SourceOptions, work: Range, start: int, end: int
) -> Iterator[list[tuple[BatchHeader, memoryview]]]:
    return read_range(
        connected(options.settings, options.read_patience_s),
        work.topic,
        work.partition,
        start,
        end,
        read_committed=options.read_committed,
        fetch_bytes=options.fetch_bytes,
        patience_s=options.read_patience_s,
        topic_id=work.topic_id,
    )


def _lost(options: SourceOptions, problem: OnceflowError) -> None:
    if options.fail_on_data_loss:
        advice = RECREATED_ADVICE if isinstance(problem, TopicRecreated) else FAIL_ADVICE
        raise DataLossError(f"{problem}. {advice}") from None
    log.warning("%s; the query goes on without, since failOnDataLoss is false", problem)

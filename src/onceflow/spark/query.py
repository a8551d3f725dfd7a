"""What Spark knows about the micro-batch that is running, and tells nobody: its query, and where its sources stand.

`foreachBatch` hands over a DataFrame and a number. The rest is read from Spark's own objects through the gateway: the
id of the query from the local properties of its thread, the start and end of every source from the plan that is being
executed and from the offset log. Both Spark's Kafka source and ours write their offsets as {"topic": {"0": 42}};
sources whose offsets look different are not Kafka's and have no part in the bookkeeping of offsets.

What identifies a micro-batch is its entry in Spark's offset log, whatever the sources are. The entry is written before
the micro-batch runs and kept when it runs again; a micro-batch that is planned anew gets another one, with another
time in it, even if number and offsets are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Final

from onceflow.client.cluster import TopicPartition
from onceflow.errors import ConfigError
from onceflow.spark.planning import offsets_in, topic_ids_in

__all__ = ["MicroBatch", "SourceOffsets", "running_batch"]

QUERY_ID: Final = "sql.streaming.queryId"
SCAN: Final = "StreamingDataSourceV2ScanRelation"
OFFSETS_BY_NAME_FROM: Final = 2
"""The version of the offset log from which an entry holds the offsets by the name of their source."""
_INTERVAL: Final = re.compile(r"ProcessingTimeTrigger\((\d+)\)")


@dataclass(frozen=True, kw_only=True)
class SourceOffsets:
    """From where to where a micro-batch reads one Kafka source."""

    start: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's ids of the topics, as far as the source says them: our own does."""
    servers: frozenset[str] = frozenset()
    """The bootstrap addresses, as far as they are known. Of a source with nothing new they are not."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """A micro-batch: which one, of which query, from where to where."""

    query_id: str
    run_id: str
    """Another one each time the query is started."""
    batch_id: int
    entry: str
    """A digest of its entry in Spark's offset log: two micro-batches with the same one are the same."""
    sources: tuple[SourceOffsets, ...] = ()
    """All Kafka sources of the query, also those that have nothing new in this batch."""
    has_other_sources: bool = False
    """Whether it also reads from something that is not Kafka."""
    entry_of: Callable[[int], str | None] = field(default=lambda _: None, compare=False)
    """The same as `entry`, of another micro-batch of the checkpoint; None of one that it does not hold (any more)."""

    @cached_property
    def starts(self) -> Mapping[TopicPartition, int]:
        return _merged(each.start for each in self.sources)

    @cached_property
    def ends(self) -> Mapping[TopicPartition, int]:
        """A partition that is read twice stands where the slower reader stands."""
        return _merged(each.end for each in self.sources)

    @cached_property
    def topic_ids(self) -> Mapping[str, str]:
        return {topic: each for source in self.sources for topic, each in source.topic_ids.items()}

    @cached_property
    def ambiguous_starts(self) -> frozenset[str]:
        """Topics for which one offset per partition says too little about where this batch begins: two sources read
        them, from different offsets or from different clusters."""
        return _ambiguous(self.sources, [each.start for each in self.sources])

    @cached_property
    def ambiguous_ends(self) -> frozenset[str]:
        """The same of where it ends."""
        return _ambiguous(self.sources, [each.end for each in self.sources])

    def only(self, is_wanted: Callable[[SourceOffsets, TopicPartition], bool]) -> MicroBatch:
        """The same micro-batch with some partitions of its Kafka sources."""

        def wanted(source: SourceOffsets, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
            return {where: at for where, at in offsets.items() if is_wanted(source, where)}

        sources = (replace(each, start=wanted(each, each.start), end=wanted(each, each.end)) for each in self.sources)
        return replace(self, sources=tuple(sources))


def running_batch(
    frame: Any, batch_id: int, sink: str = "KafkaSink", write: str = "onceflow.spark.write"
) -> MicroBatch:
    """The micro-batch in which this code runs. Raises `ConfigError` outside of `foreachBatch`."""
    spark = frame.sparkSession
    query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
    if query_id is None:
        raise ConfigError(
            f"{sink} is for a streaming query: df.writeStream.foreachBatch(sink). For a DataFrame that does not "
            f"stream use {write}(df, ...)"
        )
    execution = _execution(spark, query_id)
    assert execution is not None, "a query that runs this code is active"
    offset_log = execution.offsetLog()
    entry = offset_log.get(batch_id)
    assert entry.isDefined(), "Spark logs the offsets of a micro-batch before it runs it"
    logged = list(_logged(entry.get()))
    read = list(_read_by(execution.getLatestExecutionContext().executionPlan().logical()))
    return MicroBatch(
        query_id=query_id,
        run_id=str(execution.runId().toString()),
        batch_id=batch_id,
        entry=_digest(entry.get(), logged),
        sources=tuple(_sources(read, logged)),
        has_other_sources=any(text is not None and not _is_kafka(text) for text in logged),
        entry_of=lambda number: _digest_in(offset_log, number),
    )


def query_is_active(spark: Any, query_id: str) -> bool:
    """Whether a query with this id is running in this process."""
    execution = _execution(spark, query_id)
    return execution is not None and bool(execution.isActive())


def session_of(spark: Any, query_id: str) -> Any:
    """Spark's own object for the session in which a query was started; None if it is not running."""
    execution = _execution(spark, query_id)
    return None if execution is None else execution.sparkSession()


def trigger_interval_s(spark: Any, query_id: str) -> float | None:
    """From the start of one micro-batch to the next; None if the query has no such interval, or is not running."""
    execution = _execution(spark, query_id)
    found = None if execution is None else _INTERVAL.fullmatch(str(execution.trigger().toString()))
    return None if found is None else int(found[1]) / 1000


def _execution(spark: Any, query_id: str) -> Any:
    """Spark's own object behind a query, of whatever session: in `foreachBatch` the session is a copy that knows of
    no queries."""
    running = spark._jsparkSession.sharedState().activeStreamingQueries()
    return running.get(spark._jvm.java.util.UUID.fromString(query_id))


def _read_by(plan: Any) -> Iterator[tuple[str | None, str, frozenset[str]]]:
    """Start, end and bootstrap addresses of each source that has something new, from the plan of a micro-batch."""
    for leaf in _each(plan.collectLeaves()):
        if leaf.getClass().getSimpleName() != SCAN or not leaf.endOffset().isDefined():
            continue
        address = leaf.relation().options().get("kafka.bootstrap.servers") or ""
        servers = frozenset(each.strip() for each in address.split(",") if each.strip())
        yield _json(leaf.startOffset()), str(leaf.endOffset().get().json()), servers


def _sources(
    read: Iterable[tuple[str | None, str, frozenset[str]]], logged: Iterable[str | None]
) -> Iterator[SourceOffsets]:
    """A source that is logged and not read has nothing new: it starts where it ends."""
    idle = [text for text in logged if text is not None]
    for start, end, servers in read:
        if end in idle:  # a DataFrame that is used twice is read twice, and logged twice or once
            idle.remove(end)
        if _is_kafka(end):
            yield SourceOffsets(
                start=offsets_in(start), end=offsets_in(end), topic_ids=topic_ids_in(json.loads(end)), servers=servers
            )
    for text in idle:
        if _is_kafka(text):
            yield SourceOffsets(start=offsets_in(text), end=offsets_in(text), topic_ids=topic_ids_in(json.loads(text)))


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _json(option: Any) -> str | None:
    """Of an `Option[Offset]`."""
    return str(option.get().json()) if option.isDefined() else None


def _logged(entry: Any) -> Iterator[str | None]:
    """The offsets of all sources in an entry of the offset log."""
    if entry.version() < OFFSETS_BY_NAME_FROM:
        yield from (_json(each) for each in _each(entry.offsets()))
        return
    by_name = entry.offsetsMap()
    for name in sorted(str(name) for name in _each(by_name.keys().toSeq())):
        yield _json(by_name.apply(name))


def _digest_in(offset_log: Any, batch_id: int) -> str | None:
    entry = offset_log.get(batch_id)
    return _digest(entry.get(), list(_logged(entry.get()))) if entry.isDefined() else None


def _digest(entry: Any, logged: Iterable[str | None]) -> str:
    """Of what Spark has decided about a micro-batch: which input, at what time, with which watermark. Not of the
    settings that it also logs: a newer Spark may write them differently."""
    metadata = entry.metadataOpt()
    times = [int(at) for at in _times(metadata.get())] if metadata.isDefined() else []
    offsets = [None if text is None else _canonical(text) for text in logged]
    return hashlib.sha256(json.dumps([times, offsets], sort_keys=True).encode()).hexdigest()[:32]


def _times(metadata: Any) -> tuple[Any, Any]:
    return metadata.batchTimestampMs(), metadata.batchWatermarkMs()


def _canonical(text: str) -> Any:
    """Sources need not write the same offset in the same way each time."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_kafka(text: str) -> bool:
    return bool(offsets_in(text)) or text.strip() == "{}"


def _merged(several: Iterable[Mapping[TopicPartition, int]]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for each in several:
        for where, at in each.items():
            found[where] = min(at, found.get(where, at))
    return found


def _ambiguous(sources: Sequence[SourceOffsets], offsets: Sequence[Mapping[TopicPartition, int]]) -> frozenset[str]:
    found: set[str] = set()
    for (one, one_at), (other, other_at) in combinations(zip(sources, offsets, strict=True), 2):
        for where in one_at.keys() & other_at.keys():
            if one_at[where] != other_at[where] or _are_apart(one, other, where[0]):
                found.add(where[0])
    return frozenset(found)


def _are_apart(one: SourceOffsets, other: SourceOffsets, topic: str) -> bool:
    """Whether the topics under this name are two. An address proves nothing: one cluster has many."""
    ids = one.topic_ids.get(topic), other.topic_ids.get(topic)
    if None not in ids:
        return ids[0] != ids[1]
    return bool(one.servers) and bool(other.servers) and one.servers != other.servers

"""How far an application has come: one record per app id, in a compacted topic, written in the same transaction as
the data.

Whether a micro-batch was committed is decided by this record (`resuming.py`). Spark's own commit log is written after
the sink has returned, so a driver that dies in between runs a batch again that is already in Kafka; the record tells.

- **Fence first, then read.** Only after `SharedTransaction.fence` can no earlier driver commit any more, so what is
  read then stays true.
- Reading is exact in the presence of other applications. A read_committed reader stops at the last stable offset: at
  the oldest transaction that is open on the partition, whoever's it is. Below, the broker says what was aborted;
  markers would not do, since compaction drops commit markers after a while, and the next abort marker would seem to
  be about the record. From there on everything is read, and each record is judged by the marker behind it: there
  compaction has not been. What has no marker is open, which is nothing of ours after the fence.
- Always partition 0: an app's record must not move when somebody adds partitions.

The format, version 1. The key is the app id, in UTF-8; the value is JSON; the record's timestamp is `at_ms`. Another
version is refused. Of version 1, who reads it passes over what it does not know, and does without what is not there:

    version     1
    query       Spark's id of the query; "once:NAME" of `write(once=NAME)`
    batch       the number of the micro-batch
    entry       a digest of its entry in Spark's offset log: what identifies it (`query.py`)
    run         Spark's id of the run in which it was committed
    offsets     where the application's Kafka sources stand: {"topic": {"0": 42}}
    topic_ids   Kafka's ids of these topics and of those in `left`, as far as they are known: {"topic": "id"}
    ambiguous   topics that several sources read from different offsets or clusters; `offsets` has the lowest
    left        where it stood in topics that it does not read any more, those that were left last at the end, at most
                100 of them, and 2,000 partitions: [["topic", {"0": 42}]]
    at_ms       when this was put down: before the tasks write, since in V2 it is sent while they do
    started_ms  when the sink was called for the micro-batch. (This and what follows is for those who watch,
                `monitor/micro_batches.py`; nothing is decided by it.)
    previous    the micro-batch before, if the same sink wrote it; by then everything about it is known:
                {"batch": its number, "started_ms", "committed_ms", "rows",
                 "transaction_ms": what the transaction took: fence, progress, verify, record, commit}

When the batch itself was committed the marker of the transaction says: the timestamp of the next control batch of the
same producer id. A tombstone (a null value) is an application that somebody wants forgotten.
"""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Refused, TopicPartition, patiently, refuse
from onceflow.client.fetching import fetch, read_range
from onceflow.client.offsets import EARLIEST, LATEST, NotYet, committed_offsets, list_offsets, persistently
from onceflow.client.problems import ClientError
from onceflow.client.shared_transaction import SharedTransaction
from onceflow.digits import INT64_MAX
from onceflow.errors import ErrorCode, OnceflowError
from onceflow.monitor.micro_batches import PROGRESS_PARTITION, PROGRESS_TOPIC
from onceflow.spark.planning import from_json, to_json
from onceflow.spark.query import MicroBatch
from onceflow.wire.batch import BatchHeader
from onceflow.wire.compression import Codec
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from onceflow.wire.messages.metadata import MetadataRequest
from onceflow.wire.records import EndTxnMarker, Record, build_batch, read_records

__all__ = [
    "PROGRESS_TOPIC",
    "Finished",
    "Progress",
    "ProgressError",
    "committed_start",
    "ensure_topic",
    "read_progress",
]

PARTITION: Final = PROGRESS_PARTITION
TOPIC_RESOURCE: Final = 2
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),  # the active segment is never compacted, and every start reads it
    "segment.ms": str(24 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
FETCH_BYTES: Final = 4 * 1024 * 1024
VERSION: Final = 1
TOPICS_LEFT_MAX: Final = 100
PARTITIONS_LEFT_MAX: Final = 2_000
SHOWN_MAX: Final = 60
"""Characters, of what is wrong in a record."""


class ProgressError(OnceflowError):
    """The progress cannot be kept or not be read; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The final figures of a micro-batch, for those who watch."""

    batch_id: int
    started_ms: int
    committed_ms: int
    rows: int
    transaction_ms: float

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch_id,
            "started_ms": self.started_ms,
            "committed_ms": self.committed_ms,
            "rows": self.rows,
            "transaction_ms": round(self.transaction_ms, 1),
        }


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The last micro-batch of an application that was committed."""

    app_id: str
    query_id: str
    """Spark's id of the query. It lives in the checkpoint: another one means another checkpoint."""
    batch_id: int
    entry: str | None = None
    """What identifies the micro-batch: a digest of its entry in Spark's offset log."""
    run_id: str | None = None
    """Spark's id of the run that committed it."""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the application's Kafka sources stand."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    ambiguous: frozenset[str] = frozenset()
    """Topics that several sources read, from different offsets or clusters."""
    left: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where it stood in topics that it does not read any more, those that were left last at the end."""
    at_ms: int = 0
    started_ms: int | None = field(default=None, compare=False)
    previous: Finished | None = field(default=None, compare=False)
    """For those who watch; they are written, and never read back."""

    @classmethod
    def after(cls, batch: MicroBatch, before: Progress | None, *, app_id: str, **watched: Any) -> Progress:
        """The progress that a micro-batch is to leave behind."""
        left = {} if before is None else _left(before, batch.ends)
        ids_of_left = (
            {} if before is None else {topic: before.topic_ids[topic] for topic, _ in left if topic in before.topic_ids}
        )
        return cls(
            app_id=app_id,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            entry=batch.entry,
            run_id=batch.run_id,
            offsets=batch.ends,
            topic_ids={**ids_of_left, **batch.topic_ids},
            ambiguous=batch.ambiguous_ends,
            left=left,
            at_ms=time.time_ns() // 1_000_000,
            **watched,
        )

    @property
    def everything(self) -> dict[TopicPartition, int]:
        """All offsets that are known: also of topics that are not read any more."""
        return {**self.left, **self.offsets}

    def details(self) -> dict[str, Any]:
        """What identifies the micro-batch and tells more about its sources than offsets do, for JSON."""
        left: dict[str, dict[str, int]] = {}
        for (topic, partition), at in self.left.items():  # in their order
            left.setdefault(topic, {})[str(partition)] = at
        found = {
            "entry": self.entry,
            "run": self.run_id,
            "topic_ids": dict(sorted(self.topic_ids.items())),
            "ambiguous": sorted(self.ambiguous),
            "left": list(left.items()),
        }
        return {name: value for name, value in found.items() if value}

    @staticmethod
    def from_details(value: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for the constructor."""
        return {
            "entry": _text_or_none(value.get("entry")),
            "run_id": _text_or_none(value.get("run")),
            "topic_ids": {topic: _text(each) for topic, each in value.get("topic_ids", {}).items()},
            "ambiguous": frozenset(map(_text, value.get("ambiguous", ()))),
            "left": _offsets(dict(value.get("left", ()))),
        }

    def to_batch(self, *, producer_id: int, epoch: int, sequence: int) -> bytes:
        """The record as a batch of its own."""
        value: dict[str, Any] = {
            "version": VERSION,
            "query": self.query_id,
            "batch": self.batch_id,
            "offsets": to_json(self.offsets),
            **self.details(),
            "at_ms": self.at_ms,
        }
        if self.started_ms is not None:
            value["started_ms"] = self.started_ms
        if self.previous is not None:
            value["previous"] = self.previous.to_json()
        record = Record(0, self.at_ms, self.app_id.encode(), json.dumps(value, separators=(",", ":")).encode())
        return build_batch(
            [record],
            base_offset=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )

    @classmethod
    def of(cls, record: Record) -> Progress | None:
        """None for a tombstone: somebody wants the application to be forgotten."""
        if record.value is None:
            return None
        try:
            value = json.loads(record.value)
            if _number(value["version"]) != VERSION:
                raise ProgressError(
                    f"the record at offset {record.offset} of {PROGRESS_TOPIC} has the version {value['version']!r} "
                    f"of its format, and this program knows version {VERSION}: another version of Onceflow has "
                    "written under this app id. Go on with that one"
                )
            return cls(
                app_id=(record.key or b"").decode(),
                query_id=_text(value["query"]),
                batch_id=_number(value["batch"]),
                offsets=_offsets(value["offsets"]),
                at_ms=_number(value.get("at_ms", 0)),
                **cls.from_details(value),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ProgressError(
                f"the record at offset {record.offset} of {PROGRESS_TOPIC} is not a progress record ({problem}): "
                "whatever wrote it is not this program. Nothing was written, since what was committed is not known; "
                "delete the record (a null value under its key) if you know that nothing depends on it"
            ) from None


# What nearly is a number or a text is refused: a micro-batch would be skipped, or written again, by what somebody else
# may have meant by it.


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} is not a text")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise TypeError(f"{_shown(value)} is not a number from 0 to {INT64_MAX}")
    return value


def _offsets(value: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {where: _number(offset) for where, offset in from_json(value).items()}


def _shown(value: Any) -> str:
    return ascii(value)[:SHOWN_MAX]


def _left(before: Progress, now: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Who reads a topic again that it has left is to begin where it stood. But names of topics can come and go for
    ever, every day another one: the oldest are forgotten."""
    left = {where: at for where, at in before.everything.items() if where not in now}
    partitions = Counter(topic for topic, _ in left)  # in their order
    newest_first = accumulate(partitions[topic] for topic in reversed(partitions))
    count = sum(total <= PARTITIONS_LEFT_MAX for total in newest_first)
    kept = set(list(partitions)[-min(count, TOPICS_LEFT_MAX) :]) if count else set()
    return {where: at for where, at in left.items() if where[0] in kept}


def ensure_topic(cluster: Cluster, topic: str = PROGRESS_TOPIC) -> None:
    """Create the topic if it is not there. Raises `OnceflowError` with what to do if that is not allowed."""
    try:
        cluster.leaders([topic])
        _check_compaction(cluster, topic)
        return
    except TopicMissingError:
        pass
    settings = [CreatableTopicConfig(name=name, value=value) for name, value in TOPIC_SETTINGS.items()]
    wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=-1, configs=settings)

    def create() -> None:
        controller = cluster.any_broker().ask(MetadataRequest(topics=[])).controller_id
        broker = cluster.node(controller) if controller >= 0 else cluster.any_broker()
        [answer] = broker.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)).topics
        if answer.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            refuse(answer.error_code, f"creating topic {topic!r}", answer.error_message)

    try:
        patiently(create, cluster.timeout_s)
    except Refused as refusal:
        raise ProgressError(
            f"{str(refusal).rstrip('.')}. Progress is kept in this topic; have it created with 1 partition and "
            f"{TOPIC_SETTINGS}, or give the principal CREATE on it"
        ) from None
    _wait_for_leader(cluster, topic)


def _check_compaction(cluster: Cluster, topic: str) -> None:
    """A topic that forgets by time would one day forget that a batch was committed. Who cannot look must trust."""
    name = "cleanup.policy"
    resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[name])
    try:
        results = cluster.any_broker().ask(DescribeConfigsRequest(resources=[resource])).results
    except ClientError:
        return
    for result in results:
        for setting in result.configs:
            if setting.name == name and setting.value != "compact":
                raise ProgressError(
                    f"topic {topic!r} has {name}={setting.value}, and progress must never expire: set it to compact"
                )


def _wait_for_leader(cluster: Cluster, topic: str) -> None:
    """A topic that was created just now is not known to every broker at once."""
    deadline = time.monotonic() + 30
    while True:
        try:
            if cluster.leaders([topic]).get((topic, PARTITION)) is not None:
                return
        except (TopicMissingError, Refused):
            pass
        if time.monotonic() > deadline:
            raise ProgressError(f"topic {topic!r} was created and has no leader after 30 s")
        time.sleep(0.05)


def read_progress(cluster: Cluster, app_id: str, topic: str = PROGRESS_TOPIC) -> Progress | None:
    """What the application committed last. Call it after the fence."""
    try:
        first, stable = _offset(cluster, topic, EARLIEST), _offset(cluster, topic, LATEST, read_committed=True)
        end = _offset(cluster, topic, LATEST)  # in this order: what is below `stable` is decided below `end`
    except TopicMissingError:
        return None
    found = _Judge(app_id.encode())
    for batches in read_range(cluster, topic, PARTITION, first, stable):
        for header, batch in batches:
            found.see_committed(header, batch)
    _judge_rest(cluster, topic, stable, end, found)
    return None if found.last is None else Progress.of(found.last)


def _offset(cluster: Cluster, topic: str, which: int, *, read_committed: bool = False) -> int:
    return list_offsets(cluster, {(topic, PARTITION): which}, read_committed=read_committed)[topic, PARTITION]


def _judge_rest(cluster: Cluster, topic: str, start: int, end: int, found: _Judge) -> None:
    at = start
    while at < end:
        for header, batch in persistently(functools.partial(_batches_at, cluster, topic, at)):
            found.see(header, batch)
            at = header.last_offset + 1


def _batches_at(cluster: Cluster, topic: str, at: int) -> list[tuple[BatchHeader, memoryview]]:
    leader = cluster.leaders([topic])[topic, PARTITION]
    if leader is None:
        raise Refused(f"reading {topic!r}", ErrorCode.LEADER_NOT_AVAILABLE)
    fetched = fetch(
        cluster, topic, PARTITION, at, leader=leader, read_committed=False, max_bytes=FETCH_BYTES, wait_ms=500
    )
    if not fetched.batches:
        raise NotYet(f"topic {topic!r} gives nothing at offset {at}, where something was written")
    return fetched.batches


class _Judge:
    """The newest record of a key that was committed."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._open: dict[int, Record] = {}  # by producer: written, and no marker seen yet
        self.last: Record | None = None

    def see_committed(self, header: BatchHeader, batch: memoryview) -> None:
        for record in self._own(header, batch):
            self._decide(record)

    def see(self, header: BatchHeader, batch: memoryview) -> None:
        """Of everything that was written, in its order, with the markers."""
        if header.is_control:
            waiting = self._open.pop(header.producer_id, None)
            if waiting is not None and any(EndTxnMarker.read(each).commit for each in read_records(batch)):
                self._decide(waiting)
            return
        for record in self._own(header, batch):
            if header.is_transactional:
                self._open[header.producer_id] = record
            else:
                self._decide(record)

    def _own(self, header: BatchHeader, batch: memoryview) -> Iterator[Record]:
        if header.compression == Codec.NONE and self._key not in bytes(batch):
            return  # somebody else's, which is what most are: a search is a hundred times cheaper than reading
        for record in read_records(batch):
            if record.key == self._key:
                yield record

    def _decide(self, record: Record) -> None:
        if self.last is None or record.offset > self.last.offset:
            self.last = record


def committed_start(
    cluster: Cluster, app_id: str, *, timeout_ms: int = 60_000
) -> tuple[Mapping[TopicPartition, int], Mapping[str, str]]:
    """Where the application's transactions left off: from its progress record, else from its consumer group; and the
    ids of the topics that these offsets are of, as far as they are known.

    Fences the application first: a driver that is still running is stopped, and what a dead one left open is aborted.
    """
    SharedTransaction(cluster, app_id, timeout_ms=timeout_ms).fence()
    progress = read_progress(cluster, app_id)
    if progress is not None and progress.everything:
        return progress.everything, progress.topic_ids
    return committed_offsets(cluster, app_id), {}

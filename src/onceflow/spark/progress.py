"""How far an application has come: one record per app id, in a compacted topic, written in the same transaction as
the data.

Whether a micro-batch was committed is decided by this record and by nothing else. Spark's own commit log is written
after the sink has returned, so a driver that dies in between runs a batch again that is already in Kafka; the record
tells.

- **Fence first, then read.** Only after `SharedTransaction.fence` can no earlier driver commit any more, so what is
  read then stays true.
- Reading is exact in the presence of other applications: a read_committed reader would stop at the oldest transaction
  that is open on the partition, whoever's it is. So everything is read, and our own records are judged by the markers
  behind them: an abort marker of the same producer takes a record back. (After the fence none of ours is open.
  Compaction drops aborted records and, much later, commit markers; never a committed record without a newer one of
  its key.)
- Always partition 0: an app's record must not move when somebody adds partitions.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Refused, TopicPartition, patiently, refuse
from onceflow.client.fetching import Fetched, fetch
from onceflow.client.offsets import committed_offsets, list_offsets, persistently
from onceflow.client.shared_transaction import SharedTransaction
from onceflow.errors import ErrorCode, OnceflowError
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.metadata import MetadataRequest
from onceflow.wire.records import EndTxnMarker, Record, build_batch, read_records

__all__ = ["PROGRESS_TOPIC", "Progress", "committed_start", "ensure_topic", "read_progress"]

PROGRESS_TOPIC: Final = "_onceflow_progress"
PARTITION: Final = 0
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),  # the active segment is never compacted, and every start reads it
    "segment.ms": str(24 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
FETCH_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The last micro-batch of an application that was committed."""

    app_id: str
    query_id: str
    """Spark's id of the query. It lives in the checkpoint: another one means another checkpoint."""
    batch_id: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the application's Kafka sources stand."""
    at_ms: int = 0

    def to_batch(self, *, producer_id: int, epoch: int, sequence: int) -> bytes:
        """The record as a batch of its own."""
        value: dict[str, Any] = {
            "version": 1,
            "query": self.query_id,
            "batch": self.batch_id,
            "offsets": to_json(self.offsets),
            "at_ms": self.at_ms,
        }
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
            return cls(
                app_id=(record.key or b"").decode(),
                query_id=str(value["query"]),
                batch_id=int(value["batch"]),
                offsets=from_json(value["offsets"]),
                at_ms=int(value.get("at_ms", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise OnceflowError(
                f"the record at offset {record.offset} of {PROGRESS_TOPIC} is not a progress record ({problem}): "
                "whatever wrote it is "
                "not this program; delete the record (a null value under its key) if you know that nothing "
                "depends on it"
            ) from None


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark's Kafka source writes offsets: topic, partition, offset."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(value: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {(topic, int(number)): int(at) for topic, each in value.items() for number, at in each.items()}


def ensure_topic(cluster: Cluster, topic: str = PROGRESS_TOPIC) -> None:
    """Create the topic if it is not there. Raises `OnceflowError` with what to do if that is not allowed."""
    try:
        cluster.leaders([topic])
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
        raise OnceflowError(
            f"{refusal}. Progress is kept in this topic; have it created with 1 partition and {TOPIC_SETTINGS}, or "
            "allow it"
        ) from None
    _wait_for_leader(cluster, topic)


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
            raise OnceflowError(f"topic {topic!r} was created and has no leader after 30 s")
        time.sleep(0.05)


def read_progress(cluster: Cluster, app_id: str, topic: str = PROGRESS_TOPIC) -> Progress | None:
    """What the application committed last. Call it after the fence."""
    try:
        first = list_offsets(cluster, {(topic, PARTITION): -2}, read_committed=False)[topic, PARTITION]
        end = list_offsets(cluster, {(topic, PARTITION): -1}, read_committed=False)[topic, PARTITION]
    except TopicMissingError:
        return None
    found = _Judge(app_id.encode())
    at = first
    while at < end:
        fetched = persistently(functools.partial(_fetch, cluster, topic, at))
        for header, batch in fetched.batches:
            found.see(header, batch)
            at = header.last_offset + 1
        if not fetched.batches and fetched.high_watermark < end:
            raise OnceflowError(f"topic {topic!r} ended at {fetched.high_watermark} while it was read up to {end}")
    record = found.last
    return None if record is None else Progress.of(record)


def _fetch(cluster: Cluster, topic: str, at: int) -> Fetched:
    leader = cluster.leaders([topic])[topic, PARTITION]
    if leader is None:
        raise Refused(f"reading {topic!r}", ErrorCode.LEADER_NOT_AVAILABLE)
    return fetch(cluster, topic, PARTITION, at, leader=leader, read_committed=False, max_bytes=FETCH_BYTES, wait_ms=500)


class _Judge:
    """The newest record of a key that was not aborted."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._decided: Record | None = None
        self._open: dict[int, Record] = {}  # by producer: written, and no marker seen yet

    def see(self, header: Any, batch: memoryview) -> None:
        if header.is_control:
            waiting = self._open.pop(header.producer_id, None)
            if waiting is not None and any(EndTxnMarker.read(each).commit for each in read_records(batch)):
                self._decide(waiting)
            return
        for record in read_records(batch):
            if record.key != self._key:
                continue
            if not header.is_transactional:
                self._decide(record)
                continue
            before = self._open.get(header.producer_id)
            if before is not None:  # its marker was compacted away: only that of a committed transaction goes
                self._decide(before)
            self._open[header.producer_id] = record

    def _decide(self, record: Record) -> None:
        if self._decided is None or record.offset > self._decided.offset:
            self._decided = record

    @property
    def last(self) -> Record | None:
        for record in self._open.values():
            self._decide(record)
        self._open.clear()
        return self._decided


def committed_start(cluster: Cluster, app_id: str, *, timeout_ms: int = 60_000) -> dict[TopicPartition, int]:
    """Where the application's transactions left off: from its progress record, else from its consumer group.

    Fences the application first: a driver that is still running is stopped, and what a dead one left open is aborted.
    """
    SharedTransaction(cluster, app_id, timeout_ms=timeout_ms).fence()
    progress = read_progress(cluster, app_id)
    if progress is not None and progress.offsets:
        return dict(progress.offsets)
    return committed_offsets(cluster, app_id)

"""Record batches to the leaders of their partitions, until each is acknowledged or cannot be.

A batch is sent again, byte for byte, whenever its outcome is unknown: it carries a producer id, an epoch and a
sequence, so the broker stores it once. That holds because of one rule, which the caller keeps: **per partition one
batch is on its way at a time**, and the next one only after `send` has returned.

- Leaders are looked up once and again after anything that hints at a change. A topic or partition that was known and
  is missing is given a moment: the broker that was asked may be the last to hear of it.
- What the broker asks to repeat is repeated until the deadline. 19 (not enough replicas) is also what a broker answers
  when several writers begin a transaction at once (KIP-890): hence the jitter.
- What can never succeed raises `WriteRefused` at once, with the code.
- No request is waited for beyond the deadline.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Refused, TopicPartition, error_name
from onceflow.client.connection import NoAnswer, Unreachable
from onceflow.client.offsets import persistently
from onceflow.client.problems import ClientError
from onceflow.client.topic_limits import TopicLimits, topic_limits
from onceflow.errors import ErrorCode
from onceflow.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)

__all__ = ["DeliveryTimedOut", "Producing", "WriteRefused"]

ALL_REPLICAS: Final = -1
BACKOFF_S: Final = 0.005
BACKOFF_MAX_S: Final = 0.5
REQUEST_TIMEOUT_S: Final = 30.0
MISSING_PATIENCE_S: Final = 5.0

_LEADER_MOVED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)


class WriteRefused(ClientError):
    """The leader of a partition refused a batch for good.

    Nothing of it was stored, unless an earlier try at it was not answered.
    """

    def __init__(
        self, topic: str, partition: int, code: int, message: str | None = None, records: Sequence[int] = ()
    ) -> None:
        super().__init__(f"writing to partition {partition} of {topic!r} failed: {message or error_name(code)}")
        self.topic = topic
        self.partition = partition
        self.code = code
        self.records = tuple(records)
        """Which of the batch are meant, if the leader says so."""


class DeliveryTimedOut(ClientError):
    """A batch was not acknowledged in time: it may be stored or not."""


class Producing:
    """Sends batches, with what it knows of leaders. One thread at a time."""

    def __init__(
        self, cluster: Cluster, *, transactional_id: str | None, version_max: int, delivery_timeout_s: float
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._version_max = version_max
        self._delivery_timeout_s = delivery_timeout_s
        self._leaders: dict[str, dict[int, int | None]] = {}
        self._limits: dict[str, TopicLimits] = {}

    def partition_counts(self, topics: Sequence[str]) -> list[int]:
        """Of each topic. Raises `TopicMissingError`, and the reason if no broker says it in time."""
        if unknown := [topic for topic in topics if topic not in self._leaders]:
            persistently(lambda: self._look_up(*unknown), self._delivery_timeout_s)
        return [len(self._leaders[topic]) for topic in topics]

    def limits(self, topics: Sequence[str]) -> dict[str, TopicLimits]:
        """What topics take, as it was when they were first asked about."""
        if unknown := [topic for topic in topics if topic not in self._limits]:
            self._limits |= topic_limits(self._cluster, unknown)
        return {topic: self._limits[topic] for topic in topics}

    def send(self, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int]:
        """One sealed batch per partition; the offset that each got. Returns when all are acknowledged.

        Raises `WriteRefused`, `TopicMissingError` or `DeliveryTimedOut`; then any of these batches may be stored.
        """
        delivery = _Delivery(batches, self._delivery_timeout_s)
        waits = _backoff()
        while True:
            for leader, mine in self._by_leader(delivery).items():
                self._try(leader, mine, delivery)
            if not delivery.left:
                return delivery.offsets
            delivery.check()
            time.sleep(next(waits))

    def _try(self, leader: int, batches: Mapping[TopicPartition, bytes], delivery: _Delivery) -> None:
        left_s = delivery.seconds_left
        if left_s <= 0:
            return
        try:
            answers = self._ask(leader, batches, left_s)
        except (NoAnswer, Unreachable) as problem:
            delivery.problem = problem
            for topic, _ in batches:
                self._leaders.pop(topic, None)
            return
        for where, answer in answers.items():
            if answer.error_code == ErrorCode.NONE:
                delivery.done(where, answer.base_offset)
            else:
                delivery.problem = self._refused(where, answer)

    def _ask(
        self, leader: int, batches: Mapping[TopicPartition, bytes], left_s: float
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        by_topic: dict[str, list[PartitionProduceData]] = defaultdict(list)
        for (topic, partition), batch in batches.items():
            by_topic[topic].append(PartitionProduceData(index=partition, records=batch))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ALL_REPLICAS,
            timeout_ms=int(min(REQUEST_TIMEOUT_S, left_s) * 1000),
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in by_topic.items()],
        )
        answer = self._cluster.node(leader).ask(
            request, at_most=self._version_max, timeout_s=min(REQUEST_TIMEOUT_S + self._cluster.timeout_s, left_s)
        )
        return {(topic.name, each.index): each for topic in answer.responses for each in topic.partition_responses}

    def _refused(self, where: TopicPartition, answer: PartitionProduceResponse) -> WriteRefused:
        """The refusal, if it is worth another try."""
        topic, partition = where
        records = [each.batch_index for each in answer.record_errors]
        refusal = WriteRefused(topic, partition, answer.error_code, answer.error_message, records)
        if answer.error_code not in _RETRIABLE:
            raise refusal
        if answer.error_code in _LEADER_MOVED:
            self._leaders.pop(topic, None)
        return refusal

    def _by_leader(self, delivery: _Delivery) -> dict[int, dict[TopicPartition, bytes]]:
        """Without the partitions that have no leader just now."""
        found: dict[int, dict[TopicPartition, bytes]] = defaultdict(dict)
        for where, batch in delivery.left.items():
            try:
                leader = self._leader(*where)
            except (TopicMissingError, WriteRefused) as problem:
                delivery.missing(problem)
            except (NoAnswer, Unreachable, Refused) as problem:
                if isinstance(problem, Refused) and problem.code not in _RETRIABLE:
                    raise
                delivery.problem = problem
            else:
                if leader is not None:
                    found[leader][where] = batch
        return found

    def _leader(self, topic: str, partition: int) -> int | None:
        if topic not in self._leaders:
            self._look_up(topic)
        if partition not in self._leaders[topic]:
            del self._leaders[topic]
            raise WriteRefused(topic, partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        leader = self._leaders[topic][partition]
        if leader is None:
            del self._leaders[topic]
        return leader

    def _look_up(self, *topics: str) -> None:
        found: dict[str, dict[int, int | None]] = {topic: {} for topic in topics}
        for (topic, partition), leader in self._cluster.leaders(topics).items():
            found[topic][partition] = leader
        self._leaders |= found


class _Delivery:
    """What is left to do of one call of `send`, and until when."""

    def __init__(self, batches: Mapping[TopicPartition, bytes], timeout_s: float) -> None:
        self.left = dict(batches)
        self.offsets: dict[TopicPartition, int] = {}
        self.problem: Exception | str = "no leader"
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._missing_since: float | None = None

    @property
    def seconds_left(self) -> float:
        return self._began + self._timeout_s - time.monotonic()

    def done(self, where: TopicPartition, offset: int) -> None:
        if self.left.pop(where, None) is not None:
            self.offsets[where] = offset
            self._missing_since = None

    def missing(self, problem: ClientError) -> None:
        """Raises it if it is not news."""
        self.problem = problem
        self._missing_since = self._missing_since or time.monotonic()
        if time.monotonic() - self._missing_since >= min(MISSING_PATIENCE_S, self._timeout_s):
            raise problem

    def check(self) -> None:
        if self.seconds_left > 0:
            return
        topic, partition = next(iter(self.left))
        raise DeliveryTimedOut(
            f"writing to partition {partition} of {topic!r} was not acknowledged within {self._timeout_s:g} s: "
            f"{self.problem}"
        )


_RETRIABLE: Final = frozenset(code for code in ErrorCode if code.retriable)


def _backoff() -> Iterator[float]:
    wait = BACKOFF_S
    while True:
        yield wait * random.uniform(0.5, 1.5)
        wait = min(2 * wait, BACKOFF_MAX_S)

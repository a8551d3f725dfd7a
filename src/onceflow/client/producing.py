"""Record batches to the leaders of their partitions, until each is acknowledged or cannot be.

A batch is sent again, byte for byte, whenever its outcome is unknown: it carries a producer id, an epoch and a
sequence, so the broker stores it once. That holds because of one rule, which the caller keeps: **per partition one
batch is on its way at a time**, and the next one only after `send` has returned.

- Leaders are looked up once and again after anything that hints at a change.
- What the broker asks to repeat is repeated until the deadline. 19 (not enough replicas) is also what a broker answers
  when several writers begin a transaction at once (KIP-890): hence the jitter.
- What can never succeed raises `WriteRefused` at once, with the code; nothing of that batch was stored.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from onceflow.client.cluster import Cluster, TopicPartition, error_name
from onceflow.client.connection import NoAnswer, Unreachable
from onceflow.client.problems import ClientError
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
    """The leader of a partition refused a batch for good: nothing of it was stored."""

    def __init__(self, topic: str, partition: int, code: int, message: str | None = None) -> None:
        super().__init__(f"writing to partition {partition} of {topic!r} failed: {message or error_name(code)}")
        self.topic = topic
        self.partition = partition
        self.code = code


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

    def partition_count(self, topic: str) -> int:
        """Raises `TopicMissingError`."""
        if topic not in self._leaders:
            self._look_up(topic)
        return len(self._leaders[topic])

    def send(self, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int]:
        """One sealed batch per partition; the offset that each got. Returns when all are acknowledged.

        Raises `WriteRefused` or `DeliveryTimedOut`; then others of these batches may be stored.
        """
        left = dict(batches)
        offsets: dict[TopicPartition, int] = {}
        deadline = time.monotonic() + self._delivery_timeout_s
        waits = _backoff()
        problem = "no leader"
        while True:
            for leader, mine in self._by_leader(left).items():
                try:
                    answers = self._ask(leader, mine)
                except (NoAnswer, Unreachable) as failure:
                    problem = str(failure)
                    self._forget(mine)
                    continue
                for where, answer in answers.items():
                    if answer.error_code == ErrorCode.NONE:
                        offsets[where] = answer.base_offset
                        del left[where]
                    else:
                        problem = error_name(answer.error_code)
                        self._refused(where, answer)
            if not left:
                return offsets
            if time.monotonic() > deadline:
                topic, partition = next(iter(left))
                raise DeliveryTimedOut(
                    f"writing to partition {partition} of {topic!r} was not acknowledged within "
                    f"{self._delivery_timeout_s:g} s: {problem}"
                )
            time.sleep(next(waits))

    def _ask(
        self, leader: int, batches: Mapping[TopicPartition, bytes]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        by_topic: dict[str, list[PartitionProduceData]] = defaultdict(list)
        for (topic, partition), batch in batches.items():
            by_topic[topic].append(PartitionProduceData(index=partition, records=batch))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ALL_REPLICAS,
            timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in by_topic.items()],
        )
        answer = self._cluster.node(leader).ask(
            request, at_most=self._version_max, timeout_s=REQUEST_TIMEOUT_S + self._cluster.timeout_s
        )
        return {(topic.name, each.index): each for topic in answer.responses for each in topic.partition_responses}

    def _refused(self, where: TopicPartition, answer: PartitionProduceResponse) -> None:
        """Returns if it is worth another try."""
        topic, partition = where
        code = answer.error_code
        if code in _LEADER_MOVED:
            self._leaders.pop(topic, None)
        elif code not in _RETRIABLE:
            raise WriteRefused(topic, partition, code, answer.error_message)

    def _by_leader(self, batches: Mapping[TopicPartition, bytes]) -> dict[int, dict[TopicPartition, bytes]]:
        """Without the partitions that have no leader just now."""
        found: dict[int, dict[TopicPartition, bytes]] = defaultdict(dict)
        for (topic, partition), batch in batches.items():
            try:
                if topic not in self._leaders:
                    self._look_up(topic)
            except (NoAnswer, Unreachable):
                continue
            if partition not in self._leaders[topic]:
                raise WriteRefused(topic, partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            leader = self._leaders[topic][partition]
            if leader is None:
                del self._leaders[topic]
            else:
                found[leader][topic, partition] = batch
        return found

    def _look_up(self, topic: str) -> None:
        leaders = self._cluster.leaders([topic])
        self._leaders[topic] = {partition: leader for (_, partition), leader in leaders.items()}

    def _forget(self, batches: Mapping[TopicPartition, bytes]) -> None:
        for topic, _ in batches:
            self._leaders.pop(topic, None)


_RETRIABLE: Final = frozenset(code for code in ErrorCode if code.retriable)


def _backoff() -> Iterator[float]:
    wait = BACKOFF_S
    while True:
        yield wait * random.uniform(0.5, 1.5)
        wait = min(2 * wait, BACKOFF_MAX_S)

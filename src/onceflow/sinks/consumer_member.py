"""Kafka's side of `consume_into`: a member of a consumer group that reads where the database says.

- A partition that is assigned is fenced in the database before its first record is asked for, all partitions of a
  rebalance in one transaction. A partition that is taken away is given up at once: no transaction is open then, because
  rebalances happen in `collect`, and records of it that were collected and not yet written are dropped. Whoever gets it
  reads them again.
- What Kafka's group has for offsets is never read, and `auto.offset.reset` is "error": if Kafka does not have what the
  database says is next, that comes out here (`Doubt`) and not as silence.
- Records are taken one by one, so that each is known to belong to the assignment as it is at that moment. None is taken
  that is behind what the database has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from onceflow.client.cluster import TopicPartition
from onceflow.client.problems import ClientError, Overheard, configured, describe
from onceflow.sinks.consumer_offsets import Held
from onceflow.sinks.consumer_settings import ConsumeSettings

__all__ = ["Collected", "Doubt", "Member", "Record"]

log = logging.getLogger(__name__)

POLL_S: Final = 0.1
"""How long Ctrl-C and `stop` may take to be noticed while there is nothing to read."""


class Record(NamedTuple):
    """A record, as it was written."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None
    """Milliseconds since 1970, as in Kafka."""

    @property
    def timestamp(self) -> datetime | None:
        """The same with a time zone, UTC."""
        return None if self.timestamp_ms is None else datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)


class Collected(NamedTuple):
    records: list[Record]
    ends: Mapping[TopicPartition, int]
    """Partitions that are read to their end, markers and aborted records included, and this end."""


class Doubt(Exception):
    """Kafka does not have the offset that is next in a partition, or not the topic; somebody has to look."""

    def __init__(self, place: TopicPartition, *, is_topic_missing: bool) -> None:
        super().__init__(f"{place[0]}-{place[1]}")
        self.place = place
        self.is_topic_missing = is_topic_missing


class Member:
    """A consumer. `fence` says where to go on in partitions that are ours now, and may raise: then `collect` does."""

    def __init__(
        self, settings: ConsumeSettings, fence: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Held]]
    ) -> None:
        from confluent_kafka import Consumer

        self._settings = settings
        self._fence = fence
        self._overheard = Overheard()
        self.held: dict[TopicPartition, Held] = {}
        self._records: list[Record] = []
        self._ends: dict[TopicPartition, int] = {}
        self._doubt: Doubt | None = None
        with configured():
            self._consumer = Consumer(settings.consumer(self._overheard, _on_reported))
            self._consumer.subscribe(
                list(settings.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )

    def collect(self) -> Collected:
        """What one transaction is about: perhaps nothing. Raises `Doubt` and `ClientError`.

        What was collected before a doubt came up is handed out first: it is not read again.
        """
        if self._doubt is not None:
            doubt, self._doubt = self._doubt, None
            raise doubt
        self._records = []
        end: float | None = None
        while len(self._records) < self._settings.max_records and self._doubt is None:
            wait_s = POLL_S if end is None else end - time.monotonic()
            message = self._consumer.poll(max(wait_s, 0))
            if message is None:
                break
            self._take(message)
            if end is None and self._records:
                end = time.monotonic() + self._settings.max_wait_s
        records, self._records = self._records, []
        return Collected(records, {place: at for place, at in self._ends.items() if self._is_news(place, at)})

    def _is_news(self, place: TopicPartition, end: int) -> bool:
        return place in self.held and end > self.held[place].next_offset

    def _take(self, message: Any) -> None:
        place = (str(message.topic()), int(message.partition() or 0))
        if message.error() is not None:
            self._hear(message, place)
        elif place in self.held and message.offset() >= self.held[place].next_offset:
            self._records.append(_record(message))

    def _hear(self, message: Any, place: TopicPartition) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            self._ends[place] = int(message.offset())
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            if place in self.held:
                self._doubt = Doubt(place, is_topic_missing=False)
        elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            self._doubt = Doubt(place, is_topic_missing=True)
        elif error.fatal() or error.code() in _hopeless():
            topics = ", ".join(self._settings.topics)
            raise ClientError(
                f"reading {topics} as group {self._settings.group!r} failed: {describe(error)}. What was committed "
                "to the database stays there, and the next start goes on behind it"
            )
        else:  # librdkafka tries again by itself
            log.warning("reading %s-%s: %s", *place, describe(error))

    def moved(self, place: TopicPartition, next_offset: int) -> None:
        """The database says so."""
        if place in self.held:
            self.held[place] = self.held[place]._replace(next_offset=next_offset)

    def report(self, offsets: Mapping[TopicPartition, int]) -> None:
        """To Kafka, for those who look. Nobody waits for an answer, and nothing depends on it."""
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Place

        try:
            self._consumer.commit(offsets=[Place(*place, at) for place, at in offsets.items()], asynchronous=True)
        except KafkaException as problem:
            log.debug("offsets were not reported to Kafka: %s", describe(problem.args[0]))

    def close(self) -> None:
        """Leaves the group: the others need not wait until it is missed."""
        self._consumer.close()

    # --- rebalances; librdkafka calls these in `poll` and in `close`

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        from confluent_kafka import TopicPartition as Place

        found = self._fence([(each.topic, each.partition) for each in partitions]) if partitions else {}
        if not self._settings.is_incremental:
            self._forget(list(self.held))
        self.held.update(found)
        log.info("assigned: %s", found)
        assigned = [Place(*place, held.next_offset) for place, held in found.items()]
        (consumer.incremental_assign if self._settings.is_incremental else consumer.assign)(assigned)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._forget([(each.topic, each.partition) for each in partitions])

    def _forget(self, places: Collection[TopicPartition]) -> None:
        gone = set(places)
        self._records = [each for each in self._records if (each.topic, each.partition) not in gone]
        for place in gone:
            self.held.pop(place, None)
            self._ends.pop(place, None)


def _record(message: Any) -> Record:
    kind, timestamp_ms = message.timestamp()
    return Record(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=message.headers() or [],
        timestamp_ms=timestamp_ms if kind else None,  # kind 0: the record has none
    )


def _hopeless() -> frozenset[int]:
    from confluent_kafka import KafkaError

    return frozenset(
        {
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError._AUTHENTICATION,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.INCONSISTENT_GROUP_PROTOCOL,
            KafkaError.FENCED_INSTANCE_ID,
        }
    )


def _on_reported(error: Any, partitions: Any) -> None:
    if error is not None:
        log.debug("offsets were not reported to Kafka: %s", describe(error))

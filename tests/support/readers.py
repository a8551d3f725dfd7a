"""What a reader of a topic sees, through librdkafka: at the end (`committed`), and all the time (`Watcher`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.support.waiting import eventually

__all__ = ["Seen", "Watcher", "committed", "written"]

TIMEOUT_S = 30.0


class Seen(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def committed(bootstrap: str, topic: str, *, timeout_s: float = TIMEOUT_S) -> list[Seen]:
    """What read_committed shows now, by partition and offset: up to the first open transaction, aborted ones left out.

    EndTxn is answered before the markers are written; who reads a commit right after it waits with `eventually`.
    """
    return _read_to_end(bootstrap, topic, "read_committed", timeout_s)


def written(bootstrap: str, topic: str, *, timeout_s: float = TIMEOUT_S) -> list[Seen]:
    """What read_uncommitted shows: also what was aborted, and what is still open."""
    return _read_to_end(bootstrap, topic, "read_uncommitted", timeout_s)


def _read_to_end(bootstrap: str, topic: str, isolation: str, timeout_s: float) -> list[Seen]:
    deadline = time.monotonic() + timeout_s
    seen: list[Seen] = []
    with _consumer(bootstrap, topic, isolation, timeout_s) as (consumer, partitions):
        unread = set(partitions)
        while unread:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Partitions {sorted(unread)} of {topic} were not read to the end.")
            for message in consumer.consume(10_000, timeout=0.1):
                if (error := message.error()) is None:
                    seen.append(_seen(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    _refuse_what_stays(error)
    return sorted(seen, key=lambda each: (each.partition, each.offset))


class Watcher:
    """A read_committed reader that looks on while a test does its work, in a thread of its own.

    Kafka shows a transaction partition by partition, as its markers arrive, and `seen` has the order of arrival: within
    a partition that of the log. A transaction is whole or absent for a reader only within each partition.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._seen: list[Seen] = []
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"watcher of {topic}", daemon=True)

    @property
    def seen(self) -> list[Seen]:
        """Everything so far, in the order in which it came."""
        self._raise_failure()
        return self._seen.copy()

    def wait_for(self, count: int, *, timeout_s: float = TIMEOUT_S) -> list[Seen]:
        """Everything so far, once it is at least so many records."""
        eventually(lambda: len(self.seen) >= count, f"{count} records are seen", timeout_s=timeout_s)
        return self.seen

    def __enter__(self) -> Watcher:
        self._thread.start()
        eventually(self._ready.is_set, "the watcher has its partitions", timeout_s=TIMEOUT_S)
        self._raise_failure()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        if error is None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with _consumer(self._bootstrap, self._topic, "read_committed", TIMEOUT_S) as (consumer, _):
                self._ready.set()
                while not self._stop.is_set():
                    self._take(consumer.consume(1000, timeout=0.05))
        except BaseException as failure:
            self._failure = failure
            self._ready.set()

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            if (error := message.error()) is None:
                self._seen.append(_seen(message))
            elif error.code() != KafkaError._PARTITION_EOF:
                _refuse_what_stays(error)


@contextmanager
def _consumer(bootstrap: str, topic: str, isolation: str, timeout_s: float) -> Iterator[tuple[Consumer, list[int]]]:
    """A consumer at the beginning of every partition of a topic, and the partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # To begin anew in silence, where an offset is gone, would hide a loss and show records twice.
            "auto.offset.reset": "error",
            "check.crcs": True,
            "reconnect.backoff.max.ms": 200,
            # Brokers come and go in these tests; what matters arrives as the error of a message.
            "error_cb": lambda error: None,
            "log_level": 2,
        }
    )
    try:
        partitions = eventually(lambda: _partitions(consumer, topic), f"{topic} exists", timeout_s=timeout_s)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        yield consumer, partitions
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    try:
        return sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    except KafkaException as error:
        _refuse_what_stays(error.args[0])
        return []


def _refuse_what_stays(error: KafkaError) -> None:
    """librdkafka comes over everything by itself but what is fatal and what this reader did not expect to be told."""
    if error.fatal() or error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise KafkaException(error)


def _seen(message: Message) -> Seen:
    return Seen(message.partition(), message.offset(), message.key(), message.value())

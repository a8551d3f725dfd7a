"""Transactions and groups of confluent-kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from onceflow.errors import ErrorCode
from tests.support.clients import TIMEOUT_S, Received, Record, Refused
from tests.support.clients.confluent import ConfluentClient, ConfluentReader
from tests.support.clients.coordinated import CLASSIC, Group, GroupMember, Membership, Offsets, Partition
from tests.support.clients.coordinated.doomed import DyingProcess
from tests.support.waiting import eventually

__all__ = ["CoordinatedConfluentClient"]

T = TypeVar("T")


class CoordinatedConfluentClient(ConfluentClient):
    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> ConfluentProducer:
        settings = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms, "linger.ms": 5}
        return ConfluentProducer({**self._connection, **settings})

    def member(self, group: str, topics: Sequence[str], membership: Membership | None = None) -> ConfluentMember:
        settings = {"group.id": group, **_settings(membership or Membership())}
        return ConfluentMember(Consumer({**self._connection, **settings}), topics)

    def poll_each(self, members: Sequence[ConfluentMember]) -> list[Received]:
        return [received for member in members for received in member.poll(0.02)]

    def dying_member(self, group: str, topic: str, membership: Membership) -> DyingProcess:
        bootstrap = self._connection["bootstrap.servers"]
        return DyingProcess("confluent", bootstrap, group, topic, membership)

    @contextmanager
    def committed_reader(self, topic: str, partition: int = 0) -> Iterator[ConfluentReader]:
        consumer = self._consumer({"isolation.level": "read_committed"})
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            yield ConfluentReader(consumer)
        finally:
            consumer.close()

    def groups(self) -> set[str]:
        return {each.group_id for each in self.admin.list_consumer_groups(request_timeout=TIMEOUT_S).result().valid}

    def describe_group(self, group: str) -> Group:
        described = _answer(self.admin.describe_consumer_groups([group])[group])
        return Group(
            state=_name(described.state),
            protocol=_name(described.type).lower(),
            assignor=described.partition_assignor,
            members=tuple(
                GroupMember(
                    instance_id=each.group_instance_id,
                    partitions=frozenset((at.topic, at.partition) for at in each.assignment.topic_partitions),
                )
                for each in described.members
            ),
        )

    def group_offsets(self, group: str) -> Offsets:
        asked = ConsumerGroupTopicPartitions(group)
        found = _answer(self.admin.list_consumer_group_offsets([asked])[group])
        return {(each.topic, each.partition): each.offset for each in found.topic_partitions}

    def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        wanted = ConsumerGroupTopicPartitions(group, _partitions(offsets))
        answer = _answer(self.admin.alter_consumer_group_offsets([wanted])[group])
        for each in answer.topic_partitions:
            if each.error is not None:
                raise Refused(each.error.code(), each.error.str())

    def delete_group_offsets(self, group: str, partitions: Collection[Partition]) -> None:
        raise NotImplementedError("confluent-kafka cannot delete offsets.")

    def delete_group(self, group: str) -> None:
        _answer(self.admin.delete_consumer_groups([group])[group])


class ConfluentProducer:
    def __init__(self, settings: dict[str, object]) -> None:
        self._producer = Producer(settings)
        self._reports: list[KafkaError | None] = []
        _refusals(lambda: self._producer.init_transactions(TIMEOUT_S))

    def begin(self) -> None:
        _refusals(self._producer.begin_transaction)

    def send(self, topic: str, records: Sequence[Record]) -> None:
        self._reports.clear()
        for record in records:
            _refusals(
                lambda record=record: self._producer.produce(
                    topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    on_delivery=lambda error, _: self._reports.append(error),
                )
            )
        # Not flush: confluent-kafka 2.16 raises nothing but a SystemError from it when the producer is fenced.
        eventually(lambda: self._poll() or len(self._reports) == len(records), "all records are answered")
        for error in self._reports:
            if error is not None:
                raise _refusal(error)

    def _poll(self) -> None:
        _refusals(lambda: self._producer.poll(0.05))

    def send_offsets(self, member: ConfluentMember, offsets: Offsets) -> None:
        group = member.consumer.consumer_group_metadata()
        _refusals(lambda: self._producer.send_offsets_to_transaction(_partitions(offsets), group, TIMEOUT_S))

    def commit(self) -> None:
        _refusals(lambda: self._producer.commit_transaction(TIMEOUT_S))

    def abort(self) -> None:
        _refusals(lambda: self._producer.abort_transaction(TIMEOUT_S))

    def close(self) -> None:
        # Records of a transaction that nobody ended would be waited for.
        self._producer.purge()
        # That it is fenced it says here, too, as an exception or as a call that failed without one.
        with contextlib.suppress(KafkaException, SystemError):
            self._producer.close(0)


class ConfluentMember:
    def __init__(self, consumer: Consumer, topics: Sequence[str]) -> None:
        self.consumer = consumer
        self._revoked: list[Partition] = []
        if topics:
            consumer.subscribe(list(topics), on_revoke=self._remember)

    def _remember(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._revoked += [(each.topic, each.partition) for each in partitions]

    def poll(self, timeout_s: float) -> list[Received]:
        return ConfluentReader(self.consumer).poll(timeout_s)

    def assignment(self) -> set[Partition]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def revoked(self) -> list[Partition]:
        return list(self._revoked)

    def commit(self, offsets: Offsets) -> None:
        for each in _refusals(lambda: self.consumer.commit(offsets=_partitions(offsets), asynchronous=False)):
            if each.error is not None:
                raise _refusal(each.error)

    def commit_async(self, offsets: Offsets) -> None:
        self.consumer.commit(offsets=_partitions(offsets), asynchronous=True)

    def committed(self, at: Partition) -> int | None:
        [found] = _refusals(lambda: self.consumer.committed([TopicPartition(*at)], timeout=TIMEOUT_S))
        return None if found.offset < 0 else found.offset

    def position(self, at: Partition) -> int:
        [found] = self.consumer.position([TopicPartition(*at)])
        return int(found.offset)

    def seek(self, at: Partition, offset: int) -> None:
        self.consumer.seek(TopicPartition(*at, offset))

    def close(self) -> None:
        self.consumer.close()


def _settings(membership: Membership) -> dict[str, object]:
    settings: dict[str, object] = {
        "group.protocol": membership.protocol,
        "auto.offset.reset": "error" if membership.reset == "none" else membership.reset,
        "isolation.level": "read_committed" if membership.committed_only else "read_uncommitted",
        "enable.auto.commit": membership.auto_commit_ms is not None,
        "auto.commit.interval.ms": membership.auto_commit_ms or 5000,
    }
    if membership.instance_id is not None:
        settings["group.instance.id"] = membership.instance_id
    if membership.protocol == CLASSIC:
        settings["partition.assignment.strategy"] = membership.assignor
        settings["session.timeout.ms"] = membership.session_timeout_ms
        settings["heartbeat.interval.ms"] = 200
    else:
        settings["group.remote.assignor"] = membership.assignor
    return settings


def _partitions(offsets: Offsets) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _name(state: Any) -> str:
    """PREPARING_REBALANCING becomes PreparingRebalancing, Kafka's way of writing it."""
    return "".join(word.capitalize() for word in state.name.split("_"))


def _refusal(error: KafkaError) -> Refused:
    fenced = error.code() == KafkaError._FENCED
    return Refused(ErrorCode.PRODUCER_FENCED if fenced else error.code(), error.str())


def _refusals(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except KafkaException as error:
        raise _refusal(error.args[0]) from error


def _answer(future: Any) -> Any:
    return _refusals(lambda: future.result(TIMEOUT_S))

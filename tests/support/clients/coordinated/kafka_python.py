"""Transactions and groups of kafka-python."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from onceflow.errors import ErrorCode
from tests.support.clients import TIMEOUT_S, Received, Record, Refused
from tests.support.clients.coordinated import Group, GroupMember, Membership, Offsets, Partition
from tests.support.clients.coordinated.doomed import DyingProcess
from tests.support.clients.kafka_python import KafkaPythonClient, KafkaPythonReader, refusals

# isort: split
# After our own adapter, which imports the package without its warning.
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition, errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import CommitFailedError, NoError

__all__ = ["CoordinatedKafkaPythonClient"]

JOIN_S = 5.0

ASSIGNORS = {
    each.name: each
    for each in (
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        StickyPartitionAssignor,
        CooperativeStickyAssignor,
    )
}


class CoordinatedKafkaPythonClient(KafkaPythonClient):
    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> KafkaPythonProducer:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        try:
            with refusals():
                producer.init_transactions()
        except BaseException:
            producer.close(timeout=0)
            raise
        return KafkaPythonProducer(producer)

    def member(self, group: str, topics: Sequence[str], membership: Membership | None = None) -> KafkaPythonMember:
        membership = membership or Membership()
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=group,
            group_instance_id=membership.instance_id,
            auto_offset_reset=membership.reset,
            enable_auto_commit=membership.auto_commit_ms is not None,
            auto_commit_interval_ms=membership.auto_commit_ms or 5000,
            isolation_level="read_committed" if membership.committed_only else "read_uncommitted",
            partition_assignment_strategy=(ASSIGNORS[membership.assignor],),
            session_timeout_ms=membership.session_timeout_ms,
            heartbeat_interval_ms=200,
        )
        return KafkaPythonMember(consumer, topics)

    def poll_each(self, members: Sequence[KafkaPythonMember]) -> list[Received]:
        """All at once, since members that join wait for each other."""
        with ThreadPoolExecutor(len(members)) as pool:
            return [each for received in pool.map(lambda member: member.turn(0.3), members) for each in received]

    def dying_member(self, group: str, topic: str, membership: Membership) -> DyingProcess:
        return DyingProcess("kafka-python", self._bootstrap, group, topic, membership)

    @contextmanager
    def committed_reader(self, topic: str, partition: int = 0) -> Iterator[KafkaPythonReader]:
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap, isolation_level="read_committed")
        try:
            at = TopicPartition(topic, partition)
            consumer.assign([at])
            consumer.seek(at, 0)
            yield KafkaPythonReader(consumer)
        finally:
            consumer.close()

    def groups(self) -> set[str]:
        return {each["group_id"] for each in self.admin.list_groups()}

    def describe_group(self, group: str) -> Group:
        described = self.admin.describe_groups([group])[group]
        if described["error"] is not None:
            # This call hands errors over as text only: "[Error 69] GroupIdNotFoundError: ...".
            raise Refused(int(re.search(r"\[Error (\d+)]", described["error"])[1]), described["error"])
        return Group(
            state=described["group_state"],
            protocol="",
            assignor=described["protocol_data"],
            members=tuple(_member(each) for each in described["members"]),
        )

    def group_offsets(self, group: str) -> Offsets:
        with refusals():
            found = self.admin.list_group_offsets(group)[group]
        return {(at.topic, at.partition): each.offset for at, each in found.items()}

    def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        with refusals():
            _each_must_succeed(self.admin.alter_group_offsets(group, _by_partition(offsets)))

    def delete_group_offsets(self, group: str, partitions: Collection[Partition]) -> None:
        with refusals():
            _each_must_succeed(self.admin.delete_group_offsets(group, [TopicPartition(*at) for at in partitions]))

    def delete_group(self, group: str) -> None:
        with refusals():
            _each_must_succeed(self.admin.delete_groups([group]))


class KafkaPythonProducer:
    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer

    def begin(self) -> None:
        with refusals():
            self._producer.begin_transaction()

    def send(self, topic: str, records: Sequence[Record]) -> None:
        with refusals():
            sent = [
                self._producer.send(topic, record.value, record.key, partition=record.partition) for record in records
            ]
            for each in sent:
                each.get(TIMEOUT_S)

    def send_offsets(self, member: KafkaPythonMember, offsets: Offsets) -> None:
        with refusals():
            self._producer.send_offsets_to_transaction(_by_partition(offsets), member.consumer.group_metadata())

    def commit(self) -> None:
        with refusals():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with refusals():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


class _Remembered(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.revoked: list[Partition] = []

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.revoked += [(at.topic, at.partition) for at in revoked]

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        pass


class KafkaPythonMember:
    def __init__(self, consumer: KafkaConsumer, topics: Sequence[str]) -> None:
        self.consumer = consumer
        self._remembered = _Remembered()
        for topic in topics:
            # A leader that knows nothing of a topic shares out nothing, and does not look again.
            consumer.partitions_for_topic(topic)
        if topics:
            consumer.subscribe(list(topics), listener=self._remembered)

    def poll(self, timeout_s: float) -> list[Received]:
        return KafkaPythonReader(self.consumer).poll(timeout_s)

    def turn(self, timeout_s: float) -> list[Received]:
        """A poll that does not leave in the middle of a join: an answer that arrives between two polls is forgotten,
        and the member joins again. On a busy machine it would do so for ever."""
        with refusals():
            self.consumer._coordinator.poll(timeout_ms=JOIN_S * 1000)
        return self.poll(timeout_s)

    def assignment(self) -> set[Partition]:
        return {(at.topic, at.partition) for at in self.consumer.assignment()}

    def revoked(self) -> list[Partition]:
        return list(self._remembered.revoked)

    def commit(self, offsets: Offsets) -> None:
        with refusals():
            try:
                self.consumer.commit(_by_partition(offsets))
            except CommitFailedError as error:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, str(error)) from error

    def commit_async(self, offsets: Offsets) -> None:
        self.consumer.commit_async(_by_partition(offsets))

    def committed(self, at: Partition) -> int | None:
        with refusals():
            return self.consumer.committed(TopicPartition(*at))

    def position(self, at: Partition) -> int:
        return int(self.consumer.position(TopicPartition(*at)))

    def seek(self, at: Partition, offset: int) -> None:
        self.consumer.seek(TopicPartition(*at), offset)

    def close(self) -> None:
        self.consumer.close(autocommit=False)


def _by_partition(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*at): OffsetAndMetadata(offset, "", -1) for at, offset in offsets.items()}


def _member(described: Mapping[str, Any]) -> GroupMember:
    assignment = described["member_assignment"]
    partitions = {
        (each["topic"], number)
        for each in (assignment["assigned_partitions"] if assignment else ())
        for number in each["partitions"]
    }
    return GroupMember(instance_id=described["group_instance_id"], partitions=frozenset(partitions))


def _each_must_succeed(outcomes: Mapping[Any, Any]) -> None:
    """Outcomes are classes of errors, or in one call their names and "OK"."""
    for outcome in outcomes.values():
        error = getattr(errors, outcome, NoError) if isinstance(outcome, str) else outcome
        if error is not NoError:
            raise error()

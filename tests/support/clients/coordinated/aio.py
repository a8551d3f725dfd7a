"""Transactions and groups of aiokafka."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import CommitFailedError, ProducerFenced

from onceflow.errors import ErrorCode
from tests.support.clients import Received, Record, Refused
from tests.support.clients.aio import AioClient, AioReader
from tests.support.clients.coordinated import Group, GroupMember, Membership, Offsets, Partition
from tests.support.clients.coordinated.doomed import DyingProcess

__all__ = ["CoordinatedAioClient"]

ASSIGNORS = {each.name: each for each in (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)}


class CoordinatedAioClient(AioClient):
    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> AioProducer:
        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            return producer

        return AioProducer(self, self._run(start()))

    def member(self, group: str, topics: Sequence[str], membership: Membership | None = None) -> AioMember:
        membership = membership or Membership()
        remembered = _Remembered()

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
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
            if topics:
                consumer.subscribe(list(topics), listener=remembered)
            await consumer.start()
            return consumer

        return AioMember(self, self._run(start()), group, remembered)

    def poll_each(self, members: Sequence[AioMember]) -> list[Received]:
        return [received for member in members for received in member.poll(0.02)]

    def dying_member(self, group: str, topic: str, membership: Membership) -> DyingProcess:
        return DyingProcess("aiokafka", self._bootstrap, group, topic, membership)

    @contextmanager
    def committed_reader(self, topic: str, partition: int = 0) -> Iterator[AioReader]:
        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, isolation_level="read_committed")
            await consumer.start()
            at = TopicPartition(topic, partition)
            consumer.assign([at])
            consumer.seek(at, 0)
            return consumer

        consumer = self._run(start())
        try:
            yield AioReader(self, consumer)
        finally:
            self._run(consumer.stop())

    def groups(self) -> set[str]:
        return {name for name, *_ in self._run(self._admin.list_consumer_groups())}

    def describe_group(self, group: str) -> Group:
        [answer] = self._run(self._admin.describe_consumer_groups([group]))
        [(code, _, state, _, assignor, members, *_)] = answer.groups
        if code:
            raise Refused(code)
        return Group(
            state=state,
            protocol="",
            assignor=assignor,
            # Its version of the request does not tell instance ids.
            members=tuple(_member(assignment) for *_, assignment in members),
        )

    def group_offsets(self, group: str) -> Offsets:
        found = self._run(self._admin.list_consumer_group_offsets(group))
        return {(at.topic, at.partition): each.offset for at, each in found.items()}

    def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        raise NotImplementedError("aiokafka cannot set a group's offsets but as its member.")

    def delete_group_offsets(self, group: str, partitions: Collection[Partition]) -> None:
        raise NotImplementedError("aiokafka cannot delete offsets.")

    def delete_group(self, group: str) -> None:
        raise NotImplementedError("aiokafka cannot delete groups.")


class AioProducer:
    def __init__(self, client: AioClient, producer: AIOKafkaProducer) -> None:
        self._client = client
        self._producer = producer

    def begin(self) -> None:
        self._client._run(self._producer.begin_transaction())

    def send(self, topic: str, records: Sequence[Record]) -> None:
        async def send() -> None:
            sent = [
                await self._producer.send(topic, record.value, record.key, partition=record.partition)
                for record in records
            ]
            for each in sent:
                await each

        self._fenceable(send())

    def send_offsets(self, member: AioMember, offsets: Offsets) -> None:
        """It knows the group's name only: the broker cannot check who sends them."""
        self._fenceable(self._producer.send_offsets_to_transaction(_by_partition(offsets), member.group))

    def commit(self) -> None:
        self._fenceable(self._producer.commit_transaction())

    def abort(self) -> None:
        self._fenceable(self._producer.abort_transaction())

    def close(self) -> None:
        self._client._run(self._producer.stop())

    def _fenceable(self, work: object) -> None:
        async def attempt() -> None:
            try:
                await work
            except ProducerFenced as error:
                raise Refused(ErrorCode.PRODUCER_FENCED, str(error)) from error

        self._client._run(attempt())


class _Remembered(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.revoked: list[Partition] = []

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.revoked += [(at.topic, at.partition) for at in revoked]

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        pass


class AioMember:
    def __init__(self, client: AioClient, consumer: AIOKafkaConsumer, group: str, remembered: _Remembered) -> None:
        self._client = client
        self._consumer = consumer
        self._remembered = remembered
        self.group = group

    def poll(self, timeout_s: float) -> list[Received]:
        return AioReader(self._client, self._consumer).poll(timeout_s)

    def assignment(self) -> set[Partition]:
        return {(at.topic, at.partition) for at in self._consumer.assignment()}

    def revoked(self) -> list[Partition]:
        return list(self._remembered.revoked)

    def commit(self, offsets: Offsets) -> None:
        async def commit() -> None:
            if not self._consumer.subscription():
                self._consumer.assign([TopicPartition(*at) for at in offsets])
            try:
                await self._consumer.commit(_by_partition(offsets))
            except CommitFailedError as error:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, str(error)) from error

        self._client._run(commit())

    def commit_async(self, offsets: Offsets) -> None:
        raise NotImplementedError("In aiokafka every commit is awaited.")

    def committed(self, at: Partition) -> int | None:
        return self._client._run(self._consumer.committed(TopicPartition(*at)))

    def position(self, at: Partition) -> int:
        return self._client._run(self._consumer.position(TopicPartition(*at)))

    def seek(self, at: Partition, offset: int) -> None:
        self._consumer.seek(TopicPartition(*at), offset)

    def close(self) -> None:
        self._client._run(self._consumer.stop())


def _by_partition(offsets: Offsets) -> dict[TopicPartition, int]:
    return {TopicPartition(*at): offset for at, offset in offsets.items()}


def _member(assignment: bytes) -> GroupMember:
    partitions: set[Partition] = set()
    if assignment:
        for topic, numbers in ConsumerProtocolMemberAssignment.decode(assignment).assignment:
            partitions |= {(topic, number) for number in numbers}
    return GroupMember(instance_id=None, partitions=frozenset(partitions))

"""Transactional producers and read_committed readers on a `MemoryBroker`, request by request and without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from onceflow.errors import ErrorCode
from onceflow.wire.batch import batches
from onceflow.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from onceflow.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from onceflow.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from onceflow.wire.messages.end_txn import EndTxnRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from onceflow.wire.records import read_records
from tests.support.memory_broker import MemoryBroker, Reply
from tests.support.raw import READ_COMMITTED, batch, fetch_request, produce_request

__all__ = ["MemoryProducer", "committed", "committed_offset", "create_topic", "ends", "marker_count"]

INT32_MAX = 2**31 - 1


def create_topic(broker: MemoryBroker, name: str, partitions: int = 1) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    [result] = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics
    assert result.error_code == ErrorCode.NONE


@dataclass
class MemoryProducer:
    """Sends what a client sends, in V1 or V2. It never waits and never repeats; a test decides about both."""

    broker: MemoryBroker
    transactional_id: str
    v2: bool = True
    timeout_ms: int = 60_000
    id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def send_init(self) -> Reply:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        return self.broker.send(request, 5)

    def init(self) -> MemoryProducer:
        """Ask until there is an identity, as clients do."""
        for _ in range(10):
            reply = self.send_init()
            self.broker.settle()
            answer = reply.message
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self.become(answer.producer_id, answer.producer_epoch)
        return self

    def become(self, id: int, epoch: int) -> None:
        if (id, epoch) != (self.id, self.epoch):
            self.id, self.epoch = id, epoch
            self.sequences.clear()

    def send_add(self, topic: str, partition: int) -> Reply:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        return self.broker.send(request, 3)

    def send(self, topic: str, partition: int, *values: str) -> Reply:
        """The next batch; its sequence counts as used whatever comes of it."""
        sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = sequence + len(values)
        now = [self.broker.clock.now_ms()] * len(values)
        identity = (self.id, self.epoch)
        records = batch(*values, timestamps=now, producer=identity, sequence=sequence, transactional=True)
        request = produce_request(topic, records, partition=partition, transactional_id=self.transactional_id)
        return self.broker.send(request, 12 if self.v2 else 11)

    def send_add_offsets(self, group: str) -> Reply:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.id, producer_epoch=self.epoch, group_id=group
        )
        return self.broker.send(request, 4)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> Reply:
        entry = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[entry])],
        )
        return self.broker.send(request, 5 if self.v2 else 4)

    def send_end(self, *, commit: bool) -> Reply:
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.id, producer_epoch=self.epoch, committed=commit
        )
        return self.broker.send(request, 5 if self.v2 else 4)

    def took_end(self, reply: Reply) -> bool:
        """Go on with what an answer to EndTxn says; False if it was refused."""
        answer = reply.message
        if answer.error_code == ErrorCode.NONE and self.v2:
            self.become(answer.producer_id, answer.producer_epoch)
        return bool(answer.error_code == ErrorCode.NONE)


# Reading


def committed(broker: MemoryBroker, topic: str, partition: int) -> list[str]:
    """The values that a read_committed consumer gives its program, read from the start to the last stable offset.

    One batch per fetch at the least, so that the lists of aborted transactions are put together from many answers.
    """
    values: list[str] = []
    offset = 0
    while True:
        request = fetch_request(
            topic, offset, partition=partition, isolation_level=READ_COMMITTED, max_wait_ms=0, partition_max_bytes=1
        )
        [[answer]] = [each.partitions for each in broker.ask(request, 12).responses]
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        found = list(_sorted_out(answer))
        if not answer.records:
            return values
        for next_offset, kept in found:
            offset = next_offset
            values += kept


def _sorted_out(answer: object) -> Iterator[tuple[int, list[str]]]:
    """What a consumer makes of one answer: per batch, the offset to go on from and the values that it lets pass."""
    waiting = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())  # type: ignore[attr-defined]
    aborting: set[int] = set()
    for header, data in batches(answer.records):  # type: ignore[attr-defined]
        while waiting and waiting[0][0] <= header.last_offset:
            aborting.add(waiting.pop(0)[1])
        kept: list[str] = []
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            kept = [(record.value or b"").decode() for record in read_records(data)]
        yield header.last_offset + 1, kept


def marker_count(broker: MemoryBroker, topic: str, partition: int) -> int:
    found = broker.node.topics.partition(topic, partition)
    assert found is not None
    return sum(header.is_control for header, _ in found.log.batches())


def ends(broker: MemoryBroker, topic: str, partition: int) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    answers = []
    for isolation in (READ_COMMITTED, 0):
        asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=-1)])
        request = ListOffsetsRequest(isolation_level=isolation, topics=[asked])
        [[found]] = [each.partitions for each in broker.ask(request, 7).topics]
        answers.append(found.offset)
    return answers[0], answers[1]


def committed_offset(broker: MemoryBroker, group: str, topic: str, partition: int, *, stable: bool = True) -> int:
    """What the group has committed, -1 for nothing; `stable` fails while a transaction may still change it."""
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=[asked])], require_stable=stable
    )
    [answered] = broker.ask(request, 8).groups
    assert answered.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
    for each in answered.topics:
        assert each.partitions[0].error_code == ErrorCode.NONE, ErrorCode(each.partitions[0].error_code)
        return int(each.partitions[0].committed_offset)
    return -1

"""Requests as clients send them, each in the fewest words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from onceflow.client.fetching import CommittedFilter
from onceflow.verify.history import Place, Record, Seen
from onceflow.wire.batch import BatchHeader, batches, checksum
from onceflow.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from onceflow.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from onceflow.wire.messages.end_txn import EndTxnRequest
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from onceflow.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from onceflow.wire.records import Record as StoredRecord
from onceflow.wire.records import build_batch, read_records

__all__ = ["Fetched", "Identity", "fetched"]

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST: Final = -1

INIT_VERSION: Final = 5
FETCH_VERSION: Final = 12
LIST_OFFSETS_VERSION: Final = 7
OFFSET_FETCH_VERSION: Final = 8
ADD_PARTITIONS_VERSION: Final = 3
ADD_OFFSETS_VERSION: Final = 4
PRODUCE_VERSIONS: Final = {False: 11, True: 12}
"""By whether transactions are V2; as the next two."""
END_VERSIONS: Final = {False: 4, True: 5}
TXN_OFFSETS_VERSIONS: Final = {False: 4, True: 5}


class Identity(NamedTuple):
    producer_id: int = -1
    epoch: int = -1


def init(transactional_id: str | None, timeout_ms: int, identity: Identity) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )


def produce(
    place: Place,
    records: Sequence[Record],
    identity: Identity,
    sequence: int,
    now_ms: int,
    transactional_id: str | None,
) -> ProduceRequest:
    batch = build_batch(
        [StoredRecord(at, now_ms, None, record.to_bytes()) for at, record in enumerate(records)],
        base_offset=0,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        transactional=transactional_id is not None,
    )
    data = PartitionProduceData(index=place[1], records=batch)
    topic = TopicProduceData(name=place[0], partition_data=[data])
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=[topic])


def add_partition(transactional_id: str, identity: Identity, place: Place) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=place[0], partitions=[place[1]])],
    )


def add_offsets(transactional_id: str, identity: Identity, group: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group,
    )


def commit_offset(
    transactional_id: str, identity: Identity, group: str, place: Place, offset: int
) -> TxnOffsetCommitRequest:
    entry = TxnOffsetCommitRequestPartition(partition_index=place[1], committed_offset=offset)
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=place[0], partitions=[entry])],
    )


def end(transactional_id: str, identity: Identity, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )


def fetch_offsets(group: str, places: Iterable[Place], *, stable: bool) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[index]) for topic, index in places]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable)


def list_ends(places: Iterable[Place], isolation: int) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST)])
        for topic, index in places
    ]
    return ListOffsetsRequest(isolation_level=isolation, topics=topics)


def fetch(positions: Iterable[tuple[Place, int]], max_bytes: int) -> FetchRequest:
    """Committed records, and without waiting for any."""
    topics = [
        FetchTopic(
            topic=topic,
            partitions=[FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)],
        )
        for (topic, index), offset in positions
    ]
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, isolation_level=READ_COMMITTED, topics=topics, session_epoch=-1
    )


class Fetched(NamedTuple):
    """What a reader of committed records makes of an answer about one partition."""

    error: int
    seen: list[Seen]
    position: int
    """Where to read on."""
    high_watermark: int


def fetched(place: Place, position: int, answer: PartitionData) -> Fetched:
    aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
    committed = CommittedFilter(aborted)
    seen: list[Seen] = []
    start = position
    for header, batch in batches(answer.records or b""):
        if committed.sees(header, batch):
            seen += _seen(place, header, batch, start)
        position = max(position, header.last_offset + 1)
    return Fetched(answer.error_code, seen, position, answer.high_watermark)


def _seen(place: Place, header: BatchHeader, batch: memoryview, start: int) -> Iterator[Seen]:
    if checksum(batch) != header.crc:
        yield Seen(*place, header.base_offset, Record(id=f"what nobody can read at {header.base_offset} of {place}"))
        return
    for record in read_records(batch):
        if record.offset >= start:
            yield Seen(*place, record.offset, Record.from_bytes(record.value))


def partitions_of(answer: Any) -> Iterator[tuple[Place, PartitionData]]:
    for topic in answer.responses:
        for partition in topic.partitions:
            yield (topic.topic, partition.partition_index), partition

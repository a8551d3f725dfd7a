"""A broker with one of everything, for frames that name what exists.

A topic `worst` and one with many partitions, topics of every kind that looks into batches, a group with members and
offsets, a transactional id with an open transaction. `furnish` makes what is missing, as often as it is asked.
"""

from __future__ import annotations

from typing import Final

from onceflow.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.raw import batch
from tests.support.raw_client import RawClient
from tests.support.worst_frames import WIDE, WORST, World

__all__ = ["KINDS_OF_TOPICS", "furnish"]

WIDE_PARTITIONS: Final = 500
KINDS_OF_TOPICS: Final[dict[str, dict[str, object]]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "recompressing": {"compression.type": "lz4"},
    "uncompressing": {"compression.type": "uncompressed"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "large-messages": {"max.message.bytes": 100 << 20},
}
"""By what the broker does with a batch."""


def furnish(client: RawClient) -> World:
    have = client.topics()
    for name, partitions in ((WORST, 3), (WIDE, WIDE_PARTITIONS)):
        if name not in have:
            assert client.make_topic(name, partitions=partitions) == 0
            assert client.produce(name, batch(b"one", b"two")).error_code == 0
    for name, config in KINDS_OF_TOPICS.items():
        if name not in have:
            assert client.make_topic(name, config=config) == 0
    topics = client.topics()
    for name in (WORST, WIDE):
        indexes = range(len(topics[name].partitions))
        partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in indexes]
        offsets = [OffsetCommitRequestTopic(name=name, topic_id=topics[name].topic_id, partitions=partitions)]
        client.ask(OffsetCommitRequest(group_id=WORST, generation_id_or_member_epoch=-1, topics=offsets), 9)
    producer = client.ask(InitProducerIdRequest(transactional_id=WORST, transaction_timeout_ms=60_000))
    client.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=WORST,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=WORST, partitions=[0, 1, 2])],
        ),
        3,
    )
    return World(
        topic_ids={name: topic.topic_id for name, topic in topics.items()},
        batch=batch(b"worst"),
        numbers={
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.producer_epoch,
        },
    )

"""Partitions and their producers, as their leaders tell: offsets, sizes, who wrote what last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from onceflow.client.cluster import TopicPartition, refuse
from onceflow.client.offsets import EARLIEST, LATEST, list_offsets_at
from onceflow.client.watch_questions import Questions, portions
from onceflow.errors import ErrorCode
from onceflow.monitor.snapshot import Partition, Producer
from onceflow.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from onceflow.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from onceflow.wire.messages.metadata import MetadataResponse, MetadataResponsePartition

__all__ = ["log_sizes", "partitions_of", "producers_of"]

PARTITIONS_MAX: Final = 5000
PRODUCERS_MAX: Final = 2000
PER_REQUEST: Final = 500  # as Kafka's own tool does it: no request so long that it holds a broker up
GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
"""It vanished or moved between two questions: in the next take it is where it is."""

Sizes = Mapping[tuple[int, TopicPartition], int]
"""By broker and partition."""


# --- partitions


def partitions_of(asking: Questions, metadata: MetadataResponse, sizes: Sizes) -> tuple[Partition, ...]:
    """Those that have a leader which answers; Kafka's own last, so that a bound leaves those out first."""
    known = {place: each for _, place, each in _places(metadata)}
    led = asking.bounded([place for place, each in known.items() if each.leader_id >= 0], PARTITIONS_MAX)
    leaders = {place: known[place].leader_id for place in led}
    starts = _offsets(asking, leaders, EARLIEST)
    stable = _offsets(asking, leaders, LATEST, read_committed=True)
    ends = _offsets(asking, leaders, LATEST)
    if without := len(known) - sum(each.leader_id >= 0 for each in known.values()):
        asking.note(f"{without} partitions have no leader, and are left out")
    return tuple(
        Partition(
            topic=place[0],
            partition=place[1],
            start=starts[place],
            last_stable=min(stable[place], ends[place]),
            end=ends[place],
            size_bytes=sizes.get((leader, place)),
            leader=leader,
            replicas=len(known[place].replica_nodes),
            in_sync=len(known[place].isr_nodes),
        )
        for place, leader in leaders.items()
        if place in starts and place in stable and place in ends
    )


def _places(metadata: MetadataResponse) -> Iterator[tuple[bool, TopicPartition, MetadataResponsePartition]]:
    """Whether it is Kafka's own, where, and who has it."""
    topics = [each for each in metadata.topics if each.error_code == ErrorCode.NONE and each.name]
    for topic in sorted(topics, key=lambda each: (each.is_internal, each.name)):
        for each in sorted(topic.partitions, key=lambda each: each.partition_index):
            yield topic.is_internal, (str(topic.name), each.partition_index), each


def _offsets(
    asking: Questions, leaders: Mapping[TopicPartition, int], which: int, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for leader, places in _by_leader(leaders).items():
        wanted = dict.fromkeys(places, which)
        answers = asking.ask(
            leader,
            "offsets",
            lambda at=leader, these=wanted: list_offsets_at(asking.cluster, at, these, read_committed),  # type: ignore[misc]
        )
        for place, each in answers or ():
            if each.error_code == ErrorCode.NONE:
                found[place] = each.offset
            elif each.error_code not in GONE:
                asking.refused("the offsets of", place[0], each.error_code)
    return found


def _by_leader(leaders: Mapping[TopicPartition, int]) -> dict[int, list[TopicPartition]]:
    found: dict[int, list[TopicPartition]] = defaultdict(list)
    for place, leader in leaders.items():
        found[leader].append(place)
    return found


# --- their sizes


def log_sizes(asking: Questions) -> Sizes:
    """In bytes, of each replica. Empty for whoever may not ask."""
    found: dict[tuple[int, TopicPartition], int] = {}
    for broker in asking.brokers:
        answer = asking.ask(broker, "the sizes of partitions", lambda at=broker: _log_dirs(asking, at))  # type: ignore[misc]
        for directory in answer.results if answer is not None else ():
            for topic in directory.topics:
                for each in topic.partitions:
                    if not each.is_future_key:
                        found[broker, (topic.name, each.partition_index)] = each.partition_size
    return found


def _log_dirs(asking: Questions, broker: int) -> DescribeLogDirsResponse:
    answer: DescribeLogDirsResponse = asking.cluster.node(broker).ask(DescribeLogDirsRequest(topics=None))
    refuse(answer.error_code, "asking for the sizes of partitions")
    return answer


# --- producers


def producers_of(asking: Questions, metadata: MetadataResponse) -> tuple[Producer, ...]:
    """Of topics that are not Kafka's own."""
    own = [(place, each.leader_id) for internal, place, each in _places(metadata) if not internal]
    leaders = dict(asking.bounded([(place, leader) for place, leader in own if leader >= 0], PARTITIONS_MAX))
    found: list[Producer] = []
    for leader, places in _by_leader(leaders).items():
        for some in portions(places, PER_REQUEST):
            found += _producers_at(asking, leader, some)
    return tuple(asking.bounded(found, PRODUCERS_MAX))


def _producers_at(asking: Questions, leader: int, places: Sequence[TopicPartition]) -> Iterator[Producer]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        by_topic[topic].append(partition)
    question = DescribeProducersRequest(
        topics=[TopicRequest(name=topic, partition_indexes=each) for topic, each in by_topic.items()]
    )
    answer: DescribeProducersResponse | None = asking.ask(
        leader, "producers", lambda: asking.cluster.node(leader).ask(question)
    )
    for told in answer.topics if answer is not None else ():
        for each in told.partitions:
            if each.error_code == ErrorCode.NONE:
                yield from _producers_in(told.name, each)
            elif each.error_code not in GONE:
                asking.refused("the producers of", told.name, each.error_code)


def _producers_in(topic: str, found: PartitionResponse) -> Iterator[Producer]:
    for each in found.active_producers:
        start = each.current_txn_start_offset
        yield Producer(
            topic=topic,
            partition=found.partition_index,
            producer_id=each.producer_id,
            epoch=each.producer_epoch,
            last_sequence=each.last_sequence,
            last_write_ms=each.last_timestamp,
            transaction_start=start if start >= 0 else None,
        )

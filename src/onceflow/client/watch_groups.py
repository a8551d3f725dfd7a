"""Groups of both protocols, and how far they are behind the last stable offsets.

Share groups and those of Kafka Streams' own protocol are left out: they are described by APIs of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from onceflow.client.cluster import TopicPartition, refuse
from onceflow.client.connection import ApiMissing
from onceflow.client.watch_questions import Questions, portions
from onceflow.errors import ErrorCode
from onceflow.monitor.snapshot import Group, GroupPartition, Partition
from onceflow.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from onceflow.wire.messages.describe_groups import DescribeGroupsRequest
from onceflow.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

__all__ = ["groups_of"]

GROUPS_MAX: Final = 1000
PER_REQUEST: Final = 100  # each may have an offset for every partition there is
OFFSET_FETCH_VERSIONS: Final = (8, 9)  # several groups from 8 on; from 10 on topics are named by id
CLASSIC, CONSUMER = "classic", "consumer"
PROTOCOL_TYPES: Final = ("consumer", "")  # nobody joined a group without one: it has offsets only
WHO: Final = "groups"


def groups_of(asking: Questions, partitions: Iterable[Partition]) -> tuple[Group, ...]:
    """By name."""
    stable = {(each.topic, each.partition): each.last_stable for each in partitions}
    listed = [(broker, each) for broker in asking.brokers for each in _listed(asking, broker)]
    listed.sort(key=lambda found: found[1].group_id)
    chosen = asking.bounded(listed, GROUPS_MAX)
    found: list[Group] = []
    for broker in asking.brokers:
        for some in portions([each for at, each in chosen if at == broker], PER_REQUEST):
            found += _described(asking, broker, some, stable)
    return tuple(sorted(found, key=lambda each: each.group_id))


def _listed(asking: Questions, broker: int) -> list[ListedGroup]:
    def ask() -> list[ListedGroup]:
        answer: ListGroupsResponse = asking.cluster.node(broker).ask(ListGroupsRequest())
        asking.coordinator_said("group", answer.error_code)
        refuse(answer.error_code, f"listing the groups of broker {broker}")
        return [each for each in answer.groups if _protocol(each) == CONSUMER or _is_classic(each)]

    return asking.ask(broker, WHO, ask) or []


def _is_classic(listed: ListedGroup) -> bool:
    return _protocol(listed) == CLASSIC and listed.protocol_type in PROTOCOL_TYPES


def _protocol(listed: ListedGroup) -> str:
    """Brokers that know one protocol only do not name it."""
    return listed.group_type.lower() or CLASSIC


def _described(
    asking: Questions, broker: int, listed: Sequence[ListedGroup], stable: Mapping[TopicPartition, int]
) -> list[Group]:
    members = _members(asking, broker, listed)
    offsets = asking.ask(broker, "the offsets of groups", lambda: _offsets(asking, broker, listed)) or {}
    return [
        Group(
            group_id=each.group_id,
            state=state,
            protocol=_protocol(each),
            members=count,
            partitions=_positions(asking, offsets.get(each.group_id), stable),
        )
        for each in listed
        for state, count in members.get(each.group_id, ())
    ]


def _members(asking: Questions, broker: int, listed: Sequence[ListedGroup]) -> dict[str, list[tuple[str, int]]]:
    """The state and the number of members, by group; a group that was deleted meanwhile is not in there."""
    classic = [each.group_id for each in listed if _protocol(each) == CLASSIC]
    consumer = [each.group_id for each in listed if _protocol(each) == CONSUMER]
    node = asking.cluster.node
    answers = [
        asking.ask(broker, WHO, lambda: node(broker).ask(DescribeGroupsRequest(groups=classic))) if classic else None,
        asking.ask(broker, WHO, lambda: node(broker).ask(ConsumerGroupDescribeRequest(group_ids=consumer)))
        if consumer
        else None,
    ]
    return {
        each.group_id: [(each.group_state, len(each.members))]
        for answer in answers
        for each in (answer.groups if answer is not None else ())
        if each.error_code == ErrorCode.NONE and each.group_state != "Dead"
    }


# --- where they are


def _offsets(asking: Questions, broker: int, listed: Sequence[ListedGroup]) -> dict[str, OffsetFetchResponseGroup]:
    connection = asking.cluster.node(broker)
    oldest, newest = OFFSET_FETCH_VERSIONS
    if connection.version(OffsetFetchRequest, at_most=newest) < oldest:
        raise ApiMissing(f"the broker at {connection.address} is too old to ask it for the offsets of several groups")
    wanted = [OffsetFetchRequestGroup(group_id=each.group_id, topics=None) for each in listed]
    answer: OffsetFetchResponse = connection.ask(OffsetFetchRequest(groups=wanted), at_most=newest)
    return {each.group_id: each for each in answer.groups}


def _positions(
    asking: Questions, found: OffsetFetchResponseGroup | None, stable: Mapping[TopicPartition, int]
) -> tuple[GroupPartition, ...]:
    if found is None:
        return ()
    if found.error_code != ErrorCode.NONE:
        asking.refused("the offsets of group", found.group_id, found.error_code)
        return ()
    places = [(topic.name, each) for topic in found.topics for each in topic.partitions if each.committed_offset >= 0]
    return tuple(
        GroupPartition(
            topic=topic,
            partition=each.partition_index,
            committed=each.committed_offset,
            lag=_lag(each.committed_offset, stable.get((topic, each.partition_index))),
        )
        for topic, each in sorted(places, key=lambda found: (found[0], found[1].partition_index))
    )


def _lag(committed: int, last_stable: int | None) -> int | None:
    """The offset may be past the last stable one: the group reads what is not committed."""
    return None if last_stable is None else max(0, last_stable - committed)

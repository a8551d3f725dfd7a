"""Questions about offsets, asked until there is an answer: where partitions begin and end, where groups go on.

Nothing here changes anything at the broker, so every question may be asked again: while no leader or coordinator is
known, while a broker restarts, while the end of a transaction is on its way.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Refused, TopicPartition, refuse
from onceflow.client.connection import ApiMissing, NoAnswer, NotKafka, Unreachable
from onceflow.client.problems import ClientError, NoBrokerReachable, NotYet, is_retriable
from onceflow.errors import ErrorCode
from onceflow.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "PATIENCE_S",
    "NotYet",
    "committed_offsets",
    "leaders_of",
    "list_offsets",
    "list_offsets_at",
    "may_pass",
    "persistently",
]

T = TypeVar("T")

LATEST: Final = -1
EARLIEST: Final = -2
READ_COMMITTED: Final = 1
READ_UNCOMMITTED: Final = 0

PATIENCE_S: Final = 60.0
"""As Kafka's `default.api.timeout.ms`: a cluster needs about ten seconds to notice that a leader is dead."""
MISSING_PATIENCE_S: Final = 2.0
"""A topic that one broker knows already may be news to the next; one that is still missing then does not exist."""
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 1.0

LIST_OFFSETS_VERSION_MAX: Final = 7  # the newer ones are about tiered storage
OFFSET_FETCH_VERSIONS: Final = (8, 9)  # several groups from 8 on; from 10 on topics are named by id


def persistently(ask: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Asks until there is an answer. Raises what cannot get better at once, and the rest when patience is over.

    Only for questions: whatever `ask` sends is sent again if no answer came.
    """
    began = time.monotonic()
    missing_since: float | None = None
    backoff_s = BACKOFF_S
    while True:
        try:
            return ask()
        except TopicMissingError:
            missing_since = missing_since or time.monotonic()
            if time.monotonic() - missing_since >= min(patience_s, MISSING_PATIENCE_S):
                raise
        except ClientError as problem:
            if not may_pass(problem) or time.monotonic() - began >= patience_s:
                raise
        time.sleep(backoff_s * random.uniform(0.5, 1.0))
        backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)


def may_pass(problem: ClientError) -> bool:
    """Whether the same question may be answered in a moment. Everything that is not known to pass is told at once."""
    if isinstance(problem, Refused):
        return is_retriable(problem.code)
    return isinstance(problem, NoBrokerReachable | Unreachable | NoAnswer | NotYet) and not isinstance(
        problem, NotKafka
    )


def leaders_of(cluster: Cluster, places: Collection[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """The partitions by their leaders. Raises what may pass if one has no leader just now."""
    leaders = cluster.leaders({topic for topic, _ in places})
    found: dict[int, list[TopicPartition]] = defaultdict(list)
    for place in places:
        if place not in leaders:
            raise TopicMissingError(f"topic {place[0]!r} has no partition {place[1]}")
        leader = leaders[place]
        if leader is None:
            raise Refused(f"looking for the leader of {place[0]}-{place[1]}", ErrorCode.LEADER_NOT_AVAILABLE)
        found[leader].append(place)
    return found


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool, patience_s: float = PATIENCE_S
) -> dict[TopicPartition, int]:
    """An offset per partition: `LATEST` (for readers of committed records the last stable one), `EARLIEST`, or the
    first at or after a timestamp in ms. -1 where no record is that new.
    """
    found: dict[TopicPartition, int] = {}

    def ask() -> None:
        refusals: list[ClientError] = []
        missing = [place for place in wanted if place not in found]
        for leader, places in leaders_of(cluster, missing).items():
            for answer in list_offsets_at(cluster, leader, {place: wanted[place] for place in places}, read_committed):
                place, partition = answer
                if partition.error_code == ErrorCode.NONE:
                    found[place] = partition.offset
                else:
                    refusals.append(Refused(f"asking for an offset of {place[0]}-{place[1]}", partition.error_code))
        if refusals:
            raise refusals[0]
        if len(found) < len(wanted):
            raise NotYet("the brokers do not answer for all partitions whose offsets were asked for")

    if wanted:
        persistently(ask, patience_s)
    return {place: found[place] for place in wanted}


def list_offsets_at(
    cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int], read_committed: bool
) -> list[tuple[TopicPartition, ListOffsetsPartitionResponse]]:
    """As one leader answers, once, with a code for each partition."""
    by_topic: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for (topic, partition), timestamp in wanted.items():
        by_topic[topic].append(ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
    question = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
        topics=[ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in by_topic.items()],
    )
    answer = cluster.node(leader).ask(question, at_most=LIST_OFFSETS_VERSION_MAX)
    return [((topic.name, each.partition_index), each) for topic in answer.topics for each in topic.partitions]


def committed_offsets(
    cluster: Cluster,
    group: str,
    places: Collection[TopicPartition] | None = None,
    *,
    patience_s: float = PATIENCE_S,
) -> dict[TopicPartition, int]:
    """Where the group has committed that it will go on; partitions without a commit are not in there.

    Waits while offsets are part of a transaction whose end is not known there yet. Name the partitions where that
    matters: asked for all, a broker lists those that have an offset, so a first commit that is on its way is missed.
    """

    def ask() -> dict[TopicPartition, int]:
        answer = _offsets_of(cluster, group, places)
        doing = f"asking for the offsets of group {group!r}"
        refuse(answer.error_code, doing)
        for topic in answer.topics:
            for each in topic.partitions:
                refuse(each.error_code, f"{doing} in {topic.name}-{each.partition_index}")
        answered = {(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions}
        if places is not None and not answered.issuperset(places):  # which is not to say that there is no offset
            raise NotYet(f"{doing} was answered for some of the partitions that were named, and not for all")
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in answer.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    return persistently(ask, patience_s)


def _offsets_of(cluster: Cluster, group: str, places: Collection[TopicPartition] | None) -> OffsetFetchResponseGroup:
    topics: list[OffsetFetchRequestTopics] | None = None
    if places is not None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in places:
            by_topic[topic].append(partition)
        topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=each) for topic, each in by_topic.items()]
    question = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True)
    oldest, newest = OFFSET_FETCH_VERSIONS
    coordinator = cluster.node(cluster.group_coordinator(group).id)
    if coordinator.version(OffsetFetchRequest, at_most=newest) < oldest:
        raise ApiMissing(f"the broker at {coordinator.address} is too old to ask it for a group's stable offsets")
    groups: list[OffsetFetchResponseGroup] = coordinator.ask(question, at_most=newest).groups
    for answer in groups:
        if answer.group_id == group:
            return answer
    raise NotYet(f"the broker at {coordinator.address} was asked for the offsets of group {group!r}, and names none")

"""Members of consumer groups (KIP-848) that say exactly what a test has them say."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from onceflow.errors import ErrorCode
from onceflow.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedGroup
from onceflow.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from onceflow.wire.messages.delete_groups import DeleteGroupsRequest
from tests.support.raw import Wire
from tests.support.waiting import eventually

__all__ = [
    "Parts",
    "RawMember",
    "create_topic_for",
    "delete_group",
    "describe_group",
    "kept_alive",
    "parts",
    "refusal",
    "settle",
]

Parts = dict[UUID, list[int]]
"""Partitions by topic id."""

REBALANCE_TIMEOUT_MS = 60_000
BEAT_EVERY_S = 0.5


def parts(assignment: Assignment | None) -> Parts | None:
    if assignment is None:
        return None
    return {topic.topic_id: sorted(topic.partitions) for topic in assignment.topic_partitions if topic.topic_id}


def to_topics(owned: Mapping[UUID, list[int]]) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id=id, partitions=list(partitions)) for id, partitions in owned.items()]


def refusal(answer: ConsumerGroupHeartbeatResponse) -> ErrorCode:
    assert answer.error_code != ErrorCode.NONE
    assert answer.assignment is None
    return ErrorCode(answer.error_code)


class RawMember:
    """Remembers what it was told, and reports it as a client would: all when it joins, later only what is new."""

    def __init__(self, wire: Wire, group: str, *, instance: str | None = None, member_id: str | None = None) -> None:
        self.wire = wire
        self.group = group
        self.instance = instance
        self.id = str(uuid4()) if member_id is None else member_id
        self.epoch = 0
        self.owned: Parts = {}

    def send(self, *, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat that says this and nothing else."""
        said = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch, "instance_id": self.instance}
        return self.wire.ask(ConsumerGroupHeartbeatRequest(**(said | fields)), version)

    def try_join(
        self, *topics: str, regex: str | None = None, version: int = 1, **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        said = {
            "member_epoch": 0,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
            "subscribed_topic_names": list(topics),
            "subscribed_topic_regex": regex,
            "topic_partitions": [],
        }
        return self.send(version=version, **(said | fields))

    def join(self, *topics: str, **fields: Any) -> RawMember:
        def joined() -> ConsumerGroupHeartbeatResponse | None:
            answer = self.try_join(*topics, **fields)
            # Apache Kafka makes the offsets topic with the first question for a coordinator, and is 14 to 16 meanwhile.
            loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return None if answer.error_code in (*loading, ErrorCode.NOT_COORDINATOR) else answer

        self.take(eventually(joined, "the group has a coordinator"))
        return self

    def beat(self, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat that must be welcome; what it says of partitions is what the member has."""
        return self.take(self.send(**({"topic_partitions": to_topics(self.owned)} | fields)))

    def take(self, answer: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        assert answer.error_code == ErrorCode.NONE, answer
        assert answer.member_id
        self.id, self.epoch = answer.member_id, answer.member_epoch
        told = parts(answer.assignment)
        self.owned = self.owned if told is None else told
        return answer

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        answer = self.send(member_epoch=epoch)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, epoch), answer
        return answer

    def beat_until_it_has(self, wanted: Parts, *others: RawMember) -> None:
        """Heartbeats of this member and of others, until this one has these partitions."""

        def has() -> bool:
            for member in (self, *others):
                member.beat()
            return self.owned == wanted

        eventually(has, f"the member has {wanted}", every_s=0.1)


@contextmanager
def kept_alive(member: RawMember, bootstrap: str) -> Iterator[None]:
    """Heartbeats on a connection of their own meanwhile: sessions are short here, and a busy machine is slow."""
    with Wire(bootstrap) as wire, ThreadPoolExecutor(1) as thread:
        twin = RawMember(wire, member.group, instance=member.instance, member_id=member.id)
        twin.epoch = member.epoch
        is_over = threading.Event()

        def beat() -> None:
            while not is_over.wait(BEAT_EVERY_S):
                twin.beat(topic_partitions=None)

        beating = thread.submit(beat)
        try:
            yield
        finally:
            is_over.set()
            beating.result()


def settle(*members: RawMember) -> None:
    """Heartbeats of all, until the group is stable."""

    def is_stable() -> bool:
        for member in members:
            member.beat()
        return describe_group(members[0].wire, members[0].group).group_state == "Stable"

    eventually(is_stable, "the group is stable", every_s=0.1)


def describe_group(wire: Wire, group: str, **fields: Any) -> DescribedGroup:
    [described] = wire.ask(ConsumerGroupDescribeRequest(group_ids=[group], **fields)).groups
    return described


def delete_group(wire: Wire, group: str) -> ErrorCode:
    [result] = wire.ask(DeleteGroupsRequest(groups_names=[group])).results
    return ErrorCode(result.error_code)


def create_topic_for(wire: Wire, group: str, name: str, partitions: int) -> UUID:
    """A topic that the coordinator of this group knows of.

    In Apache Kafka each partition of the offsets topic has a coordinator of its own, which hears of a new topic a
    moment after its partitions take requests. Only a group can tell, so there is one of this name until then.
    """
    id = wire.create_topic(name, partitions)

    def is_known() -> bool:
        probe = RawMember(wire, group).join(name)
        probe.leave()
        assert delete_group(wire, group) == ErrorCode.NONE
        return probe.owned == {id: list(range(partitions))}

    eventually(is_known, f"the coordinator of {group} knows {name}")
    return id

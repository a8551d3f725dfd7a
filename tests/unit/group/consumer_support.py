"""A coordinator with consumer groups, topics that come and go, a clock by hand, and a log that can be read again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from onceflow.errors import ErrorCode
from onceflow.group.classic import ClassicSettings
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_records import encode_record
from onceflow.group.consumer_regexes import match_regexes, regexes_resolved
from onceflow.group.consumer_register import ConsumerGroups
from onceflow.group.consumer_requests import check_request
from onceflow.group.consumer_settings import ConsumerSettings
from onceflow.group.consumer_topics import ResolvedRegex, TopicInfo
from onceflow.group.coordinator import Coordinator
from onceflow.group.effects import Client, Effects
from onceflow.group.records import KeyValue
from onceflow.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

CLASSIC = ClassicSettings(
    min_session_timeout_ms=6_000, max_session_timeout_ms=1_800_000, initial_rebalance_delay_ms=0, max_size=1000
)
GROUP = "group"


class FakeTopics:
    def __init__(self) -> None:
        self.version = 0
        self._numbers = itertools.count(1)
        self._topics: dict[str, TopicInfo] = {}

    def named(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def with_id(self, id: UUID) -> TopicInfo | None:
        return next((info for info in self._topics.values() if info.id == id), None)

    def names(self) -> Iterator[str]:
        return iter(self._topics)

    def create(self, name: str, partitions: int = 1) -> UUID:
        info = TopicInfo(UUID(int=next(self._numbers)), name, partitions)
        self._put(info)
        return info.id

    def grow(self, name: str, partitions: int) -> None:
        self._put(self._topics[name]._replace(partitions=partitions))

    def delete(self, name: str) -> None:
        del self._topics[name]
        self.version += 1

    def _put(self, info: TopicInfo) -> None:
        self._topics[info.name] = info
        self.version += 1


@dataclass
class Bench:
    """Does for groups what the shell does, without sockets and disks."""

    settings: ConsumerSettings = field(default_factory=ConsumerSettings)
    topics: FakeTopics = field(default_factory=FakeTopics)
    log: list[KeyValue] = field(default_factory=list)
    now_ms: int = 1_000_000
    answers: dict[object, Any] = field(default_factory=dict)
    """To members of the classic protocol, by ticket."""

    def __post_init__(self) -> None:
        self._ids = (f"member-{number}" for number in itertools.count())
        self.restart()

    def restart(self) -> None:
        """A new coordinator that knows nothing but the log."""
        self.coordinator = Coordinator(CLASSIC)
        self.groups = ConsumerGroups(self.coordinator, self.topics, self.settings)
        self.coordinator.apply(self.log, self.now_ms)
        for _ in self.coordinator.loaded(self.now_ms):
            pass

    @property
    def group(self) -> ConsumerGroup:
        return self.groups.get(GROUP)

    def write(self, records: list[KeyValue]) -> None:
        self.log += records
        self.coordinator.apply(records, self.now_ms)

    def ask(self, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> ConsumerGroupHeartbeatResponse:
        check_request(request, version, self.settings)
        decided = self.groups.heartbeat(request, Client("client", "/host"), self.now_ms, lambda: next(self._ids))
        self.write(decided.records)
        self.give(self.groups.settle(decided, self.now_ms))
        if decided.decision.unresolved:
            group = self.groups.get(request.group_id)
            second = regexes_resolved(group, self.match(decided.decision.unresolved))
            self.write([encode_record(record) for record in second.records])
            second.settle(group, self.now_ms)
        assert decided.decision.answer is not None
        return decided.decision.answer

    def match(self, regexes: frozenset[str]) -> dict[str, ResolvedRegex]:
        steps = match_regexes(self.topics, regexes, self.now_ms)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                matched: dict[str, ResolvedRegex] = end.value
                return matched

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        for group, effects in list(self.coordinator.on_time(self.now_ms)):
            self.carry_out(group.id, effects)

    def carry_out(self, group_id: str, effects: Effects) -> None:
        """All that is written is on disk at once."""
        self.give(effects)
        if effects.applies:
            self.write(effects.records)
            self.coordinator.settle(group_id, effects, self.now_ms)
        else:
            self.log += effects.records
        if effects.then is not None:
            self.carry_out(group_id, effects.then(ErrorCode.NONE, self.now_ms))

    def give(self, effects: Effects) -> None:
        for ticket, message in effects.answers:
            assert ticket not in self.answers, f"{ticket} was answered twice"
            self.answers[ticket] = message

    def join(self, *names: str, member: str | None = None, **said: Any) -> Consumer:
        return Consumer(self, member or next(self._ids), said.pop("instance_id", None)).join(*names, **said)


WISHES = ("rebalance_timeout_ms", "subscribed_topic_names", "subscribed_topic_regex")


class Consumer:
    """A member that does as it is told, when it is made to."""

    def __init__(self, bench: Bench, id: str, instance_id: str | None = None) -> None:
        self.bench = bench
        self.id = id
        self.instance_id = instance_id
        self.epoch = 0
        self.owned: dict[UUID, set[int]] = {}
        self.wishes: dict[str, Any] = {}
        self.has_missed_an_answer = False
        """Then it says everything again, as Kafka's consumer does after a heartbeat that was not answered."""

    def join(self, *names: str, **said: Any) -> Consumer:
        first = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(names), "topic_partitions": []}
        self.epoch, self.owned = 0, {}
        self.say(**(first | said))
        return self

    def beat(self, **said: Any) -> ConsumerGroupHeartbeatResponse:
        return self.say(**({"topic_partitions": self._owned()} | said))

    def _owned(self) -> list[TopicPartitions]:
        return [TopicPartitions(topic_id=id, partitions=sorted(indexes)) for id, indexes in self.owned.items()]

    def say(self, **said: Any) -> ConsumerGroupHeartbeatResponse:
        self.wishes |= {name: value for name, value in said.items() if name in WISHES}
        if self.has_missed_an_answer and "member_epoch" not in said:
            said = self.wishes | {"topic_partitions": self._owned()} | said
            self.has_missed_an_answer = False
        who = {"group_id": GROUP, "member_id": self.id, "member_epoch": self.epoch, "instance_id": self.instance_id}
        answer = self.bench.ask(ConsumerGroupHeartbeatRequest(**(who | said)))
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {
                topic.topic_id: set(topic.partitions) for topic in answer.assignment.topic_partitions if topic.topic_id
            }
        return answer

    def leave(self, epoch: int = -1) -> None:
        self.say(member_epoch=epoch)


def settle(*consumers: Consumer, rounds: int = 10) -> None:
    """Heartbeats of all in turn, until nothing changes any more."""
    for _ in range(rounds):
        before = [(consumer.epoch, consumer.owned) for consumer in consumers]
        for consumer in consumers:
            consumer.beat()
        if before == [(consumer.epoch, consumer.owned) for consumer in consumers]:
            return
    raise AssertionError(f"the group did not settle in {rounds} rounds")


def snapshot(group: ConsumerGroup) -> dict[str, Any]:
    """All of a group that is in its records."""
    return {
        "epoch": group.epoch,
        "hash": group.metadata_hash,
        "assignment": (group.assignment_epoch, group.assignment_timestamp_ms),
        "members": dict(group.members),
        "target": dict(group.target),
        "regexes": dict(group.regexes),
        "static": dict(group.static_ids),
        "takers": dict(group._takers),
        "regex members": set(group.regex_members),
    }

"""Consumer groups (KIP-848) in the shell: their settings, their view of the topics, and the way of a heartbeat.

A heartbeat is decided, written and applied; then, if a regular expression has to be matched with the topics again, that
is done in steps and written too. Members hear of it with their next heartbeat. It is answered when all is on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from onceflow.broker.topics import Topic, Topics
from onceflow.config import BrokerConfig
from onceflow.errors import ConfigError, ProtocolError
from onceflow.group.assignors import ASSIGNORS
from onceflow.group.classic import ClassicSettings
from onceflow.group.consumer_records import encode_record
from onceflow.group.consumer_regexes import match_regexes, regexes_resolved
from onceflow.group.consumer_requests import check_request
from onceflow.group.consumer_settings import ConsumerSettings, MigrationPolicy
from onceflow.group.consumer_topics import TopicInfo
from onceflow.group.effects import Client
from onceflow.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from onceflow.broker.groups import Groups

__all__ = ["TopicView", "consumer_settings", "heartbeat", "resolve"]


class TopicView:
    """The broker's topics, as groups see them."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        return self._topics.version

    def named(self, name: str) -> TopicInfo | None:
        return _info(self._topics.get(name))

    def with_id(self, id: UUID) -> TopicInfo | None:
        return _info(self._topics.by_id(id))

    def names(self) -> Iterator[str]:
        return (topic.name for topic in self._topics)


def _info(topic: Topic | None) -> TopicInfo | None:
    return None if topic is None else TopicInfo(topic.id, topic.name, len(topic.partitions))


def consumer_settings(config: BrokerConfig, classic: ClassicSettings) -> ConsumerSettings:
    return ConsumerSettings(
        session_timeout_ms=config["group.consumer.session.timeout.ms"],
        heartbeat_interval_ms=config["group.consumer.heartbeat.interval.ms"],
        members_max=config["group.consumer.max.size"],
        assignors=_assignors(config["group.consumer.assignors"]),
        migration=MigrationPolicy(config["group.consumer.migration.policy"]),
        classic=classic,
    )


def _assignors(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        raise ConfigError(f"group.consumer.assignors is empty; there are {' and '.join(ASSIGNORS)}.")
    return tuple(names)


def heartbeat(
    groups: Groups,
    request: ConsumerGroupHeartbeatRequest,
    version: int,
    client: Client,
    now_ms: int,
) -> tuple[int, ConsumerGroupHeartbeatResponse, frozenset[str]]:
    """The answer, the partition that has to be on disk before it goes out, and what has to be resolved before.

    Raises `ProtocolError` with nothing changed.
    """
    check_request(request, version, groups.consumer_settings)
    index = groups.index_of(request.group_id)
    decided = groups.consumers[index].heartbeat(request, client, now_ms, lambda: str(uuid4()))
    groups.write(index, decided.records)
    effects = groups.consumers[index].settle(decided, now_ms)
    if decided.records:
        groups.carry_out(request.group_id, effects)
    assert decided.decision.answer is not None
    return index, decided.decision.answer, decided.decision.unresolved


def resolve(
    groups: Groups, index: int, group_id: str, regexes: frozenset[str], now_ms: int, visible: Callable[[str], bool]
) -> Generator[int, None, None]:
    """Match regular expressions with those of the topics that are visible to the client.

    If it cannot be written, the next heartbeat tries again; this one is as good without it.
    """
    group = groups.consumers[index].get(group_id)
    group.is_resolving = True
    try:
        matched = yield from match_regexes(group.topics, regexes, now_ms, visible)
    finally:
        group.is_resolving = False
    with contextlib.suppress(ProtocolError):
        group = groups.consumers[index].get(group_id)  # it may be another one by now, or none
        decision = regexes_resolved(group, matched)
        groups.write(index, [encode_record(record) for record in decision.records])
        decision.settle(group, now_ms)

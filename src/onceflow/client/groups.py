"""Consumer groups, as an administrator sees them: list, describe, move their offsets, delete.

Through librdkafka, so that TLS and SASL work as with every other client of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onceflow.client.addresses import Address
from onceflow.client.admin import Admin
from onceflow.client.cluster import Node, TopicPartition
from onceflow.client.problems import ClientError, describe, translated
from onceflow.errors import ConfigError

__all__ = [
    "Group",
    "GroupActiveError",
    "GroupAdmin",
    "GroupMissingError",
    "GroupPartition",
    "Member",
]

STATES: Final = {
    "STABLE": "Stable",
    "EMPTY": "Empty",
    "DEAD": "Dead",
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    # librdkafka has no names for two states of KIP-848: Assigning and Reconciling. To people they are the same.
    "UNKNOWN": "Unknown",
}
NOBODY_THERE: Final = ("Empty", "Dead")
"""Dead is what a broker says of a group that it does not know."""


class GroupMissingError(ClientError):
    """There is no group of this name."""


class GroupActiveError(ClientError):
    """The group has members, and what was asked needs one without."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A consumer in a group."""

    member_id: str
    instance_id: str | None
    """Of a static member (KIP-345)."""
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group and its members."""

    id: str
    state: str
    protocol: str
    """`classic`, or `consumer` for the one of KIP-848."""
    assignor: str | None
    coordinator: Node | None
    members: tuple[Member, ...]

    @property
    def is_active(self) -> bool:
        return bool(self.members) or self.state not in NOBODY_THERE

    def owner(self, place: TopicPartition) -> Member | None:
        return next((member for member in self.members if place in member.partitions), None)


@dataclass(frozen=True, kw_only=True)
class GroupPartition:
    """How far a group has come in one partition."""

    topic: str
    partition: int
    committed: int | None
    """None if nothing is committed: where reading starts is then up to the consumer's `auto.offset.reset`."""
    earliest: int | None
    end: int | None
    """None, as `earliest`, if there is no such partition any more."""
    member: Member | None

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def lag(self) -> int | None:
        """Offsets between the two; fewer messages if there are transaction markers or gaps among them."""
        return None if self.committed is None or self.end is None else self.end - self.committed


class GroupAdmin(Admin):
    """A connection for questions about groups. Raises `ClientError` at once if nobody listens there."""

    def group_ids(self) -> list[str]:
        """All consumer groups, by name."""
        with translated("listing groups"):
            answer = self._client.list_consumer_groups(request_timeout=self._settings.timeout_s).result()
        if answer.errors:
            raise ClientError(f"listing groups failed: {describe(answer.errors[0])}")
        return sorted(each.group_id for each in answer.valid)

    def groups(self, ids: Collection[str]) -> list[Group]:
        """These groups, in this order. One that the broker does not know has the state Dead."""
        if not ids:
            return []
        if "" in ids:
            raise ConfigError("a group id cannot be empty")
        with translated("describing groups"):
            futures = self._client.describe_consumer_groups(list(ids), request_timeout=self._settings.timeout_s)
            return [_group(futures[group_id].result()) for group_id in ids]

    def group(self, group_id: str) -> Group:
        """One group. Raises `GroupMissingError`."""
        (found,) = self.groups([group_id])
        if found.state == "Dead":
            raise GroupMissingError(f"there is no group {group_id!r} at {self._settings.bootstrap}")
        return found

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Where the group has committed that it will go on, by partition."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        with translated(f"asking for the offsets of group {group_id!r}"):
            futures = self._client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group_id)], request_timeout=self._settings.timeout_s
            )
            places: list[Any] = futures[group_id].result().topic_partitions
        for place in places:
            if place.error is not None:
                where = f"{place.topic}-{place.partition}"
                raise ClientError(f"asking for the offset of {group_id!r} in {where} failed: {describe(place.error)}")
        return {(place.topic, place.partition): place.offset for place in places if place.offset >= 0}

    def progress(self, group: Group, *, read_committed: bool = False) -> list[GroupPartition]:
        """How far the group has come, in all partitions where it has committed or that a member has."""
        committed = self.committed(group.id)
        assigned = {place for member in group.members for place in member.partitions}
        return self._progress(group, sorted(committed.keys() | assigned), committed, read_committed)

    def progress_in(self, group: Group, places: Iterable[TopicPartition]) -> list[GroupPartition]:
        """How far the group has come in these partitions, committed or not."""
        return self._progress(group, sorted(set(places)), self.committed(group.id), read_committed=False)

    def move(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """Commits these offsets for a group without members; returns the reasons for those that were not taken.

        Raises `GroupActiveError` if a member came meanwhile; then none was taken.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

        wish = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        with translated(f"moving the offsets of group {group_id!r}"):
            futures = self._client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group_id, wish)], request_timeout=self._settings.timeout_s
            )
            places: list[Any] = futures[group_id].result().topic_partitions
        active = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
        if any(place.error is not None and place.error.code() in active for place in places):
            raise GroupActiveError(f"group {group_id!r} has got members meanwhile; nothing was moved")
        return {(p.topic, p.partition): describe(p.error) for p in places if p.error is not None}

    def delete_group(self, group_id: str) -> None:
        """Deletes a group and its offsets. Raises `GroupMissingError` or `GroupActiveError`."""
        from confluent_kafka import KafkaError, KafkaException

        active = GroupActiveError(f"group {group_id!r} was not deleted: it has members; stop its consumers first")
        # Asked first because librdkafka 2.16 ends the whole process, by an assertion, after it asked a broker
        # without DeleteGroups to delete one; a broker that knows nothing of groups is found out here.
        if self.group(group_id).is_active:
            raise active
        try:
            futures = self._client.delete_consumer_groups([group_id], request_timeout=self._settings.timeout_s)
            futures[group_id].result()
        except KafkaException as problem:
            error = problem.args[0]
            if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                raise GroupMissingError(f"there is no group {group_id!r} at {self._settings.bootstrap}") from None
            if error.code() == KafkaError.NON_EMPTY_GROUP:
                raise active from None
            raise ClientError(f"group {group_id!r} was not deleted: {describe(error)}") from None

    def _progress(
        self,
        group: Group,
        places: list[TopicPartition],
        committed: Mapping[TopicPartition, int],
        read_committed: bool,
    ) -> list[GroupPartition]:
        there = {(topic.name, partition) for topic in self.topics() for partition in topic.partitions}
        existing = [place for place in places if place in there]
        offsets = self.offsets(existing, read_committed=read_committed) if existing else {}
        return [
            GroupPartition(
                topic=place[0],
                partition=place[1],
                committed=committed.get(place),
                earliest=offsets[place][0] if place in offsets else None,
                end=offsets[place][1] if place in offsets else None,
                member=group.owner(place),
            )
            for place in places
        ]


def _group(found: Any) -> Group:
    coordinator = found.coordinator
    return Group(
        id=found.group_id,
        state=STATES.get(found.state.name, "Unknown"),
        protocol=found.type.name.lower(),
        assignor=found.partition_assignor or None,
        coordinator=Node(coordinator.id, Address(coordinator.host, coordinator.port)) if coordinator else None,
        members=tuple(sorted((_member(each) for each in found.members), key=lambda m: (m.client_id, m.member_id))),
    )


def _member(found: Any) -> Member:
    assigned = found.assignment.topic_partitions if found.assignment else []
    return Member(
        member_id=found.member_id,
        instance_id=found.group_instance_id,
        client_id=found.client_id,
        host=found.host.removeprefix("/"),  # Java writes addresses without a name so
        partitions=tuple(sorted((each.topic, each.partition) for each in assigned)),
    )

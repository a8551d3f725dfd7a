"""Who gets which partitions: Kafka's `range` and `uniform`, on the broker's side of KIP-848.

An assignor is a pure function from what every member wants and had to what every member is to have. What it promises:

    range     each topic's partitions in order, in runs: members in the order of their instance ids, then of their
              member ids, so that the same members get the same numbers of all topics they share
    uniform   loads that differ by one at most where all want the same topics; where they do not, as even as moving
              partitions between subscribers can make them. What a member had it keeps, as far as that goes

Kafka walks its hash maps; here members and topics are walked in order, so the outcome depends on nothing but the input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heapreplace
from typing import Final
from uuid import UUID

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "Subscriber", "assign_range", "assign_uniform"]

Assignment = Mapping[UUID, frozenset[int]]
"""Partitions by topic id. Never changed in place, and never with a topic of no partitions."""

BALANCE_ROUNDS_MAX: Final = 16
"""Moving a partition of one topic can unbalance another; Kafka gives up on perfection after as many rounds."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    """What it wants; all of them exist."""
    had: Assignment = field(default_factory=dict)
    """What the last target assignment gave it."""
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]
"""By member id."""
PartitionCounts = Mapping[UUID, int]
Assignor = Callable[[Subscribers, PartitionCounts], dict[str, Assignment]]


# --- range


def assign_range(members: Subscribers, counts: PartitionCounts) -> dict[str, Assignment]:
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic, subscribers in _subscribers_by_topic(_in_range_order(members), members).items():
        share, extra = divmod(counts[topic], len(subscribers))
        start = 0
        for at, member_id in enumerate(subscribers):
            end = start + share + (at < extra)
            if start < end:
                assigned[member_id][topic] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _in_range_order(members: Subscribers) -> list[str]:
    def order(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, member_id if instance_id is None else instance_id

    return sorted(members, key=order)


def _subscribers_by_topic(order: Iterable[str], members: Subscribers) -> dict[UUID, list[str]]:
    by_topic: dict[UUID, list[str]] = defaultdict(list)
    for member_id in order:
        for topic in members[member_id].topics:
            by_topic[topic].append(member_id)
    return by_topic


# --- uniform


def assign_uniform(members: Subscribers, counts: PartitionCounts) -> dict[str, Assignment]:
    if len({subscriber.topics for subscriber in members.values()}) <= 1:
        return _assign_alike(members, counts)
    return _Balance(members, counts).build()


def _assign_alike(members: Subscribers, counts: PartitionCounts) -> dict[str, Assignment]:
    """All members want the same topics: each keeps what it had up to its share, and the rest goes to who has less."""
    if not members:
        return {}
    topics = next(iter(members.values())).topics
    share, extra = divmod(sum(counts[topic] for topic in topics), len(members))
    kept: dict[str, set[tuple[UUID, int]]] = {}
    wanting: list[tuple[str, int]] = []
    order = sorted(members)
    for at, member_id in enumerate(order):
        had = [(topic, partition) for topic, partition in _partitions(members[member_id].had) if topic in topics]
        # As long as there are extra ones to give, whoever already has one keeps it; the last members get what is left.
        takes_extra = extra > 0 and (len(had) > share or len(order) - at <= extra)
        quota = share + takes_extra
        extra -= takes_extra
        kept[member_id] = set(had[:quota])
        if len(had) < quota:
            wanting.append((member_id, quota - len(had)))
    _hand_out(kept, wanting, topics, counts)
    return {member_id: _by_topic(partitions) for member_id, partitions in kept.items()}


def _hand_out(
    kept: dict[str, set[tuple[UUID, int]]],
    wanting: list[tuple[str, int]],
    topics: frozenset[UUID],
    counts: PartitionCounts,
) -> None:
    taken = set().union(*kept.values())
    free = (
        (topic, partition)
        for topic in sorted(topics)
        for partition in range(counts[topic])
        if (topic, partition) not in taken
    )
    for member_id, number in wanting:
        for _, partition in zip(range(number), free, strict=False):
            kept[member_id].add(partition)


def _partitions(assignment: Assignment) -> list[tuple[UUID, int]]:
    return [(topic, partition) for topic in sorted(assignment) for partition in sorted(assignment[topic])]


def _by_topic(partitions: Iterable[tuple[UUID, int]]) -> Assignment:
    by_topic: dict[UUID, set[int]] = defaultdict(set)
    for topic, partition in partitions:
        by_topic[topic].add(partition)
    return {topic: frozenset(indexes) for topic, indexes in by_topic.items()}


class _Balance:
    """Members want different topics: keep, give what nobody has to the least loaded, then move from most to least."""

    def __init__(self, members: Subscribers, counts: PartitionCounts) -> None:
        self._members = members
        self._counts = counts
        self._subscribers = _subscribers_by_topic(sorted(members), members)
        self._owners: dict[UUID, list[str | None]] = {topic: [None] * counts[topic] for topic in self._subscribers}
        self._load = dict.fromkeys(members, 0)

    def build(self) -> dict[str, Assignment]:
        self._keep()
        for topic in sorted(self._subscribers, key=self._difficulty):
            self._give_free(topic)
        self._balance()
        assigned: dict[str, set[tuple[UUID, int]]] = {member_id: set() for member_id in self._members}
        for topic, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                if owner is not None:
                    assigned[owner].add((topic, partition))
        return {member_id: _by_topic(partitions) for member_id, partitions in assigned.items()}

    def _difficulty(self, topic: UUID) -> tuple[float, int, UUID]:
        """Topics with many partitions per subscriber first: the others can still even out what these leave."""
        subscribers = len(self._subscribers[topic])
        return -self._counts[topic] / subscribers, subscribers, topic

    def _keep(self) -> None:
        for member_id, member in sorted(self._members.items()):
            for topic, partition in _partitions(member.had):
                if topic in member.topics and self._owners[topic][partition] is None:
                    self._give(topic, partition, member_id)

    def _give(self, topic: UUID, partition: int, member_id: str) -> None:
        before = self._owners[topic][partition]
        if before is not None:
            self._load[before] -= 1
        self._owners[topic][partition] = member_id
        self._load[member_id] += 1

    def _give_free(self, topic: UUID) -> None:
        waiting = [(self._load[member_id], member_id) for member_id in self._subscribers[topic]]
        heapify(waiting)
        for partition, owner in enumerate(self._owners[topic]):
            if owner is None:
                load, member_id = waiting[0]
                heapreplace(waiting, (load + 1, member_id))
                self._give(topic, partition, member_id)

    def _least_loaded(self, topic: UUID) -> str:
        return min(self._subscribers[topic], key=self._load.__getitem__)

    def _balance(self) -> None:
        shared = [topic for topic in self._subscribers if len(self._subscribers[topic]) > 1]
        shared.sort(key=self._difficulty)
        for _ in range(BALANCE_ROUNDS_MAX):
            moved = [self._balance_topic(topic) for topic in shared]
            if not any(moved):
                return

    def _balance_topic(self, topic: UUID) -> bool:
        """Move this topic's partitions from its most loaded owners to its least loaded subscribers."""
        moved = False
        owned: dict[str, list[int]] = defaultdict(list)
        for partition, owner in enumerate(self._owners[topic]):
            if owner is not None:
                owned[owner].append(partition)
        while True:
            giver = max((owner for owner in owned if owned[owner]), key=partial(self._rank, owned), default=None)
            taker = self._least_loaded(topic)
            if giver is None or self._load[giver] - self._load[taker] <= 1:
                return moved
            partition = owned[giver].pop()
            owned[taker].append(partition)
            self._give(topic, partition, taker)
            moved = True

    def _rank(self, owned: Mapping[str, list[int]], owner: str) -> tuple[int, str]:
        return self._load[owner], owner


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}

"""Transactions and groups of Apache Kafka's Java clients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.clients import TIMEOUT_S, Received, Record
from tests.support.clients.coordinated import CLASSIC, Group, GroupMember, Membership, Offsets, Partition
from tests.support.clients.java import JavaClient, JavaReader, received, sendable
from tests.support.waiting import eventually

__all__ = ["CoordinatedJavaClient"]

ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


class CoordinatedJavaClient(JavaClient):
    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> JavaProducer:
        return JavaProducer(self, self.ask("transaction.open", id=transactional_id, timeout_ms=timeout_ms))

    def member(self, group: str, topics: Sequence[str], membership: Membership | None = None) -> JavaMember:
        settings = {"group.id": group, **_settings(membership or Membership())}
        return JavaMember(self, self.ask("member.open", topics=list(topics), settings=settings))

    def poll_each(self, members: Sequence[JavaMember]) -> list[Received]:
        return [each for member in members for each in member.poll(0.02)]

    def dying_member(self, group: str, topic: str, membership: Membership) -> DyingJavaMember:
        return DyingJavaMember(self.member(group, [topic], membership))

    @contextmanager
    def committed_reader(self, topic: str, partition: int = 0) -> Iterator[JavaReader]:
        handle = self.ask(
            "open_reader", topic=topic, partition=partition, offset=0, max_wait_ms=500, isolation="read_committed"
        )
        try:
            yield JavaReader(self, handle)
        finally:
            self.ask("close_reader", reader=handle)

    def groups(self) -> set[str]:
        return set(self.ask("group.list"))

    def describe_group(self, group: str) -> Group:
        described = self.ask("group.describe", group=group)
        return Group(
            state=described["state"],
            protocol=described["protocol"],
            assignor=described["assignor"],
            members=tuple(
                GroupMember(instance_id=each["instance_id"], partitions=frozenset(map(tuple, each["partitions"])))
                for each in described["members"]
            ),
        )

    def group_offsets(self, group: str) -> Offsets:
        return {(topic, partition): offset for topic, partition, offset in self.ask("group.offsets", group=group)}

    def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        self.ask("group.alter_offsets", group=group, offsets=_triples(offsets))

    def delete_group_offsets(self, group: str, partitions: Collection[Partition]) -> None:
        self.ask("group.delete_offsets", group=group, partitions=list(partitions))

    def delete_group(self, group: str) -> None:
        self.ask("group.delete", group=group)


class JavaProducer:
    def __init__(self, client: JavaClient, handle: int) -> None:
        self._client = client
        self._handle = handle

    def _ask(self, op: str, **arguments: Any) -> None:
        self._client.ask(f"transaction.{op}", producer=self._handle, **arguments)

    def begin(self) -> None:
        self._ask("begin")

    def send(self, topic: str, records: Sequence[Record]) -> None:
        self._ask("send", topic=topic, records=sendable(records))

    def send_offsets(self, member: JavaMember, offsets: Offsets) -> None:
        self._ask("send_offsets", member=member.handle, offsets=_triples(offsets))

    def commit(self) -> None:
        self._ask("commit")

    def abort(self) -> None:
        self._ask("abort")

    def close(self) -> None:
        self._ask("close")


class JavaMember:
    def __init__(self, client: JavaClient, handle: int) -> None:
        self._client = client
        self.handle = handle

    def _ask(self, op: str, **arguments: Any) -> Any:
        return self._client.ask(f"member.{op}", member=self.handle, **arguments)

    def poll(self, timeout_s: float) -> list[Received]:
        return [received(each) for each in self._ask("poll", timeout_ms=int(timeout_s * 1000))]

    def assignment(self) -> set[Partition]:
        return {(topic, partition) for topic, partition in self._ask("assignment")}

    def revoked(self) -> list[Partition]:
        return [(topic, partition) for topic, partition in self._ask("revoked")]

    def commit(self, offsets: Offsets) -> None:
        self._ask("commit", offsets=_triples(offsets))

    def commit_async(self, offsets: Offsets) -> None:
        self._ask("commit_async", offsets=_triples(offsets))

    def committed(self, at: Partition) -> int | None:
        return self._ask("committed", at=at)

    def position(self, at: Partition) -> int:
        return int(self._ask("position", at=at))

    def seek(self, at: Partition, offset: int) -> None:
        self._ask("seek", at=at, offset=offset)

    def close(self, *, silently: bool = False) -> None:
        self._ask("close", silently=silently)


class DyingJavaMember:
    """KIP-1092 lets a consumer end without leaving its group."""

    def __init__(self, member: JavaMember) -> None:
        self._member = member

    def join(self) -> None:
        eventually(
            lambda: self._member.poll(0.05) or self._member.assignment(), "it has partitions", timeout_s=TIMEOUT_S
        )

    def die(self) -> None:
        self._member.close(silently=True)


def _settings(membership: Membership) -> dict[str, object]:
    settings: dict[str, object] = {
        "group.protocol": membership.protocol,
        "auto.offset.reset": membership.reset,
        "isolation.level": "read_committed" if membership.committed_only else "read_uncommitted",
        "enable.auto.commit": membership.auto_commit_ms is not None,
        "auto.commit.interval.ms": membership.auto_commit_ms or 5000,
    }
    if membership.instance_id is not None:
        settings["group.instance.id"] = membership.instance_id
    if membership.protocol == CLASSIC:
        settings["partition.assignment.strategy"] = (
            f"org.apache.kafka.clients.consumer.{ASSIGNORS[membership.assignor]}"
        )
        settings["session.timeout.ms"] = membership.session_timeout_ms
        settings["heartbeat.interval.ms"] = 200
    else:
        settings["group.remote.assignor"] = membership.assignor
    return settings


def _triples(offsets: Offsets) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for (topic, partition), offset in offsets.items()]

"""Groups and offsets, request by request.

`GroupMember` is one member of a classic group on a connection of its own, since a join keeps its connection waiting.
Methods that end in `_once` send one request and return what the broker said; `send_join` and `joined` are the two
halves of a join, for tests in which something else happens in between.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from onceflow.errors import ErrorCode
from onceflow.wire.messages.delete_groups import DeleteGroupsRequest
from onceflow.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from onceflow.wire.messages.heartbeat import HeartbeatRequest
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from onceflow.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from onceflow.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from onceflow.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from onceflow.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.support.raw import Connection, Wire
from tests.support.raw_transactions import GROUP, find_coordinator
from tests.support.waiting import eventually

__all__ = [
    "SESSION_TIMEOUT_MS",
    "GroupMember",
    "commit",
    "commit_once",
    "committed",
    "delete_group",
    "delete_offsets",
    "describe_group",
    "fetch_once",
    "joined_alone",
    "list_group",
    "ready",
    "subscription",
]

SESSION_TIMEOUT_MS = 10_000
REBALANCE_TIMEOUT_MS = 10_000
SINGLE_GROUP_UNTIL = 7


def subscription(*topics: str) -> bytes:
    """What a consumer says when it joins: version 0, the topics, no data of its own."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def ready(wire: Wire, group: str) -> str:
    """The group, once it has a coordinator that answers; Apache Kafka makes one when it is first asked for."""
    find_coordinator(wire, group, GROUP)
    eventually(
        lambda: wire.ask(HeartbeatRequest(group_id=group)).error_code == ErrorCode.UNKNOWN_MEMBER_ID,
        f"the coordinator of {group} answers",
    )
    return group


class GroupMember:
    """A member of a classic group: `id` and `generation` are what the broker handed out last."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        *,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        instance_id: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        client_id: str = "raw",
    ) -> None:
        self.wire = Connection(bootstrap, client_id)
        self.group = group
        self.protocols = {"range": subscription("nothing")} if protocols is None else dict(protocols)
        self.protocol_type = protocol_type
        self.instance_id = instance_id
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.id = ""
        self.generation = -1
        self.protocol: str | None = None
        self._join_version: int | None = None

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self.wire.close()

    # Joining

    def join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in self.protocols.items()],
        )

    def join_once(self, version: int | None = None) -> JoinGroupResponse:
        return self.wire.ask(self.join_request(), version)

    def get_id(self) -> str:
        """Be given a member id (79), as the first of the two steps in which a new member joins."""
        answer = self.join_once()
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, ErrorCode(answer.error_code).name
        self.id = answer.member_id
        return self.id

    def send_join(self, version: int | None = None) -> None:
        if not self.id and self.instance_id is None and (version is None or version >= 4):
            self.get_id()
        self._join_version = version
        self.wire.send(self.join_request(), version)

    def joined(self) -> JoinGroupResponse:
        """The answer to `send_join`, which must be a success."""
        _, answer = self.wire.receive(self.join_request(), self._join_version)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        self.id, self.generation, self.protocol = answer.member_id, answer.generation_id, answer.protocol_name
        return answer

    def refused(self) -> ErrorCode:
        """The answer to `send_join`, which must not be a success."""
        _, answer = self.wire.receive(self.join_request(), self._join_version)
        assert answer.error_code != ErrorCode.NONE
        return ErrorCode(answer.error_code)

    def join(self, version: int | None = None) -> JoinGroupResponse:
        self.send_join(version)
        return self.joined()

    # Syncing

    def sync_request(self, assignments: Mapping[str, bytes] | None = None) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in (assignments or {}).items()
            ],
        )

    def sync_once(
        self, assignments: Mapping[str, bytes] | None = None, version: int | None = None
    ) -> SyncGroupResponse:
        return self.wire.ask(self.sync_request(assignments), version)

    def send_sync(self, assignments: Mapping[str, bytes] | None = None) -> None:
        self.wire.send(self.sync_request(assignments))

    def synced(self) -> SyncGroupResponse:
        return self.wire.receive(self.sync_request())[1]

    def sync(self, assignments: Mapping[str, bytes] | None = None) -> bytes:
        answer = self.sync_once(assignments)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        return answer.assignment

    # Staying and leaving

    def heartbeat(self, *, generation: int | None = None, version: int | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation if generation is None else generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
        )
        return ErrorCode(self.wire.ask(request, version).error_code)

    def leave_once(self, *members: MemberIdentity, version: int | None = None) -> LeaveGroupResponse:
        identities = members or (MemberIdentity(member_id=self.id, group_instance_id=self.instance_id),)
        request = LeaveGroupRequest(group_id=self.group, member_id=self.id, members=list(identities))
        return self.wire.ask(request, version)

    # Offsets

    def commit(self, topic: str, offset: int, *, version: int | None = None, **settings: Any) -> ErrorCode:
        settings = {"generation": self.generation, "member_id": self.id, "instance_id": self.instance_id, **settings}
        version = min(9, self.wire.highest(OffsetCommitRequest)) if version is None else version
        return commit_once(self.wire, self.group, topic, offset, version=version, **settings)


@contextlib.contextmanager
def joined_alone(bootstrap: str, group: str, **settings: Any) -> Iterator[GroupMember]:
    """The only member of a stable group."""
    with GroupMember(bootstrap, group, **settings) as member:
        member.join()
        member.sync({member.id: b"all"})
        yield member


# Offsets


def commit_once(
    wire: Connection,
    group: str,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    metadata: str | None = None,
    leader_epoch: int = -1,
    retention_ms: int = -1,
    topic_id: Any = None,
    version: int = 9,
) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        retention_time_ms=retention_ms,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=leader_epoch,
                        committed_metadata=metadata,
                    )
                ],
            )
        ],
    )
    [answer] = wire.ask(request, version).topics
    [answered] = answer.partitions
    assert answered.partition_index == partition
    return ErrorCode(answered.error_code)


def commit(wire: Wire, group: str, topic: str, offset: int, **settings: Any) -> None:
    """Commit without being a member, as soon as there is a coordinator."""
    ready(wire, group)
    error = commit_once(wire, group, topic, offset, **settings)
    assert error == ErrorCode.NONE, error.name


def fetch_once(
    wire: Connection,
    group: str,
    topics: Mapping[str, Sequence[int]] | None,
    *,
    version: int = 9,
    require_stable: bool = False,
    ids: Mapping[str, Any] | None = None,
) -> Any:
    """The part of the answer on one group, whatever the version."""
    if version <= SINGLE_GROUP_UNTIL:
        asked = None
        if topics is not None:
            asked = [OffsetFetchRequestTopic(name=name, partition_indexes=list(at)) for name, at in topics.items()]
        return wire.ask(OffsetFetchRequest(group_id=group, topics=asked, require_stable=require_stable), version)
    wanted = None
    if topics is not None:
        wanted = [
            OffsetFetchRequestTopics(name=name, topic_id=(ids or {}).get(name), partition_indexes=list(at))
            for name, at in topics.items()
        ]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)], require_stable=require_stable
    )
    [answer] = wire.ask(request, version).groups
    assert answer.group_id == group
    return answer


def committed(wire: Connection, group: str, topic: str, partition: int = 0, **settings: Any) -> int:
    """The committed offset, -1 if there is none."""
    answer = fetch_once(wire, group, {topic: [partition]}, **settings)
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    [found] = answer.topics[0].partitions
    assert found.error_code == ErrorCode.NONE, ErrorCode(found.error_code).name
    return found.committed_offset


def delete_offsets(wire: Connection, group: str, topics: Mapping[str, Sequence[int]]) -> OffsetDeleteResponse:
    return wire.ask(
        OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name, partitions=[OffsetDeleteRequestPartition(partition_index=at) for at in partitions]
                )
                for name, partitions in topics.items()
            ],
        )
    )


# Groups


def describe_group(wire: Connection, group: str, version: int | None = None, **settings: Any) -> DescribedGroup:
    [described] = wire.ask(DescribeGroupsRequest(groups=[group], **settings), version).groups
    assert described.group_id == group
    return described


def list_group(wire: Connection, group: str, version: int | None = None, **filters: Any) -> ListedGroup | None:
    """The group's line in the list of groups, if it is in there."""
    answer = wire.ask(ListGroupsRequest(**filters), version)
    assert answer.error_code == ErrorCode.NONE
    return next((listed for listed in answer.groups if listed.group_id == group), None)


def delete_group(wire: Connection, group: str) -> ErrorCode:
    [result] = wire.ask(DeleteGroupsRequest(groups_names=[group])).results
    return ErrorCode(result.error_code)

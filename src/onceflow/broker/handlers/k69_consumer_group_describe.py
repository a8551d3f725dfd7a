"""ConsumerGroupDescribe (69), v0-1: consumer groups, their members, what each has and is to have (KIP-848).

A group that does not exist, or is a classic one, is 69; that is how a client learns to ask DescribeGroups. v1 says of
a member which protocol it uses. A group that is assigned a topic which the client may not
know of is 29 as a whole.
"""

from __future__ import annotations

from onceflow.broker.access import check, may, operations_of
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


def handle(node: Node, context: Context, request: ConsumerGroupDescribeRequest) -> Deferred:
    answer = _Answer(node, [_describe(node, context, group_id) for group_id in request.group_ids])
    if request.include_authorized_operations:
        for group in answer.found:
            group.authorized_operations = operations_of(node, context, Resource.GROUP, group.group_id)
    answer.wait()
    return answer.deferred


def _describe(node: Node, context: Context, group_id: str) -> DescribedGroup:
    try:
        check(node, context, Operation.DESCRIBE, Resource.GROUP, group_id)
        if not group_id:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        described = node.groups.consumers[node.groups.index_of(group_id)].describe(group_id)
        if not all(may(node, context, Operation.DESCRIBE, Resource.TOPIC, name) for name in sorted(_topics(described))):
            # Which one, is what the client may not know.
            why = "Its members read a topic that you may not describe."
            raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
        return described
    except ProtocolError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)


def _topics(described: DescribedGroup) -> set[str]:
    return {
        assigned.topic_name
        for member in described.members
        for assignment in (member.assignment, member.target_assignment)
        for assigned in assignment.topic_partitions
    }


class _Answer:
    """What was described may have been written a moment ago: nobody is told before it is on disk."""

    def __init__(self, node: Node, groups: list[DescribedGroup]) -> None:
        self._groups = node.groups
        self._described = groups
        self.found = [group for group in groups if not group.error_code]
        self._missing = len(self.found)
        self.deferred = Deferred()

    def wait(self) -> None:
        for place, described in enumerate(self._described):
            if not described.error_code:
                index = self._groups.index_of(described.group_id)
                self._groups.log.when_durable(index, lambda error, at=place: self._on_disk(at, error))  # type: ignore[misc]
        self._finish_if_complete()

    def _on_disk(self, place: int, error: ErrorCode) -> None:
        self._missing -= 1
        if error:
            self._described[place] = DescribedGroup(group_id=self._described[place].group_id, error_code=error)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self._missing == 0:
            self.deferred.resolve(Answer(ConsumerGroupDescribeResponse(groups=self._described)))

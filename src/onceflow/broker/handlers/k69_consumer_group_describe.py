"""ConsumerGroupDescribe (69), v0-1: consumer groups, their members, what each has and is to have (KIP-848).

A group that does not exist, or is a classic one, is 69; that is how a client learns to ask DescribeGroups. v1 says of
a member that it uses the consumer protocol, as all do here.
"""

from __future__ import annotations

from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k15_describe_groups import ALL_OPERATIONS
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


def handle(node: Node, context: Context, request: ConsumerGroupDescribeRequest) -> Deferred:
    answer = _Answer(node, [_describe(node, group_id) for group_id in request.group_ids])
    if request.include_authorized_operations:
        for group in answer.found:
            group.authorized_operations = ALL_OPERATIONS
    answer.wait()
    return answer.deferred


def _describe(node: Node, group_id: str) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        return node.groups.consumers[node.groups.index_of(group_id)].describe(group_id)
    except ProtocolError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)


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

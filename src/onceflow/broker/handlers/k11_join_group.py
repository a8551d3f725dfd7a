"""JoinGroup (11), v0-9: become a member of a classic group, or stay one through a rebalance.

- The answer waits until the group has its next generation; the leader's has the members in it.
- v4 and newer: who comes without a member id is given one with 79 and has to come again (KIP-394), so that a client
  that is gone by then leaves no member behind. v5: static members (KIP-345). v9: a static leader that comes back is
  told not to assign again (KIP-814).
- 24 without a group id, 26 for a session timeout outside the broker's limits, 23 for a protocol that the others do not
  have, 81 for a full group, 42 for names that are too long to be written, and for a member that says more than
  `SAID_MAX` for its protocols. What all members say is kept in memory and bounded, too (81).
- A group that does not exist, or is a consumer group without members, is first written as an empty classic group; 16 if
  the disk refuses that.
- A consumer group with members takes classic ones, too, and answers at once: the broker assigns (`consumer_classic`).
"""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.broker.access import check
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.groups import client_of
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.classic import Join, join_refusal
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

NULL_PROTOCOL_FROM_VERSION = 7
NAME_LENGTH_MAX = 8_000
"""In characters. What a member calls itself is written to the log, where a name has 32,767 bytes."""


SAID_MAX = 2 * 1024 * 1024
"""In bytes. What is written of a group has to fit into a batch, which takes one megabyte."""


class JoinTicket(Deferred):
    """Before v7 there is no null for the protocol's name."""

    __slots__ = ("_version",)

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version

    def resolve(self, answer: Answer | None) -> None:
        if answer is not None and self._version < NULL_PROTOCOL_FROM_VERSION:
            assert isinstance(answer.message, JoinGroupResponse)
            answer.message.protocol_name = answer.message.protocol_name or ""
        super().resolve(answer)


def handle(node: Node, context: Context, request: JoinGroupRequest) -> Deferred:
    ticket = JoinTicket(context.version)
    ticket.on_hurry = lambda: ticket.resolve(Answer(join_refusal(ErrorCode.NOT_COORDINATOR, request.member_id)))
    if context.version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    join = Join(request, context.version, client_of(context), ticket)
    now_ms = node.clock.now_ms()
    try:
        _check(node, context, request)
        index = node.groups.index_of(request.group_id)
        coordinator = node.groups.coordinators[index]
        node.groups.write(index, coordinator.make_room(join, now_ms))
    except ProtocolError as error:
        ticket.resolve(Answer(join_refusal(error.code, request.member_id)))
        return ticket
    node.groups.carry_out(request.group_id, coordinator.join(join, now_ms))
    return ticket


def _check(node: Node, context: Context, request: JoinGroupRequest) -> None:
    check(node, context, Operation.READ, Resource.GROUP, request.group_id)
    settings = node.groups.classic_settings
    if not request.group_id:
        raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        raise ProtocolError(ErrorCode.INVALID_SESSION_TIMEOUT)
    names = [context.client_id, request.group_instance_id, request.protocol_type, *_protocol_names(request)]
    if any(name and len(name) > NAME_LENGTH_MAX for name in names):
        raise ProtocolError(ErrorCode.INVALID_REQUEST)
    said = sum(len(protocol.metadata) for protocol in request.protocols)
    if said > SAID_MAX:
        raise ProtocolError(ErrorCode.INVALID_REQUEST)
    node.groups.check_memory(said)


def _protocol_names(request: JoinGroupRequest) -> Iterator[str]:
    return (protocol.name for protocol in request.protocols)

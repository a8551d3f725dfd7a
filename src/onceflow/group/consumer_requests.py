"""What can be said of a ConsumerGroupHeartbeat without its group; the conditions and their order are Kafka's."""

from __future__ import annotations

from typing import Final

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.consumer_members import JOIN_EPOCH, LEFT_EPOCH, STATIC_LEFT_EPOCH
from onceflow.group.consumer_settings import ConsumerSettings
from onceflow.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

__all__ = ["check_request"]

MEMBER_ID_FROM_CLIENT: Final = 1
"""The first version in which a client makes its own member id (KIP-1082)."""


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, settings: ConsumerSettings) -> None:
    """Raise `ProtocolError` for what no member may say."""
    epoch = request.member_epoch
    if version >= MEMBER_ID_FROM_CLIENT or epoch > JOIN_EPOCH or epoch == LEFT_EPOCH:
        _refuse_blank(request.member_id, "MemberId")
    _refuse_blank(request.group_id, "GroupId")
    _refuse_blank(request.instance_id, "InstanceId")
    _refuse_blank(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEFT_EPOCH and request.instance_id is None:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < STATIC_LEFT_EPOCH:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in settings.assignors:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(settings.assignors)}.",
        )


def _refuse_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )

"""OffsetCommit (8), v2-10: how far a group has read.

- A member commits with its generation (in a consumer group: its epoch); who is not a member may commit with
  generation -1 to a group that has none.
- v2-4 may say how long to keep the offset; v10 names topics by id (KIP-848).
- A topic or partition that does not exist is 3 (100 where it was named by id), and the others are committed; so it is
  with metadata that is too long (12).
- The answer comes when the offsets are on disk. More than `AT_ONCE_MAX` are committed in parts; for each of them the
  member must still be allowed to: in a rebalance those that are left are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.broker.access import refusal
from onceflow.broker.deferred import Deferred
from onceflow.broker.groups import OffsetEntry
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.offsets import NO_EXPIRY, CommittedOffset
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from onceflow.wire.schema import Message

TOPIC_IDS_FROM_VERSION = 10
NO_RETENTION_TIME = -1
INT64_MAX = 2**63 - 1

AT_ONCE_MAX = 500

Asked = tuple[Topic, OffsetCommitRequestPartition, OffsetCommitResponsePartition]


def handle(node: Node, context: Context, request: OffsetCommitRequest) -> Message | Deferred | Steps:
    if len(request.topics) > AT_ONCE_MAX or sum([len(topic.partitions) for topic in request.topics]) > AT_ONCE_MAX:
        return _in_parts(node, context, request)
    answers = [_answer_for(topic) for topic in request.topics]
    answer = OffsetCommitResponse(topics=answers)
    denied = refusal(node, context, Operation.READ, Resource.GROUP, request.group_id)
    if denied:
        return _deny(answer, denied)
    asked = list(_existing(node, context, request.topics, answers))
    if not asked:
        return answer
    try:
        index = _commit(node, context, request, asked)
    except ProtocolError as error:
        return _refuse(answer, asked, error.code)
    return node.groups.answer(index, answer, lambda error: _refuse(answer, asked, error))


def _in_parts(node: Node, context: Context, request: OffsetCommitRequest) -> Steps:
    answer = OffsetCommitResponse()
    for topic in request.topics:
        answer.topics.append(_answer_for(topic))
        yield 1 + len(topic.partitions)
    denied = refusal(node, context, Operation.READ, Resource.GROUP, request.group_id)
    if denied:
        return _deny(answer, denied)
    asked: list[Asked] = []
    for topic, place in zip(request.topics, answer.topics, strict=True):
        asked += _existing(node, context, [topic], [place])
        yield 0
    committed: list[Asked] = []
    refused = ErrorCode.NONE
    index = 0
    for at in range(0, len(asked), AT_ONCE_MAX):
        part = asked[at : at + AT_ONCE_MAX]
        try:
            if refused:
                raise ProtocolError(refused)
            index = _commit(node, context, request, part)
            committed += part
        except ProtocolError as error:
            refused = error.code
            _refuse(answer, part, refused)
        yield 0
    if not committed:
        return answer
    return node.groups.answer(index, answer, lambda error: _refuse(answer, committed, error))


def _commit(node: Node, context: Context, request: OffsetCommitRequest, asked: list[Asked]) -> int:
    """Raises `ProtocolError` with nothing written. Returns the partition that has to be on disk."""
    groups = node.groups
    index = groups.index_of(request.group_id)
    now_ms = node.clock.now_ms()
    groups.coordinators[index].check_commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        ((topic.id, partition.partition_index) for topic, partition, _ in asked),
        transactional=False,
        version=context.version,
        now_ms=now_ms,
    )
    groups.commit(index, request.group_id, _entries(request, asked, groups.metadata_max_bytes, now_ms))
    return index


def _answer_for(topic: OffsetCommitRequestTopic) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=[OffsetCommitResponsePartition(partition_index=asked.partition_index) for asked in topic.partitions],
    )


def _existing(
    node: Node, context: Context, topics: list[OffsetCommitRequestTopic], answers: list[OffsetCommitResponseTopic]
) -> Iterator[Asked]:
    """Those of the partitions that exist, each with its place in the answer; the others get their error."""
    by_id = context.version >= TOPIC_IDS_FROM_VERSION
    for asked, answer in zip(topics, answers, strict=True):
        topic = node.topics.by_id(asked.topic_id) if by_id else node.topics.get(asked.name)
        denied = ErrorCode.NONE
        if topic is not None or not by_id:
            denied = refusal(node, context, Operation.READ, Resource.TOPIC, topic.name if topic else asked.name)
        for partition, place in zip(asked.partitions, answer.partitions, strict=True):
            if denied:
                place.error_code = denied
            elif topic is None:
                place.error_code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not 0 <= partition.partition_index < len(topic.partitions):
                place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                yield topic, partition, place


def _entries(request: OffsetCommitRequest, asked: list[Asked], metadata_max: int, now_ms: int) -> Iterator[OffsetEntry]:
    retention_ms = request.retention_time_ms
    expire_ms = NO_EXPIRY if retention_ms == NO_RETENTION_TIME else min(now_ms + retention_ms, INT64_MAX)
    for topic, partition, place in asked:
        metadata = partition.committed_metadata or ""
        if len(metadata) > metadata_max:
            place.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        offset, epoch = partition.committed_offset, partition.committed_leader_epoch
        committed = CommittedOffset(offset, epoch, metadata, now_ms, expire_ms, topic.id)
        yield topic.name, partition.partition_index, committed


def _deny(answer: OffsetCommitResponse, error: ErrorCode) -> OffsetCommitResponse:
    for topic in answer.topics:
        for place in topic.partitions:
            place.error_code = error
    return answer


def _refuse(answer: OffsetCommitResponse, asked: list[Asked], error: ErrorCode) -> OffsetCommitResponse:
    for *_, place in asked:
        place.error_code = error
    return answer

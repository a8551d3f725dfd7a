"""OffsetFetch (9), v1-10: how far groups have read.

- v1-7 ask about one group, v8 and newer about many (KIP-709). No list of topics means all of the group's offsets.
- v7 and newer can require stable offsets: one that an open transaction may still change is 88 then (KIP-447).
- v9 may name member and epoch, which a consumer group checks; v10 names topics by id, and one that does not exist
  is 100.
- What was never committed is -1, also for groups and topics that do not exist, and for a new topic of an old name.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

from onceflow.broker.access import check, is_visible, refusal
from onceflow.broker.deferred import Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, elements_of
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.coordinator import Coordinator
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from onceflow.wire.schema import Message

BATCHED_FROM_VERSION = 8
TOPIC_IDS_FROM_VERSION = 10
GROUP_ERROR_FROM_VERSION = 2
NOTHING_COMMITTED = -1
AT_ONCE_MAX = 500


def handle(node: Node, context: Context, request: OffsetFetchRequest) -> Message | Deferred | Steps:
    if not _is_small(context.version, request):
        return _in_steps(node, context, request)
    [asked] = groups = request.groups if context.version >= BATCHED_FROM_VERSION else [_as_group(request)]
    answer, read = _begin(node, context, asked, request.require_stable)
    if read is not None:
        answer.topics = [read.topic(topic) for topic in asked.topics or ()]
    return _answered(node, context, groups, [answer], [])


def _is_small(version: int, request: OffsetFetchRequest) -> bool:
    topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None = request.topics
    if version >= BATCHED_FROM_VERSION:
        if len(request.groups) != 1:
            return False
        topics = request.groups[0].topics
    if topics is None or len(topics) > AT_ONCE_MAX:
        return False
    return sum([len(topic.partition_indexes) for topic in topics]) <= AT_ONCE_MAX


def _in_steps(node: Node, context: Context, request: OffsetFetchRequest) -> Steps:
    seen = tuple(node.groups.coordinators)
    is_batched = context.version >= BATCHED_FROM_VERSION
    asked = request.groups if is_batched else [(yield from _as_group_in_steps(request))]
    answers = []
    for group in asked:
        answer, read = _begin(node, context, group, request.require_stable)
        if read is not None:
            for topic in read.all() if group.topics is None else map(read.topic, group.topics):
                answer.topics.append(topic)
                texts = sum([len(each.metadata or "") for each in topic.partitions])
                yield 1 + len(topic.partitions) + elements_of(texts)
        answers.append(answer)
        yield 1
    if not node.groups.are_still(seen):
        for answer in answers:
            answer.error_code = answer.error_code or ErrorCode.NOT_COORDINATOR
    old = []
    for topic in () if is_batched else answers[0].topics:
        old.append(_old_form(topic))
        yield 0
    return _answered(node, context, asked, answers, old)


def _answered(
    node: Node,
    context: Context,
    asked: list[OffsetFetchRequestGroup],
    answers: list[OffsetFetchResponseGroup],
    old: list[OffsetFetchResponseTopic],
) -> Message | Deferred:
    """`old` is the one answer in the form of older versions, if that has been made already."""
    # What was read may have been committed a moment ago: nobody is told before it is on disk.
    indexes = {at: node.groups.index_of(each.group_id) for at, each in enumerate(answers) if not each.error_code}

    def finish(errors: Mapping[int, ErrorCode]) -> Message:
        for at, index in indexes.items():
            answers[at].error_code = errors.get(index, ErrorCode.NONE)
        return _answer(context.version, asked, answers, old)

    return node.groups.answer_from(set(indexes.values()), finish)


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None if request.topics is None else [_as_topic(topic) for topic in request.topics]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _as_group_in_steps(request: OffsetFetchRequest) -> Generator[int, None, OffsetFetchRequestGroup]:
    if request.topics is None:
        return _as_group(request)
    topics = []
    for topic in request.topics:
        topics.append(_as_topic(topic))
        yield 0
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _as_topic(topic: OffsetFetchRequestTopic) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)


def _begin(
    node: Node, context: Context, asked: OffsetFetchRequestGroup, require_stable: bool
) -> tuple[OffsetFetchResponseGroup, _Reader | None]:
    """An answer without topics, and what reads them; None if they may not be read."""
    answer = OffsetFetchResponseGroup(group_id=asked.group_id)
    try:
        check(node, context, Operation.DESCRIBE, Resource.GROUP, asked.group_id)
        coordinator = node.groups.coordinator_of(asked.group_id)
        group = coordinator.get(asked.group_id)
        if group is not None:
            group.check_fetch(asked.member_id, asked.member_epoch)
    except ProtocolError as error:
        answer.error_code = error.code
        return answer, None
    return answer, _Reader(node, context, coordinator, asked.group_id, require_stable)


class _Reader:
    """The offsets of one group, in the form of an answer."""

    def __init__(
        self, node: Node, context: Context, coordinator: Coordinator, group_id: str, require_stable: bool
    ) -> None:
        self._node = node
        self._context = context
        self._topics = node.topics
        self._by_id = context.version >= TOPIC_IDS_FROM_VERSION
        self._offsets = coordinator.offsets
        self._group_id = group_id
        self._require_stable = require_stable

    def all(self) -> Iterator[OffsetFetchResponseTopics]:
        for name, offsets in tuple(self._offsets.of_group(self._group_id).items()):
            topic = self._topics.get(name)
            if topic is None or not is_visible(self._node, self._context, Resource.TOPIC, name):
                continue
            partitions = [at for at, offset in offsets.items() if offset.topic_id in (None, topic.id)]
            if partitions:
                yield self._answer_for(topic, partitions)

    def topic(self, asked: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
        topic = self._topics.by_id(asked.topic_id) if self._by_id else self._topics.get(asked.name)
        error = self._denied(topic.name if topic is not None else asked.name)
        if topic is not None and not error:
            return self._answer_for(topic, asked.partition_indexes)
        if topic is None and self._by_id:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        nothing = [_nothing(partition, error) for partition in asked.partition_indexes]
        return OffsetFetchResponseTopics(name=asked.name, topic_id=asked.topic_id, partitions=nothing)

    def _denied(self, name: str) -> ErrorCode:
        if not name:  # an id that nobody has
            return ErrorCode.NONE
        return refusal(self._node, self._context, Operation.DESCRIBE, Resource.TOPIC, name)

    def _answer_for(self, topic: Topic, partitions: Iterable[int]) -> OffsetFetchResponseTopics:
        found = [self._partition(topic, partition) for partition in partitions]
        return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.id, partitions=found)

    def _partition(self, topic: Topic, partition: int) -> OffsetFetchResponsePartitions:
        if self._require_stable and self._offsets.is_pending(self._group_id, topic.name, partition):
            return _nothing(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        found = self._offsets.get(self._group_id, topic.name, partition)
        if found is None or found.topic_id not in (None, topic.id):
            return _nothing(partition)
        return OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=found.offset,
            committed_leader_epoch=found.leader_epoch,
            metadata=found.metadata,
        )


def _nothing(partition: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=NOTHING_COMMITTED, metadata="", error_code=error
    )


def _answer(
    version: int,
    asked: list[OffsetFetchRequestGroup],
    answers: list[OffsetFetchResponseGroup],
    old: list[OffsetFetchResponseTopic],
) -> OffsetFetchResponse:
    for group, answer in zip(asked, answers, strict=True):
        if answer.error_code:
            answer.topics = _refused(version, group, answer.error_code)
            old = []
    if version >= BATCHED_FROM_VERSION:
        return OffsetFetchResponse(groups=answers)
    [answer] = answers
    return OffsetFetchResponse(
        error_code=answer.error_code, topics=old or [_old_form(topic) for topic in answer.topics]
    )


def _refused(version: int, group: OffsetFetchRequestGroup, error: int) -> list[OffsetFetchResponseTopics]:
    """Before there was a place for the error of a group, it was told for every partition."""
    if version >= GROUP_ERROR_FROM_VERSION:
        return []
    return [
        OffsetFetchResponseTopics(
            name=topic.name, partitions=[_nothing(at, ErrorCode(error)) for at in topic.partition_indexes]
        )
        for topic in group.topics or ()
    ]


def _old_form(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
                error_code=each.error_code,
            )
            for each in topic.partitions
        ],
    )

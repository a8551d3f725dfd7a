"""TxnOffsetCommit (28), v0-5: how far a group has read, as part of a transaction.

- The offsets are written into the transaction and count when it commits; until then nobody is shown them, and who
  requires stable offsets is told to wait.
- v3 and newer name member and generation, by which a zombie is refused: 22, 25, 82 (KIP-447). With generation -1 and
  without a member anybody may commit.
- First the transaction is verified; v5 and newer add the group's partition of the offsets topic to it on the way
  (KIP-890).
- As in OffsetCommit, 3 for partitions that do not exist and 12 for metadata that is too long concern those alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.broker.access import refusal
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.groups import OffsetEntry
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.topics import CONSUMER_OFFSETS, Topic
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.offsets import CommittedOffset
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ABORTABLE_FROM_VERSION = 4
ADDED_ON_THE_WAY_FROM_VERSION = 5

Asked = tuple[Topic, TxnOffsetCommitRequestPartition, TxnOffsetCommitResponsePartition]


def handle(node: Node, context: Context, request: TxnOffsetCommitRequest) -> Deferred:
    commit = _Commit(node, context, request)
    commit.start()
    return commit.deferred


class _Commit:
    """One request, from its verification to its answer."""

    def __init__(self, node: Node, context: Context, request: TxnOffsetCommitRequest) -> None:
        self._node = node
        self._context = context
        self._version = context.version
        self._request = request
        self._answer = TxnOffsetCommitResponse(topics=[_answer_for(topic) for topic in request.topics])
        self._asked: list[Asked] = []
        self._index = 0
        self.deferred = Deferred()

    def start(self) -> None:
        request = self._request
        denied = self._denied()
        if denied:
            self._deny(denied)
            return
        self._asked = list(_existing(self._node, self._context, request.topics, self._answer.topics))
        if not self._asked:
            self._finish()
        elif not request.group_id:
            self._refuse(ErrorCode.INVALID_GROUP_ID)
        else:
            try:
                self._index = self._node.groups.index_of(request.group_id)
            except ProtocolError as error:
                self._refuse(error.code)
            else:
                self._verify()

    def _denied(self) -> ErrorCode:
        node, context, request = self._node, self._context, self._request
        return refusal(node, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id) or refusal(
            node, context, Operation.READ, Resource.GROUP, request.group_id
        )

    def _deny(self, error: ErrorCode) -> None:
        for topic in self._answer.topics:
            for place in topic.partitions:
                place.error_code = error
        self._finish()

    def _verify(self) -> None:
        request = self._request
        self._node.transactions.verify(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [(CONSUMER_OFFSETS, self._index)],
            add=self._version >= ADDED_ON_THE_WAY_FROM_VERSION,
            proceed=self._write,
            refuse=self._refuse,
            knows_abortable=self._version >= ABORTABLE_FROM_VERSION,
        )

    def _write(self) -> None:
        request, groups, now_ms = self._request, self._node.groups, self._node.clock.now_ms()
        try:
            groups.coordinators[self._index].check_commit(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                ((topic.id, partition.partition_index) for topic, partition, _ in self._asked),
                transactional=True,
                version=self._version,
                now_ms=now_ms,
            )
            entries = self._entries(groups.metadata_max_bytes, now_ms)
            groups.commit(self._index, request.group_id, entries, (request.producer_id, request.producer_epoch))
        except ProtocolError as error:
            self._refuse(error.code)
        else:
            groups.log.when_durable(self._index, lambda error: self._refuse(error) if error else self._finish())

    def _entries(self, metadata_max: int, now_ms: int) -> Iterator[OffsetEntry]:
        for topic, partition, place in self._asked:
            metadata = partition.committed_metadata or ""
            if len(metadata) > metadata_max:
                place.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            offset, epoch = partition.committed_offset, partition.committed_leader_epoch
            committed = CommittedOffset(offset, epoch, metadata, now_ms, topic_id=topic.id)
            yield topic.name, partition.partition_index, committed

    def _refuse(self, error: ErrorCode) -> None:
        for *_, place in self._asked:
            place.error_code = error
        self._finish()

    def _finish(self) -> None:
        self.deferred.resolve(Answer(self._answer))


def _answer_for(topic: TxnOffsetCommitRequestTopic) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=asked.partition_index) for asked in topic.partitions
        ],
    )


def _existing(
    node: Node,
    context: Context,
    topics: list[TxnOffsetCommitRequestTopic],
    answers: list[TxnOffsetCommitResponseTopic],
) -> Iterator[Asked]:
    """Those of the partitions that exist, each with its place in the answer; the others get their error."""
    for asked, answer in zip(topics, answers, strict=True):
        topic = node.topics.get(asked.name)
        denied = refusal(node, context, Operation.READ, Resource.TOPIC, asked.name)
        for partition, place in zip(asked.partitions, answer.partitions, strict=True):
            if denied:
                place.error_code = denied
            elif topic is None or not 0 <= partition.partition_index < len(topic.partitions):
                place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                yield topic, partition, place

"""Produce (0), v3-13: record batches into logs.

- One batch of magic 2 per partition; each partition has its own outcome.
- acks 0, 1 and -1. With one node 1 and -1 mean the same: on disk (`fsync`), or with the kernel (`os`). After acks=0
  nothing is answered; an error closes the connection, which is all that such a client can notice.
- A repeat by an idempotent producer is answered like the first time, and not before that is on disk.
- v13 names topics by id (KIP-516).

- The first transactional batch of a producer on a partition is checked with the coordinator: the partition must be in
  the transaction (up to v10 48, v11 120). v12 and newer add it to the transaction themselves (V2, KIP-890). Nothing is
  written before that is on disk; meanwhile the request waits, and what else the producer sends waits behind it.
- Verification that has to be tried again is 19 up to v11, 51 since.
- Access: 53 for all of a request whose transactional id the client may not use, 29 for a topic. A topic that is denied
  joins no transaction.

This is the hot path: current versions are read and answered by hand (`wire.produce`), and nothing here looks at a
record.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from uuid import UUID

from onceflow.broker.access import Authorizer
from onceflow.broker.complaints import complain
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context, Peer
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topic
from onceflow.broker.transaction_events import count_fencing
from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError, StorageError, UntoldFailure
from onceflow.log.producers import ProducerStates
from onceflow.log.validation import accept
from onceflow.monitor.meters import Meters
from onceflow.txn.transaction import TopicPartition
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.batch import HEADER_SIZE, BatchHeader, read_header
from onceflow.wire.codec import decode_from
from onceflow.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from onceflow.wire.produce import (
    BY_HAND_FROM_VERSION,
    TOPIC_IDS_FROM_VERSION,
    Batch,
    ProduceBody,
    TopicKey,
    Written,
    encode_success,
    read_produce,
)

ZSTD_FROM_VERSION: Final = 7
ABORTABLE_FROM_VERSION: Final = 11
V2_FROM_VERSION: Final = 12
NOTHING_REFUSED: Final[dict[TopicPartition, ErrorCode]] = {}
NOTHING_DENIED: Final[dict[TopicKey, ErrorCode]] = {}
# On the hot path: looking up a member of an enumeration takes longer than the rest of the check.
WRITE: Final = Operation.WRITE
TOPIC: Final = Resource.TOPIC
DENIED: Final = "Authorization failed: nothing was written to this topic."
RECORD_ERRORS: Final = (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)

Failure = tuple[int, ErrorCode, str | None]
"""A partition index, and why its batch was not written."""


def handle_frame(node: Node, context: Context, frame: memoryview, body_at: int) -> Answer | Deferred | None:
    version = context.version
    body = _read(frame, body_at, version)
    denied = NOTHING_DENIED if node.authorizer is None else _denied(node, node.authorizer, context.peer, body)
    if body.transactional_id is None:
        return _write(node, version, body, NOTHING_REFUSED, denied)
    request = _InTransaction(node, version, body, denied)
    if request.may_wait():  # and the frame is in a buffer that does not
        request.body = _read(memoryview(bytearray(frame)), body_at, version)
    return request.write()


def _read(frame: memoryview, body_at: int, version: int) -> ProduceBody:
    if version >= BY_HAND_FROM_VERSION:
        return read_produce(frame, body_at, version)
    return _read_old(frame, body_at, version)


def _denied(node: Node, authorizer: Authorizer, peer: Peer, body: ProduceBody) -> dict[TopicKey, ErrorCode]:
    """The topics that this client may not write to. An id that nobody has is not denied: it is found out later."""
    id = body.transactional_id
    if id is not None and _is_transactional(body) and not authorizer.allows(peer, WRITE, Resource.TRANSACTIONAL_ID, id):
        return dict.fromkeys((key for key, _ in body.topics), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    denied = {}
    for key, _ in body.topics:
        topic = node.topics.find(key)
        name = key if topic is None else topic.name
        if isinstance(name, str) and not authorizer.allows(peer, WRITE, TOPIC, name):
            denied[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return denied


def _is_transactional(body: ProduceBody) -> bool:
    return any(
        len(records) >= HEADER_SIZE and read_header(records).is_transactional
        for _, batches in body.topics
        for _, records in batches
    )


class _InTransaction:
    """A produce request of a transactional producer, which may have to wait for the coordinator."""

    def __init__(self, node: Node, version: int, body: ProduceBody, denied: dict[TopicKey, ErrorCode]) -> None:
        self._node = node
        self._version = version
        self._denied = denied
        self.body = body
        assert body.transactional_id is not None
        self._id: str = body.transactional_id
        self._unverified: dict[TopicPartition, None] = {}
        self._result: Answer | Deferred | None = None
        self._deferred: Deferred | None = None
        self._is_settled = False

    def may_wait(self) -> bool:
        return self._node.config.fsync and (self._node.transactions.is_busy(self._id) or bool(self._look()))

    def write(self) -> Answer | Deferred | None:
        self._node.transactions.when_free(self._id, self._verify)
        if self._is_settled:
            return self._result
        self._deferred = Deferred()
        return self._deferred

    def _verify(self) -> None:
        """The id is not busy: what was written before is known."""
        identities = self._look()
        if len(identities) > 1:
            self._refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif identities:
            self._node.transactions.verify(
                self._id,
                *identities.pop(),
                self._unverified,
                add=self._version >= V2_FROM_VERSION,
                proceed=partial(self._settle, NOTHING_REFUSED),
                refuse=self._refuse,
                knows_abortable=self._version >= ABORTABLE_FROM_VERSION,
            )
        else:
            self._settle(NOTHING_REFUSED)

    def _look(self) -> set[tuple[int, int]]:
        """Note the partitions on which a transaction begins; returns the producers (id, epoch) of these batches."""
        identities = set()
        for key, batches in self.body.topics:
            topic = self._node.topics.find(key) if key not in self._denied else None
            for index, records in batches:
                if topic is None or not 0 <= index < len(topic.partitions) or len(records) < HEADER_SIZE:
                    continue  # it will be refused without the coordinator
                header = read_header(records)
                if header.is_transactional and not _is_known(topic.partitions[index].log.producers, header):
                    self._unverified[topic.name, index] = None
                    identities.add((header.producer_id, header.producer_epoch))
        return identities

    def _refuse(self, error: ErrorCode) -> None:
        told = self._told(error)
        self._settle(dict.fromkeys(self._unverified, told))

    def _told(self, error: ErrorCode) -> ErrorCode:
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and self._version >= V2_FROM_VERSION:
            return error
        if error in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            return ErrorCode.NOT_ENOUGH_REPLICAS  # what older clients retry without asking who is the leader
        return error

    def _settle(self, refused: dict[TopicPartition, ErrorCode]) -> None:
        if self._deferred is None:
            self._result = _write(self._node, self._version, self.body, refused, self._denied)
            self._is_settled = True
            return
        deferred = self._deferred
        try:
            result = _write(self._node, self._version, self.body, refused, self._denied)
        except MalformedMessage as error:
            complain("acks=0", "%s", error)
            result = None
        if isinstance(result, Deferred):
            result.when_done(lambda: deferred.resolve(result.result))
        else:
            deferred.resolve(result)


def _is_known(producers: ProducerStates, header: BatchHeader) -> bool:
    """Whether the partition can decide alone: the transaction is open on it, or it has seen a later epoch."""
    producer = producers.get(header.producer_id)
    if producer is None or producer.epoch < header.producer_epoch:
        return False
    return producer.is_in_transaction or producer.epoch > header.producer_epoch


def _write(
    node: Node,
    version: int,
    body: ProduceBody,
    refused: dict[TopicPartition, ErrorCode],
    denied: dict[TopicKey, ErrorCode],
) -> Answer | Deferred | None:
    """Append every batch, but for those on partitions that the coordinator has refused, or topics that are denied."""
    outcome = _Outcome(node.meters, version, body.transactional_id is not None, refused)
    for key, batches in body.topics:
        topic = node.topics.find(key)
        results: list[Written | Failure] = []
        outcome.topics.append((key, results))
        for batch in batches:
            try:
                if denied and key in denied:
                    raise ProtocolError(denied[key], DENIED)
                results.append(_append(node, version, body.acks, topic, batch, outcome, len(results)))
            except ProtocolError as error:
                outcome.failed = True
                results.append((batch[0], error.code, error.message))
                _count_refusal(node, topic, batch, error.code, body.transactional_id, refused)
            except StorageError as error:
                outcome.failed = True
                results.append((batch[0], ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
                if topic is not None:
                    node.disk_trouble.refused(topic.partitions[batch[0]], error)
                _count_refusal(node, topic, batch, ErrorCode.KAFKA_STORAGE_ERROR, body.transactional_id, refused)
    if body.acks == 0:
        if outcome.failed:
            raise UntoldFailure(f"A produce with acks=0 failed, which its client cannot be told: {outcome.failures()}")
        return None
    if outcome.waiting:
        return outcome.when_durable()
    return Answer(outcome.encode())


def _count_refusal(
    node: Node,
    topic: Topic | None,
    batch: Batch,
    code: ErrorCode,
    transactional_id: str | None,
    refused: dict[TopicPartition, ErrorCode],
) -> None:
    meters = node.meters
    meters.produce_errors[code.name] += 1
    if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        meters.out_of_order += 1
    elif code is ErrorCode.INVALID_PRODUCER_EPOCH and topic is not None:
        place = (topic.name, batch[0])
        if place in refused:
            return  # by the coordinator, which has counted it
        header = read_header(batch[1])
        current = topic.partitions[batch[0]].log.producers.get(header.producer_id)
        count_fencing(node, (header.producer_id, header.producer_epoch), transactional_id, current, place)


def _append(
    node: Node, version: int, acks: int, topic: Topic | None, batch: Batch, outcome: _Outcome, at: int
) -> Written:
    """Append one batch; `outcome` remembers if it has to be waited for."""
    index, records = batch
    if not -1 <= acks <= 1:
        raise ProtocolError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it must be -1, 0 or 1.")
    if topic is None or not 0 <= index < len(topic.partitions):
        by_id = topic is None and version >= TOPIC_IDS_FROM_VERSION
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise ProtocolError(code, "This server does not host this topic-partition.")
    if topic.is_internal:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Only the broker itself writes to {topic.name}.")
    partition = topic.partitions[index]
    log = partition.log
    now_ms = node.clock.now_ms()
    records, header = accept(records, log.config, now_ms, zstd_allowed=version >= ZSTD_FROM_VERSION)
    new_from_zero = False
    if header.is_transactional:
        outcome.check_transactional(topic.name, index)
        new_from_zero = version >= V2_FROM_VERSION
    appended = log.append(records, header, now_ms, new_from_zero=new_from_zero)
    base_offset = appended.base_offset
    if appended.repeated:
        node.meters.duplicates += 1
    else:
        traffic = topic.traffic
        traffic.records_in += header.count
        traffic.bytes_in += len(records)
    end = base_offset + header.last_offset_delta + 1
    if end > log.high_watermark:
        outcome.waiting.append((partition, end, len(outcome.topics) - 1, at))
        assert node.group_commit is not None
        node.group_commit.wrote(partition)
    elif partition.fetchers:
        partition.wake()
    return index, base_offset, appended.append_time_ms, log.start_offset


class _Outcome:
    """What became of each batch of a request, in the order of the request."""

    __slots__ = ("_has_transactional_id", "_left", "_meters", "_refused", "_version", "failed", "topics", "waiting")

    def __init__(
        self, meters: Meters, version: int, has_transactional_id: bool, refused: dict[TopicPartition, ErrorCode]
    ) -> None:
        self._meters = meters
        self._version = version
        self._has_transactional_id = has_transactional_id
        self._refused = refused
        self._left = 0
        self.failed = False
        self.topics: list[tuple[TopicKey, list[Written | Failure]]] = []
        self.waiting: list[tuple[Partition, int, int, int]] = []
        """(partition, offset that must be durable, topic in `topics`, result in its list)"""

    def check_transactional(self, topic: str, index: int) -> None:
        """Raise if a transactional batch may not be written here."""
        if not self._has_transactional_id:
            raise ProtocolError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "A transactional batch came in a request that names no transactional id.",
            )
        error = self._refused.get((topic, index))
        if error is not None:
            raise ProtocolError(error, "The transaction coordinator refused: nothing was written.")

    def when_durable(self) -> Deferred:
        """An answer for when every batch is on disk, or has failed to get there."""
        deferred = Deferred()
        self._left = len(self.waiting)
        for partition, end, topic, at in self.waiting:
            partition.when_durable(end, partial(self._settle, deferred, topic, at))
        return deferred

    def _settle(self, deferred: Deferred, topic: int, at: int, error: ErrorCode) -> None:
        if error:
            self._meters.produce_errors[error.name] += 1
            results = self.topics[topic][1]
            results[at] = (results[at][0], error, "The write could not be brought to disk and was taken back.")
            self.failed = True
        self._left -= 1
        if self._left == 0:
            deferred.resolve(Answer(self.encode()))

    def failures(self) -> str:
        """For the log."""
        failed = [
            f"{key if isinstance(key, str) else UUID(bytes=key)}-{result[0]}: {result[1].name} ({result[2]})"
            for key, results in self.topics
            for result in results
            if len(result) == 3
        ]
        return f"{failed[0]}, and {len(failed) - 1} more" if len(failed) > 1 else failed[0]

    def encode(self) -> bytes | ProduceResponse:
        if not self.failed and self._version >= BY_HAND_FROM_VERSION:
            return encode_success(self.topics, self._version)  # type: ignore[arg-type]  # nothing failed
        return ProduceResponse(responses=[_topic_response(key, results) for key, results in self.topics])


def _topic_response(key: TopicKey, results: list[Written | Failure]) -> TopicProduceResponse:
    response = TopicProduceResponse(partition_responses=[_partition_response(result) for result in results])
    if isinstance(key, str):
        response.name = key
    else:
        response.topic_id = UUID(bytes=key)
    return response


def _partition_response(result: Written | Failure) -> PartitionProduceResponse:
    if len(result) == 4:
        index, base_offset, append_time_ms, log_start = result
        return PartitionProduceResponse(
            index=index, base_offset=base_offset, log_append_time_ms=append_time_ms, log_start_offset=log_start
        )
    index, code, message = result
    response = PartitionProduceResponse(index=index, error_code=code, base_offset=-1, error_message=message)
    if code in RECORD_ERRORS:
        response.record_errors = [BatchIndexAndErrorMessage(batch_index_error_message=message)]
    return response


def _read_old(frame: memoryview, body_at: int, version: int) -> ProduceBody:
    request, _ = decode_from(ProduceRequest, version, frame, body_at)
    topics: list[tuple[TopicKey, list[Batch]]] = [
        (topic.name, [(data.index, memoryview(data.records or b"")) for data in topic.partition_data])
        for topic in request.topic_data
    ]
    return ProduceBody(request.transactional_id, request.acks, request.timeout_ms, topics)

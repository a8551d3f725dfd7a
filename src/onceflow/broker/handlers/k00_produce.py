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
- Records are named that a topic does not take (KIP-467). What is wrong inside a batch is 87, and nothing of the batch
  is written; what is looked at inside is told in `log.validation`.
- Access: 53 for all of a request whose transactional id the client may not use, 29 for a topic. A topic that is denied
  joins no transaction.

This is the hot path: current versions are read and answered by hand (`wire.produce`), and nothing here looks at a
record, unless the topic asks for it. What takes long is divided as everything is (`large_requests`): a request with
many partitions is read in the thread and written in steps, and from the first batch on that its topic wants opened, a
request goes on in steps, too: it is opened in the thread, unless it is small. Everything keeps its order, since the
connection is held until all batches of a request are written; nobody is promised an order between connections. The
transaction may have ended in a pause, by the client's next connection: so after one it is verified again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from onceflow.broker.access import Authorizer
from onceflow.broker.complaints import complain
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import APIS, Context, Peer
from onceflow.broker.large_requests import LargeRequests, Steps, run_at_once
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topic
from onceflow.broker.transaction_events import count_fencing
from onceflow.broker.transactions import as_told_to_writers
from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError, StorageError, UntoldFailure
from onceflow.log.producers import ProducerStates
from onceflow.log.validation import examine, is_quickly_packed, is_to_be_opened, opened, unpack
from onceflow.monitor.meters import Meters
from onceflow.steps import Work, in_thread
from onceflow.txn.transaction import TopicPartition
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.batch import HEADER_SIZE, TRANSACTIONAL_BIT, BatchHeader, read_header
from onceflow.wire.codec import decode_from
from onceflow.wire.compression import DECOMPRESSED_BYTES_MAX
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
from onceflow.wire.schema import Message
from onceflow.wire.thinning import unpacked_if_small

PRODUCE: Final = 0
ELEMENTS_MAX: Final = APIS[PRODUCE].elements_max
ZSTD_FROM_VERSION: Final = 7
ABORTABLE_FROM_VERSION: Final = 11
V2_FROM_VERSION: Final = 12
NOTHING_REFUSED: Final[dict[TopicPartition, ErrorCode]] = {}
NOTHING_DENIED: Final[dict[TopicKey, ErrorCode]] = {}
# On the hot path: looking up a member of an enumeration takes longer than the rest of the check.
WRITE: Final = Operation.WRITE
TOPIC: Final = Resource.TOPIC
DENIED: Final = "Authorization failed: nothing was written to this topic."
READ_AT_ONCE_MAX: Final = 200
"""Topics, partitions and tagged fields. A request with more is read in the thread and written in steps."""
LOOKED_UP_AT_ONCE: Final = 50
OPENED_BYTES_MAX: Final = 4 * DECOMPRESSED_BYTES_MAX
"""Bytes of records that are unpacked for one request: half a second of work, in the thread."""


class Failure(NamedTuple):
    """Why a batch was not written."""

    partition: int
    code: ErrorCode
    message: str | None
    record_errors: tuple[tuple[int, str], ...] = ()


class _IsToBeOpened(Exception):
    """A batch, which is more than can be done at once."""


def handle_frame(node: Node, context: Context, frame: memoryview, body_at: int) -> Answer | Deferred | None:
    version = context.version
    large = node.large_requests
    try:
        body = _read(frame, body_at, version, READ_AT_ONCE_MAX if large is not None else ELEMENTS_MAX)
    except MalformedMessage:
        if large is None:
            raise
        return _handle_large(node, context, frame, body_at, large)
    denied = NOTHING_DENIED
    if node.authorizer is not None:
        denied = _denied(node, node.authorizer, context.peer, body, body.topics)
    if body.transactional_id is None:
        return _write(node, version, body, NOTHING_REFUSED, denied, large)
    return _write_in_transaction(node, version, body, denied, frame, body_at)


def _handle_large(node: Node, context: Context, frame: memoryview, body_at: int, large: LargeRequests) -> Deferred:
    def read() -> tuple[ProduceBody, int]:  # if it is no request, this says so
        return _read(frame, body_at, context.version, ELEMENTS_MAX), len(frame)

    return large.decode(read, partial(_handle_in_steps, node, context, frame, body_at), context.version)


def _handle_in_steps(node: Node, context: Context, frame: memoryview, body_at: int, body: ProduceBody) -> Steps:
    denied = NOTHING_DENIED
    if node.authorizer is not None:
        denied = {}
        for at in range(0, len(body.topics), LOOKED_UP_AT_ONCE):
            topics = body.topics[at : at + LOOKED_UP_AT_ONCE]
            denied |= _denied(node, node.authorizer, context.peer, body, topics)
            yield 0
    if body.transactional_id is None:
        outcome = _Outcome(node.meters, context.version, False, NOTHING_REFUSED)
        return (yield from _write_rest(node, context.version, body, outcome, denied))
    return _write_in_transaction(node, context.version, body, denied, frame, body_at, is_large=True)


def _write_in_transaction(
    node: Node,
    version: int,
    body: ProduceBody,
    denied: dict[TopicKey, ErrorCode],
    frame: memoryview,
    body_at: int,
    *,
    is_large: bool = False,
) -> Answer | Deferred | None:
    request = _InTransaction(node, version, body, denied, is_large)
    if request.may_wait():  # and the frame is in a buffer that does not
        request.body = _read(memoryview(bytearray(frame)), body_at, version, ELEMENTS_MAX)
    return request.write()


def _read(frame: memoryview, body_at: int, version: int, elements_max: int) -> ProduceBody:
    if version >= BY_HAND_FROM_VERSION:
        return read_produce(frame, body_at, version, elements_max)
    return _read_old(frame, body_at, version, elements_max)


def _denied(
    node: Node,
    authorizer: Authorizer,
    peer: Peer,
    body: ProduceBody,
    topics: Sequence[tuple[TopicKey, list[Batch]]],
) -> dict[TopicKey, ErrorCode]:
    """The topics that this client may not write to. An id that nobody has is not denied: it is found out later."""
    id = body.transactional_id
    if id is not None and _is_transactional(body) and not authorizer.allows(peer, WRITE, Resource.TRANSACTIONAL_ID, id):
        return dict.fromkeys((key for key, _ in topics), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    denied = {}
    for key, _ in topics:
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

    def __init__(
        self, node: Node, version: int, body: ProduceBody, denied: dict[TopicKey, ErrorCode], is_large: bool
    ) -> None:
        self._node = node
        self._is_large = is_large
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
        self._deferred.holds = self._is_long()
        return self._deferred

    def _is_long(self) -> bool:
        """Whether it is not written in one step: what the producer sends next must not come in between."""
        now_ms = self._node.clock.now_ms()
        for key, batches in () if self._is_large else self.body.topics:
            topic = self._node.topics.find(key)
            for index, records in batches:
                if topic is None or not 0 <= index < len(topic.partitions) or len(records) < HEADER_SIZE:
                    continue
                if is_to_be_opened(read_header(records), topic.partitions[index].log.config, now_ms):
                    return True
        return self._is_large

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
        deferred = self._deferred
        if deferred is None:
            self._result = self._write(refused, self._node.large_requests)
            self._is_settled = True
            return
        try:
            result = self._write(refused, self._node.large_requests if deferred.holds else None)
        except MalformedMessage as error:
            complain("acks=0", "%s", error)
            result = None
        if isinstance(result, Deferred):
            _pass_on(result, deferred)
        else:
            deferred.resolve(result)

    def _write(self, refused: dict[TopicPartition, ErrorCode], large: LargeRequests | None) -> Answer | Deferred | None:
        if not self._is_large:
            return _write(self._node, self._version, self.body, refused, self._denied, large)
        outcome = _Outcome(self._node.meters, self._version, True, refused)
        return _run(large, _write_rest(self._node, self._version, self.body, outcome, self._denied), self._version)


def _pass_on(written: Deferred, deferred: Deferred) -> None:
    """Have an answer given to who waits for the other one."""
    if written.holds:
        written.on_release = deferred.release
    elif deferred.holds:
        deferred.release()

    def done() -> None:
        if written.error is not None:
            deferred.fail(written.error)
        else:
            deferred.resolve(written.result)

    written.when_done(done)


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
    large: LargeRequests | None,
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
            except _IsToBeOpened:
                return _run(large, _write_rest(node, version, body, outcome, denied), version)
            except (ProtocolError, StorageError) as error:
                results.append(_failure(node, topic, batch, error, body.transactional_id, outcome))
    return _answer(body.acks, outcome)


def _run(large: LargeRequests | None, steps: Steps, version: int) -> Answer | Deferred | None:
    if large is not None:
        return large.run(steps, version)
    result = run_at_once(steps)
    assert not isinstance(result, Message)
    return result


def _write_rest(
    node: Node, version: int, body: ProduceBody, outcome: _Outcome, denied: dict[TopicKey, ErrorCode]
) -> Steps:
    """`_write` in steps, from the batch on that is the first one without an outcome."""
    first = max(0, len(outcome.topics) - 1)
    for key, batches in body.topics[first:]:
        if len(outcome.topics) == first:
            outcome.topics.append((key, []))
        first += 1
        results = outcome.topics[-1][1]
        for batch in batches[len(results) :]:
            topic = node.topics.find(key)  # each time: there was a pause
            try:
                if denied and key in denied:
                    raise ProtocolError(denied[key], DENIED)
                _verify_again(node, version, body.transactional_id, topic, batch, outcome)
                try:
                    written = _append(node, version, body.acks, topic, batch, outcome, len(results))
                except _IsToBeOpened:
                    taken = yield from _opened(node, topic, batch, outcome)
                    topic = node.topics.find(key)
                    _verify_again(node, version, body.transactional_id, topic, batch, outcome)
                    written = _append(node, version, body.acks, topic, batch, outcome, len(results), taken)
                results.append(written)
            except (ProtocolError, StorageError) as error:
                results.append(_failure(node, topic, batch, error, body.transactional_id, outcome))
            yield 1 + len(results[-1].record_errors if isinstance(results[-1], Failure) else ())
    return _answer(body.acks, outcome)


def _verify_again(
    node: Node, version: int, transactional_id: str | None, topic: Topic | None, batch: Batch, outcome: _Outcome
) -> None:
    """Raise if the batch would begin a transaction that has ended since it was verified: nothing would end that."""
    index, records = batch
    if (
        transactional_id is None
        or topic is None
        or not 0 <= index < len(topic.partitions)
        or len(records) < HEADER_SIZE
    ):
        return
    place = (topic.name, index)
    header = read_header(records)
    if not header.is_transactional or place in outcome.refused:
        return
    if not _is_known(topic.partitions[index].log.producers, header):
        verify = node.transactions.coordinator.verify
        try:
            verify(transactional_id, header.producer_id, header.producer_epoch, [place])
        except ProtocolError as error:
            knows_abortable = version >= ABORTABLE_FROM_VERSION
            raise ProtocolError(
                as_told_to_writers(error.code, knows_abortable=knows_abortable),
                "The transaction has ended meanwhile: nothing of this batch was written.",
            ) from error


def _failure(
    node: Node,
    topic: Topic | None,
    batch: Batch,
    error: ProtocolError | StorageError,
    transactional_id: str | None,
    outcome: _Outcome,
) -> Failure:
    outcome.failed = True
    if isinstance(error, ProtocolError):
        failure = Failure(batch[0], error.code, error.message, error.record_errors)
    else:
        failure = Failure(batch[0], ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        if topic is not None:
            node.disk_trouble.refused(topic.partitions[batch[0]], error)
    _count_refusal(node, topic, batch, failure.code, transactional_id, outcome.refused)
    return failure


def _answer(acks: int, outcome: _Outcome) -> Answer | Deferred | None:
    if acks == 0:
        if outcome.failed:
            raise UntoldFailure(f"A produce with acks=0 failed, which its client cannot be told: {outcome.failures()}")
        return None
    if outcome.waiting:
        return outcome.when_durable()
    return Answer(outcome.encode())


def _opened(
    node: Node, topic: Topic | None, batch: Batch, outcome: _Outcome
) -> Generator[Work, None, tuple[memoryview, BatchHeader]]:
    """A batch that was examined, and that its topic wants opened, as it goes into the log."""
    assert topic is not None
    index, records = batch
    header = read_header(records)
    config = topic.partitions[index].log.config
    now_ms = node.clock.now_ms()
    data = unpacked_if_small(header, records)
    if data is not None and is_quickly_packed(header, config):
        outcome.left_to_open -= len(data)
        return opened(records, header, config, now_ms, data)
    if outcome.left_to_open <= 0:
        raise ProtocolError(
            ErrorCode.NOT_ENOUGH_REPLICAS,  # what every client tries again
            f"The request has more than {OPENED_BYTES_MAX} bytes of records that have to be looked at. Nothing of this "
            "batch was written; send it again, with less beside it.",
        )

    def work() -> tuple[memoryview, BatchHeader, int]:
        data = unpack(records, header)
        return *opened(records, header, config, now_ms, data), len(data)

    outcome.left_to_open -= DECOMPRESSED_BYTES_MAX  # and so it stays if it is corrupt
    taken, new_header, size = yield from in_thread(work)
    outcome.left_to_open += DECOMPRESSED_BYTES_MAX - size
    return taken, new_header


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
    node: Node,
    version: int,
    acks: int,
    topic: Topic | None,
    batch: Batch,
    outcome: _Outcome,
    at: int,
    taken: tuple[memoryview, BatchHeader] | None = None,
) -> Written:
    """Append one batch, or what it was opened to; `outcome` remembers if it has to be waited for."""
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
    if taken is None:
        header, is_to_be_opened = examine(records, log.config, now_ms, zstd_allowed=version >= ZSTD_FROM_VERSION)
        if is_to_be_opened:
            raise _IsToBeOpened
    else:
        records, header = taken
    new_from_zero = False
    if header.attributes & TRANSACTIONAL_BIT:
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

    __slots__ = (
        "_has_transactional_id",
        "_left",
        "_meters",
        "_version",
        "failed",
        "left_to_open",
        "refused",
        "topics",
        "waiting",
    )

    def __init__(
        self, meters: Meters, version: int, has_transactional_id: bool, refused: dict[TopicPartition, ErrorCode]
    ) -> None:
        self._meters = meters
        self._version = version
        self._has_transactional_id = has_transactional_id
        self.refused = refused
        self._left = 0
        self.failed = False
        self.left_to_open = OPENED_BYTES_MAX
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
        error = self.refused.get((topic, index))
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
            results[at] = Failure(results[at][0], error, "The write could not be brought to disk and was taken back.")
            self.failed = True
        self._left -= 1
        if self._left == 0:
            deferred.resolve(Answer(self.encode()))

    def failures(self) -> str:
        """For the log."""
        failed = [
            f"{name if isinstance(name, str) else UUID(bytes=name)}-{each.partition}: {each.code.name} ({each.message})"
            for name, results in self.topics
            for each in results
            if isinstance(each, Failure)
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
    if not isinstance(result, Failure):
        index, base_offset, append_time_ms, log_start = result
        return PartitionProduceResponse(
            index=index, base_offset=base_offset, log_append_time_ms=append_time_ms, log_start_offset=log_start
        )
    return PartitionProduceResponse(
        index=result.partition,
        error_code=result.code,
        base_offset=-1,
        error_message=result.message,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why) for at, why in result.record_errors
        ],
    )


def _read_old(frame: memoryview, body_at: int, version: int, elements_max: int) -> ProduceBody:
    request, _ = decode_from(ProduceRequest, version, frame, body_at, elements_max)
    topics: list[tuple[TopicKey, list[Batch]]] = [
        (topic.name, [(data.index, memoryview(data.records or b"")) for data in topic.partition_data])
        for topic in request.topic_data
    ]
    return ProduceBody(request.transactional_id, request.acks, request.timeout_ms, topics)

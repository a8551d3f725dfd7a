"""Fetch (1), v4-17: record batches out of logs, with a long poll.

- Served as stored, by `sendfile` where there is much, from the batch that holds the offset; a batch may be cut at the
  end, as Kafka does, except the first one.
- `max_bytes` bounds the answer, `partition_max_bytes` each partition; the first non-empty partition gives at least
  one batch.
- Waits up to `max_wait_ms`, and `WAIT_MAX_S` at most, for `min_bytes`, and answers at once if a partition has an error.
  It is looked at again when the log has grown by a share of what is missing (`_Fetch.look_again`), not at each write.
- Of a partition that is named twice the last entry counts, as in Kafka. How many are asked for at once is bounded in
  the table `handlers.APIS`; more than `AT_ONCE_MAX` are read in steps (`large_requests`).
- What waits in front of a client's answers keeps no answer in memory: each is read when its turn has come.
- Reads end at the high watermark; with isolation read_committed at the last stable offset, and the transactions are
  named that were aborted in what is returned. Their records are in there; the client skips them.
- Fetch sessions (KIP-227) are `fetch_sessions`. A partition that has nothing new costs a sixth of what it costs without
  one: nothing is decoded, nothing encoded, and it is only compared with what its client knows.
- v13 and newer name topics by id (KIP-516).

Left out: follower fetches, tiered storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import monotonic, perf_counter
from typing import Final, cast
from uuid import UUID

from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.fetch_sessions import UNKNOWN, Asked, FetchSession, PartitionKey, TopicKey
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topic
from onceflow.errors import CorruptLog, ErrorCode, MalformedMessage, ProtocolError, StorageError
from onceflow.log import aborted as log_aborted
from onceflow.log.files import FileSlice
from onceflow.log.partition import LEADER_EPOCH
from onceflow.log.segment import Segment
from onceflow.monitor.meters import Reader
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from onceflow.wire.schema import Buffer

TOPIC_IDS_FROM_VERSION: Final = 13
READ_COMMITTED: Final = 1
READ: Final = Operation.READ
TOPIC: Final = Resource.TOPIC
NEW_SESSION, NO_SESSION = 0, -1
"""Epochs that ask for a session, and for none; a larger one goes on with a session."""
SENT_FROM_FILE: Final = 32 * 1024
"""Records from this size on go from the file to the socket inside the kernel."""
READ_MAX: Final = 1024 * 1024
"""Of one answer, so much is read into memory at most; what is more goes from the file, too."""
AT_ONCE_MAX: Final = 500
"""Partitions that are read without a pause: a few milliseconds."""
STEP: Final = 50
"""Partitions of a large fetch that are read in a step."""
WAIT_MAX_S: Final = 300.0
"""Longer than any client waits for an answer, and not for ever."""
ANSWER_COST: Final = 8
"""What an answer costs beside its partitions, in partitions that are read."""
WEIGHT: Final = 63
"""Of a fetch that waits, beside one for each of its partitions. See `connection.WEIGHT_MAX`."""


def handle(node: Node, context: Context, request: FetchRequest) -> FetchResponse | Deferred | Steps:
    if request.min_bytes < 0 or request.max_wait_ms < 0:
        raise MalformedMessage("A fetch asks to wait for a negative number of bytes or milliseconds.")
    topics = request.topics
    fetch = _Fetch(node, context, request)
    if len(topics) > 1 or (topics and len(topics[0].partitions) > 1):
        request.topics = _without_repeats(topics, context.version >= TOPIC_IDS_FROM_VERSION)
        count = sum(len(topic.partitions) for topic in request.topics)
        if count > AT_ONCE_MAX and node.large_requests is not None:
            fetch.is_large = True
    if request.session_epoch != NO_SESSION or request.session_id:
        try:
            fetch.use_session(context.reader)
        except ProtocolError as error:
            return FetchResponse(error_code=error.code)
    if fetch.is_large:
        return fetch.handle_in_steps()
    response, size = fetch.read()
    if size >= request.min_bytes or fetch.is_enough(size):
        return fetch.told(response)
    if size:
        fetch.take_back(response)
    return fetch.park(size)


def _without_repeats(topics: list[FetchTopic], by_id: bool) -> list[FetchTopic]:
    """The same partitions, each once, as it was named last."""
    keys: set[UUID | str | None] = {topic.topic_id if by_id else topic.topic for topic in topics}
    if len(keys) == len(topics) and all(
        len({entry.partition for entry in topic.partitions}) == len(topic.partitions) for topic in topics
    ):
        return topics
    entries: dict[UUID | str | None, dict[int, FetchPartition]] = {}
    first: dict[UUID | str | None, FetchTopic] = {}
    for topic in topics:
        key: UUID | str | None = topic.topic_id if by_id else topic.topic
        first.setdefault(key, topic)
        entries.setdefault(key, {}).update((entry.partition, entry) for entry in topic.partitions)
    for key, topic in first.items():
        topic.partitions = list(entries[key].values())
    return list(first.values())


class _Fetch:
    """One fetch request, which may have to be looked at several times."""

    __slots__ = (
        "_committed",
        "_deferred",
        "_missing",
        "_node",
        "_parked_at",
        "_peer",
        "_reader",
        "_request",
        "_seen",
        "_session",
        "_session_asks",
        "_share",
        "_timer",
        "_version",
        "failed",
        "is_large",
        "partitions",
    )

    # While it waits:
    _missing: int
    """Bytes, as far as the growth of the partitions is known."""
    _share: int
    """By so much a partition has to grow before it is looked at again."""
    _seen: dict[Partition, tuple[Segment, int]]
    """Up to where the growth of each partition is known."""

    def __init__(self, node: Node, context: Context, request: FetchRequest) -> None:
        self._node = node
        self._peer = context.peer
        self._version = context.version
        self._request = request
        self._reader = context.reader
        self._parked_at = 0.0
        self._committed = request.isolation_level == READ_COMMITTED
        self._deferred = Deferred()
        self._timer: asyncio.TimerHandle | None = None
        self.is_large = False
        """To be read in steps."""
        self._session: FetchSession | None = None
        self._session_asks: list[tuple[PartitionKey, Asked, FetchPartition]] | None = None
        """What is asked for, of a session that goes on."""
        self.failed = False
        self.partitions: dict[Partition, int] = {}
        """The partitions asked for that exist, with the offset to read from."""
        if self._reader is not None:
            self._reader.active_until = monotonic()
            self._reader.read_committed = self._committed

    def use_session(self, reader: Reader | None) -> None:
        """Begin, end or go on with a session, as the request says. Raises `ProtocolError` if it cannot go on."""
        request, sessions = self._request, self._node.fetch_sessions
        by_id = self._version >= TOPIC_IDS_FROM_VERSION
        if request.session_epoch > NEW_SESSION:
            self._session = sessions.go_on(
                request.session_id,
                request.session_epoch,
                by_id,
                request.topics,
                request.forgotten_topics_data,
                monotonic(),
            )
            if self._session is not None:
                self._session_asks = [(key, asked, asked.entry) for key, asked in self._session.partitions.items()]
                self.is_large = False
            return
        sessions.end(request.session_id)
        if request.session_epoch == NEW_SESSION and reader is not None:
            sessions.end(reader.fetch_session)
            self._session = sessions.begin(request.topics, by_id, monotonic())
            reader.fetch_session = 0 if self._session is None else self._session.id

    def told(self, response: FetchResponse) -> FetchResponse:
        """The answer as it is sent: its client knows what is in it."""
        session = self._session
        if session is None:
            return response
        response.session_id = session.id
        for topic in response.responses:
            key = topic.topic_id if session.by_id else topic.topic
            for each in topic.partitions:
                asked = session.partitions.get((key, each.partition_index))
                if asked is None:  # forgotten meanwhile
                    continue
                asked.high_watermark = UNKNOWN if each.error_code else each.high_watermark
                asked.log_start_offset = each.log_start_offset
                if each.records and self._session_asks is not None:  # as in Kafka not by the answer that begins it
                    session.move_to_end((key, each.partition_index))
        return response

    def is_enough(self, size: int) -> bool:
        """Whether an answer with so many bytes of records need not wait."""
        request = self._request
        return size >= request.min_bytes or self.failed or not request.max_wait_ms or not self.partitions

    def read(self) -> tuple[FetchResponse, int]:
        """The answer as of now, and how many bytes of records are in it."""
        self.partitions.clear()
        if self._session_asks is not None:
            return self._read_news(self._session_asks)
        size = 0
        responses = []
        for asked in self._request.topics:
            results, size = self._read_some(asked, asked.partitions, size)
            responses.append(FetchableTopicResponse(topic_id=asked.topic_id, topic=asked.topic, partitions=results))
        return FetchResponse(responses=responses), size

    def _read_in_steps(self) -> Generator[int, None, tuple[FetchResponse, int]]:
        """As `read`."""
        self.partitions.clear()
        size = 0
        responses = []
        for asked in self._request.topics:
            results: list[PartitionData] = []
            for at in range(0, len(asked.partitions), STEP):
                some, size = self._read_some(asked, asked.partitions[at : at + STEP], size)
                results += some
                yield len(some) + sum(len(each.aborted_transactions or ()) for each in some)
            responses.append(FetchableTopicResponse(topic_id=asked.topic_id, topic=asked.topic, partitions=results))
        return FetchResponse(responses=responses), size

    def _read_news(self, asks: list[tuple[PartitionKey, Asked, FetchPartition]]) -> tuple[FetchResponse, int]:
        """As `read`, without the partitions of the session that have nothing new."""
        size = 0
        responses: list[FetchableTopicResponse] = []
        last: TopicKey = None
        topics: dict[TopicKey, Topic | None] = {}
        for (key, index), asked, entry in asks:
            if key not in topics:
                topics[key] = self._readable(asked.topic)
            topic = topics[key]
            if topic is not None and 0 <= index < len(topic.partitions) and self._has_nothing_new(topic, asked, entry):
                continue
            [result], size = self._read_some(asked.topic, [entry], size)
            if not (
                result.error_code or result.records or not asked.knows(result.high_watermark, result.log_start_offset)
            ):
                continue
            if not responses or key != last:
                last = key
                named = asked.topic
                responses.append(FetchableTopicResponse(topic_id=named.topic_id, topic=named.topic, partitions=[]))
            responses[-1].partitions.append(result)
        return FetchResponse(responses=responses), size

    def _readable(self, asked: FetchTopic) -> Topic | None:
        """The topic, if it is there and may be read."""
        by_id = self._version >= TOPIC_IDS_FROM_VERSION
        topic = self._node.topics.by_id(asked.topic_id) if by_id else self._node.topics.get(asked.topic)
        if topic is None or (self._node.authorizer is not None and self._is_denied(topic.name)):
            return None
        return topic

    def _has_nothing_new(self, topic: Topic, asked: Asked, entry: FetchPartition) -> bool:
        """Whether a reader that stands at the end of a partition knows all there is to know of it."""
        partition = topic.partitions[entry.partition]
        log = partition.log
        offset, end = entry.fetch_offset, log.high_watermark
        if offset != end or not asked.knows(end, log.start_offset) or entry.current_leader_epoch > LEADER_EPOCH:
            return False
        self.partitions[partition] = offset
        if self._reader is not None:
            self._reader.reads(log, offset, None, topic.traffic)
        return True

    def _read_some(
        self, asked: FetchTopic, entries: list[FetchPartition], size: int
    ) -> tuple[list[PartitionData], int]:
        """Partitions of a topic, behind `size` bytes of records; returns how many bytes there are then."""
        by_id = self._version >= TOPIC_IDS_FROM_VERSION
        topic = self._node.topics.by_id(asked.topic_id) if by_id else self._node.topics.get(asked.topic)
        left = min(self._request.max_bytes, self._node.fetch_max_bytes)
        results = []
        denied = self._node.authorizer is not None and self._is_denied(topic.name if topic else asked.topic)
        for entry in entries:
            try:
                if denied:
                    raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if topic is None or not 0 <= entry.partition < len(topic.partitions):
                    raise ProtocolError(self._unknown(asked, topic is None))
                result = self._read_partition(topic, entry, left - size, size)
            except ProtocolError as error:
                self.failed = True
                result = PartitionData(
                    partition_index=entry.partition,
                    error_code=error.code,
                    high_watermark=-1,
                    records=b"",
                    aborted_transactions=None,
                )
            size += len(result.records or b"")
            results.append(result)
        return results, size

    def _is_denied(self, name: str) -> bool:
        """A topic that is named by id and does not exist has no name that anybody could have a permission for."""
        assert self._node.authorizer is not None
        return bool(name) and not self._node.authorizer.allows(self._peer, READ, TOPIC, name)

    def _unknown(self, asked: FetchTopic, no_topic: bool) -> ErrorCode:
        if no_topic and self._version >= TOPIC_IDS_FROM_VERSION:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def take_back(self, response: FetchResponse) -> None:
        """What was read is not sent after all: it is too little, and is read again."""
        for answered in response.responses:
            by_id = self._version >= TOPIC_IDS_FROM_VERSION
            topic = self._node.topics.by_id(answered.topic_id) if by_id else self._node.topics.get(answered.topic)
            if topic is not None:
                topic.traffic.bytes_out -= sum(len(each.records or b"") for each in answered.partitions)

    def _read_partition(self, topic: Topic, entry: FetchPartition, left: int, before: int) -> PartitionData:
        """`left` is the room for records in the answer, `before` how many bytes of them there are already."""
        partition = topic.partitions[entry.partition]
        log = partition.log
        if entry.current_leader_epoch > LEADER_EPOCH:
            raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        self.partitions[partition] = entry.fetch_offset
        first = before == 0
        records: FileSlice | bytes = b""
        aborted: list[AbortedTransaction] | None = [] if self._committed else None
        found = None
        if left > 0 or first:
            try:
                room = max(0, min(left, entry.partition_max_bytes))
                found = log.slice(entry.fetch_offset, room, at_least_one=first, committed=self._committed)
                if found is not None:
                    if self._committed:
                        aborted = _aborted(log.aborted_in(entry.fetch_offset, found))
                    records = found if found.size >= SENT_FROM_FILE or before > READ_MAX else found.read()
                    topic.traffic.bytes_out += found.size
            except (StorageError, CorruptLog) as error:
                if isinstance(error, CorruptLog):
                    partition.report_damage(f"Offset {entry.fetch_offset}", error)
                raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if self._reader is not None:
            self._reader.reads(log, entry.fetch_offset, found, topic.traffic)
        return PartitionData(
            partition_index=partition.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.start_offset,
            aborted_transactions=aborted,
            records=cast(Buffer, records),  # the codec asks a slice for its length and passes it on
        )

    # The long poll

    def park(self, size: int) -> Deferred:
        """Wait for more than the `size` bytes that there are."""
        seconds = min(self._request.max_wait_ms / 1000, WAIT_MAX_S)
        self._timer = asyncio.get_running_loop().call_later(seconds, self.answer)
        self._parked_at = perf_counter()
        if self._reader is not None:
            self._reader.active_until += seconds
        self._deferred.weight = WEIGHT + len(self.partitions)
        self._deferred.on_cancel = self._take_down
        self._deferred.on_hurry = self.answer
        self._missing = self._request.min_bytes - size
        self._seen = {}
        self._await_growth()
        return self._deferred

    def _await_growth(self) -> None:
        """Wait until one of the partitions may have grown by enough.

        Each by a share of what is missing, half of it all together: unless one has grown by its share, the rest is
        still missing. So a fetch is looked at in the order of its partitions times the logarithm of `min_bytes`.
        """
        self._share = max(1, self._missing // (2 * len(self.partitions)))
        try:
            for partition in self.partitions:
                self._seen[partition] = partition.await_growth(self, self._share, committed=self._committed)
        except (StorageError, CorruptLog):
            self.answer()

    def look_again(self, partition: Partition, position: int | None) -> int:
        """See `Fetcher`: is there enough now?"""
        if position is not None:
            segment, seen = self._seen[partition]
            self._seen[partition] = segment, position
            if self._is_behind(partition):
                self._missing -= position - seen
            if len(self.partitions) * (self._share - 1) < self._missing and self._await_more_of(partition):
                return 1
            if self._missing > 0 and self._catches_up():
                self._await_growth()
                return len(self.partitions)
        self.answer()
        return ANSWER_COST + len(self.partitions)

    def _await_more_of(self, partition: Partition) -> bool:
        try:
            partition.await_growth(self, self._share, committed=self._committed)
        except (StorageError, CorruptLog):
            return False
        return True

    def _catches_up(self) -> bool:
        """Half of what was missing is there: see how much is in all, and whether it is still too little."""
        for partition, (segment, seen) in self._seen.items():
            try:
                current, position = partition.log.readable_end(committed=self._committed)
            except (StorageError, CorruptLog):
                return False
            if current is not segment:
                return False
            if self._is_behind(partition):
                self._missing -= position - seen
        return self._missing > 0

    def _is_behind(self, partition: Partition) -> bool:
        """Whether there is anything to read at the offset that was asked for: it may be one that is not there yet."""
        log = partition.log
        return self.partitions[partition] < (log.last_stable_offset if self._committed else log.high_watermark)

    def answer(self) -> None:
        """With what there is."""
        if self._timer is None:  # it was asked before
            return
        self._deferred.parked_s = perf_counter() - self._parked_at
        self._node.meters.fetch_wait.observe(self._deferred.parked_s)
        if self._reader is not None:
            self._reader.active_until = monotonic()
        self._take_down()
        if self.is_large:
            self._answer_in_steps()
        else:
            self._deferred.make = self._made
            self._deferred.resolve(None)

    def _made(self) -> Answer:
        return Answer(self.told(self.read()[0]))

    def _take_down(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._seen:
            partition.forget(self)
        self._seen.clear()
        if self.is_large:
            self._node.large_fetches.remove(self)

    # Many partitions

    def handle_in_steps(self) -> Steps:
        response, size = yield from self._read_in_steps()
        if self.is_enough(size) or self._has_changed(response):
            return self.told(response)
        if size:
            self.take_back(response)
        deferred = self.park(size)
        if not deferred.is_done:
            self._node.large_fetches.add(self, len(self.partitions))
        return deferred

    def _has_changed(self, response: FetchResponse) -> bool:
        """Whether there is more by now than was read, step by step: nobody would be woken for that."""
        ends = [
            each.last_stable_offset if self._committed else each.high_watermark
            for topic in response.responses
            for each in topic.partitions
        ]
        logs = [partition.log for partition in self.partitions]
        return any(log.closed for log in logs) or ends != [
            log.last_stable_offset if self._committed else log.high_watermark for log in logs
        ]

    def _answer_in_steps(self) -> None:
        assert self._node.large_requests is not None
        made = self._node.large_requests.run_soon(self._respond(), self._version)
        self._deferred.on_cancel = made.cancel
        made.when_done(lambda: self._deferred.fail(made.error) if made.error else self._deferred.resolve(made.result))

    def _respond(self) -> Steps:
        response, _ = yield from self._read_in_steps()
        return self.told(response)


def _aborted(entries: list[log_aborted.AbortedTransaction]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset) for entry in entries]

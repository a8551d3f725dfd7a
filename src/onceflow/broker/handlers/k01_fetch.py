"""Fetch (1), v4-17: record batches out of logs, with a long poll.

- Served as stored, by `sendfile` where there is much, from the batch that holds the offset; a batch may be cut at the
  end, as Kafka does, except the first one.
- `max_bytes` bounds the answer, `partition_max_bytes` each partition; the first non-empty partition gives at least
  one batch.
- Waits up to `max_wait_ms` for `min_bytes`, and answers at once if a partition has an error.
- Reads end at the high watermark; with isolation read_committed at the last stable offset, and the transactions are
  named that were aborted in what is returned. Their records are in there; the client skips them.
- Fetch sessions (KIP-227) are refused the way a full session cache refuses: session id 0 in the answer, so clients
  send their full list each time; 70 for a session that goes on, which we cannot have given.
- v13 and newer name topics by id (KIP-516).

Left out: follower fetches, tiered storage.
"""

from __future__ import annotations

import asyncio
from time import monotonic, perf_counter
from typing import Final, cast

from onceflow.broker.complaints import complain
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topic
from onceflow.errors import CorruptLog, ErrorCode, MalformedMessage, ProtocolError, StorageError
from onceflow.log import aborted as log_aborted
from onceflow.log.files import FileSlice
from onceflow.log.partition import LEADER_EPOCH
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
NEW_SESSION: Final = 0
"""This epoch asks for a session, -1 for none; a larger one goes on with a session, and we have given none."""
SENT_FROM_FILE: Final = 32 * 1024
"""Records from this size on go from the file to the socket inside the kernel."""


def handle(node: Node, context: Context, request: FetchRequest) -> FetchResponse | Deferred:
    if request.session_epoch > NEW_SESSION:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if request.min_bytes < 0 or request.max_wait_ms < 0:
        raise MalformedMessage("A fetch asks to wait for a negative number of bytes or milliseconds.")
    fetch = _Fetch(node, context, request)
    response, size = fetch.read()
    if size >= request.min_bytes or fetch.failed or not request.max_wait_ms or not fetch.partitions:
        return response
    if size:
        fetch.take_back(response)
    return fetch.park(request.max_wait_ms / 1000)


class _Fetch:
    """One fetch request, which may have to be looked at several times."""

    __slots__ = (
        "_committed",
        "_deferred",
        "_node",
        "_parked_at",
        "_peer",
        "_reader",
        "_request",
        "_timer",
        "_version",
        "failed",
        "partitions",
    )

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
        self.failed = False
        self.partitions: list[tuple[Partition, int]] = []
        """The partitions asked for that exist, with the offset to read from."""
        if self._reader is not None:
            self._reader.active_until = monotonic()
            self._reader.read_committed = self._committed

    def read(self) -> tuple[FetchResponse, int]:
        """The answer as of now, and how many bytes of records are in it."""
        self.partitions.clear()
        left = min(self._request.max_bytes, self._node.fetch_max_bytes)
        size = 0
        responses = []
        for asked in self._request.topics:
            by_id = self._version >= TOPIC_IDS_FROM_VERSION
            topic = self._node.topics.by_id(asked.topic_id) if by_id else self._node.topics.get(asked.topic)
            results = []
            denied = self._node.authorizer is not None and self._is_denied(topic.name if topic else asked.topic)
            for entry in asked.partitions:
                try:
                    if denied:
                        raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    if topic is None or not 0 <= entry.partition < len(topic.partitions):
                        raise ProtocolError(self._unknown(asked, topic is None))
                    result = self._read_partition(topic, entry, left - size, size == 0)
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
            responses.append(FetchableTopicResponse(topic_id=asked.topic_id, topic=asked.topic, partitions=results))
        return FetchResponse(responses=responses), size

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

    def _read_partition(self, topic: Topic, entry: FetchPartition, left: int, first: bool) -> PartitionData:
        partition = topic.partitions[entry.partition]
        log = partition.log
        if entry.current_leader_epoch > LEADER_EPOCH:
            raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        self.partitions.append((partition, entry.fetch_offset))
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
                    records = found if found.size >= SENT_FROM_FILE else found.read()
                    topic.traffic.bytes_out += found.size
            except (StorageError, CorruptLog) as error:
                if isinstance(error, CorruptLog):
                    self._complain(partition, entry.fetch_offset, error)
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

    @staticmethod
    def _complain(partition: Partition, offset: int, error: CorruptLog) -> None:
        name = f"{partition.topic}-{partition.index}"
        complain(f"reading {name}", "Offset %d of %s cannot be read. %s", offset, name, error)

    # The long poll

    def park(self, seconds: float) -> Deferred:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._answer)
        self._parked_at = perf_counter()
        if self._reader is not None:
            self._reader.active_until += seconds
        for partition, _ in self.partitions:
            partition.fetchers[self] = None
        self._deferred.on_cancel = self._take_down
        self._deferred.on_hurry = self._answer
        return self._deferred

    def look_again(self) -> None:
        """Called when a partition has moved: is there enough now?"""
        available = 0
        for partition, offset in self.partitions:
            if partition.log.closed:
                self._answer()
                return
            try:
                available += partition.log.bytes_after(offset, committed=self._committed)
            except (StorageError, CorruptLog):  # who reads there is told
                self._answer()
                return
            if available >= self._request.min_bytes:
                self._answer()
                return

    def _answer(self) -> None:
        self._deferred.parked_s = perf_counter() - self._parked_at
        self._node.meters.fetch_wait.observe(self._deferred.parked_s)
        if self._reader is not None:
            self._reader.active_until = monotonic()
        self._take_down()
        response, _ = self.read()
        self._deferred.resolve(Answer(response))

    def _take_down(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition, _ in self.partitions:
            partition.fetchers.pop(self, None)


def _aborted(entries: list[log_aborted.AbortedTransaction]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset) for entry in entries]

"""The protocol without a client: requests go out exactly as a test builds them, answers come back decoded, no more.

`Connection` is one socket. `Wire` asks the questions that many tests ask, one partition at a time.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from uuid import UUID

from onceflow.errors import ErrorCode
from onceflow.wire import codec
from onceflow.wire.batch import HEADER, HEADER_SIZE, BatchHeader, batches, checksum, read_header
from onceflow.wire.messages import response_class
from onceflow.wire.messages.api_versions import ApiVersionsRequest
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from onceflow.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from onceflow.wire.records import Record, build_batch, read_records
from onceflow.wire.schema import Message
from tests.support.waiting import eventually

__all__ = [
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "TIMEOUT_S",
    "Connection",
    "ConnectionClosed",
    "Wire",
    "batch",
    "fetch_request",
    "now_ms",
    "produce_request",
    "rewrite",
]

TIMEOUT_S = 15.0
"""How long a connection waits for an answer."""
LATEST = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch(
    *values: bytes | str | None,
    timestamps: Sequence[int] | None = None,
    producer: tuple[int, int] | None = None,
    sequence: int = 0,
    key: bytes | None = None,
    compression: int = 0,
    transactional: bool = False,
) -> bytes:
    """A record batch with these values; `producer` is (producer id, epoch)."""
    now = now_ms()
    records = [
        Record(
            offset=at,
            timestamp=timestamps[at] if timestamps else now,
            key=key,
            value=value.encode() if isinstance(value, str) else value,
        )
        for at, value in enumerate(values)
    ]
    identity = {}
    if producer is not None:
        identity = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": sequence}
    return build_batch(records, base_offset=0, codec=compression, transactional=transactional, **identity)


def rewrite(whole: bytes, **fields: int) -> bytes:
    """The batch with other values in its header, and the checksum right again: a lie that is well told."""
    changed = bytearray(whole)
    changed[:HEADER_SIZE] = HEADER.pack(*read_header(whole)._replace(**fields))
    struct.pack_into(">I", changed, 17, checksum(changed))
    return bytes(changed)


class ConnectionClosed(Exception):
    """The broker ended the connection instead of answering."""


class Connection:
    """One socket to a broker. Answers are matched by correlation id, since a broker answers in order."""

    def __init__(self, bootstrap: str, client_id: str | None = "raw") -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._input = self._socket.makefile("rb")
        self._correlation_ids = itertools.count(1)
        self._client_id = client_id
        self._announced: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._input.close()
        self._socket.close()

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def read_frame(self) -> bytes:
        """The next answer, whatever it answers, without its length."""
        try:
            prefix = self._input.read(4)
            frame = self._input.read(struct.unpack(">i", prefix)[0]) if len(prefix) == 4 else b""
        except ConnectionResetError:
            frame = b""
        if not frame:
            raise ConnectionClosed
        return frame

    def send(self, request: Message, version: int | None = None) -> int:
        """Sends, waits for nothing, and returns the correlation id."""
        version = self.highest(type(request)) if version is None else version
        correlation_id = next(self._correlation_ids)
        header = codec.request_header(type(request), version, correlation_id, self._client_id)
        self.send_frame(header + codec.encode(request, version))
        return correlation_id

    def receive(self, request: Message, version: int | None = None) -> tuple[int, Any]:
        """The correlation id and the body of the next answer, which must be one to such a request."""
        version = self.highest(type(request)) if version is None else version
        frame = self.read_frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        header = codec.response_header(type(request).API_KEY, version, correlation_id)
        return correlation_id, codec.decode(response_class(type(request).API_KEY), version, frame, len(header))

    def announced(self, api_key: int) -> tuple[int, int]:
        """First and last version that the broker announces for an API."""
        if not self._announced:
            answer = self.ask(ApiVersionsRequest(), version=0)
            self._announced = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        return self._announced[api_key]

    def highest(self, request: type[Message]) -> int:
        """What a client would use: the last version that both sides know."""
        assert request.API_KEY is not None
        assert request.VERSIONS is not None
        return min(request.VERSIONS[1], self.announced(request.API_KEY)[1])

    def ask(self, request: Message, version: int | None = None) -> Any:
        sent = self.send(request, version)
        answered, body = self.receive(request, version)
        assert answered == sent
        return body


class Wire(Connection):
    """A connection with the questions that many tests ask. Methods return the part of the answer on one partition."""

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> UUID:
        """Setting names are written with underscores. Returns the topic's id, once its partitions take requests."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()],
        )
        [created] = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
        assert created.error_code == ErrorCode.NONE, created
        assert created.topic_id is not None
        self.await_partitions(name, partitions)
        return created.topic_id

    def await_partitions(self, topic: str, count: int) -> None:
        """Wait until the partitions of a new topic take requests.

        Apache Kafka shows a topic in Metadata a moment before its partitions are there. In that moment it can refuse
        the first batch of an idempotent producer and take the second, since an unknown producer may begin with any
        sequence; the first is then out of order for good (measured: once in a hundred, on a busy machine).
        """
        for partition in range(count):
            eventually(
                lambda at=partition: self.list_offset(topic, LATEST, partition=at).error_code == ErrorCode.NONE,
                f"{topic}-{partition} takes requests",
            )

    def metadata(self, *, name: str | None = None, topic_id: UUID | None = None) -> MetadataResponseTopic:
        topic = MetadataRequestTopic(name=name, topic_id=topic_id)
        [found] = self.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=False)).topics
        return found

    def new_producer(self) -> tuple[int, int]:
        """A producer id and its epoch, from InitProducerId without a transactional id."""

        def ask() -> Any:
            answer = self.ask(InitProducerIdRequest(transaction_timeout_ms=60_000))
            # Apache Kafka's first one has to fetch a block of ids from the controller and says 14 meanwhile.
            return answer if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else None

        answer = eventually(ask, "there are producer ids")
        assert answer.error_code == ErrorCode.NONE
        return answer.producer_id, answer.producer_epoch

    def produce(
        self,
        topic: str | UUID,
        records: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 12,
        transactional_id: str | None = None,
    ) -> PartitionProduceResponse:
        request = produce_request(topic, records, partition=partition, acks=acks, transactional_id=transactional_id)
        return self.ask(request, version).responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, version: int = 12, **settings: Any) -> PartitionData:
        return self.fetch_answer(topic, offset, version=version, **settings).responses[0].partitions[0]

    def fetch_answer(self, topic: str, offset: int, *, version: int = 12, **settings: Any) -> FetchResponse:
        """All of the answer; `settings` are those of `fetch_request`."""
        return self.ask(fetch_request(topic, offset, **settings), version)

    def records(self, topic: str, offset: int = 0, *, partition: int = 0) -> list[Record]:
        """Everything from an offset to the end."""
        answer = self.fetch(topic, offset, partition=partition, max_wait_ms=0)
        assert answer.error_code == ErrorCode.NONE
        return [record for _, each in batches(answer.records or b"") for record in read_records(each)]

    def headers(self, topic: str, offset: int = 0) -> list[BatchHeader]:
        """The headers of all batches from an offset to the end."""
        return [header for header, _ in batches(self.fetch(topic, offset, max_wait_ms=0).records or b"")]

    def list_offset(
        self,
        topic: str,
        timestamp: int,
        *,
        partition: int = 0,
        version: int | None = None,
        leader_epoch: int = -1,
        isolation_level: int = 0,
    ) -> ListOffsetsPartitionResponse:
        at = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=topic, partitions=[at])],
            timeout_ms=5000,
        )
        return self.ask(request, version).topics[0].partitions[0]

    def end(self, topic: str, partition: int = 0) -> int:
        return self.list_offset(topic, LATEST, partition=partition).offset

    def stable_end(self, topic: str, partition: int = 0) -> int:
        """The last stable offset: where the first open transaction begins, or the end."""
        return self.list_offset(topic, LATEST, partition=partition, isolation_level=READ_COMMITTED).offset


def produce_request(
    topic: str | UUID,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=records)]
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(partition_data=data, **named)],
    )


def fetch_request(
    topic: str | UUID,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 50_000_000,
    leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    isolation_level: int = 0,
) -> FetchRequest:
    at = FetchPartition(
        partition=partition,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=partition_max_bytes,
    )
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(partitions=[at], **named)],
    )

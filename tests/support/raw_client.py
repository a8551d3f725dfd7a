"""`Wire` for tests of crashes, limits and hostile input: pipelining, whole reads, and an end that is told apart.

`send_all` and `receive_next` are apart, so any number of requests can be under way; `receive_next` checks that answers
come in the order of the requests. Nothing is retried and nothing is asked behind the test's back.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from onceflow.broker.handlers import APIS
from onceflow.wire import codec
from onceflow.wire.batch import batches
from onceflow.wire.messages import response_class
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest
from onceflow.wire.messages.fetch import PartitionData
from onceflow.wire.messages.metadata import MetadataRequest, MetadataResponseTopic
from onceflow.wire.messages.produce import PartitionProduceResponse
from onceflow.wire.records import Record, read_records
from onceflow.wire.schema import Message
from tests.support.raw import ConnectionClosed, Wire

__all__ = ["GONE", "RawClient", "frame_of", "values_of"]

GONE = (ConnectionClosed, OSError)
"""What a broker that goes away looks like from here."""
BY_NAME = {0: 12, 1: 12, 20: 5}
"""The newest versions that name topics by name: tests read better without looking up ids first."""
LATEST, EARLIEST = -1, -2


def served_version(request: Message) -> int:
    key = type(request).API_KEY
    return BY_NAME.get(key, APIS[key].max_version)


def frame_of(request: Message, version: int, correlation_id: int = 0) -> bytes:
    """A request as it travels, length and all."""
    body = codec.request_header(type(request), version, correlation_id, "raw") + codec.encode(request, version)
    return struct.pack(">i", len(body)) + body


def values_of(data: bytes | bytearray | memoryview | None) -> list[bytes | None]:
    """The values in the batches of a fetch answer; a batch that was cut at the end is left out."""
    return [record.value for _, batch in batches(data or b"") for record in read_records(batch)]


class RawClient(Wire):
    def __init__(self, bootstrap: str, *, timeout_s: float = 15.0) -> None:
        super().__init__(bootstrap)
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._under_way: deque[tuple[int, int, int]] = deque()

    def read_frame(self) -> bytes:
        """The next answer without its length. An answer of which only a part came is none."""
        try:
            prefix = self._input.read(4)
            size = struct.unpack(">i", prefix)[0] if len(prefix) == 4 else 1
            frame = self._input.read(size)
        except ConnectionResetError:
            raise ConnectionClosed from None
        if len(frame) < size:
            raise ConnectionClosed
        return frame

    # Many requests under way

    def send_all(self, requests: Sequence[Message], version: int | None = None) -> None:
        """Send requests back to back."""
        out = bytearray()
        for request in requests:
            v = served_version(request) if version is None else version
            correlation_id = next(self._correlation_ids)
            out += frame_of(request, v, correlation_id)
            self._under_way.append((type(request).API_KEY, v, correlation_id))
        self._socket.sendall(out)

    def receive_next(self) -> Any:
        """The answer to the oldest request without one."""
        key, version, asked = self._under_way.popleft()
        frame = self.read_frame()
        (answered,) = struct.unpack_from(">i", frame)
        assert answered == asked, f"The answer to request {answered} came before that to request {asked}."
        header = codec.response_header(key, version, answered)
        return codec.decode(response_class(key), version, frame, len(header))

    def receive_produced(self) -> PartitionProduceResponse:
        [topic] = self.receive_next().responses
        [result] = topic.partition_responses
        return result

    def receive_fetched(self) -> PartitionData:
        [topic] = self.receive_next().responses
        [result] = topic.partitions
        return result

    def ask(self, request: Message, version: int | None = None) -> Any:
        self.send_all([request], version)
        return self.receive_next()

    def is_answered(self, within_s: float) -> bool:
        """Whether an answer, or the end, arrives in time. Only without unread answers."""
        import select

        return bool(select.select([self._socket], [], [], within_s)[0])

    def waits_for_end(self, timeout_s: float = 15.0) -> bool:
        """Whether the broker closes the connection in time. Answers that come before that are dropped."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0 and self.is_answered(left):
            try:
                if not self._socket.recv(1 << 16):
                    return True
            except ConnectionResetError:
                return True
        return False

    def stop_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    # What most tests ask

    def make_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> int:
        """Returns the error code."""
        configs = [CreatableTopicConfig(name=key, value=str(value)) for key, value in (config or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        [result] = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
        return int(result.error_code)

    def delete_topic(self, name: str) -> int:
        """Returns the error code."""
        [result] = self.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)).responses
        return int(result.error_code)

    def topics(self) -> dict[str, MetadataResponseTopic]:
        return {topic.name: topic for topic in self.ask(MetadataRequest(topics=None)).topics}

    def read(self, topic: str, *, partition: int = 0, offset: int = 0) -> list[bytes | None]:
        """All values from an offset to the high watermark."""
        return [record.value for record in self.read_records(topic, partition=partition, offset=offset)]

    def read_records(self, topic: str, *, partition: int = 0, offset: int = 0) -> list[Record]:
        """All records from an offset to the high watermark, whose offsets must follow each other."""
        records: list[Record] = []
        while True:
            got = self.fetch(topic, offset, partition=partition, max_wait_ms=0)
            assert got.error_code == 0, got.error_code
            next_offset = offset
            for header, batch in batches(got.records or b""):
                assert header.last_offset < got.high_watermark
                for record in read_records(batch):
                    if record.offset >= offset:
                        assert record.offset == next_offset, f"Offset {record.offset} where {next_offset} was next."
                        records.append(record)
                        next_offset += 1
            if next_offset == offset:
                assert offset == got.high_watermark, f"Nothing at {offset}, yet the end is {got.high_watermark}."
                return records
            offset = next_offset

    def offset_for(self, topic: str, timestamp: int, partition: int = 0) -> int:
        result = self.list_offset(topic, timestamp, partition=partition, version=9)
        assert result.error_code == 0, result.error_code
        return int(result.offset)

    def latest(self, topic: str, partition: int = 0) -> int:
        return self.offset_for(topic, LATEST, partition)

    def earliest(self, topic: str, partition: int = 0) -> int:
        return self.offset_for(topic, EARLIEST, partition)

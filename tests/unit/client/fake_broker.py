"""A broker that says what a test tells it to, over a real socket.

    with FakeBroker() as broker:
        broker.on(ListTransactionsRequest, lambda request: ListTransactionsResponse(...))

Without further ado it announces every API in every version we know, names itself as the only broker and coordinates
everything. An answer may also be bytes, sent as they are, or an exception from below.
"""

from __future__ import annotations

import contextlib
import itertools
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any
from uuid import UUID

import pytest

from onceflow.client.addresses import Address
from onceflow.client.connection import Connection
from onceflow.client.settings import ClientSettings
from onceflow.wire import codec
from onceflow.wire.messages import REQUESTS, request_class, response_class
from onceflow.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from onceflow.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from onceflow.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from onceflow.wire.schema import Message

__all__ = ["FakeBroker", "HangUp", "KeepSilent", "impatient_with"]

Answer = Message | bytes


class HangUp(Exception):
    """Close the connection instead of answering."""


class KeepSilent(Exception):
    """Answer nothing, until the test is over."""


class FakeBroker:
    def __init__(self) -> None:
        self.versions = {key: (api.min_version, api.max_version) for key, api in REQUESTS.items()}
        self.features: dict[str, int] = {}
        self.topics: dict[str, int] = {}
        """Names to numbers of partitions."""
        self.topic_ids: dict[str, UUID] = {}
        """Names to ids; a topic that is not in here has none, as with an old broker."""
        self.leader_epoch = -1
        self.seen: list[tuple[Message, int]] = []
        """All requests but ApiVersions, with their versions."""
        self._answers: dict[type[Message], Callable[[Any], Answer]] = {
            MetadataRequest: self._metadata,
            FindCoordinatorRequest: self._coordinators,
        }
        self._over = threading.Event()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                outer._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> FakeBroker:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", int(self._server.server_address[1]))

    def settings(self, *, timeout_s: float = 30.0, **extra: str) -> ClientSettings:
        return ClientSettings(bootstrap=str(self.address), timeout_s=timeout_s, extra=extra)

    def on(self, request: type[Message], answer: Callable[[Any], Answer]) -> None:
        self._answers[request] = answer

    def requests(self, kind: type[Message]) -> list[Any]:
        return [request for request, _ in self.seen if isinstance(request, kind)]

    def _serve(self, connection: Any) -> None:
        # A client that resets the connection is as good as one that closes it.
        with connection.makefile("rb") as incoming, contextlib.suppress(HangUp, OSError):
            while len(prefix := incoming.read(4)) == 4:
                frame = incoming.read(struct.unpack(">i", prefix)[0])
                try:
                    connection.sendall(self._answer(frame))
                except KeepSilent:
                    self._over.wait(30)
                    return

    def _answer(self, frame: bytes) -> bytes:
        header = codec.read_request_header(frame)
        version = header.api_version
        answer: Answer
        if header.api_key == ApiVersionsRequest.API_KEY:
            answer, version = self._api_versions(version)
        else:
            request = codec.decode(request_class(header.api_key), version, frame, header.body_at)
            self.seen.append((request, version))
            answer = self._answers[type(request)](request)
        if isinstance(answer, bytes):
            return answer
        assert isinstance(answer, response_class(header.api_key))
        head = codec.response_header(header.api_key, version, header.correlation_id)
        body = head + codec.encode(answer, version)
        return struct.pack(">i", len(body)) + body

    def _api_versions(self, version: int) -> tuple[Answer, int]:
        if ApiVersionsRequest in self._answers:
            return self._answers[ApiVersionsRequest](version), version
        own = ApiVersionsRequest.API_KEY
        assert own is not None
        if version > self.versions[own][1]:
            known = [ApiVersion(api_key=own, min_version=0, max_version=self.versions[own][1])]
            return ApiVersionsResponse(error_code=35, api_keys=known), 0
        keys = [
            ApiVersion(api_key=key, min_version=first, max_version=last) for key, (first, last) in self.versions.items()
        ]
        features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in self.features.items()
        ]
        return ApiVersionsResponse(api_keys=keys, finalized_features=features, finalized_features_epoch=1), version

    def _metadata(self, request: MetadataRequest) -> Answer:
        names = self.topics if request.topics is None else [topic.name or "" for topic in request.topics]
        return MetadataResponse(
            controller_id=1,
            brokers=[MetadataResponseBroker(node_id=1, host=self.address.host, port=self.address.port)],
            topics=[
                MetadataResponseTopic(
                    error_code=0 if name in self.topics else 3,
                    name=name,
                    topic_id=self.topic_ids.get(name),
                    partitions=[
                        MetadataResponsePartition(partition_index=index, leader_id=1, leader_epoch=self.leader_epoch)
                        for index in range(self.topics.get(name, 0))
                    ],
                )
                for name in names
            ],
        )

    def _coordinators(self, request: FindCoordinatorRequest) -> Answer:
        here = {"node_id": 1, "host": self.address.host, "port": self.address.port}
        found = [Coordinator(key=key, **here) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found, **here)


@contextlib.contextmanager
def impatient_with(
    broker: FakeBroker, *kinds: type[Message], times: int = 1_000_000, within_s: float = 0.2
) -> Iterator[None]:
    """The first questions of these kinds to a broker, which it keeps silent to, wait for so long. A limit for all
    questions would on a busy machine also end those that are to be answered."""
    exchange, left = Connection._exchange, itertools.count(times, -1)

    def limited(self: Connection, request: Message, version: int, timeout_s: float) -> Any:
        is_silent = self.address == broker.address and isinstance(request, kinds) and next(left) > 0
        return exchange(self, request, version, within_s if is_silent else timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_exchange", limited)
        yield

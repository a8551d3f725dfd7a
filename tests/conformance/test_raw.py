"""Frames, versions and connections: what happens before any API is reached."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire import codec
from onceflow.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Connection, ConnectionClosed, Wire, fetch_request

API_VERSIONS = 18
METADATA = 3
NO_CLIENT_ID = -1


def header(api_key: int, version: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, NO_CLIENT_ID)


@pytest.fixture
def connection(broker: RunningBroker) -> Iterator[Connection]:
    with Connection(broker.bootstrap) as connection:
        yield connection


def test_api_versions_lists_what_this_suite_needs(wire: Wire) -> None:
    answer = wire.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), version=4)
    assert answer.error_code == ErrorCode.NONE
    assert {0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 60, 61, 75} <= {
        each.api_key for each in answer.api_keys
    }


def test_produce_is_announced_from_version_zero(wire: Wire) -> None:
    # No broker takes versions below 3 any more, but librdkafka takes the 0 as a sign of compression (KAFKA-18659).
    assert wire.announced(0)[0] == 0


def test_an_api_versions_request_from_the_future_is_told_which_versions_there_are(connection: Connection) -> None:
    connection.send_frame(header(API_VERSIONS, 99) + bytes(4))
    frame = connection.read_frame()
    assert frame[:4] == struct.pack(">i", 7)
    answer = codec.decode(ApiVersionsResponse, 0, frame, 4)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    [known] = [each for each in answer.api_keys if each.api_key == API_VERSIONS]
    assert (known.min_version, known.max_version) == (0, 4)


@pytest.mark.parametrize("version", range(5))
def test_features_are_told_as_each_version_takes_them(wire: Wire, version: int) -> None:
    """Java clients of 3.3 to 3.7, which ask with v3, close the connection for a minimum of 0 (KAFKA-17492)."""
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    answer = wire.ask(request, version=version)
    ours = {"group.version", "transaction.version"}
    supported = {each.name: each.min_version for each in answer.supported_features}
    finalized = {each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features}
    if version < 3:
        assert (supported, finalized, answer.finalized_features_epoch) == ({}, {}, -1)
        return
    assert {name for name in supported if name in ours} == (ours if version >= 4 else set())
    assert version >= 4 or 0 not in supported.values()
    assert {name: finalized[name] for name in ours} == {"group.version": (1, 1), "transaction.version": (2, 2)}
    assert answer.finalized_features_epoch >= 0


def test_every_version_lists_the_same_apis(wire: Wire) -> None:
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    answers = [wire.ask(request, version=version) for version in range(5)]
    assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
    assert all(answer.api_keys == answers[0].api_keys for answer in answers)


@pytest.mark.parametrize("name", ["", "with space"], ids=["empty", "space"])
def test_a_client_must_name_its_software_properly(wire: Wire, name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    assert wire.ask(request, version=3).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "frame",
    [
        header(999, 0),
        header(METADATA, 99) + b"\0",
        header(METADATA, -1) + b"\0\0\0\0",
        header(0, 2) + bytes(10),
        header(METADATA, 12) + b"\xff" * 20,
        header(METADATA, 12)[:5],
        b"",
    ],
    ids=[
        "unknown-api",
        "version-too-high",
        "version-negative",
        "version-too-low",
        "garbage-body",
        "cut-header",
        "empty-frame",
    ],
)
def test_a_request_that_cannot_be_read_closes_the_connection(connection: Connection, frame: bytes) -> None:
    connection.send_frame(frame)
    with pytest.raises(ConnectionClosed):
        connection.read_frame()


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 100 * 1024 * 1024 + 1])
def test_a_frame_length_out_of_bounds_closes_the_connection(connection: Connection, length: int) -> None:
    connection.send_bytes(struct.pack(">i", length))
    with pytest.raises(ConnectionClosed):
        connection.read_frame()


def test_bytes_after_a_request_body_are_ignored(connection: Connection) -> None:
    connection.send_frame(header(METADATA, 1) + struct.pack(">i", 0) + b"more")
    assert connection.read_frame()[:4] == struct.pack(">i", 7)


def test_unknown_tagged_fields_are_ignored(connection: Connection) -> None:
    unknown_tag = b"\x01\x63\x02hi"
    body = b"\x04raw\x021"
    connection.send_frame(header(API_VERSIONS, 3) + unknown_tag + body + unknown_tag)
    assert connection.read_frame()[:6] == struct.pack(">ih", 7, ErrorCode.NONE)


def test_a_frame_may_arrive_byte_by_byte(connection: Connection) -> None:
    frame = header(API_VERSIONS, 0)
    for byte in struct.pack(">i", len(frame)) + frame:
        connection.send_bytes(bytes([byte]))
    assert connection.read_frame()[:6] == struct.pack(">ih", 7, ErrorCode.NONE)


def test_many_frames_may_arrive_at_once_and_are_answered_in_order(connection: Connection) -> None:
    frames = [header(API_VERSIONS, 0, correlation_id=number) for number in range(50)]
    connection.send_bytes(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    answered = [struct.unpack_from(">i", connection.read_frame())[0] for _ in frames]
    assert answered == list(range(50))


def test_a_quick_request_waits_behind_a_slow_one(wire: Wire, topic: str) -> None:
    slow, quick = fetch_request(topic, 0, max_wait_ms=300), ApiVersionsRequest()
    started = time.monotonic()
    first = wire.send(slow, version=12)
    second = wire.send(quick, version=0)
    assert wire.receive(slow, version=12)[0] == first
    assert time.monotonic() - started > 0.25
    assert wire.receive(quick, version=0)[0] == second


def test_a_client_id_may_be_missing(broker: RunningBroker) -> None:
    with Wire(broker.bootstrap, client_id=None) as wire:
        assert wire.ask(ApiVersionsRequest(), version=0).error_code == ErrorCode.NONE

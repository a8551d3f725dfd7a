"""One bad client cannot take the broker down: how many may come, how much they may hold, and whose turn it is."""

from __future__ import annotations

import contextlib
import struct
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from onceflow.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from onceflow.wire.messages.metadata import MetadataRequest
from tests.support.broker_process import BrokerProcess, run_broker_command
from tests.support.raw import batch
from tests.support.raw_client import RawClient, frame_of
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import eventually

MB = 1_000_000


def is_served(client: RawClient) -> bool:
    return bool(client.ask(MetadataRequest(topics=[])).brokers)


@pytest.mark.parametrize(
    "settings",
    [
        {"max.connections.per.ip": 2},
        {"max.connections.per.ip": 1, "max.connections.per.ip.overrides": "10.0.0.1:9,127.0.0.1:2"},
        {"max.connections": 2},
    ],
)
def test_connections_beyond_the_limit_are_closed_and_those_within_served(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    with BrokerProcess(tmp_path / "data", settings=settings, durability="os") as broker:
        with broker.client() as one, broker.client() as two:
            assert is_served(one)
            assert is_served(two)
            for _ in range(3):
                with broker.client() as three:
                    assert three.waits_for_end()
            assert is_served(one)

        def there_is_room_again() -> bool:
            with broker.client() as client, contextlib.suppress(Exception):
                return is_served(client)
            return False

        eventually(there_is_room_again, "who leaves makes room")
        assert broker.reports.count("was refused") == 1, "one line a minute"


def set_for_broker(client: RawClient, name: str, value: str) -> ErrorCode:
    resource = AlterConfigsResource(
        resource_type=4, resource_name="1", configs=[AlterableConfig(name=name, config_operation=0, value=value)]
    )
    [answer] = client.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize(
    ("name", "two", "three"),
    [
        ("max.connections", "2", "3"),
        ("max.connections.per.ip", "2", "3"),
        ("max.connections.per.ip.overrides", "127.0.0.1:2", "10.0.0.1:1,127.0.0.1:3"),
    ],
)
def test_limits_can_be_changed_while_the_broker_runs_and_hold_after_a_restart(
    tmp_path: Path, name: str, two: str, three: str
) -> None:
    with BrokerProcess(tmp_path / "data", durability="os") as broker:
        with broker.client() as one, broker.client() as other:
            assert is_served(other)
            assert set_for_broker(one, name, two) == ErrorCode.NONE
            with broker.client() as refused:
                assert refused.waits_for_end()
            assert set_for_broker(one, name, three) == ErrorCode.NONE
            with broker.client() as third:
                assert is_served(third)
                with broker.client() as refused:
                    assert refused.waits_for_end()
        broker.kill()
        broker.start()
        with broker.client() as one, broker.client() as other, broker.client() as third:
            assert is_served(one)
            assert is_served(other)
            assert is_served(third)
            with broker.client() as refused:
                assert refused.waits_for_end()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("max.connections.per.ip.overrides=ten", ["max.connections.per.ip.overrides", "ADDRESS:COUNT"]),
        ("queued.max.request.bytes=1000", ["queued.max.request.bytes", "socket.request.max.bytes"]),
    ],
)
def test_limits_that_make_no_sense_are_one_sentence(tmp_path: Path, setting: str, words: list[str]) -> None:
    done = run_broker_command(tmp_path / "data", "--listen", "127.0.0.1:0", "--set", setting)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def test_large_requests_wait_for_memory_and_small_ones_do_not(tmp_path: Path) -> None:
    settings = {"socket.request.max.bytes": 20 * MB, "queued.max.request.bytes": 20 * MB, "message.max.bytes": 15 * MB}
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path / "data", settings=settings, durability="os"))
        hog, patient, small = (stack.enter_context(broker.client()) for _ in range(3))
        assert small.make_topic("t") == 0
        hog.send_bytes(struct.pack(">i", 15 * MB) + bytes(MB))
        assert is_served(small)
        before = broker.memory_bytes
        results: list[int] = []
        large = batch(bytes(10 * MB))
        sending = threading.Thread(target=lambda: results.append(patient.produce("t", large).error_code))
        sending.start()
        for _ in range(200):
            assert is_served(small)
        assert results == []
        assert broker.memory_bytes - before < 5 * MB
        hog.close()
        sending.join(15)
        assert results == [0]
        assert is_served(small)


def test_what_strangers_hold_is_not_missing_to_who_has_logged_in(tmp_path: Path) -> None:
    most = {"socket.request.max.bytes": 17 * MB, "queued.max.request.bytes": 17 * MB, "message.max.bytes": 15 * MB}
    with ExitStack() as stack:
        settings = {**most, "sasl.server.max.receive.size": 17 * MB, "connections.max.reauth.ms": 600_000}
        broker = stack.enter_context(SecuredBroker(tmp_path, settings))
        stranger, honest = (stack.enter_context(broker.raw(each)) for each in ("SASL_PLAINTEXT", "PLAINTEXT"))
        assert honest.make_topic("t") == 0
        stranger.send_bytes(struct.pack(">i", 16 * MB) + bytes(MB))
        before = psutil.Process(broker.broker.pid).memory_info().rss
        assert honest.produce("t", batch(bytes(10 * MB))).error_code == 0
        stranger.send_bytes(bytes(2 * MB))
        assert is_served(honest)
        assert psutil.Process(broker.broker.pid).memory_info().rss - before < 60 * MB


def test_who_has_not_logged_in_costs_next_to_no_memory(tmp_path: Path) -> None:
    strangers = 300
    with ExitStack() as stack:
        broker = stack.enter_context(SecuredBroker(tmp_path))
        process = psutil.Process(broker.broker.pid)
        honest = stack.enter_context(broker.raw())
        assert is_served(honest)
        before, files_before = process.memory_info().rss, process.num_fds()
        for _ in range(strangers):
            stack.enter_context(broker.raw("SASL_PLAINTEXT")).send_bytes(b"\0")
        eventually(lambda: process.num_fds() - files_before >= strangers, "all are inside")
        assert is_served(honest)
        assert process.memory_info().rss - before < strangers * 40_000


def test_a_connection_with_thousands_of_requests_lets_others_have_their_turn(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", durability="os") as broker, broker.client() as greedy:
        with broker.client() as other:
            assert is_served(other)
            # Small requests with small answers: thousands of them fit into what is read at a time.
            flood = frame_of(FindCoordinatorRequest(key="g", key_type=0), 1) * 20_000
            sending = threading.Thread(target=greedy.send_bytes, args=(flood,))
            reading = threading.Thread(target=lambda: [greedy.read_frame() for _ in range(20_000)])
            sending.start()
            reading.start()
            turns = 0
            while reading.is_alive():
                assert is_served(other)
                turns += 1
            sending.join()
        # A busy machine makes both slower. On a quiet one, it is served every few milliseconds.
        assert turns > 20


def test_who_takes_no_answers_is_closed_after_a_while(tmp_path: Path) -> None:
    settings = {"connections.max.idle.ms": 500}
    with BrokerProcess(tmp_path / "data", settings=settings, durability="os") as broker:
        with broker.client() as client:
            assert client.make_topic("t") == 0
            for _ in range(8):
                assert client.produce("t", batch(bytes(900_000))).error_code == 0
        with broker.client() as lazy:
            wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MB)
            fetch = FetchRequest(
                max_wait_ms=0, min_bytes=1, max_bytes=50 * MB, topics=[FetchTopic(topic="t", partitions=[wanted])]
            )
            lazy.send_all([fetch] * 10)
            process = psutil.Process(broker.pid)

            def connections() -> int:
                return sum(each.status == psutil.CONN_ESTABLISHED for each in process.net_connections("tcp"))

            eventually(lambda: connections() == 0, "the broker gives up on it")

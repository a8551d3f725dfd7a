"""A broker that may open no file any more: what it needs to answer, it has."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import onceflow
from onceflow.broker.handlers import APIS
from onceflow.wire.messages import request_class
from onceflow.wire.messages.api_versions import ApiVersionsRequest
from onceflow.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from onceflow.wire.messages.list_transactions import ListTransactionsRequest
from onceflow.wire.schema import Message
from tests.support.broker_process import BrokerProcess
from tests.support.raw import batch
from tests.support.waiting import eventually

FIRST = ApiVersionsRequest(client_software_name="test", client_software_version="1")


def requests() -> Iterator[tuple[Message, int]]:
    for api_key, api in APIS.items():
        for version in {api.min_version, api.max_version}:
            yield request_class(api_key)(), version
    yield InitProducerIdRequest(transactional_id="ü", transaction_timeout_ms=60_000), 4
    yield ListTransactionsRequest(transactional_id_pattern="a.*"), 2
    yield (
        ConsumerGroupHeartbeatRequest(
            group_id="regex",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            topic_partitions=[],
            subscribed_topic_regex="a.*",
        ),
        1,
    )
    yield (
        JoinGroupRequest(
            group_id="classic",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        9,
    )


def test_no_api_needs_a_file_to_be_asked_for_the_first_time(tmp_path: Path) -> None:
    asked = list(requests())
    with BrokerProcess(tmp_path / "data") as broker, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.client()) for _ in asked]
        for client in clients:
            client.ask(FIRST)
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, hard))
        for client, (request, version) in zip(clients, asked, strict=True):
            client.send_all([request], version)
            client.send_all([FIRST])  # after acks=0 nothing else would come
        for client, (request, _) in zip(clients, asked, strict=True):
            assert client.is_answered(within_s=20), type(request).__name__
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert "Traceback" not in broker.reports, broker.reports


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_no_codec_needs_a_file(tmp_path: Path, codec: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        assert client.make_topic("orders", config={"compression.type": codec}) == 0
        assert client.produce("orders", batch(b"one")).error_code == 0
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, hard))
        assert client.produce("orders", batch(b"two")).error_code == 0
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_who_asks_for_the_page_without_a_file_waits_and_costs_no_time_either(tmp_path: Path) -> None:
    with onceflow.Broker(data_dir=tmp_path, http="127.0.0.1:0") as broker, contextlib.ExitStack() as stack:
        process = psutil.Process(broker.pid)
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, hard))
        page = ("127.0.0.1", int(str(broker.http_url).rpartition(":")[2]))
        waiting = [stack.enter_context(socket.create_connection(page, timeout=20)) for _ in range(5)]
        eventually(lambda: "No more connections can be accepted for now" in broker.log_file.read_text(), "it is said")
        for each in waiting:
            each.sendall(b"GET /alerts.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        before = sum(process.cpu_times()[:2])
        assert not select.select(waiting, [], [], 1)[0]
        assert sum(process.cpu_times()[:2]) - before < 0.2, "busy with what it cannot accept"
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        for each in waiting:
            assert each.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_who_waits_for_a_file_costs_no_time_and_one_line_of_the_log(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        process = psutil.Process(broker.pid)
        client.ask(FIRST)
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, hard))
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(broker.client()) for _ in range(20)]
            eventually(lambda: "No more connections can be accepted for now" in broker.reports, "it is said")
            before = sum(process.cpu_times()[:2])
            waiting[0].send_all([FIRST])
            assert not waiting[0].is_answered(within_s=1)
            assert sum(process.cpu_times()[:2]) - before < 0.5, "busy with what it cannot accept"
            client.ask(FIRST)  # who is inside is served
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
            waiting[0].receive_next()
            for each in waiting:
                each.ask(FIRST)
        assert broker.reports.count("No more connections") == 1

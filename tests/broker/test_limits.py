"""What is bounded, what is freed, and what is answered when: order, long polls, connections, sizes, retention."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    OpData,
    RequestEntryData,
)
from onceflow.wire.messages.api_versions import ApiVersionsRequest
from onceflow.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from onceflow.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from onceflow.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from onceflow.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from onceflow.wire.schema import Message
from tests.support.broker_process import BrokerProcess
from tests.support.raw import ConnectionClosed, batch, fetch_request, now_ms, produce_request
from tests.support.raw_client import GONE, RawClient, frame_of, values_of
from tests.support.waiting import eventually

API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")
MEMORY_MAX = 64 << 20
LONG_MS = 60_000
SOON_S = 20.0
"""Much less than LONG_MS, and enough for a machine that is busy with other tests."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for the tests that leave it as they found it, apart from their topics."""
    with BrokerProcess(tmp_path_factory.mktemp("limits") / "data") as broker:
        yield broker
        assert "Traceback" not in broker.reports


@pytest.fixture
def client(shared: BrokerProcess) -> Iterator[RawClient]:
    with shared.client() as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.originalname[:100]}-{random.randrange(10**9)}"
    assert client.make_topic(name) == 0
    return name


# Partitions


def test_a_topic_does_not_grow_beyond_its_limit(client: RawClient, topic: str) -> None:
    wanted = CreatePartitionsTopic(name=topic, count=10_001, assignments=None)
    [refused] = client.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=5000)).results
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert refused.error_message == "A topic may have 10000 partitions, and not 10001."
    [described] = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
    assert len(described.partitions) == 1


# Quotas


def test_a_quota_is_refused_since_nobody_would_enforce_it(client: RawClient) -> None:
    entry = RequestEntryData(
        entity=[EntityData(entity_type="client-id", entity_name=None)],
        ops=[OpData(key="consumer_byte_rate", value=1000.0, remove=False)],
    )
    [refused] = client.ask(AlterClientQuotasRequest(entries=[entry], validate_only=False)).entries
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert refused.error_message.startswith("consumer_byte_rate was not set: this broker enforces no quotas.")
    assert client.ask(DescribeClientQuotasRequest(components=[], strict=False)).entries == []


# Order


def test_pipelined_requests_are_answered_in_their_order(client: RawClient, topic: str) -> None:
    """Produce waits for the disk and a long poll for its time; what is answered at once waits behind them."""
    dice = random.Random(random.randrange(2**32))
    entry = ListOffsetsPartition(partition_index=0, timestamp=-1)
    kinds: list[Message] = [
        produce_request(topic, batch(b"value")),
        produce_request(topic, batch(b"value"), acks=1),
        fetch_request(topic, 0, max_wait_ms=0),
        fetch_request(topic, 10**6, max_wait_ms=5),
        MetadataRequest(topics=None),
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[entry])]),
        API_VERSIONS,
    ]
    requests = [dice.choice(kinds) for _ in range(400)]
    client.send_all(requests)
    for request in requests:
        answer = client.receive_next()
        assert type(answer).API_KEY == type(request).API_KEY


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_small_and_large_answers_keep_their_order_and_their_bytes(
    client: RawClient, topic: str, shared: BrokerProcess, pause_s: float
) -> None:
    """Large ones go from the file to the socket past everything else, if the socket takes them."""
    dice = random.Random(random.randrange(2**32))
    values = [dice.randbytes(size) for size in (10, 40_000, 300_000, 900_000, 10)]
    for value in values:
        assert client.produce(topic, batch(value)).error_code == 0
    kinds = [API_VERSIONS, *(fetch_request(topic, offset, max_wait_ms=0, max_bytes=10) for offset in range(5))]
    chosen = [dice.randrange(len(kinds)) for _ in range(120)]
    with shared.client() as reader:
        reader.send_all([kinds[at] for at in chosen])
        assert reader.is_answered(within_s=SOON_S)
        for at in chosen:
            if at == 0:
                assert reader.receive_next().error_code == 0
            else:
                assert values_of(reader.receive_fetched().records) == [values[at - 1]]
            if pause_s and dice.random() < 0.03:
                time.sleep(pause_s)  # a client that is busy with something else: the socket fills up


def test_order_holds_when_an_answer_makes_room_for_requests_that_wake_others(tmp_path: Path) -> None:
    """256 long polls fill the connection; behind them wait a produce that wakes them all, and one more request."""
    with (
        BrokerProcess(tmp_path / "data", durability="os") as broker,
        broker.client() as client,
        broker.client() as other,
    ):
        assert client.make_topic("orders") == 0
        poll = fetch_request("orders", 0, max_wait_ms=LONG_MS)
        client.send_all([*[poll] * 256, produce_request("orders", batch(b"mine")), API_VERSIONS])
        assert not client.is_answered(within_s=0.3)
        assert other.produce("orders", batch(b"theirs")).error_code == 0
        for _ in range(258):
            client.receive_next()


# Memory


def test_a_client_that_does_not_read_is_not_buffered_without_bound(
    client: RawClient, topic: str, shared: BrokerProcess
) -> None:
    for _ in range(4):
        assert client.produce(topic, batch(b"x" * 1_000_000)).error_code == 0
    before = shared.memory_bytes
    most = before
    with shared.client() as lazy:
        lazy.send_all([fetch_request(topic, 0, max_wait_ms=0)] * 200)  # 800 MB, if it were let
        for _ in range(50):
            client.latest(topic)
            most = max(most, shared.memory_bytes)
        assert most - before < MEMORY_MAX
        for _ in range(200):
            assert len(lazy.receive_fetched().records or b"") > 4_000_000
            most = max(most, shared.memory_bytes)
    assert most - before < MEMORY_MAX


def test_answers_that_wait_behind_a_long_poll_are_bounded_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", durability="os") as broker, broker.client() as client:
        assert client.make_topic("orders") == 0
        for _ in range(4):
            assert client.produce("orders", batch(b"x" * 1_000_000)).error_code == 0
        before = broker.memory_bytes
        poll = fetch_request("orders", 4, max_wait_ms=LONG_MS)
        client.send_all([poll, *[fetch_request("orders", 0, max_wait_ms=0)] * 100])
        with broker.client() as other:
            for _ in range(50):
                other.latest("orders")
        assert broker.memory_bytes - before < MEMORY_MAX


def test_long_polls_that_are_answered_all_at_once_are_bounded_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", durability="os") as broker, broker.client() as client:
        assert client.make_topic("orders") == 0
        for _ in range(4):
            assert client.produce("orders", batch(b"x" * 1_000_000)).error_code == 0
        before = broker.memory_bytes
        with broker.client() as lazy:
            lazy.send_all([fetch_request("orders", 0, max_wait_ms=LONG_MS, min_bytes=4_500_000)] * 100)
            assert not lazy.is_answered(within_s=0.2)
            assert client.produce("orders", batch(b"x" * 1_000_000)).error_code == 0
            for _ in range(50):
                client.latest("orders")
            assert broker.memory_bytes - before < MEMORY_MAX
            for _ in range(100):
                assert len(lazy.receive_fetched().records or b"") > 5_000_000


def test_a_large_request_gives_its_memory_back(client: RawClient, shared: BrokerProcess) -> None:
    name = f"large-{random.randrange(10**9)}"
    assert client.make_topic(name, config={"max.message.bytes": 50_000_000}) == 0
    before = shared.memory_bytes
    for _ in range(3):
        assert client.produce(name, batch(b"x" * 20_000_000)).error_code == 0
    client.latest(name)
    assert eventually(lambda: shared.memory_bytes - before < MEMORY_MAX, "the memory is given back")


# Long polls


def test_a_long_poll_is_answered_when_data_arrives(client: RawClient, topic: str, shared: BrokerProcess) -> None:
    with shared.client() as reader:
        for offset in range(5):
            reader.send_all([fetch_request(topic, offset, max_wait_ms=LONG_MS)])
            assert not reader.is_answered(within_s=0.02)
            started = time.monotonic()
            assert client.produce(topic, batch(b"%d" % offset)).base_offset == offset
            assert values_of(reader.receive_fetched().records) == [b"%d" % offset]
            assert time.monotonic() - started < SOON_S


def test_a_long_poll_without_data_is_answered_in_time(client: RawClient, topic: str) -> None:
    started = time.monotonic()
    answer = client.fetch(topic, 0, max_wait_ms=200)
    assert 0.19 < time.monotonic() - started < SOON_S  # the clock of the event loop counts milliseconds
    assert (answer.error_code, values_of(answer.records)) == (0, [])


def test_a_long_poll_waits_for_min_bytes(client: RawClient, topic: str, shared: BrokerProcess) -> None:
    with shared.client() as reader:
        reader.send_all([fetch_request(topic, 0, max_wait_ms=LONG_MS, min_bytes=3000)])
        for _ in range(2):
            assert client.produce(topic, batch(b"x" * 1000)).error_code == 0
        assert not reader.is_answered(within_s=0.1)
        assert client.produce(topic, batch(b"x" * 1000)).error_code == 0
        assert reader.is_answered(within_s=SOON_S)
        assert len(values_of(reader.receive_fetched().records)) == 3


def test_a_long_poll_is_answered_when_its_topic_is_deleted(
    client: RawClient, topic: str, shared: BrokerProcess
) -> None:
    with shared.client() as reader:
        reader.send_all([fetch_request(topic, 0, max_wait_ms=LONG_MS)])
        assert not reader.is_answered(within_s=0.05)
        assert client.delete_topic(topic) == 0
        assert reader.is_answered(within_s=SOON_S)
        assert reader.receive_fetched().error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_stop_answers_long_polls_and_writes_that_wait_for_the_disk(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as reader, broker.client() as writer, broker.client() as setup:
            assert setup.make_topic("orders") == 0
            assert setup.make_topic("other") == 0
            reader.send_all([fetch_request("other", 0, max_wait_ms=LONG_MS)])
            assert not reader.is_answered(within_s=0.05)
            writer.send_all([produce_request("orders", batch(b"%d" % at)) for at in range(50)])
            setup.topics()
            started = time.monotonic()
            assert broker.stop() == 0
            assert time.monotonic() - started < SOON_S
            assert reader.receive_fetched().error_code == 0
            acknowledged = 0
            with contextlib.suppress(*GONE):
                while acknowledged < 50:
                    assert writer.receive_produced().error_code == 0
                    acknowledged += 1
            with pytest.raises(ConnectionClosed):
                reader.read_frame()
        broker.start()
        with broker.client() as again:
            stored = again.read("orders")
            assert stored == [b"%d" % at for at in range(len(stored))]
            assert len(stored) >= acknowledged


def test_a_deleted_topic_answers_writes_that_wait_for_the_disk(client: RawClient, shared: BrokerProcess) -> None:
    for round_ in range(5):
        name = f"doomed-{round_}-{random.randrange(10**9)}"
        assert client.make_topic(name) == 0
        with shared.client() as writer:
            writer.send_all([produce_request(name, batch(b"value")) for _ in range(50)])
            assert client.delete_topic(name) == 0
            codes = {writer.receive_produced().error_code for _ in range(50)}
            assert codes <= {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


# Connections


def test_connections_beyond_the_limit_are_closed_until_there_is_room(tmp_path: Path) -> None:
    settings = {"max.connections": 3}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker, contextlib.ExitStack() as stack:
        connected = [stack.enter_context(broker.client()) for _ in range(3)]
        for each in connected:
            each.ask(API_VERSIONS)
        for _ in range(5):
            with broker.client() as refused:
                assert refused.waits_for_end()
        for each in connected:
            each.ask(API_VERSIONS)
        connected.pop().close()

        def there_is_room() -> bool:
            with broker.client() as another, contextlib.suppress(*GONE):
                another.ask(API_VERSIONS)
                return True
            return False

        eventually(there_is_room, "the freed connection can be used")


def test_idle_connections_are_closed_and_busy_or_waiting_ones_are_not(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", settings={"connections.max.idle.ms": 600}) as broker,
        broker.client() as idle,
        broker.client() as half,
        broker.client() as busy,
        broker.client() as waiting,
    ):
        assert busy.make_topic("orders") == 0
        half.send_bytes(struct.pack(">i", 1000) + b"only a part")
        waiting.send_all([fetch_request("orders", 0, max_wait_ms=LONG_MS)])

        def others_are_closed() -> bool:
            busy.ask(API_VERSIONS)
            return idle.is_answered(within_s=0.05) and half.is_answered(within_s=0.05)

        eventually(others_are_closed, "idle connections are closed")
        assert idle.waits_for_end()
        assert half.waits_for_end()
        assert not waiting.is_answered(within_s=0)
        assert busy.produce("orders", batch(b"one")).error_code == 0
        assert values_of(waiting.receive_fetched().records) == [b"one"]


def test_running_out_of_files_refuses_what_needs_one_and_hurts_nobody_else(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        assert client.make_topic("orders") == 0
        assert client.produce("orders", batch(b"one")).error_code == 0
        assert client.read("orders") == [b"one"]  # a handler is a file too, when it is first asked for
        assert set(client.topics()) == {"orders"}
        before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (broker.open_files + 6, before[1]))
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                stack.enter_context(broker.client())
            for at in range(10):
                assert client.make_topic(f"refused-{at}", partitions=8) == ErrorCode.KAFKA_STORAGE_ERROR
                assert client.produce("orders", batch(b"more")).error_code == 0
            assert len(client.read("orders")) == 11
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)

        def is_served() -> bool:
            with broker.client() as another, contextlib.suppress(*GONE):
                return set(another.topics()) == {"orders"}
            return False

        eventually(is_served, "new connections are served again")
        assert client.make_topic("refused-0", partitions=8) == 0
        assert client.produce("refused-0", batch(b"one"), partition=7).error_code == 0
        assert "Traceback" not in broker.reports
        broker.restart()


# Sizes


def test_a_batch_larger_than_max_message_bytes_is_refused(client: RawClient, shared: BrokerProcess) -> None:
    name = f"small-{random.randrange(10**9)}"
    fitting = batch(b"x" * 500)
    assert client.make_topic(name, config={"max.message.bytes": len(fitting)}) == 0
    assert client.produce(name, fitting).error_code == 0
    refused = client.produce(name, batch(b"x" * 501))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE == 10
    assert client.read(name) == [b"x" * 500]


def test_a_request_larger_than_the_limit_costs_its_connection(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"socket.request.max.bytes": 20_000}) as broker:
        with broker.client() as client:
            assert client.make_topic("orders") == 0
            overhead = len(frame_of(produce_request("orders", batch(b"x" * 19_000)), 12)) - 4 - 19_000
            largest = 20_000 - overhead
            assert client.produce("orders", batch(b"x" * largest)).error_code == 0
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.send_all([produce_request("orders", batch(b"x" * (largest + 1)))])
            assert client.waits_for_end()
        with broker.client() as another:
            assert [len(value or b"") for value in another.read("orders")] == [largest]


# Letting go


FAST = {"log.retention.check.interval.ms": 50, "log.segment.delete.delay.ms": 0}


@pytest.fixture(scope="module")
def tidy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that applies retention all the time."""
    with BrokerProcess(tmp_path_factory.mktemp("tidy") / "data", settings=FAST) as broker:
        yield broker
        assert "Traceback" not in broker.reports


def bytes_of(broker: BrokerProcess, topic: str) -> int:
    total = 0
    for path in broker.data.glob(f"{topic}-*/*.log"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def deleted_files_held_open(broker: BrokerProcess) -> list[str]:
    """Space that is not free yet: files without a name that the broker still has open."""
    held = []
    for fd in os.listdir(f"/proc/{broker.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/{broker.pid}/fd/{fd}")
            if target.endswith("(deleted)") and str(broker.data) in target:
                held.append(target)
    return held


def test_retention_by_size_frees_the_oldest_segments(tidy: BrokerProcess) -> None:
    with tidy.client() as client:
        assert client.make_topic("by-size", config={"segment.bytes": 10_000, "retention.bytes": 50_000}) == 0
        for at in range(150):
            assert client.produce("by-size", batch(b"%04d" % at + b"x" * 1000)).error_code == 0
        eventually(lambda: bytes_of(tidy, "by-size") <= 60_000, "old segments are freed")
        assert bytes_of(tidy, "by-size") >= 40_000
        eventually(lambda: deleted_files_held_open(tidy) == [], "no deleted file is held open")
        start = client.earliest("by-size")
        assert start > 50
        kept = [int((value or b"")[:4]) for value in client.read("by-size", offset=start)]
        assert kept == list(range(start, 150))
        assert client.fetch("by-size", 0, max_wait_ms=0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_retention_by_time_frees_old_segments_and_keeps_the_new(tidy: BrokerProcess) -> None:
    with tidy.client() as client:
        assert client.make_topic("by-time", config={"segment.bytes": 5000, "retention.ms": 600_000}) == 0
        long_ago = now_ms() - 3_600_000
        for _ in range(20):
            assert client.produce("by-time", batch(b"x" * 1000, timestamps=[long_ago])).error_code == 0
        fresh = client.produce("by-time", batch(b"fresh")).base_offset
        eventually(lambda: client.earliest("by-time") > 15, "old segments are freed")
        assert client.read("by-time", offset=client.earliest("by-time"))[-1] == b"fresh"
        assert client.latest("by-time") == fresh + 1
        eventually(lambda: bytes_of(tidy, "by-time") < 8000, "the next checkpoint frees the disk")
        eventually(lambda: deleted_files_held_open(tidy) == [], "no deleted file is held open")


def test_retention_by_time_empties_a_log_that_is_old_altogether_and_offsets_go_on(tidy: BrokerProcess) -> None:
    with tidy.client() as client:
        assert client.make_topic("all-old", config={"retention.ms": 600_000}) == 0
        long_ago = now_ms() - 3_600_000
        assert client.produce("all-old", batch(*[b"x"] * 10, timestamps=[long_ago] * 10)).base_offset == 0
        eventually(lambda: client.earliest("all-old") == 10, "the old records are gone")
        eventually(lambda: bytes_of(tidy, "all-old") == 0, "the next checkpoint frees the disk")
        assert client.produce("all-old", batch(b"next")).base_offset == 10
        assert client.read("all-old", offset=10) == [b"next"]


def test_deleting_records_frees_the_segments_before(tidy: BrokerProcess) -> None:
    with tidy.client() as client:
        assert client.make_topic("cut", config={"segment.bytes": 5000}) == 0
        for _ in range(50):
            assert client.produce("cut", batch(b"x" * 1000)).error_code == 0
        before = bytes_of(tidy, "cut")
        cut = DeleteRecordsTopic(name="cut", partitions=[DeleteRecordsPartition(partition_index=0, offset=40)])
        [answer] = client.ask(DeleteRecordsRequest(topics=[cut], timeout_ms=1000)).topics
        assert answer.partitions[0].low_watermark == 40
        eventually(lambda: bytes_of(tidy, "cut") < before / 3, "the next checkpoint frees the disk")
        assert len(client.read("cut", offset=40)) == 10
        eventually(lambda: deleted_files_held_open(tidy) == [], "no deleted file is held open")


def test_deleting_a_topic_frees_its_disk_at_once(tidy: BrokerProcess) -> None:
    with tidy.client() as client, tidy.client() as reader:
        assert client.make_topic("gone", partitions=3, config={"segment.bytes": 50_000}) == 0
        for partition in range(3):
            for _ in range(20):
                assert client.produce("gone", batch(b"x" * 10_000), partition=partition).error_code == 0
        assert len(reader.read("gone")) == 20
        assert bytes_of(tidy, "gone") > 600_000
        assert client.delete_topic("gone") == 0
        assert list(tidy.data.glob("gone-*")) == []
        eventually(lambda: deleted_files_held_open(tidy) == [], "no deleted file is held open")


def test_segment_ms_starts_a_new_segment_with_the_next_write(tidy: BrokerProcess) -> None:
    with tidy.client() as client:
        assert client.make_topic("rolling", config={"segment.ms": 100}) == 0
        assert client.produce("rolling", batch(b"first")).base_offset == 0

        def has_rolled() -> bool:
            assert client.produce("rolling", batch(b"later")).error_code == 0
            return len(list((tidy.data / "rolling-0").glob("*.log"))) >= 3

        eventually(has_rolled, "segments are started by age")
        values = client.read("rolling")
        assert values == [b"first", *[b"later"] * (len(values) - 1)]

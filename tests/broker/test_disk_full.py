"""A full disk, and one that fails to sync: 56 to the writer, nothing to the reader, and no harm once it works again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.produce import ProduceRequest
from tests.support.broker_process import BrokerProcess, FaultyDisk
from tests.support.raw import batch, fetch_request, produce_request
from tests.support.raw_client import RawClient, values_of
from tests.support.small_disk import LimitedFiles, SmallDisk, TmpfsDisk, can_mount
from tests.support.waiting import eventually

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def test_the_code_for_a_disk_that_refuses_tells_clients_to_try_again() -> None:
    assert STORAGE_ERROR == 56
    assert STORAGE_ERROR.retriable


# Full

KINDS = {"file size limit": LimitedFiles, **({"tmpfs": TmpfsDisk} if can_mount() else {})}
FREQUENT_CHECKPOINTS = {"log.flush.offset.checkpoint.interval.ms": 20, "log.index.interval.bytes": 0}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["fsync", "os"])
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def disk(kind: str, durability: str, tmp_path: Path) -> Iterator[SmallDisk]:
    small: SmallDisk = KINDS[kind](tmp_path, durability, dict(FREQUENT_CHECKPOINTS))
    try:
        with small.broker:
            yield small
    finally:
        small.close()


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_without_a_trace(disk: SmallDisk) -> None:
    broker = disk.broker
    with broker.client() as client:
        assert client.make_topic("orders") == 0
        producer = client.new_producer()
        sent = [batch(b"%d" % at * 20_000, producer=producer, sequence=at) for at in range(8)]
        stored = [b"%d" % at * 20_000 for at in range(8)]
        for at in range(4):
            assert client.produce("orders", sent[at]).base_offset == at

        disk.fill()
        for _ in range(20):
            refused = client.produce("orders", sent[4])
            assert (refused.error_code, refused.base_offset) == (STORAGE_ERROR, -1)
            assert client.produce("orders", batch(b"plain" * 4000)).error_code == STORAGE_ERROR
        # Later ones do not overtake it: their sequence is ahead of what is stored.
        assert client.produce("orders", sent[5]).error_code in (STORAGE_ERROR, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        assert broker.is_running
        assert client.read("orders") == stored[:4]
        assert client.latest("orders") == 4
        # What was acknowledged is still recognised.
        assert client.produce("orders", sent[3]).base_offset == 3

        disk.free()
        for at in range(4, 8):
            assert client.produce("orders", sent[at]).base_offset == at
        assert client.produce("orders", sent[4]).base_offset == 4
        assert client.read("orders") == stored
    broker.restart()
    with broker.client() as client:
        assert client.read("orders") == stored
        assert client.produce("orders", sent[7]).base_offset == 7
        assert client.produce("orders", batch(b"next")).base_offset == 8


@pytest.mark.skipif(not can_mount(), reason="a limit on the size of files is one on the log of the broker, too")
@pytest.mark.parametrize("kind", ["tmpfs"])
def test_a_disk_that_refuses_is_in_the_log_once_however_often_producers_try_again(disk: SmallDisk) -> None:
    broker = disk.broker
    with broker.client() as client:
        assert client.make_topic("orders") == 0
        assert client.produce("orders", batch(b"one")).error_code == 0
        disk.fill()
        for _ in range(20):
            assert client.produce("orders", batch(b"x" * 20_000)).error_code == STORAGE_ERROR
        assert broker.reports.count("Writes to orders-0 are refused until the disk takes them: make room there") == 1
        assert "00000.log: No space left on device." in broker.reports, "which file, and what the system says"
        with broker.client() as careless:
            careless.send_all([produce_request("orders", batch(b"x" * 20_000), acks=0)])
            assert careless.waits_for_end()
        untold = (
            "A produce with acks=0 failed, which its client cannot be told: orders-0: KAFKA_STORAGE_ERROR (Could not"
        )
        assert broker.reports.count(untold) == 1
        assert "does not speak Kafka" not in broker.reports
        disk.free()
        assert client.produce("orders", batch(b"two")).error_code == 0
        eventually(lambda: "orders-0 takes writes again; 21 were refused." in broker.reports, "it is over")


def test_a_full_disk_and_a_kill_lose_nothing_that_was_acknowledged(disk: SmallDisk) -> None:
    broker = disk.broker
    with broker.client() as client:
        assert client.make_topic("orders") == 0
        producer = client.new_producer()
        for at in range(3):
            assert client.produce("orders", batch(b"%d" % at, producer=producer, sequence=at)).base_offset == at
        disk.fill()
        assert client.produce("orders", batch(b"3" * 20_000, producer=producer, sequence=3)).error_code == STORAGE_ERROR
    broker.kill()
    disk_was_full_at_the_start = isinstance(disk, TmpfsDisk)
    broker.start()  # also on a full disk: reading needs no room
    with broker.client() as client:
        assert client.read("orders") == [b"0", b"1", b"2"]
        if disk_was_full_at_the_start:
            disk.free()
        assert client.produce("orders", batch(b"3" * 20_000, producer=producer, sequence=3)).base_offset == 3
        assert client.read("orders") == [b"0", b"1", b"2", b"3" * 20_000]


@pytest.mark.skipif(not can_mount(), reason="only a whole file system can refuse a new file; the size limit cannot")
@pytest.mark.parametrize("kind", ["tmpfs"])
def test_a_topic_that_a_full_disk_refuses_is_not_there_and_leaks_nothing(disk: SmallDisk) -> None:
    broker = disk.broker
    with broker.client() as client:
        assert client.make_topic("orders") == 0
        assert client.produce("orders", batch(b"one")).error_code == 0
        disk.fill()
        before = broker.open_files
        for at in range(10):
            assert client.make_topic(f"refused-{at}", partitions=5) == STORAGE_ERROR
        assert broker.open_files <= before + 2
        assert set(client.topics()) == {"orders"}
        disk.free()
        assert [path.name for path in broker.seen_data.iterdir() if path.name.startswith("refused")] == []
        assert client.make_topic("refused-0", partitions=5) == 0
    broker.restart()
    with broker.client() as client:
        assert set(client.topics()) == {"orders", "refused-0"}


@pytest.mark.skipif(not can_mount(), reason="only a whole file system can refuse a new file; the size limit cannot")
@pytest.mark.parametrize("kind", ["tmpfs"])
def test_checkpoints_that_fail_on_a_full_disk_leak_no_files(disk: SmallDisk) -> None:
    broker = disk.broker
    with broker.client() as client:
        assert client.make_topic("orders") == 0
        assert client.produce("orders", batch(b"one")).error_code == 0
        disk.fill()
        # The log has room left in its last page; the index, which gets its first entry now, has none.
        assert client.produce("orders", batch(b"two")).error_code == 0
        before = broker.open_files
        eventually(lambda: broker.reports.count("No checkpoint of orders-0") > 10, "checkpoints fail")
        assert broker.open_files <= before + 3
        disk.free()
        snapshot = broker.seen_data / "orders-0" / f"{2:020d}.snapshot"
        eventually(snapshot.exists, "a checkpoint gets through")


# Syncs that fail


@pytest.fixture
def faults(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path / "faults")


@pytest.fixture
def broker(tmp_path: Path, faults: FaultyDisk) -> Iterator[BrokerProcess]:
    # No checkpoint now and then: each test decides which sync it is that fails.
    settings = {"log.flush.offset.checkpoint.interval.ms": 600_000}
    with BrokerProcess(tmp_path / "data", environment=faults.environment, settings=settings) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with broker.client() as connected:
        assert connected.make_topic("orders") == 0
        assert connected.produce("orders", batch(b"0")).base_offset == 0
        yield connected


def test_a_sync_that_fails_once_takes_the_write_back(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk
) -> None:
    producer = client.new_producer()
    faults.fail_one_sync("orders-0")
    refused = client.produce("orders", batch(b"1", producer=producer, sequence=0))
    assert (refused.error_code, refused.base_offset) == (STORAGE_ERROR, -1)
    assert faults.has_failed_once
    assert client.read("orders") == [b"0"]
    # The producer tries again, as 56 tells it to.
    assert client.produce("orders", batch(b"1", producer=producer, sequence=0)).base_offset == 1
    assert client.produce("orders", batch(b"2", producer=producer, sequence=1)).base_offset == 2
    assert client.read("orders") == [b"0", b"1", b"2"]
    broker.restart()
    with broker.client() as again:
        assert again.read("orders") == [b"0", b"1", b"2"]
        assert again.produce("orders", batch(b"1", producer=producer, sequence=0)).base_offset == 1


def test_readers_go_on_while_syncs_fail(client: RawClient, faults: FaultyDisk) -> None:
    faults.fail_syncs("orders-0")
    for _ in range(3):
        assert client.produce("orders", batch(b"1")).error_code == STORAGE_ERROR
        assert client.read("orders") == [b"0"]
        assert client.latest("orders") == 1
    faults.heal()
    assert client.read("orders") == [b"0"]


def test_an_idempotent_producer_gets_through_when_syncs_work_again(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk
) -> None:
    producer = client.new_producer()
    one = batch(b"1", producer=producer, sequence=0)
    faults.fail_syncs("orders-0")
    for _ in range(3):
        client.send_all([produce_request("orders", one)])
        assert client.is_answered(within_s=20), "A retry under a failing disk is never answered."
        assert client.receive_produced().error_code == STORAGE_ERROR
    faults.heal()
    assert client.produce("orders", one).base_offset == 1
    assert client.produce("orders", batch(b"2", producer=producer, sequence=1)).base_offset == 2
    assert client.read("orders") == [b"0", b"1", b"2"]
    broker.kill()
    broker.start()
    with broker.client() as again:
        assert again.read("orders") == [b"0", b"1", b"2"]


def test_nobody_sees_a_record_before_it_is_synced_and_never_if_that_fails(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk
) -> None:
    with broker.client() as reader, broker.client() as waiting:
        waiting.send_all([fetch_request("orders", 1, max_wait_ms=30_000)])
        faults.hold_syncs("orders-0")
        client.send_all([produce_request("orders", batch(b"doomed"))])
        faults.wait_for_held_sync()
        assert reader.latest("orders") == 1
        assert reader.read("orders") == [b"0"]
        assert values_of(reader.fetch("orders", 1, max_wait_ms=20).records) == []
        assert not waiting.is_answered(within_s=0)
        faults.fail_one_sync("orders-0")
        faults.release()
        assert client.receive_produced().error_code == STORAGE_ERROR
        assert reader.read("orders") == [b"0"]
        assert client.produce("orders", batch(b"stored")).base_offset == 1
        answer = waiting.receive_fetched()
        assert (values_of(answer.records), answer.high_watermark) == ([b"stored"], 2)


def other_requests_arrived(broker: BrokerProcess) -> bool:
    """What was sent before this, on any connection, has been read and handled."""
    with broker.client() as messenger:
        return all(messenger.latest("orders") == 1 for _ in range(20))


def test_a_failed_sync_also_takes_back_what_was_written_while_it_ran(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk
) -> None:
    """Each batch in a segment of its own: the next round would sync another file, and succeed."""
    assert client.make_topic("small", config={"segment.bytes": 14}) == 0
    assert client.produce("small", batch(b"0")).base_offset == 0
    with broker.client() as other:
        faults.hold_syncs("small-0")
        client.send_all([produce_request("small", batch(b"lost 1"))])
        faults.wait_for_held_sync()
        other.send_all([produce_request("small", batch(b"lost 2")), produce_request("small", batch(b"lost 3"))])
        assert other_requests_arrived(broker)
        faults.fail_one_sync("small-0")
        faults.release()
        assert client.receive_produced().error_code == STORAGE_ERROR
        assert [other.receive_produced().error_code for _ in range(2)] == [STORAGE_ERROR] * 2
    assert client.latest("small") == 1
    for at in range(1, 4):
        assert client.produce("small", batch(b"%d" % at)).base_offset == at
    assert client.read("small") == [b"0", b"1", b"2", b"3"]
    broker.kill()
    broker.start()
    with broker.client() as again:
        assert again.read("small") == [b"0", b"1", b"2", b"3"]


def test_a_failed_sync_of_one_partition_does_not_touch_another(client: RawClient, faults: FaultyDisk) -> None:
    assert client.make_topic("other") == 0
    faults.fail_syncs("orders-0")
    assert client.produce("orders", batch(b"1")).error_code == STORAGE_ERROR
    for at in range(3):
        assert client.produce("other", batch(b"%d" % at)).base_offset == at
    assert client.read("other") == [b"0", b"1", b"2"]


def test_a_topic_that_is_deleted_in_the_middle_of_a_sync_stops_nobody_else(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk
) -> None:
    for name in ("doomed", "other"):
        assert client.make_topic(name) == 0
    requests = [produce_request(name, batch(b"1")) for name in ("orders", "doomed")]
    both = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data for r in requests for data in r.topic_data])
    with broker.client() as writer, broker.client() as third:
        faults.hold_syncs("orders-0")
        writer.send_all([both])  # one round of syncs: first orders, then doomed
        faults.wait_for_held_sync()
        third.send_all([produce_request("other", batch(b"2"))])  # waits for the next round
        assert client.delete_topic("doomed") == 0
        faults.release()
        codes = {topic.name: topic.partition_responses[0].error_code for topic in writer.receive_next().responses}
        assert codes == {"orders": 0, "doomed": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert third.receive_produced().base_offset == 0
        assert writer.produce("orders", batch(b"2")).base_offset == 2
    assert "Traceback" not in broker.reports


def test_a_topic_whose_creation_could_not_be_synced_is_not_there(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk
) -> None:
    before = broker.open_files
    for path_part in ("data/topics", "data"):
        faults.fail_syncs(path_part)
        for at in range(5):
            assert client.make_topic(f"refused-{at}", partitions=3) == STORAGE_ERROR
            assert client.delete_topic(f"refused-{at}") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        faults.heal()
    assert set(client.topics()) == {"orders"}
    assert broker.open_files <= before + 2
    assert list(broker.data.glob("refused*")) == []
    broker.kill()
    broker.start()
    with broker.client() as again:
        assert set(again.topics()) == {"orders"}
        assert again.make_topic("refused-0", partitions=3) == 0


def test_a_topic_whose_deletion_could_not_be_synced_lives_on_through_a_restart(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk
) -> None:
    faults.fail_one_sync("data/topics")  # of the file that marks it, or of its folder after the rename
    eventually(lambda: client.delete_topic("orders") == STORAGE_ERROR and faults.has_failed_once, "the sync fails")
    assert client.produce("orders", batch(b"1")).base_offset == 1
    broker.kill()
    broker.start()
    with broker.client() as again:
        assert again.read("orders") == [b"0", b"1"]
        assert again.delete_topic("orders") == 0


def test_under_durability_os_a_failing_sync_costs_checkpoints_and_nothing_else(
    tmp_path: Path, faults: FaultyDisk
) -> None:
    settings = {"log.flush.offset.checkpoint.interval.ms": 20}
    with BrokerProcess(tmp_path / "data", durability="os", environment=faults.environment, settings=settings) as broker:
        with broker.client() as client:
            assert client.make_topic("orders") == 0
            faults.fail_syncs("orders-0")
            for at in range(20):
                assert client.produce("orders", batch(b"%d" % at)).base_offset == at
            assert client.read("orders") == [b"%d" % at for at in range(20)]
            eventually(lambda: "No checkpoint of orders-0" in broker.reports, "a checkpoint fails")
        assert broker.stop() == 0
        faults.heal()
        broker.start()
        with broker.client() as client:
            assert client.read("orders") == [b"%d" % at for at in range(20)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_stop_that_waits_for_a_hanging_disk(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk, number: signal.Signals
) -> None:
    faults.hold_syncs("orders-0")
    client.send_all([produce_request("orders", batch(b"never acknowledged"))])
    faults.wait_for_held_sync()
    broker.process.send_signal(number)
    eventually(lambda: refuses_connections(broker), "the stop begins")
    assert broker.is_running
    assert broker.stop(number) == -number
    faults.heal()
    broker.start()
    with broker.client() as again:
        assert again.read("orders")[:1] == [b"0"]


def refuses_connections(broker: BrokerProcess) -> bool:
    try:
        broker.client().close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was in the queue of the listener when that was closed
        return False
    return False


def test_a_stop_while_syncs_fail_ends_cleanly_and_loses_nothing(
    broker: BrokerProcess, client: RawClient, faults: FaultyDisk
) -> None:
    assert client.produce("orders", batch(b"1")).base_offset == 1
    faults.fail_syncs()
    assert broker.stop() == 0
    assert "without a checkpoint" in broker.reports
    assert "Traceback" not in broker.reports
    faults.heal()
    broker.start()
    with broker.client() as again:
        assert again.read("orders") == [b"0", b"1"]

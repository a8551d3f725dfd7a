"""Our reader of partitions, against both brokers: ranges, transactions, lost data, offsets of partitions and groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import onceflow
from onceflow.client import offsets
from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Refused
from onceflow.client.fetching import (
    EARLIEST,
    LATEST,
    DataLost,
    NotYet,
    TopicRecreated,
    committed_offsets,
    fetch,
    list_offsets,
    read_range,
)
from onceflow.client.settings import ClientSettings
from onceflow.client.topic_ids import to_text
from onceflow.errors import ErrorCode
from onceflow.spark.decoding import to_arrow
from onceflow.wire.compression import Codec
from onceflow.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from onceflow.wire.records import read_records
from tests.conformance.conftest import RunningBroker, started
from tests.support.apache_kafka import ApacheKafka
from tests.support.raw import Wire, batch, now_ms
from tests.support.raw_groups import commit
from tests.support.raw_transactions import TransactionalProducer
from tests.support.waiting import eventually


@pytest.fixture
def cluster(broker: RunningBroker) -> Iterator[Cluster]:
    with Cluster(ClientSettings(bootstrap=broker.bootstrap)) as cluster:
        yield cluster


def values(cluster: Cluster, topic: str, start: int, end: int, **settings: Any) -> list[str]:
    """The values in a range, through the columns that Spark gets; of a tombstone ""."""
    found = [
        to_arrow(batches, start, end, topic=topic, partition=0, include_headers=False)
        for batches in read_range(cluster, topic, 0, start, end, **settings)
    ]
    return [(value or b"").decode() for each in found if each is not None for value in each.column("value").to_pylist()]


def leader(cluster: Cluster, topic: str) -> int:
    found = cluster.leaders([topic])[topic, 0]
    assert found is not None
    return found


def delete_until(wire: Wire, topic: str, offset: int) -> None:
    at = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[at])], timeout_ms=5000)
    assert wire.ask(request).topics[0].partitions[0].error_code == ErrorCode.NONE


# --- ranges


@pytest.fixture
def ten(wire: Wire, topic: str) -> str:
    """Offsets 0 to 9, two records in each batch, packed by each codec."""
    for number, codec in enumerate(Codec):
        assert wire.produce(topic, batch(f"{number}a", f"{number}b", compression=codec)).error_code == ErrorCode.NONE
    return topic


ALL = ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b", "4a", "4b"]


@pytest.mark.parametrize("fetch_bytes", [1, 200, 1_000_000])
def test_a_range_is_what_was_written_whatever_a_fetch_brings(cluster: Cluster, ten: str, fetch_bytes: int) -> None:
    for start, end in ((0, 10), (3, 4), (1, 9), (4, 4)):
        assert values(cluster, ten, start, end, fetch_bytes=fetch_bytes) == ALL[start:end]


def test_one_batch_comes_per_fetch_that_asks_for_one_byte(cluster: Cluster, ten: str) -> None:
    assert [len(each) for each in read_range(cluster, ten, 0, 0, 10, fetch_bytes=1)] == [1] * 5


def test_a_fetch_tells_where_the_log_begins_and_ends(cluster: Cluster, ten: str, wire: Wire) -> None:
    delete_until(wire, ten, 3)
    fetched = fetch(
        cluster, ten, 0, 3, leader=leader(cluster, ten), read_committed=True, max_bytes=1_000_000, wait_ms=0
    )
    assert (fetched.log_start, fetched.last_stable_offset, fetched.high_watermark) == (3, 10, 10)
    assert [header.base_offset for header, _ in fetched.batches] == [2, 4, 6, 8]
    assert fetched.aborted == []


def test_a_position_outside_of_the_log_is_refused(cluster: Cluster, ten: str) -> None:
    with pytest.raises(Refused) as caught:
        fetch(cluster, ten, 0, 11, leader=leader(cluster, ten), read_committed=True, max_bytes=1000, wait_ms=0)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_deleted_records_are_lost_data(cluster: Cluster, ten: str, wire: Wire) -> None:
    delete_until(wire, ten, 3)
    with pytest.raises(DataLost, match=r"offsets 1 to 2 of .* are gone: its log begins at 3") as caught:
        values(cluster, ten, 1, 10)
    assert (caught.value.first, caught.value.end) == (3, 10)
    assert values(cluster, ten, 3, 10) == ALL[3:]


def test_records_that_were_never_written_are_lost_data(cluster: Cluster, ten: str) -> None:
    with pytest.raises(DataLost, match=r"offsets 10 to 11 of .* do not exist: its log ends at 10"):
        values(cluster, ten, 0, 12)
    with pytest.raises(DataLost, match=r"offsets 20 to 29 of .* do not exist: its log ends at 10"):
        values(cluster, ten, 20, 30)


# --- compaction


def compacted_topic(wire: Wire, name: str) -> str:
    """Every batch that is a second later than the one before begins a segment; what is sealed is soon cleaned."""
    wire.create_topic(
        name,
        cleanup_policy="compact",
        segment_ms="500",
        min_cleanable_dirty_ratio="0.0",
        delete_retention_ms="0",
        min_compaction_lag_ms="0",
    )
    return name


def write_at(wire: Wire, topic: str, second: int, *values: str | None, key: bytes = b"k") -> None:
    """Of so many seconds after some time in the past."""
    at_ms = now_ms() - 600_000 + 1000 * second
    whole = batch(*values, key=key, timestamps=[at_ms] * len(values))
    assert wire.produce(topic, whole).error_code == ErrorCode.NONE


def compacted(cluster: Cluster, wire: Wire, topic: str, seconds: Iterator[int]) -> int:
    """Writes a key and deletes it, and waits until nothing is left of it. Returns where that ends."""
    for value in ("0", "1", "2", "3", None):
        write_at(wire, topic, next(seconds), value, value)
    end = wire.end(topic)

    def is_clean() -> bool:
        write_at(wire, topic, next(seconds), "later", key=b"other")  # there has to be something to clean
        return values(cluster, topic, 0, end, read_committed=False, patience_s=5) == []

    eventually(is_clean, "compaction has removed the key", timeout_s=60, every_s=0.3)
    return end


@pytest.mark.daily_on_kafka
@pytest.mark.parametrize("read_committed", [True, False])
def test_a_compacted_topic_is_read_to_every_end_without_waiting(
    cluster: Cluster, wire: Wire, new_name: Callable[[], str], read_committed: bool
) -> None:
    topic = compacted_topic(wire, new_name())
    end = compacted(cluster, wire, topic, count())
    for until in range(1, end + 1):
        for start in (0, until - 1):
            assert values(cluster, topic, start, until, read_committed=read_committed, patience_s=0) == []
    last = wire.end(topic)
    assert values(cluster, topic, 0, last, read_committed=read_committed, patience_s=0)[-1] == "later"


@pytest.mark.daily_on_kafka
def test_what_compaction_removed_before_an_open_transaction_is_read_to_its_end(
    cluster: Cluster, broker: RunningBroker, wire: Wire, new_name: Callable[[], str]
) -> None:
    topic = compacted_topic(wire, new_name())
    seconds = count()
    end = compacted(cluster, wire, topic, seconds)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": new_name()})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "open", key="open")
    assert producer.flush(30) == 0
    stable = wire.stable_end(topic)
    assert end <= stable < wire.end(topic)
    assert values(cluster, topic, 0, end, patience_s=0) == []
    assert values(cluster, topic, 0, stable, patience_s=0)[-1] == "later"
    producer.abort_transaction(30)


# --- topics that were created anew


def deleted(wire: Wire, cluster: Cluster, topic: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000)
    assert wire.ask(request).responses[0].error_code == ErrorCode.NONE

    def is_gone() -> bool:
        try:
            cluster.topics([topic])
        except TopicMissingError:
            return True
        return False

    eventually(is_gone, "the topic is deleted")


@pytest.mark.daily_on_kafka
def test_another_topic_under_the_same_name_is_not_read(
    cluster: Cluster, wire: Wire, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "MISSING_PATIENCE_S", 0.2)
    topic = new_name()
    old = to_text(wire.create_topic(topic))
    wire.produce(topic, batch("0", "1"))
    assert values(cluster, topic, 0, 2, topic_id=old) == ["0", "1"]
    under_way = read_range(cluster, topic, 0, 0, 4)
    next(under_way)
    deleted(wire, cluster, topic)
    with pytest.raises(TopicMissingError, match="there is no topic"):
        values(cluster, topic, 0, 2, topic_id=old)
    new = to_text(wire.create_topic(topic))
    wire.produce(topic, batch("a", "b", "c", "d"))
    sentence = rf"topic '{topic}' was deleted and created again: its id was {old} and is {new} now"
    with pytest.raises(TopicRecreated, match=sentence):
        values(cluster, topic, 0, 2, topic_id=old)
    with pytest.raises(TopicRecreated, match=sentence):
        next(under_way)
    assert values(cluster, topic, 0, 4, topic_id=new) == ["a", "b", "c", "d"]


# --- transactions


def test_committed_records_are_seen_and_aborted_ones_are_not(
    cluster: Cluster, topic: str, new_producer: Callable[[], TransactionalProducer], wire: Wire
) -> None:
    one, other = new_producer(), new_producer()
    one.write(topic, "a0", "a1")
    wire.produce(topic, batch("plain"))
    other.write(topic, "b0")
    one.write(topic, "a2")
    one.abort()
    one.settle()
    one.write(topic, "a3")
    one.commit()
    one.settle()
    other.commit()
    other.settle()
    end = wire.end(topic)
    for fetch_bytes in (1, 1_000_000):
        assert values(cluster, topic, 0, end, fetch_bytes=fetch_bytes) == ["plain", "b0", "a3"]
        uncommitted = values(cluster, topic, 0, end, fetch_bytes=fetch_bytes, read_committed=False)
        assert uncommitted == ["a0", "a1", "plain", "b0", "a2", "a3"]
    # From inside of what was aborted, too, and up to it.
    assert values(cluster, topic, 1, end) == ["plain", "b0", "a3"]
    assert values(cluster, topic, 0, 5) == ["plain", "b0"]


def test_a_range_that_ends_with_markers_ends(cluster: Cluster, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "gone")
    producer.abort()
    producer.settle()
    assert values(cluster, topic, 0, 2) == []
    assert values(cluster, topic, 1, 2) == []


def test_the_end_of_an_open_transaction_is_waited_for(
    cluster: Cluster, topic: str, producer: TransactionalProducer, broker: RunningBroker
) -> None:
    producer.write(topic, "a", "b")
    with pytest.raises(NotYet, match="from 0 on there is a transaction that is still open"):
        values(cluster, topic, 0, 2, patience_s=0.1)
    found: list[list[str]] = []
    reader = threading.Thread(target=lambda: found.append(values(cluster, topic, 0, 2)))
    reader.start()
    with Wire(broker.bootstrap) as other:
        producer.on(other).commit()
    reader.join(30)
    assert found == [["a", "b"]]


# --- offsets


def test_offsets_by_place_and_by_time(cluster: Cluster, wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    wire.create_topic(topic, partitions=2)
    wire.produce(topic, batch("a", "b", timestamps=[1000, 2000]), partition=0)
    wire.produce(topic, batch("c", timestamps=[5000]), partition=1)
    both = [(topic, 0), (topic, 1)]

    def offsets(timestamp: int) -> list[int]:
        return list(list_offsets(cluster, dict.fromkeys(both, timestamp), read_committed=True).values())

    assert (offsets(EARLIEST), offsets(LATEST)) == ([0, 0], [2, 1])
    assert (offsets(1500), offsets(5000), offsets(6000)) == ([1, 0], [-1, 0], [-1, -1])


def test_the_latest_offset_of_committed_records_is_before_an_open_transaction(
    cluster: Cluster, topic: str, producer: TransactionalProducer, wire: Wire
) -> None:
    wire.produce(topic, batch("plain"))
    producer.write(topic, "a")
    assert list_offsets(cluster, {(topic, 0): LATEST}, read_committed=True) == {(topic, 0): 1}
    assert list_offsets(cluster, {(topic, 0): LATEST}, read_committed=False) == {(topic, 0): 2}


def test_a_group_that_never_committed_has_no_offsets(cluster: Cluster, topic: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    assert committed_offsets(cluster, group) == {}
    assert committed_offsets(cluster, group, [(topic, 0)]) == {}


def test_committed_offsets_of_a_group(cluster: Cluster, wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    commit(wire, group, topic, 7)
    assert committed_offsets(cluster, group) == {(topic, 0): 7}
    assert committed_offsets(cluster, group, [(topic, 0), (topic, 1)]) == {(topic, 0): 7}


def test_offsets_in_an_open_transaction_are_waited_for(
    cluster: Cluster, wire: Wire, topic: str, producer: TransactionalProducer, new_name: Callable[[], str]
) -> None:
    group = new_name()
    producer.commit_offset(group, topic, 5)
    with pytest.raises(Refused) as caught:
        committed_offsets(cluster, group, [(topic, 0)], patience_s=0.1)
    assert caught.value.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    # Asked for all, a broker does not mention a partition that has no offset yet.
    assert committed_offsets(cluster, group) == {}
    producer.commit()
    assert committed_offsets(cluster, group, [(topic, 0)]) == {(topic, 0): 5}


def test_a_second_offset_in_an_open_transaction_is_waited_for_by_all(
    cluster: Cluster, wire: Wire, topic: str, producer: TransactionalProducer, new_name: Callable[[], str]
) -> None:
    group = new_name()
    commit(wire, group, topic, 3)
    producer.commit_offset(group, topic, 5)
    with pytest.raises(Refused):
        committed_offsets(cluster, group, patience_s=0.1)
    producer.abort()
    assert committed_offsets(cluster, group) == {(topic, 0): 3}


# --- a broker that goes away


def own_broker(name: str) -> Any:
    return started(ApacheKafka) if name == "kafka" else onceflow.Broker()


def test_reading_goes_on_after_a_restart_of_the_broker(broker: RunningBroker) -> None:
    with own_broker(broker.name) as own, Wire(own.bootstrap) as wire:
        wire.create_topic("orders")
        for number in range(5):
            wire.produce("orders", batch(f"{number}a", f"{number}b"))
        with Cluster(ClientSettings(bootstrap=own.bootstrap)) as cluster:
            lists = read_range(cluster, "orders", 0, 0, 10, fetch_bytes=1)
            found = [next(lists), next(lists)]
            own.kill()
            again = threading.Timer(0.5, own.start)  # while the reader is asking already
            again.start()
            found += list(lists)
            again.join()
    offsets = [record.offset for [(_, each)] in found for record in read_records(each)]
    assert offsets == list(range(10))


def test_columns_of_both_brokers_are_the_same(cluster: Cluster, wire: Wire, topic: str) -> None:
    wire.produce(topic, batch("a", None, key=b"k", timestamps=[1_700_000_000_000, 1_700_000_000_001]))
    [batches] = read_range(cluster, topic, 0, 0, 2)
    found = to_arrow(batches, 0, 2, topic=topic, partition=0, include_headers=True)
    assert found is not None
    found = found.set_column(5, "timestamp", found.column(5).cast(pa.int64()))
    common = {"key": b"k", "topic": topic, "partition": 0, "timestampType": 0, "headers": None}
    assert found.to_pylist() == [
        {**common, "value": b"a", "offset": 0, "timestamp": 1_700_000_000_000_000},
        {**common, "value": None, "offset": 1, "timestamp": 1_700_000_000_001_000},
    ]

"""read_committed and read_uncommitted: offsets, aborted lists and markers as they stand on the wire."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.batch import batches
from onceflow.wire.messages.fetch import PartitionData
from onceflow.wire.records import Record, read_records
from tests.conformance.conftest import RunningBroker
from tests.support.raw import READ_COMMITTED, READ_UNCOMMITTED, Wire, batch, fetch_request, now_ms
from tests.support.raw_transactions import V1, V2, Marker, TransactionalProducer, committed, markers

NewName = Callable[[], str]
NewProducer = Callable[[], TransactionalProducer]

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
TRANSACTIONAL, CONTROL = 0x10, 0x20


def read(wire: Wire, topic: str, offset: int = 0, isolation: int = READ_COMMITTED, **settings: int) -> PartitionData:
    answer = wire.fetch(topic, offset, isolation_level=isolation, max_wait_ms=0, **settings)
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return answer


def offsets(answer: PartitionData) -> list[int]:
    """Every offset in the answer, markers included."""
    return [record.offset for _, each in batches(answer.records or b"") for record in read_records(each)]


def aborted(answer: PartitionData) -> list[tuple[int, int]]:
    return sorted((each.producer_id, each.first_offset) for each in answer.aborted_transactions or ())


# --- an open transaction


def test_an_open_transaction_holds_back_what_is_behind_it(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    wire.produce(topic, batch("before"))
    producer.write(topic, "inside")
    wire.produce(topic, batch("behind"))
    answer = read(wire, topic)
    assert offsets(answer) == [0]
    assert (answer.last_stable_offset, answer.high_watermark) == (1, 3)
    producer.commit()
    answer = read(wire, topic)
    assert offsets(answer) == [0, 1, 2, 3]
    assert (answer.last_stable_offset, answer.high_watermark) == (4, 4)


def test_read_uncommitted_sees_everything_at_once(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "inside")
    wire.produce(topic, batch("behind"))
    answer = read(wire, topic, isolation=READ_UNCOMMITTED)
    assert offsets(answer) == [0, 1]
    assert (answer.last_stable_offset, answer.high_watermark) == (0, 2)
    assert answer.aborted_transactions is None


def test_read_uncommitted_is_told_of_no_aborts(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    producer.abort()
    answer = read(wire, topic, isolation=READ_UNCOMMITTED)
    assert offsets(answer) == [0, 1]
    assert answer.aborted_transactions is None


def test_the_first_of_several_open_transactions_holds_back(wire: Wire, topic: str, new_producer: NewProducer) -> None:
    one, two = new_producer(), new_producer()
    one.write(topic, "one")
    two.write(topic, "two")
    two.commit()
    assert wire.stable_end(topic) == 0
    one.commit()
    assert wire.stable_end(topic) == 4
    assert committed(wire, topic) == ["one", "two"]


def test_the_stable_offset_goes_to_the_next_open_transaction(wire: Wire, topic: str, new_producer: NewProducer) -> None:
    one, two = new_producer(), new_producer()
    one.write(topic, "one")
    two.write(topic, "two")
    one.commit()
    assert wire.stable_end(topic) == 1
    assert offsets(read(wire, topic)) == [0]


def test_a_reader_behind_the_stable_offset_waits_for_the_end_of_the_transaction(
    broker: RunningBroker, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    with Wire(broker.bootstrap) as reader:
        request = fetch_request(topic, 0, isolation_level=READ_COMMITTED, max_wait_ms=600_000)
        reader.send(request, 12)
        producer.commit()
        _, answer = reader.receive(request, 12)
    assert offsets(answer.responses[0].partitions[0]) == [0, 1]


def test_an_offset_above_the_stable_one_and_below_the_end_is_in_range(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a", "b", "c")
    answer = read(wire, topic, 2)
    assert offsets(answer) == []
    assert (answer.last_stable_offset, answer.high_watermark) == (0, 3)


@pytest.mark.parametrize(("protocol", "version"), [(V1, 4), (V1, 11), (V2, 12)])
def test_every_version_of_fetch_knows_isolation(
    wire: Wire, topic: str, producer: TransactionalProducer, version: int
) -> None:
    producer.write(topic, "a")
    producer.abort()
    producer.write(topic, "b")
    answer = read(wire, topic, version=version)
    assert offsets(answer) == [0, 1]
    assert answer.last_stable_offset == 2
    assert aborted(answer) == [(producer.id, 0)]


def test_fetch_by_topic_id_knows_isolation(wire: Wire, new_name: NewName, producer: TransactionalProducer) -> None:
    topic = new_name()
    topic_id = wire.create_topic(topic)
    producer.write(topic, "a")
    producer.abort()
    request = fetch_request(topic_id, 0, isolation_level=READ_COMMITTED, max_wait_ms=0)
    assert aborted(wire.ask(request, 17).responses[0].partitions[0]) == [(producer.id, 0)]


# --- aborted lists


def test_a_committed_transaction_is_not_in_the_list(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    producer.commit()
    assert read(wire, topic).aborted_transactions == []


def test_the_list_names_every_aborted_transaction_with_its_first_offset(
    wire: Wire, topic: str, new_producer: NewProducer
) -> None:
    one, two = new_producer(), new_producer()
    wire.produce(topic, batch("plain"))
    one.write(topic, "a", "b")  # 1, 2
    two.write(topic, "c")  # 3
    one.write(topic, "d")  # 4
    one.abort()  # 5
    two.commit()  # 6
    two.write(topic, "e")  # 7
    two.abort()  # 8
    one.write(topic, "f")  # 9
    one.abort()  # 10
    assert aborted(read(wire, topic)) == sorted([(one.id, 1), (two.id, 7), (one.id, 9)])
    assert committed(wire, topic) == ["plain", "c"]


def test_the_list_holds_only_what_overlaps_the_fetched_range(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    for value in "abc":
        producer.write(topic, value, value)  # 0 1 | 3 4 | 6 7, with markers at 2, 5, 8
        producer.abort()
    producer.write(topic, "d")
    producer.commit()
    first, second, third = (producer.id, 0), (producer.id, 3), (producer.id, 6)
    assert aborted(read(wire, topic, 0)) == [first, second, third]
    assert aborted(read(wire, topic, 1)) == [first, second, third]
    assert aborted(read(wire, topic, 3)) == [second, third]
    assert aborted(read(wire, topic, 8)) == [third]
    assert aborted(read(wire, topic, 9)) == []


def test_the_marker_itself_still_overlaps(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    producer.abort()
    producer.write(topic, "b")
    producer.commit()
    assert aborted(read(wire, topic, 1)) == [(producer.id, 0)]
    assert aborted(read(wire, topic, 2)) == []


def test_a_short_answer_has_no_aborts_from_far_behind_it(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    # Where the answer ends is looked up in a sparse index: an abort right behind it may be listed as well.
    for _ in range(4):
        wire.produce(topic, batch("x" * 20_000))
    producer.write(topic, "a")
    producer.abort()
    answer = read(wire, topic, partition_max_bytes=1_000)
    assert offsets(answer) == [0]
    assert aborted(answer) == []


def test_an_abort_is_listed_in_every_segment_that_it_spans(
    wire: Wire, new_name: NewName, new_producer: NewProducer
) -> None:
    topic, segment = new_name(), "x" * 700_000
    wire.create_topic(topic, segment_bytes="1048576")
    one, two = new_producer(), new_producer()
    one.write(topic, "a")  # 0
    for _ in range(4):  # 1 to 4: each begins a new file, but for the first
        wire.produce(topic, batch(segment))
    one.abort()  # 5
    two.write(topic, "b")  # 6
    two.abort()  # 7
    first, second = (one.id, 0), (two.id, 6)
    assert aborted(read(wire, topic, 0, partition_max_bytes=1_000)) == [first]
    assert aborted(read(wire, topic, 2, partition_max_bytes=1_000)) == [first]
    assert aborted(read(wire, topic, 5)) == sorted([first, second])
    assert aborted(read(wire, topic, 6)) == [second]
    assert [value for value in committed(wire, topic) if value != segment] == []


def test_an_open_transaction_is_in_no_list(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    wire.produce(topic, batch("plain"))
    producer.write(topic, "a")
    assert read(wire, topic).aborted_transactions == []


# --- markers


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_a_marker_is_a_control_batch_of_one_record(
    wire: Wire, topic: str, producer: TransactionalProducer, is_commit: bool
) -> None:
    before = now_ms()
    producer.write(topic, "a")
    epoch = producer.epoch
    producer.commit() if is_commit else producer.abort()
    [(header, whole)] = batches(read(wire, topic, 1).records or b"")
    assert header.attributes == TRANSACTIONAL | CONTROL
    assert (header.base_offset, header.count, header.base_sequence) == (1, 1, -1)
    assert before <= header.max_timestamp <= now_ms()
    # The marker of the second protocol already carries the epoch of the next transaction.
    assert (header.producer_id, header.producer_epoch) == (producer.id, epoch + producer.protocol.is_v2)
    [record] = read_records(whole)
    assert record == Record(
        offset=1,
        timestamp=header.max_timestamp,
        key=struct.pack(">hh", 0, is_commit),
        value=struct.pack(">hi", 0, 0),
    )


def test_every_end_takes_an_offset(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    assert producer.write(topic, "a") == 0
    producer.commit()
    assert producer.write(topic, "b") == 2
    producer.abort()
    assert producer.write(topic, "c") == 4


def test_the_marker_after_a_new_instance_carries_the_epoch_that_fences(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    old = producer.epoch
    producer.init()
    assert markers(wire, topic) == [Marker(1, (producer.id, old + 1), False)]


# --- ListOffsets


def test_latest_depends_on_the_isolation(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    wire.produce(topic, batch("before"))
    producer.write(topic, "a")
    assert (wire.stable_end(topic), wire.end(topic)) == (1, 2)
    producer.commit()
    assert (wire.stable_end(topic), wire.end(topic)) == (3, 3)


def test_earliest_does_not_depend_on_the_isolation(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    assert wire.list_offset(topic, EARLIEST, isolation_level=READ_COMMITTED).offset == 0


def test_a_timestamp_above_the_stable_offset_is_not_found_by_read_committed(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    start = now_ms() - 1_000
    wire.produce(topic, batch("a", timestamps=[start]))
    producer.write(topic, "open")
    wire.produce(topic, batch("b", timestamps=[start + 100_000]))

    def found(timestamp: int, isolation: int) -> tuple[int, int]:
        answer = wire.list_offset(topic, timestamp, isolation_level=isolation)
        return answer.offset, answer.timestamp

    assert found(start, READ_COMMITTED) == (0, start)
    assert found(start + 100_000, READ_UNCOMMITTED) == (2, start + 100_000)
    assert found(start + 100_000, READ_COMMITTED) == (-1, -1)
    producer.commit()
    assert found(start + 100_000, READ_COMMITTED) == (2, start + 100_000)


def test_the_largest_timestamp_above_the_stable_offset_is_not_found_by_read_committed(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    future = now_ms() + 100_000
    wire.produce(topic, batch("before"))
    producer.write(topic, "open")
    wire.produce(topic, batch("a", "b", timestamps=[future, future - 1]))

    def found(isolation: int) -> tuple[int, int]:
        answer = wire.list_offset(topic, MAX_TIMESTAMP, isolation_level=isolation)
        return answer.offset, answer.timestamp

    assert found(READ_UNCOMMITTED) == (2, future)
    # The next smaller one is not looked for.
    assert found(READ_COMMITTED) == (-1, -1)
    producer.commit()
    assert found(READ_COMMITTED) == (2, future)

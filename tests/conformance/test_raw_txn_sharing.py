"""One transaction, several writers: connections that share a producer id and epoch over disjoint partitions.

The Spark sink stands on this: a driver opens and ends the transaction, executors write into it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from onceflow.errors import ErrorCode
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire
from tests.support.raw_transactions import TransactionalProducer, committed, markers

NewName = Callable[[], str]
WRITERS = 6
TRY_AGAIN = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NETWORK_EXCEPTION, ErrorCode.CONCURRENT_TRANSACTIONS}
TOO_LATE = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE}
"""The last one is what the log answers (`UnifiedLog`): the marker was written after the broker had looked whether the
transaction is open, and before the record was appended."""


@pytest.fixture
def wide(wire: Wire, new_name: NewName) -> str:
    """A topic with a partition for each writer."""
    name = new_name()
    wire.create_topic(name, partitions=WRITERS)
    return name


def write(producer: TransactionalProducer, topic: str, partition: int, values: list[str]) -> int:
    """Batch by batch, as an executor does. The number of answers that asked to try again."""
    retries = 0
    for sequence, value in enumerate(values):
        while (code := _code(producer, topic, partition, sequence, value)) != ErrorCode.NONE:
            assert code in TRY_AGAIN, code.name
            retries += 1
            # Several first batches at once wait for one check at the coordinator: a jitter spreads them.
            time.sleep(random.uniform(0.005, 0.05))
    return retries


def _code(producer: TransactionalProducer, topic: str, partition: int, sequence: int, value: str) -> ErrorCode:
    return ErrorCode(producer.produce_once(topic, value, partition=partition, sequence=sequence).error_code)


def write_together(broker: RunningBroker, producer: TransactionalProducer, topic: str, values: list[str]) -> None:
    """All writers at once, each on a connection and a partition of its own."""
    start = Barrier(WRITERS)

    def executor(partition: int) -> int:
        with Wire(broker.bootstrap) as wire:
            start.wait(timeout=10)
            return write(producer.on(wire), topic, partition, values)

    if not producer.protocol.is_v2:
        producer.add(topic, *range(WRITERS))
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(executor, range(WRITERS)))


def contents(wire: Wire, topic: str) -> list[list[str]]:
    return [committed(wire, topic, partition=partition) for partition in range(WRITERS)]


def test_connections_share_a_transaction_over_disjoint_partitions(
    broker: RunningBroker, wire: Wire, wide: str, producer: TransactionalProducer
) -> None:
    values = [f"{number}" for number in range(5)]
    write_together(broker, producer, wide, values)
    assert contents(wire, wide) == [[]] * WRITERS
    producer.commit()
    assert contents(wire, wide) == [values] * WRITERS


def test_what_connections_wrote_together_is_aborted_together(
    broker: RunningBroker, wire: Wire, wide: str, producer: TransactionalProducer
) -> None:
    write_together(broker, producer, wide, ["a", "b"])
    producer.abort()
    assert contents(wire, wide) == [[]] * WRITERS
    assert [len(markers(wire, wide, partition)) for partition in range(WRITERS)] == [1] * WRITERS


def test_batches_of_the_next_epoch_count_from_zero_again(
    broker: RunningBroker, wire: Wire, wide: str, producer: TransactionalProducer
) -> None:
    for value in ("first", "second"):
        write_together(broker, producer, wide, [value])
        producer.commit()
        producer.init()
    assert contents(wire, wide) == [["first", "second"]] * WRITERS


def test_a_writer_that_repeats_its_batch_on_another_connection_stores_it_once(
    broker: RunningBroker, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    if not producer.protocol.is_v2:
        producer.add(topic)
    for _ in range(3):
        with Wire(broker.bootstrap) as other:
            write(producer.on(other), topic, 0, ["a", "b"])
    producer.commit()
    assert committed(wire, topic) == ["a", "b"]


def test_a_writer_of_a_past_epoch_is_refused_wherever_it_writes(
    broker: RunningBroker, wire: Wire, wide: str, producer: TransactionalProducer
) -> None:
    """A task that outlived its driver: its partition may be one that the new driver has not touched."""
    producer.write(wide, "of the old driver", partition=0)
    with Wire(broker.bootstrap) as other:
        zombie = producer.on(other)
        producer.init()
        producer.write(wide, "of the new driver", partition=1)
        for partition in range(WRITERS):
            answer = zombie.produce_once(wide, "zombie", partition=partition, sequence=partition == 0)
            assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert zombie.end_once(True).error_code == ErrorCode.PRODUCER_FENCED
    producer.commit()
    assert contents(wire, wide) == [[], ["of the new driver"], [], [], [], []]


def test_a_write_after_the_end_is_in_the_transaction_or_refused(
    broker: RunningBroker, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    """A straggler of the same epoch: it depends on the moment of the marker whether it is in time, else on nothing."""
    producer.write(topic, "in time")
    with Wire(broker.bootstrap) as other:
        straggler = producer.on(other)
        assert producer.end_once(True).error_code == ErrorCode.NONE
        late = straggler.produce_once(topic, "late", sequence=1)
    producer.settle()
    if late.error_code == ErrorCode.NONE:
        assert committed(wire, topic) == ["in time", "late"]
    else:
        assert late.error_code in TRY_AGAIN | TOO_LATE
        assert committed(wire, topic) == ["in time"]
    assert [marker.is_commit for marker in markers(wire, topic)] == [True]
    assert wire.stable_end(topic) == wire.end(topic)


def test_a_write_after_the_end_was_settled_is_refused(
    broker: RunningBroker, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "in time")
    with Wire(broker.bootstrap) as other:
        straggler = producer.on(other)
        producer.commit()
        late = straggler.produce_once(topic, "late", sequence=1)
    v2 = producer.protocol.is_v2
    assert late.error_code == (ErrorCode.INVALID_PRODUCER_EPOCH if v2 else ErrorCode.TRANSACTION_ABORTABLE)
    assert committed(wire, topic) == ["in time"]
    assert wire.end(topic) == 2

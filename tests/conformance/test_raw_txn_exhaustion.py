"""The end of the epochs: an int16 is used up after 32,766 of them, and the producer goes on with another id."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire import codec
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire
from tests.support.raw_transactions import V2, Marker, TransactionalProducer, committed, markers

LAST_EPOCH = 2**15 - 2
"""The largest one that a producer gets; the one above it is left for the marker that fences."""
VERSION = 5
WINDOW = 500
"""Requests on the way at once. Waiting for each of 32,766 answers would take most of the time."""

Exhausted = Iterator[TransactionalProducer]


@pytest.fixture(scope="module")
def bootstrap(broker: RunningBroker) -> Iterator[str]:
    """Apache Kafka syncs nothing to disk; for as many epochs in as many seconds, ours must not either."""
    if broker.name == "kafka":
        yield broker.bootstrap
    else:
        import onceflow

        with onceflow.Broker(data_dir=None, durability="os") as unsynced:
            yield unsynced.bootstrap


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as wire:
        yield wire


@pytest.fixture(scope="module")
def exhausted(bootstrap: str) -> Iterator[Exhausted]:
    """Producers with the last epoch, one for each test; they become it together."""
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(bootstrap)) for _ in range(2)]
        producers = [TransactionalProducer(wire, f"exhausted-{uuid4().hex[:8]}", V2).init() for wire in wires]
        while working := [each for each in producers if each.epoch < LAST_EPOCH]:
            _bump_many(working)
        yield iter(producers)


def _bump_many(producers: list[TransactionalProducer]) -> None:
    """The answers are only counted, but for the last one: its epoch says whether all bumps succeeded."""
    for producer in producers:
        producer.wire.send_bytes(_bump_frame(producer) * _window(producer))
    for producer in producers:
        count = _window(producer)
        for _ in range(count - 1):
            producer.wire.read_frame()
        request = InitProducerIdRequest(transactional_id=producer.transactional_id)
        last = producer.wire.receive(request, VERSION)[1]
        assert (last.error_code, last.producer_epoch) == (ErrorCode.NONE, producer.epoch + count)
        producer.epoch += count


def _window(producer: TransactionalProducer) -> int:
    return min(WINDOW, LAST_EPOCH - producer.epoch)


def _bump_frame(producer: TransactionalProducer) -> bytes:
    """A whole request of InitProducerId, built once for all bumps."""
    request = InitProducerIdRequest(transactional_id=producer.transactional_id, transaction_timeout_ms=60_000)
    body = codec.request_header(InitProducerIdRequest, VERSION, 1, "raw") + codec.encode(request, VERSION)
    return struct.pack(">i", len(body)) + body


@pytest.mark.faults
def test_the_end_of_a_transaction_in_the_last_epoch_hands_out_a_new_id(
    wire: Wire, topic: str, exhausted: Exhausted
) -> None:
    producer = next(exhausted)
    last = producer.identity
    producer.write(topic, "a")
    answer = producer.end_once(True)
    assert answer.error_code == ErrorCode.NONE
    assert (answer.producer_id != producer.id, answer.producer_epoch) == (True, 0)
    producer.settle()
    assert markers(wire, topic) == [Marker(1, (producer.id, LAST_EPOCH + 1), True)]
    retry = producer.end_once(True)
    assert (retry.error_code, retry.producer_id, retry.producer_epoch) == (ErrorCode.NONE, answer.producer_id, 0)

    producer.init(identity=(answer.producer_id, answer.producer_epoch))
    producer.write(topic, "b")
    assert producer.produce_once(topic, "z", sequence=1, identity=last).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end_once(True, identity=last).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.commit()
    assert committed(wire, topic) == ["a", "b"]


@pytest.mark.faults
def test_a_bump_of_the_last_epoch_hands_out_a_new_id_and_so_does_its_retry(exhausted: Exhausted) -> None:
    producer = next(exhausted)
    last = producer.identity
    first = producer.init_once(identity=last)
    assert first.error_code == ErrorCode.NONE
    assert (first.producer_id != producer.id, first.producer_epoch) == (True, 0)
    assert producer.init_once(identity=last) == first
    bumped = producer.init_once(identity=(first.producer_id, 0))
    assert (bumped.producer_id, bumped.producer_epoch) == (first.producer_id, 1)
    assert producer.init_once(identity=last).error_code == ErrorCode.PRODUCER_FENCED

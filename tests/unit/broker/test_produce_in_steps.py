"""A produce whose batch is opened in the thread: what may happen in the pause, and what must not come of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onceflow.broker.deferred import Deferred
from onceflow.broker.large_requests import LargeRequests
from onceflow.errors import ErrorCode
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.support.memory_broker import MemoryBroker, Reply
from tests.support.memory_transactions import MemoryProducer, committed
from tests.support.raw import batch, produce_request

LARGE = 20_000
"""Records of a batch that is not opened at once."""


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    configs = [CreatableTopicConfig(name="message.timestamp.before.max.ms", value="1000000")]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
    [made] = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics
    assert made.error_code == 0
    return broker


@contextmanager
def busy_thread(large: LargeRequests) -> Iterator[threading.Event]:
    """The thread has something else to do until the event is set."""
    free = threading.Event()
    large._thread.submit(free.wait)
    try:
        yield free
    finally:
        free.set()


async def settled(broker: MemoryBroker, reply: Reply) -> ErrorCode:
    while not reply.is_there:
        await asyncio.sleep(0.001)
        broker.settle()
    [[answer]] = [each.partition_responses for each in reply.message.responses]
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
def test_a_batch_that_is_opened_while_its_transaction_ends_is_not_written(
    broker: MemoryBroker, v2: bool, commit: bool
) -> None:
    """The client has given up the connection, and ended the transaction on another one. Written now, the batch would
    begin a transaction that nobody ends."""
    producer = MemoryProducer(broker, "app", v2=v2).init()

    async def test() -> None:
        large = broker.node.large_requests = LargeRequests(asyncio.get_running_loop())
        try:
            with busy_thread(large) as thread_is_free:
                if not v2:
                    producer.send_add("t", 0)
                    broker.settle()
                late = producer.send("t", 0, *["late"] * LARGE)
                broker.settle()
                assert not late.is_there
                end = producer.send_end(commit=commit)
                broker.settle()
                assert end.message.error_code == 0
                thread_is_free.set()
                refused = ErrorCode.INVALID_PRODUCER_EPOCH if v2 else ErrorCode.TRANSACTION_ABORTABLE
                assert await settled(broker, late) == refused
        finally:
            large.close()

    asyncio.run(test())
    partition = broker.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.log.last_stable_offset == partition.log.high_watermark
    assert not committed(broker, "t", 0)


def test_what_is_opened_in_the_thread_is_written_as_it_came(broker: MemoryBroker) -> None:
    values = [f"{at}" for at in range(LARGE)]

    async def test() -> None:
        large = broker.node.large_requests = LargeRequests(asyncio.get_running_loop())
        try:
            reply = broker.send(produce_request("t", records(broker, values)), 12)
            assert await settled(broker, reply) == ErrorCode.NONE
        finally:
            large.close()

    asyncio.run(test())
    assert committed(broker, "t", 0) == values


def records(broker: MemoryBroker, values: list[str]) -> bytes:
    return batch(*values, timestamps=[broker.clock.now_ms()] * len(values))


def test_a_topic_that_is_deleted_meanwhile_is_unknown(broker: MemoryBroker) -> None:
    async def test() -> None:
        large = broker.node.large_requests = LargeRequests(asyncio.get_running_loop())
        try:
            with busy_thread(large) as thread_is_free:
                reply = broker.send(produce_request("t", records(broker, ["v"] * LARGE)), 12)
                assert isinstance(reply._outcome, Deferred)
                gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
                broker.send(gone, 6)
                broker.settle()
                thread_is_free.set()
                assert await settled(broker, reply) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        finally:
            large.close()

    asyncio.run(test())

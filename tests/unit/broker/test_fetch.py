"""A fetch that waits for several partitions, without a socket: when it is answered, and how often it is looked at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from onceflow.broker.deferred import Deferred
from onceflow.broker.handlers import Context, k01_fetch
from onceflow.broker.partition import Partition
from onceflow.errors import ErrorCode
from onceflow.monitor.meters import Reader
from onceflow.wire.batch import batches
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tests.support.memory_broker import MemoryBroker
from tests.support.raw import batch, produce_request

FOREVER = 2**31 - 1


class Waiting:
    """A broker whose disk is there at once, with a topic of some partitions, and one fetch of all of them."""

    def __init__(self, partitions: int, min_bytes: int, *, offset: int = 0) -> None:
        self.broker = MemoryBroker(fsync=False)
        self.topic = self.broker.node.topics.create("t", partitions, {})
        asked = [
            FetchPartition(partition=at, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=FOREVER)
            for at in range(partitions)
        ]
        topics = [FetchTopic(topic="t", partitions=asked)]
        request = FetchRequest(max_wait_ms=FOREVER, min_bytes=min_bytes, max_bytes=FOREVER, topics=topics)
        answer = k01_fetch.handle(self.broker.node, Context(12, None), request)
        assert isinstance(answer, Deferred)
        self.answer = answer

    def write(self, partition: int, size: int) -> int:
        data = batch(bytes(size), timestamps=[self.broker.clock.now_ms()])
        answer = self.broker.ask(produce_request("t", data, partition=partition, acks=1), 12)
        assert answer.responses[0].partition_responses[0].error_code == 0
        return len(data)


def in_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


@pytest.mark.parametrize("partitions", [1, 2, 7, 100])
@pytest.mark.parametrize("min_bytes", [1, 1000, 50_000])
def test_it_is_answered_as_soon_as_there_is_enough_in_all_partitions_together(partitions: int, min_bytes: int) -> None:
    async def scenario() -> None:
        dice = random.Random(partitions * min_bytes)
        waiting = Waiting(partitions, min_bytes)
        written = 0
        while written < min_bytes:
            assert not waiting.answer.is_done, f"{written} of {min_bytes} bytes"
            written += waiting.write(dice.randrange(partitions), dice.randrange(1, 2000))
        assert waiting.answer.is_done
        assert waiting.answer.make is not None
        answer = waiting.answer.make().message
        assert sum(len(each.records) for each in answer.responses[0].partitions) == written  # type: ignore[union-attr]

    in_loop(scenario)


@pytest.mark.parametrize("partitions", [1, 10, 200])
def test_it_is_seldom_looked_at_before_that(partitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look_again = k01_fetch._Fetch.look_again

    def counted(self: Any, partition: Partition, position: int | None) -> int:
        nonlocal looks
        cost = look_again(self, partition, position)
        looks += cost
        return cost

    monkeypatch.setattr(k01_fetch._Fetch, "look_again", counted)

    async def scenario() -> None:
        waiting = Waiting(partitions, 3_000_000)
        for _ in range(2900):
            waiting.write(0, 900)
        assert not waiting.answer.is_done

    in_loop(scenario)
    assert looks <= 30 * (partitions + 1)


def test_a_wait_without_end_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k01_fetch, "WAIT_MAX_S", 0.01)

    async def scenario() -> None:
        waiting = Waiting(1, FOREVER)
        answered = asyncio.Event()
        waiting.answer.when_done(answered.set)
        await asyncio.wait_for(answered.wait(), 30)
        assert not waiting.topic.partitions[0].fetchers

    in_loop(scenario)


def test_it_is_answered_when_one_of_its_partitions_goes() -> None:
    async def scenario() -> None:
        waiting = Waiting(3, FOREVER)
        waiting.broker.node.topics.delete(waiting.topic)
        await asyncio.sleep(0)
        assert waiting.answer.is_done
        assert not any(partition.fetchers for partition in waiting.topic.partitions)

    in_loop(scenario)


def test_what_is_cancelled_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        waiting = Waiting(3, FOREVER)
        assert waiting.answer.weight > 3
        waiting.answer.cancel()
        assert not any(partition.fetchers for partition in waiting.topic.partitions)
        waiting.write(0, 10)
        assert not waiting.answer.is_done

    in_loop(scenario)


class Consumer:
    """Reads some partitions through a session, and knows only what it is told."""

    def __init__(self, broker: MemoryBroker, partitions: int, isolation_level: int, max_bytes: int) -> None:
        self._broker = broker
        self._reader = Reader()
        self._isolation_level = isolation_level
        self._max_bytes = max_bytes
        self.positions = dict.fromkeys(range(partitions), 0)
        self.ends = dict.fromkeys(range(partitions), -1)
        self.starts = dict.fromkeys(range(partitions), -1)
        self.read: dict[int, list[int]] = {at: [] for at in range(partitions)}
        self._moved = set(range(partitions))
        self._id = self._epoch = 0

    def fetch(self) -> None:
        asked = [
            FetchPartition(
                partition=at, current_leader_epoch=-1, fetch_offset=self.positions[at], partition_max_bytes=FOREVER
            )
            for at in self._moved
        ]
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=self._isolation_level,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=[FetchTopic(topic="t", partitions=asked)] if asked else [],
        )
        answer = k01_fetch.handle(self._broker.node, Context(12, None, reader=self._reader), request)
        assert isinstance(answer, FetchResponse)
        assert answer.error_code == 0
        assert answer.session_id
        self._id, self._epoch = answer.session_id, self._epoch + 1
        self._moved.clear()
        for topic in answer.responses:
            for part in topic.partitions:
                self._take(part)

    def _take(self, part: PartitionData) -> None:
        at = part.partition_index
        assert part.error_code in (0, ErrorCode.OFFSET_OUT_OF_RANGE)
        if part.error_code:
            log = self._broker.node.topics.get("t").partitions[at].log  # type: ignore[union-attr]
            self.positions[at] = log.start_offset
            self._moved.add(at)
            return
        self.ends[at], self.starts[at] = part.high_watermark, part.log_start_offset
        for header, _ in batches(part.records or b""):
            if header.last_offset >= self.positions[at]:
                self.read[at].append(header.base_offset)
                self.positions[at] = header.last_offset + 1
                self._moved.add(at)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("max_bytes", [FOREVER, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_a_session_tells_all_there_is_to_know(seed: int, max_bytes: int, isolation_level: int) -> None:
    dice = random.Random(seed)
    broker = MemoryBroker()
    partitions = dice.choice((1, 5, 20))
    topic = broker.node.topics.create("t", partitions, {})
    consumer = Consumer(broker, partitions, isolation_level, max_bytes)
    for _ in range(200):
        for _ in range(dice.randrange(3)):
            data = batch(bytes(dice.randrange(1, 800)), timestamps=[broker.clock.now_ms()])
            broker.send(produce_request("t", data, partition=dice.randrange(partitions)), 12)
        if dice.random() < 0.6:
            broker.flush()
        if dice.random() < 0.1:
            log = dice.choice(topic.partitions).log
            log.delete_before(dice.randint(log.start_offset, log.high_watermark))
        consumer.fetch()
        if max_bytes == FOREVER:
            told = {at for at in range(partitions) if at not in consumer._moved}
            assert {at: consumer.ends[at] for at in told} == {
                at: topic.partitions[at].log.high_watermark for at in told
            }
    broker.settle()
    for _ in range(3000):
        consumer.fetch()
        if all(consumer.positions[at] == topic.partitions[at].log.high_watermark for at in range(partitions)):
            break
    consumer.fetch()
    for at, partition in enumerate(topic.partitions):
        assert consumer.positions[at] == consumer.ends[at] == partition.log.end_offset
        assert consumer.starts[at] == partition.log.start_offset
        assert consumer.read[at] == sorted(set(consumer.read[at]))

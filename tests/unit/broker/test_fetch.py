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
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
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

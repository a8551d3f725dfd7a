from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from onceflow.broker import large_requests
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.large_requests import ANSWER_ELEMENTS_MAX, LargeRequests, Steps, in_steps, run_at_once
from onceflow.errors import MalformedMessage
from onceflow.wire.codec import encode
from onceflow.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from onceflow.wire.schema import Message

VERSION = 6


def response(keys: list[str]) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(coordinators=[Coordinator(key=key) for key in keys])


def steps(count: int, after: Callable[[int], None] = lambda at: None) -> Steps:
    coordinators = []
    for at in range(count):
        coordinators.append(Coordinator(key=str(at)))
        after(at)
        yield 1
    return FindCoordinatorResponse(coordinators=coordinators)


async def outcome(deferred: Deferred) -> Answer | None:
    done = asyncio.Event()
    deferred.when_done(done.set)
    await asyncio.wait_for(done.wait(), 30)
    if deferred.error is not None:
        raise deferred.error
    return deferred.result


def on_a_loop(test: Callable[[LargeRequests], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        large = LargeRequests(asyncio.get_running_loop())
        try:
            await test(large)
        finally:
            large.close()

    asyncio.run(run())


def test_what_is_short_is_answered_at_once() -> None:
    async def test(large: LargeRequests) -> None:
        answer = large.run(steps(3), VERSION)
        assert answer == Answer(response(["0", "1", "2"]))

    on_a_loop(test)


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is as long as it may be."""
    monkeypatch.setattr(large_requests, "STEP_S", -1.0)


def test_others_have_their_turn_after_each_step_and_the_answer_is_encoded_in_the_thread(
    no_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded_in = []

    def encode_and_tell(message: Message, version: int) -> bytes:
        encoded_in.append(threading.current_thread().name)
        return encode(message, version)

    monkeypatch.setattr(large_requests, "encode_large", encode_and_tell)

    async def test(large: LargeRequests) -> None:
        order: list[object] = []
        deferred = large.run(steps(3, order.append), VERSION)
        assert isinstance(deferred, Deferred)
        assert deferred.holds

        def other(turns: int) -> None:
            order.append("other")
            if turns > 1:
                asyncio.get_running_loop().call_soon(other, turns - 1)

        asyncio.get_running_loop().call_soon(other, 3)
        answer = await outcome(deferred)
        assert answer == Answer(encode(response(["0", "1", "2"]), VERSION), VERSION)
        assert order[0] == 0
        assert "other" in order[1:-1], order
        assert [name.rpartition("_")[0] for name in encoded_in] == ["large-requests"]

    on_a_loop(test)


def test_what_a_long_handler_has_promised_is_encoded_in_the_thread_and_holds_nobody_until_then(no_time: None) -> None:
    async def test(large: LargeRequests) -> None:
        promised, released = Deferred(), asyncio.Event()

        def promise() -> Steps:
            yield 1
            return promised

        deferred = large.run(promise(), VERSION)
        assert isinstance(deferred, Deferred)
        deferred.on_release = released.set
        await asyncio.wait_for(released.wait(), 30)
        assert not deferred.holds
        assert not deferred.is_done
        promised.resolve(Answer(response(["a"])))
        assert await outcome(deferred) == Answer(encode(response(["a"]), VERSION), VERSION)

    on_a_loop(test)


def test_who_goes_away_takes_down_what_was_promised(no_time: None) -> None:
    async def test(large: LargeRequests) -> None:
        promised, released, cancelled = Deferred(), asyncio.Event(), asyncio.Event()
        promised.on_cancel = cancelled.set

        def promise() -> Steps:
            yield 1
            return promised

        deferred = large.run(promise(), VERSION)
        assert isinstance(deferred, Deferred)
        deferred.on_release = released.set
        await asyncio.wait_for(released.wait(), 30)
        deferred.cancel()
        await asyncio.wait_for(cancelled.wait(), 30)

    on_a_loop(test)


def test_of_an_answer_that_is_too_large_nothing_is_made() -> None:
    def too_much() -> Steps:
        for _ in range(3):
            yield ANSWER_ELEMENTS_MAX // 2
        return response([])

    with pytest.raises(MalformedMessage, match="ask for fewer"):
        run_at_once(too_much())

    async def test(large: LargeRequests) -> None:
        with pytest.raises(MalformedMessage, match="ask for fewer"):
            large.run(too_much(), VERSION)

    on_a_loop(test)


def test_a_request_that_does_not_decode_says_why() -> None:
    def malformed() -> Message:
        raise MalformedMessage("It is cut short.")

    async def test(large: LargeRequests) -> None:
        with pytest.raises(MalformedMessage, match="cut short"):
            await outcome(large.decode(malformed, lambda message: None, VERSION))

    on_a_loop(test)


def test_a_decoded_request_is_handled_on_the_loop() -> None:
    async def test(large: LargeRequests) -> None:
        here = threading.current_thread()
        handled_in = []

        def handle(keys: list[str]) -> Message:
            handled_in.append(threading.current_thread())
            return response(keys)

        answer = await outcome(large.decode(lambda: (["a", "b"], 0), handle, VERSION))
        assert answer == Answer(encode(response(["a", "b"]), VERSION), VERSION)
        assert handled_in == [here]

    on_a_loop(test)


def test_each_item_is_a_step() -> None:
    made = in_steps([1, 2], str)
    assert next(made) == 1
    assert next(made) == 1
    with pytest.raises(StopIteration) as end:
        next(made)
    assert end.value.value == ["1", "2"]

"""Requests that take more than a moment, in steps, so that nobody has to wait for them but who sent them.

One thread serves everybody. So what a request may cost is bounded before the work is done, here and in the table
`handlers.APIS`, and what is allowed and still long is divided:

- **Decoding.** A frame has at most `FRAME_MAX` bytes (only Produce carries data and may have more), and its arrays
  and tagged fields at most `Api.elements_max` elements, all together; more is refused before anything is made of it.
  A frame of more than `DECODED_AT_ONCE_MAX` bytes is decoded in a thread: nobody else has the message yet.
- **Handling.** A handler that goes through a list is a generator: `yield n` says that others may have their turn, and
  that n elements were put into the answer. It runs for `STEP_S`, which is nearly
  always enough, and then the loop serves everybody else before the next step. What it looks at may change in between,
  so every element is looked up for itself. Of an answer with more than `ANSWER_ELEMENTS_MAX` elements nothing is sent.
  What cannot be divided, such as unpacking a batch of records, it hands out (`steps.in_thread`).
- **Encoding.** What took more than one step is encoded in the thread: nobody else knows the answer yet.
- **Waiting.** `ACTIVE_MAX` requests are worked on at a time. The others wait where they were received, in memory that
  is accounted for (`request_memory`), and their connections are not served meanwhile.

A request that breaks a limit costs its connection, as every other malformed one does; what was done before is done.
Where nothing is attached (tests, simulations), everything is done at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from types import GeneratorType
from typing import Any, Final, TypeAlias, TypeVar

from onceflow.broker.deferred import Answer, Deferred
from onceflow.errors import MalformedMessage
from onceflow.steps import Work
from onceflow.wire.codec import encode_large, encode_parts
from onceflow.wire.messages.fetch import FetchResponse
from onceflow.wire.schema import Message

__all__ = [
    "ANSWER_ELEMENTS_MAX",
    "FRAME_MAX",
    "LargeRequests",
    "Result",
    "Steps",
    "elements_of",
    "in_steps",
    "run_at_once",
]

logger = logging.getLogger(__name__)

FRAME_MAX: Final = 8 * 1024 * 1024
"""Bytes of a request without records. Kafka's largest honest ones name some ten thousand partitions."""
DECODED_AT_ONCE_MAX: Final = 16 * 1024
"""Bytes of a frame. At most as many elements: ten milliseconds or so."""
ANSWER_ELEMENTS_MAX: Final = 500_000
"""Some hundred megabytes of objects. All settings of four thousand topics, or three million partitions."""
STEP_S: Final = 0.004
ACTIVE_MAX: Final = 2

ELEMENT_BYTES: Final = 256
"""Of text or bytes in an answer that count as one element more."""

Result: TypeAlias = Message | Answer | Deferred | None
Steps: TypeAlias = Generator[int | Work, None, Result]

T = TypeVar("T")
R = TypeVar("R")


def elements_of(size: int) -> int:
    """How many elements so many bytes count as, in an answer that repeats what somebody else has said."""
    return size // ELEMENT_BYTES


def in_steps(items: Iterable[T], make: Callable[[T], R]) -> Generator[int, None, list[R]]:
    """What is made of each item, one of the answer's elements each."""
    made = []
    for item in items:
        made.append(make(item))
        yield 1
    return made


def run_at_once(steps: Steps) -> Result:
    """All steps, without a pause."""
    run = _Run(steps)
    while True:
        is_done, result = run.go_on(float("inf"))
        if is_done:
            return result
        if run.work is not None:
            run.work()


class _Run:
    """A handler on its way, and how much it has put into its answer."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._elements = 0
        self.work: Work | None = None
        """What it has handed out, to be done before it goes on."""

    def go_on(self, seconds: float) -> tuple[bool, Result]:
        """Whether it has come to its end in this time, and what it gave back then."""
        steps = self._steps
        self.work = None
        until = perf_counter() + seconds
        while True:
            try:
                made = next(steps)
            except StopIteration as end:
                return True, end.value
            if not isinstance(made, int):
                self.work = made
                return False, None
            self._elements += made
            if self._elements > ANSWER_ELEMENTS_MAX:
                steps.close()
                raise MalformedMessage(
                    f"A request asks for more than {ANSWER_ELEMENTS_MAX} elements in its answer; ask for fewer at once."
                )
            if perf_counter() >= until:
                return False, None


class LargeRequests:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-requests")
        self._active = asyncio.Semaphore(ACTIVE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def decode(self, decode: Callable[[], tuple[T, int]], handle: Callable[[T], Any], version: int) -> Deferred:
        """Have a request decoded in the thread, as by `decode_from`, then handled. The frame must stay as it is until
        that is released."""
        return self._start(partial(self._decoded, decode, handle), version)

    def run(self, steps: Steps, version: int) -> Answer | Deferred | None:
        """Have the steps of a handler done: at once if they are short."""
        run = _Run(steps)
        is_done, result = run.go_on(STEP_S)
        if is_done:
            return Answer(result) if isinstance(result, Message) else result
        return self._start(partial(self._finished, run), version)

    def run_soon(self, steps: Steps, version: int) -> Deferred:
        """Have the steps done, but not now: of many that begin at the same time only some are worked on."""
        return self._start(partial(self._finished, _Run(steps)), version)

    def _start(self, work: Callable[[], Awaitable[Result]], version: int) -> Deferred:
        deferred = Deferred()
        deferred.holds = True
        task = self._loop.create_task(self._serve(work, version, deferred))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            task.cancel()

        deferred.on_cancel = cancel
        return deferred

    async def _serve(self, work: Callable[[], Awaitable[Result]], version: int, deferred: Deferred) -> None:
        try:
            async with self._active:
                result = await work()
                answer = Answer(result) if isinstance(result, Message) else result
                if isinstance(answer, Answer):
                    answer = await self._encoded(answer, version)
            if isinstance(answer, Deferred):
                answer = await self._settled(answer, version, deferred)
        except MalformedMessage as error:
            deferred.fail(error)
        except Exception:
            logger.exception("A request failed in an unexpected way; its connection is closed.")
            deferred.fail(MalformedMessage("It failed in an unexpected way."))
        else:
            deferred.resolve(answer)

    async def _settled(self, awaited: Deferred, version: int, deferred: Deferred) -> Answer | None:
        """What a handler has promised. If nothing is done until then, the connection's next requests need not wait."""
        deferred.on_hurry = awaited.on_hurry
        deferred.weight = awaited.weight
        if awaited.holds:
            awaited.on_release = deferred.release
        else:
            deferred.release()
        settled = self._loop.create_future()

        def wake() -> None:
            if not settled.done():  # the client may have gone in this very moment
                settled.set_result(None)

        awaited.when_done(wake)
        try:
            await settled
        except asyncio.CancelledError:
            awaited.cancel()
            raise
        deferred.parked_s = awaited.parked_s
        if awaited.error is not None:
            raise awaited.error
        answer = awaited.result if awaited.make is None else awaited.make()
        return None if answer is None else await self._encoded(answer, version)

    async def _decoded(self, decode: Callable[[], tuple[T, int]], handle: Callable[[T], Any]) -> Result:
        request, _ = await self._loop.run_in_executor(self._thread, decode)
        result = handle(request)
        del request
        if not isinstance(result, GeneratorType):
            return result  # type: ignore[no-any-return]
        run = _Run(result)
        is_done, result = run.go_on(STEP_S)
        return result if is_done else await self._finished(run)

    async def _finished(self, run: _Run) -> Result:
        while True:
            if run.work is None:
                await asyncio.sleep(0)
            else:
                await self._loop.run_in_executor(self._thread, run.work)
            is_done, result = run.go_on(STEP_S)
            if is_done:
                return result

    async def _encoded(self, answer: Answer, version: int) -> Answer:
        message = answer.message
        if not isinstance(message, Message):
            return answer
        version = version if answer.version is None else answer.version
        encode = encode_parts if isinstance(message, FetchResponse) else encode_large  # its records may lie in files
        return Answer(await self._loop.run_in_executor(self._thread, encode, message, version), version)

"""A TCP proxy between Kafka clients and a broker that makes trouble on purpose.

The fault that decides about exactly-once is the lost acknowledgement: the broker appended, the client
never hears of it and sends again. A cable cannot be asked to do that at the right moment, so this proxy
reads along: it knows where each request and each response begins and ends, and which response answers a
Produce. It rewrites nothing.

    client  --- request --->   [plan.request]   --->  broker
    client  <-- response ---   [plan.response]  <---  broker

For each frame a `Plan` names its `Fate`:

    PASS       forward it
    SWALLOW    drop it and cut the connection: a request that never arrived, an acknowledgement that was lost
    TEAR       forward the first half of it, then cut the connection
    delayed    any of these, after a while; what follows on the same way waits behind it, as with TCP

A cut closes both sides. Whatever the broker had already received it may well execute.

Because nothing is rewritten, the broker must announce the proxy's address as its own
(`advertised.listeners`), or clients find a way around. That address has to be known before the broker
starts, so the upstream may be set later:

    with LossyProxy(plan=RandomFaults(seed=7, lose_ack=0.1, budget=50)) as proxy:
        ... start a broker that advertises proxy.address ...
        proxy.upstream = ("127.0.0.1", port)

While the broker is down or not known yet, connections are accepted and closed at once: to a client that
is a broker in trouble, and it tries again.

Invariants: frames leave in the order they came; at most one frame per direction and connection is held
here; `counters` only ever grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

__all__ = ["Action", "Counters", "Fate", "Frame", "Hooks", "LossyProxy", "PASS", "Plan", "RandomFaults"]

PRODUCE = 0  # the api key
FRAME_BYTES_MAX = 256 * 1024 * 1024  # beyond any broker's limits: whoever announces more does not speak Kafka
REQUEST_BYTES_MIN = 8  # api key, version, correlation id
RESPONSE_BYTES_MIN = 4  # correlation id
UNANSWERED_MAX = 10_000  # requests remembered per connection; those with acks=0 are never answered
START_TIMEOUT_S = 10.0
T = TypeVar("T")


class Fate(enum.Enum):
    """What happens to a frame."""

    PASS = "pass"
    SWALLOW = "swallow"
    TEAR = "tear"


class Action(NamedTuple):
    fate: Fate
    delay_s: float = 0.0


PASS = Action(Fate.PASS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """What is known of a request, or of the response to it."""

    connection: int
    """Counts from 1 in the order of arrival."""
    api_key: int
    """Of the request; -1 for a response to nothing we saw."""
    api_version: int
    correlation_id: int
    size: int
    """Bytes, without the length prefix."""

    @property
    def is_produce(self) -> bool:
        return self.api_key == PRODUCE


class Plan(Protocol):
    """Decides about each frame. Called in the proxy's thread, one frame at a time."""

    def request(self, frame: Frame) -> Action: ...

    def response(self, frame: Frame) -> Action: ...


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """A plan of two functions, for tests that want one particular fault at one particular moment."""

    request: Callable[[Frame], Action] = lambda _frame: PASS
    response: Callable[[Frame], Action] = lambda _frame: PASS


@dataclass(kw_only=True)
class RandomFaults:
    """Faults by probability from a seed. Only Produce requests and their responses are touched.

    The same seed draws the same numbers, but which frame meets which number depends on the client's timing.
    """

    seed: int = 0
    lose_ack: float = 0.0
    """Chance that the response to a Produce is swallowed and the connection cut."""
    cut_before: float = 0.0
    """Chance that a Produce is swallowed on its way up and the connection cut: the broker never sees it."""
    tear_request: float = 0.0
    """Chance that a Produce is cut in the middle on its way up."""
    tear_response: float = 0.0
    """Chance that the response to a Produce is cut in the middle."""
    delay: float = 0.0
    """Chance that a Produce or its response waits, up to `delay_ms_max`."""
    delay_ms_max: int = 20
    budget: int | None = None
    """No more cuts after this many, so that a run ends. Delays are free."""
    spent: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name in ("lose_ack", "cut_before", "tear_request", "tear_response", "delay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a probability: it is between 0 and 1, not {getattr(self, name)}")
        self._random = random.Random(self.seed)

    def request(self, frame: Frame) -> Action:
        return self._draw(frame, swallow=self.cut_before, tear=self.tear_request)

    def response(self, frame: Frame) -> Action:
        return self._draw(frame, swallow=self.lose_ack, tear=self.tear_response)

    def _draw(self, frame: Frame, *, swallow: float, tear: float) -> Action:
        if not frame.is_produce:
            return PASS
        # Always three draws, so that the sequence does not depend on what the earlier ones led to.
        what, whether, how_long = self._random.random(), self._random.random(), self._random.random()
        delay_s = how_long * self.delay_ms_max / 1000 if whether < self.delay else 0.0
        if self.budget is not None and self.spent >= self.budget:
            return Action(Fate.PASS, delay_s)
        if what < swallow + tear:
            self.spent += 1
            return Action(Fate.SWALLOW if what < swallow else Fate.TEAR, delay_s)
        return Action(Fate.PASS, delay_s)


@dataclass(kw_only=True)
class Counters:
    """What the proxy did so far. Written by its thread only; read them from anywhere."""

    connections: int = 0
    refused: int = 0
    """Connections closed at once because the broker was down."""
    requests: int = 0
    responses: int = 0
    acks_lost: int = 0
    """Responses to a Produce, swallowed or torn: the broker had decided, the client does not know."""
    requests_swallowed: int = 0
    requests_torn: int = 0
    responses_swallowed: int = 0
    responses_torn: int = 0
    delayed: int = 0
    cut_by_hand: int = 0
    """Connections cut by `cut_all`."""
    malformed: int = 0
    """Connections cut because a peer sent something that is not a Kafka frame."""

    @property
    def cuts(self) -> int:
        """Connections cut on purpose, whatever else happened to the frame."""
        return (
            self.requests_swallowed
            + self.requests_torn
            + self.responses_swallowed
            + self.responses_torn
            + self.cut_by_hand
        )


class LossyProxy:
    """The proxy, in a thread and event loop of its own: a context manager for synchronous code."""

    def __init__(
        self,
        upstream: tuple[str, int] | None = None,
        *,
        plan: Plan | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.upstream = upstream
        """Where the broker is; None while it is not known. May change at any time, for new connections."""
        self.plan: Plan = plan or Hooks()
        """May be changed at any time."""
        self.counters = Counters()
        self._bind = (host, port)
        self._bound: tuple[str, int] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._server: asyncio.Server | None = None
        self._links: dict[_Link, asyncio.Task[None]] = {}

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lossy-proxy", daemon=True)
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._call(self._stop())
        finally:
            self._stop_loop()

    @property
    def host(self) -> str:
        return self._listening()[0]

    @property
    def port(self) -> int:
        return self._listening()[1]

    @property
    def address(self) -> str:
        """HOST:PORT, for clients and for the broker's `advertised.listeners`."""
        host, port = self._listening()
        return f"{host}:{port}"

    def heal(self) -> None:
        """From now on everything passes."""
        self.plan = Hooks()

    def cut_all(self) -> int:
        """Cuts every connection there is and says how many those were."""
        return self._call(self._cut_all())

    def _listening(self) -> tuple[str, int]:
        if self._bound is None:
            raise RuntimeError("the proxy has no address before it is entered: use it as a context manager")
        return self._bound

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(START_TIMEOUT_S)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, *self._bind)
        host, port = self._server.sockets[0].getsockname()[:2]
        self._bound = (host, port)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.cut()
        # The tasks end by themselves once their sockets are gone; a delayed frame would keep one alive.
        for task in list(self._links.values()):
            task.cancel()
        await asyncio.gather(*self._links.values(), return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _cut_all(self) -> int:
        links = [link for link in self._links if link.cut()]
        self.counters.cut_by_hand += len(links)
        return len(links)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counters.connections += 1
        link = _Link(self, self.counters.connections, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._links[link] = task
        try:
            await link.run()
        except asyncio.CancelledError:
            pass  # only _stop() cancels, and it knows; asyncio's server would report it as an accident
        finally:
            del self._links[link]


Verdict = tuple[Action, Callable[[Fate], None]]  # what to do with a frame, and how to count that it was done
Judge = Callable[[bytes], Verdict]


class _MalformedError(Exception):
    """A frame whose length cannot be."""


class _Link:
    """One client connection and the one to the broker that belongs to it."""

    def __init__(
        self, proxy: LossyProxy, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client = (reader, writer)
        self._writers = [writer]
        self._unanswered: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._is_cut = False

    async def run(self) -> None:
        try:
            if self._proxy.upstream is None:
                raise ConnectionRefusedError
            broker = await asyncio.open_connection(*self._proxy.upstream)
        except OSError:
            self._proxy.counters.refused += 1
            await self._close()
            return
        self._writers.append(broker[1])
        if self._is_cut:  # while we were connecting
            broker[1].transport.abort()
            return
        ways = (
            asyncio.create_task(self._pump(self._client[0], broker[1], self._request, REQUEST_BYTES_MIN)),
            asyncio.create_task(self._pump(broker[0], self._client[1], self._response, RESPONSE_BYTES_MIN)),
        )
        try:
            # Whichever side ends first ends the other: half a connection is of no use to Kafka.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await self._close()

    def cut(self) -> bool:
        """Ends the connection on both sides at once, unsent bytes and all. False if it was cut before."""
        newly, self._is_cut = not self._is_cut, True
        for writer in self._writers:
            writer.transport.abort()
        return newly

    async def _close(self) -> None:
        """Ends the connection on both sides once what was written is sent: half a frame has to arrive."""
        self._is_cut = True
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        judge: Judge,
        size_min: int,
    ) -> None:
        """Moves frames one way until somebody hangs up or a frame's fate ends the connection."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                try:
                    frame = await _read_frame(source, size_min)
                except _MalformedError:
                    self._proxy.counters.malformed += 1
                    return
                action, count = judge(frame)
                if action.delay_s > 0:
                    self._proxy.counters.delayed += 1
                    await asyncio.sleep(action.delay_s)
                count(action.fate)
                if action.fate is Fate.SWALLOW:
                    return
                if action.fate is Fate.TEAR:
                    sink.write(frame[: len(frame) // 2])
                    return
                sink.write(frame)
                await sink.drain()

    def _request(self, data: bytes) -> Verdict:
        key, version, correlation_id = struct.unpack_from(">hhi", data, 4)
        self._unanswered[correlation_id] = (key, version)
        if len(self._unanswered) > UNANSWERED_MAX:
            self._unanswered.popitem(last=False)
        counters = self._proxy.counters

        def count(fate: Fate) -> None:
            counters.requests += 1
            counters.requests_swallowed += fate is Fate.SWALLOW
            counters.requests_torn += fate is Fate.TEAR

        frame = self._frame(key, version, correlation_id, data)
        return self._proxy.plan.request(frame), count

    def _response(self, data: bytes) -> Verdict:
        (correlation_id,) = struct.unpack_from(">i", data, 4)
        key, version = self._unanswered.pop(correlation_id, (-1, -1))
        frame = self._frame(key, version, correlation_id, data)
        counters = self._proxy.counters

        def count(fate: Fate) -> None:
            counters.responses += 1
            counters.responses_swallowed += fate is Fate.SWALLOW
            counters.responses_torn += fate is Fate.TEAR
            counters.acks_lost += frame.is_produce and fate is not Fate.PASS

        return self._proxy.plan.response(frame), count

    def _frame(self, key: int, version: int, correlation_id: int, data: bytes) -> Frame:
        return Frame(
            connection=self._number,
            api_key=key,
            api_version=version,
            correlation_id=correlation_id,
            size=len(data) - 4,
        )


async def _read_frame(source: asyncio.StreamReader, size_min: int) -> bytes:
    prefix = await source.readexactly(4)
    (size,) = struct.unpack(">i", prefix)
    if not size_min <= size <= FRAME_BYTES_MAX:
        raise _MalformedError
    return prefix + await source.readexactly(size)

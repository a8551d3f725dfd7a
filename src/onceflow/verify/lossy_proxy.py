"""A TCP proxy between Kafka clients and a broker that makes trouble on purpose.

The fault that decides about exactly-once is the lost acknowledgement: the broker appended, the client
never hears of it and sends again. A cable cannot be asked to do that at the right moment, so this proxy
reads along: it knows where each request and each response begins and ends, and which response answers a
Produce. It rewrites nothing, unless it was given a function for that (`rewrite`), or a plan asks for it.

    client  --- request --->   [plan.request]   --->  broker
    client  <-- response ---   [plan.response]  <---  broker

For each frame a `Plan` names its `Fate` (`verify.fates`): it is passed, swallowed, torn, delayed,
delivered late, or emptied of its records. A cut closes both sides. Whatever the broker had already
received it may well execute.

All connections together can be cut (`cut_all`), refused (`refuse`: those there are, and new ones) and
frozen (`freeze`: frames are neither passed nor refused, and nobody is told; what is on its way by then
arrives after `resume`, even if whoever sent it has given up).

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
import socket
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from onceflow.errors import MalformedMessage
from onceflow.verify.fates import PASS, Action, Fate, Frame, Hooks, Plan, RandomFaults
from onceflow.verify.rewriting import without_records

__all__ = ["Action", "Counters", "Fate", "Frame", "Hooks", "LossyProxy", "PASS", "Plan", "RandomFaults", "Rewrite"]

FRAME_BYTES_MAX = 256 * 1024 * 1024  # beyond any broker's limits: whoever announces more does not speak Kafka
REQUEST_BYTES_MIN = 8  # api key, version, correlation id
RESPONSE_BYTES_MIN = 4  # correlation id
UNANSWERED_MAX = 10_000  # requests remembered per connection; those with acks=0 are never answered
START_TIMEOUT_S = 10.0
LATE_ANSWER_S = 10.0  # how long the broker's side of a late request stays open for an answer that nobody will see
T = TypeVar("T")

Rewrite = Callable[[Frame, bytes], bytes]
"""A response, without the length prefix, as the client is to see it. Raises `MalformedMessage` if it must not."""


@dataclass(kw_only=True)
class Counters:
    """What the proxy did so far. Written by its thread only; read them from anywhere."""

    connections: int = 0
    refused: int = 0
    """Connections closed at once because the broker was down, or because of `refuse`."""
    requests: int = 0
    responses: int = 0
    acks_lost: int = 0
    """Responses to a Produce, swallowed or torn: the broker had decided, the client does not know."""
    requests_swallowed: int = 0
    requests_torn: int = 0
    requests_late: int = 0
    """Requests whose client was cut off, to be delivered afterwards."""
    delivered_late: int = 0
    """Those of them that the broker got."""
    answered_late: int = 0
    """Those of them that it answered, to nobody."""
    responses_swallowed: int = 0
    responses_torn: int = 0
    responses_emptied: int = 0
    """Responses to a Fetch whose records were left out."""
    delayed: int = 0
    cut_by_hand: int = 0
    """Connections cut by `cut_all`."""
    malformed: int = 0
    """Connections cut because a peer sent something that is not a Kafka frame, or that could not be rewritten."""

    @property
    def cuts(self) -> int:
        """Connections cut on purpose, whatever else happened to the frame."""
        return (
            self.requests_swallowed
            + self.requests_torn
            + self.requests_late
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
        rewrite: Rewrite | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.upstream = upstream
        """Where the broker is; None while it is not known. May change at any time, for new connections."""
        self.plan: Plan = plan or Hooks()
        """May be changed at any time."""
        self.rewrite = rewrite
        self.counters = Counters()
        self.is_refusing = False
        self.flowing = asyncio.Event()
        """Not set while everything is frozen. For the proxy's thread only."""
        self.flowing.set()
        self._bind = (host, port)
        self._bound: tuple[str, int] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._listener: socket.socket
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

    def refuse(self) -> None:
        """Cuts every connection and closes new ones at once, until `resume`."""
        self.is_refusing = True
        self.cut_all()

    def freeze(self) -> None:
        """Nothing passes, and nobody is told, until `resume`."""
        self._loop.call_soon_threadsafe(self.flowing.clear)

    def resume(self) -> None:
        """Ends `refuse` and `freeze`."""
        self.is_refusing = False
        self._loop.call_soon_threadsafe(self.flowing.set)

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
        # Not asyncio's server: of connections that it is accepting while it is closed, some are never closed.
        self._listener = socket.create_server(self._bind)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)
        host, port = self._listener.getsockname()[:2]
        self._bound = (host, port)

    async def _stop(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for link, task in list(self._links.items()):
            link.cut()
            # It ends by itself once its sockets are gone; a delayed frame would keep it alive.
            task.cancel()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _cut_all(self) -> int:
        links = [link for link in self._links if link.cut()]
        self.counters.cut_by_hand += len(links)
        return len(links)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self.counters.connections += 1
        link = _Link(self, self.counters.connections, client)
        # Known at once, and let go of by the loop: a task that is cancelled before its first step does neither.
        self._links[link] = task = self._loop.create_task(link.run())
        task.add_done_callback(lambda task: self._forget(link, task))

    def _forget(self, link: _Link, task: asyncio.Task[None]) -> None:
        del self._links[link]
        link.let_go()
        if not task.cancelled():  # only _stop() cancels
            task.result()  # raises for asyncio to report it


class _Judged(NamedTuple):
    """What to do with a frame, and how to count that it was done."""

    action: Action
    tally: Callable[[Fate], None]
    shape: Callable[[], bytes]
    """The frame as it is to be forwarded."""


Judge = Callable[[bytes], _Judged]


class _Link:
    """One client connection and the one to the broker that belongs to it."""

    def __init__(self, proxy: LossyProxy, number: int, client: socket.socket) -> None:
        self._proxy = proxy
        self._number = number
        self._socket = client
        self._writers: list[asyncio.StreamWriter] = []
        self._unanswered: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._is_cut = False
        self._late: int | None = None
        """The correlation id of the request that is delivered late: the client is gone, the broker's side is not."""
        self._late_is_answered = asyncio.Event()

    async def run(self) -> None:
        client = await asyncio.open_connection(sock=self._socket)
        self._writers.append(client[1])
        await self._proxy.flowing.wait()
        try:
            if self._proxy.upstream is None or self._proxy.is_refusing:
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
            asyncio.create_task(self._pump(client[0], broker[1], self._request, REQUEST_BYTES_MIN)),
            asyncio.create_task(self._pump(broker[0], client[1], self._response, RESPONSE_BYTES_MIN)),
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
        """Ends the connection on both sides at once, unsent bytes and all. False if there is none any more."""
        if self._late is not None:
            return False
        newly, self._is_cut = not self._is_cut, True
        for writer in self._writers:
            writer.transport.abort()
        return newly

    def let_go(self) -> None:
        """Frees what is left, if `run` was cancelled before it began or while it closed."""
        for writer in self._writers:
            writer.transport.abort()
        if not self._writers:
            self._socket.close()

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
            try:
                while await self._forward(await _read_frame(source, size_min), sink, judge):
                    pass
            except MalformedMessage:
                self._proxy.counters.malformed += 1

    async def _forward(self, frame: bytes, sink: asyncio.StreamWriter, judge: Judge) -> bool:
        """False if the connection is to end."""
        await self._proxy.flowing.wait()
        if self._is_cut:  # while it was frozen
            return False
        action, tally, shape = judge(frame)
        if action.fate is Fate.LATE:
            tally(action.fate)
            await self._deliver_late(frame, sink, action.delay_s)
            return False
        if action.delay_s > 0:
            self._proxy.counters.delayed += 1
            await asyncio.sleep(action.delay_s)
        tally(action.fate)
        if action.fate is Fate.SWALLOW:
            return False
        if self._late is not None:
            return True  # an answer, and nobody is there to hear it
        data = shape()
        if action.fate is Fate.TEAR:
            sink.write(data[: len(data) // 2])
            return False
        sink.write(data)
        await sink.drain()
        return True

    async def _deliver_late(self, frame: bytes, broker: asyncio.StreamWriter, delay_s: float) -> None:
        (self._late,) = struct.unpack_from(">i", frame, 8)
        self._writers[0].close()  # the client's
        await asyncio.sleep(delay_s)
        await self._proxy.flowing.wait()
        broker.write(frame)
        await broker.drain()
        self._proxy.counters.delivered_late += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._late_is_answered.wait(), LATE_ANSWER_S)

    def _request(self, data: bytes) -> _Judged:
        key, version, correlation_id = struct.unpack_from(">hhi", data, 4)
        self._unanswered[correlation_id] = (key, version)
        if len(self._unanswered) > UNANSWERED_MAX:
            self._unanswered.popitem(last=False)
        counters = self._proxy.counters

        def tally(fate: Fate) -> None:
            counters.requests += 1
            counters.requests_swallowed += fate is Fate.SWALLOW
            counters.requests_torn += fate is Fate.TEAR
            counters.requests_late += fate is Fate.LATE

        frame = self._frame(key, version, correlation_id, data)
        return _Judged(self._proxy.plan.request(frame), tally, lambda: data)

    def _response(self, data: bytes) -> _Judged:
        (correlation_id,) = struct.unpack_from(">i", data, 4)
        key, version = self._unanswered.pop(correlation_id, (-1, -1))
        frame = self._frame(key, version, correlation_id, data)
        counters = self._proxy.counters

        def tally(fate: Fate) -> None:
            counters.responses += 1
            counters.responses_swallowed += fate is Fate.SWALLOW
            counters.responses_torn += fate is Fate.TEAR
            counters.acks_lost += frame.is_produce and fate is not Fate.PASS

        if self._late is not None:
            if correlation_id == self._late:
                counters.answered_late += 1
                self._late_is_answered.set()
            return _Judged(PASS, lambda _fate: None, lambda: data)
        action = self._proxy.plan.response(frame)
        if action.fate is Fate.LATE:  # there is no way left on which it could still arrive
            action = action._replace(fate=Fate.SWALLOW)
        return _Judged(action, tally, lambda: self._rewritten(frame, data, action.fate))

    def _rewritten(self, frame: Frame, data: bytes, fate: Fate) -> bytes:
        response = data[4:]
        if fate is Fate.EMPTY:
            response = without_records(frame, response)
            self._proxy.counters.responses_emptied += len(response) < len(data) - 4
        if self._proxy.rewrite is not None:
            response = self._proxy.rewrite(frame, response)
        return struct.pack(">i", len(response)) + response

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
        raise MalformedMessage(f"A frame of {size} bytes cannot be.")
    return prefix + await source.readexactly(size)

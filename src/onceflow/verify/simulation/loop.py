"""What a simulated broker takes for its event loop and for its disk thread: events of the `World`.

The broker's own group commit, timers and checkpoints run on it unchanged. There is one disk thread, as in the real
broker: what it is given is done one after the other, each after a moment, and appends go on meanwhile. A loop ends with
its process: nothing that it was to do happens after that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from onceflow.verify.simulation.world import Timer, World

__all__ = ["Promise", "SimulatedLoop"]

DISK_S: Final = (0.0003, 0.004)

Guard = Callable[[Callable[[], None]], None]
"""Runs something of the broker's and sees to it if the process dies over it."""


class Promise:
    """As much of a future as the broker uses."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Promise], None]] = []
        self._result: Any = None
        self._is_done = False

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        return self._result

    def add_done_callback(self, callback: Callable[[Promise], None]) -> None:
        self._callbacks.append(callback)

    def keep(self, result: Any) -> None:
        self._result, self._is_done = result, True
        for callback in self._callbacks:
            callback(self)

    def __await__(self) -> Generator[Promise, None, Any]:
        if not self._is_done:
            yield self
        return self._result


class SimulatedLoop:
    def __init__(self, world: World, guard: Guard) -> None:
        self._world = world
        self._guard = guard
        self._disk_is_free_at = 0.0
        self.is_over = False

    def call_soon(self, run: Callable[..., None], *args: Any) -> Timer:
        return self.call_later(0.0, run, *args)

    def call_later(self, seconds: float, run: Callable[..., None], *args: Any) -> Timer:
        return self._world.after(seconds, lambda: self._do(run, *args))

    def run_in_executor(self, executor: object, run: Callable[..., Any], *args: Any) -> Promise:
        """In the disk thread."""
        promise = Promise()
        world = self._world
        self._disk_is_free_at = max(self._disk_is_free_at, world.now) + world.between(*DISK_S)
        self.call_later(self._disk_is_free_at - world.now, lambda: promise.keep(run(*args)))
        return promise

    def start(self, coroutine: Coroutine[Promise, None, None]) -> None:
        """Run a coroutine of the broker's that awaits nothing but the disk thread. To be called from the loop."""

        def step(_: Promise | None = None) -> None:
            with contextlib.suppress(StopIteration):
                coroutine.send(None).add_done_callback(step)

        step()

    def _do(self, run: Callable[..., None], *args: Any) -> None:
        if not self.is_over:
            self._guard(lambda: run(*args))

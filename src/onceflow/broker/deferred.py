"""What a handler gives back: an answer, or the promise of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from onceflow.wire.schema import Message

__all__ = ["Answer", "Deferred"]


class Answer(NamedTuple):
    message: Message | bytes
    """The response, or its body if a handler has encoded it already."""
    version: int | None = None
    """The version to encode it in, where that is not the request's."""


class Deferred:
    """An answer that comes later. Lighter than a Future: one listener, called at once, on the loop's own thread."""

    __slots__ = ("_listener", "is_done", "on_cancel", "on_hurry", "parked_s", "result")

    def __init__(self) -> None:
        self.is_done = False
        self.result: Answer | None = None
        self.parked_s = 0.0
        """How long it waited because its client asked for that (a long poll): no latency of ours."""
        self._listener: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        """Called when the client is gone, to take down what was set up for it."""
        self.on_hurry: Callable[[], None] | None = None
        """Called when the broker is stopping, to answer now with what there is."""

    def resolve(self, answer: Answer | None) -> None:
        if self.is_done:
            return
        self.is_done = True
        self.result = answer
        if self._listener is not None:
            self._listener()

    def when_done(self, listener: Callable[[], None]) -> None:
        self._listener = listener
        if self.is_done:
            listener()

    def cancel(self) -> None:
        self._listener = None
        if not self.is_done and self.on_cancel is not None:
            self.on_cancel()

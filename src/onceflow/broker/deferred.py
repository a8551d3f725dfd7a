"""What a handler gives back: an answer, or the promise of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from onceflow.errors import MalformedMessage
from onceflow.wire.schema import Buffer, Message

__all__ = ["Answer", "Deferred"]


class Answer(NamedTuple):
    message: Message | bytes | list[Buffer]
    """The response, or its body if that is encoded already, also in parts."""
    version: int | None = None
    """The version to encode it in, where that is not the request's."""


class Deferred:
    """An answer that comes later. Lighter than a Future: one listener, called at once, on the loop's own thread."""

    __slots__ = (
        "_listener",
        "error",
        "holds",
        "is_done",
        "make",
        "on_cancel",
        "on_hurry",
        "on_release",
        "parked_s",
        "result",
        "weight",
    )

    def __init__(self) -> None:
        self.is_done = False
        self.result: Answer | None = None
        self.error: MalformedMessage | None = None
        """Why there will be no answer: the request broke the protocol, as was found out later."""
        self.holds = False
        """Whether the next request of the connection has to wait, and the frame of this one stays as it is."""
        self.on_release: Callable[[], None] | None = None
        """Called when it does not hold any more, and is not done."""
        self.parked_s = 0.0
        """How long it waited because its client asked for that (a long poll): no latency of ours."""
        self.weight = 0
        """What it costs to keep it waiting, if its client asked for that."""
        self.make: Callable[[], Answer] | None = None
        """What makes the answer once its turn has come; until then a large one is not kept in memory. Must not fail."""
        self._listener: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        """Called when the client is gone, to take down what was set up for it."""
        self.on_hurry: Callable[[], None] | None = None
        """Called when the broker is stopping, to answer now with what there is."""

    def resolve(self, answer: Answer | None) -> None:
        if self.is_done:
            return
        self.is_done = True
        self.holds = False
        self.result = answer
        listener = self._listener
        # They know this object, and large answers must not wait for the garbage collector.
        self._listener = self.on_cancel = self.on_hurry = self.on_release = None
        if listener is not None:
            listener()

    def answer(self) -> Answer | None:
        """What it came to, once it is done."""
        return self.result if self.make is None else self.make()

    def fail(self, error: MalformedMessage) -> None:
        """There is no answer: the connection is to be closed."""
        if not self.is_done:
            self.error = error
            self.resolve(None)

    def release(self) -> None:
        """The connection's next request does not have to wait any more, though there is no answer yet."""
        self.holds = False
        if self.on_release is not None and not self.is_done:
            self.on_release()

    def when_done(self, listener: Callable[[], None]) -> None:
        if self.is_done:
            listener()
        else:
            self._listener = listener

    def cancel(self) -> None:
        self._listener = None
        if not self.is_done and self.on_cancel is not None:
            self.on_cancel()

"""Without a loop, what the broker does in steps and in a thread is done at once, here and now."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from onceflow.config import TopicConfig
from onceflow.log.validation import examine, opened, unpack
from onceflow.wire.batch import BatchHeader

__all__ = ["accept", "at_once"]

T = TypeVar("T")


def at_once(steps: Generator[Any, None, T]) -> T:
    """All steps in this thread, without a pause."""
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if callable(step):
            step()


def accept(
    batch: memoryview, config: TopicConfig, now_ms: int, *, zstd_allowed: bool = True
) -> tuple[memoryview, BatchHeader]:
    """The batch as it goes into the log and its header, or `ProtocolError`. `batch` may be changed in place."""
    header, is_to_be_opened = examine(batch, config, now_ms, zstd_allowed=zstd_allowed)
    return opened(batch, header, config, now_ms, unpack(batch, header)) if is_to_be_opened else (batch, header)

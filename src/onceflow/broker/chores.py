"""What a broker does now and then, in the background. Nothing that goes wrong ends it.

- A round that fails is logged, with its traceback, and the next one comes in its time (`every`).
- What is done for many, partition by partition, is done for the others where it fails for one (`unless_it_fails`): else
  the same one would be in the way of the same others in every round.

What fails fails often: one traceback a minute says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from onceflow.broker.complaints import complain

__all__ = ["every", "unless_it_fails"]


async def every(
    seconds: float | Callable[[], float],
    what: str,
    chore: Callable[[], Awaitable[None] | None],
    *,
    at_once: bool = False,
) -> None:
    """Without end. `what` is for the log, and tells chores apart. `seconds` that can change are asked for after every
    round."""
    pause = 0.0 if at_once else _value(seconds)
    while True:
        await asyncio.sleep(pause)
        pause = _value(seconds)
        try:
            running = chore()
            if running is not None:
                await running
        except Exception:
            complain(f"chore: {what}", "%s failed; it is tried again in %s s.", what, pause, with_traceback=True)


def _value(seconds: float | Callable[[], float]) -> float:
    return seconds() if callable(seconds) else seconds


@contextmanager
def unless_it_fails(what: str, item: object) -> Iterator[None]:
    """What a round does for one of many. `what` is for the log, as in `every`."""
    try:
        yield
    except Exception:
        complain(f"chore: {what}", "%s of %s failed, and goes on with the others.", what, item, with_traceback=True)

"""Waiting for a condition, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["eventually"]

T = TypeVar("T")


def eventually(probe: Callable[[], T], what: str, *, timeout_s: float = 60, every_s: float = 0.02) -> T:
    """The first truthy answer of `probe`; if none comes, a `TimeoutError` that says what never happened.

    An admin change on Apache Kafka is acknowledged by the controller before the broker has seen it. Tests that look at
    the broker next wait for it with this.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"It did not happen within {timeout_s} s that {what}; the last answer was {answer!r}.")
        time.sleep(every_s)
    return answer

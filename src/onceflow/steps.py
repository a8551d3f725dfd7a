"""Work in steps: a generator on the loop's thread that hands out what is slow.

What it yields is run in another thread, while the loop serves; then the generator goes on. Between two steps anything
may happen, so what was looked up before is looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

__all__ = ["Work", "in_thread"]

T = TypeVar("T")
Work = Callable[[], None]
"""Raises nothing: what came of it is known to who handed it out."""


def in_thread(work: Callable[[], T]) -> Generator[Work, None, T]:
    """Have `work` run in the other thread; its outcome, also an exception, comes out here."""
    outcome: list[tuple[T | None, Exception | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except Exception as error:
            outcome.append((None, error))

    yield run
    result, error = outcome.pop()  # not left there: the error knows this frame, and with it all that the work was about
    if error is not None:
        try:
            raise error
        finally:
            del error
    return result  # type: ignore[return-value]

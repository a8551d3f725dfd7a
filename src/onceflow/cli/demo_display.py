"""What is seen while `onceflow demo` runs: the display of `onceflow verify`, told about records and micro-batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TextIO

from onceflow.verify.display import Live, display_for
from onceflow.verify.runner import Display

__all__ = ["DemoDisplay", "demo_display"]

SAY_EVERY_S: Final = 10.0
"""In a log. At a terminal the line stays in place and is always up to date."""


@contextmanager
def demo_display(*, is_silent: bool, title: str, stream: TextIO | None = None) -> Iterator[Display]:
    with display_for(is_silent=is_silent, title=title, stream=stream or sys.stderr) as inner:
        yield DemoDisplay(inner, every_s=0.0 if isinstance(inner, Live) else SAY_EVERY_S)


class DemoDisplay:
    """Says how far it has come along with what is going on."""

    def __init__(self, inner: Display, every_s: float) -> None:
        self._inner = inner
        self._every_s = every_s
        self._stage = ""
        self._said = time.monotonic()

    def stage(self, text: str) -> None:
        self._stage = text
        self._inner.stage(text)

    def fault(self, text: str) -> None:
        self._inner.fault(text)

    def progress(
        self,
        *,
        faults_done: int,
        faults_planned: int | None,
        elapsed_s: float,
        planned_s: float | None,
        counts: Mapping[str, int],
    ) -> None:
        if time.monotonic() - self._said >= self._every_s:
            self._said = time.monotonic()
            said = ", ".join(f"{number:,} {name}" for name, number in counts.items())
            self._inner.stage(f"{self._stage}: {said}" if said else self._stage)
        self._inner.progress(
            faults_done=faults_done,
            faults_planned=faults_planned,
            elapsed_s=elapsed_s,
            planned_s=planned_s,
            counts=counts,
        )

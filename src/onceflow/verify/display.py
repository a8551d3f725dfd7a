"""What a person sees while a run goes on, on stderr.

    at a terminal     a few lines that stay in place: what is going on, faults so far, the last one, counts, time
    elsewhere         a line for each stage and each fault, so that a log tells what happened when
    with --json       nothing

Text of a run (names of processes, what a fault hit) is printed as it is, never as markup.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO

from onceflow.verify.runner import Display, Silent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

__all__ = ["Lines", "Live", "Quiet", "clock", "display_for"]

WATCHED: Final = {
    "commit ok": "committed",
    "commit unknown": "unknown",
    "commit failed": "failed",
    "records read": "records read",
}
"""Counts that are worth a look while the run goes on, and what they are called."""
BAR: Final = 28


def display_for(*, is_silent: bool, title: str, stream: TextIO | None = None) -> AbstractContextManager[Display]:
    out = stream or sys.stderr
    if is_silent:
        return Quiet()
    return Live(title, out) if out.isatty() else Lines(title, out)


def clock(seconds: float) -> str:
    """`1:05`, `1:02:05`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Quiet(Silent, AbstractContextManager[Display]):
    def __exit__(self, *_: object) -> None: ...


class Lines(AbstractContextManager[Display]):
    """One line per event, with the time since the beginning."""

    def __init__(self, title: str, out: TextIO) -> None:
        self._out = out
        self._title = title
        self._began = time.monotonic()
        self._faults = 0

    def __enter__(self) -> Lines:
        print(self._title, file=self._out, flush=True)
        return self

    def __exit__(self, *_: object) -> None: ...

    def stage(self, text: str) -> None:
        self._say(text)

    def fault(self, text: str) -> None:
        self._faults += 1
        self._say(f"fault {self._faults}: {text}")

    def progress(self, **_: object) -> None: ...

    def _say(self, text: str) -> None:
        print(f"{clock(time.monotonic() - self._began):>7}  {text}", file=self._out, flush=True)


class Live(AbstractContextManager[Display]):
    """Lines that stay in place at the bottom of a terminal, and are gone afterwards."""

    def __init__(self, title: str, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console: Console = Console(file=out, highlight=False)
        self._title = title
        self._began = time.monotonic()
        self._stage = "starting"
        self._last = ""
        self._done = 0
        self._planned: int | None = None
        self._elapsed_s = 0.0
        self._planned_s: float | None = None
        self._counts: Mapping[str, int] = {}
        self._live = RichLive(console=self._console, get_renderable=self.render, refresh_per_second=5, transient=True)

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def stage(self, text: str) -> None:
        self._stage = text

    def fault(self, text: str) -> None:
        self._last = text

    def progress(
        self,
        *,
        faults_done: int,
        faults_planned: int | None,
        elapsed_s: float,
        planned_s: float | None,
        counts: Mapping[str, int],
    ) -> None:
        self._done, self._planned = faults_done, faults_planned
        self._elapsed_s, self._planned_s = elapsed_s, planned_s
        self._counts = counts

    def render(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="dim", no_wrap=True)
        lines.add_column(no_wrap=True, overflow="ellipsis")
        lines.add_row("verify", Text.assemble((self._title, "bold"), f"  {clock(time.monotonic() - self._began)}"))
        lines.add_row("now", Text(self._stage))
        lines.add_row("faults", self._faults())
        if self._last:
            lines.add_row("last", Text(self._last))
        if said := self._said():
            lines.add_row("so far", Text(said))
        return lines

    def _faults(self) -> Text:
        from rich.text import Text

        share = self._share()
        number = f"{self._done:,}" + ("" if self._planned is None else f" of {self._planned:,}")
        if share is None:
            return Text(number)
        filled = round(share * BAR)
        return Text.assemble(("━" * filled, "green"), ("━" * (BAR - filled), "dim"), f"  {number}")

    def _share(self) -> float | None:
        """How much is done, by faults or by time, whichever is further: the run ends with the first of them."""
        shares = [self._done / self._planned] if self._planned else []
        shares += [self._elapsed_s / self._planned_s] if self._planned_s else []
        return min(1.0, max(shares)) if shares else None

    def _said(self) -> str:
        return ", ".join(f"{self._counts[name]:,} {word}" for name, word in WATCHED.items() if self._counts.get(name))

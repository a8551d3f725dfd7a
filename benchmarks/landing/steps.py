"""How long each step of a landing took, as the sink tells it."""

from __future__ import annotations

import time

from onceflow.spark.listening import BatchResult, SinkListener, Step


class Steps(SinkListener):
    """Milliseconds by step, one dict for each micro-batch; with what the sink itself reports as write_ms, commit_ms."""

    def __init__(self) -> None:
        self.batches: list[dict[str, float]] = []
        self._current: dict[str, float] = {}
        self._since: dict[Step, float] = {}

    def last(self) -> dict[str, float]:
        return self.batches[-1]

    def before(self, step: Step, batch_id: int) -> None:
        self._since[step] = time.monotonic()

    def after(self, step: Step, batch_id: int) -> None:
        self._current[step.value] = (time.monotonic() - self._since[step]) * 1000

    def on_batch(self, result: BatchResult) -> None:
        parts = {"write_ms": result.write_ms, "commit_ms": result.commit_ms, "attempts": float(result.attempts)}
        self.batches.append({**self._current, **parts})
        self._current = {}

"""A line for each micro-batch, as it ends: what came in, what went out, how long it took, and how much is waiting."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from onceflow.cli.output import overwrite, print_json_line, say
from onceflow.pipelines.job import records_in
from onceflow.spark.listening import BatchResult, SinkListener
from onceflow.spark.planning import behind_latest

if TYPE_CHECKING:
    from onceflow.pipelines.job import JobSettings

__all__ = ["BatchLines"]

RESULTS_MAX: Final = 1000
"""Of micro-batches whose progress Spark has not told yet; there are a few at most."""


class BatchLines(SinkListener):
    """Puts together what Spark's progress and the sink say about a micro-batch. `show` is to be called now and then."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._is_live = sys.stdout.isatty() and not as_json
        self._results: dict[int, BatchResult] = {}
        self._landings = _Landings()
        self._shown: int | None = None
        self._shown_when_asked: int | None = None
        self._was_asked = False

    def __enter__(self) -> BatchLines:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live and self._shown is not None:
            say(flush=True)

    def heard(self, settings: JobSettings) -> JobSettings:
        """The settings of a job whose sinks tell us about their work."""
        return dataclasses.replace(
            settings,
            sink_options={**settings.sink_options, "listeners": [self]},
            sql_options={**settings.sql_options, "listeners": [self._landings]},
        )

    def on_batch(self, result: BatchResult) -> None:
        _keep(self._results, result)

    def show(self, query: Any) -> None:
        """Those micro-batches that have ended since the last call."""
        last = query.lastProgress
        if last is None or not self._is_news(last):
            return
        for progress in sorted(query.recentProgress, key=lambda each: int(each["batchId"])):
            if self._is_news(progress):
                self._print(progress)

    def has_news_since_asked(self) -> bool:
        """Whether a micro-batch was shown since this was asked for the first time."""
        if not self._was_asked:
            self._was_asked, self._shown_when_asked = True, self._shown
        return self._shown != self._shown_when_asked

    def _is_news(self, progress: Any) -> bool:
        """Spark also reports, now and then, that there was nothing to do: under the number of the next micro-batch."""
        number = int(progress["batchId"])
        was_run = "addBatch" in progress["durationMs"]
        return was_run and number in self._results and (self._shown is None or number > self._shown)

    def _print(self, progress: Any) -> None:
        number = int(progress["batchId"])
        facts = _facts(progress, self._results.pop(number), self._landings.results.pop(number, None))
        self._shown = facts["batch"]
        if self._as_json:
            print_json_line(facts)
        elif self._is_live:
            overwrite(_line(facts))
        else:
            say(_line(facts), flush=True)


class _Landings(SinkListener):
    """What the sink for a database says; it is called before the one for Kafka."""

    def __init__(self) -> None:
        self.results: dict[int, BatchResult] = {}

    def on_batch(self, result: BatchResult) -> None:
        _keep(self.results, result)


def _keep(results: dict[int, BatchResult], result: BatchResult) -> None:
    while len(results) >= RESULTS_MAX:
        del results[min(results)]
    results[result.batch_id] = result


def _facts(progress: Any, result: BatchResult, landing: BatchResult | None) -> dict[str, Any]:
    landed = {} if landing is None else {"landed": dict(landing.tables), "landing_attempts": landing.attempts}
    return {
        "batch": result.batch_id,
        "at": progress["timestamp"],
        "in": records_in(progress),
        "out": result.rows,
        "seconds": round(progress["durationMs"].get("triggerExecution", 0) / 1000, 3),
        "lag": sum(sum(behind_latest(source).values()) for source in progress["sources"]),
        "attempts": result.attempts,
        "skipped": result.skipped,
        **landed,
    }


def _line(facts: Mapping[str, Any]) -> str:
    counts = f"{facts['in']:>9,} in {facts['out']:>9,} out"
    line = f"batch {facts['batch']:<6} {counts} {facts['seconds']:>8.2f} s   lag {facts['lag']:,}"
    if "landed" in facts:
        line += f"   landed {sum(facts['landed'].values()):,}"
    if facts["skipped"]:
        return f"{line}   (was committed before)"
    return f"{line}   (attempt {facts['attempts']})" if facts["attempts"] > 1 else line

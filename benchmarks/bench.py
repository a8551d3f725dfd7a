"""One run: brokers take turns, measure by measure and round by round, and what they did is collected."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from benchmarks import clients
from benchmarks.brokers import Flavour, RunningBroker
from benchmarks.plan import LARGE, Plan
from benchmarks.results import Case, Results, Sample

if TYPE_CHECKING:
    from benchmarks.measures import Measure


class Bench:
    """What a measure is given: brokers to start, topics to fill, and a place for its samples."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan = plan
        self.results = Results()
        self._round = 0
        self._topic_numbers = itertools.count()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", total=None)

    def run(self, measures: Sequence[Measure], brokers: Sequence[str]) -> Results:
        """A/B/A/B: the machine's mood changes within minutes, so the brokers follow each other closely."""
        turns = [
            (number, measure, flavour)
            for number in range(self.plan.rounds)
            for measure in measures
            for flavour in measure.flavours
            if flavour.name.split("-")[0] in brokers and number < measure.rounds(self.plan)
        ]
        with self._progress:
            self._progress.update(self._task, total=len(turns))
            try:
                for number, measure, flavour in turns:
                    self._turn(number, measure, flavour)
            except KeyboardInterrupt:
                self.results.failures.append("the rest: interrupted")
        return self.results

    def _turn(self, number: int, measure: Measure, flavour: Flavour) -> None:
        self._round = number
        where = f"round {number + 1}, {measure.name}, {flavour.title}"
        self._progress.update(self._task, description=where)
        try:
            measure.run(self, flavour)
        except Exception as error:  # one broken measure must not cost the other nineteen minutes
            self.results.failures.append(f"{where}: {error}")
            self._progress.console.print(f"[red]{where}: not measured[/]\n{escape(str(error))}", highlight=False)
        self._progress.advance(self._task)

    @contextmanager
    def broker(self, flavour: Flavour, *, warm: bool = True) -> Iterator[RunningBroker]:
        """A fresh broker on an empty folder; warmed up unless it is the start that is measured."""
        self.settle()
        with flavour.start() as broker:
            if warm:
                self.fill(broker, self.plan.warm_up_records, LARGE)
            yield broker

    def topic(self, broker: RunningBroker, *, partitions: int | None = None) -> str:
        """A new, empty topic."""
        name = f"bench-{next(self._topic_numbers)}"
        clients.create_topic(broker.bootstrap, name, partitions or self.plan.partitions)
        return name

    def fill(self, broker: RunningBroker, records: int, size: int, topic: str = "") -> str:
        """A topic with that many records more, written by Kafka's own producer."""
        topic = topic or self.topic(broker)
        clients.producer_performance(broker.bootstrap, topic, records=records, size=size)
        return topic

    def settle(self) -> None:
        """Let the disk take what earlier cases left dirty, so that no case pays for another."""
        os.sync()

    def record(self, case: Case, flavour: Flavour, value: float, cpu_s_per_million: float | None = None) -> None:
        self.results.add(
            case,
            Sample(
                case=case.key,
                broker=flavour.name,
                round=self._round,
                value=value,
                cpu_s_per_million=cpu_s_per_million,
            ),
        )
        beside = "" if cpu_s_per_million is None else f", {cpu_s_per_million:.2f} CPU s per million"
        self._progress.console.print(
            f"{flavour.title:>16}  {case.title}: {value:,.{0 if value >= 1000 else 2}f} {case.unit}{beside}",
            highlight=False,
        )

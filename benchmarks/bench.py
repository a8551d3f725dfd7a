"""One run: the brokers take turns, round by round, and what they did is collected."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from benchmarks.brokers import FLAVOURS, Flavour, RunningBroker
from benchmarks.plan import LARGE, SMALL, Plan
from benchmarks.results import Case, Results, Sample

if TYPE_CHECKING:
    from benchmarks.measures import Measure


class Bench:
    """What a measure is given: brokers to start, topics to fill, and a place for its samples."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan = plan
        self.results = Results()
        self._round = 0
        self._stack = ExitStack()
        self._warm: RunningBroker | None = None
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
        """A/B/A/B: the machine's mood changes within minutes, so each round visits the brokers one after the other."""
        flavours = [flavour for flavour in FLAVOURS.values() if flavour.name.split("-")[0] in brokers]
        visits = [
            (
                number,
                flavour,
                [each for each in measures if flavour in each.flavours and number < each.rounds(self.plan)],
            )
            for number in range(self.plan.rounds)
            for flavour in flavours
        ]
        with self._progress:
            self._progress.update(self._task, total=sum(len(todo) for _, _, todo in visits))
            try:
                for number, flavour, todo in visits:
                    self._visit(number, flavour, todo)
            except KeyboardInterrupt:
                self.results.failures.append("the rest: interrupted")
        return self.results

    def _visit(self, number: int, flavour: Flavour, measures: Sequence[Measure]) -> None:
        self._round = number
        try:
            for measure in measures:
                self._measure(measure, flavour)
        finally:
            self._end_warm()

    def _measure(self, measure: Measure, flavour: Flavour) -> None:
        where = f"round {self._round + 1}, {measure.name}, {flavour.title}"
        self._progress.update(self._task, description=where)
        try:
            measure.run(self, flavour)
        except Exception as error:  # one broken measure must not cost the other nineteen minutes
            self._end_warm()
            self.results.failures.append(f"{where}: {error}")
            self._progress.console.print(f"[red]{where}: not measured[/]\n{escape(str(error))}", highlight=False)
        self._progress.advance(self._task)

    @contextmanager
    def fresh(self, flavour: Flavour) -> Iterator[RunningBroker]:
        """A broker of the measure's own on an empty folder, just started."""
        self._end_warm()
        self.settle()
        with flavour.start() as broker:
            yield broker

    def warm(self, flavour: Flavour) -> RunningBroker:
        """The broker that the measures of a visit share: started and warmed up for the first that asks.

        Kafka's JVM takes long to compile its way through a produce request. Measured here: 28 CPU seconds per million
        records of 1 KB at first, 7 after 600,000 of them; then the first 100 B case still cost twice what the second
        did. A benchmark without this would flatter us fourfold.
        """
        if self._warm is None:
            self.settle()
            self._warm = self._stack.enter_context(flavour.start())
            self.fill(self._warm, self.plan.warm_up_large, LARGE)
            self.fill(self._warm, self.plan.warm_up_small, SMALL)
        return self._warm

    def _end_warm(self) -> None:
        self._warm = None
        self._stack.close()

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

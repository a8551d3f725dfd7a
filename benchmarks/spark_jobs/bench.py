"""One run of the Spark benchmark: brokers, input topics, and driver programs one after the other.

Rounds visit the brokers in turns, and on each the engines take turns in an order that moves on by one from round to
round: whoever comes first finds a broker that is less warm. A job counts only if its output is right.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape
from tests.support.kafka_jars import connector_jars

from benchmarks import clients
from benchmarks.brokers import FLAVOURS, RunningBroker
from benchmarks.plan import LARGE, SIZES, SMALL
from benchmarks.spark_jobs.job import AT_LEAST_ONCE, COUNT, ENGINES, EXACTLY_ONCE, JOBS, MAP, SPARK, Job, Query
from benchmarks.spark_jobs.processes import DriverProcess, JobCpu, Memory, parse_stat
from benchmarks.spark_jobs.records import Fill, check_output, delete_topics, expected_output
from benchmarks.spark_jobs.results import (
    SCALE,
    SIDE_BY_SIDE,
    TRIGGERS,
    Case,
    Measurement,
    MicroBatch,
    commit_ms,
    cpu,
    rate,
    within,
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    records: int = 2_000_000
    sizes: tuple[int, ...] = (SMALL, LARGE)
    jobs: tuple[str, ...] = (MAP, COUNT)
    brokers: tuple[str, ...] = ("kafka", "onceflow")
    engines: tuple[str, ...] = (EXACTLY_ONCE, AT_LEAST_ONCE, SPARK)
    rounds: int = 3
    partitions: int = 4
    keys: int = 1_000
    per_trigger: int = 500_000
    warm_up: int = 200_000
    """Records that each driver goes through before its clock starts."""

    trigger_seconds: float = 1.0
    steady_rate: int = 20_000
    """Records per second of 100 B, where triggers are measured."""

    steady_seconds: float = 60.0
    lead_seconds: float = 20.0
    """Of triggers that do not count: the JVM compiles most of what it runs each second."""

    marks: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)


@dataclass(frozen=True)
class Reading:
    """Everybody's clocks at one moment."""

    at: float
    job_cpu: JobCpu
    broker_cpu_s: float
    own_cpu_s: float
    machine_cpu_s: float


@dataclass(frozen=True)
class Usage:
    """What was used between two readings."""

    before: Reading
    after: Reading
    memory: Memory

    @property
    def seconds(self) -> float:
        return self.after.at - self.before.at

    @property
    def job_cpu(self) -> JobCpu:
        return self.after.job_cpu - self.before.job_cpu

    @property
    def broker_cpu_s(self) -> float:
        return self.after.broker_cpu_s - self.before.broker_cpu_s

    @property
    def other_cores(self) -> float:
        busy = self.after.machine_cpu_s - self.before.machine_cpu_s
        own = self.after.own_cpu_s - self.before.own_cpu_s
        return max(busy - own - self.job_cpu.total - self.broker_cpu_s, 0.0) / self.seconds


class Bench:
    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan = plan
        self.measurements: list[Measurement] = []
        self.failures: list[str] = []
        self._console = console
        self._parts: dict[str, Callable[[Visit], None]] = {
            SIDE_BY_SIDE: self._side_by_side,
            TRIGGERS: self._triggers,
            SCALE: self._scale,
        }

    def run(self, parts: Sequence[str]) -> None:
        try:
            for part, number, broker in itertools.product(parts, range(self.plan.rounds), self.plan.brokers):
                self._visit(part, number, broker)
        except KeyboardInterrupt:
            self.failures.append("the rest: interrupted")

    def _visit(self, part: str, number: int, broker: str) -> None:
        os.sync()
        try:
            with FLAVOURS[broker].start() as running:
                self._parts[part](Visit(self.plan, part, number, broker, running))
        except Exception as error:  # one broker that does not start must not cost the rest
            self._failed(f"round {number + 1}, {part}, {broker}", error)

    def _side_by_side(self, visit: Visit) -> None:
        plan = self.plan
        for size in plan.sizes:
            source = visit.input(plan.records, size)
            for job, engine in itertools.product(plan.jobs, visit.engines_in_turn()):
                self._measure(visit, visit.case(job, size, plan.records), engine, source)
            delete_topics(visit.running.bootstrap, source)

    def _triggers(self, visit: Visit) -> None:
        plan = self.plan
        records = round(plan.steady_rate * (plan.lead_seconds + plan.steady_seconds + 5))
        for engine in visit.engines_in_turn():
            self._measure(visit, visit.case(MAP, SMALL, records), engine, visit.topic())

    def _scale(self, visit: Visit) -> None:
        for records in self.plan.marks:
            source = visit.input(records, SMALL)
            for engine in visit.engines_in_turn():
                self._measure(visit, visit.case(MAP, SMALL, records), engine, source)
            delete_topics(visit.running.bootstrap, source)

    def _measure(self, visit: Visit, case: Case, engine: str, source: str) -> None:
        where = (
            f"round {visit.number + 1}, {JOBS[case.job]}, {case.records:,} of {SIZES[case.size]}, "
            f"{FLAVOURS[case.broker].title}, {ENGINES[engine]}"
        )
        try:
            taken = visit.measure(case, engine, source)
        except Exception as error:  # one broken job must not cost the others
            self._failed(where, error)
            return
        self.measurements.append(taken)
        commit = commit_ms(taken)
        beside = "" if commit is None else f", commit {commit:.1f} ms"
        self._console.print(
            f"{where}: {rate(taken):,.0f} rec/s, {cpu(taken):.2f} CPU s per million, {taken.pss_mb:,.0f} MB{beside}"
            f" (others {taken.other_cores:.2f} cores)",
            highlight=False,
        )

    def _failed(self, where: str, error: Exception) -> None:
        self.failures.append(f"{where}: {error}")
        self._console.print(f"[red]{where}: not measured[/]\n{escape(str(error))}", highlight=False)


class Visit:
    """A broker that runs, for one round of one part."""

    def __init__(self, plan: Plan, part: str, number: int, broker: str, running: RunningBroker) -> None:
        self.number = number
        self.running = running
        self._plan = plan
        self._part = part
        self._broker = broker
        self._topic_numbers = itertools.count()
        self._warm_inputs: dict[int, str] = {}

    def case(self, job: str, size: int, records: int) -> Case:
        return Case(part=self._part, job=job, size=size, records=records, broker=self._broker)

    def engines_in_turn(self) -> list[str]:
        first = self.number % len(self._plan.engines)
        return [*self._plan.engines[first:], *self._plan.engines[:first]]

    def topic(self) -> str:
        name = f"bench-{next(self._topic_numbers)}"
        clients.create_topic(self.running.bootstrap, name, self._plan.partitions)
        return name

    def input(self, records: int, size: int) -> str:
        """A topic with that many records."""
        name = self.topic()
        Fill(self.running.bootstrap, name, records=records, size=size, keys=self._plan.keys).wait()
        return name

    def _warm_input(self, size: int) -> str:
        if size not in self._warm_inputs:
            self._warm_inputs[size] = self.input(self._plan.warm_up, size)
        return self._warm_inputs[size]

    def measure(self, case: Case, engine: str, source: str) -> Measurement:
        folder = Path(tempfile.mkdtemp(prefix="onceflow-bench-spark-"))
        targets = self.topic(), self.topic()
        try:
            job = self._job(case, engine, source, targets, folder)
            with DriverProcess(job, folder) as driver:
                taken = self._taken(case, engine, source, driver)
            check_output(
                self.running.bootstrap, targets[1], self._plan.partitions, expected_output(case.job, case.records)
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        delete_topics(self.running.bootstrap, *targets)
        return taken

    def _job(self, case: Case, engine: str, source: str, targets: tuple[str, str], folder: Path) -> Job:
        warm_up = Query(
            source=self._warm_input(case.size),
            target=targets[0],
            per_trigger=self._plan.warm_up // 4,
            checkpoint=str(folder / "warm-up"),
        )
        measured = Query(
            source=source,
            target=targets[1],
            per_trigger=self._plan.per_trigger,
            checkpoint=str(folder / "measured"),
        )
        return Job(
            engine=engine,
            kind=case.job,
            bootstrap=self.running.bootstrap,
            jars=",".join(map(str, connector_jars())) if engine == SPARK else "",
            warm_up=warm_up,
            measured=measured,
            trigger_seconds=self._plan.trigger_seconds if case.part == TRIGGERS else 0.0,
        )

    def _taken(self, case: Case, engine: str, source: str, driver: DriverProcess) -> Measurement:
        driver.wait_for_mark("begin")
        os.sync()  # what earlier jobs left dirty is not this one's to write
        if case.part == TRIGGERS:
            usage, window = self._watch_triggers(case, source, driver)
        else:
            usage, window = self._watch_to_the_end(driver), None
        driver.go_on()
        result = driver.result()
        driver.wait()
        taken, commits = _measurement(case, engine, self.number, usage, result)
        return within(taken, commits, *window, per_second=self._plan.steady_rate) if window else taken

    def _watch_to_the_end(self, driver: DriverProcess) -> Usage:
        with driver.memory() as memory:
            before = self._read(driver)
            driver.go_on()
            driver.wait_for_mark("end")
            after = self._read(driver)
        return Usage(before, after, memory)

    def _watch_triggers(self, case: Case, source: str, driver: DriverProcess) -> tuple[Usage, tuple[float, float]]:
        plan = self._plan
        driver.go_on()
        driver.wait_for_mark("running")
        fill = Fill(
            self.running.bootstrap,
            source,
            records=case.records,
            size=case.size,
            keys=plan.keys,
            per_second=plan.steady_rate,
        )
        try:
            fill.wait_until_it_sends()
            time.sleep(plan.lead_seconds)
            with driver.memory() as memory:
                before, start = self._read(driver, fill), time.time()
                time.sleep(plan.steady_seconds)
                after, end = self._read(driver, fill), time.time()
            fill.wait()
        finally:
            fill.end()
        driver.go_on()
        driver.wait_for_mark("end")
        return Usage(before, after, memory), (start, end)

    def _read(self, driver: DriverProcess, fill: Fill | None = None) -> Reading:
        own = resource.getrusage(resource.RUSAGE_SELF)
        filling = parse_stat(Path(f"/proc/{fill.pid}/stat").read_text()).cpu_seconds if fill else 0.0
        return Reading(
            at=time.monotonic(),
            job_cpu=driver.cpu(),
            broker_cpu_s=self.running.cpu_seconds(),
            own_cpu_s=own.ru_utime + own.ru_stime + filling,
            machine_cpu_s=_machine_cpu_s(),
        )


def _measurement(
    case: Case,
    engine: str,
    number: int,
    usage: Usage,
    result: dict[str, Any],
) -> tuple[Measurement, list[tuple[float, float]]]:
    """And when each transaction was committed, with the ms that it took."""
    commits = [(each["at"], each["commit_ms"]) for each in result["commits"]] if engine == EXACTLY_ONCE else []
    taken = Measurement(
        case=case,
        engine=engine,
        round=number,
        records=case.records,
        seconds=result["seconds"],
        job_cpu=usage.job_cpu,
        broker_cpu_s=usage.broker_cpu_s,
        rss_mb=usage.memory.rss_mb,
        pss_mb=usage.memory.pss_mb,
        other_cores=usage.other_cores,
        batches=[MicroBatch(each["at"], each["rows"], each["ms"]) for each in result["batches"]],
        commits_ms=[ms for _, ms in commits],
    )
    return taken, commits


def _machine_cpu_s() -> float:
    """What all cores were busy with, time that the machine's host took included."""
    machine = psutil.cpu_times()
    # The kernel counts the time of guests under user time as well.
    return float(sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice)

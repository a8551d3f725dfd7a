"""A run from beginning to end: brokers, workload, readers, faults, healing, the final read, and the verdict.

    prepare      brokers up, a proxy before each, topics created
    warm up      until every worker has something to show: faults must meet work
    faults       the nemesis strikes, workers are started again, readers and observers look on
    heal         everything is up, awake and reachable again
    finish       the workload comes to its end, open transactions are decided, readers catch up
    judge        the final read, and the anomalies of the history

What does not come to its end after healing is a problem of its own: a transaction that hangs for ever loses nothing,
and yet nobody can read past it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from onceflow.client.admin import Admin
from onceflow.client.problems import ClientError
from onceflow.errors import ConfigError, OnceflowError
from onceflow.verify import nemesis
from onceflow.verify.anomalies import check
from onceflow.verify.brokers import Brokers
from onceflow.verify.history import History, Place, Recorder, Seen, load_operations
from onceflow.verify.nemesis import Nemesis
from onceflow.verify.network import Network, why_not
from onceflow.verify.observers import OffsetWatcher, everything_committed, open_partitions, places_of
from onceflow.verify.stage import HasJobFaults, JudgesItself, NotDrained, Pace, Stage, Workload
from onceflow.verify.verdict import Verdict
from onceflow.verify.workers import Workers
from onceflow.verify.workloads import workload_named

__all__ = ["Display", "RunSettings", "Silent", "counts", "run"]

READERS: Final = 2
LOOK_EVERY_S: Final = 0.02
TELL_EVERY_S: Final = 0.5
WARM_UP_S: Final = 90.0
FINISH_S: Final = 120.0
DECIDED_S: Final = 60.0
CATCH_UP_S: Final = 20.0
LATE_S: Final = 6.0
"""Longer than any request is late."""
RECORD: Final = b",{"
"""What every record in the history of a reader begins with."""


class Display(Protocol):
    """Who is told what goes on."""

    def stage(self, text: str) -> None: ...

    def fault(self, text: str) -> None: ...

    def progress(
        self,
        *,
        faults_done: int,
        faults_planned: int | None,
        elapsed_s: float,
        planned_s: float | None,
        counts: Mapping[str, int],
    ) -> None: ...


class Silent:
    def stage(self, text: str) -> None: ...

    def fault(self, text: str) -> None: ...

    def progress(self, **_: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    workload: str
    seed: int
    folder: Path
    """For everything that the run writes. Must not hold another run."""
    brokers: Brokers
    faults: int | None = 20
    minutes: float | None = None
    """The run ends with whichever of the two comes first."""
    client_config: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    kinds: frozenset[str] | None = None
    """Only these kinds of faults (`nemesis.KINDS`, or `nemesis.ON_REQUEST`)."""
    pace: Pace | None = None
    """None: as the workload bears it."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What this workload in particular is told."""
    replication_factor: int = -1
    """Of the topics; -1 leaves it to the brokers."""


def run(settings: RunSettings, display: Display | None = None) -> tuple[Verdict, History]:
    return _Run(settings, display or Silent()).run()


class _Run:
    def __init__(self, settings: RunSettings, display: Display) -> None:
        self._settings = settings
        self._display = display
        self._workload: Workload = workload_named(settings.workload)
        self._own = self._workload if isinstance(self._workload, JudgesItself) else None
        self._with_job = self._workload if isinstance(self._workload, HasJobFaults) else None
        self._zero = time.monotonic()
        self._problems: list[str] = []
        self._histories = settings.folder / "history"

    def run(self) -> tuple[Verdict, History]:
        with ExitStack() as stack:
            self._display.stage("starting")
            stage = self._prepare(stack)
            self._warm_up(stage)
            self._display.stage("faults")
            self._strike(stage)
            self._display.stage("finishing")
            final = self._finish(stage)
            self._display.stage("judging")
            verdict, history = self._judge(stage, final)
            if verdict.is_clean:
                self._remove_topics()
        return verdict, history

    # Prepare

    def _prepare(self, stack: ExitStack) -> Stage:
        settings = self._settings
        self._histories.mkdir(parents=True, exist_ok=True)
        self._brokers = stack.enter_context(settings.brokers)
        self._network = self._proxies(stack)
        bootstrap = self._network.bootstrap if self._network else self._brokers.bootstrap
        shared = {
            "bootstrap": bootstrap,
            "direct": self._brokers.bootstrap,
            "client_config": dict(settings.client_config),
            "seed": settings.seed,
            "zero": self._zero,
        }
        workers = stack.enter_context(Workers(settings.folder, shared))
        stage = Stage(
            bootstrap=bootstrap,
            direct=self._brokers.bootstrap,
            client_config=settings.client_config,
            folder=settings.folder,
            zero=self._zero,
            chance=random.Random(f"workload/{settings.seed}"),
            prefix=f"verify-{settings.seed}-{uuid.uuid4().hex[:6]}-",
            workers=workers,
            scale=settings.scale,
            options=settings.options,
            kinds=frozenset(settings.kinds or nemesis.KINDS),
        )
        self._direct = stage.settings()
        self._topics = dict(self._workload.topics(stage))
        self._places = places_of(self._topics)
        self._create_topics()
        self._workload.start(stage)
        self._add_readers(stage)
        observer = Recorder(self._histories / "observer.jsonl", "observer", self._zero)
        groups = self._workload.groups(stage)
        stack.enter_context(OffsetWatcher(self._direct, observer, self._places, groups))
        return stage

    def _add_readers(self, stage: Stage) -> None:
        program, topics = "onceflow.verify.programs.reader", self._topics
        if self._own is not None:
            program, topics = self._own.onlooker, dict(self._own.watched(stage))
        for number in range(1, READERS + 1):
            stage.workers.add("reader", f"reader-{number}", program, topics=topics)

    def _proxies(self, stack: ExitStack) -> Network | None:
        """None where frames cannot be read on their way, or nobody means to touch them."""
        config = self._settings.client_config
        if self._settings.faults == 0:
            return None
        if (reason := why_not(self._brokers.bootstrap, config)) is not None:
            self._display.stage(f"no faults of the network: {reason}")
            return None
        return stack.enter_context(Network(self._brokers.bootstrap, config, seed=self._settings.seed))

    def _create_topics(self) -> None:
        admin, factor = Admin(self._direct), self._settings.replication_factor
        configs = {} if self._own is None else self._own.topic_settings
        for topic, partitions in self._topics.items():
            admin.create(topic, partitions=partitions, replication_factor=factor, configs=configs)

    def _remove_topics(self) -> None:
        """The cluster may be somebody's. What was found is left where it is, for whoever wants to look into it."""
        admin = Admin(self._direct)
        for topic in (*self._topics, *self._topics_of_faults()):
            with contextlib.suppress(ClientError):
                admin.delete(topic)

    def _topics_of_faults(self) -> Mapping[str, int]:
        return {} if self._with_job is None else self._with_job.topics_of_faults()

    def _warm_up(self, stage: Stage) -> None:
        """Until there is something in every history: whatever does not even start must not look like a clean run."""
        deadline = time.monotonic() + WARM_UP_S
        while time.monotonic() < deadline:
            if all(_has_done_something(each.history_path) for each in stage.workers.of()):
                return
            if problems := stage.workers.problems():
                self._problems += problems
                return
            time.sleep(0.1)
        idle = [each.name for each in stage.workers.of() if not _has_done_something(each.history_path)]
        self._problems.append(f"{', '.join(idle)} did nothing within {WARM_UP_S:g} s, before any fault")

    # Faults

    def _strike(self, stage: Stage) -> None:
        settings, began = self._settings, time.monotonic()
        self._nemesis = self._new_nemesis(stage)
        self._tally = _Tally(self._histories)
        ends = None if settings.minutes is None else began + 60 * settings.minutes
        told = 0.0
        while not self._problems:
            more = (settings.faults is None or self._nemesis.struck < settings.faults) and (
                ends is None or time.monotonic() < ends
            )
            self._nemesis.step(more=more and (self._own is None or self._own.is_at_work()))
            if not more and self._nemesis.is_at_rest:
                break
            if time.monotonic() - told > TELL_EVERY_S:
                told = time.monotonic()
                self._tell(began)
                self._problems += [*stage.workers.problems(), *self._brokers.problems()]
            time.sleep(LOOK_EVERY_S)
        self._tell(began)

    def _new_nemesis(self, stage: Stage) -> Nemesis:
        kinds = set(stage.kinds)
        with_job = self._with_job
        if with_job is None:
            kinds -= nemesis.JOB.keys()
        if self._network is None:
            kinds -= nemesis.NETWORK.keys()
        disk = self._brokers.disk
        if disk is None:
            kinds -= nemesis.DISK.keys()
        roles = [*self._workload.strikes, "reader", *(("broker",) * 2 if "kill" in self._brokers.faults else ())]
        pace = self._settings.pace or self._workload.pace
        plan = nemesis.plan if self._own is None else self._own.plan
        planned = plan(self._settings.seed, roles, kinds, pace)
        if (first := next(planned, None)) is None:
            raise ConfigError("none of the faults that were asked for can be made here")
        return Nemesis(
            recorder=Recorder(self._histories / "nemesis.jsonl", "nemesis", self._zero),
            planned=itertools.chain([first], planned),
            workers=stage.workers,
            brokers=self._brokers.nodes,
            others=self._workload.targets,
            network=self._network,
            disk=disk,
            tell=self._display.fault,
            taken_over_s=pace.taken_over_s,
            job=None if with_job is None else lambda kind: with_job.job_fault(stage, kind),
        )

    def _tell(self, began: float) -> None:
        minutes = self._settings.minutes
        self._display.progress(
            faults_done=self._nemesis.struck,
            faults_planned=self._settings.faults,
            elapsed_s=time.monotonic() - began,
            planned_s=None if minutes is None else 60 * minutes,
            counts=self._tally.counts() if self._own is None else self._own.progress(),
        )

    # Finish

    def _finish(self, stage: Stage) -> list[Seen]:
        final: list[Seen] = []
        try:
            self._nemesis.heal()
            if self._network is not None:
                self._network.heal()
            self._brokers.heal()
            self._await_late_requests()
            self._workload.finish(stage, FINISH_S)
            self._await_decisions()
            if self._own is None:
                places = [*self._places, *places_of(self._topics_of_faults())]
                final = everything_committed(self._direct, places, FINISH_S)
                watched = frozenset(self._places)
                self._await_readers(stage, {seen.place: seen.offset + 1 for seen in final if seen.place in watched})
            else:
                self._await_readers(stage, self._own.read(stage, FINISH_S))
        except (NotDrained, OnceflowError, TimeoutError) as problem:
            self._problems.append(str(problem))
        self._problems += [*stage.workers.problems(), *self._brokers.problems()]
        stage.workers.finish("reader")
        return final

    def _await_late_requests(self) -> None:
        """They may still write, and who copies must not have gone by then. One to a broker that died is never
        delivered."""
        deadline = time.monotonic() + LATE_S
        network = self._network
        while network is not None and network.count("delivered_late") < network.count("requests_late"):
            if time.monotonic() > deadline:
                return
            time.sleep(LOOK_EVERY_S)

    def _await_decisions(self) -> None:
        """Open transactions of those who died are aborted when their time is over."""
        deadline = time.monotonic() + DECIDED_S
        while left := open_partitions(self._direct, self._places):
            if time.monotonic() > deadline:
                (topic, partition), (stable, end) = next(iter(left.items()))
                raise NotDrained(
                    f"a transaction stays open: after {DECIDED_S:g} s readers of {topic}-{partition} still cannot get "
                    f"past offset {stable} of {end}"
                )
            time.sleep(0.2)

    def _await_readers(self, stage: Stage, wanted: Mapping[Place, int]) -> None:
        """Nobody has to get to the end; but who does has read what the final read is compared with."""
        deadline = time.monotonic() + CATCH_UP_S
        paths = [each.history_path for each in stage.workers.of("reader")]
        while time.monotonic() < deadline and not all(_has_read(path, wanted) for path in paths):
            time.sleep(0.2)

    # Judge

    def _judge(self, stage: Stage, final: list[Seen]) -> tuple[Verdict, History]:
        history = History.load(
            sorted(self._histories.glob("*.jsonl")),
            final,
            derivations=self._workload.derivations(stage),
            is_drained=not self._problems,
        )
        own = self._own.judge(stage, history) if self._own is not None and history.is_drained else ()
        reads = [each.told["problem"] for each in history.of("read") if "problem" in each.told]
        verdict = Verdict(
            workload=self._settings.workload,
            seed=self._settings.seed,
            brokers=self._brokers.description,
            seconds=time.monotonic() - self._zero,
            anomalies=[*own, *check(history)],
            problems=list(dict.fromkeys([*self._problems, *reads])),
            faults=[each for each in history.of("fault") if each.is_ok],
            counts=counts(history),
        )
        return verdict, history


class _Tally:
    """How far it has come, for people who wait: counted from what the histories have grown by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._commits: set[str] = set()
        self._counts: Counter[str] = Counter()

    def counts(self) -> Mapping[str, int]:
        """Commits by their outcome, and records read."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            if path.name.startswith("reader-"):
                self._counts["records read"] += whole.count(RECORD)
            else:
                self._count_commits(whole)
        return dict(self._counts)

    def _count_commits(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if b'"f":"commit"' in line:
                self._commits.add(json.loads(line)["op"])
            elif b'"end":' in line and (event := json.loads(line))["op"] in self._commits:
                self._commits.discard(event["op"])
                self._counts[f"commit {event['end']}"] += 1


def counts(history: History) -> dict[str, int]:
    found = Counter(f"{each.f} {each.outcome}" for each in history.operations if each.f != "fault")
    found["records committed"] = len(history.final)
    found["records read"] = sum(len(each.told.get("records", ())) for each in history.reads)
    return dict(sorted(found.items()))


def _has_done_something(path: Path) -> bool:
    return path.exists() and b'"end":"ok"' in path.read_bytes()


def _has_read(path: Path, wanted: Mapping[tuple[str, int], int]) -> bool:
    reached: dict[tuple[str, int], int] = {}
    for read in load_operations([path]):
        for topic, partition, _, to in read.told.get("moved", ()):
            reached[topic, partition] = to
    return all(reached.get(place, 0) >= offset for place, offset in wanted.items())

"""`orders`, `viewing`, `pricing`: a reference pipeline on Spark under faults, compared with its oracle.

    feeder --> inputs --> driver and executors --> outputs, state

What must come out is known to the last record: the sample is made from the seed, Spark has written down what each
micro-batch was given, and the oracle says what that leads to. So nothing of a record tells where it comes from, and
the verdict is a comparison (`onceflow.pipelines.judging`); it is kept in `comparison.json`. With the option `sql` what
the pipeline lands in a database is compared as well.

The next fault waits until the pipeline has committed something since the last one: every fault meets a pipeline at
work. The first faults are one of each kind that a pipeline has to survive; then comes what the seed brings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from onceflow.errors import ConfigError
from onceflow.pipelines.pipeline import Pipeline
from onceflow.pipelines.reading import NotRead, everything_in, raw_in, written_in
from onceflow.verify import nemesis
from onceflow.verify.history import Derivation, History, Place
from onceflow.verify.nemesis import Planned
from onceflow.verify.observers import places_of
from onceflow.verify.stage import NotDrained, Pace, Stage, Target
from onceflow.verify.verdict import Anomaly
from onceflow.verify.workers import Worker
from onceflow.verify.workloads.executors import executors_of
from onceflow.verify.workloads.input import await_group
from onceflow.verify.workloads.reference_runs import ANY, FinalRead, Lookout, Progress, ends_of, judgement
from onceflow.verify.workloads.reference_tables import LandedTables, Query
from onceflow.verify.workloads.references import load_reference
from onceflow.verify.workloads.spark import DRIVER_STOP_S, MASTER, require_spark

__all__ = ["FIRST_ROUND", "Orders", "Pricing", "ReferenceWorkload", "Viewing"]

RECORDS: Final = 40_000
ONE_PROCESS: Final = "local[2]"
"""Where no executor is struck: one JVM in place of three, which take long to start."""
EXECUTORS_FROM: Final = 10
"""So many faults are worth executors of their own, unless it is said otherwise."""
PER_BATCH: Final = 20_000
PER_BATCH_STRUCK: Final = (200, 5000)
"""At least and at most, under faults: what piles up behind one of them is a micro-batch, or a few."""
FIRST_COMMIT_S: Final = 150.0
FEED_S: Final = 120.0
IDLE_S: Final = 120.0
"""A pipeline that does nothing for so long is not waited for; that it has not come to its end is a problem later."""
LOOK_EVERY_S: Final = 0.2
FIRST_ROUND: Final = (
    ("kill", "executor", ANY),
    ("lost answer", "network", "EndTxn"),
    ("kill", "driver", ANY),
    ("kill", "broker", ANY),
    ("zombie", "driver", ANY),
    ("lost answer", "network", "Produce"),
    ("lost answer", "network", "TxnOffsetCommit"),
)
"""Kind, role, and the request that a fault of the network waits for."""
ROUNDS_MAX: Final = 3


class ReferenceWorkload:
    name: str
    reference: str
    """The name of the reference pipeline, or PACKAGE.MODULE:NAME of one."""
    strikes: Sequence[str] = ("driver", "executor", "executor")
    pace = Pace(gap_s=(0.5, 2.0), pause_s=(0.5, 4.0), taken_over_s=90.0)
    onlooker = "onceflow.verify.programs.onlooker"
    topic_settings: Mapping[str, str] = {"retention.ms": "-1"}
    """Samples are of a fixed time, which is long past."""

    def __init__(self) -> None:
        self._reference = load_reference(self.reference)
        self._driver: Worker | None = None
        self._progress: Progress | None = None
        self._lookout: Lookout | None = None
        self._read: FinalRead | None = None
        self._tables: LandedTables | None = None
        self._query: Query | None = None

    @property
    def pipeline(self) -> Pipeline:
        return self._reference.pipeline

    # What there is

    def topics(self, stage: Stage) -> Mapping[str, int]:
        require_spark()
        return {stage.named(name): count for name, count in self.pipeline.topics().items()}

    def watched(self, stage: Stage) -> Mapping[str, int]:
        return {stage.named(name): count for name, count in self.pipeline.written().items()}

    def derivations(self, stage: Stage) -> Sequence[Derivation]:
        return ()

    def groups(self, stage: Stage) -> Sequence[str]:
        return (stage.named(self.pipeline.name),)

    # The beginning

    def start(self, stage: Stage) -> None:
        options = _Options(stage.options)
        if options.master == ONE_PROCESS:
            self.strikes = tuple(each for each in self.strikes if each != "executor")
        histories = stage.folder / "history"
        self._progress = Progress(histories)
        if options.has_database:
            self._tables = LandedTables(stage, self.pipeline)
        stage.workers.add(
            "feeder",
            "feeder",
            "onceflow.verify.programs.feeder",
            reference=self.reference,
            prefix=stage.prefix,
            records=options.records,
            rate=options.rate,
            faults=options.faults,
            released=str(stage.folder / "released"),
            nemesis=str(histories / "nemesis.jsonl"),
        )
        self._driver = self._add_driver(stage, options)
        self._lookout = Lookout(stage, places_of(self.watched(stage)))
        self._query = None if self._tables is None else Query(stage, self._tables)
        self._await_first_commit(stage)

    def _add_driver(self, stage: Stage, options: _Options) -> Worker:
        return stage.workers.add(
            "driver",
            "driver",
            "onceflow.verify.programs.pipeline_driver",
            reference=self.reference,
            prefix=stage.prefix,
            checkpoint=str(self._checkpoint(stage)),
            folder=str(stage.folder / "spark"),
            state=str(stage.folder / "state.jsonl"),
            wanted=str(stage.folder / "wanted"),
            master=options.master,
            per_batch=options.per_batch,
            trigger=options.trigger,
            has_database=options.has_database,
        )

    def _checkpoint(self, stage: Stage) -> Path:
        return Path(stage.options.get("checkpoint") or stage.folder / "checkpoint")

    def _await_first_commit(self, stage: Stage) -> None:
        assert self._progress is not None
        deadline = time.monotonic() + FIRST_COMMIT_S
        while time.monotonic() < deadline and not stage.workers.problems():
            if self._progress.look().committed_at is not None:
                return
            time.sleep(LOOK_EVERY_S)

    # Faults

    def targets(self) -> Sequence[Target]:
        return [] if self._driver is None or self._driver.pid is None else executors_of(self._driver)

    def plan(self, seed: int, roles: Collection[str], kinds: Collection[str], pace: Pace) -> Iterator[Planned]:
        """The first round comes again, as far as it found nothing to strike: a request that did not come by."""
        first = [each for each in FIRST_ROUND if each[0] in kinds and each[1] in {*roles, "network"}]
        # Times and targets come from the seed as well: those of a plan that is not used otherwise.
        drawn = nemesis.plan(seed + 1, roles, kinds, pace)
        for fault in first * ROUNDS_MAX:
            if self._progress is None or fault not in self._progress.struck:
                yield _like(next(drawn), *fault, pace)
        yield from nemesis.plan(seed, roles, kinds, pace)

    def is_at_work(self) -> bool:
        assert self._progress is not None
        now = self._progress.look()
        return now.has_committed_since_the_last_fault or now.idle_s > IDLE_S

    def progress(self) -> Mapping[str, int]:
        assert self._progress is not None
        now = self._progress.look()
        return {"records in": now.fed, "records out": now.rows, "batches": now.batches}

    # The end

    def finish(self, stage: Stage, timeout_s: float) -> None:
        try:
            self._drain(stage, timeout_s)
        finally:
            for each in (self._lookout, self._query):
                if each is not None:
                    each.end()

    def _drain(self, stage: Stage, timeout_s: float) -> None:
        (stage.folder / "released").touch()
        self._await_feeder(stage)
        for each in self.pipeline.inputs:
            app = stage.named(self.pipeline.name)
            await_group(stage, app, stage.named(each.topic), each.partitions, timeout_s)
        assert self._driver is not None
        (stage.folder / "wanted").write_text(str(self._driver.life))
        if stage.workers.finish("driver", "feeder", timeout_s=DRIVER_STOP_S):
            raise NotDrained(f"the driver did not end within {DRIVER_STOP_S:g} s of being asked to")

    def _await_feeder(self, stage: Stage) -> None:
        assert self._progress is not None
        deadline = time.monotonic() + FEED_S + _Options(stage.options).seconds
        while (now := self._progress.look()).fed < _Options(stage.options).records:
            if time.monotonic() > deadline:
                raise NotDrained(f"of the input only {now.fed:,} records were written in time")
            time.sleep(LOOK_EVERY_S)

    def read(self, stage: Stage, timeout_s: float) -> Mapping[Place, int]:
        inputs = {each.topic for each in self.pipeline.inputs}
        ends = ends_of(stage, places_of(self.topics(stage)))
        raws, written = [], []
        try:
            for message in everything_in(stage.settings(), ends, timeout_s):
                if message.topic().removeprefix(stage.prefix) in inputs:
                    raws.append(raw_in(message, stage.prefix))
                else:
                    written.append(written_in(message, stage.prefix))
        except NotRead as problem:
            raise NotDrained(str(problem)) from None
        self._read = FinalRead(raws, written, None if self._tables is None else self._tables.read())
        return {(stage.named(each.topic), each.partition): each.offset + 1 for each in written}

    def judge(self, stage: Stage, history: History) -> Sequence[Anomaly]:
        if self._read is None:
            return ()
        found = judgement(self._reference, stage, self._checkpoint(stage), self._read, history)
        (stage.folder / "comparison.json").write_text(json.dumps(found.to_json(), indent=2) + "\n")
        if self._tables is not None and not found.differences and "keep_tables" not in stage.options:
            self._tables.remove()
        return [Anomaly(name=kind, sentence=sentence) for kind, sentence in found.differences]


def _like(drawn: Planned, kind: str, role: str, api: str, pace: Pace) -> Planned:
    lasting_s = min(drawn.lasting_s, pace.down_s[1]) if role == "broker" else drawn.lasting_s
    return replace(drawn, kind=kind, role=role, api=api, lasting_s=lasting_s)


class _Options:
    """`Stage.options`, as numbers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        try:
            self.records = int(given.get("records", RECORDS))
            self.faults = None if "faults" not in given else int(given["faults"])
            self.rate = float(given["rate"]) if given.get("rate") else None
            self.per_batch = int(given.get("per_batch") or self._per_batch())
        except ValueError as problem:
            raise ConfigError(f"an option that has to be a number is none: {problem}") from None
        self.trigger = given.get("trigger")
        self.has_database = "sql" in given
        has_executors = self.faults is None or self.faults >= EXECUTORS_FROM
        self.master = given.get("master") or (MASTER if has_executors else ONE_PROCESS)

    def _per_batch(self) -> int:
        if self.faults == 0:
            return PER_BATCH
        least, most = PER_BATCH_STRUCK
        return max(least, min(most, self.records // (1 + (self.faults or 20))))

    @property
    def seconds(self) -> float:
        """How long the input takes, at its rate."""
        return 0.0 if self.rate is None else self.records / self.rate


class Orders(ReferenceWorkload):
    name = reference = "orders"


class Viewing(ReferenceWorkload):
    name = reference = "viewing"


class Pricing(ReferenceWorkload):
    name = reference = "pricing"

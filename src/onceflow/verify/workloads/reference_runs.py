"""What is known about a run of a reference pipeline: while it goes on, from the histories, and when it is over."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceflow.client.cluster import Cluster
from onceflow.client.offsets import LATEST, list_offsets
from onceflow.client.problems import ClientError
from onceflow.pipelines.judging import (
    Comparison,
    Difference,
    Tally,
    Written,
    check_log,
    compare,
    compare_state,
    cut,
    offset_log,
    without_prefix,
)
from onceflow.pipelines.judging_tables import Row
from onceflow.pipelines.reference import Page, Raw, Reference
from onceflow.pipelines.visibility import Shown, Visibility
from onceflow.verify.history import History, Operation, Outcome, Place, Recorder
from onceflow.verify.stage import Stage
from onceflow.verify.workloads.reference_tables import TableFindings

__all__ = ["ANY", "FinalRead", "Findings", "Lookout", "Progress", "ends_of", "judgement"]

LOOK_EVERY_S: Final = 0.05
BRIEF_S: Final = 0.25
"""A look that took longer was not one moment: micro-batches may have been committed while it was answered."""
MANY: Final = 5
"""Of so many micro-batches a lookout must have seen some become visible."""
ASK_S: Final = 1.0
LOOKOUT: Final = "lookout"
ANY: Final = "Produce"
"""The request of a fault that waits for none."""


def ends_of(stage: Stage, places: Collection[Place]) -> dict[Place, int]:
    with Cluster(stage.settings()) as cluster:
        return list_offsets(cluster, dict.fromkeys(places, LATEST), read_committed=True)


# --- while it goes on


class Lookout:
    """Asks up to where all outputs can be read, again and again, in one request: what a reader could see of all of
    them at one moment."""

    def __init__(self, stage: Stage, places: Collection[Place]) -> None:
        self._stage = stage
        self._places = places
        path = stage.folder / "history" / f"{LOOKOUT}.jsonl"
        self._recorder = Recorder(path, LOOKOUT, stage.zero)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=LOOKOUT, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with Cluster(self._stage.settings()) as cluster:
            while not self._over.wait(LOOK_EVERY_S):
                self._look(cluster)

    def _look(self, cluster: Cluster) -> None:
        began = self._recorder.now()
        try:
            found = list_offsets(cluster, dict.fromkeys(self._places, LATEST), read_committed=True, patience_s=0)
        except ClientError:
            return  # a broker is away: nobody sees anything
        op = self._recorder.begin("ends", since=began, isolation="read_committed")
        self._recorder.end(op, Outcome.OK, offsets=[[*place, offset] for place, offset in found.items()])


@dataclass(frozen=True)
class Now:
    fed: int = 0
    rows: int = 0
    """Written by micro-batches."""
    batches: int = 0
    committed_at: float | None = None
    struck_at: float = 0.0
    """When a fault last began or ended."""
    idle_s: float = 0.0

    @property
    def has_committed_since_the_last_fault(self) -> bool:
        return self.committed_at is not None and self.committed_at > self.struck_at


class Progress:
    """Counted from what the histories have grown by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._begun: dict[str, str] = {}
        self._now = Now()
        self._faults: dict[str, tuple[str, str, str]] = {}
        self.struck: set[tuple[str, str, str]] = set()
        """Kind, role and request of the faults that hit something."""
        self._changed = time.monotonic()

    def look(self) -> Now:
        before = self._now
        for path in (*self._folder.glob("driver.*.jsonl"), *self._folder.glob("feeder.*.jsonl"), *self._nemesis()):
            for event in self._new(path):
                self._take_in(path, event)
        if (before.batches, before.struck_at) != (self._now.batches, self._now.struck_at):
            self._changed = time.monotonic()
        return replace(self._now, idle_s=time.monotonic() - self._changed)

    def _nemesis(self) -> list[Path]:
        path = self._folder / "nemesis.jsonl"
        return [path] if path.exists() else []

    def _new(self, path: Path) -> Iterator[dict[str, Any]]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # the disk was full in the middle of it

    def _take_in(self, path: Path, event: Mapping[str, Any]) -> None:
        if path.name == "nemesis.jsonl":
            self._take_in_fault(event)
        elif "f" in event:
            self._begun[event["op"]] = event["f"]
        elif event["end"] == Outcome.OK:
            self._take_in_end(self._begun.pop(event["op"], None), event)

    def _take_in_fault(self, event: Mapping[str, Any]) -> None:
        self._now = replace(self._now, struck_at=max(self._now.struck_at, event["at"]))
        if "f" in event:
            self._faults[event["op"]] = (event["kind"], _role(event["target"]), event.get("api", ANY))
        elif event["end"] == Outcome.OK and event["op"] in self._faults:
            self.struck.add(self._faults[event["op"]])

    def _take_in_end(self, kind: str | None, event: Mapping[str, Any]) -> None:
        if kind == "feed":
            self._now = replace(self._now, fed=event["fed"])
        elif kind == "commit":
            committed = max(self._now.committed_at or 0.0, event["at"])
            self._now = replace(self._now, committed_at=committed, batches=self._now.batches + 1)
        elif kind == "batch":
            self._now = replace(self._now, rows=self._now.rows + event["rows"])


def _role(target: str) -> str:
    """Of "driver.2", "driver.2/executor-1", "broker-1", "network"."""
    return target.rpartition("/")[2].partition("-")[0].partition(".")[0]


# --- when it is over


class FinalRead(NamedTuple):
    """What the final read has found."""

    raws: Sequence[Raw]
    written: Sequence[Written]
    tables: Sequence[Counter[Row]] | None = None
    """None: there is no database."""


@dataclass
class Findings:
    records: int
    """Of input."""
    batches: int
    comparison: Comparison
    state: Tally | None
    """None if it was not read."""
    looks_equal: int = 0
    looks_between: int = 0
    reads: int = 0
    tables: TableFindings | None = None
    differences: list[Difference] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "exact": not self.differences,
            "records": self.records,
            "batches": self.batches,
            "topics": {topic: asdict(tally) for topic, tally in self.comparison.topics.items()},
            "state": None if self.state is None else asdict(self.state),
            "looks": {"equal": self.looks_equal, "between": self.looks_between},
            "reads": self.reads,
            **({} if self.tables is None else self.tables.to_json()),
            "differences": [each._asdict() for each in self.differences],
        }


def judgement(reference: Reference, stage: Stage, checkpoint: Path, found: FinalRead, history: History) -> Findings:
    log = without_prefix(offset_log(checkpoint), stage.prefix)
    ends: dict[Place, int] = {}
    for raw in found.raws:
        ends[raw.topic, raw.partition] = max(ends.get((raw.topic, raw.partition), 0), raw.offset + 1)
    oracle = reference.oracle()
    tables = None if found.tables is None else TableFindings(reference.pipeline)
    hears = [] if tables is None else [tables.hear]
    comparison = compare(oracle, cut(log, found.raws), found.written, reference.pipeline.written(), *hears)
    findings = Findings(records=len(found.raws), batches=len(log), comparison=comparison, state=None, tables=tables)
    findings.differences += [Difference("batches", f"{each}.") for each in check_log(log, ends)]
    _judge_state(reference, oracle.state(), stage.folder / "state.jsonl", findings, last=max(log, default=None))
    _judge_looks(findings, found.written, history, stage.prefix)
    _judge_reads(findings, found.written, history, stage.prefix)
    findings.differences += comparison.differences
    if tables is not None and found.tables is not None:
        tables.judge(found.tables, history)
        findings.differences += tables.differences
    return findings


def _judge_state(
    reference: Reference, expected: Mapping[str, Any], path: Path, findings: Findings, last: int | None
) -> None:
    if not path.exists():
        findings.differences.append(Difference("state", "the state could not be read: see the log of the driver."))
        return
    first, *pages = [json.loads(line) for line in path.read_text().splitlines()]
    if first["batch"] != last:
        sentence = f"the state is that of micro-batch {first['batch']}, and the last one was {last}."
        findings.differences.append(Difference("state", sentence))
    there = reference.state(Page(*each) for each in pages)
    findings.state = compare_state(expected, there, findings.comparison.differences)


def _judge_looks(findings: Findings, written: Sequence[Written], history: History, prefix: str) -> None:
    visibility = Visibility(written)
    for look in history.of("ends"):
        if look.process == LOOKOUT and look.is_ok and look.ended - look.began <= BRIEF_S:
            ends = {(topic.removeprefix(prefix), number): end for topic, number, end in look.told["offsets"]}
            visibility.look(ends, f"at {look.began:.3f} s")
    findings.looks_equal, findings.looks_between = visibility.equal, visibility.between
    batches = len({each.batch for each in written})
    if batches >= MANY and len(visibility.newest) < 2:
        sentence = f"{batches} micro-batches became visible, and no two looks at the outputs saw different ones."
        findings.differences.append(Difference("not looked at", sentence))
    findings.differences += visibility.differences


def _judge_reads(findings: Findings, written: Sequence[Written], history: History, prefix: str) -> None:
    judge = Shown(written)
    for read in history.reads:
        shown = _shown(read, prefix)
        for topic, partition, start, end in read.told.get("moved", ()):
            place = (topic.removeprefix(prefix), partition)
            judge.check(read.process, place, start, end, shown.get(place, {}))
    findings.reads = judge.reads
    findings.differences += judge.differences


def _shown(read: Operation, prefix: str) -> dict[Place, dict[int | None, tuple[int, int]]]:
    found: dict[Place, dict[int | None, tuple[int, int]]] = {}
    for topic, partition, batch, records, checksum in read.told.get("shown", ()):
        found.setdefault((topic.removeprefix(prefix), partition), {})[batch] = (records, checksum)
    return found

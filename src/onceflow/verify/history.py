"""What happened in a run: every operation with its beginning and its outcome, and everything that was read.

A run has many processes, and some are killed in the middle of a sentence. Each writes to a file of its own, one line of
JSON per event: one before it asks for something, one when it knows what came of it. Both go to the kernel at once
(`os.write`), so `kill -9` takes back neither. All times are seconds since the run began, from the machine's one
monotonic clock, so those of different processes can be compared.

    {"op": "producer-1.2:7", "at": 3.25, "f": "commit", "transaction": "producer-1.2/3"}
    {"op": "producer-1.2:7", "at": 3.31, "end": "ok"}

An operation that has a beginning and no end is *unknown*: it may have happened, may not have, or may still happen.
"failed" is said only of what certainly did not happen. Whoever is not certain says "unknown".

The operations (`f`), with what the beginning and the end carry:

    take     transactional_id             a process becomes the owner of a transactional id (init_transactions)
    write    transaction, records         [[topic, partition or null, id], ...] handed to the producer
               end: written               [[topic, partition, offset, id], ...] as acknowledged; may be missing; of an
                                          unknown write, those that were acknowledged all the same
    commit   transaction, group, offsets  offsets: [[topic, partition, offset], ...] that are part of it; may be empty
               count                      how many records the transaction has, states too, where no writes are listed
    abort    transaction
    read     reader, isolation            one poll of one reader
               end: records               [[topic, partition, offset, RECORD], ...], RECORD as below
               end: moved                 [[topic, partition, from, to], ...]: what there is in [from, to) was shown
    offsets  group                        somebody asks what a group has committed
               end: offsets               [[topic, partition, offset], ...]
    ends     isolation                    somebody asks for the ends of partitions, or their last stable offsets
               end: offsets               the same
    fault    kind, target, detail         what the nemesis did; its end is when it was over

`transaction` is the name of one attempt at one transaction, unique in the run, or null outside of transactions. A
transaction belongs to the process that began it: its name is PROCESS/NUMBER. `PROCESS` is one life of a worker
("copier-2.3": the third life of copier-2), so two owners of one transactional id have different names.

A record says itself where it comes from. Its value is JSON (`Record`):

    {"id": "...", "txn": "...", "key": "..."}            an output; `id` is what must be there once in its topic
    {"state": "...", "n": 17, "txn": "..."}               the state of a key after that transaction; not
                                                         listed in `write` operations

What happens to a record whose id an earlier, aborted attempt has written too: nothing, it is the same output, and only
`txn` tells the attempts apart.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = [
    "Derivation",
    "History",
    "Operation",
    "Outcome",
    "Place",
    "Record",
    "Recorder",
    "Seen",
    "Sightings",
    "Transaction",
    "load_operations",
    "process_of",
    "seen_by",
]

Place = tuple[str, int]
"""Topic and partition."""
NEVER: Final = float("inf")


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    """It certainly did not happen, and will not."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that a process asked for."""

    id: str
    """PROCESS:NUMBER."""
    f: str
    began: float
    ended: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    asked: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    """What was answered; empty unless it ended."""

    @property
    def process(self) -> str:
        return self.id.rpartition(":")[0]

    @property
    def number(self) -> int:
        number = self.id.rpartition(":")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK


def _in_order(operation: Operation) -> tuple[float, str, int]:
    """As they began. A clock that stands still, as a simulated one does, leaves a process its own order."""
    return operation.began, operation.process, operation.number


class Record(NamedTuple):
    """What a record of a workload says in its value."""

    id: str | None = None
    transaction: str | None = None
    key: str | None = None
    state: str | None = None
    n: int | None = None

    def to_json(self) -> dict[str, Any]:
        given = {"id": self.id, "txn": self.transaction, "key": self.key, "state": self.state, "n": self.n}
        return {name: value for name, value in given.items() if value is not None}

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_json(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Record:
        return cls(found.get("id"), found.get("txn"), found.get("key"), found.get("state"), found.get("n"))

    @classmethod
    def from_bytes(cls, value: bytes | None) -> Record:
        """Of a value that is not ours, its text becomes the id: a record that nobody wrote."""
        try:
            found = json.loads(value or b"")
        except ValueError:
            found = None
        if isinstance(found, dict):
            return cls.from_json(found)
        return cls(id=repr(value))


class Seen(NamedTuple):
    """A record at its place."""

    topic: str
    partition: int
    offset: int
    record: Record

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class Transaction(NamedTuple):
    """One attempt at one transaction, with what was asked about it."""

    name: str
    writes: Sequence[Operation]
    commits: Sequence[Operation]
    aborts: Sequence[Operation]

    @property
    def process(self) -> str:
        return process_of(self.name)

    @property
    def commit_outcome(self) -> Outcome | None:
        """None if nobody asked for it. It may have been asked for again after it was not known what came of it."""
        outcomes = {each.outcome for each in self.commits}
        return next((each for each in (Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED) if each in outcomes), None)


def process_of(transaction: str) -> str:
    """Who began it."""
    return transaction.rpartition("/")[0]


class Sightings:
    """Where the records of one transaction were to be seen under read_committed."""

    __slots__ = ("final", "first", "last")

    def __init__(self) -> None:
        self.final: list[Seen] = []
        self.first: tuple[Operation, Seen] | None = None
        """The poll that ended first of those that showed any of them, and a record that it showed."""
        self.last: tuple[Operation, Seen] | None = None

    @property
    def example(self) -> Seen:
        if self.final:
            return self.final[0]
        assert self.first is not None
        return self.first[1]

    def add(self, read: Operation, seen: Seen) -> None:
        if self.first is None or read.ended < self.first[0].ended:
            self.first = read, seen
        if self.last is None or read.ended > self.last[0].ended:
            self.last = read, seen


class Derivation(NamedTuple):
    """Every record of `source` is to be found once in `target`, under the same id."""

    source: str
    target: str
    is_ordered: bool = True
    """Records of one source partition keep their order in each target partition."""


class Recorder:
    """Writes what one process does. `zero` is the run's beginning on the monotonic clock."""

    def __init__(self, path: Path, process: str, zero: float) -> None:
        self.process = process
        self._zero = zero
        self._numbers = itertools.count(1)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def begin(self, f: str, *, since: float | None = None, **asked: Any) -> str:
        """Before it is asked for, or `since` then. Returns the operation's id, for `end`."""
        op = f"{self.process}:{next(self._numbers)}"
        self._write({"op": op, "at": self.now() if since is None else since, "f": f, **asked})
        return op

    def end(self, op: str, outcome: Outcome, **told: Any) -> None:
        self._write({"op": op, "at": self.now(), "end": outcome, **told})

    def now(self) -> float:
        return round(time.monotonic() - self._zero, 6)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, event: dict[str, Any]) -> None:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        while line:  # a signal or a disk that is nearly full may cut it in two
            line = line[os.write(self._file, line) :]


def _events(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        for line in path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # the process was killed in the middle of the line, or the disk was full


def _operations(events: Iterable[Mapping[str, Any]]) -> list[Operation]:
    begun: dict[str, Mapping[str, Any]] = {}
    ended: dict[str, Mapping[str, Any]] = {}
    for event in events:
        (ended if "end" in event else begun)[event["op"]] = event
    operations = [_operation(begin, ended.get(op)) for op, begin in begun.items()]
    return sorted(operations, key=_in_order)


def _operation(begin: Mapping[str, Any], end: Mapping[str, Any] | None) -> Operation:
    return Operation(
        id=begin["op"],
        f=begin["f"],
        began=begin["at"],
        ended=NEVER if end is None else end["at"],
        outcome=Outcome.UNKNOWN if end is None else Outcome(end["end"]),
        asked={name: value for name, value in begin.items() if name not in ("op", "at", "f")},
        told={} if end is None else {name: value for name, value in end.items() if name not in ("op", "at", "end")},
    )


def load_operations(paths: Iterable[Path]) -> list[Operation]:
    """What histories on disk tell, in the order in which the operations began."""
    return _operations(_events(paths))


class History:
    """A run that is over, ready to be judged.

    `final` is what a read_committed reader finds after all faults have been healed and everybody has finished;
    `is_drained` says that this was waited for successfully, so that what is missing in `final` is lost.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        final: Iterable[Seen] = (),
        *,
        derivations: Iterable[Derivation] = (),
        is_drained: bool = True,
    ) -> None:
        self.operations = sorted(operations, key=_in_order)
        self.final = sorted(final, key=lambda each: (each.topic, each.partition, each.offset))
        self.derivations = tuple(derivations)
        self.is_drained = is_drained

    @classmethod
    def load(cls, paths: Iterable[Path], final: Iterable[Seen], **rest: Any) -> History:
        return cls(load_operations(paths), final, **rest)

    def of(self, *kinds: str) -> list[Operation]:
        """In the order in which they began."""
        return [each for each in self.operations if each.f in kinds]

    @cached_property
    def transactions(self) -> dict[str, Transaction]:
        parts: dict[str, dict[str, list[Operation]]] = {}
        for operation in self.of("write", "commit", "abort"):
            if (name := operation.asked.get("transaction")) is not None:
                parts.setdefault(name, {"write": [], "commit": [], "abort": []})[operation.f].append(operation)
        return {name: Transaction(name, each["write"], each["commit"], each["abort"]) for name, each in parts.items()}

    @cached_property
    def reads(self) -> list[Operation]:
        """Polls that were answered."""
        return [each for each in self.of("read") if each.is_ok]

    @cached_property
    def committed_reads(self) -> list[tuple[Operation, list[Seen]]]:
        """Polls that were answered under read_committed, with what they showed."""
        return [(each, list(seen_by(each))) for each in self.reads if each.asked.get("isolation") == "read_committed"]

    @cached_property
    def sightings(self) -> dict[str, Sightings]:
        """By transaction; those that nobody saw anything of are missing."""
        found: dict[str, Sightings] = {}
        for seen in self.final:
            if (name := seen.record.transaction) is not None:
                found.setdefault(name, Sightings()).final.append(seen)
        for read, shown in self.committed_reads:
            for seen in shown:
                if (name := seen.record.transaction) is not None:
                    found.setdefault(name, Sightings()).add(read, seen)
        return found

    @cached_property
    def final_by_id(self) -> dict[str, dict[str, list[Seen]]]:
        """Topic, id, and the places where it is: one, if all is well."""
        found: dict[str, dict[str, list[Seen]]] = {}
        for seen in self.final:
            if (id := seen.record.id) is not None:
                found.setdefault(seen.topic, {}).setdefault(id, []).append(seen)
        return found

    @cached_property
    def final_at(self) -> dict[tuple[str, int, int], Record]:
        return {(seen.topic, seen.partition, seen.offset): seen.record for seen in self.final}


def seen_by(read: Operation) -> Iterator[Seen]:
    for topic, partition, offset, record in read.told.get("records", ()):
        yield Seen(topic, partition, offset, Record.from_json(record))

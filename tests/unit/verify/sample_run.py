"""A run that never was, for reports to show: several lives, a zombie, readers, faults, unknown outcomes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from onceflow.verify.history import NEVER, History, Operation, Outcome, Record, Seen
from onceflow.verify.verdict import Anomaly, Verdict

TOPIC = "verify-7-orders"


class SampleRun:
    """`rounds` transactions of each transactor; one round takes about 0.3 s of the run."""

    def __init__(self, *, rounds: int = 100, transactors: int = 3, seed: int = 7) -> None:
        self._chance = random.Random(seed)
        self._numbers: dict[str, Iterator[int]] = {}
        self._offset = 0
        self.operations: list[Operation] = []
        self.final: list[Seen] = []
        self.seconds = rounds * 0.3
        self._strike_network()
        for number in range(1, transactors + 1):
            self._transactor(f"transactor-{number}", rounds)
        for number in (1, 2):
            self._reader(f"reader-{number}.1")

    def history(self) -> History:
        return History(self.operations, self.final)

    def verdict(self, *, anomalies: list[Anomaly] | None = None, problems: list[str] | None = None) -> Verdict:
        faults = [each for each in self.history().of("fault") if each.is_ok]
        return Verdict(
            workload="producers",
            seed=7,
            brokers="onceflow 0.1.0",
            seconds=self.seconds,
            anomalies=anomalies or [],
            problems=problems or [],
            faults=faults,
        )

    def anomalies(self) -> list[Anomaly]:
        committed = next(each for each in self.operations if each.f == "commit" and each.is_ok)
        asked = committed.asked["transaction"]
        write = next(each for each in self.operations if each.f == "write" and each.asked["transaction"] == asked)
        read = next(each for each in self.operations if each.f == "read" and each.began > committed.ended)
        lost = write.asked["records"][0][2]
        return [
            Anomaly(
                name="lost write",
                sentence=f"{lost} was part of {asked}, whose commit was answered with ok at {committed.ended:.3f} s, "
                f"and is not in {TOPIC} after everything was healed.",
                operations=[write, committed, read],
            ),
            Anomaly(
                name="duplicate",
                sentence=f"{lost} is in {TOPIC} twice, at offsets 3 and 9 of partition 0.",
                operations=[write, self._unanswered()],
                records=[Seen(TOPIC, 0, offset, Record(id=lost, transaction=asked)) for offset in (3, 9)],
            ),
        ]

    def note(
        self, process: str, f: str, began: float, took: float, outcome: Outcome = Outcome.OK, **asked: Any
    ) -> Operation:
        told = asked.pop("told", {})
        number = next(self._numbers.setdefault(process, itertools.count(1)))
        ended = NEVER if took == NEVER else began + took
        operation = Operation(
            id=f"{process}:{number}", f=f, began=began, ended=ended, outcome=outcome, asked=asked, told=told
        )
        self.operations.append(operation)
        return operation

    def _unanswered(self) -> Operation:
        return next(each for each in self.operations if each.f == "commit" and each.ended == NEVER)

    def _strike(self, kind: str, target: str, at: float, lasting: float, **detail: Any) -> None:
        self.note("nemesis", "fault", at, lasting, kind=kind, target=target, **detail)

    def _strike_network(self) -> None:
        for at in range(5, int(self.seconds), 9):
            self._strike("lost answer", "network", at + 0.3, 0.02, api="EndTxn", told={"hit": "EndTxn of node 1"})
            self._strike("partition", "network", at + 2.2, 1.1, seconds=1.1)
            self._strike("kill", "broker-1", at + 4.6, 0.8)

    def _transactor(self, name: str, rounds: int) -> None:
        life, at = 1, self._chance.uniform(0.1, 0.6)
        self._take(name, life, at)
        for number in range(1, rounds + 1):
            process = f"{name}.{life}"
            at = self._transaction(process, f"{process}/{number}", at)
            if number % 23 == 0:
                self._strike("kill", process, at, 0.0)
                life, at = life + 1, at + 0.6
                self._take(name, life, at)
            elif number % 37 == 0:
                self._strike("zombie", process, at, 1.2, told={"hit": f"{name}.{life + 1} took over"})
                life += 1
                self._take(name, life, at + 0.4)
                self.note(process, "commit", at + 1.25, 0.02, Outcome.FAILED, told={"error": "PRODUCER_FENCED"})
                at += 0.5

    def _take(self, name: str, life: int, at: float) -> None:
        self.note(f"{name}.{life}", "take", at, 0.04, transactional_id=name)

    def _transaction(self, process: str, transaction: str, at: float) -> float:
        ids = [f"{transaction}#{number}" for number in range(4)]
        records = [[TOPIC, number % 2, each] for number, each in enumerate(ids)]
        took = self._chance.uniform(0.01, 0.06)
        self.note(process, "write", at, took, transaction=transaction, records=records)
        at += took + self._chance.uniform(0.0, 0.05)
        fate = self._chance.random()
        if fate < 0.04:
            self.note(process, "commit", at, NEVER, Outcome.UNKNOWN, transaction=transaction)
        elif fate < 0.15:
            self.note(process, "abort", at, 0.02, transaction=transaction)
        elif fate < 0.18:
            self.note(process, "commit", at, 0.05, Outcome.FAILED, transaction=transaction, told={"error": "FENCED"})
        else:
            self.note(process, "commit", at, 0.03, transaction=transaction)
            self._show(transaction, ids)
        return at + self._chance.uniform(0.05, 0.3)

    def _show(self, transaction: str, ids: list[str]) -> None:
        for each in ids:
            self.final.append(Seen(TOPIC, 0, self._offset, Record(id=each, transaction=transaction)))
            self._offset += 1

    def _reader(self, process: str) -> None:
        at, position = 0.5, 0
        while at < self.seconds:
            to = min(self._offset, int(self._offset * at / self.seconds))
            records = [[*each[:3], each.record.to_json()] for each in self.final[position:to]]
            moved = [[TOPIC, 0, position, to]] if to > position else []
            self.note(process, "read", at, 0.1, isolation="read_committed", told={"records": records, "moved": moved})
            at, position = at + 0.15, to

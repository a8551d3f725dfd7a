"""Histories by hand: a `Story` is told operation by operation, and every operation has a second of its own.

    story = Story()
    story.write("p.1", "a", "b", transaction="p.1/1")
    story.commit("p.1/1")
    history = story.ends_with(seen("a", 0, "p.1/1"), seen("b", 1, "p.1/1"))

Operations begin when they are told and end half a second later, unless they say `at=(BEGAN, ENDED)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceflow.verify.anomalies import ANOMALIES, check
from onceflow.verify.history import NEVER, Derivation, History, Operation, Outcome, Record, Seen
from onceflow.verify.verdict import Anomaly

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
COPY = Derivation("orders", "copies")


def seen(
    id: str,
    offset: int,
    transaction: str | None = None,
    *,
    topic: str = "orders",
    partition: int = 0,
    key: str | None = None,
) -> Seen:
    return Seen(topic, partition, offset, Record(id, transaction, key))


def state(key: str, n: int, offset: int, transaction: str) -> Seen:
    return Seen("state", 0, offset, Record(transaction=transaction, state=key, n=n))


def names_in(history: History) -> set[str]:
    """The anomalies of a history."""
    return {each.name for each in check(history)}


def found(name: str, history: History) -> list[Anomaly]:
    """What one function finds; it must call it by its name."""
    anomalies = list(ANOMALIES[name](history))
    assert {each.name for each in anomalies} <= {name}
    return anomalies


class Story:
    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._numbers: dict[str, int] = {}

    def tell(
        self,
        process: str,
        f: str,
        outcome: Outcome = OK,
        at: tuple[float, float] | None = None,
        told: Mapping[str, Any] | None = None,
        **asked: Any,
    ) -> Operation:
        began, ended = at or (len(self.operations) + 1.0, len(self.operations) + 1.5)
        self._numbers[process] = number = self._numbers.get(process, 0) + 1
        operation = Operation(
            id=f"{process}:{number}", f=f, began=began, ended=ended, outcome=outcome, asked=asked, told=told or {}
        )
        self.operations.append(operation)
        return operation

    def take(self, process: str, transactional_id: str = "shop", **rest: Any) -> Operation:
        return self.tell(process, "take", transactional_id=transactional_id, **rest)

    def write(
        self,
        process: str,
        *ids: str,
        transaction: str | None = None,
        topic: str = "orders",
        written: Sequence[str] | None = None,
        **rest: Any,
    ) -> Operation:
        told = None if written is None else {"written": [[topic, 0, number, id] for number, id in enumerate(written)]}
        records = [[topic, None, id] for id in ids]
        return self.tell(process, "write", transaction=transaction, records=records, told=told, **rest)

    def commit(self, transaction: str, **rest: Any) -> Operation:
        return self.tell(transaction.rpartition("/")[0], "commit", transaction=transaction, **rest)

    def abort(self, transaction: str, **rest: Any) -> Operation:
        return self.tell(transaction.rpartition("/")[0], "abort", transaction=transaction, **rest)

    def dies_while(self, process: str, f: str, **asked: Any) -> Operation:
        """A process that is killed with a request on its way."""
        began = len(self.operations) + 1.0
        return self.tell(process, f, outcome=UNKNOWN, at=(began, NEVER), **asked)

    def read(
        self,
        process: str,
        *records: Seen,
        moved: tuple[int, int] | None = None,
        isolation: str = "read_committed",
        **rest: Any,
    ) -> Operation:
        """`moved`: in partition 0 of orders."""
        told: dict[str, Any] = {"records": [[*each[:3], each.record.to_json()] for each in records]}
        if moved is not None:
            told["moved"] = [["orders", 0, *moved]]
        return self.tell(process, "read", isolation=isolation, told=told, **rest)

    def offsets(self, *offsets: int, f: str = "offsets", **rest: Any) -> Operation:
        """Of partitions 0, 1 and so on of orders."""
        about = rest or {"group": "copiers"}
        told = {"offsets": [["orders", partition, offset] for partition, offset in enumerate(offsets)]}
        return self.tell("observer", f, told=told, **about)

    def ends_with(self, *final: Seen, derivations: Sequence[Derivation] = (), is_drained: bool = True) -> History:
        return History(self.operations, final, derivations=derivations, is_drained=is_drained)

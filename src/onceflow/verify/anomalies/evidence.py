"""What the anomalies share: who was asked for what, who owned what, and how to say it in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from onceflow.verify.history import NEVER, History, Operation, Outcome, Record, Seen, Transaction, process_of
from onceflow.verify.verdict import Anomaly

__all__ = [
    "acknowledged",
    "anomaly",
    "asked_for",
    "at",
    "fenced_transactions",
    "handed",
    "names",
    "speakers",
    "transaction_named",
    "what",
    "where",
    "writers",
]

OPERATIONS_MAX: Final = 6
RECORDS_MAX: Final = 6


# --- in words


def at(seconds: float) -> str:
    return "never" if seconds == NEVER else f"{seconds:.3f} s"


def what(record: Record) -> str:
    if record.state is not None:
        return f"the state of {record.state} (n={record.n})"
    return record.id or "a record without an id"


def where(seen: Seen) -> str:
    return f"{seen.topic}-{seen.partition}@{seen.offset}"


def names(ids: Iterable[str], most: int = 3) -> str:
    """The first few, and how many more."""
    every = list(ids)
    left = len(every) - most
    return ", ".join(every[:most]) + (f" and {left} more" if left > 0 else "")


def anomaly(name: str, sentence: str, operations: Iterable[Operation | None], records: Iterable[Seen] = ()) -> Anomaly:
    """With the few operations and records that show it, each once."""
    shown = {each.id: each for each in operations if each is not None}
    return Anomaly(
        name=name,
        sentence=sentence,
        operations=sorted(list(shown.values())[:OPERATIONS_MAX], key=lambda each: each.began),
        records=list(dict.fromkeys(records))[:RECORDS_MAX],
    )


# --- what was asked


def acknowledged(write: Operation) -> Iterator[tuple[str, str]]:
    """Topic and id of what a write was told that it is there."""
    written = write.told.get("written")
    if written is not None:
        yield from ((topic, id) for topic, _partition, _offset, id in written)
    elif write.is_ok:
        yield from asked_for(write)


def handed(write: Operation) -> Iterator[tuple[str, str]]:
    """Topic and id of what a write may have brought to the broker."""
    yield from acknowledged(write) if write.outcome is Outcome.FAILED else asked_for(write)


def asked_for(write: Operation) -> Iterator[tuple[str, str]]:
    yield from ((topic, id) for topic, _partition, id in write.asked.get("records", ()))


def transaction_named(history: History, name: str) -> Transaction:
    """Also one that nothing was asked about."""
    return history.transactions.get(name) or Transaction(name, (), (), ())


def writers(history: History) -> set[str]:
    """Processes whose writes are listed: what they did not ask for they did not write."""
    return {each.process for each in history.of("write")}


def speakers(history: History) -> set[str]:
    """Processes that would have said so, had they asked for a commit."""
    return {each.process for each in history.of("take", "write", "commit", "abort")}


# --- who owned a transactional id


def fenced_transactions(history: History) -> dict[str, Operation]:
    """Those that are visible although a successor had taken their transactional id before their commit was asked for,
    each with the `take` of that successor."""
    owners = _Owners(history)
    found = {}
    for name, sightings in history.sightings.items():
        transaction = transaction_named(history, name)
        successor = owners.successor_of(transaction)
        if successor is None or not _is_late(transaction, successor.ended):
            continue
        if sightings.final or (sightings.last is not None and sightings.last[0].ended > successor.ended):
            found[name] = successor
    return found


def _is_late(transaction: Transaction, fence: float) -> bool:
    """A transaction that was given up before the fence has nothing to do with it."""
    if transaction.commits:
        return transaction.commits[0].began > fence
    return all(each.began > fence for each in transaction.aborts)


class _Owners:
    def __init__(self, history: History) -> None:
        self._of_process: dict[str, list[Operation]] = {}
        self._of_id: dict[str, list[Operation]] = {}
        self._successors: dict[str, Operation | None] = {}
        for take in history.of("take"):
            if take.outcome is not Outcome.FAILED:
                self._of_process.setdefault(take.process, []).append(take)
                self._of_id.setdefault(take.asked["transactional_id"], []).append(take)

    def successor_of(self, transaction: Transaction) -> Operation | None:
        """The first take of another process that was sure to come after the one under which the transaction began."""
        own = self._own_take(transaction)
        if own is None:
            return None
        if own.id not in self._successors:
            self._successors[own.id] = self._after(own)
        return self._successors[own.id]

    def _own_take(self, transaction: Transaction) -> Operation | None:
        """None if it is not certain: taken several ids, or taken it again and not known what came of that."""
        takes = self._of_process.get(process_of(transaction.name), [])
        if len({each.asked["transactional_id"] for each in takes}) != 1:
            return None
        parts = (*transaction.writes, *transaction.commits, *transaction.aborts)
        began = min((each.began for each in parts), default=NEVER)
        own = next((each for each in reversed(takes) if each.began < began), None)
        return own if own is not None and own.is_ok else None

    def _after(self, own: Operation) -> Operation | None:
        others = (
            each
            for each in self._of_id[own.asked["transactional_id"]]
            if each.is_ok and each.process != own.process and each.began > own.ended
        )
        return min(others, key=lambda each: each.ended, default=None)

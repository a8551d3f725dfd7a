"""As much of Kafka as the anomalies are about, in memory and correct: transactions with fencing, markers that come
late, a group with generations, readers under read_committed. Single defects can be switched on.

- Each transaction has an epoch of its own (KIP-890): what arrives late for one that is over is refused.
- A commit is decided when it is logged; its markers are written later, one by one, in any order.
- Offsets in a transaction are checked against the group's generation when they are sent, and hold up whoever asks for
  the committed offsets until their marker is there (KIP-447).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from onceflow.verify.history import Place, Record, Seen


class Refused(Exception):
    """The broker says no, and nothing has happened."""


class NotYet(Exception):
    """The broker says to ask again later, and nothing has happened."""


@dataclass
class Entry:
    """A record, or None for a marker."""

    record: Record | None
    transaction: Transaction | None = None
    is_visible: bool | None = None
    """None: not decided yet."""


@dataclass
class Transaction:
    transactional_id: str
    epoch: int
    places: dict[Place, None] = field(default_factory=dict)
    offsets: dict[Place, int] = field(default_factory=dict)
    is_commit: bool | None = None
    """None: not decided yet."""

    @property
    def is_over(self) -> bool:
        return self.is_commit is not None and not self.places and not self.offsets


class TinyBroker:
    def __init__(self, places: Iterable[Place], defect: str | None = None) -> None:
        self.logs: dict[Place, list[Entry]] = {place: [] for place in places}
        self.defect = defect
        self.epochs: dict[str, int] = {}
        self.current: dict[str, Transaction] = {}
        self.generation = 0
        self.owners: dict[Place, str] = {}
        self.committed: dict[Place, int] = {}

    # --- writing

    def append(self, place: Place, record: Record) -> int:
        if self.defect == "acknowledged before it is written":
            return len(self.logs[place])
        for _ in range(2 if self.defect == "deduplication off" else 1):
            self.logs[place].append(Entry(record, is_visible=True))
        return len(self.logs[place]) - 1

    def take(self, transactional_id: str) -> int:
        """Whatever is open is aborted, and whoever had it is fenced. Returns the epoch."""
        if (current := self.current.get(transactional_id)) is not None:
            if current.is_commit is None:
                current.is_commit = False
            self._complete(current)
        return self._next_epoch(transactional_id)

    def write(self, transactional_id: str, epoch: int, place: Place, record: Record) -> int:
        transaction = self._transaction(transactional_id, epoch)
        transaction.places[place] = None
        if self.defect == "half of it outside of the transaction" and len(transaction.places) == 1:
            self.logs[place].append(Entry(record, is_visible=True))
        else:
            self.logs[place].append(Entry(record, transaction))
        return len(self.logs[place]) - 1

    def send_offsets(
        self, transactional_id: str, epoch: int, member: str, generation: int, place: Place, at: int
    ) -> None:
        if generation != self.generation or self.owners.get(place) != member:
            raise Refused("generation")
        self._transaction(transactional_id, epoch).offsets[place] = at

    def end(self, transactional_id: str, epoch: int, *, is_commit: bool) -> int:
        """Returns the next epoch; asked for again, the same."""
        current = self.current.get(transactional_id)
        if current is not None and current.epoch == epoch and current.is_commit is not None:
            if current.is_commit != is_commit:
                raise Refused("already ended otherwise")
            if self.epochs[transactional_id] == epoch + 1:
                return epoch + 1
        self._transaction(transactional_id, epoch).is_commit = is_commit
        return self._next_epoch(transactional_id)

    def expire(self, transactional_id: str) -> None:
        """The coordinator aborts what has been open for too long."""
        current = self.current.get(transactional_id)
        if current is not None and current.is_commit is None:
            current.is_commit = False
            self._next_epoch(transactional_id)

    def write_a_marker(self, transaction: Transaction, which: int) -> None:
        """One partition or the group learns how the transaction ended."""
        if transaction.is_commit is None or transaction.is_over:
            return
        places = list(transaction.places)
        if which % (len(places) + bool(transaction.offsets)) == len(places):
            self._decide_offsets(transaction)
        else:
            self._decide(transaction, places[which % len(places)])

    def _next_epoch(self, transactional_id: str) -> int:
        self.epochs[transactional_id] = self.epochs.get(transactional_id, -1) + 1
        return self.epochs[transactional_id]

    def _transaction(self, transactional_id: str, epoch: int) -> Transaction:
        """The one that is running under this epoch; it begins with the first that is asked of it."""
        current = self.current.get(transactional_id)
        if epoch != self.epochs[transactional_id]:
            if self.defect != "epoch check off":
                raise Refused("fenced")
            epoch = self.epochs[transactional_id]
        if current is None or current.epoch != epoch:
            if current is not None and not current.is_over:
                self._complete(current)
            current = self.current[transactional_id] = Transaction(transactional_id, epoch)
        return current

    def _complete(self, transaction: Transaction) -> None:
        while not transaction.is_over:
            self.write_a_marker(transaction, 0)

    def _decide(self, transaction: Transaction, place: Place) -> None:
        del transaction.places[place]
        is_commit = bool(transaction.is_commit)
        if self.defect == "marker lost" and len(transaction.places) == 1:
            is_commit = False
        for entry in self.logs[place]:
            if entry.transaction is transaction:
                entry.is_visible = is_commit or self.defect == "aborted list empty"
        self.logs[place].append(Entry(None, is_visible=False))

    def _decide_offsets(self, transaction: Transaction) -> None:
        if transaction.is_commit and self.defect != "offsets not committed":
            self.committed |= transaction.offsets
        transaction.offsets.clear()

    # --- reading

    def stable_end(self, place: Place) -> int:
        """The last stable offset."""
        log = self.logs[place]
        if self.defect == "last stable offset ignored":
            return len(log)
        return next((offset for offset, entry in enumerate(log) if entry.is_visible is None), len(log))

    def read(self, place: Place, start: int, most: int) -> tuple[list[Seen], int]:
        """Under read_committed: what is visible in the next `most` offsets, and how far that is."""
        end = min(self.stable_end(place), start + most)
        found = [
            Seen(*place, offset, entry.record)
            for offset, entry in enumerate(self.logs[place][start:end], start)
            if entry.record is not None and entry.is_visible is not False
        ]
        if self.defect == "last record of a poll skipped" and len(found) > 1:
            found.pop()
        return found, max(end, start)

    def committed_offset(self, place: Place) -> int:
        if any(place in each.offsets for each in self.current.values()):
            raise NotYet("unstable offset")
        return self.committed.get(place, 0)

    def rebalance(self, owners: dict[Place, str]) -> None:
        self.generation += 1
        self.owners = owners

"""The transaction coordinator: who has which producer id and epoch, and what may happen next. Pure decisions.

Every method looks at what is known and returns the transaction as it is to be, or raises `ProtocolError` with the code
that the client is told; nothing changes. The shell (`broker.transactions`) logs what came back and then calls `apply`,
which is also what a restart does with every record of the log. The checks and their order are those of Kafka's
`TransactionCoordinator`:

    not this transactional id's producer id         49 INVALID_PRODUCER_ID_MAPPING
    not its epoch                                   90 PRODUCER_FENCED (older requests: 47, see the handlers)
    then the table in `txn.states`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.txn.states import TABLE, Event, State
from onceflow.txn.transaction import LAST_EPOCH, NO_EPOCH, NO_ID, V2, TopicPartition, Transaction

__all__ = ["Coordinator"]

OVERTAKING_MS: Final = 100
"""How long after a transaction a commit of nothing is told to come again (51) rather than that it is illegal (48).

Kafka's Java producer may send the commit of its next transaction before the records of it: `Sender` asks whether there
are unsent batches and only then, in another step, which request is next, and the program may have begun, sent and
committed in between. For Kafka's coordinator the last transaction is not complete at that time, for its markers are
still being written; it answers 51, the producer tries again, and by then the records are there. Ours is done sooner,
and 48 would be the end of that producer: that happened three times in some 100,000 transactions. (If the commit comes
late enough, it happens on Apache Kafka, too.)
"""
NO_TIMEOUT_MS: Final = 2**31 - 1
"""A transaction with this timeout lives until its owner ends it."""


class Coordinator:
    def __init__(self, new_producer_id: Callable[[], int], timeout_ms_max: int) -> None:
        self._new_producer_id = new_producer_id
        self._timeout_ms_max = timeout_ms_max
        self._transactions: dict[str, Transaction] = {}

    def __len__(self) -> int:
        return len(self._transactions)

    def __iter__(self) -> Iterator[tuple[str, Transaction]]:
        return iter(self._transactions.items())

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def apply(self, transactional_id: str, transaction: Transaction | None) -> None:
        """What is in the log is what is known. None: the id was forgotten."""
        if transaction is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = transaction

    # InitProducerId

    def init(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, now_ms: int
    ) -> Transaction:
        """A producer begins. If it left a transaction open, what comes back is that one, fenced and aborting, and the
        producer has to ask again (51)."""
        if not transactional_id:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        if not 0 < timeout_ms <= self._timeout_ms_max:
            raise ProtocolError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"The transaction timeout is {timeout_ms} ms; it must be positive and at most "
                f"transaction.max.timeout.ms, {self._timeout_ms_max} ms.",
            )
        current = self._transactions.get(transactional_id)
        if current is None:
            current = Transaction(producer_id=self._new_producer_id(), timeout_ms=timeout_ms, updated_ms=now_ms)
        if expected is not None and not self._may_expect(current, *expected):
            raise ProtocolError(ErrorCode.PRODUCER_FENCED)
        if current.state is State.ONGOING:
            return self.abort_from_outside(transactional_id, now_ms)
        expected_epoch = None if expected is None else expected[1]
        if current.is_epoch_used_up and expected_epoch in (None, current.epoch) and not current.state.is_prepared:
            return current.with_new_id(
                self._new_producer_id(), timeout_ms=timeout_ms, is_expected=expected is not None, now_ms=now_ms
            )
        return current.initialized(timeout_ms=timeout_ms, expected_epoch=expected_epoch, now_ms=now_ms)

    @staticmethod
    def _may_expect(current: Transaction, producer_id: int, epoch: int) -> bool:
        """Whether a producer that says who it is can be right: this one, or this one before it got a new id."""
        if current.epoch == NO_EPOCH or producer_id == current.producer_id:
            return True
        return producer_id == current.previous_producer_id and epoch >= LAST_EPOCH

    # Writing

    def add(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        version: int,
        now_ms: int,
    ) -> Transaction | None:
        """Partitions join the transaction; None if they are all in it already."""
        current = self._known(transactional_id, producer_id, epoch)
        if current.state is State.ONGOING and partitions <= current.partitions:
            return None
        return current.with_partitions(partitions, version=version, now_ms=now_ms)

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]) -> None:
        """Raise unless these partitions are in the transaction: whoever writes to others, writes to nobody's."""
        current = self._known(transactional_id, producer_id, epoch)
        if current.state.is_prepared:
            raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if not current.partitions.issuperset(partitions):
            raise ProtocolError(
                ErrorCode.TRANSACTION_ABORTABLE, "The partition was not added to the transaction, which can only abort."
            )

    def _known(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        if not transactional_id:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        current = self._transactions.get(transactional_id)
        if current is None or current.producer_id != producer_id:
            raise ProtocolError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"Producer {producer_id} is not that of transactional id '{transactional_id}'.",
            )
        if current.epoch != epoch:
            raise ProtocolError(
                ErrorCode.PRODUCER_FENCED,
                f"Epoch {epoch} of transactional id '{transactional_id}' is past; it is at {current.epoch}.",
            )
        return current

    # The end

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, version: int, now_ms: int
    ) -> Transaction | None:
        """The client commits or aborts; None if that is a repeat, and it is done already."""
        if version < V2:
            current = self._known(transactional_id, producer_id, epoch)
            return self._end(current, Event.COMMIT if commit else Event.ABORT, version, now_ms)
        current = self._known_to_end(transactional_id, producer_id, epoch)
        if (producer_id, epoch) == (current.producer_id, current.epoch) and not current.state.is_prepared:
            if commit and current.is_complete and now_ms - current.updated_ms < OVERTAKING_MS:
                raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._end(current, Event.COMMIT_V2 if commit else Event.ABORT_V2, version, now_ms)
        return self._end(current, Event.COMMIT_AGAIN if commit else Event.ABORT_AGAIN, version, now_ms)

    def _known_to_end(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        """V2: the current epoch ends a transaction, the one before it repeats the last end."""
        if not transactional_id:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        current = self._transactions.get(transactional_id)
        # The last end may have handed out a new producer id.
        was_renamed = (
            current is not None
            and (producer_id, epoch) == (current.previous_producer_id, LAST_EPOCH)
            and current.epoch == 0
        )
        if current is None or (current.producer_id != producer_id and not was_renamed):
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_current = epoch == current.epoch
        is_repeat = epoch == current.epoch - 1
        match current.state:
            case State.PREPARE_COMMIT | State.PREPARE_ABORT:
                is_valid = is_repeat
            case State.COMPLETE_COMMIT | State.COMPLETE_ABORT:
                is_valid = is_repeat or is_current or was_renamed
            case _:
                is_valid = is_current
        if not is_valid:
            raise ProtocolError(
                ErrorCode.PRODUCER_FENCED,
                f"Epoch {epoch} of transactional id '{transactional_id}' is past; it is at {current.epoch}.",
            )
        return current

    def _end(self, current: Transaction, event: Event, version: int, now_ms: int) -> Transaction | None:
        if TABLE[current.state].get(event) is ErrorCode.NONE:
            return None
        next_producer_id = NO_ID
        if version >= V2 and current.is_epoch_used_up and isinstance(TABLE[current.state].get(event), State):
            next_producer_id = self._new_producer_id()
        return current.ending(event, version=version, next_producer_id=next_producer_id, now_ms=now_ms)

    def abort_from_outside(self, transactional_id: str, now_ms: int) -> Transaction:
        """Fence the producer and abort what it left open; always in V2, whatever the client speaks."""
        fenced = self._transactions[transactional_id].fenced()
        next_producer_id = self._new_producer_id() if fenced.is_epoch_used_up else NO_ID
        return fenced.ending(Event.FENCED, version=V2, next_producer_id=next_producer_id, now_ms=now_ms)

    # Housekeeping

    def timed_out(self, now_ms: int) -> list[str]:
        """Ids whose transaction has outlived its timeout."""
        return [
            transactional_id
            for transactional_id, transaction in self._transactions.items()
            if transaction.state is State.ONGOING
            and transaction.timeout_ms < NO_TIMEOUT_MS
            and transaction.started_ms + transaction.timeout_ms < now_ms
        ]

    def expired(self, before_ms: int) -> list[str]:
        """Ids that nobody has used since some time."""
        return [
            transactional_id
            for transactional_id, transaction in self._transactions.items()
            if Event.EXPIRE in TABLE[transaction.state] and transaction.updated_ms <= before_ms
        ]

    def prepared(self) -> list[str]:
        """Ids whose outcome is decided but perhaps not written everywhere."""
        return [id for id, transaction in self._transactions.items() if transaction.state.is_prepared]

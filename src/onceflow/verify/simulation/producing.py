"""A producer by protocol: batches with sequences, retried until it is known what became of them; and transactions.

What an answer teaches decides the outcome that is recorded. "Failed" is said only if every attempt was refused in a way
that leaves nothing behind; one lost answer, or one error of the disk, makes it unknown for good, unless a retry
succeeds.

Several batches of a partition may be on their way at once, but the first one of an epoch goes alone, which real clients
do not promise (an unknown producer may begin with any sequence, so a second one could be taken without the first); 45
is retried only behind a batch that is not settled either; a V1 transaction that was given up is followed by a new
epoch, since nobody knows what of it still comes (KIP-360), where V2 has one in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from onceflow.errors import ErrorCode
from onceflow.verify.history import Outcome, Place, Record
from onceflow.verify.simulation import requests
from onceflow.verify.simulation.network import Exchange
from onceflow.verify.simulation.processes import Ended, Life, Steps, Worker
from onceflow.verify.simulation.requests import Identity

__all__ = ["Abortable", "Batch", "Fenced", "Producer"]

ATTEMPTS: Final = (1, 3, 12)
"""After so many without an answer a producer gives up, as after the delivery timeout of a real one."""
BACKOFF_S: Final = (0.005, 0.08)

FENCED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
ABORTABLE: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
CERTAINLY_NOT: Final = frozenset(
    {
        *FENCED,
        *ABORTABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
"""Refusals that come before anything is written."""


class Fenced(Ended):
    """Somebody else has taken over."""


class Abortable(Exception):
    """The transaction can only be aborted; the producer can go on."""


@dataclass(eq=False)
class Batch:
    """Records on their way to one partition."""

    place: Place
    records: Sequence[Record]
    sequence: int
    op: str | None
    """None for what is not recorded: the records of the state."""
    is_uncertain: bool = False
    """An attempt may have succeeded without our knowing."""


class Producer(Life):
    """A life that writes."""

    def __init__(
        self, worker: Worker, number: int, *, transactional_id: str | None = None, v2: bool = True, timeout_ms: int = 0
    ) -> None:
        super().__init__(worker, number)
        self.transactional_id = transactional_id
        self.v2 = v2
        self._timeout_ms = timeout_ms
        self._attempts = self.chance.choice(ATTEMPTS)
        self._identity = Identity()
        self._sequences: dict[Place, int] = {}
        self._transactions = 0
        self._transaction: str | None = None
        self._added: dict[Place, None] = {}
        self._has_doubts = False
        """Something of this transaction may still be on its way."""

    # Beginning

    def take(self) -> Steps:
        """Become the owner of the transactional id."""
        op = self.begin("take", transactional_id=self.transactional_id)
        yield from self._init(Identity())
        self.end(op, Outcome.OK)

    def identify(self) -> Steps:
        """Get an identity, outside of transactions."""
        yield from self._init(Identity())

    def _init(self, identity: Identity) -> Steps:
        while True:
            request = requests.init(self.transactional_id, self._timeout_ms or 60_000, identity)
            answer = yield from self.ask(request, requests.INIT_VERSION)
            if answer is not None and not answer.error_code:
                self._become(Identity(answer.producer_id, answer.producer_epoch))
                return
            if answer is not None and answer.error_code in FENCED:
                raise Fenced(f"InitProducerId is answered {answer.error_code}")
            yield from self.sleep(*BACKOFF_S)

    def _become(self, identity: Identity) -> None:
        if identity != self._identity:
            self._identity = identity
            self._sequences.clear()
            self.world.say(f"{self.name} is producer {identity.producer_id} epoch {identity.epoch}")

    # Writing

    def write(self, place: Place, windows: Sequence[Sequence[Record]], *, is_recorded: bool = True) -> Steps:
        """Batches for one partition, on their way together unless it is the first of the epoch."""
        batches = list(windows)
        if place not in self._sequences:
            yield from self._write(place, batches[:1], is_recorded)
            batches = batches[1:]
        if batches:
            yield from self._write(place, batches, is_recorded)

    def _write(self, place: Place, windows: Sequence[Sequence[Record]], is_recorded: bool) -> Steps:
        pending = []
        for records in windows:
            op = None
            if is_recorded:
                listed = [[*place, record.id] for record in records]
                op = self.begin("write", transaction=self._transaction, records=listed)
            sequence = self._sequences.get(place, 0)
            self._sequences[place] = sequence + len(records)
            pending.append(Batch(place, records, sequence, op))
        try:
            yield from self._settle(pending)
        except Exception:
            self._has_doubts = True
            for batch in pending:
                self._end(batch, Outcome.UNKNOWN if batch.is_uncertain else Outcome.FAILED)
            raise

    def _settle(self, pending: list[Batch]) -> Steps:
        """Send, and send again what has no outcome; `pending` is what has none yet."""
        for _ in range(self._attempts):
            exchanges = [self._exchange(batch) for batch in pending]
            yield from self.ask_all(exchanges)
            left: list[Batch] = []
            for batch, exchange in zip(list(pending), exchanges, strict=True):
                if self._took(batch, exchange.answer, is_first=not left):
                    pending.remove(batch)
                else:
                    left.append(batch)
            if not pending:
                return
            yield from self.sleep(*BACKOFF_S)
        raise Abortable("a batch is not acknowledged")

    def _exchange(self, batch: Batch) -> Exchange:
        request = requests.produce(
            batch.place, batch.records, self._identity, batch.sequence, self.world.now_ms(), self.transactional_id
        )
        return Exchange(request, requests.PRODUCE_VERSIONS[self.v2])

    def _took(self, batch: Batch, answer: Any, *, is_first: bool) -> bool:
        """Whether the batch is written; False to try again."""
        if answer is None:
            batch.is_uncertain = True
            return False
        [[result]] = [topic.partition_responses for topic in answer.responses]
        error = ErrorCode(result.error_code)
        if not error:
            offsets = range(result.base_offset, result.base_offset + len(batch.records))
            written = [[*batch.place, at, record.id] for at, record in zip(offsets, batch.records, strict=True)]
            self._end(batch, Outcome.OK, written=written)
            return True
        self.world.say(f"{self.name}: produce {batch.sequence} to {batch.place}: {error.name}")
        batch.is_uncertain = batch.is_uncertain or error not in CERTAINLY_NOT
        if error in FENCED:
            raise Fenced(error.name)
        if error in ABORTABLE:
            raise Abortable(error.name)
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and is_first:
            self.world.problem(f"{self.name}: sequence {batch.sequence} on {batch.place}, in its turn, is refused (45)")
            raise Ended("out of order")
        return False

    def _end(self, batch: Batch, outcome: Outcome, **told: Any) -> None:
        if batch.op is not None:
            self.end(batch.op, outcome, **told)

    # Transactions

    def begin_transaction(self) -> str:
        self._transactions += 1
        self._transaction = f"{self.name}/{self._transactions}"
        self._added.clear()
        self._has_doubts = False
        return self._transaction

    def add(self, place: Place) -> Steps:
        """V1 says first where it is going to write."""
        if self.v2 or place in self._added:
            return
        assert self.transactional_id is not None
        request = requests.add_partition(self.transactional_id, self._identity, place)

        def error_in(answer: Any) -> int:
            [topic] = answer.results_by_topic_v3_and_below
            return int(topic.results_by_partition[0].partition_error_code)

        yield from self._insist(request, requests.ADD_PARTITIONS_VERSION, error_in, may_be_late=True)
        self._added[place] = None

    def send_offset(self, group: str, place: Place, offset: int) -> Steps:
        """An offset of a group becomes part of the transaction."""
        assert self.transactional_id is not None
        if not self.v2:
            added = requests.add_offsets(self.transactional_id, self._identity, group)
            yield from self._insist(added, requests.ADD_OFFSETS_VERSION, lambda answer: int(answer.error_code))
        request = requests.commit_offset(self.transactional_id, self._identity, group, place, offset)
        yield from self._insist(
            request,
            requests.TXN_OFFSETS_VERSIONS[self.v2],
            lambda answer: int(answer.topics[0].partitions[0].error_code),
        )

    def _insist(self, request: Any, version: int, error_in: Any, *, may_be_late: bool | None = None) -> Steps:
        """Ask until it is done, or until it is known that it will not be."""
        for _ in range(self._attempts):
            answer = yield from self.ask(request, version, may_be_late=self.v2 if may_be_late is None else may_be_late)
            error = None if answer is None else ErrorCode(error_in(answer))
            if error is ErrorCode.NONE:
                return
            if error is not None:
                self.world.say(f"{self.name}: {type(request).__name__}: {error.name}")
            if error in FENCED:
                raise Fenced(f"{type(request).__name__} is answered {error}")
            if error in ABORTABLE:
                break
            yield from self.sleep(*BACKOFF_S)
        self._has_doubts = True
        raise Abortable(type(request).__name__)

    def commit(self, group: str | None = None, offsets: Sequence[Sequence[Any]] = ()) -> Steps:
        listed = [list(each) for each in offsets]
        op = self.begin("commit", transaction=self._transaction, group=group, offsets=listed)
        yield from self._finish(op, commit=True)

    def abort(self) -> Steps:
        op = self.begin("abort", transaction=self._transaction)
        yield from self._finish(op, commit=False)
        if self._has_doubts and not self.v2:
            yield from self._init(self._identity)

    def _finish(self, op: str, *, commit: bool) -> Steps:
        """EndTxn, again and again until it is known what came of it."""
        assert self.transactional_id is not None
        is_uncertain = False
        while True:
            request = requests.end(self.transactional_id, self._identity, commit=commit)
            answer = yield from self.ask(request, requests.END_VERSIONS[self.v2], may_be_late=self.v2)
            if answer is None:
                is_uncertain = True
            elif not answer.error_code:
                break
            else:
                error = ErrorCode(answer.error_code)
                self.world.say(f"{self.name}: EndTxn: {error.name}")
                is_uncertain = is_uncertain or error not in CERTAINLY_NOT
                if error in FENCED or error in ABORTABLE:
                    yield from self._refused(op, error, is_uncertain, commit=commit)
                    return
            yield from self.sleep(*BACKOFF_S)
        if self.v2:
            self._become(Identity(answer.producer_id, answer.producer_epoch))
        self.end(op, Outcome.OK)

    def _refused(self, op: str, error: ErrorCode, is_uncertain: bool, *, commit: bool) -> Steps:
        if error is ErrorCode.INVALID_TXN_STATE and not commit:
            # Of this transaction the coordinator knows nothing: it is as good as aborted, and what of it is still on
            # its way must find another epoch.
            self.end(op, Outcome.OK)
            yield from self._init(self._identity)
            self._has_doubts = False
            return
        self.end(op, Outcome.UNKNOWN if is_uncertain else Outcome.FAILED)
        raise (Fenced if error in FENCED else Ended)(f"EndTxn is answered {error.name}")

"""A transaction that one process owns and many processes write into.

The owner has the transactional id: it fences whoever had it before, records offsets, and ends the transaction. The
others get a `Ticket`, which is the producer id and epoch that all of them write with.

    transaction = SharedTransaction(cluster, "orders-app", timeout_ms=60_000)
    transaction.fence()                   # every earlier owner is out, what it left open is aborted
    transaction.ticket                    # for the writers
    transaction.commit_offsets("orders-app", {("orders", 0): 42})
    transaction.commit()
    transaction.ticket                    # another one: that of the next transaction

Invariants:

- **Every transaction has an epoch of its own.** In V2 (KIP-890) each end hands out the next one; in V1 whoever looks at
  the ticket after an end asks for it: not the end itself, since a commit that was done must not fail afterwards. So a
  delayed request of an earlier transaction can never touch a later one.
- **Nobody takes over twice.** Only `fence` asks without saying who we are. All later requests carry our id and epoch,
  so that an owner that was itself fenced is told so (`Fenced`) and never fences its successor.
- **A refusal is looked into by `reclaim`**, which asks for the next epoch as ourselves. The coordinator compares and
  decides in one step, so this is also the answer to who has the id:

      what has happened                                    the request was refused with    InitProducerId as ourselves
      the id was not used and has expired                  49                              a new producer id
      the transaction has outlived its timeout (Kafka 4)   90, 47, 48                      the next epoch
      the state is not what we think                       48                              the next epoch
      another owner has fenced us                          90, 47, 49                      90

  An error that asks for an abort (120, KIP-1050) needs none of that: the transaction is still ours (`MustAbort`).
- **An end is repeated until it is answered.** The coordinator recognises the repetition. If no answer comes in time, or
  the repetition of an end that may have been done is refused, the outcome is unknown, and `OutcomeUnknown` says so;
  `fence` settles it, in this process or the next.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from onceflow.client.cluster import NOT_YET, Cluster, Refused, TopicPartition, refuse
from onceflow.client.connection import ApiMissing, Connection, NoAnswer
from onceflow.client.offsets import may_pass
from onceflow.client.problems import ClientError
from onceflow.errors import ErrorCode
from onceflow.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from onceflow.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from onceflow.wire.messages.end_txn import EndTxnRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.produce import ProduceRequest
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

__all__ = [
    "V1",
    "V2",
    "Fenced",
    "MustAbort",
    "OutcomeUnknown",
    "SharedTransaction",
    "Ticket",
    "TransactionsMissing",
    "TRANSACTION_OVER",
]

T = TypeVar("T")

POLL_S: Final = 0.002
"""Between repetitions of "not yet" at first; it doubles up to `POLL_MAX_S`. Markers are written within milliseconds."""
POLL_MAX_S: Final = 0.2

_REPEAT: Final = NOT_YET | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
MISSING_PATIENCE_S: Final = 5.0
"""A partition that was created just now may be news to a coordinator; one that is missing still does not exist."""
_NOTHING_DONE: Final = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS})
"""After these an end was certainly not done. The others may stand for a write to the log that ended in doubt."""
TRANSACTION_OVER: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""The transaction is not ours to end, or not open any more: somebody took over, it timed out, or its id expired."""
_WHY_OVER: Final = {
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the coordinator does not know this producer any more: its transactional id "
    "was not used for longer than transactional.id.expiration.ms, or somebody else uses it since",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the broker does not know this producer any more: what it had written was deleted, "
    "or it was not used for longer than producer.id.expiration.ms",
    ErrorCode.INVALID_TXN_STATE: "there is no transaction in which that could be done: nothing was written into it, or "
    "it was ended meanwhile, by its timeout for example",
}

V1, V2 = 1, 2
_PRODUCE_MAX: Final = {V1: 11, V2: 12}
_OFFSETS_MAX: Final = {V1: 4, V2: 5}
_END_MAX: Final = {V1: 4, V2: 5}
_INIT_MAX: Final = 5  # version 6 is for two-phase commit of others (KIP-939)
_ADD_MAX: Final = 3  # later versions are for brokers


class Fenced(ClientError):
    """The coordinator or a leader says that this transaction is over: another owner, the timeout, an id that has
    expired. `SharedTransaction.reclaim` finds out."""

    def __init__(self, message: str, code: int = ErrorCode.PRODUCER_FENCED) -> None:
        super().__init__(message)
        self.code = code


class MustAbort(ClientError):
    """The coordinator or a leader asks to abort the transaction (KIP-1050). It is ours, and can be run again."""


class OutcomeUnknown(ClientError):
    """The end of the transaction was asked for and no answer came: it may have been committed or not."""


class TransactionsMissing(ClientError):
    """The broker has no transactions, or too old ones."""


@dataclass(frozen=True)
class Ticket:
    """What a writer needs to write into the transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
    """1 is the classic protocol, 2 that of KIP-890."""

    @property
    def produce_version_max(self) -> int:
        return _PRODUCE_MAX[self.version]


class SharedTransaction:
    """The owner's side. Methods may be called from several threads: they take turns."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int,
        patience_s: float = 60.0,
        version: int | None = None,
    ) -> None:
        """`patience_s`: how long "not yet" and a missing broker are put up with. `version`: 1 forces the classic
        protocol."""
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._cluster = cluster
        self._patience_s = patience_s
        self._wanted_version = version
        self._ticket: Ticket | None = None
        self._is_used_up = False  # V1: this epoch's transaction was ended, the next epoch not asked for yet
        self._may_be_open = False  # V1: something was added, or at least asked to be
        self._added: set[TopicPartition] = set()
        self._coordinator_id: int | None = None
        self._group_coordinators: dict[str, int] = {}
        self._lock = threading.RLock()

    @property
    def ticket(self) -> Ticket:
        """Of the transaction that can be written into now. Raises `Fenced` and the rest if it must be asked for."""
        with self._lock:
            ticket = self._known_ticket()
            return self._renew(ticket) if self._is_used_up else ticket

    @property
    def version(self) -> int:
        """Of the protocol, since the fence."""
        return self._known_ticket().version

    @property
    def producer_id(self) -> int:
        """As far as it is known without asking."""
        return self._known_ticket().producer_id

    def fence(self) -> Ticket:
        """Take the transactional id from whoever has it; what was open is aborted, what was being committed is
        committed."""
        with self._lock:
            version = self._patiently(self._version, "asking what the broker knows")
            producer_id, epoch = self._init(-1, -1)
            return self._begin(producer_id, epoch, version)

    def add_partitions(self, partitions: Collection[TopicPartition], ticket: Ticket | None = None) -> None:
        """Before the first write to them. In V2 the leaders do this by themselves.

        Raises `Fenced` if the transaction of the ticket is over: whoever comes late must not begin the next one.
        """
        with self._lock:
            if ticket is not None and (self._is_used_up or ticket != self._known_ticket()):
                raise Fenced("adding partitions failed: that transaction is over")
            current = self.ticket  # first: that of a new epoch has nothing added
            new = [each for each in partitions if each not in self._added]
            if current.version == V2 or not new:
                return
            by_topic: dict[str, list[int]] = defaultdict(list)
            for topic, partition in new:
                by_topic[topic].append(partition)
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=current.producer_id,
                v3_and_below_producer_epoch=current.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in by_topic.items()
                ],
            )

            def ask() -> None:
                answer = self._coordinator().ask(request, at_most=_ADD_MAX)
                _look_at_all(
                    (each.partition_error_code, f"adding partition {each.partition_index} of {topic.name!r}")
                    for topic in answer.results_by_topic_v3_and_below
                    for each in topic.results_by_partition
                )

            self._may_be_open = True
            self._patiently(ask, "adding partitions to the transaction")
            self._added.update(new)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """The positions of a consumer group, as part of the transaction."""
        if not offsets:
            return
        with self._lock:
            if self.ticket.version == V1:
                self._may_be_open = True
                self._patiently(lambda: self._add_group(group), "adding offsets to the transaction")
            self._patiently(lambda: self._send_offsets(group, offsets), "recording the source offsets")

    def commit(self) -> None:
        """All of it becomes visible. Raises `Fenced` if nothing of it ever will be, and `OutcomeUnknown`.

        Of a transaction that nobody has written into there is nothing to commit, and Kafka calls that an error:
        `Fenced` as well. Abort it.
        """
        with self._lock:
            self._end(commit=True)

    def abort(self) -> None:
        """Nothing of it will ever be visible. Raises `Fenced` if it is over already, in which case the same holds."""
        with self._lock:
            ticket = self._known_ticket()
            if ticket.version == V1 and (self._is_used_up or not self._may_be_open):
                self._is_used_up = True  # nothing is open, and V1 would call an end of nothing an error
                return
            try:
                self._end(commit=False)
            except Fenced as refusal:
                # In V1 the answer to the end of nothing: what may have been added was not.
                if ticket.version == V2 or refusal.code != ErrorCode.INVALID_TXN_STATE:
                    raise
                self._is_used_up = True

    def renew(self) -> Ticket:
        """Take the next epoch, as ourselves. Also what keeps an id that is not used from being forgotten."""
        with self._lock:
            return self._renew(self._known_ticket())

    def reclaim(self) -> Ticket:
        """After `Fenced`: the next epoch, if the id is still ours; what was open is aborted. Raises `Fenced` if another
        owner has it.

        The ticket has another producer id if the old one has expired. Then others may have come and gone meanwhile.
        """
        return self.renew()

    def _known_ticket(self) -> Ticket:
        assert self._ticket is not None, "fence comes first"
        return self._ticket

    def _begin(self, producer_id: int, epoch: int, version: int) -> Ticket:
        self._added.clear()
        self._is_used_up = self._may_be_open = False
        self._ticket = Ticket(self.transactional_id, producer_id, epoch, version)
        return self._ticket

    def _version(self) -> int:
        broker = self._cluster.any_broker()
        try:
            broker.version(InitProducerIdRequest, at_most=_INIT_MAX)
            broker.version(EndTxnRequest)
            broker.version(AddPartitionsToTxnRequest, at_most=_ADD_MAX)
            broker.version(TxnOffsetCommitRequest)
        except ApiMissing as problem:
            raise TransactionsMissing(f"the broker at {broker.address} has no transactions: {problem}") from None
        newest = (
            broker.features().get("transaction.version", 0) >= V2
            and broker.version(EndTxnRequest) >= _END_MAX[V2]
            and broker.version(ProduceRequest) >= _PRODUCE_MAX[V2]
            and broker.version(TxnOffsetCommitRequest) >= _OFFSETS_MAX[V2]
        )
        return V2 if newest and self._wanted_version != V1 else V1

    def _init(self, producer_id: int, epoch: int) -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

        def ask() -> tuple[int, int]:
            answer = self._coordinator().ask(request, at_most=_INIT_MAX)
            _look(answer.error_code, f"beginning transactions of {self.transactional_id!r}")
            return answer.producer_id, answer.producer_epoch

        return self._patiently(ask, f"beginning transactions of {self.transactional_id!r}")

    def _end(self, *, commit: bool) -> None:
        ticket = self.ticket
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=ticket.producer_id,
            producer_epoch=ticket.epoch,
            committed=commit,
        )
        is_in_doubt = False

        def ask() -> tuple[int, int]:
            nonlocal is_in_doubt
            try:
                answer = self._coordinator().ask(request, at_most=_END_MAX[ticket.version])
            except NoAnswer:
                is_in_doubt = True
                raise
            is_in_doubt |= answer.error_code in _REPEAT - _NOTHING_DONE
            _look(answer.error_code, "ending the transaction")
            return answer.producer_id, answer.producer_epoch

        try:
            producer_id, epoch = self._patiently(ask, "ending the transaction")
        except ClientError as problem:
            if isinstance(problem, Fenced | MustAbort) and not (commit and is_in_doubt):
                raise
            if isinstance(problem, Refused) and not is_in_doubt and problem.code not in _REPEAT:
                raise
            raise OutcomeUnknown(f"the end of the transaction was not answered clearly: {problem}") from None
        if ticket.version == V1:
            self._is_used_up = True
        else:
            self._begin(producer_id, epoch, V2)

    def _renew(self, ticket: Ticket) -> Ticket:
        producer_id, epoch = self._init(ticket.producer_id, ticket.epoch)
        return self._begin(producer_id, epoch, ticket.version)

    def _add_group(self, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.ticket.producer_id,
            producer_epoch=self.ticket.epoch,
            group_id=group,
        )
        _look(self._coordinator().ask(request).error_code, "adding offsets to the transaction")

    def _send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, partition), offset in offsets.items():
            by_topic[topic].append(TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset))
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.ticket.producer_id,
            producer_epoch=self.ticket.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in by_topic.items()],
        )
        answer = self._group_coordinator(group).ask(request, at_most=_OFFSETS_MAX[self.ticket.version])
        _look_at_all(
            (each.error_code, f"recording the offset of partition {each.partition_index} of {topic.name!r}")
            for topic in answer.topics
            for each in topic.partitions
        )

    def _coordinator(self) -> Connection:
        if self._coordinator_id is None:
            self._coordinator_id = self._cluster.transaction_coordinator(self.transactional_id).id
        return self._cluster.node(self._coordinator_id)

    def _group_coordinator(self, group: str) -> Connection:
        if group not in self._group_coordinators:
            self._group_coordinators[group] = self._cluster.group_coordinator(group).id
        return self._cluster.node(self._group_coordinators[group])

    def _patiently(self, ask: Callable[[], T], doing: str) -> T:
        """Everything here may be asked twice: each request names our epoch, and the coordinator knows a repetition."""
        began = time.monotonic()
        wait = POLL_S
        while True:
            try:
                return ask()
            except ClientError as problem:
                if time.monotonic() - began >= self._patience_with(problem):
                    raise
            self._coordinator_id = None  # whoever it was may not be it any more
            self._group_coordinators.clear()
            time.sleep(wait)
            wait = min(2 * wait, POLL_MAX_S)

    def _patience_with(self, problem: ClientError) -> float:
        """0 for what stays as it is."""
        if isinstance(problem, Refused):
            if problem.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return min(self._patience_s, MISSING_PATIENCE_S)
            return self._patience_s if problem.code in _REPEAT else 0.0
        return self._patience_s if may_pass(problem) else 0.0


def _look(code: int, doing: str) -> None:
    if code in TRANSACTION_OVER:
        why = _WHY_OVER.get(ErrorCode(code), "the transaction belongs to somebody else or is over")
        raise Fenced(f"{doing} failed: {why} (error {code})", code)
    if code == ErrorCode.TRANSACTION_ABORTABLE:
        raise MustAbort(f"{doing} failed: the broker asks to abort the transaction (error {code})")
    refuse(code, doing)


def _look_at_all(answers: Iterable[tuple[int, str]]) -> None:
    """One partition that is refused has the others not attempted: the reason is what counts."""
    for code, doing in sorted(answers, key=lambda each: each[0] == ErrorCode.OPERATION_NOT_ATTEMPTED):
        _look(code, doing)

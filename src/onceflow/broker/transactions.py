"""Transactions in the broker: decisions of `txn.coordinator` into the log, markers into the partitions.

TWO-PHASE COMMIT, and what a crash after each step leads to:

    1  EndTxn: PrepareCommit is appended to           not on disk: the transaction is still open, EndTxn was not
       `__transaction_state`                          answered, and the client or the timeout ends it
    2  it is on disk; EndTxn is answered              the restart reads it and goes on with 3
    3  a marker is appended to each partition, and    the restart writes all of them again: a second marker finds
       to the offsets topic if offsets are in it      nothing to end, and harms nothing
    4  all are on disk; CompleteCommit is appended    if it is lost, the restart goes on with 3

A marker must not be on disk before 2: it would decide on its own. Nor may a record of the *next* transaction of the
same producer be on disk before its partition is known to be in it, or a marker that is written again would decide about
that record. Hence the rule of this file: **while a transactional id is busy, everything else about it waits**. Busy
means: a record about it was appended and is not on disk yet, or its markers are being written. Under `--durability os`
nothing is busy for longer than a request takes: what is written counts.

If markers cannot be written, because the disk refuses, that is tried again until it works, and requests about the id
are answered 51 meanwhile.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.partition import Partition
from onceflow.broker.state_log import StateLog
from onceflow.broker.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from onceflow.broker.transaction_events import count_end, count_fencing
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.txn.coordinator import Coordinator
from onceflow.txn.records import read_key, read_value, write_key, write_value
from onceflow.txn.states import State
from onceflow.txn.transaction import TopicPartition, Transaction
from onceflow.wire.records import EndTxnMarker
from onceflow.wire.schema import Message

if TYPE_CHECKING:
    from onceflow.broker.node import Node

__all__ = ["Transactions"]

logger = logging.getLogger(__name__)

COORDINATOR_EPOCH: Final = 0
"""It would rise with every move of the coordinator to another node; there is one node."""
MARKER_RETRY_S: Final = 0.5

Done = Callable[[ErrorCode], None]


class Transactions:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._config = node.config
        self.log = StateLog(node, TRANSACTION_STATE, "transaction.state.log", self._reload)
        self.coordinator = self._new_coordinator()
        self._busy: dict[str, deque[Callable[[], None]]] = {}
        """What waits for each busy id, in the order of arrival."""
        self._stuck: set[str] = set()
        """Busy ids whose markers could not be written so far: who asks about them is told to come again."""
        self.load_ms = 0.0
        """How long it took to read all ids, at the start or after the disk lost something."""
        self._load()

    def _load(self) -> None:
        began = perf_counter()
        for index in range(len(self.log.partitions)):
            self._read(index)
        self.load_ms = (perf_counter() - began) * 1000

    @property
    def stuck_ids(self) -> frozenset[str]:
        """Those whose markers cannot be written at present."""
        return frozenset(self._stuck)

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(self._new_producer_id, self._config["transaction.max.timeout.ms"])

    def _new_producer_id(self) -> int:
        try:
            return self._node.new_producer_id()
        except StorageError as error:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error

    # What is in the log

    def _read(self, index: int) -> None:
        """A record says all about its id, so the last one of each is all that has to be understood."""
        latest: dict[bytes, bytes | None] = {}
        for header, records in self.log.replay(index):
            if not header.is_control:
                latest.update((record.key or b"", record.value) for record in records)
        with self.log.naming(index):
            for key, value in latest.items():
                transactional_id = read_key(key)
                if transactional_id is not None:
                    self.coordinator.apply(transactional_id, None if value is None else read_value(value))

    def _reload(self, index: int) -> None:
        """The disk has lost what was appended last to a partition: back to what it has.

        Only for the ids of that partition. What was appended to another one may be on disk soon, and is not read yet.
        """
        began = perf_counter()
        lost = [id for id, _ in self.coordinator if self.log.partition_of(id) == index]
        for transactional_id in lost:
            self.coordinator.apply(transactional_id, None)
        self._read(index)
        self.load_ms = (perf_counter() - began) * 1000
        self.resume()

    def resume(self) -> None:
        """Finish what is decided and not known to be written everywhere: after a restart, or after the disk lost it."""
        for transactional_id in self.coordinator.prepared():
            if transactional_id not in self._busy:
                logger.info("The transaction of '%s' was decided; its markers are written again.", transactional_id)
                self._busy[transactional_id] = deque()
                self._write_markers(transactional_id)

    # Waiting

    def when_free(self, transactional_id: str, run: Callable[[], None]) -> None:
        """Run something about an id: now, or when it is not busy any more, in the order of asking.

        While its markers cannot be written it runs now, too: the coordinator knows what to answer then (51).
        """
        waiting = self._busy.get(transactional_id)
        if waiting is None or transactional_id in self._stuck:
            run()
        else:
            waiting.append(run)

    def _count_refusal(self, error: ErrorCode, transactional_id: str, producer_id: int, epoch: int) -> None:
        if error is ErrorCode.PRODUCER_FENCED:
            current = self.coordinator.get(transactional_id)
            count_fencing(self._node, (producer_id, epoch), transactional_id, current)

    def is_busy(self, transactional_id: str) -> bool:
        return transactional_id in self._busy

    def _free(self, transactional_id: str) -> None:
        """The id is not busy any more, until one of those who wait makes it so."""
        self._stuck.discard(transactional_id)
        waiting = self._busy.pop(transactional_id)
        while waiting:
            waiting.popleft()()
            if transactional_id in self._busy:
                self._busy[transactional_id].extend(waiting)
                return

    # Prepare, log, complete

    def _append(self, transactional_id: str, target: Transaction | None) -> int:
        """Log what an id is to be, and make it so; returns where. `ProtocolError`, and nothing has changed, if the
        disk refuses."""
        index = self.log.partition_of(transactional_id)
        value = None if target is None else write_value(target)
        try:
            self.log.append(index, [(write_key(transactional_id), value)])
        except ProtocolError as error:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        self.coordinator.apply(transactional_id, target)
        return index

    def _move(self, transactional_id: str, target: Transaction, done: Done, reason: str = "client") -> None:
        """Log a move, tell `done` when it is on disk or did not get there, and write the markers if it is an end.

        `reason` says who ends it, for those who watch.
        """

        def logged(error: ErrorCode) -> None:
            done(error)
            if target.state.is_prepared and not error:
                count_end(self._node.meters, transactional_id, target, reason)
                self._write_markers(transactional_id)
                return
            self._free(transactional_id)
            if error:
                self.resume()  # of what was taken back, there may be an end that was recorded

        index = self._append(transactional_id, target)
        self._busy[transactional_id] = deque()
        self.log.when_durable(index, logged)

    # Requests. Exactly one of the two callbacks is called, now or later.

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        proceed: Callable[[int, int], None],
        refuse: Done,
    ) -> None:
        """InitProducerId: `proceed` gets the producer id and the epoch."""

        def run() -> None:
            try:
                target = self.coordinator.init(transactional_id, timeout_ms, expected, self._node.clock.now_ms())
                if target.state is State.PREPARE_ABORT:
                    # Kafka has it ask again, and so gets to the new epoch after the markers.
                    later = ErrorCode.CONCURRENT_TRANSACTIONS
                    self._move(transactional_id, target, lambda error: refuse(error or later), "fenced")
                else:
                    answer = partial(proceed, target.producer_id, target.epoch)
                    self._move(transactional_id, target, lambda error: refuse(error) if error else answer())
            except ProtocolError as error:
                if expected is not None:
                    self._count_refusal(error.code, transactional_id, *expected)
                refuse(error.code)

        self.when_free(transactional_id, run)

    def add(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        version: int,
        proceed: Callable[[], None],
        refuse: Done,
    ) -> None:
        """Partitions join the transaction; `proceed` when that is on disk."""

        def run() -> None:
            try:
                target = self.coordinator.add(
                    transactional_id, producer_id, epoch, partitions, version=version, now_ms=self._node.clock.now_ms()
                )
                if target is None:
                    proceed()
                else:
                    self._move(transactional_id, target, lambda error: refuse(error) if error else proceed())
            except ProtocolError as error:
                self._count_refusal(error.code, transactional_id, producer_id, epoch)
                refuse(error.code)

        self.when_free(transactional_id, run)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        add: bool,
        proceed: Callable[[], None],
        refuse: Done,
        knows_abortable: bool = True,
    ) -> None:
        """For who writes to partitions: `proceed` if they are in the transaction. With `add` (V2) they are added to it.

        What is refused is said as `as_told_to_writers`.
        """
        wanted = frozenset(partitions)

        def refuse_writer(error: ErrorCode) -> None:
            refuse(as_told_to_writers(error, knows_abortable=knows_abortable))

        if add:
            self.add(transactional_id, producer_id, epoch, wanted, version=2, proceed=proceed, refuse=refuse_writer)
            return

        def run() -> None:
            try:
                self.coordinator.verify(transactional_id, producer_id, epoch, wanted)
            except ProtocolError as error:
                self._count_refusal(error.code, transactional_id, producer_id, epoch)
                refuse_writer(error.code)
            else:
                proceed()

        self.when_free(transactional_id, run)

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        version: int,
        proceed: Callable[[int, int], None],
        refuse: Done,
    ) -> None:
        """EndTxn: `proceed` gets the producer id and epoch to go on with, once the outcome is on disk."""

        def run() -> None:
            try:
                target = self.coordinator.end(
                    transactional_id,
                    producer_id,
                    epoch,
                    commit=commit,
                    version=version,
                    now_ms=self._node.clock.now_ms(),
                )
                if target is None:
                    current = self.coordinator.get(transactional_id)
                    assert current is not None
                    proceed(*current.next_identity)
                else:
                    answer = partial(proceed, *target.next_identity)
                    self._move(transactional_id, target, lambda error: refuse(error) if error else answer())
            except ProtocolError as error:
                self._count_refusal(error.code, transactional_id, producer_id, epoch)
                refuse(error.code)

        self.when_free(transactional_id, run)

    # Looking

    def answer(self, message: Message, refusal: Callable[[ErrorCode], Message]) -> Message | Deferred:
        """The message, once all that it may rest on is on disk; or what `refusal` makes of the error."""
        waiting = len(self.log.partitions)
        if not waiting:
            return message
        found = ErrorCode.NONE
        deferred = Deferred()

        def settled(error: ErrorCode) -> None:
            nonlocal waiting, found
            waiting -= 1
            found = found or error
            if not waiting:
                deferred.resolve(Answer(refusal(found) if found else message))

        for index in range(waiting):
            self.log.when_durable(index, settled)
        return deferred

    # Markers

    def _write_markers(self, transactional_id: str) -> None:
        transaction = self.coordinator.get(transactional_id)
        assert transaction is not None
        _Markers(self, self._node, transactional_id, transaction).write()

    def mark(self, partition: Partition, producer_id: int, epoch: int, marker: EndTxnMarker, *, bumped: bool) -> int:
        """Append a marker to a partition; returns the offset up to which the log has to get to disk.

        Raises `ProtocolError` or `StorageError`, with nothing written.
        """
        offset = partition.log.append_marker(producer_id, epoch, marker, bumped=bumped)
        if partition.topic == CONSUMER_OFFSETS:
            self._node.groups.end_transaction(partition.index, producer_id, marker.commit)
        self._node.wrote(partition)
        return offset + 1

    def marked(self, transactional_id: str, transaction: Transaction) -> None:
        """All markers are on disk. That this is so need not be: whoever comes next is logged behind it."""
        self._append(transactional_id, transaction.completed(self._node.clock.now_ms()))
        self._free(transactional_id)

    def stuck(self, transactional_id: str) -> None:
        """Markers cannot be written at present: nobody is to wait for that."""
        self._stuck.add(transactional_id)
        waiting = self._busy[transactional_id]
        while waiting:
            waiting.popleft()()

    # Housekeeping; the shell decides when.

    def abort_timed_out(self) -> None:
        now_ms = self._node.clock.now_ms()
        for transactional_id in self.coordinator.timed_out(now_ms):
            if transactional_id in self._busy:
                continue
            logger.info("The transaction of '%s' has outlived its timeout and is aborted.", transactional_id)
            try:
                target = self.coordinator.abort_from_outside(transactional_id, now_ms)
                self._move(transactional_id, target, lambda error: None, "timeout")
            except ProtocolError as error:
                logger.error("The transaction of '%s' could not be aborted: %s", transactional_id, error)

    def expire(self) -> None:
        """Forget ids that nobody has used for long."""
        before_ms = self._node.clock.now_ms() - int(self._config["transactional.id.expiration.ms"])
        for transactional_id in self.coordinator.expired(before_ms):
            if transactional_id in self._busy:
                continue
            try:
                index = self._append(transactional_id, None)
            except ProtocolError as error:
                logger.error("Transactional id '%s' could not be forgotten: %s", transactional_id, error)
                continue
            self._busy[transactional_id] = deque()
            self.log.when_durable(index, partial(self._forgotten, transactional_id))

    def _forgotten(self, transactional_id: str, error: ErrorCode) -> None:
        """Or not, if the disk has lost that: then the id was read again from the log."""
        self._free(transactional_id)


def as_told_to_writers(error: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Writers are told 47 where others are told 90, and 48 for 120 unless they know that one."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error


class _Markers:
    """The markers of one transaction on their way to disk."""

    def __init__(self, owner: Transactions, node: Node, transactional_id: str, transaction: Transaction) -> None:
        self._owner = owner
        self._node = node
        self._id = transactional_id
        self._transaction = transaction
        self._marker = EndTxnMarker(transaction.state is State.PREPARE_COMMIT, COORDINATOR_EPOCH)
        self._left = set(transaction.partitions)
        """Partitions whose marker is not known to be on disk."""
        self._waiting = 0
        self._said: set[str] = set()

    def write(self) -> None:
        self._waiting = 1  # this loop itself: none of the partitions may end the round before it is through
        for where in sorted(self._left):
            self._mark(where)
        self._settle()

    def _mark(self, where: TopicPartition) -> None:
        partition = self._node.topics.partition(*where)
        if partition is None:
            self._left.discard(where)  # the topic was deleted, and its transactions with it
            return
        bumped = self._transaction.has_bumped_epoch
        try:
            end = self._owner.mark(
                partition, self._transaction.producer_id, self._transaction.epoch, self._marker, bumped=bumped
            )
        except ProtocolError as error:
            # A later epoch has written here, so somebody else has ended this transaction: an administrator, by hand.
            logger.warning("No marker of '%s' on %s-%d: %s", self._id, *where, error)
            self._left.discard(where)
        except StorageError as error:
            self._say(f"No marker of '{self._id}' on {where[0]}-{where[1]} yet", error)
        else:
            if end <= partition.log.high_watermark:
                self._left.discard(where)
            else:
                self._waiting += 1
                partition.when_durable(end, partial(self._durable, where))

    def _say(self, what: str, error: Exception) -> None:
        """Once: it is tried again every half second, and many transactions may have their markers on one disk."""
        if what not in self._said:
            self._said.add(what)
            logger.error("%s: %s", what, error)

    def _durable(self, where: TopicPartition, error: ErrorCode) -> None:
        if not error or error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._left.discard(where)
        self._settle()

    def _settle(self) -> None:
        self._waiting -= 1
        if self._waiting:
            return
        try:
            if not self._left:
                self._owner.marked(self._id, self._transaction)
                return
        except ProtocolError as error:
            self._say(f"The end of the transaction of '{self._id}' is not recorded yet", error)
        self._owner.stuck(self._id)
        self._node.call_later(MARKER_RETRY_S, self.write)

"""Deliberate defects of the broker, to see whether the verifier finds them.

Each function takes one protection away, for as long as the patch lasts. `DEFECTS` names the anomaly that a verdict has
to speak of then. None of them depends on the simulation: a broker process that applies one has it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from onceflow.broker.transactions import Transactions
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.offsets import CommittedOffset, Offsets
from onceflow.log import partition as log_partition
from onceflow.log import recovery
from onceflow.log.partition import PartitionLog
from onceflow.log.producers import BatchMemory, Producer, ProducerStates
from onceflow.log.recovery import Recovered
from onceflow.txn.coordinator import Coordinator
from onceflow.txn.transaction import Transaction
from onceflow.wire.batch import BatchHeader, read_header

__all__ = ["DEFECTS", "Defect"]

Patch = pytest.MonkeyPatch


class Defect(NamedTuple):
    switch_on: Callable[[Patch], None]
    anomaly: str
    """What the verdict has to name."""


# Producers


def deduplication_off(patch: Patch) -> None:
    """A repeat is written again."""
    check_sequence = ProducerStates._check_sequence

    def check(batch: BatchHeader, producer: Producer) -> BatchMemory | None:
        try:
            check_sequence(batch, producer)
        except ProtocolError as refused:
            if refused.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
        return None

    patch.setattr(ProducerStates, "_check_sequence", staticmethod(check))


def epoch_check_off_in_the_log(patch: Patch) -> None:
    """Whoever is fenced may go on writing."""
    check_sequence = ProducerStates._check_sequence

    def check(batch: BatchHeader, producer: Producer) -> BatchMemory | None:
        if batch.producer_epoch < producer.epoch:
            return None
        return check_sequence(batch, producer)

    complete = ProducerStates.complete

    def keep_epoch(self: ProducerStates, batch: BatchHeader, base_offset: int, now_ms: int) -> None:
        known = self.get(batch.producer_id)
        if known is not None and batch.producer_epoch < known.epoch:
            return
        complete(self, batch, base_offset, now_ms)

    patch.setattr(ProducerStates, "_check_sequence", staticmethod(check))
    patch.setattr(ProducerStates, "complete", keep_epoch)


def producers_forgotten_on_restart(patch: Patch) -> None:
    """What producers wrote last is not known any more after a start."""
    recover = recovery.recover

    def forgetful(*args: Any) -> Recovered:
        found = recover(*args)
        for _, producer in found.producers:
            producer.batches.clear()
            producer.epoch = -1
        return found

    patch.setattr(log_partition, "recover", forgetful)


# The coordinator


def epoch_check_off_in_the_coordinator(patch: Patch) -> None:
    """A zombie may add to its transaction and end it."""

    def known(self: Coordinator, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        current = self.get(transactional_id)
        if current is None:
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return current

    def end(self: Coordinator, transactional_id: str, producer_id: int, epoch: int, **rest: Any) -> Transaction | None:
        current = self.get(transactional_id)
        return proper_end(self, transactional_id, producer_id, epoch if current is None else current.epoch, **rest)

    proper_end = Coordinator.end
    patch.setattr(Coordinator, "_known", known)
    patch.setattr(Coordinator, "end", end)


def epoch_not_raised_by_the_end(patch: Patch) -> None:
    """Transactions V2 without what makes them: a late EndTxn decides about the next transaction."""
    ending = Transaction.ending

    def end(self: Transaction, event: Any, *, version: int, **rest: Any) -> Transaction:
        return ending(self, event, version=0, **rest)

    patch.setattr(Transaction, "ending", end)


def prepare_not_logged(patch: Patch) -> None:
    """The outcome of a transaction is in memory only."""
    append = Transactions._append

    def forgetful(self: Transactions, transactional_id: str, target: Transaction | None) -> int:
        if target is not None and target.state.is_prepared:
            self.coordinator.apply(transactional_id, target)
            return self.log.partition_of(transactional_id)
        return append(self, transactional_id, target)

    patch.setattr(Transactions, "_append", forgetful)


def partitions_not_logged(patch: Patch) -> None:
    """Which partitions a transaction has is in memory only, but for the first."""
    append = Transactions._append

    def forgetful(self: Transactions, transactional_id: str, target: Transaction | None) -> int:
        if target is not None and len(target.partitions) > 1 and not target.state.is_prepared:
            self.coordinator.apply(transactional_id, target)
            return self.log.partition_of(transactional_id)
        return append(self, transactional_id, target)

    patch.setattr(Transactions, "_append", forgetful)


def markers_not_written_again(patch: Patch) -> None:
    """After a crash in the middle of an end, only the first partition of the transaction gets its marker again."""
    resume = Transactions.resume

    def lazy(self: Transactions) -> None:
        for transactional_id in self.coordinator.prepared():
            transaction = self.coordinator.get(transactional_id)
            assert transaction is not None
            if transactional_id not in self._busy:
                kept = frozenset(sorted(transaction.partitions)[:1])
                self.coordinator.apply(transactional_id, replace(transaction, partitions=kept))
        resume(self)

    patch.setattr(Transactions, "resume", lazy)


# Readers


def last_stable_offset_ignored(patch: Patch) -> None:
    """Whoever reads committed records is shown everything up to the high watermark."""
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))


def aborted_list_empty(patch: Patch) -> None:
    """Readers are not told what was aborted."""
    patch.setattr(PartitionLog, "aborted_in", lambda self, offset, found: [])


def aborted_index_lost_on_restart(patch: Patch) -> None:
    """What was aborted is not known any more after a start."""
    recover = recovery.recover

    def forgetful(*args: Any) -> Recovered:
        found = recover(*args)
        for segment in found.segments:
            segment.forget_aborted(0)
        return found

    patch.setattr(log_partition, "recover", forgetful)


def high_watermark_ignored(patch: Patch) -> None:
    """Readers are shown what is not on disk yet."""
    write = PartitionLog._write

    def hasty(self: PartitionLog, *args: Any) -> int:
        offset = write(self, *args)
        self._set_high_watermark(self.active, self.active.size, self.end_offset)
        return offset

    patch.setattr(PartitionLog, "_write", hasty)


# The disk


def acknowledged_before_fsync(patch: Patch) -> None:
    """What is written counts, and nothing is synced."""
    open_log = PartitionLog.__init__

    def careless(self: PartitionLog, *args: Any, fsync: bool = True) -> None:
        open_log(self, *args, fsync=False)

    patch.setattr(PartitionLog, "__init__", careless)


def torn_tail_kept(patch: Patch) -> None:
    """A batch that is not whole stays in the log."""
    patch.setattr(recovery, "checksum", lambda batch: read_header(batch).crc)


def failed_fsync_ignored(patch: Patch) -> None:
    """A flush that failed counts as done."""
    run = log_partition.Flush.run

    def careless(self: log_partition.Flush) -> None:
        try:
            run(self)
        except Exception:
            return

    patch.setattr(log_partition.Flush, "run", careless)


# Groups


def offsets_applied_before_the_commit(patch: Patch) -> None:
    """Offsets of a transaction count at once."""

    def hasty(
        self: Offsets, producer_id: int, group: str, topic: str, partition: int, committed: CommittedOffset
    ) -> None:
        self.commit(group, topic, partition, committed)

    patch.setattr(Offsets, "commit_in_transaction", hasty)


def offsets_dropped_by_the_commit(patch: Patch) -> None:
    """Offsets of a transaction are gone when it has ended, whatever the end."""
    end = Offsets.end_transaction
    patch.setattr(Offsets, "end_transaction", lambda self, producer_id, commit: end(self, producer_id, False))


DEFECTS: dict[str, Defect] = {
    "deduplication off": Defect(deduplication_off, "duplicate"),
    "epoch check off in the log": Defect(epoch_check_off_in_the_log, "fenced write"),
    "producers forgotten on restart": Defect(producers_forgotten_on_restart, "duplicate"),
    "epoch check off in the coordinator": Defect(epoch_check_off_in_the_coordinator, "fenced write"),
    "epoch not raised by the end": Defect(epoch_not_raised_by_the_end, "lost write"),
    "prepare not logged": Defect(prepare_not_logged, "lost write"),
    "partitions not logged": Defect(partitions_not_logged, "torn transaction"),
    "markers not written again": Defect(markers_not_written_again, "torn transaction"),
    "last stable offset ignored": Defect(last_stable_offset_ignored, "read before commit"),
    "aborted list empty": Defect(aborted_list_empty, "aborted read"),
    "aborted index lost on restart": Defect(aborted_index_lost_on_restart, "aborted read"),
    "high watermark ignored": Defect(high_watermark_ignored, "taken back"),
    "acknowledged before fsync": Defect(acknowledged_before_fsync, "taken back"),
    "torn tail kept": Defect(torn_tail_kept, "phantom"),
    "failed fsync ignored": Defect(failed_fsync_ignored, "lost write"),
    "offsets applied before the commit": Defect(offsets_applied_before_the_commit, "lost write"),
    "offsets dropped by the commit": Defect(offsets_dropped_by_the_commit, "duplicate"),
}

"""Who has written what: the state that makes a producer's retry harmless.

Per producer id a partition remembers the epoch and the last five batches. Invariants:

- **The log is the truth.** This state is a function of the batches in the log up to some offset: replaying them through
  `complete` gives it again. A snapshot only saves the replay.
- **Decide, write, complete.** `check` looks and never changes anything; the batch is written; only then `complete`
  remembers it. A write that failed leaves no trace here, so its retry is a first attempt.
- A batch is a repeat if epoch, first and last sequence are those of one of the last five; content is not compared.
  Five, because a client has at most five requests in flight (`max.in.flight.requests.per.connection`).
- Sequences count records per (producer, partition), start at 0 with each epoch, and wrap from 2^31 - 1 to 0.

The answers are Kafka's (`ProducerAppendInfo`, `ProducerStateManager`):

    one of the last five again                      its first offset; nothing is written
    epoch lower than the last one seen              47 INVALID_PRODUCER_EPOCH
    a new epoch that does not start with sequence 0 45 OUT_OF_ORDER_SEQUENCE_NUMBER
    same epoch, not the next sequence               45 OUT_OF_ORDER_SEQUENCE_NUMBER
    a producer id never seen here (or expired)      accepted with any sequence; in transactions V2 only with 0 (45)
    outside a transaction while one is open         48 INVALID_TXN_STATE

TRANSACTIONS. The first transactional batch of a producer opens its transaction on this partition, a marker ends it. A
producer has at most one open here. A transaction is *undecided* until its marker is below the high watermark: what a
crash could take back decides nothing. `undecided_from` is where the first undecided one begins; `decide` has to be told
when the high watermark moves.

Coordinators write offsets for a producer into their own topic, with its id and epoch and without sequences. Of these
one is remembered, the last: the epoch counts, and compaction leaves it in the log so that it can be learned again.

The snapshot file has Kafka's format (`kafka-dump-log` reads it), with one liberty: Kafka saves only the last batch of
each producer, we save up to five, as entries of the same id, oldest first. A reader that keeps the last entry per id,
as Kafka does, sees what Kafka would have written; we do not forget four fifths of our memory in a restart.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import google_crc32c

from onceflow.errors import CorruptLog, ErrorCode, ProtocolError
from onceflow.log.aborted import AbortedTransaction
from onceflow.wire.batch import MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_SEQUENCE, BatchHeader
from onceflow.wire.records import EndTxnMarker

__all__ = ["BatchMemory", "Producer", "ProducerStates"]

REMEMBERED_BATCHES: Final = 5
EPOCH_MAX: Final = 2**15 - 1

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_SNAPSHOT_COUNT: Final = struct.Struct(">i")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")


class BatchMemory(NamedTuple):
    """What is remembered of a batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


@dataclass(slots=True)
class Producer:
    """One producer id on one partition."""

    epoch: int
    batches: list[BatchMemory] = field(default_factory=list)
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1
    seen_ms: int = 0
    """When it last wrote, by our clock: what expiry goes by (a producer's own timestamps may lie years back)."""
    last_timestamp: int = -1

    @property
    def is_in_transaction(self) -> bool:
        return self.transaction_first_offset >= 0

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerStates:
    """All producers of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}
        """Producers with an open transaction and where it begins; in the order of beginning."""
        self._ended: deque[tuple[int, int]] = deque()
        """Transactions whose marker may not be below the high watermark yet: (offset of the marker, first offset)."""

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def in_transactions(self) -> Iterator[tuple[int, Producer]]:
        """Those with an open transaction here, the oldest one first."""
        return ((producer_id, self._producers[producer_id]) for producer_id in self._open)

    def newest(self) -> Iterator[tuple[int, Producer]]:
        """All, those that came last first."""
        return ((producer_id, self._producers[producer_id]) for producer_id in reversed(self._producers))

    def check(self, batch: BatchHeader, *, new_from_zero: bool = False) -> BatchMemory | None:
        """None if `batch` may be appended, the earlier batch if it is a repeat; a refusal raises `ProtocolError`.

        `new_from_zero` is asked of transactions V2, where a producer that is not known here cannot have written before.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            if new_from_zero and batch.base_sequence > 0:
                raise ProtocolError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Producer {batch.producer_id} is new here and sent sequence {batch.base_sequence} instead of 0.",
                )
            return None
        earlier = self._check_sequence(batch, producer)
        if earlier is None and producer.is_in_transaction and not batch.is_transactional:
            raise ProtocolError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {batch.producer_id} has an open transaction here and wrote outside of it.",
            )
        return earlier

    @staticmethod
    def _check_sequence(batch: BatchHeader, producer: Producer) -> BatchMemory | None:
        if batch.base_sequence == NO_SEQUENCE and batch.producer_epoch >= producer.epoch:
            return None  # a coordinator writes for the producer, and does not count
        if batch.producer_epoch == producer.epoch:
            last = batch.last_sequence
            for earlier in producer.batches:
                if earlier.last_sequence == last and earlier.offset_delta == batch.last_offset_delta:
                    return earlier
            # Without batches the epoch began with a marker (KIP-890): its first batch has to be the first one.
            expected = (producer.batches[-1].last_sequence + 1) & MAX_SEQUENCE if producer.batches else 0
            if batch.base_sequence != expected:
                raise ProtocolError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Producer {batch.producer_id} sent sequence {batch.base_sequence}; {expected} comes next.",
                )
            return None
        if batch.producer_epoch < producer.epoch:
            raise ProtocolError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Producer {batch.producer_id} wrote with epoch {batch.producer_epoch}, but epoch {producer.epoch} "
                "has taken over.",
            )
        if batch.base_sequence != 0 and producer.epoch != NO_PRODUCER_EPOCH:
            raise ProtocolError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {batch.producer_id} began epoch {batch.producer_epoch} with sequence "
                f"{batch.base_sequence} instead of 0.",
            )
        return None

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, *, bumped: bool) -> None:
        """Raise `ProtocolError` if a marker comes from a coordinator, or for an epoch, that is past.

        With `bumped` the marker carries the epoch after that of its transaction (V2), so an open transaction of the
        marker's own epoch is a later one, which this marker must not end. (The last epoch there is cannot be bumped.)
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        is_of_earlier_one = bumped and epoch == producer.epoch < EPOCH_MAX and producer.is_in_transaction
        if epoch < producer.epoch or is_of_earlier_one:
            raise ProtocolError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"A marker for epoch {epoch} of producer {producer_id}, which is at epoch {producer.epoch}.",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise ProtocolError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"A marker of coordinator epoch {coordinator_epoch} after one of {producer.coordinator_epoch}.",
            )

    def complete(self, batch: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Remember a batch of data that is in the log at `base_offset`."""
        producer = self._touch(batch, now_ms)
        batches = producer.batches
        if batch.base_sequence == NO_SEQUENCE and batches and batches[-1].last_sequence == NO_SEQUENCE:
            del batches[-1]
        delta = batch.last_offset_delta
        batches.append(BatchMemory(batch.last_sequence, base_offset + delta, delta, batch.max_timestamp))
        if len(batches) > REMEMBERED_BATCHES:
            del batches[0]
        # What compaction has emptied opens nothing: its transaction ended long ago.
        if batch.is_transactional and not producer.is_in_transaction and batch.count:
            producer.transaction_first_offset = base_offset
            self._open[batch.producer_id] = base_offset

    def complete_marker(
        self, batch: BatchHeader, marker: EndTxnMarker | None, offset: int, now_ms: int
    ) -> AbortedTransaction | None:
        """Remember a marker that is in the log at `offset`; what it aborted, if anything.

        The marker is None if compaction has emptied the batch: its transaction is gone, but the epoch counts.
        """
        producer = self._touch(batch, now_ms)
        if marker is None:
            return None
        producer.coordinator_epoch = marker.coordinator_epoch
        if not producer.is_in_transaction:
            return None
        first_offset = producer.transaction_first_offset
        producer.transaction_first_offset = -1
        del self._open[batch.producer_id]
        self._ended.append((offset, first_offset))
        if marker.commit:
            return None
        last_stable_offset = next(iter(self._open.values()), offset + 1)
        return AbortedTransaction(batch.producer_id, first_offset, offset, last_stable_offset)

    def _touch(self, batch: BatchHeader, now_ms: int) -> Producer:
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._producers[batch.producer_id] = Producer(batch.producer_epoch)
        elif producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        producer.seen_ms = now_ms
        producer.last_timestamp = batch.max_timestamp
        return producer

    def decide(self, high_watermark: int) -> None:
        """What ended below the high watermark is decided."""
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()

    def undecided_from(self, high_watermark: int) -> int:
        """Where the first undecided transaction begins; the high watermark, if there is none."""
        if not self._open and not self._ended:  # as for every fetch from a log without transactions
            return high_watermark
        first = min(next(iter(self._open.values()), high_watermark), high_watermark)
        for marker_offset, first_offset in self._ended:
            if marker_offset >= high_watermark:
                first = min(first, first_offset)
        return first

    def expire(self, before_ms: int) -> int:
        """Forget producers last seen before a time, except in an open transaction. Returns how many."""
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.seen_ms < before_ms and not producer.is_in_transaction
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        return len(idle)

    # Snapshots

    def to_snapshot(self) -> bytes:
        entries = bytearray()
        count = 0
        for producer_id, producer in self._producers.items():
            for batch in producer.batches or [BatchMemory(-1, -1, 0, producer.last_timestamp)]:
                entries += _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.offset_delta,
                    batch.timestamp,
                    producer.coordinator_epoch,
                    producer.transaction_first_offset,
                )
                count += 1
        body = _SNAPSHOT_COUNT.pack(count) + entries
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, google_crc32c.value(body)) + body

    @classmethod
    def from_snapshot(cls, data: bytes, now_ms: int) -> ProducerStates:
        states = cls()
        for entry in read_snapshot(data):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = entry
            producer = states._producers.setdefault(producer_id, Producer(epoch))
            producer.epoch = epoch
            producer.coordinator_epoch = coordinator_epoch
            producer.transaction_first_offset = first_offset
            producer.seen_ms = now_ms
            producer.last_timestamp = timestamp
            if last_offset >= 0:
                producer.batches.append(BatchMemory(last_sequence, last_offset, delta, timestamp))
        begun = sorted((producer.transaction_first_offset, id) for id, producer in states if producer.is_in_transaction)
        states._open = {id: first_offset for first_offset, id in begun}
        return states


def read_snapshot(data: bytes) -> list[tuple[int, int, int, int, int, int, int, int]]:
    """The raw entries of a snapshot file, or `CorruptLog`."""
    body_at = _SNAPSHOT_HEAD.size
    entries_at = body_at + _SNAPSHOT_COUNT.size
    if len(data) < entries_at:
        raise CorruptLog("The producer snapshot is cut short.")
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptLog(f"The producer snapshot has version {version}; {_SNAPSHOT_VERSION} is known.")
    if google_crc32c.value(data[body_at:]) != crc:
        raise CorruptLog("The producer snapshot fails its checksum.")
    (count,) = _SNAPSHOT_COUNT.unpack_from(data, body_at)
    if len(data) - entries_at != count * _SNAPSHOT_ENTRY.size:
        raise CorruptLog("The producer snapshot does not hold as many entries as it says.")
    return list(_SNAPSHOT_ENTRY.iter_unpack(data[entries_at:]))

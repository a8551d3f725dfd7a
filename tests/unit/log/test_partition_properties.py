"""Whatever happens to a partition's log, in whatever order, against a model that is a list of batches.

A history is a list of steps `(name, a, b)`; the two numbers say which producer, how many bytes, which seed. Any history
makes sense, so Hypothesis can leave out steps of one that fails until the few that matter remain. Appends, rounds of
group commit and checkpoints that begin, run and end at different times, full disks, failing syncs, deaths after any
byte and any step, also while the log is being opened, loss of power, clean ends. Some producers write in transactions
and one has offsets written for it by a coordinator; markers commit and abort, with and without a new epoch. What is
open and what was aborted follows from the list of batches. (Compaction has machines of its own, in its tests.)

`Machine` takes the steps and holds what must be true. Jobs for the disk run in the order in which they began and are
settled in that order, as in `broker.group_commit`; a flush begins when the one before it has run, and if that failed,
when the failure was settled.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceflow.clock import ManualClock
from onceflow.config import TopicConfig
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.log.by_time import TimestampedOffset
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.log.partition import Appended, Checkpoint, Flush, PartitionLog
from onceflow.log.producers import REMEMBERED_BATCHES
from onceflow.wire.batch import NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader, read_header
from onceflow.wire.records import EndTxnMarker, Record, read_records
from tests.support.at_once import accept, at_once
from tests.support.effort import examples
from tests.unit.log.support import DIRECTORY, make_batch, read_all, read_committed

Step = tuple[str, int, int]

TRANSACTIONAL = (3, 4, 5)
"""Producers 0 to 2 know no transactions."""
COORDINATED = 6
"""For this one a coordinator writes, in transactions and without sequences."""


@dataclass
class Stored:
    """A batch that is in the log."""

    data: bytes
    header: BatchHeader = field(init=False)
    records: list[Record] = field(init=False)

    def __post_init__(self) -> None:
        self.header = read_header(self.data)
        self.records = list(read_records(self.data))

    @property
    def first(self) -> int:
        return self.header.base_offset

    @property
    def last(self) -> int:
        return self.header.last_offset

    @property
    def marker(self) -> EndTxnMarker | None:
        return EndTxnMarker.read(self.records[0]) if self.header.is_control else None


@dataclass
class Transaction:
    producer_id: int
    batches: list[Stored]
    end: Stored | None = None
    """Its marker."""


@dataclass
class Job:
    work: Flush | Checkpoint
    covers: int
    """The end of the log when it began."""
    outcome: bool | None = None
    """None until it has run, then whether it succeeded."""
    is_void: bool = False
    """A failed flush has taken back what it was about."""


class Machine:
    def __init__(self, *, fsync: bool, append_time: bool = False) -> None:
        self.fsync = fsync
        self.config = TopicConfig(
            segment_bytes=400,
            index_interval_bytes=100,
            retention_bytes=700,
            retention_ms=1000,
            append_time=append_time,
        )
        self.clock = ManualClock()
        self.files = MemoryFileSystem()
        self.sent = 0
        self.batches: list[Stored] = []
        """All that was ever appended and not taken back, also what retention has freed."""
        self.start = self.high_watermark = 0
        self.possible_starts = (0, 0)
        """After a death the log start may be anything between what is certain and what was tried."""
        self.checkpoints = {0}
        self.jobs: list[Job] = []
        self.takes_back = False
        """A flush has failed and what it covered could not be cut off yet."""
        self.in_doubt: memoryview | None = None
        """What is being appended while we may die."""
        self.marker_in_doubt: tuple[int, int] | None = None
        """The producer and the epoch of a marker, likewise."""
        self.log = self.open()

    # What must be true

    @property
    def end(self) -> int:
        return max(self.batches[-1].last + 1 if self.batches else 0, self.start)

    def take(self, step: Step) -> None:
        name, a, b = step
        try:
            getattr(self, name)(a, b)
            self.check(a + b)
        except SimulatedCrash:
            self.die(a, b)

    def check(self, salt: int) -> None:
        """After every step: the four offsets, and a read somewhere."""
        log = self.log
        assert log.start_offset <= log.last_stable_offset <= log.high_watermark <= log.end_offset
        assert log.start_offset == self.start
        assert log.high_watermark == self.high_watermark
        assert log.end_offset == self.end or (self.takes_back and log.end_offset >= self.high_watermark)
        assert log.last_stable_offset == self.stable
        assert log.read(log.high_watermark, 1 << 20) == b""
        for offset in (log.start_offset - 1, log.end_offset + 1):
            with pytest.raises(ProtocolError) as refused:
                log.read(offset, 1)
            assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        if self.start < self.high_watermark:
            self.check_read(self.start + salt % (self.high_watermark - self.start))

    def check_read(self, offset: int) -> None:
        expected = next(batch for batch in self.readable() if batch.last >= offset)
        assert self.log.read(offset, 1) == expected.data
        assert self.log.read(offset, 1, at_least_one=False) == b""

    def check_all(self) -> None:
        """Every batch once and in order, each found by every offset and time in it; every producer remembered."""
        readable = self.readable()
        assert [batch for _, batch in read_all(self.log)] == [batch.data for batch in readable]
        for offset in range(self.start, self.high_watermark):
            self.check_read(offset)
        records = [record for batch in readable for record in batch.records if record.offset >= self.start]
        stamps = {record.timestamp for record in records}
        for stamp in stamps | {stamp + 1 for stamp in stamps} | {0}:
            first = next((r for r in records if r.timestamp >= stamp), None)
            assert at_once(self.log.first_offset_at(stamp)) == _found(first), f"first at {stamp}"
            stable = at_once(self.log.first_offset_at(stamp, self.stable))
            assert stable == _found(first, self.stable), f"stable at {stamp}"
        newest = max(records, key=lambda record: (record.timestamp, -record.offset), default=None)
        assert at_once(self.log.offset_of_newest()) == _found(newest), "newest"
        assert at_once(self.log.offset_of_newest(self.stable)) == _found(newest, self.stable), "newest stable"
        self.check_committed()
        if not self.takes_back:
            self.check_producers()

    def check_committed(self) -> None:
        """A reader of what is committed gets all of it, in order, and nothing else, in pieces of any size."""
        aborted = {
            batch.first
            for transaction in self.transactions()
            if transaction.end is not None and transaction.end.marker == EndTxnMarker(False, 0)
            for batch in transaction.batches
        }
        expected = [
            record
            for batch in self.readable()
            if batch.last < self.stable and batch.first not in aborted and not batch.header.is_control
            for record in batch.records
            if record.offset >= self.start
        ]
        for max_bytes in (1, 250, 1 << 20):
            assert read_committed(self.log, max_bytes) == expected

    def transactions(self) -> list[Transaction]:
        """All there were, in the order of their beginning."""
        found: list[Transaction] = []
        opened: dict[int, Transaction] = {}
        for batch in self.batches:
            producer_id = batch.header.producer_id
            if batch.header.is_control:
                if producer_id in opened:
                    opened.pop(producer_id).end = batch
            elif batch.header.is_transactional:
                if producer_id not in opened:
                    opened[producer_id] = Transaction(producer_id, [])
                    found.append(opened[producer_id])
                opened[producer_id].batches.append(batch)
        return found

    @property
    def stable(self) -> int:
        """Where the first transaction begins that has no marker below the high watermark."""
        undecided = [t for t in self.transactions() if t.end is None or t.end.last >= self.high_watermark]
        first = min((t.batches[0].first for t in undecided), default=self.high_watermark)
        return max(min(first, self.high_watermark), self.start)

    def is_in_transaction(self, producer_id: int) -> bool:
        return any(t.producer_id == producer_id and t.end is None for t in self.transactions())

    def check_producers(self) -> None:
        opened = {t.producer_id: t.batches[0].first for t in self.transactions() if t.end is None}
        known = {id: p.transaction_first_offset for id, p in self.log.producers if p.is_in_transaction}
        assert known == opened
        remembered = {
            producer_id: (producer.epoch, [(b.first_sequence, b.first_offset, b.last_offset) for b in producer.batches])
            for producer_id, producer in self.log.producers
        }
        expected = {}
        for producer_id in {batch.header.producer_id for batch in self.batches} - {NO_PRODUCER_ID}:
            epoch, last = self.memory_of(producer_id)
            expected[producer_id] = (epoch, [(b.header.base_sequence, b.first, b.last) for b in last])
        assert remembered == expected

    def readable(self) -> list[Stored]:
        return [batch for batch in self.batches if batch.last >= self.start and batch.last < self.high_watermark]

    def memory_of(self, producer_id: int) -> tuple[int, list[Stored]]:
        """The epoch of a producer and its last five batches in it."""
        written = [batch for batch in self.batches if batch.header.producer_id == producer_id]
        epoch = written[-1].header.producer_epoch if written else -1
        data = [b for b in written if b.header.producer_epoch == epoch and not b.header.is_control]
        return epoch, data[-1:] if producer_id == COORDINATED else data[-REMEMBERED_BATCHES:]

    def expected_answer(self, header: BatchHeader) -> Stored | ErrorCode | None:
        """The earlier batch for a repeat, a code for a refusal, None for a new batch."""
        known, last = self.memory_of(header.producer_id)
        sequence = header.base_sequence
        if header.producer_epoch < known:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if known == -1 or sequence == NO_SEQUENCE:
            return None
        if header.producer_epoch > known:
            fits = sequence == 0
        else:
            for batch in last:
                if (batch.header.base_sequence, batch.header.count) == (sequence, header.count):
                    return batch
            fits = sequence == (last[-1].header.last_sequence + 1 if last else 0)
        if not fits:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        is_outside = self.is_in_transaction(header.producer_id) and not header.is_transactional
        return ErrorCode.INVALID_TXN_STATE if is_outside else None

    # Appending

    def plain(self, a: int, b: int) -> None:
        self.append(None, 1 + a % 3, b)

    def next(self, a: int, b: int) -> None:
        """The batch that a producer has to send next."""
        epoch, last = self.memory_of(a % 3)
        sequence = last[-1].header.last_sequence + 1 if last else a % 2  # a producer that expired may begin anywhere
        self.append((a % 3, max(epoch, 0), sequence), 1 + b % 3, b)

    def repeat(self, a: int, b: int) -> None:
        """One of the last six batches again: five are recognised, the sixth is out of order."""
        epoch, _ = self.memory_of(a % 3)
        written = [s.header for s in self.batches if s.header.producer_id == a % 3 and s.header.producer_epoch == epoch]
        if written:
            again = written[-6:][b % len(written[-6:])]
            self.append((a % 3, epoch, again.base_sequence), again.count, b)

    def gap(self, a: int, b: int) -> None:
        epoch, last = self.memory_of(a % 3)
        if last:
            self.append((a % 3, epoch, last[-1].header.last_sequence + 2 + b % 4), 1, b)

    def new_epoch(self, a: int, b: int) -> None:
        epoch, _ = self.memory_of(a % 3)
        self.append((a % 3, epoch + 1, int(b % 8 == 0)), 1 + b % 3, b)

    def old_epoch(self, a: int, b: int) -> None:
        epoch, _ = self.memory_of(a % 3)
        if epoch > 0:
            self.append((a % 3, epoch - 1, b % 4), 1, b)

    # Transactions

    def transactional(self, a: int, b: int) -> None:
        """The next batch of a producer, in its transaction; now and then, by mistake, outside of it."""
        producer_id = TRANSACTIONAL[a % 3]
        epoch, last = self.memory_of(producer_id)
        sequence = last[-1].header.last_sequence + 1 if last else 0
        self.append((producer_id, max(epoch, 0), sequence), 1 + b % 3, b, transactional=b % 16 > 0)

    def repeat_transactional(self, a: int, b: int) -> None:
        producer_id = TRANSACTIONAL[a % 3]
        epoch, last = self.memory_of(producer_id)
        if last:
            again = last[b % len(last)].header
            self.append((producer_id, epoch, again.base_sequence), again.count, b, transactional=True)

    def coordinated(self, a: int, b: int) -> None:
        epoch, _ = self.memory_of(COORDINATED)
        if epoch > 0 and b % 8 == 0:
            epoch -= 1  # a zombie
        self.append((COORDINATED, max(epoch, 0), NO_SEQUENCE), 1 + a % 2, b, transactional=True)

    def commit(self, a: int, b: int) -> None:
        self.end_transaction(a, b, commit=True)

    def abort(self, a: int, b: int) -> None:
        self.end_transaction(a, b, commit=False)

    def end_transaction(self, a: int, b: int, *, commit: bool) -> None:
        """V1 in the same epoch, V2 in the next; a retry of V2, which has the same; or one that comes too late."""
        producer_id = (*TRANSACTIONAL, COORDINATED)[a % 4]
        before = max(self.memory_of(producer_id)[0], 0)
        usual = [(before, False), (before + 1, True)] * 4
        unusual = [(before, True), (before - 1, True), (before - 1, False), (before + 1, False)]
        epoch, bumped = [*usual, *unusual][b % 12]
        if epoch < 0:
            return
        self.marker_in_doubt = (producer_id, epoch)
        size = self.log.size
        try:
            answer: int | ErrorCode = self.log.append_marker(producer_id, epoch, EndTxnMarker(commit, 0), bumped=bumped)
        except ProtocolError as refused:
            answer = refused.code
        except StorageError:
            answer = ErrorCode.KAFKA_STORAGE_ERROR
        if self.takes_back and not self.log._needs_repair:
            self.took_back()
            size = self.log.size
        self.marker_in_doubt = None
        known, _ = self.memory_of(producer_id)
        is_late = epoch < known or (bumped and epoch == known and self.is_in_transaction(producer_id))
        if isinstance(answer, ErrorCode):
            expected = ErrorCode.INVALID_PRODUCER_EPOCH if is_late else ErrorCode.KAFKA_STORAGE_ERROR
            assert answer == expected or (self.takes_back and answer == ErrorCode.KAFKA_STORAGE_ERROR)
            assert self.takes_back or self.log.size <= size
            return
        assert not is_late
        assert answer == self.end
        *_, (_, _, written) = self.log.active.batches()
        self.batches.append(Stored(written))
        assert self.batches[-1].marker == EndTxnMarker(commit, 0)
        if not self.fsync:
            self.high_watermark = self.end

    def append(
        self, producer: tuple[int, int, int] | None, count: int, salt: int, *, transactional: bool = False
    ) -> None:
        self.sent += 1
        stamps = [self.clock.now_ms() + (salt * 7 + at * 3) % 40 for at in range(count)]
        value = b"%d:" % self.sent + bytes(salt % 50)
        batch = make_batch(count, producer=producer, timestamps=stamps, value=value, transactional=transactional)
        view, header = memoryview(batch), read_header(batch)
        if producer is None or producer[2] != NO_SEQUENCE:
            view, header = accept(view, self.config, self.clock.now_ms())
        self.in_doubt = view
        if self.takes_back:
            self.append_after_failed_flush(view, header)
        else:
            expected = self.expected_answer(header) if producer is not None else None
            size = self.log.size
            answer = self.try_append(view, header)
            if answer is None or isinstance(answer, ErrorCode):
                assert answer == expected
                assert self.log.size == size
            else:
                self.appended(answer, expected, view)
        self.in_doubt = None

    def try_append(self, view: memoryview, header: BatchHeader) -> Appended | ErrorCode | None:
        """What the log says; None if the disk refuses."""
        try:
            return self.log.append(view, header)
        except ProtocolError as refused:
            return refused.code
        except StorageError:
            return None

    def append_after_failed_flush(self, view: memoryview, header: BatchHeader) -> None:
        """Either the disk still refuses and nothing moves, or the log goes back to the high watermark first."""
        answer = self.try_append(view, header)
        if answer is None and self.log._needs_repair:
            return
        self.took_back()
        expected = self.expected_answer(header) if header.producer_id != NO_PRODUCER_ID else None
        if answer is None or isinstance(answer, ErrorCode):
            assert answer == expected
        else:
            self.appended(answer, expected, view)

    def appended(self, answer: Appended, expected: Stored | ErrorCode | None, view: memoryview) -> None:
        assert not isinstance(expected, ErrorCode), f"accepted what should be {expected!r}"
        assert answer.repeated == (expected is not None)
        if expected is not None:
            assert answer.base_offset == expected.first
            return
        assert answer.base_offset == self.end
        self.batches.append(Stored(bytes(view)))
        if not self.fsync:
            self.high_watermark = self.end

    # The disk thread

    def begin_flush(self, a: int, b: int) -> None:
        flushes = [job for job in self.jobs if isinstance(job.work, Flush)]
        if all(job.outcome for job in flushes) and not self.takes_back and self.fsync:
            self.jobs.append(Job(self.log.begin_flush(), self.end))

    def begin_checkpoint(self, a: int, b: int) -> None:
        try:
            work = self.log.begin_checkpoint()
        except StorageError:
            return
        if work is not None:
            self.jobs.append(Job(work, self.end))

    def run_job(self, a: int, b: int) -> None:
        job = next((job for job in self.jobs if job.outcome is None), None)
        if job is None:
            return
        try:
            job.work.run()
            job.outcome = True
        except StorageError:
            job.outcome = False
        if isinstance(job.work, Checkpoint) and job.outcome and not job.is_void:
            self.checkpoints.add(job.covers)

    def settle_job(self, a: int, b: int) -> None:
        if not self.jobs or self.jobs[0].outcome is None:
            return
        job = self.jobs.pop(0)
        if isinstance(job.work, Checkpoint):
            if job.outcome:
                self.log.complete_checkpoint(job.work)
        elif job.outcome:
            self.log.complete_flush(job.work)
            if not job.is_void:
                self.high_watermark = max(self.high_watermark, job.covers)
        else:
            self.fail_flush()

    def fail_flush(self) -> None:
        self.takes_back = True
        for job in self.jobs:
            job.is_void = True
        self.checkpoints = {offset for offset in self.checkpoints if offset <= self.high_watermark}
        self.log.fail_flush()
        if not self.log._needs_repair:
            self.took_back()

    def took_back(self) -> None:
        self.takes_back = False
        self.batches = [batch for batch in self.batches if batch.last < self.high_watermark]

    def flush(self, a: int, b: int) -> None:
        self.drain(a, b)
        self.begin_flush(a, b)
        self.drain(a, b)

    def checkpoint(self, a: int, b: int) -> None:
        self.drain(a, b)
        self.begin_checkpoint(a, b)
        self.drain(a, b)

    def drain(self, a: int, b: int) -> None:
        while self.jobs:
            self.run_job(a, b)
            self.settle_job(a, b)

    # Letting go of the old

    def delete_before(self, a: int, b: int) -> None:
        offset = self.start + a % (self.high_watermark - self.start + 1)
        self.forget(lambda: self.log.delete_before(offset), offset)

    def delete_too_much(self, a: int, b: int) -> None:
        with pytest.raises(ProtocolError) as refused:
            self.log.delete_before(self.high_watermark + 1 + a)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    def apply_retention(self, a: int, b: int) -> None:
        self.clock.advance(a * 4)
        self.forget(lambda: self.log.apply_retention(self.clock.now_ms()), self.high_watermark)
        assert self.log.start_offset in {0, self.end} | {batch.first for batch in self.batches} | {self.start}

    def forget(self, action: Callable[[], object], limit: int) -> None:
        """The log start moves, up to a limit; when the disk refuses, the next process may find that it has moved."""
        before = self.start
        certain, tried = self.possible_starts
        self.possible_starts = (certain, max(tried, limit))
        try:
            action()
        except StorageError:
            assert self.log.start_offset in (before, limit)
        self.start = self.log.start_offset
        assert before <= self.start <= limit
        if self.start > before:
            self.possible_starts = (self.start, self.start)

    def roll(self, a: int, b: int) -> None:
        with contextlib.suppress(StorageError):
            self.log.roll()

    def wait(self, a: int, b: int) -> None:
        self.clock.advance(a)

    def look(self, a: int, b: int) -> None:
        self.check_all()

    # What goes wrong

    def fail_write(self, a: int, b: int) -> None:
        self.files.write_failure = (a % 3, b % 56)  # less than a header

    def fail_sync(self, a: int, b: int) -> None:
        self.files.sync_failures = 1 + a % 3

    def die_after_bytes(self, a: int, b: int) -> None:
        self.files.bytes_until_crash = 1 + a * 2

    def die_after_steps(self, a: int, b: int) -> None:
        self.files.steps_until_crash = a % 24

    def die(self, a: int, b: int) -> None:
        """`kill -9`, or loss of power; and the next process may die while it starts."""
        kill = everything = a % 2 == 0
        doomed = b % 4 == 0 and (
            self.fsync or kill
        )  # without `fsync`, nobody promises anything for two losses of power
        while True:
            self.files = self.files.kill() if kill else self.files.crash(random.Random(a * 256 + b))
            everything = everything and kill
            self.jobs.clear()
            if doomed:
                self.files.steps_until_crash = b % 16
            try:
                log = self.open()
            except SimulatedCrash:
                kill, doomed = b % 8 != 0, False
                continue
            break
        self.files.steps_until_crash = None
        self.log = log
        self.came_back(everything=everything)

    def close(self, a: int, b: int) -> None:
        """A clean end."""
        self.drain(a, b)
        clean = not self.log._needs_repair
        try:
            self.log.close()
        except StorageError:
            clean = False
        self.files = self.files.kill()
        self.log = self.open()
        self.came_back(everything=True)
        if clean:
            assert self.log.recovered.scanned_bytes == 0

    def open(self) -> PartitionLog:
        return PartitionLog(self.files, DIRECTORY, self.config, self.clock, fsync=self.fsync)

    def came_back(self, *, everything: bool) -> None:
        """After a start: what was acknowledged is there, and beyond that the log is what it once was."""
        log = self.log
        certain = self.high_watermark
        if everything and not self.takes_back:
            certain = self.end
        elif not everything and not self.fsync:
            certain = max(self.checkpoints)
        if self.in_doubt is not None:
            base = read_header(self.in_doubt).base_offset
            if log.start_offset <= base < log.end_offset and log.read(base, 1) == bytes(self.in_doubt):
                self.batches = [batch for batch in self.batches if batch.last < base] + [Stored(bytes(self.in_doubt))]
            self.in_doubt = None
        self.find_marker_in_doubt()
        certain_start, tried_start = self.possible_starts
        assert certain_start <= log.start_offset <= tried_start
        self.start = log.start_offset
        assert log.end_offset >= certain, f"lost: ends at {log.end_offset}, {certain} was certain"
        self.takes_back = False
        before = self.batches
        if self.fsync or everything:
            self.batches = [batch for batch in self.batches if batch.last < log.end_offset]
        else:  # without `fsync`, loss of power may make holes before the log start, where nobody sees them
            known = {header.base_offset for segment in log.segments for _, header in segment.headers(0)}
            known |= {batch.first_offset for _, producer in log.producers for batch in producer.batches}
            # What only the snapshot knows of.
            known |= {
                batch.first
                for batch in self.batches
                if batch.first < log.recovered.checkpoint and log.producers.get(batch.header.producer_id)
            }
            self.batches = [batch for batch in self.batches if batch.first in known]
        assert log.end_offset == self.end
        self.high_watermark = log.end_offset
        assert log.recovered.checkpoint >= max((c for c in self.checkpoints if c <= self.end), default=0)
        above = sum(len(batch.data) for batch in before if batch.first >= log.recovered.checkpoint)
        assert log.recovered.scanned_bytes <= above
        self.check_all()

    def find_marker_in_doubt(self) -> None:
        """It was written at the end, or at the high watermark if what was above had to be taken back first."""
        if self.marker_in_doubt is None:
            return
        producer_id, epoch = self.marker_in_doubt
        self.marker_in_doubt = None
        for base in (self.high_watermark, self.end):
            if not self.log.start_offset <= base < self.log.end_offset:
                continue
            found = Stored(self.log.read(base, 1))
            is_ours = found.header.is_control and found.header[9:11] == (producer_id, epoch)
            if is_ours and all(batch.data != found.data for batch in self.batches):
                self.batches = [batch for batch in self.batches if batch.last < base] + [found]
                return


def _found(record: Record | None, limit: int | None = None) -> TimestampedOffset:
    if record is None or (limit is not None and record.offset >= limit):
        return TimestampedOffset(-1, -1)
    return TimestampedOffset(record.timestamp, record.offset)


WEIGHTS = {
    "next": 10,
    "plain": 3,
    "repeat": 5,
    "gap": 1,
    "new_epoch": 2,
    "old_epoch": 1,
    "transactional": 8,
    "repeat_transactional": 1,
    "coordinated": 2,
    "commit": 4,
    "abort": 4,
    "flush": 4,
    "begin_flush": 4,
    "begin_checkpoint": 3,
    "run_job": 6,
    "settle_job": 6,
    "checkpoint": 2,
    "delete_before": 1,
    "delete_too_much": 1,
    "apply_retention": 1,
    "roll": 1,
    "wait": 1,
    "look": 1,
    "fail_write": 2,
    "fail_sync": 2,
    "die_after_bytes": 1,
    "die_after_steps": 1,
    "die": 2,
    "close": 1,
}
NAMES = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
STEP = st.tuples(st.sampled_from(NAMES), st.integers(0, 255), st.integers(0, 255))
# Long ones find more, and short ones are what a failure is reduced to.
HISTORIES = st.sampled_from([0, 30, 60]).flatmap(lambda size: st.lists(STEP, min_size=size, max_size=size + 30))


def run(steps: list[Step], *, fsync: bool, append_time: bool = False) -> None:
    machine = Machine(fsync=fsync, append_time=append_time)
    for step in steps:
        machine.take(step)
    machine.files.write_failure = None
    machine.files.sync_failures = 0
    machine.files.bytes_until_crash = machine.files.steps_until_crash = None
    machine.check_all()
    machine.close(0, 0)


DEATH_IN_A_REPAIR: list[Step] = [
    *[("next", 0, 0)] * 7,
    ("next", 0, 242),
    ("checkpoint", 0, 0),
    *[("next", 0, 0)] * 6,
    ("fail_sync", 0, 0),
    ("die_after_steps", 103, 0),
    ("flush", 1, 97),
]
"""Of what a repair removed, a snapshot and the last segment came back, without the segments in between."""


@examples(70, soak=20_000)
@given(steps=HISTORIES, append_time=st.sampled_from([False, False, True]))
@example(steps=DEATH_IN_A_REPAIR, append_time=False)
def test_what_was_acknowledged_survives_everything(steps: list[Step], append_time: bool) -> None:
    run(steps, fsync=True, append_time=append_time)


@examples(30, soak=10_000)
@given(steps=HISTORIES, append_time=st.sampled_from([False, False, True]))
def test_what_was_written_survives_the_process(steps: list[Step], append_time: bool) -> None:
    run(steps, fsync=False, append_time=append_time)

"""Transactions on one partition: what is stable, what a read_committed reader is told, and what a restart remembers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from onceflow.clock import ManualClock
from onceflow.config import TopicConfig
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.log.by_time import TimestampedOffset
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.log.partition import PartitionLog
from onceflow.log.producers import ProducerStates
from onceflow.log.segment import ABORTED_SUFFIX
from onceflow.wire.records import EndTxnMarker
from tests.support.at_once import at_once
from tests.unit.log.support import (
    DIRECTORY,
    T0,
    append,
    checkpoint,
    flush,
    header_of,
    make_batch,
    open_log,
    read_committed,
)

NOTHING = TimestampedOffset(-1, -1)


class Partition:
    """A log and its producers, who each write one record at a time, named after its offset."""

    def __init__(self, config: TopicConfig | None = None, *, fsync: bool = True) -> None:
        self.files = MemoryFileSystem()
        self.clock = ManualClock()
        self.config = config or TopicConfig()
        self.fsync = fsync
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.log = self.opened()

    def opened(self) -> PartitionLog:
        return open_log(self.files, self.config, clock=self.clock, fsync=self.fsync)

    def write(self, producer_id: int | None = None, *, timestamp: int = T0, flushed: bool = True) -> int:
        """A record in the producer's transaction, or outside of any."""
        producer = None
        if producer_id is not None:
            producer = (producer_id, self.epochs.get(producer_id, 0), self.sequences.get(producer_id, 0))
            self.sequences[producer_id] = producer[2] + 1
        value = b"%d" % self.log.end_offset
        batch = make_batch(producer=producer, value=value, timestamps=[timestamp], transactional=producer is not None)
        offset = append(self.log, batch).base_offset
        if flushed:
            flush(self.log)
        return offset

    def commit(self, producer_id: int, **options: bool) -> int:
        return self.end(producer_id, EndTxnMarker(True, 0), **options)

    def abort(self, producer_id: int, **options: bool) -> int:
        return self.end(producer_id, EndTxnMarker(False, 0), **options)

    def end(self, producer_id: int, marker: EndTxnMarker, *, bumped: bool = False, flushed: bool = True) -> int:
        if bumped:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0
        offset = self.log.append_marker(producer_id, self.epochs.get(producer_id, 0), marker, bumped=bumped)
        if flushed:
            flush(self.log)
        return offset

    def restart(self, files: MemoryFileSystem | None = None) -> None:
        """A new process, after the end of the last one without a word."""
        self.files = files or self.files.kill()
        self.log = self.opened()

    @property
    def stable(self) -> int:
        return self.log.last_stable_offset

    def committed(self) -> list[int]:
        return [record.offset for record in read_committed(self.log)]

    def lists(self) -> list[str]:
        return [name for name in self.files.list(DIRECTORY) if name.endswith(ABORTED_SUFFIX)]

    def fail_flush(self) -> None:
        self.files.sync_failures = 1
        with pytest.raises(StorageError):
            self.log.begin_flush().run()
        self.log.fail_flush()


SMALL = TopicConfig(segment_bytes=250, index_interval_bytes=50)


# The last stable offset


def test_without_transactions_it_is_the_high_watermark() -> None:
    partition = Partition()
    assert partition.stable == 0
    partition.write(flushed=False)
    assert partition.stable == 0
    flush(partition.log)
    assert partition.stable == 1


@pytest.mark.parametrize("fsync", [True, False])
def test_an_open_transaction_holds_it_back_until_its_marker(fsync: bool) -> None:
    partition = Partition(fsync=fsync)
    partition.write()
    partition.write(5)
    partition.write()
    assert partition.stable == 1
    assert partition.committed() == [0]
    partition.commit(5)
    assert partition.stable == partition.log.high_watermark == 4
    assert partition.committed() == [0, 1, 2]


def test_of_many_open_ones_the_first_holds_it_back() -> None:
    partition = Partition()
    for producer_id in (5, 6, 7):
        partition.write(producer_id)
    partition.write(5)
    partition.commit(6)
    assert partition.stable == 0
    partition.abort(5)
    assert partition.stable == 2
    assert partition.committed() == [1]
    partition.write(6)
    partition.write(5)
    assert partition.stable == 2
    partition.commit(7)
    assert partition.stable == 6
    partition.commit(5)
    assert partition.stable == 6
    partition.commit(6)
    assert partition.stable == partition.log.end_offset
    assert partition.committed() == [1, 2, 6, 7]


def test_a_marker_without_a_transaction_changes_nothing() -> None:
    partition = Partition()
    partition.write()
    partition.abort(5)
    assert partition.stable == 2
    assert list(partition.log.active.aborted) == []
    assert partition.committed() == [0]


def test_a_marker_above_the_high_watermark_decides_nothing() -> None:
    partition = Partition()
    partition.write(5)
    partition.abort(5, flushed=False)
    partition.write(6, flushed=False)
    assert partition.stable == 0
    round_ = partition.log.begin_flush()
    partition.commit(6, flushed=False)
    round_.run()
    partition.log.complete_flush(round_)
    assert (partition.stable, partition.log.high_watermark) == (2, 3)  # 6 began at 2, and its marker is at 3
    assert partition.committed() == []
    flush(partition.log)
    assert partition.stable == 4
    assert partition.committed() == [2]


def test_decided_transactions_are_forgotten_though_nobody_reads() -> None:
    for fsync in (True, False):
        partition = Partition(fsync=fsync)
        for _ in range(20):
            partition.write(5)
            partition.commit(5)
        assert not partition.log.producers._ended
        partition.restart()
        assert not partition.log.producers._ended


def test_a_failed_flush_opens_again_what_a_marker_had_ended() -> None:
    partition = Partition()
    partition.write()
    partition.write(5)
    partition.abort(5, flushed=False)
    partition.write(6, flushed=False)
    partition.fail_flush()
    assert partition.log.end_offset == partition.log.high_watermark == 2
    assert partition.stable == 1
    assert list(partition.log.active.aborted) == []
    assert partition.log.producers.get(6) is None
    partition.commit(5)
    assert partition.committed() == [0, 1]


def test_an_aborted_entry_of_a_checkpoint_does_not_survive_the_flush_that_failed() -> None:
    partition = Partition()
    partition.write(5)
    partition.abort(5, flushed=False)
    job = partition.log.begin_checkpoint()
    assert job is not None
    job.run()
    assert len(partition.lists()) == 1
    partition.fail_flush()
    partition.log.complete_checkpoint(job)
    partition.commit(5)
    for _ in range(2):
        assert partition.committed() == [0]
        partition.restart()


def test_until_the_repair_succeeds_what_was_stable_stays_readable() -> None:
    partition = Partition()
    partition.write()
    partition.write(5)
    partition.commit(5, flushed=False)
    partition.files.sync_failures = 3
    with pytest.raises(StorageError):
        partition.log.begin_flush().run()
    partition.log.fail_flush()
    assert partition.stable == 1
    assert partition.committed() == [0]
    with pytest.raises(StorageError):
        partition.commit(5)
    partition.files.sync_failures = 0
    partition.commit(5)
    assert partition.committed() == [0, 1]


@pytest.mark.parametrize("fsync", [True, False])
def test_a_marker_that_cannot_be_written_ends_nothing(fsync: bool) -> None:
    partition = Partition(fsync=fsync)
    partition.write(5)
    partition.files.write_failure = (0, 10)
    with pytest.raises(StorageError):
        partition.abort(5)
    assert partition.stable == 0
    assert list(partition.log.active.aborted) == []
    partition.commit(5)
    assert partition.committed() == [0]


def test_records_deleted_past_an_open_transaction_leave_nothing_stable_before_its_end() -> None:
    partition = Partition()
    for _ in range(3):
        partition.write(5)
    partition.write()
    partition.log.delete_before(2)
    assert partition.stable == partition.log.start_offset == 2
    assert partition.committed() == []
    partition.abort(5)
    assert partition.stable == 5
    assert partition.committed() == [3]
    partition.log.delete_before(4)
    partition.restart()
    assert partition.committed() == []


def test_a_log_start_inside_a_batch_of_an_open_transaction_is_the_stable_offset() -> None:
    partition = Partition()
    append(partition.log, make_batch(5, producer=(5, 0, 0), transactional=True))
    flush(partition.log)
    partition.log.delete_before(3)
    assert partition.stable == 3
    assert partition.log.slice(3, 1000, committed=True) is None
    partition.commit(5)
    assert partition.committed() == [3, 4]


def test_retention_may_free_the_beginning_of_an_open_transaction() -> None:
    partition = Partition(TopicConfig(segment_bytes=250, retention_bytes=300))
    partition.write(5)
    for _ in range(10):
        partition.write()
    partition.log.apply_retention(T0)
    checkpoint(partition.log)
    partition.log.apply_retention(T0)
    start = partition.log.start_offset
    assert 0 < start == partition.stable == partition.log.segments[0].base_offset
    partition.restart()
    assert partition.stable == start
    partition.write(5)
    assert partition.stable == start
    partition.abort(5)
    assert partition.committed() == list(range(start, 11))


def test_everything_deleted_with_a_transaction_open_leaves_a_log_that_goes_on() -> None:
    partition = Partition()
    partition.write(5)
    partition.log.delete_before(1)
    assert partition.stable == 1
    partition.write()
    assert partition.committed() == []
    partition.abort(5)
    assert partition.committed() == [1]


# Reading what is committed


def test_a_read_ends_at_the_stable_offset() -> None:
    partition = Partition(SMALL)
    for offset in range(12):
        partition.write(5 if offset == 7 else None)
    assert len(partition.log.segments) > 3
    assert partition.stable == 7
    for offset in range(7, 13):
        assert partition.log.slice(offset, 1000, committed=True) is None
        assert partition.log.read(offset, 1000, committed=True) == b""
    assert header_of(partition.log.read(6, 1000, committed=True)).base_offset == 6
    assert partition.committed() == list(range(7))


def test_offsets_out_of_range_are_refused_whatever_is_stable() -> None:
    partition = Partition()
    partition.write(5)
    with pytest.raises(ProtocolError) as refused:
        partition.log.slice(2, 1000, committed=True)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_reader_of_any_piece_skips_what_was_aborted_and_nothing_else(seed: int, restarted: bool) -> None:
    """Random transactions over many small segments; read in pieces of any size, from any offset."""
    chance = random.Random(seed)
    partition = Partition(SMALL)
    outcome = play(partition, chance, 120)
    if restarted:
        partition.restart()
    wanted = [offset for offset, is_committed in sorted(outcome.items()) if is_committed and offset < partition.stable]
    for max_bytes in (1, 80, 200, 1000, 10**6):
        assert [record.offset for record in read_committed(partition.log, max_bytes)] == wanted
    for start in range(0, partition.stable, 7):
        partition.log.start_offset = start
        assert partition.committed() == [offset for offset in wanted if offset >= start]


def play(partition: Partition, chance: random.Random, steps: int) -> dict[int, bool]:
    """Whether each record was committed, of those whose fate is known."""
    outcome: dict[int, bool] = {}
    opened: dict[int, list[int]] = {}
    for _ in range(steps):
        producer_id = chance.randrange(4)
        what = chance.random()
        if what < 0.15:
            outcome[partition.write()] = True
        elif what < 0.65:
            opened.setdefault(producer_id, []).append(partition.write(producer_id))
        elif what < 0.95:
            commit, bumped = chance.random() < 0.5, chance.random() < 0.5
            partition.end(producer_id, EndTxnMarker(commit, 0), bumped=bumped)
            outcome.update(dict.fromkeys(opened.pop(producer_id, []), commit))
        else:
            checkpoint(partition.log)
    return outcome


# Who may end what


def test_an_old_epochs_marker_is_refused_and_nothing_moves() -> None:
    partition = Partition()
    partition.write(5)
    partition.commit(5, bumped=True)
    partition.write(5)
    size = partition.log.size
    for epoch, bumped in ((0, False), (0, True), (1, True)):
        with pytest.raises(ProtocolError) as refused:
            partition.log.append_marker(5, epoch, EndTxnMarker(False, 0), bumped=bumped)
        assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.log.size == size
    assert partition.stable == 2
    partition.commit(5, bumped=True)
    assert partition.committed() == [0, 2]


def test_a_marker_that_is_sent_again_is_written_again_and_changes_nothing() -> None:
    partition = Partition()
    partition.write(5)
    partition.abort(5, bumped=True)
    again = partition.log.append_marker(5, 1, EndTxnMarker(False, 0), bumped=True)
    assert again == 2
    assert len(partition.log.active.aborted) == 1


def test_in_the_last_epoch_a_marker_cannot_be_bumped_and_still_ends_its_transaction() -> None:
    partition = Partition()
    partition.epochs[5] = 2**15 - 1
    partition.write(5)
    partition.log.append_marker(5, 2**15 - 1, EndTxnMarker(True, 0), bumped=True)
    flush(partition.log)
    assert partition.committed() == [0]


def test_a_marker_of_an_older_coordinator_is_refused_also_after_a_restart() -> None:
    partition = Partition()
    partition.write(5)
    partition.end(5, EndTxnMarker(True, 3))
    checkpoint(partition.log)
    for _ in range(2):
        with pytest.raises(ProtocolError) as refused:
            partition.end(5, EndTxnMarker(True, 2))
        assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        partition.restart()
    partition.end(5, EndTxnMarker(True, 3))


def test_a_marker_takes_the_brokers_time_where_the_topic_does() -> None:
    partition = Partition(TopicConfig(append_time=True))
    partition.write(5)
    marker = header_of(partition.log.read(partition.commit(5), 1))
    assert marker.is_append_time
    assert marker.max_timestamp == T0


# What a restart remembers


def state_of(producers: ProducerStates) -> dict[int, tuple[int, int, int]]:
    return {id: (p.epoch, p.coordinator_epoch, p.transaction_first_offset) for id, p in producers}


def at_each_age(partition: Partition, step: Callable[[], object]) -> None:
    """The same after a clean end, a kill, and with the snapshots lost."""
    partition.log.close()
    partition.restart()
    step()
    partition.restart()
    step()
    for name in partition.files.list(DIRECTORY):
        if name.endswith(".snapshot"):
            partition.files.remove(DIRECTORY / name)
    partition.restart()
    step()


@pytest.mark.parametrize("config", [TopicConfig(), SMALL], ids=["one segment", "many segments"])
def test_open_transactions_and_epochs_are_known_again(config: TopicConfig) -> None:
    partition = Partition(config)
    partition.write(5)
    partition.end(5, EndTxnMarker(True, 4), bumped=True)
    partition.write(6)
    checkpoint(partition.log)
    partition.write(5)
    partition.write(7)
    partition.abort(6)
    partition.write(6)
    known = state_of(partition.log.producers)
    assert known == {5: (1, 4, 3), 6: (0, 0, 6), 7: (0, -1, 4)}

    def check() -> None:
        assert state_of(partition.log.producers) == known
        assert partition.stable == 3
        assert partition.committed() == [0]

    at_each_age(partition, check)
    partition.end(5, EndTxnMarker(False, 4))
    partition.commit(6)
    partition.commit(7)
    assert partition.committed() == [0, 4, 6]


@pytest.mark.parametrize("config", [TopicConfig(), SMALL], ids=["one segment", "many segments"])
def test_aborted_transactions_before_and_behind_the_checkpoint_are_known_again(config: TopicConfig) -> None:
    partition = Partition(config)
    for _ in range(3):
        partition.write(5)
        partition.write(6)
        partition.abort(5)
    checkpoint(partition.log)
    for _ in range(3):
        partition.write(5)
        partition.write(6)
        partition.abort(5)
    partition.abort(6)
    partition.write()
    entries = [entry for segment in partition.log.segments for entry in segment.aborted]
    assert len(entries) == 7
    places = [[e.last_offset for e in segment.aborted] for segment in partition.log.segments]

    def check() -> None:
        assert [entry for segment in partition.log.segments for entry in segment.aborted] == entries
        assert [[e.last_offset for e in segment.aborted] for segment in partition.log.segments] == places
        assert partition.committed() == [19]

    at_each_age(partition, check)
    checkpoint(partition.log)
    check()
    partition.restart()
    check()


@pytest.mark.parametrize("damage", ["torn", "zeros", "lost", "nonsense"])
def test_a_damaged_list_is_made_again_from_the_log(damage: str) -> None:
    """A list that is not there at all says that there are none; only the snapshots' loss makes it again."""
    chance = random.Random(6)
    partition = Partition(SMALL)
    play(partition, chance, 100)
    checkpoint(partition.log)
    wanted = partition.committed()
    producers = partition.log.producers.to_snapshot()
    lists = partition.lists()
    assert len(lists) > 3
    for name in lists:
        path = DIRECTORY / name
        data = partition.files.read_bytes(path)
        if damage == "lost":
            partition.files.remove(path)
        else:
            replaced = {"torn": data[:-3], "zeros": bytes(len(data)), "nonsense": b"\xff" * len(data)}
            partition.files.replace(path, replaced[damage])
        if damage != "lost":
            partition.restart()
            assert partition.log.recovered.scanned_bytes == 0
            assert partition.committed() == wanted
            assert partition.log.producers.to_snapshot() == producers
            assert partition.files.read_bytes(path) == data
    if damage == "lost":
        for name in partition.files.list(DIRECTORY):
            if name.endswith(".snapshot"):
                partition.files.remove(DIRECTORY / name)
        partition.restart()
        assert partition.committed() == wanted


def test_a_damaged_list_is_made_again_whatever_step_dies() -> None:
    partition = Partition(SMALL)
    play(partition, random.Random(8), 60)
    checkpoint(partition.log)
    wanted = partition.committed()
    for name in partition.lists()[::2]:
        partition.files.replace(DIRECTORY / name, b"torn")
    damaged = partition.files
    for step in range(1000):
        partition.files = damaged.kill()
        partition.files.steps_until_crash = step
        try:
            partition.log = partition.opened()
            break
        except SimulatedCrash:
            partition.restart(partition.files.crash(random.Random(step)))
            assert partition.committed() == wanted
    assert step > 5


def test_an_entry_that_was_torn_in_an_unfinished_checkpoint_is_dropped() -> None:
    """Its marker did not get to disk, and of the marker's offset the last byte is missing: it seems to lie below the
    checkpoint. The transaction is then committed after all."""
    partition = Partition()
    partition.write(5)
    append(partition.log, make_batch(257))
    flush(partition.log)
    checkpoint(partition.log)
    torn = struct.pack(">hqqqq", 0, 5, 0, 0x102 & ~0xFF, 0)
    partition.files.replace(DIRECTORY / f"{0:020d}{ABORTED_SUFFIX}", torn)
    partition.restart()
    assert partition.log.recovered.checkpoint == 0x102
    partition.commit(5)
    for _ in range(2):
        assert partition.committed() == list(range(258))
        checkpoint(partition.log)
        partition.restart()


def test_a_list_left_from_a_segment_that_is_gone_does_not_come_back() -> None:
    """Its log may have lost its name in a crash, and then another segment gets the same one."""
    partition = Partition()
    partition.write()
    partition.log.roll()
    partition.write(5)
    partition.abort(5)
    checkpoint(partition.log)
    stale = partition.files.read_bytes(DIRECTORY / partition.lists()[0])
    fresh = Partition()
    fresh.write()
    fresh.files.replace(DIRECTORY / f"{1:020d}{ABORTED_SUFFIX}", stale)
    fresh.log.roll()
    fresh.write(5)
    fresh.commit(5)
    assert fresh.committed() == [0, 1]
    checkpoint(fresh.log)
    fresh.restart(fresh.files.crash(random.Random(1)))
    assert fresh.committed() == [0, 1]


def test_a_list_without_any_log_does_not_come_back_either() -> None:
    partition = Partition()
    partition.write(5)
    partition.abort(5)
    checkpoint(partition.log)
    stale = partition.files.read_bytes(DIRECTORY / partition.lists()[0])
    fresh = Partition.__new__(Partition)
    fresh.__dict__.update(Partition().__dict__)
    fresh.files = MemoryFileSystem()
    fresh.files.make_directory(DIRECTORY)
    fresh.files.replace(DIRECTORY / f"{0:020d}{ABORTED_SUFFIX}", stale)
    fresh.log = fresh.opened()
    fresh.write(5)
    fresh.commit(5)
    checkpoint(fresh.log)
    fresh.restart()
    assert fresh.committed() == [0]


# Finding by time


def test_a_limit_hides_what_is_found_at_or_above_it_and_finds_nothing_else_instead() -> None:
    """Kafka: `Partition.fetchOffsetForTimestamp`, which searches first and compares with the stable offset then."""
    partition = Partition()
    partition.write(timestamp=T0 + 10)
    partition.write(5, timestamp=T0 + 30)
    partition.write(timestamp=T0 + 20)
    log, stable = partition.log, partition.stable
    assert stable == 1
    assert at_once(log.first_offset_at(T0, stable)) == at_once(log.first_offset_at(T0)) == (T0 + 10, 0)
    assert at_once(log.first_offset_at(T0 + 11)) == (T0 + 30, 1)
    assert at_once(log.first_offset_at(T0 + 11, stable)) == NOTHING
    assert at_once(log.offset_of_newest()) == (T0 + 30, 1)
    assert at_once(log.offset_of_newest(stable)) == NOTHING
    partition.clock.advance(40)
    partition.abort(5)
    assert at_once(log.first_offset_at(T0 + 11, partition.stable)) == (T0 + 30, 1)  # aborted, and found all the same
    assert at_once(log.offset_of_newest(partition.stable)) == (T0 + 40, 3)  # the marker, as in Kafka


def test_a_marker_is_found_by_time_as_in_kafka() -> None:
    partition = Partition(SMALL)
    partition.write(5)
    partition.clock.advance(50)
    partition.commit(5)
    for _ in range(6):
        partition.write()
    assert at_once(partition.log.first_offset_at(T0 + 1)) == (T0 + 50, 1)
    assert at_once(partition.log.offset_of_newest()) == (T0 + 50, 1)
    assert at_once(partition.log.first_offset_at(T0 + 51)) == NOTHING

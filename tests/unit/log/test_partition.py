"""The log of one partition: appends, flushes, checkpoints, reads, lookups and letting go, step by step.

`test_partition_properties` shuffles all of it; here are the cases that deserve a name, also those that it found.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceflow.clock import ManualClock
from onceflow.config import TopicConfig
from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError, StorageError
from onceflow.log.by_time import OPENED_MAX
from onceflow.log.files import RealFileSystem
from onceflow.log.memory_files import MemoryFile, MemoryFileSystem, SimulatedCrash
from onceflow.log.partition import Appended, PartitionLog
from onceflow.log.recovery import offsets_of, snapshots
from onceflow.wire.batch import batches, read_header, set_max_timestamp
from onceflow.wire.compression import Codec
from tests.support.at_once import at_once
from tests.unit.log.support import (
    DIRECTORY,
    T0,
    append,
    checkpoint,
    each_crash,
    flush,
    make_batch,
    open_log,
    read_all,
    values,
)

SMALL = TopicConfig(segment_bytes=250, index_interval_bytes=0)
"""Three batches of one record to a segment."""


def write(log: PartitionLog, *numbers: int, producer_id: int = 1) -> None:
    """One record per number; the number is its value, its sequence and its age."""
    for number in numbers:
        batch = make_batch(producer=(producer_id, 0, number), value=b"%03d" % number, timestamps=[T0 + number])
        append(log, batch)


def numbers(log: PartitionLog) -> list[int]:
    return [int(value or b"") for value in values(log)]


def offsets(log: PartitionLog) -> tuple[int, int, int, int]:
    return log.start_offset, log.last_stable_offset, log.high_watermark, log.end_offset


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as refused:
        call()
    return refused.value.code


def fail_flush(log: PartitionLog, files: MemoryFileSystem, *, syncs: int = 1) -> None:
    """A round of group commit of which the sync fails, and so many syncs in all."""
    files.sync_failures = syncs
    round_ = log.begin_flush()
    with pytest.raises(StorageError):
        round_.run()
    log.fail_flush()


# Appending


def test_a_new_log_is_empty() -> None:
    log = open_log()
    assert offsets(log) == (0, 0, 0, 0)
    assert log.read(0, 100) == b""
    assert not log.is_dirty


def test_offsets_count_records() -> None:
    log = open_log()
    assert append(log, make_batch(3)) == Appended(0, -1, False)
    assert append(log, make_batch(1)) == Appended(3, -1, False)
    assert append(log, make_batch(2)) == Appended(4, -1, False)
    flush(log)
    assert [header.base_offset for header, _ in read_all(log)] == [0, 3, 4]


def test_the_leader_epoch_is_stamped_outside_of_the_checksum() -> None:
    log = open_log(fsync=False)
    batch = make_batch(2)
    crc = read_header(batch).crc
    append(log, batch)
    [(header, _)] = read_all(log)
    assert (header.leader_epoch, header.crc) == (0, crc)


def test_with_fsync_nothing_is_readable_before_its_flush() -> None:
    log = open_log()
    write(log, 0, 1)
    assert offsets(log) == (0, 0, 0, 2)
    assert log.is_dirty
    assert log.read(0, 1000) == log.read(1, 1000) == b""
    round_ = log.begin_flush()
    write(log, 2)
    round_.run()
    log.complete_flush(round_)
    assert offsets(log) == (0, 2, 2, 3)
    assert numbers(log) == [0, 1]
    flush(log)
    assert numbers(log) == [0, 1, 2]


def test_without_fsync_everything_is_readable_at_once() -> None:
    log = open_log(fsync=False)
    write(log, 0)
    assert offsets(log) == (0, 1, 1, 1)
    assert not log.is_dirty


def test_a_repeat_writes_nothing_and_gets_its_first_offset() -> None:
    log = open_log(config=SMALL)
    for number in range(0, 14, 2):
        append(log, make_batch(2, producer=(1, 0, number)))
    size = log.size
    for number in range(4, 14, 2):
        assert append(log, make_batch(2, producer=(1, 0, number))) == Appended(number, -1, True)
    assert (log.size, log.end_offset) == (size, 14)


@pytest.mark.parametrize(("producer", "code"), [((1, 1, 5), 45), ((1, 2, 1), 45), ((1, 0, 3), 47), ((1, 1, 3), 45)])
def test_what_does_not_fit_is_refused_and_nothing_moves(producer: tuple[int, int, int], code: int) -> None:
    log = open_log(config=SMALL)
    append(log, make_batch(4, producer=(1, 1, 0)))
    flush(log)
    before = (offsets(log), log.size, log.producers.to_snapshot())
    assert refusal(lambda: append(log, make_batch(producer=producer))) == code
    assert (offsets(log), log.size, log.producers.to_snapshot()) == before
    assert not log.is_dirty


@pytest.mark.parametrize("partial", [0, 1, 40, 72])
def test_a_failed_write_changes_nothing_and_its_retry_succeeds(partial: int) -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0)
    flush(log)
    before = (offsets(log), log.size, log.producers.to_snapshot())
    files.write_failure = (0, partial)
    with pytest.raises(StorageError):
        write(log, 1)
    assert (offsets(log), log.size, log.producers.to_snapshot()) == before
    assert not log.is_dirty
    write(log, 1, 2, 3)
    flush(log)
    assert numbers(log) == [0, 1, 2, 3]
    assert numbers(open_log(files.kill(), SMALL)) == [0, 1, 2, 3]


def test_a_failed_write_right_after_a_roll_changes_nothing_and_its_retry_succeeds() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0, 1, 2)
    files.write_failure = (0, 30)
    with pytest.raises(StorageError):
        write(log, 3)
    assert log.end_offset == 3
    write(log, 3, 4)
    flush(log)
    assert numbers(open_log(files.kill(), SMALL)) == [0, 1, 2, 3, 4]


def test_a_segment_that_could_not_be_begun_is_not_there_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before it goes on growing: two segments would have the same offsets, and the log would end there."""

    def refuse(path: Path) -> None:
        raise StorageError(f"Could not remove {path}: Input/output error.")

    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0)
    with monkeypatch.context() as sick:
        sick.setattr(files, "remove", refuse)
        with pytest.raises(StorageError):
            log.roll()
    write(log, 1, 2, 3)
    flush(log)
    assert bases(log) == [0, 3]
    assert numbers(open_log(files.kill(), SMALL)) == [0, 1, 2, 3]


def test_what_a_failed_write_left_behind_does_not_stay_in_a_sealed_segment() -> None:
    """It would be served to readers after a restart."""
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0)
    files.write_failure = (0, 50)
    with pytest.raises(StorageError):
        write(log, 1)
    log.roll()
    write(log, 1)
    checkpoint(log)
    flush(log)
    log = open_log(files.kill(), SMALL)
    assert numbers(log) == [0, 1]
    assert log.size == len(b"".join(batch for _, batch in read_all(log)))


def test_what_a_failed_write_left_behind_does_not_come_back_into_a_sealed_segment() -> None:
    for seed in range(10):
        files = MemoryFileSystem()
        log = open_log(files, SMALL)
        write(log, 0)
        files.write_failure = (0, 50)
        with pytest.raises(StorageError):
            write(log, 1)
        checkpoint(log)
        log.roll()
        files = files.kill()
        log = open_log(files, SMALL)
        write(log, 1)
        checkpoint(log)
        assert numbers(open_log(files.crash(random.Random(seed)), SMALL)) == [0, 1]


# Rolling


def test_a_full_segment_is_followed_by_the_next() -> None:
    log = open_log(config=SMALL)
    write(log, *range(8))
    assert bases(log) == [0, 3, 6]
    assert log.wants_checkpoint
    flush(log)
    assert numbers(log) == list(range(8))


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    log = open_log(config=TopicConfig(segment_bytes=100))
    append(log, make_batch(value=bytes(300)))
    append(log, make_batch(value=bytes(300)))
    assert bases(log) == [0, 1]


def test_a_segment_is_sealed_by_age() -> None:
    clock = ManualClock()
    log = open_log(config=TopicConfig(segment_ms=1000), clock=clock)
    write(log, 0)
    clock.advance(1000)
    write(log, 1)
    assert bases(log) == [0]
    clock.advance(1)
    write(log, 2)
    assert bases(log) == [0, 2]


def test_after_a_restart_a_segment_is_as_old_as_its_first_record() -> None:
    clock, files = ManualClock(), MemoryFileSystem()
    log = open_log(files, TopicConfig(segment_ms=1000), clock=clock)
    write(log, 0)
    log.close()
    clock.advance(1001)
    log = open_log(files, TopicConfig(segment_ms=1000), clock=clock)
    write(log, 1)
    assert bases(log) == [0, 1]


def test_jitter_seals_a_segment_earlier_and_always_at_the_same_time() -> None:
    sealed_after = set()
    for _ in range(2):
        clock = ManualClock()
        log = open_log(config=TopicConfig(segment_ms=1000, segment_jitter_ms=900), clock=clock)
        write(log, 0)
        for number in range(1, 100):
            clock.advance(20)
            write(log, number)
            if len(log.segments) > 1:
                sealed_after.add(number * 20)
                break
    assert len(sealed_after) == 1
    assert 100 <= sealed_after.pop() < 1000


def test_a_segment_is_sealed_when_its_index_is_full() -> None:
    log = open_log(config=TopicConfig(segment_index_bytes=16, index_interval_bytes=0))
    write(log, *range(8))
    assert bases(log) == [0, 3, 6]


def test_a_segment_is_sealed_before_its_offsets_outgrow_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.log.partition.RELATIVE_OFFSET_MAX", 3)
    log = open_log()
    write(log, *range(6))
    assert bases(log) == [0, 4]


def test_an_empty_segment_is_not_sealed() -> None:
    log = open_log()
    log.roll()
    assert bases(log) == [0]
    write(log, 0)
    log.roll()
    log.roll()
    assert bases(log) == [0, 1]


# Group commit


def test_rounds_that_overlap_cover_what_was_there_when_each_began() -> None:
    log = open_log(config=SMALL)
    write(log, 0, 1)
    first = log.begin_flush()
    write(log, 2, 3, 4)
    first.run()
    second = log.begin_flush()
    write(log, 5)
    log.complete_flush(first)
    assert log.high_watermark == 2
    second.run()
    log.complete_flush(second)
    assert log.high_watermark == 5
    assert numbers(log) == [0, 1, 2, 3, 4]


def test_a_failed_flush_takes_back_what_is_above_the_high_watermark() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0, 1)
    flush(log)
    write(log, 2, 3, 4, 5, 6, 7)
    fail_flush(log, files)
    assert offsets(log) == (0, 2, 2, 2)
    assert bases(log) == [0]
    assert numbers(log) == [0, 1]
    assert offsets_of(files, DIRECTORY, ".log") == [0]
    write(log, 2, 3, 4)
    flush(log)
    assert numbers(log) == [0, 1, 2, 3, 4]
    assert numbers(open_log(files.crash(random.Random(1)), SMALL)) == [0, 1, 2, 3, 4]


def test_what_was_taken_back_is_not_remembered_of_its_producer() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0)
    flush(log)
    write(log, 1, 2)
    fail_flush(log, files)
    assert append(log, make_batch(producer=(1, 0, 1))) == Appended(1, -1, False)
    assert append(log, make_batch(producer=(1, 0, 0))) == Appended(0, -1, True)


def test_a_sync_that_failed_is_not_called_a_success_by_the_next() -> None:
    """Linux reports a lost page once. Whatever is acknowledged later must not stand on it."""
    for seed in range(20):
        files = MemoryFileSystem()
        log = open_log(files, SMALL)
        write(log, 0, 1)
        flush(log)
        write(log, 2, 3, 4)
        fail_flush(log, files)
        write(log, 2, 3, 4, 5)
        flush(log)
        assert numbers(open_log(files.crash(random.Random(seed)), SMALL)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("syncs", [2, 3, 4, 5])
def test_while_the_disk_refuses_what_was_acknowledged_can_be_read_and_nothing_can_be_written(syncs: int) -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0, 1, 2, 3)
    flush(log)
    checkpoint(log)
    write(log, 4, 5, 6)
    fail_flush(log, files, syncs=syncs)
    for _ in range(8):
        assert log.high_watermark == 4
        assert numbers(log) == [0, 1, 2, 3]
        assert at_once(log.offset_of_newest()) == (T0 + 3, 3)
        if not files.sync_failures:
            break
        with pytest.raises(StorageError):
            write(log, 4)
    write(log, 4, 5)
    flush(log)
    assert numbers(log) == [0, 1, 2, 3, 4, 5]
    assert numbers(open_log(files.crash(random.Random(3)), SMALL)) == [0, 1, 2, 3, 4, 5]


def test_the_retry_of_a_batch_that_was_taken_back_is_what_repairs_the_log() -> None:
    """If it were taken for a repeat, it would wait for ever for a flush that has nothing to write."""
    files = MemoryFileSystem()
    log = open_log(files)
    write(log, 0)
    fail_flush(log, files, syncs=2)
    assert append(log, make_batch(producer=(1, 0, 0), value=b"000")) == Appended(0, -1, False)
    flush(log)
    assert numbers(log) == [0]


def test_a_flush_that_began_before_the_log_was_taken_back_acknowledges_nothing() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0, 1, 2)
    first = log.begin_flush()
    write(log, 3, 4)
    second = log.begin_flush()
    files.sync_failures = 1
    with pytest.raises(StorageError):
        first.run()
    log.fail_flush()
    assert offsets(log) == (0, 0, 0, 0)
    log.complete_flush(second)
    assert offsets(log) == (0, 0, 0, 0)
    write(log, 0)
    log.complete_flush(second)
    assert offsets(log) == (0, 0, 0, 1)


def to_be_repaired(flushed: int, checkpoints: tuple[int, ...], written: int = 13) -> tuple[PartitionLog, int]:
    """A log of five segments of which so many records were acknowledged, with checkpoints at these offsets."""
    log = open_log(MemoryFileSystem(), SMALL)
    for number in range(written):
        write(log, number)
        if number + 1 == flushed:
            flush(log)
        if number + 1 in checkpoints:
            checkpoint(log)
    return log, flushed


REPAIRS = {
    "no checkpoint": (2, (), 1),
    "a checkpoint above the high watermark": (2, (8,), 1),
    "two checkpoints above the high watermark": (2, (5, 11), 1),
    "nothing acknowledged": (0, (8,), 1),
    "a checkpoint on either side": (4, (3, 10), 1),
    "the high watermark at the end of a segment": (6, (6, 9), 1),
    "the high watermark at the start of the last segment": (12, (13,), 1),
    "a second attempt": (4, (3, 10), 2),
    "a third attempt": (6, (8,), 3),
}


@pytest.mark.parametrize(("flushed", "checkpoints", "syncs"), REPAIRS.values(), ids=REPAIRS.keys())
def test_dying_at_any_step_of_a_repair_loses_nothing_and_brings_nothing_back(
    flushed: int, checkpoints: tuple[int, ...], syncs: int
) -> None:
    """Whichever of the changes of names are on disk. Then another process starts, and writes something else."""
    for step in range(1000):
        log, flushed = to_be_repaired(flushed, checkpoints)
        files = log._files
        assert isinstance(files, MemoryFileSystem)
        files.steps_until_crash = step
        try:
            fail_flush(log, files, syncs=syncs)
            while files.sync_failures:
                with pytest.raises(StorageError):
                    write(log, flushed)
            write(log, flushed)
        except SimulatedCrash:
            pass
        else:
            assert step > len(checkpoints)
            return
        for seed, after in enumerate(each_crash(files, (".log", ".snapshot"))):
            log = open_log(after, SMALL)
            found = numbers(log)
            assert found == list(range(len(found)))
            assert len(found) >= flushed
            assert [name for name in after.list(DIRECTORY) if ".dropped" in name] == []
            write(log, len(found))
            assert log.end_offset == len(found) + 1, "it was taken for a repeat"
            for later in (after.kill(), after.crash(random.Random(seed))):
                assert numbers(open_log(later, SMALL)) in (found, [*found, len(found)])
    pytest.fail("never came to an end")


def test_a_repair_never_leaves_a_snapshot_without_its_log() -> None:
    """Removed for good before what it vouches for: no crash looks as if somebody had removed files."""
    for step in range(1000):
        log, _ = to_be_repaired(2, (5, 11))
        files = log._files
        assert isinstance(files, MemoryFileSystem)
        files.steps_until_crash = step
        try:
            fail_flush(log, files)
        except SimulatedCrash:
            pass
        else:
            return
        for after in each_crash(files, (".log", ".snapshot")):
            logs = offsets_of(after, DIRECTORY, ".log")
            for offset in snapshots(after, DIRECTORY):
                assert logs[: offset // 3 + 1] == list(range(0, offset, 3))
    pytest.fail("never came to an end")


def test_failing_a_closed_log_does_nothing() -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    write(log, 0)
    log.abandon()
    size = files.size(DIRECTORY / "00000000000000000000.log")
    log.fail_flush()
    assert files.size(DIRECTORY / "00000000000000000000.log") == size


# Checkpoints


def test_after_a_clean_end_there_is_nothing_to_read() -> None:
    for fsync in (True, False):
        files = MemoryFileSystem()
        log = open_log(files, SMALL, fsync=fsync)
        write(log, *range(8))
        log.close()
        assert log.closed
        log = open_log(files.kill(), SMALL, fsync=fsync)
        assert (log.recovered.scanned_bytes, numbers(log)) == (0, list(range(8)))


def test_a_checkpoint_with_nothing_new_is_none() -> None:
    log = open_log()
    assert log.begin_checkpoint() is None
    write(log, 0)
    assert checkpoint(log)
    assert log.begin_checkpoint() is None


def test_two_snapshots_are_kept() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    for number in range(6):
        write(log, number)
        flush(log)
        checkpoint(log)
    assert snapshots(files, DIRECTORY) == [5, 6]


def test_what_is_written_while_a_checkpoint_runs_belongs_to_the_next() -> None:
    """The active segment grows and is sealed after the checkpoint began: neither its end nor its indexes were saved."""
    files = MemoryFileSystem()
    log = open_log(files, SMALL, fsync=False)
    write(log, 0)
    job = log.begin_checkpoint()
    assert job is not None
    write(log, 1, 2, 3)
    assert bases(log) == [0, 3]
    job.run()
    log.complete_checkpoint(job)
    checkpoint(log)
    for seed in range(20):
        after = open_log(files.crash(random.Random(seed)), SMALL, fsync=False)
        assert numbers(after) == [0, 1, 2, 3]
        assert at_once(after.first_offset_at(T0 + 2)) == (T0 + 2, 2)


def test_a_checkpoint_above_the_high_watermark_goes_when_the_flush_fails() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0)
    flush(log)
    write(log, 1, 2, 3)
    checkpoint(log)
    assert snapshots(files, DIRECTORY) == [4]
    fail_flush(log, files)
    assert snapshots(files, DIRECTORY) == []
    append(log, make_batch(4, producer=(2, 0, 0)))
    log = open_log(files.kill(), SMALL)
    assert refusal(lambda: write(log, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, make_batch(producer=(1, 0, 1))) == Appended(5, -1, False)


@pytest.mark.parametrize("when", ["ran before", "runs after", "in the middle"])
def test_a_checkpoint_of_what_was_taken_back_meanwhile_is_void(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what producers wrote; believed later, a batch that is gone would be taken for a repeat."""
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0)
    flush(log)
    write(log, 1, 2)
    job = log.begin_checkpoint()
    assert job is not None
    round_ = log.begin_flush()

    def take_back() -> None:
        files.sync_failures = 1
        with pytest.raises(StorageError):
            round_.run()
        log.fail_flush()

    if when == "ran before":
        job.run()
        take_back()
    elif when == "runs after":
        take_back()
        with pytest.raises(StorageError):
            job.run()
    else:
        sync_directory = files.sync_directory

        def slow_sync_directory(path: Path) -> None:
            monkeypatch.undo()
            take_back()
            sync_directory(path)

        monkeypatch.setattr(files, "sync_directory", slow_sync_directory)
        job.run()
    if when != "runs after":
        log.complete_checkpoint(job)
    append(log, make_batch(5, producer=(2, 0, 0)))
    flush(log)
    for after in each_crash(files, (".snapshot",)):
        again = open_log(after, SMALL)
        assert append(again, make_batch(producer=(1, 0, 1))) == Appended(6, -1, False)


def test_a_repair_waits_for_a_snapshot_that_is_being_written_and_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk thread is about to give it its name while the loop's thread learns that a flush has failed."""
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, 0)
    flush(log)
    write(log, 1, 2)
    job = log.begin_checkpoint()
    assert job is not None
    is_writing, may_go_on = threading.Event(), threading.Event()
    replace = files.replace

    def slow_replace(path: Path, data: bytes) -> None:
        is_writing.set()
        assert may_go_on.wait(60)
        replace(path, data)

    monkeypatch.setattr(files, "replace", slow_replace)
    with ThreadPoolExecutor(2) as threads:
        checkpointing = threads.submit(job.run)
        assert is_writing.wait(60)
        taking_back = threads.submit(log.fail_flush)
        may_go_on.set()
        checkpointing.result(60)
        taking_back.result(60)
    log.complete_checkpoint(job)
    assert (offsets(log), snapshots(files, DIRECTORY)) == ((0, 1, 1, 1), [])
    assert files._changes == [], "and it does not come back"


def test_a_failed_checkpoint_changes_nothing_and_the_next_one_succeeds() -> None:
    for failure in ("index", "sync", "snapshot"):
        files = MemoryFileSystem()
        log = open_log(files, SMALL, fsync=False)
        write(log, 0, 1, 2, 3)
        if failure == "index":
            files.write_failure = (1, 3)
            with pytest.raises(StorageError):
                log.begin_checkpoint()
        else:
            job = log.begin_checkpoint()
            assert job is not None
            files.sync_failures = int(failure == "sync")
            files.write_failure = (0, 9) if failure == "snapshot" else None
            with pytest.raises(StorageError):
                job.run()
        assert snapshots(files, DIRECTORY) == []
        assert numbers(log) == [0, 1, 2, 3]
        if failure == "sync":
            continue  # the log file has lost pages: without `fsync`, only a restart helps
        assert checkpoint(log)
        assert open_log(files.kill(), SMALL, fsync=False).recovered.scanned_bytes == 0


def test_a_checkpoint_that_cannot_be_begun_leaves_no_file_open() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, *range(8))
    opened: list[MemoryFile] = []
    plain = files.open
    files.open = lambda path: opened.append(plain(path)) or opened[-1]  # type: ignore[method-assign,func-returns-value]
    files.write_failure = (4, 3)
    with pytest.raises(StorageError):
        log.begin_checkpoint()
    assert len(opened) > 4
    assert not any(file._is_open for file in opened)


def test_a_log_is_closed_even_if_its_checkpoint_fails() -> None:
    for writes, syncs in ((1, 0), (None, 1)):
        files = MemoryFileSystem()
        log = open_log(files)
        write(log, 0)
        files.write_failure = None if writes is None else (0, 0)
        files.sync_failures = syncs
        with pytest.raises(StorageError):
            log.close()
        assert log.closed
        with pytest.raises(StorageError):
            log.active.log.append(b"x")


def test_a_checkpoint_that_ends_after_the_log_was_closed_is_let_go() -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    write(log, 0)
    job = log.begin_checkpoint()
    assert job is not None
    job.run()
    log.abandon()
    log.complete_checkpoint(job)


def test_a_checkpoint_of_a_deleted_topic_leaves_no_snapshot_to_the_next_topic_of_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be believed once the new log has grown past it, and what producers send be taken for repeats."""
    files = MemoryFileSystem()
    log = open_log(files)
    write(log, 0, 1, 2)
    job = log.begin_checkpoint()
    assert job is not None
    sync_directory = files.sync_directory

    def slow_sync_directory(path: Path) -> None:
        monkeypatch.undo()
        sync_directory(path)
        log.abandon()
        files.remove_tree(DIRECTORY)
        open_log(files)

    monkeypatch.setattr(files, "sync_directory", slow_sync_directory)
    job.run()
    assert snapshots(files, DIRECTORY) == []


def test_the_name_of_a_segment_is_certain_before_its_records_are_acknowledged() -> None:
    """The process dies between the roll and the flush that would have synced the name; the next one has to."""
    for seed in range(20):
        files = MemoryFileSystem()
        log = open_log(files, SMALL)
        write(log, 0, 1, 2)
        flush(log)
        checkpoint(log)
        log.roll()
        log = open_log(files.kill(), SMALL)
        write(log, 3)
        flush(log)
        files = log._files  # type: ignore[assignment]
        assert numbers(open_log(files.crash(random.Random(seed)), SMALL)) == [0, 1, 2, 3]


def test_what_one_process_recovered_is_certain_before_it_is_shown() -> None:
    """Killed with an unsynced tail over several segments: the next process shows it, so it must survive a power cut."""
    for seed in range(20):
        files = MemoryFileSystem()
        log = open_log(files, SMALL)
        write(log, 0)
        checkpoint(log)
        write(log, 1, 2, 3, 4)
        after = files.kill()
        assert numbers(open_log(after, SMALL)) == [0, 1, 2, 3, 4]
        assert numbers(open_log(after.crash(random.Random(seed)), SMALL)) == [0, 1, 2, 3, 4]


def test_an_index_that_a_failed_sync_lost_is_not_missed_later() -> None:
    """The time index of a segment is dropped by the kernel; the next checkpoint must not vouch for it."""
    for seed in range(20):
        files = MemoryFileSystem()
        log = open_log(files, TopicConfig(), fsync=False)
        write(log, 0, 1, 2)
        job = log.begin_checkpoint()
        assert job is not None
        log.active.log.sync()
        for index in job.indexes:
            files.sync_failures = 1
            with pytest.raises(StorageError):
                index.sync()
        write(log, 3)
        checkpoint(log)
        after = open_log(files.crash(random.Random(seed)), TopicConfig(), fsync=False)
        assert after.recovered.checkpoint == 4
        assert at_once(after.offset_of_newest()) == (T0 + 3, 3)
        assert at_once(after.first_offset_at(T0 + 1)) == (T0 + 1, 1)


def test_index_entries_of_batches_that_were_lost_do_not_outlive_them() -> None:
    """A checkpoint dies after writing indexes; the batches are lost; the segment is sealed; another restart."""
    for seed in range(40):
        files = MemoryFileSystem()
        log = open_log(files, SMALL, fsync=False)
        write(log, 0, 1)
        checkpoint(log)
        append(log, make_batch(producer=(1, 0, 2), timestamps=[T0 + 100]))
        assert log.begin_checkpoint() is not None
        after = files.crash(random.Random(seed))
        log = open_log(after, SMALL, fsync=False)
        if log.end_offset > 2:
            continue
        log.roll()
        write(log, 2)
        log = open_log(after.kill(), SMALL, fsync=False)
        assert at_once(log.offset_of_newest()) == (T0 + 2, 2)
        assert at_once(log.first_offset_at(T0 + 3)) == (-1, -1)
        checkpoint(log)
        log = open_log(after.kill(), SMALL, fsync=False)
        assert at_once(log.offset_of_newest()) == (T0 + 2, 2)


# Reading


@pytest.fixture
def eight() -> PartitionLog:
    log = open_log(config=SMALL)
    write(log, *range(8))
    flush(log)
    return log


def test_a_read_begins_with_the_batch_that_holds_the_offset() -> None:
    log = open_log(fsync=False)
    append(log, make_batch(3))
    append(log, make_batch(4))
    for offset in range(7):
        assert read_header(log.read(offset, 1 << 20)).base_offset == (0 if offset < 3 else 3)


def test_a_read_is_cut_at_max_bytes_but_the_first_batch_is_whole(eight: PartitionLog) -> None:
    size = len(eight.read(0, 1))
    assert len(eight.read(0, size + 5)) == size + 5
    assert len(eight.read(0, 0)) == size
    assert eight.read(0, size - 1, at_least_one=False) == b""
    assert len(eight.read(0, size, at_least_one=False)) == size


def test_a_read_ends_with_its_segment(eight: PartitionLog) -> None:
    headers = [header.base_offset for header, _ in batches(eight.read(1, 1 << 20))]
    assert headers == [1, 2]


def test_reading_outside_of_the_log_is_refused(eight: PartitionLog) -> None:
    assert refusal(lambda: eight.read(-1, 10)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert refusal(lambda: eight.read(9, 10)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert eight.read(8, 10) == b""
    eight.delete_before(4)
    assert refusal(lambda: eight.read(3, 10)) == ErrorCode.OFFSET_OUT_OF_RANGE


# Finding by time


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("interval", [0, 4096])
def test_the_first_record_with_at_least_a_timestamp(codec: Codec, interval: int) -> None:
    log = open_log(config=TopicConfig(segment_bytes=300, index_interval_bytes=interval), fsync=False)
    stamps = [5, 9, 7, 7, 12, 3, 20, 20, 11, 25]
    for first in range(0, 10, 2):
        append(log, make_batch(2, timestamps=[T0 + stamp for stamp in stamps[first : first + 2]], codec=codec))
    for stamp in range(30):
        expected = next(((T0 + s, offset) for offset, s in enumerate(stamps) if s >= stamp), (-1, -1))
        assert at_once(log.first_offset_at(T0 + stamp)) == expected
    assert at_once(log.offset_of_newest()) == (T0 + 25, 9)


def test_headers_that_claim_later_times_than_their_records_have_are_not_opened_without_end() -> None:
    log = open_log(fsync=False)
    for _ in range(OPENED_MAX + 1):
        lying = make_batch(timestamps=[T0])
        set_max_timestamp(lying, T0 + 100)
        append(log, lying)
    with pytest.raises(MalformedMessage, match=f"{OPENED_MAX} batches"):
        at_once(log.first_offset_at(T0 + 50))
    assert at_once(log.first_offset_at(T0)) == (T0, 0)


def test_the_first_of_the_newest_records(eight: PartitionLog) -> None:
    assert at_once(eight.offset_of_newest()) == (T0 + 7, 7)
    append(eight, make_batch(3, timestamps=[T0 + 9, T0 + 10, T0 + 10]))
    append(eight, make_batch(timestamps=[T0 + 10]))
    flush(eight)
    assert at_once(eight.offset_of_newest()) == (T0 + 10, 9)


def test_nothing_is_found_in_an_empty_log() -> None:
    log = open_log()
    assert at_once(log.first_offset_at(0)) == (-1, -1)
    assert at_once(log.offset_of_newest()) == (-1, -1)


def test_records_without_timestamps_are_not_found() -> None:
    log = open_log(fsync=False)
    append(log, make_batch(2, timestamps=[-1, -1]))
    assert at_once(log.first_offset_at(0)) == (-1, -1)
    assert at_once(log.offset_of_newest()) == (-1, -1)


def test_a_time_that_only_unflushed_records_have_is_not_found_yet(eight: PartitionLog) -> None:
    write(eight, 8, 9, 10)
    assert at_once(eight.first_offset_at(T0 + 8)) == (-1, -1)
    assert at_once(eight.first_offset_at(T0 + 10)) == (-1, -1)
    flush(eight)
    assert at_once(eight.first_offset_at(T0 + 10)) == (T0 + 10, 10)


def test_the_newest_of_what_is_flushed_is_found_while_newer_ones_are_not() -> None:
    log = open_log()
    write(log, 0, 1)
    flush(log)
    write(log, 2)
    assert at_once(log.offset_of_newest()) == (T0 + 1, 1)
    round_ = log.begin_flush()
    write(log, 3)
    round_.run()
    log.complete_flush(round_)
    assert at_once(log.offset_of_newest()) == (T0 + 2, 2)


def test_what_lies_before_the_log_start_is_not_found() -> None:
    log = open_log(fsync=False)
    append(log, make_batch(4, timestamps=[T0 + 9, T0 + 8, T0 + 1, T0 + 2]))
    append(log, make_batch(2, timestamps=[T0 + 3, T0 + 4]))
    log.delete_before(2)
    assert at_once(log.first_offset_at(0)) == (T0 + 1, 2)
    assert at_once(log.first_offset_at(T0 + 5)) == (-1, -1)
    assert at_once(log.offset_of_newest()) == (T0 + 4, 5)
    log.delete_before(5)
    assert at_once(log.offset_of_newest()) == (T0 + 4, 5)


# Letting go of the old


def test_the_log_start_moves_and_never_back(eight: PartitionLog) -> None:
    eight.delete_before(4)
    assert (eight.start_offset, numbers(eight)) == (4, [4, 5, 6, 7])
    eight.delete_before(2)
    assert eight.start_offset == 4


def test_nothing_above_the_high_watermark_is_deleted(eight: PartitionLog) -> None:
    write(eight, 8)
    assert refusal(lambda: eight.delete_before(9)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (eight.start_offset, eight.size > 0) == (0, True)


def test_segments_before_the_log_start_are_freed() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, *range(8))
    flush(log)
    log.delete_before(5)
    checkpoint(log)
    assert bases(log) == [3, 6]
    assert offsets_of(files, DIRECTORY, ".log") == [3, 6]
    log = open_log(files.kill(), SMALL)
    assert (log.start_offset, numbers(log)) == (5, [5, 6, 7])


def test_a_log_can_be_emptied_and_goes_on_at_the_same_offset() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, *range(8))
    flush(log)
    log.delete_before(8)
    checkpoint(log)
    assert (offsets(log), log.size, bases(log)) == ((8, 8, 8, 8), 0, [8])
    write(log, 8)
    flush(log)
    log = open_log(files.kill(), SMALL)
    assert (log.start_offset, numbers(log)) == (8, [8])


def test_what_producers_wrote_in_freed_segments_is_still_known_after_a_crash() -> None:
    """Retention empties the log, and the last acknowledgement was lost: the retry is a repeat all the same."""
    for ending in ("kill", *range(10)):
        files = MemoryFileSystem()
        log = open_log(files, SMALL)
        write(log, *range(8))
        flush(log)
        log.delete_before(8)
        after = files.kill() if ending == "kill" else files.crash(random.Random(ending))
        log = open_log(after, SMALL)
        assert offsets(log) == (8, 8, 8, 8)
        assert append(log, make_batch(producer=(1, 0, 7))) == Appended(7, -1, True)


def test_a_failed_delete_moves_nothing() -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    write(log, *range(8))
    flush(log)
    files.write_failure = (0, 0)
    with pytest.raises(StorageError):
        log.delete_before(5)
    assert (log.start_offset, bases(log), numbers(log)) == (0, [0, 3, 6], list(range(8)))


def delete_two_segments(log: PartitionLog) -> None:
    log.delete_before(7)


def delete_all(log: PartitionLog) -> None:
    log.delete_before(8)


def retain_little(log: PartitionLog) -> None:
    log.config = TopicConfig(segment_bytes=250, index_interval_bytes=0, retention_bytes=100)
    log.apply_retention(T0)


def delete_and_free_at_the_next_checkpoint(log: PartitionLog) -> None:
    log.delete_before(8)
    write(log, 8)
    flush(log)
    checkpoint(log)


def roll_and_write(log: PartitionLog) -> None:
    log.roll()
    write(log, *range(8, 16))
    flush(log)


def write_with_two_checkpoints(log: PartitionLog) -> None:
    for number in range(8, 16):
        write(log, number)
        flush(log)
        if number % 4 == 0:
            checkpoint(log)


@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize(
    "operation",
    [
        delete_two_segments,
        delete_all,
        retain_little,
        delete_and_free_at_the_next_checkpoint,
        roll_and_write,
        write_with_two_checkpoints,
        PartitionLog.close,
    ],
)
def test_dying_at_any_step_of_an_operation_leaves_the_log_without_a_gap(
    operation: Callable[[PartitionLog], None], fsync: bool
) -> None:
    """Whatever was in the log before is there from the log start on, and the producer is known."""
    for step in range(1000):
        files = MemoryFileSystem()
        log = open_log(files, SMALL, fsync=fsync)
        write(log, *range(6))
        checkpoint(log)
        write(log, 6, 7)
        if fsync:
            flush(log)
        certain = 8 if fsync else 6
        files.steps_until_crash = step
        try:
            operation(log)
        except SimulatedCrash:
            pass
        else:
            assert step > 1
            return
        for seed, after in enumerate(each_crash(files, (".log", ".snapshot", "log-start-offset.json"))):
            again = open_log(after, SMALL, fsync=fsync)
            start, end = again.start_offset, again.end_offset
            assert start in (0, 6, 7, 8)
            assert end >= certain
            assert numbers(again) == list(range(start, end))
            if fsync:  # otherwise a log that lost its records to the power goes on at its new start, and knows nobody
                assert append(again, make_batch(producer=(1, 0, end - 1))).repeated
                write(again, end)
            assert seed or end == log.end_offset, "kill -9 takes nothing that was written"
    pytest.fail("never came to an end")


def test_retention_by_time_goes_by_the_newest_record_of_a_segment() -> None:
    clock = ManualClock()
    log = open_log(config=TopicConfig(segment_bytes=250, retention_ms=1000), clock=clock)
    for age in (0, 700, 100, 200, 200, 200, 300):
        append(log, make_batch(timestamps=[T0 + age], value=b"1234"))
    flush(log)
    checkpoint(log)
    assert bases(log) == [0, 3, 6]
    assert log.apply_retention(T0 + 1700) == 0, "the first one still holds a young record"
    freed = log.apply_retention(T0 + 1701)
    assert (log.start_offset, bases(log)) == (7, [7])
    assert freed > 0
    assert log.size == 0


def test_retention_by_time_stops_at_the_first_segment_that_is_young() -> None:
    log = open_log(config=TopicConfig(segment_bytes=250, retention_ms=1000))
    for age in (0, 0, 0, 900, 900, 900, 0, 0, 0, 0):
        append(log, make_batch(timestamps=[T0 + age], value=b"1234"))
    flush(log)
    checkpoint(log)
    log.apply_retention(T0 + 1500)
    assert (log.start_offset, bases(log)) == (3, [3, 6, 9])


def test_retention_by_size_keeps_at_least_that_much_and_never_the_active_segment() -> None:
    size = len(make_batch(value=b"1234"))
    log = open_log(config=TopicConfig(segment_bytes=3 * size, retention_bytes=4 * size))
    for _ in range(10):
        append(log, make_batch(value=b"1234"))
    flush(log)
    checkpoint(log)
    assert log.apply_retention(T0) == 6 * size
    assert (log.start_offset, bases(log), log.size) == (6, [6, 9], 4 * size)
    assert log.apply_retention(T0) == 0
    log.config = TopicConfig(segment_bytes=3 * size, retention_bytes=0)
    log.apply_retention(T0)
    assert bases(log) == [9]


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(segment_bytes=250, retention_ms=-1, retention_bytes=-1),
        TopicConfig(segment_bytes=250, retention_ms=1, retention_bytes=1, delete=False, compact=True),
    ],
)
def test_without_a_limit_or_the_policy_nothing_goes(config: TopicConfig) -> None:
    log = open_log(config=config)
    write(log, *range(8))
    flush(log)
    assert log.apply_retention(T0 + 10**12) == 0
    assert (log.start_offset, len(log.segments)) == (0, 3)


def test_retention_leaves_what_is_not_flushed() -> None:
    log = open_log(config=TopicConfig(segment_bytes=250, retention_ms=0))
    write(log, 0, 1, 2, 3)
    assert log.apply_retention(T0 + 1000) == 0
    round_ = log.begin_flush()
    write(log, 4)
    round_.run()
    log.complete_flush(round_)
    log.apply_retention(T0 + 1000)
    assert (log.start_offset, log.end_offset) == (3, 5)
    flush(log)
    assert numbers(log) == [3, 4]


def test_a_flush_that_began_before_retention_still_counts() -> None:
    log = open_log(config=SMALL)
    write(log, 0, 1, 2, 3)
    flush(log)
    write(log, 4)
    round_ = log.begin_flush()
    log.delete_before(4)
    round_.run()
    log.complete_flush(round_)
    assert offsets(log) == (4, 5, 5, 5)
    assert numbers(log) == [4]


# The same on a real disk


def test_a_life_on_a_real_disk(tmp_path: Path) -> None:
    """Beside the twin, the real thing: rolls, checkpoints, a torn end, a delete, restarts."""
    files = RealFileSystem()
    log = open_log(files, SMALL, directory=tmp_path / "events-0")  # type: ignore[arg-type]
    write(log, *range(8))
    flush(log)
    checkpoint(log)
    write(log, 8, 9)
    flush(log)
    log.abandon()
    last = tmp_path / "events-0" / "00000000000000000009.log"
    last.write_bytes(last.read_bytes() + b"torn")
    log = open_log(files, SMALL, directory=tmp_path / "events-0")  # type: ignore[arg-type]
    assert (numbers(log), log.recovered.checkpoint, log.recovered.cut_bytes) == (list(range(10)), 8, 4)
    assert append(log, make_batch(producer=(1, 0, 9))) == Appended(9, -1, True)
    log.delete_before(4)
    log.close()
    log = open_log(files, SMALL, directory=tmp_path / "events-0")  # type: ignore[arg-type]
    assert (numbers(log), log.recovered.scanned_bytes, bases(log)) == (list(range(4, 10)), 0, [3, 6, 9])
    log.abandon()

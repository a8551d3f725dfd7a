"""What a checkpoint notes of a segment's files: how it grows, how it is read, and what is found with it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from onceflow.clock import ManualClock
from onceflow.config import TopicConfig
from onceflow.errors import CorruptLog, OnceflowError, StorageError
from onceflow.log.checksums import BLOCK_SIZE, NO_INDEXES, Checksums, Sum, Unverified
from onceflow.log.files import RealFileSystem
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.log.partition import PartitionLog
from onceflow.log.recovery import snapshots
from onceflow.log.segment import file_name
from tests.unit.log.support import DIRECTORY, append, checkpoint, each_crash, flush, make_batch, open_log, values

FILE = Path("/data/a.log")
SIZES = (0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE, 3 * BLOCK_SIZE + 70)


def disk(data: bytes) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directory(FILE.parent)
    files.replace(FILE, data)
    return files


@pytest.mark.parametrize("size", SIZES)
def test_checksums_that_grew_are_those_that_were_made_at_once(size: int) -> None:
    log = disk(random.Random(1).randbytes(size)).open(FILE)
    at_once = Checksums(7).extended(log, size, 9, NO_INDEXES)
    for step in (size // 2, size // 3, BLOCK_SIZE // 3 + 1):
        grown = Checksums(7)
        for at in range(0, size, max(step, 1 + size // 10)):
            grown = grown.extended(log, at, 8, NO_INDEXES)
        assert grown.extended(log, size, 9, NO_INDEXES).to_bytes() == at_once.to_bytes()
    assert (at_once.size, at_once.end_offset) == (size, 9)


def test_a_file_is_read_as_it_was_written_or_not_at_all() -> None:
    log = disk(bytes(BLOCK_SIZE + 5)).open(FILE)
    written = Checksums(7).extended(log, log.size, 9, (Sum(8, 1), Sum(12, 2), Sum(34, 3))).to_bytes()
    found = Checksums.from_bytes(written, 7)
    assert found is not None
    assert found.to_bytes() == written
    assert found.indexes == (Sum(8, 1), Sum(12, 2), Sum(34, 3))
    assert Checksums.from_bytes(written, 8) is None, "of another segment"
    for at in range(len(written)):
        assert Checksums.from_bytes(written[:at], 7) is None
        assert Checksums.from_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :], 7) is None
    assert Checksums.from_bytes(written + b"\0", 7) is None


def test_a_log_that_was_cut_while_its_checksums_are_made_gives_none() -> None:
    files = disk(bytes(100))
    with pytest.raises(StorageError, match=r"/data/a\.log was cut"):
        Checksums(0).extended(files.open(FILE), 101, 9, NO_INDEXES)


def test_what_was_changed_before_a_log_grew_does_not_get_a_right_checksum() -> None:
    files = disk(bytes(100))
    known = Checksums(0).extended(files.open(FILE), 100, 1, NO_INDEXES)
    files.replace(FILE, b"\1" + bytes(199))
    log = files.open(FILE)
    grown = known.extended(log, 200, 2, NO_INDEXES)
    with pytest.raises(
        CorruptLog, match=r"^/data/a\.log is damaged at position 0: the bytes from there up to 200 fail"
    ):
        Unverified(grown).verify(log, 150, 160)


@pytest.mark.parametrize("size", SIZES)
def test_a_block_is_read_once_and_only_if_somebody_reads_there(size: int) -> None:
    files = disk(random.Random(2).randbytes(size))
    log = files.open(FILE)
    unverified = Unverified(Checksums(0).extended(log, size, 9, NO_INDEXES))
    read: list[tuple[int, int]] = []
    plain = log.read
    log.read = lambda at, size: read.append((at, size)) or plain(at, size)  # type: ignore[method-assign,func-returns-value]
    blocks = [(at, min(BLOCK_SIZE, size - at)) for at in range(0, size, BLOCK_SIZE)]
    unverified.verify(log, size, size + 1000)
    if blocks:
        unverified.verify(log, size - 1, size)
        assert read == blocks[-1:]
    unverified.verify(log, 0, size)
    unverified.verify(log, 0, size)
    assert sorted(read) == blocks
    assert unverified.is_over


# In a log

LARGE = TopicConfig(segment_bytes=100 << 20, index_interval_bytes=0)
BATCHES = 30


def large_log() -> MemoryFileSystem:
    """One segment of some blocks, in batches of 100 KB, after a checkpoint."""
    files = MemoryFileSystem()
    log = open_log(files, LARGE)
    for number in range(BATCHES):
        append(log, make_batch(producer=(1, 0, number), value=bytes([number]) * 100_000))
        flush(log)
    checkpoint(log)
    return files.kill()


def test_damage_in_one_place_does_not_keep_anybody_from_reading_elsewhere() -> None:
    files = large_log()
    whole = open_log(files.kill(), LARGE)
    path = DIRECTORY / file_name(0, ".log")
    stored = bytearray(files.read_bytes(path))
    stored[4 * BLOCK_SIZE + 7] ^= 1
    files.replace(path, bytes(stored))
    log = open_log(files, LARGE)
    refused = []
    for offset in range(BATCHES):
        try:
            found = log.read(offset, 1 << 20)
        except CorruptLog as error:
            assert f"{path} is damaged at position {4 * BLOCK_SIZE}" in str(error)  # noqa: PT017
            refused.append(offset)
        else:
            expected = whole.read(offset, 1 << 20)
            assert found == expected[: len(found)]
            assert len(found) > 100_000
    assert refused == list(range(refused[0], refused[-1] + 1))
    batch = log.active.size // BATCHES
    assert refused[0] == 4 * BLOCK_SIZE // batch
    assert refused[-1] == 5 * BLOCK_SIZE // batch


def test_what_was_read_once_or_was_written_since_is_not_looked_at_again() -> None:
    log = open_log(large_log(), LARGE)
    assert log.active.unverified is not None
    for offset in range(BATCHES):
        log.read(offset, 1)
    assert log.active.unverified is None
    append(log, make_batch(producer=(1, 0, BATCHES), value=b"more"))
    flush(log)
    assert log.active.unverified is None
    assert checkpoint(log)
    assert log.active.checksums is not None
    assert log.active.checksums.size == log.active.size


def test_much_at_a_time_is_read_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.log.segment.VERIFIED_AT_ONCE", 300_000)
    log = open_log(large_log(), LARGE)
    sizes = [len(log.read(0, 1 << 30)), len(log.read(0, 1))]
    assert sizes[0] == 300_000
    for offset in range(BATCHES):
        log.read(offset, 1)
    assert len(log.read(0, 1 << 30)) == log.active.size


def test_without_its_snapshot_a_log_that_lost_its_first_segments_is_refused() -> None:
    """Retention has freed records of producers that only the snapshots know of."""
    small = TopicConfig(segment_bytes=250, retention_bytes=300)
    clock = ManualClock()
    log = open_log(config=small, clock=clock)
    for number in range(20):
        append(log, make_batch(producer=(1, 0, number)))
        flush(log)
    checkpoint(log)
    assert log.apply_retention(clock.now_ms()) > 0
    files = log._files
    assert isinstance(files, MemoryFileSystem)
    files = files.kill()
    assert log.segments[0].base_offset > 0
    for offset in snapshots(files, DIRECTORY):
        files.remove(DIRECTORY / file_name(offset, ".snapshot"))
    with pytest.raises(CorruptLog, match=f"the one in {DIRECTORY} is missing"):
        open_log(files, small)


def test_a_log_of_which_nothing_was_left_has_a_snapshot_before_it_has_checksums() -> None:
    """Else the one that it does not have could not be told from one that somebody has removed."""
    files = MemoryFileSystem()
    log = open_log(files)
    append(log, make_batch(4))
    flush(log)
    log.delete_before(4)
    files = files.kill()
    for name in files.list(DIRECTORY):
        if not name.endswith(".json"):
            files.remove(DIRECTORY / name)
    log = open_log(files)
    assert (log.start_offset, log.end_offset, snapshots(files, DIRECTORY)) == (4, 4, [4])
    append(log, make_batch(2))
    flush(log)
    job = log.begin_checkpoint()
    assert job is not None
    job.segments[0].replace_checksums(job.parts[0].known.extended(log.active.log, log.active.size, 6, NO_INDEXES))
    assert open_log(files.kill()).end_offset == 6


# Crashes

SMALL = TopicConfig(segment_bytes=250, index_interval_bytes=0)
NAMES = (".log", ".checksums", ".snapshot")


def write(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        append(log, make_batch(producer=(1, 0, log.end_offset), value=b"%03d" % log.end_offset))


@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("before", [0, 2, 4])
def test_dying_at_any_step_of_a_checkpoint_is_never_taken_for_damage(fsync: bool, before: int) -> None:
    """Nor is what follows it: segments of the same names are made again, and the next checkpoint may die, too."""
    for step in range(1000):
        log = open_log(MemoryFileSystem(), SMALL, fsync=fsync)
        files = log._files
        assert isinstance(files, MemoryFileSystem)
        write(log, before)
        flush(log)
        checkpoint(log)
        write(log, 5)
        if fsync:
            flush(log)
        certain = log.high_watermark if fsync else before
        files.steps_until_crash = step
        try:
            checkpoint(log)
        except SimulatedCrash:
            for seed, after in enumerate(each_crash(files, NAMES)):
                found = open_log(after, SMALL, fsync=fsync)
                assert found.end_offset >= certain
                assert [int(value or b"") for value in values(found)] == list(range(found.end_offset))
                write(found, 4)
                flush(found)
                again = after.crash(random.Random(seed))
                assert open_log(again, SMALL, fsync=fsync).end_offset >= (found.end_offset if fsync else certain)
                checkpoint(found)
                end = found.end_offset
                assert open_log(after.crash(random.Random(seed)), SMALL, fsync=fsync).end_offset == end
        else:
            assert step > 5
            return
    pytest.fail("never came to an end")


@pytest.mark.parametrize("failures", [1, 2, 3, 5])
def test_a_log_that_went_back_behind_a_checkpoint_is_not_taken_for_damaged(failures: int) -> None:
    """A checkpoint reaches above the high watermark; then a flush fails, and the log is cut."""
    log = open_log(MemoryFileSystem(), SMALL)
    files = log._files
    assert isinstance(files, MemoryFileSystem)
    write(log, 2)
    flush(log)
    write(log, 5)
    checkpoint(log)
    log.begin_flush()
    files.sync_failures = failures
    log.fail_flush()
    for seed in range(60):
        for after in (files.kill(), files.crash(random.Random(seed))):
            found = open_log(after, SMALL)
            assert found.end_offset >= 2
            assert [int(value or b"") for value in values(found)] == list(range(found.end_offset))
    files.sync_failures = 0
    if log.awaits_repair:
        log._repair()  # as the next write does
    assert log.end_offset == 2
    write(log, 5)
    flush(log)
    for seed in range(60):
        assert open_log(files.crash(random.Random(seed)), SMALL).end_offset == 7


# While a broker runs


def real_log(directory: Path) -> PartitionLog:
    log = open_log(RealFileSystem(), LARGE, directory=directory)
    for number in range(8):
        append(log, make_batch(producer=(1, 0, number), value=bytes(1000)))
    flush(log)
    return log


@pytest.mark.parametrize("left", [0, 30, 1500])
def test_a_log_that_is_cut_under_a_running_broker_is_an_error(tmp_path: Path, left: int) -> None:
    log = real_log(tmp_path)
    path = log.active.log.path
    os.truncate(path, left)
    for offset in range(2, 8):
        with pytest.raises(OnceflowError, match=str(path)):
            log.read(offset, 1 << 20)
    with pytest.raises(StorageError, match=str(path)):
        checkpoint(log)
    log.abandon()


def test_a_log_that_is_removed_under_a_running_broker_is_read_and_said(tmp_path: Path) -> None:
    log = real_log(tmp_path)
    found = log.read(0, 1 << 20)
    log.active.log.path.unlink()
    assert log.read(0, 1 << 20) == found
    with pytest.raises(StorageError, match="was removed while it was open"):
        checkpoint(log)
    log.abandon()


def test_a_flush_that_fails_on_a_log_that_is_gone_makes_no_empty_one(tmp_path: Path) -> None:
    log = real_log(tmp_path)
    path = log.active.log.path
    path.unlink()
    log.fail_flush()
    assert log.awaits_repair
    with pytest.raises(StorageError, match=f"{path} was removed or cut"):
        append(log, make_batch(producer=(1, 0, 8)))
    assert not path.exists()
    log.abandon()

"""What a start makes of whatever the last process left behind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.config import TopicConfig
from onceflow.errors import CorruptLog, ErrorCode, ProtocolError, StorageError
from onceflow.log.memory_files import MemoryFile, MemoryFileSystem, SimulatedCrash
from onceflow.log.partition import PartitionLog
from onceflow.log.recovery import offsets_of, recover, snapshots
from onceflow.log.segment import file_name
from onceflow.log.small_files import to_json
from onceflow.wire.batch import read_header
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
LOG, INDEX, TIMES, SNAPSHOT, CHECKSUMS = ".log", ".index", ".timeindex", ".snapshot", ".checksums"


def log_of(batches: int, *, checkpoint_after: int | None = None, config: TopicConfig = SMALL) -> MemoryFileSystem:
    """The files of a log of so many batches of one record, the values being their numbers, from one producer."""
    files = MemoryFileSystem()
    log = open_log(files, config)
    grow(log, batches, checkpoint_after=checkpoint_after)
    return files.kill()


def grow(log: PartitionLog, batches: int, *, checkpoint_after: int | None = None) -> None:
    for _ in range(batches):
        number = log.end_offset
        if number == checkpoint_after:
            checkpoint(log)
        append(log, make_batch(producer=(1, 0, number), value=b"%03d" % number, timestamps=[T0 + number]))
    flush(log)
    if log.end_offset == checkpoint_after:
        checkpoint(log)


def numbers(log: PartitionLog) -> list[int]:
    return [int(value or b"") for value in values(log)]


def batch_size() -> int:
    return len(make_batch(producer=(1, 0, 0), value=b"000"))


def change(files: MemoryFileSystem, base: int, suffix: str, edit: Callable[[bytes], bytes]) -> None:
    path = DIRECTORY / file_name(base, suffix)
    files.replace(path, edit(files.read_bytes(path)))


def add(files: MemoryFileSystem, name: str, data: bytes = b"") -> None:
    files.replace(DIRECTORY / name, data)


def names(files: MemoryFileSystem, suffix: str) -> list[int]:
    return offsets_of(files, DIRECTORY, suffix)


def reopened(files: MemoryFileSystem) -> PartitionLog:
    """A log that was opened, and is as good as one that nothing ever happened to."""
    log = open_log(files, SMALL)
    check_usable(log)
    return log


def check_usable(log: PartitionLog) -> None:
    """Every offset and time is found, repeats are recognised, it can be written to; also after another restart."""
    check_found(log)
    with pytest.raises(ProtocolError) as refused:
        append(log, make_batch(producer=(1, 0, log.end_offset + 7)))
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    end = log.end_offset
    grow(log, 4)
    assert log.high_watermark == log.end_offset == end + 4
    check_found(log)
    checkpoint(log)
    assert isinstance(log._files, MemoryFileSystem)
    again = open_log(log._files.kill(), SMALL)
    assert (again.recovered.scanned_bytes, read_all(again)) == (0, read_all(log))
    check_found(again)


def check_found(log: PartitionLog) -> None:
    found = read_all(log)
    for header, batch in found:
        for offset in range(max(header.base_offset, log.start_offset), header.last_offset + 1):
            assert log.read(offset, 1) == batch
        assert at_once(log.first_offset_at(header.max_timestamp)).offset == header.base_offset
    if found:
        assert at_once(log.offset_of_newest()).offset == found[-1][0].base_offset
        for header, _ in found[-5:]:
            again = append(log, make_batch(producer=(1, 0, header.base_sequence), value=b"xxx"))
            assert again == (header.base_offset, -1, True)


# The end of the log


def half(batch: bytes) -> bytes:
    return batch[: len(batch) // 2]


def flipped(batch: bytes, at: int = 65) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


BATCH = bytes(make_batch(producer=(1, 0, 8), value=b"008", timestamps=[T0 + 8]))
NEXT = struct.pack(">q", 8) + BATCH[8:12] + struct.pack(">i", 0) + BATCH[16:]
TORN = {
    "nothing": b"",
    "one byte": NEXT[:1],
    "a part of a header": NEXT[:40],
    "a header and nothing else": NEXT[:61],
    "half a batch": half(NEXT),
    "all but a byte": NEXT[:-1],
    "a batch with a flipped bit": flipped(NEXT),
    "a batch with a flipped bit in its header": flipped(NEXT, 30),
    "a batch with a wrong offset": struct.pack(">q", 3) + BATCH[8:],
    "a batch behind a gap": struct.pack(">q", 9) + NEXT[8:],
    "a batch of another leader epoch": NEXT[:12] + struct.pack(">i", 1) + NEXT[16:],
    "a batch that says it is longer": NEXT[:8] + struct.pack(">i", 1 << 30) + NEXT[12:],
    "a batch that says it has no length": NEXT[:8] + struct.pack(">i", 0) + NEXT[12:],
    "a batch with a negative length": NEXT[:8] + struct.pack(">i", -5) + NEXT[12:],
    "a batch of another magic": NEXT[:16] + b"\x01" + NEXT[17:],
    "zeros": bytes(500),
    "a few zeros": bytes(7),
    "a damaged batch and a sound one": flipped(NEXT) + struct.pack(">q", 9) + BATCH[8:],
    "half a batch and zeros": half(NEXT) + bytes(300),
}


@pytest.mark.parametrize("tail", TORN.values(), ids=TORN.keys())
@pytest.mark.parametrize("checkpoint_after", [None, 4, 6, 8])
def test_a_torn_end_is_cut_and_all_before_it_is_there(tail: bytes, checkpoint_after: int | None) -> None:
    files = log_of(8, checkpoint_after=checkpoint_after)
    change(files, 6, LOG, lambda data: data + tail)
    log = open_log(files, SMALL)
    assert numbers(log) == list(range(8))
    assert log.recovered.cut_bytes == len(tail)
    assert log.recovered.scanned_bytes == (8 - (checkpoint_after or 0)) * batch_size()
    assert files.size(DIRECTORY / file_name(6, LOG)) == 2 * batch_size()
    check_usable(log)


def test_a_whole_batch_at_the_end_is_kept_even_if_nobody_was_told() -> None:
    files = log_of(8)
    change(files, 6, LOG, lambda data: data + NEXT)
    assert reopened(files).start_offset == 0
    assert numbers(open_log(files, SMALL))[:9] == list(range(9))


def test_damage_above_the_checkpoint_cuts_everything_behind_it() -> None:
    files = log_of(11, checkpoint_after=3)
    size = batch_size()
    change(files, 3, LOG, lambda data: data[:size] + flipped(data[size:]))
    log = open_log(files, SMALL)
    assert numbers(log) == [0, 1, 2, 3]
    assert log.recovered.cut_bytes == 7 * size
    assert names(files, LOG) == [0, 3]
    check_usable(log)


@pytest.mark.parametrize("base", [0, 3])
def test_a_changed_byte_below_the_checkpoint_is_found_when_somebody_reads_there(base: int) -> None:
    whole = log_of(8, checkpoint_after=8)
    size = whole.size(DIRECTORY / file_name(base, LOG))
    for at in range(size):
        files = whole.kill()
        change(files, base, LOG, lambda data, at=at: flipped(data, at))  # type: ignore[misc]
        log = open_log(files, SMALL)
        assert (log.end_offset, log.recovered.scanned_bytes) == (8, 0)
        for offset in range(8):
            if base <= offset < base + 3:
                with pytest.raises(CorruptLog, match=f"{base}.log is damaged at position 0"):
                    log.read(offset, 1 << 20)
            else:
                assert log.read(offset, 1 << 20) == open_log(whole.kill(), SMALL).read(offset, 1 << 20)


def test_a_changed_byte_at_the_end_of_what_a_checkpoint_vouches_for_is_found_at_the_start() -> None:
    whole = log_of(8, checkpoint_after=8)
    for at in range(whole.size(DIRECTORY / file_name(6, LOG))):
        files = whole.kill()
        change(files, 6, LOG, lambda data, at=at: flipped(data, at))  # type: ignore[misc]
        assert f"{file_name(6, LOG)} is damaged at position 0" in refused(files)


def test_the_next_segment_does_not_get_to_disk() -> None:
    files = log_of(5, checkpoint_after=3)
    change(files, 3, LOG, lambda data: bytes(len(data)))
    log = open_log(files, SMALL)
    assert numbers(log) == [0, 1, 2]
    check_usable(log)


def test_a_gap_between_segments_is_the_end_of_the_log() -> None:
    """The end of one segment did not get to disk, and the next one did: nobody was told that any of it was there."""
    files = log_of(11, checkpoint_after=3)
    change(files, 3, LOG, lambda data: data[: 2 * batch_size()])
    log = open_log(files, SMALL)
    assert numbers(log) == [0, 1, 2, 3, 4]
    assert names(files, LOG) == [0, 3]
    check_usable(log)


def test_a_segment_whose_name_did_not_get_to_disk_is_the_end_of_the_log() -> None:
    files = log_of(11, checkpoint_after=2)
    files.remove(DIRECTORY / file_name(3, LOG))
    log = open_log(files, SMALL)
    assert numbers(log) == [0, 1, 2]
    assert names(files, LOG) == [0]
    check_usable(log)


@pytest.mark.parametrize("checkpoint_after", [None, 0, 2, 3])
@pytest.mark.parametrize("gone", [(3,), (3, 6), (3, 9), (6,), (6, 9), (9,)])
def test_what_follows_a_gap_in_the_unsaved_part_is_removed_and_the_log_says_so(
    checkpoint_after: int | None, gone: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    files = log_of(14, checkpoint_after=checkpoint_after)
    for base in gone:
        files.remove(DIRECTORY / file_name(base, LOG))
    log = open_log(files, SMALL)
    assert numbers(log) == list(range(gone[0]))
    assert names(files, LOG) == list(range(0, gone[0], 3))
    [line] = [record for record in caplog.records if "dropped" in record.getMessage()]
    left = [base for base in (0, 3, 6, 9, 12) if base not in gone]
    following = next(base for base in left if base > gone[0])
    assert line.levelname == "WARNING"
    assert f"ends at offset {gone[0]}" in line.getMessage()
    assert f"the next segment begins at offset {following}" in line.getMessage()
    check_usable(log)


def refused(files: MemoryFileSystem) -> str:
    """The sentence with which a start refuses what it finds; it changes nothing, so that it can be put right."""
    before = contents(files)
    with pytest.raises(CorruptLog) as found:
        open_log(files, SMALL)
    assert contents(files) == before
    sentence = str(found.value)
    assert str(DIRECTORY) in sentence
    assert "restore the folder from a backup" in sentence
    return sentence


def contents(files: MemoryFileSystem) -> dict[str, bytes]:
    return {name: files.read_bytes(DIRECTORY / name) for name in files.list(DIRECTORY)}


@pytest.mark.parametrize("gone", [(0,), (3,), (6,), (12,), (0, 3), (3, 6), (3, 12), (9, 12), (0, 3, 6, 9, 12)])
def test_segments_that_a_checkpoint_vouches_for_and_that_are_missing_are_said(gone: tuple[int, ...]) -> None:
    """No crash does that: somebody has removed acknowledged records. What to do is for a person to decide."""
    files = log_of(14, checkpoint_after=13)
    whole = files.kill()
    for base in gone:
        files.remove(DIRECTORY / file_name(base, LOG))
    assert f"has nothing from offset {gone[0]} to" in refused(files)
    for base in gone:
        add(files, file_name(base, LOG), whole.read_bytes(DIRECTORY / file_name(base, LOG)))
    reopened(files)


def test_a_segment_that_begins_inside_of_another_below_a_checkpoint_is_said() -> None:
    """As one that compaction has replaced, and that is there again."""
    files = log_of(14, checkpoint_after=13)
    add(files, file_name(4, LOG), files.read_bytes(DIRECTORY / file_name(3, LOG))[batch_size() :])
    assert f"{file_name(4, LOG)} begins at offset 4" in refused(files)


@pytest.mark.parametrize("gone", [(3,), (3, 6), (12,)])
def test_whoever_removes_what_vouches_for_the_missing_gets_what_is_whole_before_it(gone: tuple[int, ...]) -> None:
    files = log_of(14, checkpoint_after=13)
    for base in gone:
        files.remove(DIRECTORY / file_name(base, LOG))
    for name in files.list(DIRECTORY):
        if name.endswith((SNAPSHOT, CHECKSUMS)):
            files.remove(DIRECTORY / name)
    log = open_log(files, SMALL)
    assert numbers(log) == list(range(gone[0]))
    check_usable(log)


@pytest.mark.parametrize("base", [0, 3, 6])
@pytest.mark.parametrize("left", [0, 1, 70, -1])
def test_a_segment_that_was_cut_below_a_checkpoint_is_said(base: int, left: int) -> None:
    files = log_of(8, checkpoint_after=8)
    change(files, base, LOG, lambda data: data[:left])
    assert f"{file_name(base, LOG)} is damaged at position" in refused(files)


@pytest.mark.parametrize("more", [bytes(1), bytes(5000), b"\xff" * 61, NEXT])
@pytest.mark.parametrize("base", [0, 3])
def test_what_was_added_to_a_sealed_segment_is_cut(base: int, more: bytes, caplog: pytest.LogCaptureFixture) -> None:
    files = log_of(8, checkpoint_after=8)
    before = contents(files)
    change(files, base, LOG, lambda data: data + more)
    reopened(files.kill())
    open_log(files, SMALL)
    assert contents(files) == before
    assert "what was added to it is cut" in caplog.text


@pytest.mark.parametrize("base", [0, 3, 6])
@pytest.mark.parametrize("damage", [None, lambda data: b"", lambda data: data[:-1], flipped, lambda data: data + b"x"])
def test_missing_or_damaged_checksums_are_made_again(base: int, damage: Callable[[bytes], bytes] | None) -> None:
    files = log_of(8, checkpoint_after=8)
    whole = contents(files)
    if damage is None:
        files.remove(DIRECTORY / file_name(base, CHECKSUMS))
    else:
        change(files, base, CHECKSUMS, damage)
    spoilt = files.kill()
    change(spoilt, base, LOG, flipped)
    assert f"{file_name(base, LOG)} is damaged at position 0" in refused(spoilt)
    reopened(files.kill())
    log = open_log(files, SMALL)
    checkpoint(log)
    assert contents(files) == whole


def test_a_first_segment_whose_name_did_not_get_to_disk_leaves_an_empty_log() -> None:
    files = log_of(8)
    files.remove(DIRECTORY / file_name(0, LOG))
    log = open_log(files, SMALL)
    assert (log.start_offset, log.end_offset) == (0, 0)
    assert names(files, LOG) == [0]


def test_a_segment_that_was_removed_and_came_back_is_removed_again() -> None:
    """As after a cut that was followed by new records, when the removal of the old segments did not get to disk."""
    files = log_of(8)
    old = files.read_bytes(DIRECTORY / file_name(6, LOG))
    files = log_of(5, config=TopicConfig(segment_bytes=1000, index_interval_bytes=0))
    add(files, file_name(3, LOG), old)
    log = open_log(files, SMALL)
    assert numbers(log) == list(range(5))
    assert names(files, LOG) == [0]
    check_usable(log)


def test_what_a_failed_write_left_at_the_end_of_a_sealed_segment_is_all_that_is_cut() -> None:
    files = log_of(8)
    change(files, 3, LOG, lambda data: data + half(NEXT))
    log = open_log(files, SMALL)
    assert numbers(log) == list(range(8))
    assert log.recovered.cut_bytes == len(half(NEXT))
    check_usable(log)


def test_an_empty_segment_at_the_end_is_where_the_next_record_goes() -> None:
    files = log_of(9)
    add(files, file_name(9, LOG))
    log = open_log(files, SMALL)
    assert (log.end_offset, log.active.base_offset) == (9, 9)
    check_usable(log)


def test_a_log_that_ends_before_it_starts_starts_over() -> None:
    """Without `fsync`: the new log start got to disk and the records before it did not."""
    files = log_of(8)
    add(files, "log-start-offset.json", to_json({"offset": 20}))
    log = open_log(files, SMALL)
    assert (log.start_offset, log.end_offset) == (20, 20)
    assert names(files, LOG) == [20]
    assert len(log.producers) == 0
    append(log, make_batch(producer=(1, 0, 8)))
    flush(log)
    assert open_log(files, SMALL).end_offset == 21


@pytest.mark.parametrize("text", [b"", b"x\n", b"-1\n", "²".encode()])
def test_a_damaged_log_start_is_said_and_nothing_is_touched(text: bytes) -> None:
    files = log_of(8)
    add(files, "log-start-offset.json", text)
    with pytest.raises(CorruptLog, match=r"log-start-offset\.json is damaged"):
        open_log(files, SMALL)
    assert names(files, LOG) == [0, 3, 6]


# Checkpoints


@pytest.mark.parametrize("at", range(12))
def test_only_what_is_above_the_checkpoint_is_read(at: int) -> None:
    files = log_of(11, checkpoint_after=at)
    log = open_log(files, SMALL)
    assert (log.recovered.checkpoint, log.recovered.scanned_bytes) == (at, (11 - at) * batch_size())
    assert log.recovered.cut_bytes == 0
    assert numbers(log) == list(range(11))
    check_usable(log)


class CountingFiles(MemoryFileSystem):
    """Knows how much was read through open files."""

    bytes_read = 0

    def open(self, path: Path) -> MemoryFile:
        file = super().open(path)
        read = file.read

        def counted(at: int, size: int) -> bytes:
            self.bytes_read += size
            return read(at, size)

        file.read = counted  # type: ignore[method-assign]
        return file


def test_time_to_open_does_not_grow_with_the_log() -> None:
    """Of everything below the checkpoint, not more is read than the headers behind the last index entry."""
    reads = []
    for batches in (8, 80):
        left = log_of(batches, checkpoint_after=batches)
        files = CountingFiles()
        files._names = left._names
        open_log(files, SMALL)
        reads.append(files.bytes_read)
    assert 0 < reads[0] == reads[1]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: bytes(len(data)), flipped])
def test_a_damaged_snapshot_gives_way_to_an_older_one(damage: Callable[[bytes], bytes]) -> None:
    files = log_of(8, checkpoint_after=4)
    log = open_log(files, SMALL)
    checkpoint(log)
    assert snapshots(files, DIRECTORY) == [4, 8]
    change(files, 8, SNAPSHOT, damage)
    log = open_log(files, SMALL)
    assert (log.recovered.checkpoint, log.recovered.scanned_bytes) == (4, 4 * batch_size())
    assert snapshots(files, DIRECTORY) == [4], "or it would be believed once somebody writes one like it"
    check_usable(log)


def test_without_a_sound_snapshot_all_of_the_log_is_read() -> None:
    files = log_of(8, checkpoint_after=4)
    change(files, 4, SNAPSHOT, lambda data: data[:-1])
    log = open_log(files, SMALL)
    assert (log.recovered.checkpoint, log.recovered.scanned_bytes) == (0, 8 * batch_size())
    check_usable(log)


def test_a_snapshot_below_the_first_segment_is_of_no_use() -> None:
    files = log_of(11, checkpoint_after=2)
    add(files, "log-start-offset.json", to_json({"offset": 6}))
    for base in (0, 3):
        files.remove(DIRECTORY / file_name(base, LOG))
    log = open_log(files, SMALL)
    assert (log.start_offset, log.recovered.checkpoint, numbers(log)) == (6, 6, list(range(6, 11)))
    check_usable(log)


def test_segments_before_the_log_start_that_were_freed_and_came_back_are_no_matter() -> None:
    """Of those that were freed, any may be back after loss of power, and any may be gone."""
    for back in ([], [0], [3], [0, 3], [0, 6], [0, 3, 6]):
        files = log_of(11, checkpoint_after=9)
        add(files, "log-start-offset.json", to_json({"offset": 9}))
        for base in {0, 3, 6} - set(back):
            files.remove(DIRECTORY / file_name(base, LOG))
        log = open_log(files, SMALL)
        assert (log.recovered.checkpoint, log.start_offset, numbers(log)) == (9, 9, [9, 10])
        check_usable(log)


def test_a_torn_write_behind_freed_records_that_came_back_does_not_cost_the_checkpoint() -> None:
    """The segment after them did not get to disk: they are at the end of the log, where the write was torn."""
    files = log_of(9, checkpoint_after=9)
    add(files, "log-start-offset.json", to_json({"offset": 9}))
    for base in (3, 6):
        files.remove(DIRECTORY / file_name(base, LOG))
    change(files, 0, LOG, lambda data: data + half(NEXT))
    log = open_log(files, SMALL)
    assert (log.recovered.checkpoint, log.start_offset, log.end_offset) == (9, 9, 9)
    assert append(log, make_batch(producer=(1, 0, 8))) == (8, -1, True)
    check_usable(log)


# Indexes


@pytest.mark.parametrize("suffix", [INDEX, TIMES])
@pytest.mark.parametrize("base", [0, 3, 6])
@pytest.mark.parametrize("rubbish", [None, b"", b"x", bytes(48), b"\xff" * 24])
def test_missing_and_damaged_indexes_are_made_again(suffix: str, base: int, rubbish: bytes | None) -> None:
    files = log_of(8, checkpoint_after=8)
    if rubbish is None:
        files.remove(DIRECTORY / file_name(base, suffix))
    elif rubbish or suffix == INDEX:  # an offset index that misses all entries only makes reading slow
        add(files, file_name(base, suffix), rubbish)
    reopened(files)


@pytest.mark.parametrize("checkpoint_after", [1, 3, 5, 6, 7])
@pytest.mark.parametrize("rubbish", [None, b"x", bytes(24)])
def test_a_damaged_index_and_a_torn_log_at_once(checkpoint_after: int, rubbish: bytes | None) -> None:
    """A crash while a checkpoint is being written leaves both: the index is made again up to where the log is torn."""
    files = log_of(8, checkpoint_after=checkpoint_after)
    change(files, 6, LOG, lambda data: data + half(NEXT))
    for base in names(files, INDEX):
        for suffix in (INDEX, TIMES):
            if rubbish is None:
                files.remove(DIRECTORY / file_name(base, suffix))
            else:
                add(files, file_name(base, suffix), rubbish)
    log = open_log(files, SMALL)
    assert numbers(log) == list(range(8))
    assert log.recovered.checkpoint == checkpoint_after
    check_usable(log)


def test_indexes_that_know_more_than_is_left_of_the_log_are_cut() -> None:
    files = log_of(8, checkpoint_after=6)
    log = open_log(files, SMALL)
    job = log.begin_checkpoint()
    assert job is not None, "the indexes are written, the snapshot is not"
    files = files.kill()
    change(files, 6, LOG, lambda data: data[: batch_size()])
    log = open_log(files, SMALL)
    assert numbers(log) == list(range(7))
    assert at_once(log.offset_of_newest()) == (T0 + 6, 6)
    check_usable(log)


def test_an_index_that_points_behind_the_log_is_made_again() -> None:
    files = log_of(8, checkpoint_after=8)
    change(files, 6, INDEX, lambda data: struct.pack(">ii", 1, 5000))
    reopened(files)


ROOMY = TopicConfig(segment_bytes=100_000, index_interval_bytes=0)


def test_an_entry_that_was_torn_in_an_unfinished_checkpoint_is_dropped() -> None:
    """Its offset is whole, and of its position the last byte is missing: it seems to lie below the last checkpoint."""
    files = log_of(8, checkpoint_after=4, config=ROOMY)
    position = 4 * batch_size()
    assert position == 0x128
    change(files, 0, INDEX, lambda data: data + struct.pack(">ii", 4, 0x100))
    log = open_log(files, ROOMY)
    assert numbers(log) == list(range(8))
    check_found(log)


def test_an_entry_of_a_time_that_was_torn_in_an_unfinished_checkpoint_is_dropped() -> None:
    """Its time is whole, and of its offset the last byte is missing."""
    files = MemoryFileSystem()
    log = open_log(files, ROOMY)
    for number, age in enumerate((0, 50, 1, 2, 100)):
        if number == 4:
            flush(log)
            checkpoint(log)
        append(log, make_batch(producer=(1, 0, number), timestamps=[T0 + age]))
    files = files.kill()
    change(files, 0, LOG, lambda data: data[: 4 * batch_size() + 8])  # the last batch is lost
    change(files, 0, TIMES, lambda data: data + struct.pack(">qi", T0 + 100, 2))
    log = open_log(files, ROOMY)
    assert (log.end_offset, log.recovered.checkpoint) == (4, 4)
    assert at_once(log.offset_of_newest()) == (T0 + 50, 1)
    assert log.active.newest == (T0 + 50, 1)


def test_an_index_that_points_into_a_batch_is_made_again() -> None:
    files = log_of(8, checkpoint_after=8)
    change(files, 6, INDEX, lambda data: struct.pack(">ii", 0, 33))
    log = open_log(files, SMALL)
    assert (log.recovered.checkpoint, log.recovered.scanned_bytes) == (8, 0)
    check_usable(log)


def test_index_files_of_a_segment_that_is_gone_harm_nobody() -> None:
    files = log_of(8, checkpoint_after=8)
    stale = {suffix: files.read_bytes(DIRECTORY / file_name(6, suffix)) for suffix in (INDEX, TIMES)}
    files = log_of(6, checkpoint_after=6)
    for suffix, data in stale.items():
        add(files, file_name(6, suffix), data)
    log = open_log(files, SMALL)
    grow(log, 5)
    check_usable(log)
    reopened(files.kill())


# The rest


def test_files_that_were_never_finished_are_removed() -> None:
    files = log_of(8, checkpoint_after=4)
    add(files, file_name(9, SNAPSHOT) + ".tmp", b"half a snapshot")
    add(files, "log-start-offset.json.tmp", b"1")
    log = open_log(files, SMALL)
    assert [name for name in files.list(DIRECTORY) if name.endswith(".tmp")] == []
    check_usable(log)


def test_files_with_other_names_are_left_alone() -> None:
    files = log_of(8, checkpoint_after=4)
    for name in ("notes.txt", "x.log", "leader-epoch-checkpoint", "1.5.snapshot"):
        add(files, name, b"mine")
    reopened(files)
    assert files.read_bytes(DIRECTORY / "notes.txt") == b"mine"


def test_a_new_log_begins_at_its_start() -> None:
    files = MemoryFileSystem()
    files.make_directory(DIRECTORY)
    found = recover(files, DIRECTORY, 5, 4096, T0)
    assert (found.end_offset, found.checkpoint, found.scanned_bytes, found.cut_bytes) == (5, 5, 0, 0)
    assert [segment.base_offset for segment in found.segments] == [5]


def test_opening_twice_finds_nothing_more_to_do() -> None:
    files = log_of(8, checkpoint_after=4)
    change(files, 6, LOG, lambda data: data + half(NEXT))
    open_log(files, SMALL)
    before = {name: files.read_bytes(DIRECTORY / name) for name in files.list(DIRECTORY)}
    log = open_log(files, SMALL)
    assert log.recovered.cut_bytes == 0
    assert {name: files.read_bytes(DIRECTORY / name) for name in files.list(DIRECTORY)} == before


@pytest.mark.parametrize("damage", ["torn", "gap", "came back", "snapshot"])
def test_dying_at_any_step_of_a_recovery_is_no_worse(damage: str) -> None:
    def damaged() -> MemoryFileSystem:
        files = log_of(11, checkpoint_after=4)
        if damage == "torn":
            change(files, 6, LOG, lambda data: data[:100])
        elif damage == "gap":
            change(files, 6, LOG, lambda data: data[: batch_size()])
        elif damage == "came back":
            add(files, file_name(10, LOG), NEXT)
        else:
            change(files, 4, SNAPSHOT, lambda data: data[:-1])
        return files

    whole = open_log(damaged(), SMALL)
    expected = numbers(whole)
    for step in range(1000):
        files = damaged()
        files.steps_until_crash = step
        try:
            open_log(files, SMALL)
        except SimulatedCrash:
            for after in each_crash(files, (LOG, SNAPSHOT)):
                log = open_log(after, SMALL)
                assert numbers(log) == expected
                check_usable(log)
        else:
            assert step > 0
            return
    pytest.fail("never came to an end")


def test_a_disk_that_refuses_while_opening_leaves_no_file_open() -> None:
    files = log_of(8)
    opened = []
    plain = files.open
    files.open = lambda path: opened.append(plain(path)) or opened[-1]  # type: ignore[method-assign,func-returns-value]
    change(files, 6, LOG, lambda data: data + half(NEXT))
    opened.clear()
    files.sync_failures = 1
    with pytest.raises(StorageError):
        open_log(files, SMALL)
    assert opened
    assert not any(file._is_open for file in opened)
    files.sync_failures = 0
    reopened(files)


def test_the_producers_of_a_log_are_learnt_from_it() -> None:
    files = log_of(8)
    log = open_log(files, SMALL)
    producer = log.producers.get(1)
    assert producer is not None
    assert (producer.epoch, producer.last_sequence) == (0, 7)
    assert [batch.first_offset for batch in producer.batches] == [3, 4, 5, 6, 7]


def test_the_stored_bytes_are_those_of_the_producer_but_for_the_offset() -> None:
    files = log_of(3)
    stored = files.read_bytes(DIRECTORY / file_name(0, LOG))
    for number in range(3):
        sent = bytes(make_batch(producer=(1, 0, number), value=b"%03d" % number, timestamps=[T0 + number]))
        batch = stored[number * len(sent) : (number + 1) * len(sent)]
        assert read_header(batch).base_offset == number
        assert batch[8:12] + batch[16:] == sent[8:12] + sent[16:]

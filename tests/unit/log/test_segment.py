"""One segment: batches in a file, and finding one's way among them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from onceflow.errors import CorruptLog, StorageError
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.log.segment import Segment, file_name
from onceflow.wire.batch import BatchHeader, assign_offset
from tests.unit.log.support import DIRECTORY, T0, header_of, make_batch

BASE = 100


def disk() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directory(DIRECTORY)
    return files


def write(segment: Segment, *batches: tuple[int, int], interval: int = 0) -> list[BatchHeader]:
    """Append batches of so many records with such a timestamp, from the base offset on."""
    offset = segment.base_offset
    headers = []
    for count, timestamp in batches:
        batch = make_batch(count, timestamps=[timestamp] * count)
        assign_offset(batch, offset, 0)
        header = header_of(batch)
        position = segment.size
        segment.append(batch)
        segment.note(position, header.size, header.last_offset, header.max_timestamp, interval)
        headers.append(header)
        offset = header.last_offset + 1
    return headers


def new_segment(files: MemoryFileSystem | None = None) -> Segment:
    segment = Segment(files or disk(), DIRECTORY, BASE)
    segment.start_indexes()
    return segment


def saved(segment: Segment) -> None:
    for file in segment.save_indexes():
        file.sync()
        file.close()


def test_files_are_named_as_kafka_names_them() -> None:
    assert file_name(100, ".log") == "00000000000000000100.log"
    assert new_segment().path(".index") == Path("/data/events-0/00000000000000000100.index")


def test_every_offset_is_located_in_the_batch_that_holds_it() -> None:
    for interval in (0, 150, 10_000):
        segment = new_segment()
        headers = write(segment, (1, T0), (3, T0), (2, T0), (5, T0), (1, T0), interval=interval)
        for header in headers:
            for offset in range(header.base_offset, header.last_offset + 1):
                found = segment.locate(offset, segment.size)
                assert found is not None
                assert found[1].base_offset == header.base_offset
        assert segment.locate(headers[-1].last_offset + 1, segment.size) is None


def test_nothing_is_located_behind_the_end_that_was_given() -> None:
    segment = new_segment()
    first, second = write(segment, (1, T0), (1, T0))
    assert segment.locate(second.base_offset, first.size) is None
    assert segment.locate(first.base_offset, first.size) is not None


def test_headers_and_batches_come_in_order_however_they_are_read() -> None:
    segment = new_segment()
    written = write(segment, (1, T0), (3, T0), (2, T0))
    for peek in (False, True):
        assert [header for _, header in segment.headers(0, peek=peek)] == written
    assert [header for _, header, _ in segment.batches()] == written
    assert b"".join(batch for _, _, batch in segment.batches()) == segment.log.read(0, segment.size)
    second = written[0].size
    assert [position for position, _ in segment.headers(second)] == [second, second + written[1].size]


def test_headers_are_read_across_the_edge_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.log.segment.SCAN_CHUNK", 100)
    segment = new_segment()
    written = write(segment, *((count, T0) for count in (1, 4, 2, 8, 1, 1)))
    assert [header for _, header in segment.headers(0)] == written


@pytest.mark.parametrize("peek", [False, True])
def test_what_is_no_batch_is_corrupt(peek: bool) -> None:
    for rubbish in (b"\x00" * 100, b"\xff" * 100, b"short"):
        segment = new_segment()
        write(segment, (1, T0))
        segment.log.append(rubbish)
        headers = segment.headers(0, peek=peek)
        next(headers)
        with pytest.raises(CorruptLog):
            next(headers)


def test_a_batch_that_is_cut_short_is_corrupt() -> None:
    segment = new_segment()
    first, second = write(segment, (1, T0), (1, T0))
    for size in range(first.size + 1, first.size + second.size):
        with pytest.raises(CorruptLog, match="middle"):
            list(segment.headers(0, size))


def test_a_walk_from_the_end_or_behind_it_is_empty() -> None:
    """The indexes know batches that are not flushed yet; a reader stops at the high watermark before them."""
    segment = new_segment()
    first, _ = write(segment, (1, T0), (1, T0))
    assert list(segment.headers(segment.size)) == []
    assert list(segment.headers(segment.size, first.size)) == []


def test_the_newest_timestamp_and_the_first_batch_that_has_it() -> None:
    segment = new_segment()
    assert segment.newest == (-1, -1)
    write(segment, (1, T0 + 5), (2, T0 + 9), (1, T0 + 9), (1, T0 + 1), interval=10_000)
    assert segment.newest == (T0 + 9, BASE + 2)


def test_records_without_timestamps_leave_nothing_to_find() -> None:
    segment = new_segment()
    write(segment, (1, -1), (1, -1), (1, -1))
    assert segment.newest == (-1, -1)
    assert len(segment.time_index) == 0


def test_indexes_are_saved_and_read_again() -> None:
    files = disk()
    segment = new_segment(files)
    write(segment, (1, T0), (3, T0 + 7), (2, T0 + 3), interval=10_000)
    saved(segment)
    again = Segment(files, DIRECTORY, BASE)
    assert again.newest == (T0 + 7, BASE + 3), "the largest timestamp is there though no entry was due"
    assert again.load_indexes()
    segment.drop_indexes()
    assert segment.time_index.last == (T0 + 7, BASE + 3)


def test_saving_again_adds_what_is_new() -> None:
    files = disk()
    segment = new_segment(files)
    for round_ in range(3):
        write(segment, *((1, T0 + round_ * 10 + at) for at in range(3)))
        saved(segment)
        for index, suffix in ((segment.offset_index, ".index"), (segment.time_index, ".timeindex")):
            assert files.read_bytes(segment.path(suffix)) == index.to_bytes()


def test_what_an_earlier_save_wrote_stays_in_the_file_at_every_moment() -> None:
    """After a recovery the index is shorter than its file. If we died between cutting and writing it anew, a shorter
    index that looks sound would be left, and the newest timestamp of the segment would be wrong."""
    for step in range(20):
        files = disk()
        segment = new_segment(files)
        headers = write(segment, *((1, T0 + at) for at in range(6)))
        saved(segment)
        kept = sum(header.size for header in headers[:4])
        segment.forget_behind(kept, headers[4].base_offset)
        assert segment.newest == (T0 + 3, BASE + 3)
        before = {suffix: files.read_bytes(segment.path(suffix)) for suffix in (".index", ".timeindex")}
        files.steps_until_crash = step
        done = False
        with contextlib.suppress(SimulatedCrash):
            saved(segment)
            done = True
        after = Segment(files.kill(), DIRECTORY, BASE)
        assert after.load_indexes()
        assert after.time_index.to_bytes()[: 12 * 3] == before[".timeindex"][: 12 * 3]
        assert after.offset_index.to_bytes()[: 8 * 3] == before[".index"][: 8 * 3]
        if done:
            assert after.newest == (T0 + 3, BASE + 3)
            return
    pytest.fail("never came to an end")


def test_an_index_whose_sync_failed_is_written_anew() -> None:
    """The pages are gone for good, and the next sync, of another open file, calls that a success."""
    files = disk()
    segment = new_segment(files)
    write(segment, (1, T0), (1, T0 + 1))
    opened = segment.save_indexes()
    files.sync_failures = 2
    for file in opened:
        with pytest.raises(StorageError):
            file.sync()
        file.close()
    saved(segment)
    files.sync_directory(DIRECTORY)
    for suffix, index in ((".index", segment.offset_index), (".timeindex", segment.time_index)):
        inode = files._names[segment.path(suffix)]
        assert inode is not None
        assert bytes(inode.certain) == index.to_bytes()


def test_a_failed_save_is_simply_tried_again_and_leaves_no_file_open() -> None:
    files = disk()
    opened = []
    open_file = files.open

    def remembering(path: Path) -> object:
        opened.append(open_file(path))
        return opened[-1]

    segment = new_segment(files)
    write(segment, (1, T0), (1, T0 + 1), (1, T0 + 2))
    files.open = remembering  # type: ignore[method-assign,assignment]
    for passes in (0, 1):
        files.write_failure = (passes, 5)
        with pytest.raises(StorageError):
            segment.save_indexes()
        assert not any(file._is_open for file in opened)
    saved(segment)
    for suffix, index in ((".index", segment.offset_index), (".timeindex", segment.time_index)):
        assert files.read_bytes(segment.path(suffix)) == index.to_bytes()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("rubbish", [None, b"x", bytes(24), b"\xff" * 24])
def test_a_missing_or_damaged_index_is_made_again_from_the_log(suffix: str, rubbish: bytes | None) -> None:
    files = disk()
    segment = new_segment(files)
    headers = write(segment, (1, T0), (3, T0 + 7), (2, T0 + 3), (2, T0 + 3))
    saved(segment)
    if rubbish is None:
        files.remove(segment.path(suffix))
    else:
        files.replace(segment.path(suffix), rubbish)
    again = Segment(files, DIRECTORY, BASE)
    assert not again.load_indexes()
    assert again.newest == (T0 + 7, BASE + 3)
    found = again.locate(headers[-1].base_offset, again.size)
    assert found is not None
    assert found[1] == headers[-1]


def test_a_deleted_segment_leaves_no_file() -> None:
    files = disk()
    segment = new_segment(files)
    write(segment, (1, T0), (1, T0))
    saved(segment)
    assert len(files.list(DIRECTORY)) == 3
    segment.delete()
    segment.delete()
    assert files.list(DIRECTORY) == []

"""Compaction on a disk in memory: what stays, what goes, and that no crash, refusal or interruption changes that.

With transactions: `test_compaction_transactions`.
"""

from __future__ import annotations

import contextlib
import logging
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onceflow.config import LONG_MAX
from onceflow.errors import CorruptLog, StorageError
from onceflow.log import compaction, draft
from onceflow.log.aborted import Aborts
from onceflow.log.compaction import Cleaner, Pace
from onceflow.log.files import RealFileSystem
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.log.partition import PartitionLog
from onceflow.log.small_files import to_json
from onceflow.wire.batch import batches, read_header
from onceflow.wire.compression import Codec
from onceflow.wire.records import Record, build_batch, read_records
from tests.support.at_once import accept
from tests.support.effort import effort, examples
from tests.unit.log.shop import DAY_MS, FOLDER, Pair, Shop, after_power_loss, cloned, remembered, settings_of

# What stays and what goes


def test_of_each_key_the_last_record_stays_and_offsets_do_not_change() -> None:
    shop = Shop()
    shop.segment(("a", "1"), ("b", "1"), ("a", "2"))
    shop.segment(("c", "1"), ("b", "2"))
    shop.compact()
    assert shop.offsets == [2, 3, 4]
    assert shop.log.end_offset == 5
    assert shop.log.start_offset == 0
    shop.check()


def test_what_was_sealed_after_the_checkpoint_is_not_touched() -> None:
    shop = Shop()
    shop.segment(("a", "1"), ("a", "2"))
    shop.write(("a", "3"))
    shop.log.roll()
    shop.write(("a", "4"))
    shop.compact()
    assert shop.offsets == [1, 2, 3]


def test_a_record_in_the_active_segment_pushes_out_nothing() -> None:
    shop = Shop()
    shop.segment(("a", "1"))
    shop.write(("a", "2"))
    shop.checkpoint()
    shop.compact()
    assert shop.offsets == [0, 1]


def test_what_is_not_flushed_is_not_touched_even_if_it_is_sealed() -> None:
    shop = Shop()
    shop.segment(("a", "1"))
    batch = bytearray(build_batch([Record(0, 1, b"a", b"2")], base_offset=0))
    shop.log.append(*accept(memoryview(batch), shop.config, shop.clock.now_ms()))
    shop.log.roll()
    checkpoint = shop.log.begin_checkpoint()
    assert checkpoint is not None
    checkpoint.run()
    shop.log.complete_checkpoint(checkpoint)
    assert shop.log.high_watermark == 1
    shop.compact()
    flush = shop.log.begin_flush()
    flush.run()
    shop.log.complete_flush(flush)
    assert shop.offsets == [0, 1]


def test_later_rounds_clean_what_earlier_ones_kept() -> None:
    shop = Shop()
    for number in range(5):
        shop.segment(("a", str(number)), ("b", str(number)))
        shop.compact()
        shop.check()
        assert shop.offsets == [2 * number, 2 * number + 1]
    assert len(shop.log.segments) == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_keeps_its_codec_its_range_and_its_producer(codec: Codec) -> None:
    shop = Shop()
    shop.write(("a", "1"), ("b", "x" * 500), ("a", "2"), ("c", "1"), codec=codec, producer_id=7)
    before, _ = next(shop.batches())
    shop.segment(("c", "2"))
    shop.compact()
    after, _ = next(shop.batches())
    assert after.count == 2
    changing = {"length", "crc", "count", "max_timestamp"}
    for name, value in before._asdict().items():
        assert name in changing or getattr(after, name) == value, name
    assert after.max_timestamp == shop.written[2].timestamp
    assert after.last_offset == 3
    shop.check()


def test_an_untouched_batch_keeps_every_byte() -> None:
    shop = Shop()
    shop.write(("a", "1"), ("b", "1"), codec=Codec.GZIP)
    kept = list(shop.batches())
    shop.segment(("x", "1"), ("x", "2"))
    shop.compact()
    assert next(iter(shop.batches())) == kept[0]


def test_with_append_time_the_brokers_stamp_stays() -> None:
    shop = Shop(append_time=True)
    shop.write(("a", "1"), ("b", None), ("c", "1"))
    shop.clock.advance(5000)
    shop.segment(("a", "2"))
    shop.compact()
    header, _ = next(shop.batches())
    assert header.is_append_time
    assert header.delete_horizon_ms is not None
    shop.check()


def test_records_without_a_key_go_as_in_kafka() -> None:
    shop = Shop()
    shop.segment((None, "old"), ("a", "1"), unchecked=True)
    shop.compact()
    assert shop.offsets == [1]


def test_keys_too_long_to_be_noted_are_told_apart() -> None:
    shop = Shop()
    long = "k" * 1000
    shop.segment((long + "a", "1"), (long + "b", "1"), (long + "a", "2"))
    shop.compact()
    assert shop.offsets == [1, 2]
    assert len(draft.noted(b"k" * 1000, 0, 1000)) > draft.KEY_LENGTH_MAX


def test_an_empty_key_is_a_key() -> None:
    shop = Shop()
    shop.segment(("", "1"), ("", "2"), ("", "3"))
    shop.compact()
    assert shop.offsets == [2]


def test_more_keys_than_fit_are_cleaned_in_rounds() -> None:
    shop = Shop()
    shop.cleaner = Cleaner(shop.files, keys_max=3)
    for number in range(4):
        shop.write(*((f"k{key}", str(number)) for key in range(2)))
        shop.write(*((f"k{key}", str(number)) for key in range(2, 5)))
    shop.roll()
    shop.compact()
    assert shop.offsets == list(range(15, 20))
    assert shop.cleaner.cleaned_offset(shop.log) == 20
    shop.check()


def test_more_keys_in_one_batch_than_fit_are_cleaned_in_rounds() -> None:
    shop = Shop()
    shop.cleaner = Cleaner(shop.files, keys_max=3)
    shop.write(*((f"k{key}", "old") for key in range(8)))
    shop.write(*((f"k{key}", "new") for key in range(8)))
    shop.roll()
    shop.compact()
    assert shop.offsets == list(range(8, 16))
    assert shop.cleaner.cleaned_offset(shop.log) == 16
    shop.check()


def test_a_tombstone_above_the_noted_range_stays_even_if_its_horizon_has_passed() -> None:
    """Nobody has looked for the older records of its key: they would be all that is left."""
    batch = build_batch(
        [Record(0, 1, b"a", None), Record(1, 1, b"b", None)], base_offset=0, delete_horizon_ms=5, max_timestamp=1
    )
    survivors = draft.Survivors({b"a": 0}, 1, DAY_MS, DAY_MS, set(), {}, Aborts())
    assert [record.offset for record in read_records(survivors.of(read_header(batch), batch))] == [1]


def test_a_record_with_a_million_headers_is_compacted_without_looking_at_them() -> None:
    headers = (("", b""),) * 1_000_000
    batch = build_batch([Record(0, 1, b"a", b"x", headers), Record(1, 1, b"b", b"x")], base_offset=0, codec=Codec.ZSTD)
    survivors = draft.Survivors({b"a": 0, b"b": 5}, 6, 0, DAY_MS, set(), {}, Aborts())
    tracemalloc.start()
    thin = survivors.of(read_header(batch), batch)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    [record] = read_records(thin)
    assert (record.offset, len(record.headers)) == (0, 1_000_000)
    assert most < 20 << 20  # the bytes, a few times; the headers alone would be 100 MB


def test_nothing_above_the_noted_range_is_touched() -> None:
    survivors = draft.Survivors({b"a": 4}, 5, 0, DAY_MS, set(), {}, Aborts())
    below = build_batch([Record(3, 1, b"a", b"x"), Record(4, 1, b"a", None)], base_offset=3)
    above = build_batch([Record(5, 1, b"a", None), Record(6, 1, None, b"x")], base_offset=5)
    assert [record.offset for record in read_records(survivors.of(read_header(below), below))] == [4]
    assert survivors.of(read_header(above), above) is above


# Batches without records


def test_the_last_batch_of_a_file_stays_without_records() -> None:
    shop = Shop()
    shop.segment(("a", "1"), ("a", None))
    shop.compact()
    shop.clock.advance(DAY_MS)
    shop.segment((None, "x"), (None, "y"), unchecked=True)
    shop.compact()
    ((last, _),) = shop.batches()
    assert (last.count, last.base_offset, last.last_offset) == (0, 2, 3)
    assert last.max_timestamp == shop.written[3].timestamp
    shop.check_files()


def test_the_last_five_batches_of_a_producer_stay_without_records() -> None:
    shop = Shop()
    for number in range(9):
        shop.write(("a", str(number)), ("a", "again"), producer_id=3)
    shop.segment(("a", "end"))
    shop.compact()
    found = [header for header, _ in shop.stored()]
    assert [header.base_offset for header in found] == [8, 10, 12, 14, 16, 18]
    assert [header.base_sequence for header in found] == [8, 10, 12, 14, 16, -1]
    assert [header.count for header in found] == [0, 0, 0, 0, 0, 1]


def test_a_reader_is_spared_batches_without_records_unless_nothing_else_is_left() -> None:
    shop = Shop()
    for number in range(6):
        shop.write(("a", str(number)), ("b", "x"), producer_id=3)
    shop.segment(("a", "end"))
    shop.compact()
    assert [(header.base_offset, header.count) for header, _ in shop.stored()][:2] == [(2, 0), (4, 0)]
    for offset in range(11):
        assert next(batches(shop.log.read(offset, 1000)))[0].base_offset == 10
    shop.write(("a", None), producer_id=3)
    shop.write(("b", None), producer_id=3)
    shop.roll()
    shop.compact()
    shop.clock.advance(DAY_MS)
    shop.segment((None, "x"), unchecked=True)
    shop.compact()
    assert not any(header.count for header, _ in shop.stored())
    for offset in range(shop.log.end_offset):
        ((only, _),) = batches(shop.log.read(offset, 1000))
        assert only.last_offset == shop.log.end_offset - 1
    assert shop.log.read(shop.log.end_offset, 1000) == b""


@pytest.mark.parametrize("lost", ["newest", "all", "corrupt"])
def test_without_snapshots_the_compacted_log_still_says_what_producers_wrote(lost: str) -> None:
    shop = Shop()
    for number in range(12):
        shop.write(("a", str(number)), ("b", "x"), producer_id=number % 2)
        if number % 4 == 3:
            shop.roll()
    shop.segment(("a", "end"), ("b", "end"))
    shop.compact()
    known = remembered(shop.log)
    assert len(known) == 2
    snapshots = [name for name in shop.files.list(FOLDER) if name.endswith(".snapshot")]
    for name in snapshots[-1:] if lost == "newest" else snapshots:
        if lost == "corrupt":
            shop.files.replace(FOLDER / name, b"nonsense")
        else:
            shop.files.remove(FOLDER / name)
    shop.reopen()
    assert remembered(shop.log) == known
    shop.check()


# Tombstones


def test_a_tombstone_stays_for_its_retention_after_it_was_first_cleaned_and_then_goes() -> None:
    shop = Shop()
    shop.segment(("a", "1"), ("b", "1"))
    shop.segment(("a", None))
    shop.clock.advance(10 * DAY_MS)  # however old it is: retention begins with the first cleaning
    shop.compact()
    assert shop.offsets == [1, 2]
    assert shop.records()[-1] == shop.written[2]
    shop.clock.advance(DAY_MS - 1)
    shop.segment(("c", "1"))
    shop.compact()
    assert shop.offsets == [1, 2, 3]
    shop.clock.advance(1)
    shop.segment(("d", "1"))
    shop.compact()
    assert shop.offsets == [1, 3, 4]
    assert shop.view() == {"b": "1", "c": "1", "d": "1"}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_delete_horizon_takes_the_place_of_the_base_timestamp_and_timestamps_stay(codec: Codec) -> None:
    shop = Shop()
    shop.segment(("a", "1"), ("b", None), ("c", "3"), codec=codec)
    shop.compact()
    header, _ = next(shop.batches())
    assert header.delete_horizon_ms == header.base_timestamp == shop.clock.now_ms() + DAY_MS
    assert header.max_timestamp == shop.written[2].timestamp
    shop.check()
    shop.segment(("c", "4"))  # and when the batch is cut again
    shop.clock.advance(10)
    shop.compact()
    again, _ = next(shop.batches())
    assert again.delete_horizon_ms == header.delete_horizon_ms
    assert again.count == 2
    shop.check()


def test_a_retention_without_end_fits_the_field() -> None:
    shop = Shop(delete_retention_ms=LONG_MAX)
    shop.segment(("a", None))
    shop.compact()
    header, _ = next(shop.batches())
    assert header.delete_horizon_ms == LONG_MAX
    shop.check()


def test_a_key_written_again_after_its_tombstone_lives() -> None:
    shop = Shop(delete_retention_ms=0)
    shop.segment(("a", "1"), ("a", None), ("a", "2"))
    shop.compact()
    shop.compact()
    assert shop.view() == {"a": "2"}


def test_a_log_that_starts_inside_a_batch_is_cleaned_from_there() -> None:
    shop = Shop(delete_retention_ms=0)
    shop.write(("a", "1"), ("b", "1"), ("b", None), ("c", "1"))
    shop.log.delete_before(1)
    for number in range(3):
        shop.segment((f"{number}", "x"))
        shop.compact()
        assert "b" not in shop.view()
    shop.check()


# When


def test_nothing_is_due_without_dirt_or_without_the_policy() -> None:
    shop = Shop()
    assert not shop.is_due
    shop.segment(("a", "1"))
    assert shop.is_due
    shop.log.config = settings_of(compact=False)
    assert not shop.is_due
    shop.log.config = shop.config
    shop.compact()
    assert not shop.is_due


def test_the_dirty_ratio_decides() -> None:
    shop = Shop(min_cleanable_dirty_ratio=0.4)
    for number in range(3):
        shop.segment((f"{number}", "x"))
    shop.compact()
    shop.segment(("3", "x"))
    assert not shop.is_due  # 1 of 4
    shop.segment(("4", "x"))
    assert not shop.is_due  # 2 of 5, and more than that is asked for, as in Kafka
    shop.segment(("5", "x"))
    assert shop.is_due


def test_the_dirtiest_log_comes_first() -> None:
    half = Shop()
    full = Shop(half.files, FOLDER.with_name("orders-1"))
    half.segment(("a", "1"))
    half.compact()
    half.segment(("a", "1"))
    full.segment(("a", "1"))
    assert Cleaner(half.files).due([half.log, full.log], half.clock.now_ms()) == [full.log, half.log]


def test_records_younger_than_the_min_lag_are_left_alone() -> None:
    shop = Shop(min_compaction_lag_ms=60_000)
    shop.segment(("a", "1"), ("a", "2"))
    shop.clock.advance(30_000)
    shop.segment(("a", "3"), ("a", "4"))
    assert not shop.is_due
    shop.clock.advance(30_001)
    assert shop.is_due
    shop.compact()
    assert shop.offsets == [1, 2, 3]
    shop.clock.advance(30_000)
    shop.compact()
    assert shop.offsets == [3]


def test_the_max_lag_seals_the_active_segment_and_makes_it_due() -> None:
    shop = Shop(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=60_000)
    shop.write(("a", "1"), ("a", "2"))
    shop.checkpoint()
    shop.clock.advance(60_000)
    assert not shop.is_due
    assert len(shop.log.segments) == 1
    shop.clock.advance(1)
    assert not shop.is_due
    assert len(shop.log.segments) == 2
    assert shop.log.wants_checkpoint
    shop.checkpoint()
    assert shop.is_due
    shop.compact()
    assert shop.offsets == [1]
    shop.clock.advance(60_001)
    assert not shop.is_due
    assert len(shop.log.segments) == 2  # an empty one is not sealed


def test_how_far_a_log_is_clean_survives_a_restart_and_a_lost_file_only_means_more_work() -> None:
    shop = Shop()
    shop.segment(("a", "1"), ("a", "2"))
    shop.compact()
    shop.log.close()
    shop.reopen()
    assert shop.cleaner.cleaned_offset(shop.log) == 2
    assert not shop.is_due
    for content in (b"", b"\0\0\0", b"99\n"):
        shop.files.replace(FOLDER / compaction.OFFSET_FILE, content)
        shop.reopen()
        assert shop.is_due
    shop.compact()
    assert shop.offsets == [1]


# Merging


def test_a_segment_of_which_nothing_goes_is_not_replaced() -> None:
    shop = Shop(segment_bytes=250)
    shop.write(("k", "x" * 60))
    shop.segment(("a", "1"))
    shop.segment(("a", "2"), ("l", "x" * 60))
    shop.compact()
    assert [header.count for header, _ in shop.stored()] == [1, 0, 2]  # the one in the middle is the last of its file
    before = shop.log.segments[:2]
    shop.segment(("z", "x" * 90))
    shop.compact()
    assert shop.log.segments[:2] == before
    shop.check()


def test_small_neighbours_become_one_segment() -> None:
    shop = Shop(segment_bytes=1000)
    for number in range(20):
        shop.segment((f"{number}", "x" * 60))
    shop.compact()
    assert len(shop.log.segments) < 6
    assert all(segment.size <= 1000 for segment in shop.log.segments)
    shop.check()
    logs = [name for name in shop.names() if name.endswith(".log")]
    assert len(logs) == len(shop.log.segments)
    shop.reopen()
    shop.check()


def test_a_segment_never_spans_more_offsets_than_its_index_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "RELATIVE_OFFSET_MAX", 5)
    shop = Shop()
    for number in range(5):
        shop.segment((f"{number}", "x"), ("same", "x"))
    shop.compact()
    assert shop.log._bases == [0, 6, 10]


def test_the_high_watermark_stands_in_the_new_segment_and_a_repair_cuts_there() -> None:
    shop = Shop()
    shop.segment(("a", "1"))
    shop.segment(("a", "2"))
    shop.compact()
    assert len(shop.log.segments) == 2
    batch = bytearray(build_batch([Record(0, 1, b"a", b"3")], base_offset=0))
    shop.log.append(*accept(memoryview(batch), shop.config, shop.clock.now_ms()))
    shop.files.sync_failures = 1
    with pytest.raises(StorageError):
        shop.log.begin_flush().run()
    shop.log.fail_flush()
    assert shop.log.end_offset == 2
    shop.check()
    shop.write(("a", "4"))
    shop.check()


def test_retention_goes_on_where_compaction_was(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(delete=True, retention_ms=DAY_MS, segment_bytes=200)
    for number in range(6):
        shop.segment(("a", str(number)), (f"{number}", "x"))
    shop.compact()
    shop.check()
    shop.clock.advance(DAY_MS + 1000)
    shop.write(("z", "1"))
    shop.log.apply_retention(shop.clock.now_ms())
    assert shop.offsets == [12]
    assert [name for name in shop.names() if name.endswith(".log")] == ["00000000000000000012.log"]


# Crashes


def furnished(segment_bytes: int = 200) -> Shop:
    """Values, tombstones of two ages, a producer, and segments that become three: two merged, one untouched."""
    shop = Shop(segment_bytes=segment_bytes)
    shop.segment(("a", "1"), ("b", "1"), ("dead", "1"))
    shop.segment(("dead", None), ("c", "1"), producer_id=1)
    shop.compact()
    shop.clock.advance(DAY_MS + 1)  # from now on the tombstone may go
    shop.segment(("a", "2"), ("late", "1"), codec=Codec.LZ4)
    shop.segment(("b", "2"), ("b", "3"), ("d", "1"), producer_id=1)
    shop.segment(("late", None), ("e", "1"))
    shop.segment(("c", "2"), ("f", "x" * 100))
    shop.write(("g", "1"))
    return shop


def steps_of(shop: Shop, work: Callable[[], None]) -> int:
    shop.files.steps_until_crash = 10**9
    work()
    return 10**9 - int(shop.files.steps_until_crash)


@pytest.mark.parametrize("end", ["kill", *range(effort(3, soak=20))])
def test_a_crash_at_any_step_loses_nothing_and_brings_nothing_back(end: str | int) -> None:
    furniture = furnished()
    furniture.check()
    for step in range(steps_of(cloned(furniture), lambda: None), 10_000):
        shop = cloned(furniture)
        shop.files.steps_until_crash = step
        try:
            shop.compact()
        except SimulatedCrash:
            pass
        else:
            assert step > 40
            break
        shop.reopen(shop.files.kill() if end == "kill" else after_power_loss(shop.files, int(end) + 100 * step))
        assert not any(".cleaned" in name or ".swap" in name for name in shop.names())
        shop.check()
        shop.compact()
        shop.check()
        shop.roll()
        shop.compact()
        shop.check()
        assert not any(record.key == b"dead" for record in shop.records())


def test_a_crash_in_the_middle_of_any_write_is_no_different() -> None:
    furniture = furnished()
    for byte in range(1, 10_000, 7):
        shop = cloned(furniture)
        shop.files.bytes_until_crash = byte
        try:
            shop.compact()
        except SimulatedCrash:
            pass
        else:
            assert byte > 500
            break
        shop.reopen(after_power_loss(shop.files, byte))
        shop.check()


def test_a_crash_while_recovering_from_a_crash_is_no_different() -> None:
    furniture = furnished()
    chance = random.Random(3)
    recoveries = 0
    for step in range(10_000):
        shop = cloned(furniture)
        shop.files.steps_until_crash = step
        try:
            shop.compact()
            break
        except SimulatedCrash:
            first_ends = [shop.files.kill(), shop.files.crash(chance)]
        for found in first_ends[: 1 + step % 2]:
            for again in range(1000):
                next_start = found.kill()
                next_start.steps_until_crash = again
                try:
                    shop.reopen(next_start)
                    break
                except SimulatedCrash:
                    for _ in range(3):
                        shop.reopen(next_start.crash(chance))
                        shop.check()
            recoveries += again
            shop.check()
    assert recoveries > 100


def test_a_new_draft_never_meets_an_old_marker() -> None:
    """The removal of a marker may be lost; then what is called *.cleaned must not be a draft of the next round."""
    furniture = furnished(segment_bytes=10**9)  # all rounds make the same segment
    furniture.keys_max = 3
    chance = random.Random(9)
    for step in range(1000):
        shop = cloned(furniture)
        shop.files.steps_until_crash = step
        try:
            shop.compact()
        except SimulatedCrash:
            dead = shop.files
            for _ in range(4):
                shop.reopen(dead.crash(chance))
                shop.check()
        else:
            assert step > 40
            break


# A disk that refuses


class RefusingFiles(MemoryFileSystem):
    """Refuses one operation, the one after so many; or all of them from then on."""

    passes = 10**9
    for_good = False

    def _step(self) -> None:
        super()._step()
        self.passes -= 1
        if self.passes == -1 or (self.for_good and self.passes < 0):
            raise StorageError("Could not do it: Input/output error.")


@pytest.mark.parametrize("for_good", [False, True])
def test_a_disk_that_refuses_leaves_a_log_that_reads_and_recovers(
    for_good: bool, caplog: pytest.LogCaptureFixture
) -> None:
    furniture = furnished()
    refused = 0
    for passes in range(10_000):
        shop = cloned(furniture)
        files = RefusingFiles()
        files.__dict__.update(shop.files.__dict__)
        shop.reopen(files)
        files.passes, files.for_good = passes, for_good
        caplog.clear()
        shop.compact()
        if files.passes >= 0:
            break
        refused += 1
        assert [r.levelno for r in caplog.records if r.levelno >= logging.WARNING]
        files.passes, files.for_good = 10**9, False
        shop.check()
        shop.write(("h", "1"))
        shop.roll()
        shop.compact()  # again, or not any more until the restart
        shop.check()
        shop.reopen(files.kill() if passes % 2 else files.crash(random.Random(passes)))
        shop.check()
        shop.compact()
        shop.check()
    assert refused > 40


def test_a_damaged_batch_stops_compaction_for_good_and_touches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(segment_bytes=150)
    shop.segment(("a", "1"), ("a", "2"))
    shop.segment(("a", "3"), ("a", "4"))
    log = shop.log.segments[1].log
    damaged = bytearray(log.read(0, log.size))
    damaged[-3] ^= 1
    log.truncate(0)
    log.append(damaged)
    log.sync()
    shop.compact()
    assert "fails its checksum" in caplog.text
    assert not shop.is_due
    assert shop.offsets == [0, 1, 2, 3]


def test_a_gap_is_not_compacted_away(caplog: pytest.LogCaptureFixture) -> None:
    """A segment is missing. Merged, its neighbours would look as if its records had been replaced by later ones."""
    shop = Shop(segment_bytes=150)
    for value in range(0, 8, 2):
        shop.segment((f"k{value}", "1"), (f"k{value + 1}", "1"))
    assert [segment.base_offset for segment in shop.log.segments][:4] == [0, 2, 4, 6]
    log = PartitionLog(shop.files.kill(), shop.folder, settings_of(segment_bytes=10_000), shop.clock)
    del log.segments[1], log._bases[1]  # a start refuses that, and nothing else would do it
    for step in Cleaner(log._files).clean(log, shop.clock.now_ms()):
        step()
    assert "records in between are missing" in caplog.text
    assert [segment.base_offset for segment in log.segments][:3] == [0, 4, 6]
    with pytest.raises(CorruptLog, match="nothing from offset 2 to 3"):
        log.read(2, 1 << 20)


def test_a_gap_before_the_log_start_does_not_keep_a_log_from_being_compacted() -> None:
    """Of segments that were freed, some may come back after loss of power."""
    shop = Shop(segment_bytes=150)
    for _ in range(4):
        shop.segment(("a", "1"), ("a", "2"))
    shop.files.remove(shop.log.segments[1].path(".log"))
    shop.files.replace(shop.folder / "log-start-offset.json", to_json({"offset": 4}))
    log = PartitionLog(shop.files.kill(), shop.folder, settings_of(segment_bytes=10_000), shop.clock)
    assert [segment.base_offset for segment in log.segments][:3] == [0, 4, 6]
    for step in Cleaner(log._files).clean(log, shop.clock.now_ms()):
        step()
    assert [segment.base_offset for segment in log.segments][1] == 8
    assert log.start_offset == 4


# What happens meanwhile


def interrupted(shop: Shop, at: int, event: Callable[[], None]) -> bool:
    """Compact, with something happening while the step of that number runs elsewhere."""
    happened = False
    for number, step in enumerate(shop.cleaner.clean(shop.log, shop.clock.now_ms())):
        if number == at:
            event()
            happened = True
        step()
        if number == at and not shop.log.closed:
            shop.check()
    return happened


def at_every_step(event: Callable[[Shop], None], caplog: pytest.LogCaptureFixture) -> Iterator[Shop]:
    furniture = furnished()
    for at in range(1000):
        shop = cloned(furniture)
        if not interrupted(shop, at, lambda: event(shop)):  # noqa: B023
            assert at > 10
            return
        yield shop
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_retention_may_free_segments_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    def free_the_oldest(shop: Shop) -> None:
        shop.log.delete_before(shop.log._bases[1])

    for shop in at_every_step(free_the_oldest, caplog):
        shop.check()
        shop.compact()
        shop.check()
        shop.reopen(shop.files.crash(random.Random(1)))
        shop.check()


def test_a_crash_while_giving_up_is_no_different() -> None:
    """And then another one, while recovering from that."""
    furniture = furnished()
    chance = random.Random(5)
    for at in range(9):
        for step in range(8):
            shop = cloned(furniture)

            def free_and_die_soon() -> None:
                shop.log.delete_before(shop.log._bases[1])  # noqa: B023
                shop.files.steps_until_crash = step  # noqa: B023

            with contextlib.suppress(SimulatedCrash):
                interrupted(shop, at, free_and_die_soon)
            for again in range(8):
                found = shop.files.kill()
                found.steps_until_crash = again
                with contextlib.suppress(SimulatedCrash):
                    shop.reopen(found)
                for _ in range(3):
                    shop.reopen(found.crash(chance))
                    shop.check()


def test_writes_and_checkpoints_go_on_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    def write(shop: Shop) -> None:
        shop.segment(("a", "meanwhile"), ("new", "x"))
        shop.write(("a", "and more"))

    for shop in at_every_step(write, caplog):
        shop.check()
        shop.compact()
        shop.check()
        shop.reopen(shop.files.crash(random.Random(1)))
        shop.check()


def test_a_failed_flush_may_reopen_the_log_meanwhile() -> None:
    furniture = furnished()
    for at in range(1000):
        shop = cloned(furniture)
        happened = interrupted(shop, at, lambda: shop.log.fail_flush())  # noqa: B023
        shop.check()
        shop.compact()
        shop.check()
        shop.reopen(shop.files.crash(random.Random(at)))
        shop.check()
        if not happened:
            break


def test_the_topic_may_be_deleted_and_created_again_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    furniture = furnished()
    for at in range(1000):
        shop = cloned(furniture)
        new = None

        def again() -> None:
            nonlocal new
            shop.log.abandon()  # noqa: B023
            shop.files.remove_tree(FOLDER)  # noqa: B023
            new = Shop(shop.files)  # noqa: B023
            new.segment(("mine", "1"))

        interrupted(shop, at, again)
        if new is None:
            break
        assert not any("cleaned" in name or "cleaner" in name or "swap" in name for name in new.names())
        new.check()
        new.reopen(new.files.kill())
        new.check()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_stop_ends_it_between_two_batches_and_the_next_start_is_as_ever() -> None:
    furniture = furnished()
    for batches_until_stop in range(100):
        shop = cloned(furniture)

        class Stopping(Pace):
            left = batches_until_stop

            def __call__(self) -> None:
                self.left -= 1
                if self.left < 0:
                    self.stop()
                super().__call__()

        shop.cleaner.pace = Stopping()
        shop.compact()
        shop.check()
        shop.log.close()
        shop.reopen()
        shop.check()


# Anything, in any order


class AnyHistory(RuleBasedStateMachine):
    """Whatever is written, compacted, killed and opened again: a reader of the whole topic sees the model."""

    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 10**9]),
        retention_ms=st.sampled_from([0, 1000, DAY_MS]),
        keys_max=st.sampled_from([2, 5, 1000]),
        min_lag_ms=st.sampled_from([0, 500]),
    )
    def start(self, segment_bytes: int, retention_ms: int, keys_max: int, min_lag_ms: int) -> None:
        self.shop = Shop(
            segment_bytes=segment_bytes, delete_retention_ms=retention_ms, min_compaction_lag_ms=min_lag_ms
        )
        self.shop.keys_max = keys_max
        self.shop.open()

    keys = st.sampled_from(["a", "b", "c", "d", "e" * 30, ""])
    values = st.none() | st.text(max_size=20)

    @rule(
        pairs=st.lists(st.tuples(keys, values), min_size=1, max_size=6),
        codec=st.sampled_from(list(Codec)),
        producer_id=st.sampled_from([-1, 1, 2]),
    )
    def write(self, pairs: list[Pair], codec: Codec, producer_id: int) -> None:
        self.shop.write(*pairs, codec=codec, producer_id=producer_id)

    @rule()
    def roll(self) -> None:
        self.shop.roll()

    @rule()
    def checkpoint(self) -> None:
        self.shop.checkpoint()

    @rule(milliseconds=st.sampled_from([1, 600, DAY_MS]))
    def wait(self, milliseconds: int) -> None:
        self.shop.clock.advance(milliseconds)

    @rule()
    def compact(self) -> None:
        self.shop.compact()

    @rule(steps=st.integers(0, 150), seed=st.integers(0, 10_000))
    def crash_while_compacting(self, steps: int, seed: int) -> None:
        self.shop.files.steps_until_crash = steps
        try:
            self.shop.compact()
        except SimulatedCrash:
            files = self.shop.files
            self.shop.reopen(files.kill() if seed % 3 == 0 else after_power_loss(files, seed))
        self.shop.files.steps_until_crash = None

    @rule(seed=st.integers(0, 10_000))
    def lose_power(self, seed: int) -> None:
        self.shop.reopen(after_power_loss(self.shop.files, seed))

    @rule()
    def restart(self) -> None:
        self.shop.log.close()
        self.shop.reopen()

    @rule(back=st.integers(0, 5))
    def delete_records(self, back: int) -> None:
        self.shop.log.delete_before(self.shop.log.high_watermark - back)

    @precondition(lambda self: self.shop.log.start_offset == 0)  # else batches went with the deleted records
    @rule()
    def lose_the_snapshots(self) -> None:
        known = remembered(self.shop.log)
        files = self.shop.files.kill()
        for name in files.list(FOLDER):
            if name.endswith(".snapshot"):
                files.remove(FOLDER / name)
        files.sync_directory(FOLDER)  # an old one that comes back later would be believed
        self.shop.reopen(files)
        assert remembered(self.shop.log) == known

    @invariant()
    def the_log_is_the_model(self) -> None:
        if hasattr(self, "shop"):
            self.shop.check()
            end = max(self.shop.written, default=-1) + 1
            assert self.shop.log.end_offset == self.shop.log.high_watermark == end


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = examples(12, soak=600, stateful_step_count=40, suppress_health_check=list(HealthCheck))


# And with a real disk


def test_on_a_real_disk(tmp_path: Path) -> None:
    shop = Shop(RealFileSystem(), tmp_path / "orders-0", segment_bytes=20_000, index_interval_bytes=4096)
    chance = random.Random(1)
    for number in range(200):
        pairs: list[Pair] = [
            (f"key-{chance.randrange(100)}", None if chance.random() < 0.1 else f"value-{number}-{at}")
            for at in range(20)
        ]
        shop.write(*pairs, codec=chance.choice(list(Codec)), producer_id=number % 3)
    shop.roll()
    size = shop.log.size
    shop.compact()
    assert shop.log.size < size / 5
    shop.check()
    shop.log.close()
    shop.reopen()
    assert shop.log.recovered.scanned_bytes == 0
    shop.check()
    shop.clock.advance(DAY_MS)
    shop.segment(("key-1", "end"))
    shop.compact()
    assert not any(record.value is None for record in shop.records())
    assert shop.view() == shop.should_be_seen()
    assert not any("cleaned" in name or "swap" in name for name in shop.names())

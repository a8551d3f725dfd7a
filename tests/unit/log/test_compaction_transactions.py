"""Compaction where there are transactions: what was aborted goes and counts for nothing, and markers go last."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onceflow.errors import StorageError
from onceflow.log import compaction
from onceflow.log.aborted import AbortedTransaction
from onceflow.log.memory_files import SimulatedCrash
from onceflow.log.segment import ABORTED_SUFFIX
from onceflow.wire.compression import Codec
from onceflow.wire.records import EndTxnMarker, read_records
from tests.support.effort import effort, examples
from tests.unit.log.shop import DAY_MS, FOLDER, Pair, Shop, after_power_loss, cloned, remembered
from tests.unit.log.support import checkpoint


def batches_of(shop: Shop) -> list[tuple[int, int]]:
    """(first offset, number of records) of all there is."""
    return [(header.base_offset, header.count) for header, _ in shop.stored()]


def entries_of(shop: Shop) -> list[AbortedTransaction]:
    return [entry for segment in shop.log.segments for entry in segment.aborted]


def lists_of(shop: Shop) -> list[str]:
    """The files of aborted transactions."""
    return [name for name in shop.names() if ABORTED_SUFFIX in name]


def dirty_again(shop: Shop, key: str = "dirt") -> None:
    """Another segment, so that there is something to clean."""
    shop.segment((key, "x"))


# Records


def test_aborted_records_go_and_push_out_nothing() -> None:
    shop = Shop()
    shop.write(("a", "1"), ("b", "1"))
    shop.transaction(("a", "aborted"), ("b", None), ("c", "aborted"), producer_id=5, commit=False)
    shop.roll()
    shop.compact()
    assert shop.offsets == [0, 1]
    assert shop.view() == {"a": "1", "b": "1"}
    shop.check()


def test_committed_records_push_out_others_and_are_pushed_out() -> None:
    shop = Shop()
    shop.write(("a", "1"), ("b", "1"))
    shop.transaction(("a", "2"), ("c", "1"), producer_id=5)
    shop.segment(("c", "2"))
    shop.compact()
    assert shop.offsets == [1, 2, 5]
    assert shop.view() == {"a": "2", "b": "1", "c": "2"}
    shop.check()


def test_of_interleaved_transactions_each_has_its_own_outcome() -> None:
    shop = Shop()
    shop.write(("a", "1"), producer_id=5, transactional=True)
    shop.write(("a", "2"), producer_id=6, transactional=True)
    shop.write(("b", "1"), producer_id=5, transactional=True)
    shop.write(("b", "2"), producer_id=6, transactional=True)
    shop.end(6, commit=False)
    shop.write(("b", "3"), producer_id=6, transactional=True)
    shop.end(5)
    shop.end(6)
    shop.roll()
    shop.compact()
    assert shop.view() == {"a": "1", "b": "3"}
    assert shop.offsets == [0, 5]
    shop.check()


def test_the_same_producer_aborts_and_commits_in_turn() -> None:
    shop = Shop()
    for number in range(8):
        shop.transaction(("a", str(number)), ("x", str(number)), producer_id=5, commit=number % 2 == 0)
    shop.roll()
    shop.compact()
    assert shop.view() == {"a": "6", "x": "6"}
    assert shop.offsets == [18, 19]
    shop.check()


def test_an_abort_counts_though_its_marker_is_in_the_active_segment() -> None:
    shop = Shop()
    shop.segment(("a", "1"))
    shop.segment(("a", "aborted"), producer_id=5, transactional=True)
    shop.end(5, commit=False)
    shop.write(("z", "1"))
    shop.compact()
    assert shop.offsets == [0, 3]
    shop.check()


def test_what_is_undecided_is_not_touched_nor_what_comes_after_it() -> None:
    shop = Shop()
    shop.segment(("a", "1"), ("a", "2"))
    shop.segment(("a", "3"), producer_id=5, transactional=True)
    shop.segment(("b", "1"), ("b", "2"))
    shop.compact()
    assert shop.offsets == [1, 2, 3, 4]
    shop.end(5)
    shop.compact()
    assert shop.offsets == [2, 4]
    shop.check()


def test_a_marker_that_is_not_flushed_decides_nothing() -> None:
    shop = Shop()
    shop.segment(("a", "1"))
    shop.segment(("a", "2"), producer_id=5, transactional=True)
    shop.log.append_marker(5, 0, EndTxnMarker(True, 0), bumped=False)
    shop.compact()
    assert shop.offsets == [0, 1]
    shop.files.sync_failures = 1
    with pytest.raises(StorageError):
        shop.log.begin_flush().run()
    shop.log.fail_flush()
    shop.end(5, commit=False)
    shop.roll()  # the repair has made the segment the active one again
    shop.compact()
    assert shop.offsets == [0]
    shop.check()


@pytest.mark.parametrize("commit", [True, False])
def test_a_tombstone_in_a_transaction_deletes_if_it_was_committed(commit: bool) -> None:
    shop = Shop()
    shop.segment(("a", "1"))
    shop.transaction(("a", None), producer_id=5, commit=commit)
    shop.roll()
    shop.compact()
    shop.check()
    assert shop.offsets == [1 if commit else 0]
    horizons = [header.delete_horizon_ms for header, _ in shop.stored() if header.count and not header.is_control]
    assert horizons == [shop.clock.now_ms() + DAY_MS if commit else None]
    shop.clock.advance(DAY_MS)
    dirty_again(shop)
    shop.compact()
    assert shop.offsets == ([3] if commit else [0, 3])
    shop.check()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_offsets_of_groups_are_written_by_a_coordinator_without_sequences(codec: Codec) -> None:
    shop = Shop()
    for number in range(6):
        shop.transaction(
            ("group", str(number)),
            ("n", str(number)),
            producer_id=5,
            commit=number != 5,
            codec=codec,
            by_coordinator=True,
        )
    shop.roll()
    for _ in range(3):
        shop.compact()
        shop.check()
        shop.clock.advance(DAY_MS)
        dirty_again(shop)
    assert shop.view() == {"group": "4", "n": "4", "dirt": "x"}
    # Of the last, which was aborted, the batch stays for the epoch of its producer, and with it the marker.
    assert batches_of(shop)[:4] == [(12, 2), (14, 1), (15, 0), (17, 1)]


# Markers


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_gets_a_horizon_when_nothing_of_its_transaction_is_left_and_then_goes(commit: bool) -> None:
    shop = Shop()
    shop.transaction(("a", "1"), producer_id=5, commit=commit)
    shop.transaction(("a", "2"), producer_id=5)
    for _ in range(4):
        shop.write(("a", "3"), producer_id=5)  # so that the first batch is forgotten
    dirty_again(shop)
    shop.compact()
    assert batches_of(shop)[0] == (1, 1)  # the batch was there when this began
    assert shop.stored()[0][0].delete_horizon_ms is None
    assert len(entries_of(shop)) == (not commit)

    dirty_again(shop)
    shop.compact()
    marker, batch = shop.stored()[0]
    assert (marker.base_offset, marker.is_control) == (1, True)
    assert marker.delete_horizon_ms == shop.clock.now_ms() + DAY_MS
    (record,) = read_records(batch)
    assert EndTxnMarker.read(record) == EndTxnMarker(commit, 0)
    assert record.timestamp == marker.max_timestamp == shop.clock.now_ms()

    shop.clock.advance(DAY_MS - 1)
    dirty_again(shop)
    shop.compact()
    assert shop.stored()[0] == (marker, batch)
    assert len(entries_of(shop)) == (not commit)

    shop.clock.advance(1)
    dirty_again(shop)
    shop.compact()
    assert batches_of(shop)[0] == (2, 0)
    assert entries_of(shop) == []
    shop.check()


def test_a_marker_stays_while_a_single_record_of_its_transaction_does() -> None:
    shop = Shop(delete_retention_ms=0)
    shop.write(("a", "1"), ("keep", "1"), producer_id=5, transactional=True)
    shop.write(("a", "2"), producer_id=5, transactional=True)
    shop.end(5)
    for _ in range(5):
        shop.write(("a", "3"), producer_id=5)
    for _ in range(4):
        dirty_again(shop)
        shop.compact()
        shop.clock.advance(1)
    assert batches_of(shop)[:2] == [(0, 1), (3, 1)]
    shop.segment(("keep", "2"))
    for _ in range(4):
        shop.compact()
        shop.clock.advance(1)
        dirty_again(shop)
    assert not any(header.is_control for header, _ in shop.stored())
    shop.check()


def test_a_marker_alone_in_its_segment_goes_but_for_the_last_batch_of_the_file() -> None:
    shop = Shop(segment_bytes=100, delete_retention_ms=0)
    shop.segment(("a", "1"), producer_id=5, transactional=True)
    shop.end(5, commit=False)
    shop.roll()
    for _ in range(5):
        shop.write(("b", "1"), producer_id=5)
    for _ in range(4):
        dirty_again(shop)
        shop.compact()
        shop.check()
        shop.clock.advance(1)
    assert entries_of(shop) == []
    assert lists_of(shop) == []


def test_the_marker_of_an_empty_transaction_goes_too() -> None:
    shop = Shop(delete_retention_ms=0)
    shop.write(("a", "1"), producer_id=5)
    shop.end(5, commit=False)
    for _ in range(3):
        dirty_again(shop)
        shop.compact()
        shop.clock.advance(1)
    assert batches_of(shop)[0] == (0, 1)
    assert not any(header.is_control for header, _ in shop.stored())


@pytest.mark.parametrize("lost", [False, True])
def test_a_marker_from_which_alone_an_epoch_is_known_stays_without_its_record(lost: bool) -> None:
    shop = Shop(delete_retention_ms=0)
    shop.write(("a", "1"), producer_id=5, transactional=True)
    shop.end(5, bumped=True)
    for _ in range(4):
        dirty_again(shop)
        shop.segment(("a", "2"))
        shop.compact()
        shop.clock.advance(1)
    assert batches_of(shop)[0] == (1, 0)
    if lost:
        for name in shop.files.list(FOLDER):
            if name.endswith(".snapshot"):
                shop.files.remove(FOLDER / name)
        shop.reopen()
    assert remembered(shop.log) == {5: (1, [])}
    shop.end(5, bumped=True)
    for _ in range(4):
        dirty_again(shop)
        shop.compact()
        shop.clock.advance(1)
    assert 1 not in [header.base_offset for header, _ in shop.stored()]
    shop.check()


# The list of aborted transactions


def test_entries_go_with_their_markers_into_the_merged_segment() -> None:
    shop = Shop()
    for number in range(4):
        shop.transaction((f"{number}", "x"), producer_id=number, commit=number % 2 == 0)
        shop.roll()
    before = entries_of(shop)
    assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in before] == [(1, 2, 3), (3, 6, 7)]
    assert len(lists_of(shop)) == 2
    shop.compact()
    assert len(shop.log.segments) == 2
    assert entries_of(shop) == before
    assert lists_of(shop) == [f"{0:020d}.txnindex"]
    shop.reopen(shop.files.kill())
    assert entries_of(shop) == before
    shop.check()


def test_without_aborted_transactions_there_is_no_file_of_them() -> None:
    shop = Shop()
    for number in range(3):
        shop.transaction(("a", str(number)), producer_id=5)
        shop.roll()
    shop.compact()
    assert lists_of(shop) == []


def test_a_list_that_empties_takes_the_place_of_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(delete_retention_ms=0)
    shop.transaction(("a", "1"), producer_id=5, commit=False)
    for _ in range(5):
        shop.write(("b", "1"), producer_id=5)
    shop.roll()
    assert len(lists_of(shop)) == 1
    for _ in range(3):
        shop.compact()
        shop.clock.advance(1)
        dirty_again(shop)
    assert lists_of(shop) == []
    shop.transaction(("b", "later"), producer_id=5)  # with the old entry and no marker, this would be skipped
    shop.reopen(shop.files.kill())
    assert shop.view()["b"] == "later"
    shop.check()


def test_a_damaged_list_stops_compaction_and_touches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    shop.transaction(("a", "1"), producer_id=5, commit=False)
    shop.roll()
    shop.write(("b", "1"))
    shop.files.replace(FOLDER / lists_of(shop)[0], b"nonsense")
    shop.log.segments[0].drop_indexes()
    shop.compact()
    assert "does not hold the aborted transactions that a checkpoint has noted" in caplog.text
    assert shop.offsets == [0, 2]
    shop.reopen()
    shop.check()
    assert shop.log.wants_checkpoint
    checkpoint(shop.log)
    shop.compact()
    assert shop.offsets == [2]


# Crashes


def furnished(segment_bytes: int = 250, *, rounds: int = 1) -> Shop:
    """Transactions within and over segments, markers of all ages, an open one."""
    shop = Shop(segment_bytes=segment_bytes)
    shop.transaction(("old", "aborted"), producer_id=1, commit=False)
    shop.write(*[("x", "1")] * 2, producer_id=1)
    for _ in range(4):
        shop.write(("x", "2"), producer_id=1)
    shop.roll()
    for number in range(rounds):
        shop.compact()
        shop.clock.advance(DAY_MS + 1)
        shop.segment(("dirt", str(number)))
    shop.write(("a", "1"), ("b", "1"), producer_id=2, transactional=True)
    shop.write(("c", "1"), producer_id=3, transactional=True)
    shop.roll()
    shop.end(2, commit=False)
    shop.write(("a", "2"), ("c", None), producer_id=2, transactional=True)
    shop.roll()
    shop.end(3)
    shop.end(2, bumped=True)
    shop.segment(("d", "1"), ("b", "2"))
    shop.transaction(("d", "aborted"), ("b", None), producer_id=2, commit=False, codec=Codec.LZ4)
    shop.roll()
    shop.write(("e", "1"), producer_id=4, transactional=True)
    return shop


def is_whole(shop: Shop) -> None:
    assert not any(".cleaned" in name or ".swap" in name for name in shop.names())
    shop.check()


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("end", ["kill", *range(effort(1, soak=5))])
def test_after_a_crash_at_any_step_nothing_aborted_is_read_and_nothing_committed_is_skipped(
    end: str | int, rounds: int
) -> None:
    furniture = furnished(rounds=rounds)
    is_whole(furniture)
    for step in range(10_000):
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
        is_whole(shop)
        shop.compact()
        shop.check()
        shop.end(4, commit=False)
        shop.transaction(*((key, "end") for key in "abcde"), producer_id=2)
        shop.check()
        assert [shop.view()[key] for key in "abcde"] == ["end"] * 5


def test_a_crash_in_the_middle_of_any_write_is_no_different() -> None:
    furniture = furnished()
    for byte in range(1, 10_000, 11):
        shop = cloned(furniture)
        shop.files.bytes_until_crash = byte
        try:
            shop.compact()
        except SimulatedCrash:
            shop.reopen(after_power_loss(shop.files, byte))
            is_whole(shop)
        else:
            assert byte > 500
            break


def test_a_crash_while_recovering_from_a_crash_is_no_different() -> None:
    furniture = furnished(segment_bytes=10**9)
    chance = random.Random(7)
    recoveries = 0
    for step in range(10_000):
        shop = cloned(furniture)
        shop.files.steps_until_crash = step
        try:
            shop.compact()
            break
        except SimulatedCrash:
            found = shop.files.crash(chance) if step % 2 else shop.files.kill()
        for again in range(1000):
            next_start = found.kill()
            next_start.steps_until_crash = again
            try:
                shop.reopen(next_start)
                break
            except SimulatedCrash:
                shop.reopen(next_start.crash(chance))
                is_whole(shop)
        recoveries += again
        is_whole(shop)
    assert recoveries > 50


def test_without_snapshots_the_compacted_log_gives_the_same_transactions() -> None:
    for rounds in range(4):
        shop = furnished(rounds=rounds)
        shop.compact()
        for name in shop.files.list(FOLDER):
            if name.endswith((".snapshot", ABORTED_SUFFIX)):
                shop.files.remove(FOLDER / name)
        known, opened = remembered(shop.log), list(shop.log.producers._open.items())
        shop.reopen()
        shop.check()
        assert remembered(shop.log) == known
        assert list(shop.log.producers._open.items()) == opened


# What happens meanwhile


def meanwhile(event: Callable[[Shop], None]) -> None:
    furniture = furnished()
    for at in range(1000):
        shop = cloned(furniture)
        happened = False
        for number, step in enumerate(shop.cleaner.clean(shop.log, shop.clock.now_ms())):
            if number == at:
                event(shop)
                happened = True
            step()
            shop.check()
        shop.compact()
        shop.check()
        shop.reopen(shop.files.crash(random.Random(at)))
        shop.check()
        if not happened:
            assert at > 10
            break


def test_transactions_may_end_and_begin_meanwhile() -> None:
    def write(shop: Shop) -> None:
        shop.end(4, commit=False)
        shop.transaction(("a", "meanwhile"), ("new", "x"), producer_id=2)
        shop.roll()
        shop.write(("a", "undecided"), producer_id=2, transactional=True)

    meanwhile(write)


def test_a_failed_flush_may_take_back_a_marker_meanwhile() -> None:
    def fail(shop: Shop) -> None:
        shop.log.append_marker(4, 0, EndTxnMarker(False, 0), bumped=False)
        shop.log.fail_flush()

    meanwhile(fail)


# Anything, in any order


class AnyTransactions(RuleBasedStateMachine):
    """Whatever is written, ended, compacted, killed and opened again: a reader of what is committed sees the model."""

    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 10**9]),
        retention_ms=st.sampled_from([0, 1000, DAY_MS]),
        keys_max=st.sampled_from([2, 5, 1000]),
    )
    def start(self, segment_bytes: int, retention_ms: int, keys_max: int) -> None:
        self.shop = Shop(segment_bytes=segment_bytes, delete_retention_ms=retention_ms)
        self.shop.keys_max = keys_max
        self.shop.open()

    pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.text("xyz", max_size=9)), min_size=1, max_size=4)
    producers = st.sampled_from([1, 2, 3])

    @rule(pairs=pairs, producer_id=producers, codec=st.sampled_from([Codec.NONE, Codec.LZ4]))
    def write(self, pairs: list[Pair], producer_id: int, codec: Codec) -> None:
        self.shop.write(*pairs, producer_id=producer_id, transactional=True, codec=codec)

    @rule(pairs=pairs)
    def write_offsets(self, pairs: list[Pair]) -> None:
        self.shop.write(*pairs, producer_id=9, transactional=True, by_coordinator=True)

    @rule(pairs=pairs)
    def write_plain(self, pairs: list[Pair]) -> None:
        self.shop.write(*pairs)

    @rule(producer_id=producers | st.just(9), commit=st.booleans(), bumped=st.booleans())
    def end(self, producer_id: int, commit: bool, bumped: bool) -> None:
        self.shop.end(producer_id, commit=commit, bumped=bumped)

    @rule()
    def end_all(self) -> None:
        for producer_id in list(self.shop.transactions):
            self.shop.end(producer_id, commit=producer_id != 2)

    @rule()
    def roll(self) -> None:
        self.shop.roll()

    @rule(milliseconds=st.sampled_from([1, 600, DAY_MS]))
    def wait(self, milliseconds: int) -> None:
        self.shop.clock.advance(milliseconds)

    @rule()
    def compact(self) -> None:
        self.shop.compact()

    @rule()
    def roll_and_compact(self) -> None:
        self.shop.roll()
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

    @rule()
    def damage_a_list(self) -> None:
        files = self.shop.files.kill()
        for name in files.list(FOLDER)[::-1]:
            if name.endswith(ABORTED_SUFFIX) and files.size(FOLDER / name):
                files.replace(FOLDER / name, files.read_bytes(FOLDER / name)[:-1])
                break
        self.shop.reopen(files)

    @invariant()
    def the_log_is_the_model(self) -> None:
        if hasattr(self, "shop"):
            self.shop.check()


TestAnyTransactions = AnyTransactions.TestCase
TestAnyTransactions.settings = examples(12, soak=6_000, stateful_step_count=40, suppress_health_check=list(HealthCheck))


def test_more_keys_than_fit_are_cleaned_in_rounds_that_each_see_all_transactions() -> None:
    for keys_max in (1, 2, 3):
        shop = furnished()
        shop.keys_max = keys_max
        shop.reopen(shop.files.kill())
        shop.compact()
        shop.check()
        assert shop.cleaner.cleaned_offset(shop.log) > 10
        assert keys_max < compaction.KEYS_MAX

"""Histories on disk, and what they tell when they are read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.verify.history import NEVER, History, Operation, Outcome, Record, Recorder, Seen, seen_by
from tests.unit.verify.story import FAILED, OK, UNKNOWN, Story, seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "producer-1.1.jsonl"


def recorder(path: Path, process: str = "producer-1.1") -> Recorder:
    return Recorder(path, process, zero=0.0)


def test_operations_come_back_with_what_was_asked_and_told(path: Path) -> None:
    record = recorder(path)
    op = record.begin("write", transaction="producer-1.1/1", records=[["orders", None, "a"]])
    record.end(op, OK, written=[["orders", 0, 7, "a"]])
    record.close()
    [write] = History.load([path], []).operations
    assert (write.id, write.process, write.f, write.outcome) == ("producer-1.1:1", "producer-1.1", "write", OK)
    assert write.asked == {"transaction": "producer-1.1/1", "records": [["orders", None, "a"]]}
    assert write.told == {"written": [["orders", 0, 7, "a"]]}
    assert 0 < write.began <= write.ended < NEVER


def test_operation_without_an_end_is_unknown(path: Path) -> None:
    recorder(path).begin("commit", transaction="producer-1.1/1")
    [commit] = History.load([path], []).operations
    assert (commit.outcome, commit.ended, commit.told) == (UNKNOWN, NEVER, {})


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_comes_back(path: Path, outcome: Outcome) -> None:
    record = recorder(path)
    record.end(record.begin("abort", transaction="producer-1.1/1"), outcome)
    [abort] = History.load([path], []).operations
    assert abort.outcome is outcome


def test_torn_last_line_leaves_the_operation_unknown(path: Path) -> None:
    record = recorder(path)
    record.end(record.begin("commit", transaction="producer-1.1/1"), OK)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    [commit] = History.load([path], []).operations
    assert commit.outcome is UNKNOWN


def test_torn_beginning_is_as_if_nothing_was_asked(path: Path) -> None:
    record = recorder(path)
    record.end(record.begin("commit", transaction="producer-1.1/1"), OK)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert len(History.load([path], []).operations) == 1


def test_every_event_is_in_the_file_before_the_recorder_goes_on(path: Path) -> None:
    record = recorder(path)
    op = record.begin("take", transactional_id="shop")
    assert len(path.read_bytes().splitlines()) == 1
    record.end(op, OK)
    assert len(path.read_bytes().splitlines()) == 2


def test_line_that_the_kernel_takes_in_pieces_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    recorder(path).begin("take", transactional_id="shop")
    [take] = History.load([path], []).operations
    assert take.asked == {"transactional_id": "shop"}


def test_operations_of_all_processes_are_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    one, two = recorder(tmp_path / "a.jsonl", "a.1"), recorder(tmp_path / "b.jsonl", "b.1")
    for each in (two, one, two):
        each.begin("take", transactional_id="shop")
    loaded = History.load(sorted(tmp_path.glob("*.jsonl")), [])
    assert [each.process for each in loaded.operations] == ["b.1", "a.1", "b.1"]


def test_process_keeps_its_order_when_the_clock_stands_still() -> None:
    story = [Operation(id=f"p.1:{number}", f="write", began=1.0) for number in (10, 9, 11)]
    assert [each.id for each in History(story).operations] == ["p.1:9", "p.1:10", "p.1:11"]


# --- records


@pytest.mark.parametrize(
    "record",
    [
        Record(id="a"),
        Record(id="a", transaction="p.1/1", key="k1"),
        Record(state="k1", n=0, transaction="p.1/1"),
        Record(id="Straße \N{SNOWMAN}\n"),
        Record(),
    ],
)
def test_record_survives_as_bytes(record: Record) -> None:
    assert Record.from_bytes(record.to_bytes()) == record


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"not json", b"17", b'["a"]', b'"a"'])
def test_value_that_is_not_ours_is_a_record_that_nobody_wrote(value: bytes | None) -> None:
    assert Record.from_bytes(value) == Record(id=repr(value))


# --- what a history knows


def test_transaction_has_its_operations_in_order() -> None:
    story = Story()
    operations = [
        story.write("p.1", "a", transaction="p.1/1"),
        story.write("p.1", "b", transaction="p.1/1"),
        story.commit("p.1/1", outcome=UNKNOWN),
        story.commit("p.1/1"),
    ]
    story.write("p.1", "c")
    transactions = story.ends_with().transactions
    assert list(transactions) == ["p.1/1"]
    assert [*transactions["p.1/1"].writes, *transactions["p.1/1"].commits] == operations
    assert transactions["p.1/1"].process == "p.1"


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        ([], None),
        ([FAILED, FAILED], FAILED),
        ([FAILED, UNKNOWN], UNKNOWN),
        ([UNKNOWN, FAILED], UNKNOWN),
        ([UNKNOWN, OK], OK),
        ([FAILED, OK], OK),
    ],
)
def test_commit_asked_for_again_is_ok_if_any_was_and_failed_if_all_did(
    asked: list[Outcome], outcome: Outcome | None
) -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    for each in asked:
        story.commit("p.1/1", outcome=each)
    assert story.ends_with().transactions["p.1/1"].commit_outcome is outcome


def test_only_answered_polls_are_reads_and_only_committed_ones_show_what_is_visible() -> None:
    story = Story()
    story.read("r.1", seen("a", 0), outcome=UNKNOWN)
    dirty = story.read("r.1", seen("a", 0), isolation="read_uncommitted")
    clean = story.read("r.1", seen("a", 0))
    history = story.ends_with()
    assert history.reads == [dirty, clean]
    assert history.committed_reads == [(clean, [seen("a", 0)])]
    assert list(seen_by(clean)) == [seen("a", 0)]


def test_sightings_of_a_transaction_are_its_first_and_last_poll_and_the_end() -> None:
    story = Story()
    a, b = seen("a", 0, "p.1/1"), seen("b", 1, "p.1/1")
    story.read("r.1", b, at=(1, 9))
    first = story.read("r.2", a, at=(2, 3))
    last = story.read("r.3", a, at=(4, 12))
    sightings = story.ends_with(b, a, seen("c", 2)).sightings
    assert list(sightings) == ["p.1/1"]
    assert (sightings["p.1/1"].first, sightings["p.1/1"].last) == ((first, a), (last, a))
    assert sightings["p.1/1"].final == [a, b]


def test_the_end_is_found_by_place_and_by_id() -> None:
    twice = [seen("a", 0, "p.1/1"), seen("a", 4, "p.1/2")]
    history = History([], [*reversed(twice), Seen("state", 0, 0, Record(state="k", n=1))])
    assert history.final_by_id == {"orders": {"a": twice}}
    assert history.final_at["orders", 0, 4] == twice[1].record

"""The list of aborted transactions: its file, its questions, and what is taken for damage."""

from __future__ import annotations

import random
import struct

import pytest

from onceflow.errors import CorruptLog
from onceflow.log.aborted import AbortedIndex, AbortedTransaction, Aborts

ENTRIES = [
    AbortedTransaction(7, 10, 14, 12),
    AbortedTransaction(8, 12, 20, 21),
    AbortedTransaction(7, 25, 30, 31),
]


def test_the_file_has_kafkas_format() -> None:
    data = AbortedIndex(ENTRIES).to_bytes()
    assert data == b"".join(struct.pack(">hqqqq", 0, *entry) for entry in ENTRIES)
    assert AbortedIndex.entry_size == 34


def test_what_was_written_is_read_again() -> None:
    index = AbortedIndex.from_bytes(AbortedIndex(ENTRIES).to_bytes(), "name")
    assert list(index) == ENTRIES
    assert index.saved == len(index) == 3
    assert AbortedIndex(ENTRIES).to_bytes(2) == AbortedIndex(ENTRIES[2:]).to_bytes()
    assert len(AbortedIndex.from_bytes(b"", "name")) == 0


@pytest.mark.parametrize(
    "damaged",
    [
        AbortedIndex(ENTRIES).to_bytes()[:-1],
        bytes(34),
        AbortedIndex(ENTRIES).to_bytes() + bytes(34),
        AbortedIndex(ENTRIES[::-1]).to_bytes(),
        AbortedIndex([ENTRIES[0], ENTRIES[0]]).to_bytes(),
        struct.pack(">hqqqq", 1, *ENTRIES[0]),
        struct.pack(">hqqqq", 0, 7, -1, 14, 12),
        struct.pack(">hqqqq", 0, 7, 14, 14, 12),
        struct.pack(">hqqqq", 0, 7, 10, 14, 16),
        struct.pack(">hqqqq", 0, 7, 10, 14, -1),
    ],
    ids=["torn", "zeros", "zeros-behind", "falling", "twice", "version", "begin", "empty", "stable", "unstable"],
)
def test_what_cannot_have_been_written_is_damage(damaged: bytes) -> None:
    with pytest.raises(CorruptLog, match="name"):
        AbortedIndex.from_bytes(damaged, "name")


def test_a_cut_forgets_what_ended_there_or_later() -> None:
    index = AbortedIndex.from_bytes(AbortedIndex(ENTRIES).to_bytes(), "name")
    assert not index.cut(31)
    assert index.saved == 3
    assert index.cut(20)
    assert list(index) == ENTRIES[:1]
    assert index.saved == 1


@pytest.mark.parametrize(
    ("offset", "bound", "touched", "is_all"),
    [
        (0, 10, [], True),
        (0, 11, [0], True),
        (0, 13, [0, 1], True),
        (14, 22, [0, 1], True),
        (15, 22, [1], True),
        (15, 21, [1], True),
        (21, 25, [], True),
        (21, 26, [2], True),
        (31, 99, [], False),
    ],
)
def test_a_reader_is_told_what_touches_its_range(offset: int, bound: int, touched: list[int], is_all: bool) -> None:
    assert AbortedIndex(ENTRIES).touching(offset, bound) == ([ENTRIES[at] for at in touched], is_all)


def test_a_reader_may_stop_when_told_so() -> None:
    """Against a plain search over random histories of interleaved transactions."""
    chance = random.Random(4)
    for _ in range(200):
        entries = random_history(chance)
        index = AbortedIndex(entries)
        for _ in range(20):
            offset = chance.randrange(60)
            bound = offset + chance.randrange(1, 20)
            wanted = [entry for entry in entries if entry.last_offset >= offset and entry.first_offset < bound]
            assert index.touching(offset, bound)[0] == wanted


def random_history(chance: random.Random) -> list[AbortedTransaction]:
    entries = []
    opened: dict[int, int] = {}
    for offset in range(60):
        producer_id = chance.randrange(5)
        if producer_id not in opened:
            opened[producer_id] = offset
        elif chance.random() < 0.5:
            first = opened.pop(producer_id)
            if chance.random() < 0.7:
                entries.append(AbortedTransaction(producer_id, first, offset, min(opened.values(), default=offset + 1)))
    return entries


def test_a_batch_was_aborted_if_it_lies_in_an_aborted_transaction_of_its_producer() -> None:
    aborts = Aborts(ENTRIES)
    assert [offset for offset in range(40) if aborts.has(7, offset)] == [*range(10, 14), *range(25, 30)]
    assert [offset for offset in range(40) if aborts.has(8, offset)] == [*range(12, 20)]
    assert not any(aborts.has(9, offset) for offset in range(40))
    assert not any(Aborts().has(7, offset) for offset in range(40))


def test_a_marker_leads_to_what_it_aborted() -> None:
    assert [Aborts(ENTRIES).of_marker(offset) for offset in (14, 20, 30)] == ENTRIES
    assert Aborts(ENTRIES).of_marker(10) is None

"""What could be seen meanwhile: looks at all partitions at once, and what one reader was shown."""

from __future__ import annotations

import pytest

from onceflow.pipelines.judging import Written
from onceflow.pipelines.visibility import Shown, Visibility, checksum

PLACES = [("left", 0), ("left", 1), ("right", 0)]


def record(topic: str, partition: int, offset: int, batch: int | None) -> Written:
    return Written(topic, partition, offset, None, b"{}", batch)


# Micro-batches 0 to 3: two records each, then a marker. Number 2 has nothing for right-0, and 1 nothing for left-1.
WRITTEN = [
    *(record("left", 0, 3 * batch + at, batch) for batch in range(4) for at in (0, 1)),
    *(record("left", 1, 3 * place + at, batch) for place, batch in enumerate((0, 2, 3)) for at in (0, 1)),
    *(record("right", 0, 3 * place + at, batch) for place, batch in enumerate((0, 1, 3)) for at in (0, 1)),
]


def looked(*ends: int) -> Visibility:
    visibility = Visibility(WRITTEN)
    visibility.look(dict(zip(PLACES, ends, strict=True)), "at 1 s")
    return visibility


@pytest.mark.parametrize(
    "ends",
    [(0, 0, 0), (3, 3, 3), (6, 3, 6), (9, 6, 6), (12, 9, 9), (100, 100, 100)],
    ids=["nothing", "0", "0 and 1", "0 to 2", "everything", "and aborted records behind it"],
)
def test_the_same_batches_everywhere_are_equal(ends: tuple[int, int, int]) -> None:
    visibility = looked(*ends)
    assert (visibility.equal, visibility.between) == (1, 0)
    assert not visibility.differences


@pytest.mark.parametrize("ends", [(3, 0, 0), (3, 3, 0), (6, 3, 3), (6, 6, 6), (9, 6, 9), (9, 9, 6)])
def test_the_newest_batch_may_be_on_its_way(ends: tuple[int, int, int]) -> None:
    visibility = looked(*ends)
    assert (visibility.equal, visibility.between) == (0, 1)
    assert not visibility.differences


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((6, 3, 0), "readers of left-0 could see micro-batch 1, while in right-0 micro-batch 0 was not yet visible"),
        ((12, 3, 6), "could see micro-batch 3, while in left-1 micro-batch 2 was not"),
        ((3, 6, 6), "could see micro-batch 2, while in left-0 micro-batch 1 was not"),
    ],
)
def test_more_than_one_batch_apart_is_not_atomic(ends: tuple[int, int, int], words: str) -> None:
    visibility = looked(*ends)
    [(kind, sentence)] = visibility.differences
    assert kind == "not atomic"
    assert sentence.startswith("at 1 s, ")
    assert words in sentence
    assert (visibility.equal, visibility.between) == (0, 0)


def test_a_part_of_a_batch_in_a_partition_is_not_atomic() -> None:
    [(_, sentence)] = looked(4, 3, 6).differences
    assert sentence == "at 1 s, readers of left-0 could see a part of micro-batch 1."


def test_a_later_batch_before_an_earlier_one_is_not_atomic() -> None:
    visibility = Visibility([record("left", 0, 0, 1), record("left", 0, 3, 0)])
    visibility.look({("left", 0): 2}, "at 1 s")
    [(_, sentence)] = visibility.differences
    assert "micro-batch 1 before all of micro-batch 0" in sentence


def test_looks_at_nothing_are_not_counted() -> None:
    visibility = Visibility([])
    visibility.look({("left", 0): 2}, "at 1 s")
    assert (visibility.equal, visibility.between) == (0, 0)


# --- readers


def shown(start: int, end: int, *records: Written) -> list[str]:
    judge = Shown(WRITTEN)
    batches = {each.batch for each in records}
    summed = {batch: [each for each in records if each.batch == batch] for batch in batches}
    told = {batch: (len(each), checksum(each)) for batch, each in summed.items()}
    judge.check("reader-1.1", ("left", 0), start, end, told)
    assert judge.reads == 1
    return [each.sentence for each in judge.differences]


LEFT = [each for each in WRITTEN if (each.topic, each.partition) == ("left", 0)]


def test_a_reader_that_was_shown_all_that_it_passed_is_right() -> None:
    assert shown(0, 4, *LEFT[:3]) == []
    assert shown(4, 12, *reversed(LEFT[3:])) == []


def test_a_reader_that_passed_over_a_record_was_shown_too_little() -> None:
    [sentence] = shown(0, 5, LEFT[0], *LEFT[2:4])
    assert "was shown 1 records of micro-batch 0 in left-0 between 0 and 5; in the end there are 2" in sentence


def test_a_reader_that_was_shown_what_is_gone_is_named() -> None:
    [sentence] = shown(0, 3, *LEFT[:2], record("left", 0, 2, 9))
    assert "was shown 1 records of micro-batch 9" in sentence
    assert "there are 0" in sentence


def test_a_reader_that_was_shown_something_else_is_named() -> None:
    [sentence] = shown(0, 2, LEFT[0], LEFT[1]._replace(value=b"[]"))
    assert sentence.endswith("in the end there are 2, others.")

"""The judge: a run that is right, and the same run with one thing wrong at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from onceflow.pipelines.judging import (
    SHOWN_MAX,
    Comparison,
    Differences,
    OffsetLogDamaged,
    Tally,
    Written,
    check_log,
    compare,
    compare_state,
    cut,
    last_committed,
    offset_log,
    without_prefix,
)
from onceflow.pipelines.reference import Expected, Raw

TOPIC = "doubled"
LOG = {0: {("numbers", 0): 2, ("numbers", 1): 1}, 1: {("numbers", 0): 3, ("numbers", 1): 3}}


class Doubling:
    """An oracle: each number doubled, and their sum as state."""

    def __init__(self) -> None:
        self.sum = 0

    def batch(self, records: Sequence[Raw]) -> list[Expected]:
        numbers = [int(each.value or b"") for each in records]
        self.sum += sum(numbers)
        return [Expected(TOPIC, f"k{number}", {"is": 2 * number, "of": number}) for number in numbers]

    def state(self) -> Mapping[str, Any]:
        return {"sum": self.sum}


def raws() -> list[Raw]:
    places = [("numbers", 0, 0), ("numbers", 0, 1), ("numbers", 0, 2), ("numbers", 1, 0), ("numbers", 1, 1)]
    places.append(("numbers", 1, 2))
    return [Raw(1000 - at, *place, None, str(at).encode()) for at, place in enumerate(places)]


def written() -> list[Written]:
    """What is right: 0, 1 and 3 are in the first micro-batch. The order of fields says nothing."""
    batches = {0: 0, 1: 0, 3: 0, 2: 1, 4: 1, 5: 1}
    return [
        Written(TOPIC, 0, at, f"k{number}".encode(), json.dumps({"of": number, "is": 2 * number}).encode(), batch)
        for at, (number, batch) in enumerate(batches.items())
    ]


def compared(found: Sequence[Written]) -> Comparison:
    return compare(Doubling(), cut(LOG, raws()), found, [TOPIC, "never_written"])


def only_sentence(comparison: Comparison) -> tuple[str, str]:
    [(kind, sentence)] = comparison.differences
    return kind, sentence


# --- micro-batches


def write_log(checkpoint: Path, number: int, *lines: str) -> None:
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))


def test_the_offset_log_is_read_in_the_order_of_numbers_and_nothing_else_in_its_folder(tmp_path: Path) -> None:
    for number in (10, 9):
        write_log(tmp_path, number, "v1", "{}", json.dumps({"p-numbers": {"0": number, "1": 7}}))
    (tmp_path / "offsets" / ".9.crc").write_text("x")
    (tmp_path / "offsets" / "11.tmp").write_text("x")
    log = without_prefix(offset_log(tmp_path), "p-")
    assert log == {9: {("numbers", 0): 9, ("numbers", 1): 7}, 10: {("numbers", 0): 10, ("numbers", 1): 7}}
    assert list(log) == [9, 10]


@pytest.mark.parametrize(
    "lines",
    [("v2", "{}", "{}"), ("v1", "{}"), ("v1", "{}", "{}", "{}"), ("v1", "{}", "-"), ("v1", "{}", '{"numbers": 3}')],
)
def test_an_offset_log_that_is_something_else_is_refused(lines: tuple[str, ...], tmp_path: Path) -> None:
    write_log(tmp_path, 0, *lines)
    with pytest.raises(OffsetLogDamaged, match="offsets/0"):
        offset_log(tmp_path)


def test_the_last_committed_batch_is_by_number_and_not_by_name(tmp_path: Path) -> None:
    assert last_committed(tmp_path) is None
    (tmp_path / "commits").mkdir()
    for number in (9, 10):
        (tmp_path / "commits" / str(number)).touch()
    assert last_committed(tmp_path) == 10


def test_records_are_cut_into_batches_by_offset_and_sorted_by_arrival() -> None:
    cuts = cut(LOG, raws())
    assert [each.value for each in cuts[0]] == [b"3", b"1", b"0"]
    assert [each.value for each in cuts[1]] == [b"5", b"4", b"2"]


def test_records_after_the_last_batch_belong_to_none() -> None:
    later = Raw(1, "numbers", 0, 3, None, b"9")
    assert sum(map(len, cut(LOG, [*raws(), later]).values())) == len(raws())


ENDS = {("numbers", 0): 3, ("numbers", 1): 3}


@pytest.mark.parametrize(
    ("log", "ends", "words"),
    [
        ({0: LOG[0], 2: LOG[1]}, ENDS, "without a gap: [0, 2]"),
        ({0: LOG[1], 1: LOG[0], 2: LOG[1]}, {}, "micro-batch 1 ends at 2 in numbers-0, and the one before at 3"),
        (LOG, {**ENDS, ("numbers", 1): 4}, "ends at 3 in numbers-1, which has records up to 4"),
        (LOG, {**ENDS, ("numbers", 1): 2}, "ends at 3 in numbers-1, which has records up to 2"),
        (LOG, {**ENDS, ("others", 0): 1}, "ends at 0 in others-0, which has records up to 1"),
    ],
)
def test_batches_that_cannot_be_are_named(log: Any, ends: Any, words: str) -> None:
    assert check_log(LOG, ENDS) == []
    assert any(words in each for each in check_log(log, ends))


# --- outputs


def test_what_is_right_is_exact() -> None:
    comparison = compared(written())
    assert comparison.is_exact
    assert comparison.topics == {TOPIC: Tally(expected=6, found=6), "never_written": Tally()}


def test_a_record_that_is_missing_is_named() -> None:
    comparison = compared(written()[1:])
    assert comparison.topics[TOPIC] == Tally(expected=6, found=5, missing=1)
    kind, sentence = only_sentence(comparison)
    assert kind == "missing"
    assert sentence == """doubled, micro-batch 0: 'k0': {"is":0,"of":0} is missing."""


def test_a_record_that_is_there_twice_is_named() -> None:
    comparison = compared([*written(), written()[0]._replace(offset=9)])
    assert comparison.topics[TOPIC] == Tally(expected=6, found=7, twice=1)
    kind, sentence = only_sentence(comparison)
    assert kind == "twice"
    assert "is there 2 times, not 1" in sentence


@pytest.mark.parametrize(
    "value",
    [b'{"is": 0.0, "of": 0}', b'{"is": false, "of": 0}', b'{"is": 0}', b'{"is": 0, "of": 0, "x": 1}', b"{", None],
)
def test_another_value_under_the_right_key_is_wrong(value: bytes | None) -> None:
    comparison = compared([written()[0]._replace(value=value), *written()[1:]])
    assert comparison.topics[TOPIC] == Tally(expected=6, found=6, wrong=1)
    kind, sentence = only_sentence(comparison)
    assert kind == "wrong"
    assert "doubled-0 offset 0 has 'k0'" in sentence


@pytest.mark.parametrize("key", [b"k1", b"\xff", None])
def test_a_record_under_another_key_is_missing_and_another_unexpected(key: bytes | None) -> None:
    comparison = compared([written()[0]._replace(key=key), *written()[1:]])
    assert comparison.topics[TOPIC] == Tally(expected=6, found=6, missing=1, unexpected=1)


@pytest.mark.parametrize("batch", [1, 7, None])
def test_a_record_of_another_batch_is_missing_here_and_unexpected_there(batch: int | None) -> None:
    comparison = compared([written()[0]._replace(batch=batch), *written()[1:]])
    assert comparison.topics[TOPIC] == Tally(expected=6, found=6, missing=1, unexpected=1)
    assert {each.kind for each in comparison.differences} == {"missing", "unexpected"}


def test_a_record_in_a_topic_that_nothing_belongs_into_is_unexpected() -> None:
    comparison = compared([*written(), written()[0]._replace(topic="never_written")])
    assert comparison.topics["never_written"] == Tally(found=1, unexpected=1)


def test_a_tombstone_is_compared_as_one() -> None:
    class Deleting(Doubling):
        def batch(self, records: Sequence[Raw]) -> list[Expected]:
            return [Expected(TOPIC, "gone", None) for _ in records[:1]]

    stones = [Written(TOPIC, 0, at, b"gone", None, at) for at in (0, 1)]
    assert compare(Deleting(), cut(LOG, raws()), stones, [TOPIC]).is_exact
    assert not compare(Deleting(), cut(LOG, raws()), [stones[0], stones[1]._replace(value=b"{}")], [TOPIC]).is_exact


def test_all_differences_are_counted_and_few_are_described() -> None:
    many = [Written(TOPIC, 0, at, b"x", b"{}", None) for at in range(100)]
    comparison = compared([*written(), *many])
    assert comparison.topics[TOPIC].unexpected == 100
    assert comparison.differences.count("unexpected") == 100
    sentences = [each.sentence for each in comparison.differences]
    assert len(sentences) == SHOWN_MAX + 1
    assert sentences[-1] == f"{100 - SHOWN_MAX} more of this kind are not listed."


# --- state


def state(found: Mapping[str, Any]) -> tuple[Tally, list[str]]:
    differences = Differences()
    tally = compare_state({"a": 1, "b": [1, {"c": 2}]}, found, differences)
    return tally, [each.sentence for each in differences]


def test_state_that_is_right_has_no_differences() -> None:
    assert state({"b": (1, {"c": 2}), "a": 1}) == (Tally(expected=2, found=2), [])


@pytest.mark.parametrize(
    ("found", "tally", "words"),
    [
        ({"a": 1}, Tally(expected=2, found=1, missing=1), "the state has no 'b'"),
        ({"a": 2, "b": [1, {"c": 2}]}, Tally(expected=2, found=2, wrong=1), "the state of 'a' is 2, and not 1"),
        ({"a": 1.0, "b": [1, {"c": 2}]}, Tally(expected=2, found=2, wrong=1), "is 1.0, and not 1"),
        ({"a": 1, "b": [1, {"c": 2}], "d": 0}, Tally(expected=2, found=3, unexpected=1), "the state has 'd', 0"),
    ],
)
def test_state_that_differs_is_named(found: Mapping[str, Any], tally: Tally, words: str) -> None:
    there, sentences = state(found)
    assert there == tally
    assert len(sentences) == 1
    assert words in sentences[0]

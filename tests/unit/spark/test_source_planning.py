"""What the source plans, without Kafka and without Spark: offsets in, work out."""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from onceflow.client.cluster import TopicPartition
from onceflow.spark.options import Position, SourceOptions
from onceflow.spark.planning import (
    Range,
    from_json,
    gathered,
    lag,
    limited,
    loss,
    offsets_in,
    other_topics,
    ranges_of,
    split,
    to_json,
    topic_ids_in,
)
from onceflow.spark.source import DataLossError, StreamReader

P0, P1, P2 = ("orders", 0), ("orders", 1), ("orders", 2)
EVERYTHING = ReadAllAvailable()


# --- offsets as JSON


def test_offsets_are_written_in_one_order_whatever_order_they_come_in() -> None:
    offsets = {("b", 10): 1, ("b", 9): 2, ("a", 0): 3}
    assert str(to_json(offsets)) == "{'a': {'0': 3}, 'b': {'9': 2, '10': 1}}"
    assert from_json(to_json(offsets)) == offsets


def test_topic_ids_come_last_and_are_no_offsets() -> None:
    offsets = {("b", 0): 1, ("a", 0): 3}
    whole = to_json(offsets, {"b": "idB", "a": "idA", "gone": "idC"})
    assert json.dumps(whole) == '{"a": {"0": 3}, "b": {"0": 1}, "@topic_ids": {"a": "idA", "b": "idB"}}'
    assert from_json(whole) == offsets
    assert topic_ids_in(whole) == {"a": "idA", "b": "idB"}


def test_offsets_without_ids_are_as_they_always_were() -> None:
    assert to_json({P0: 1}, {}) == to_json({P0: 1}) == {"orders": {"0": 1}}
    assert topic_ids_in({"orders": {"0": 1}}) == {}


def test_what_begins_with_an_at_sign_is_no_topic() -> None:
    assert from_json({"orders": {"0": 1}, "@topic_ids": {"orders": "x"}, "@later": [1]}) == {P0: 1}  # type: ignore[dict-item]


@pytest.mark.parametrize("value", ['{"orders": {"0": 7}, "@topic_ids": {"orders": "x"}}', {"orders": {"0": 7}}])
def test_offsets_are_read_from_text_or_from_what_it_means(value: Any) -> None:
    assert offsets_in(value) == {P0: 7}


@pytest.mark.parametrize("value", [None, "", "null", "17", '"text"', '{"logOffset": 3}', '{"a": {"0": "x"}}', [1]])
def test_what_another_source_says_of_itself_is_nothing(value: Any) -> None:
    assert offsets_in(value) == {}


def test_another_id_is_another_topic_as_far_as_both_are_known() -> None:
    assert other_topics({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4"}) == ["b"]


# --- limits


def test_a_limit_is_shared_out_by_what_is_waiting() -> None:
    assert limited(100, {P0: 0, P1: 1000}, {P0: 300, P1: 1100}) == {P0: 75, P1: 1025}


def test_a_limit_leaves_at_least_one_to_everyone_who_has_any() -> None:
    assert limited(10, {P0: 0, P1: 0, P2: 5}, {P0: 10_000, P1: 1, P2: 5}) == {P0: 9, P1: 1, P2: 5}


def test_a_limit_above_what_is_waiting_changes_nothing() -> None:
    assert limited(11, {P0: 0, P1: 0}, {P0: 10, P1: 1}) == {P0: 10, P1: 1}


@given(
    limit=st.integers(1, 1000),
    waiting=st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    begin=st.integers(0, 2**62),
)
def test_a_limit_is_kept_up_to_one_per_partition_and_always_moves_on(
    limit: int, waiting: list[int], begin: int
) -> None:
    start = {("t", index): begin for index in range(len(waiting))}
    end = {("t", index): begin + size for index, size in enumerate(waiting)}
    found = limited(limit, start, end)
    taken = {place: found[place] - begin for place in end}
    assert all(0 <= taken[place] <= end[place] - begin for place in end)
    assert all(taken[place] for place in end if end[place] > begin)
    assert sum(taken.values()) <= limit + len(waiting)


# --- ranges and pieces


def test_ranges_leave_out_what_is_empty_or_has_no_beginning() -> None:
    assert ranges_of({P0: 5, P1: 7}, {P1: 9, P0: 5, P2: 4}) == [Range("orders", 1, 7, 9)]


def test_ranges_and_their_pieces_say_of_which_topic_they_are() -> None:
    [whole] = ranges_of({P0: 0}, {P0: 10}, {"orders": "idA"})
    assert whole == Range("orders", 0, 0, 10, "idA")
    assert [each.topic_id for each in split([whole], 2, None)] == ["idA", "idA"]


def test_a_large_range_is_cut_until_there_are_enough_tasks() -> None:
    ranges = [Range("t", 0, 0, 1000), Range("t", 1, 0, 10)]
    assert [(each.partition, each.start, each.end) for each in split(ranges, 4, None)] == [
        (0, 0, 333),
        (0, 333, 666),
        (0, 666, 1000),
        (1, 0, 10),
    ]


def test_enough_partitions_are_not_cut() -> None:
    ranges = [Range("t", 0, 0, 1000), Range("t", 1, 0, 10)]
    assert split(ranges, 2, None) == ranges


def test_no_task_gets_more_records_than_allowed() -> None:
    assert [each.size for each in split([Range("t", 0, 5, 30)], None, 10)] == [8, 8, 9]


@given(
    sizes=st.lists(st.integers(1, 10**5), max_size=10),
    tasks=st.none() | st.integers(1, 50),
    records=st.none() | st.integers(1000, 10**5),
)
def test_pieces_are_the_same_offsets_once(sizes: list[int], tasks: int | None, records: int | None) -> None:
    ranges = [Range("t", index, 7, 7 + size) for index, size in enumerate(sizes)]
    pieces = split(ranges, tasks, records)
    assert all(piece.size > 0 for piece in pieces)
    assert all(piece.size <= (records or piece.size) for piece in pieces)
    for whole in ranges:
        own = [piece for piece in pieces if piece.partition == whole.partition]
        assert (own[0].start, own[-1].end) == (whole.start, whole.end)
        assert all(left.end == right.start for left, right in pairwise(own))


# --- losses


def test_nothing_is_lost_while_offsets_grow_and_partitions_begin_at_zero() -> None:
    assert loss({P0: 5}, {P0: 5, P1: 3}, {P1: 0}) is None


@pytest.mark.parametrize(
    ("start", "end", "new", "sentence"),
    [
        ({P0: 5, P1: 5}, {P0: 5}, {}, "orders-1 existed when the query last looked, and not any more"),
        ({}, {P0: 5}, {}, "orders-0 appeared while the query ran, and disappeared before being read"),
        ({}, {P0: 5}, {P0: 2}, "orders-0 appeared while the query ran, and already lost what was written first"),
        ({P0: 5}, {P0: 3}, {}, "orders-0 went back, from offset 5 to 3"),
    ],
)
def test_a_loss_is_said_in_a_sentence(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int], new: dict[TopicPartition, int], sentence: str
) -> None:
    assert loss(start, end, new) == sentence


# --- lag


def test_lag_is_the_distance_to_the_latest_over_all_partitions() -> None:
    source = SimpleNamespace(endOffset='{"t": {"0": 10, "1": 20}}', latestOffset='{"t": {"0": 10, "1": 50, "2": 9}}')
    expected = {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 30, "avgOffsetsBehindLatest": 13.0}
    assert lag(SimpleNamespace(sources=[source])) == expected
    assert lag({"sources": [vars(source)]}) == expected


@pytest.mark.parametrize("offset", [None, "null", "17", '"text"', '{"logOffset": 3}'])
def test_lag_of_other_sources_is_nothing(offset: str | None) -> None:
    assert lag({"sources": [{"endOffset": offset, "latestOffset": offset}]}) == {}


# --- the stream


class FakePositions:
    """A cluster that is two dicts."""

    def __init__(self, latest: dict[TopicPartition, int], **topic_ids: str) -> None:
        self.ends = latest
        self.topic_ids = topic_ids
        self.begins = dict.fromkeys(latest, 0)
        self.initial: dict[TopicPartition, int] | None = None

    def resolve(self, position: Position) -> dict[TopicPartition, int]:
        return dict(self.ends if self.initial is None else self.initial)

    def latest(
        self, known: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
    ) -> dict[TopicPartition, int]:
        return dict(self.ends)

    def earliest_of_existing(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self.begins.get(place, 0) for place in partitions if place in self.ends}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stream(positions: FakePositions, clock: Clock | None = None, **options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "orders", **options}
    return StreamReader(SourceOptions.of(given), positions, clock or Clock())  # type: ignore[arg-type]


def next_end(reader: StreamReader, start: Any, limit: ReadLimit | None = None) -> dict[TopicPartition, int]:
    return from_json(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))


def work(reader: StreamReader, start: Any, end: Any) -> list[tuple[int, int, int]]:
    found = [work for each in reader.partitions(start, end) for work in each.value]
    return [(each.partition, each.start, each.end) for each in found]


def test_where_latest_was_is_logged_by_an_empty_first_batch() -> None:
    kafka = FakePositions({P0: 10})
    reader = stream(kafka)
    start = reader.initialOffset()
    kafka.ends = {P0: 15}
    assert reader.latestOffset(start, EVERYTHING) == start == {"orders": {"0": 10}}
    assert reader.initialOffset() == start, "asked again while the first batch is planned"
    assert work(reader, start, start) == []
    assert next_end(reader, start) == {P0: 15}


def test_a_first_batch_that_is_replayed_is_empty_again_and_nothing_is_skipped() -> None:
    kafka = FakePositions({P0: 25})
    restarted = stream(kafka)
    logged = {"orders": {"0": 10}}  # what the driver that died had logged as the end of the first batch
    assert work(restarted, restarted.initialOffset(), logged) == []
    assert work(restarted, logged, restarted.latestOffset(logged, EVERYTHING)) == [(0, 10, 25)]


def test_a_beginning_that_can_be_found_again_needs_no_empty_batch() -> None:
    kafka = FakePositions({P0: 15})
    kafka.initial = {P0: 0}
    reader = stream(kafka, startingOffsets="earliest")
    start = reader.initialOffset()
    assert work(reader, start, reader.latestOffset(start, EVERYTHING)) == [(0, 0, 15)]


def test_a_first_batch_that_is_replayed_begins_where_it_did_whatever_was_deleted_since() -> None:
    """That what is gone is lost is for the tasks to say, which ask for it."""
    kafka = FakePositions({P0: 15, P1: 9}, orders="idA")
    kafka.initial = {P0: 0, P1: 4}
    first = stream(kafka, startingOffsets="earliest")
    logged = first.latestOffset(first.initialOffset(), EVERYTHING)
    kafka.initial = {P0: 8, P1: 6}
    restarted = stream(kafka, startingOffsets="earliest")
    assert work(restarted, restarted.initialOffset(), logged) == [(0, 0, 15), (1, 4, 9)]
    assert restarted.latestOffset(logged, EVERYTHING) == logged, "nothing is new"
    kafka.ends = {P0: 16, P1: 9}
    end = restarted.latestOffset(logged, EVERYTHING)
    assert end == with_id("idA", p0=16, p1=9)
    assert work(restarted, logged, end) == [(0, 15, 16)]


def test_a_stream_without_a_record_has_no_first_batch_wherever_its_log_begins() -> None:
    kafka = FakePositions({P0: 7}, orders="idA")
    kafka.initial = {P0: 7}
    reader = stream(kafka, startingOffsets="earliest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, EVERYTHING) == start


def test_a_partition_that_appeared_before_a_replay_of_the_first_batch_waits_for_the_second() -> None:
    kafka = FakePositions({P0: 15, P1: 4})
    kafka.initial = {P0: 0, P1: 0}
    reader = stream(kafka, startingOffsets="earliest")
    assert work(reader, reader.initialOffset(), {"orders": {"0": 12}}) == [(0, 0, 12)]
    end = reader.latestOffset({"orders": {"0": 12}}, EVERYTHING)
    assert work(reader, {"orders": {"0": 12}}, end) == [(0, 12, 15), (1, 0, 4)]


def test_available_now_stops_at_what_was_there_when_it_began() -> None:
    kafka = FakePositions({P0: 10})
    kafka.initial = {P0: 0}
    reader = stream(kafka, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    reader.prepareForTriggerAvailableNow()
    kafka.ends = {P0: 1000, P1: 7}
    ends = [reader.initialOffset()]
    for _ in range(3):
        ends.append(reader.latestOffset(ends[-1], reader.getDefaultReadLimit()))
    assert [each["orders"]["0"] for each in ends] == [0, 6, 10, 10]


def test_available_now_from_the_latest_ends_even_if_records_came_in_between() -> None:
    kafka = FakePositions({P0: 10})
    reader = stream(kafka)
    reader.prepareForTriggerAvailableNow()
    kafka.ends = {P0: 12}
    start = reader.initialOffset()
    for _ in range(2):
        assert reader.latestOffset(start, EVERYTHING) == start == {"orders": {"0": 12}}


def test_available_now_looks_again_if_its_end_is_before_what_was_read() -> None:
    """It may have come from a leader that did not know yet how far its predecessor got."""
    kafka = FakePositions({P0: 10, P1: 4})
    reader = stream(kafka, failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    kafka.ends = {P0: 12, P1: 4}
    assert next_end(reader, {"orders": {"0": 12, "1": 0}}) == {P0: 12, P1: 4}


def test_a_trigger_that_asks_for_everything_overrules_the_limit() -> None:
    kafka = FakePositions({P0: 10})
    reader = stream(kafka, maxOffsetsPerTrigger="6")
    assert reader.getDefaultReadLimit() == ReadMaxRows(6)
    assert next_end(reader, {"orders": {"0": 0}}) == {P0: 6}
    assert next_end(reader, {"orders": {"0": 0}}, EVERYTHING) == {P0: 10}


def test_a_limit_counts_what_new_partitions_hold() -> None:
    kafka = FakePositions({P0: 10, P1: 30})
    reader = stream(kafka, maxOffsetsPerTrigger="4")
    assert next_end(reader, {"orders": {"0": 0}}) == {P0: 1, P1: 3}


def test_a_batch_waits_for_the_least_number_of_records_or_for_its_time() -> None:
    kafka, clock = FakePositions({P0: 5}), Clock()
    reader = stream(kafka, clock, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    assert reader.getDefaultReadLimit() == ReadMinRows(10)
    assert next_end(reader, {"orders": {"0": 0}}) == {P0: 5}, "the first one starts with what there is"
    kafka.ends = {P0: 9}
    assert next_end(reader, {"orders": {"0": 5}}) == {P0: 5}
    clock.now = 60
    assert next_end(reader, {"orders": {"0": 5}}) == {P0: 9}
    kafka.ends = {P0: 19}
    assert next_end(reader, {"orders": {"0": 9}}) == {P0: 19}


def test_least_and_most_together() -> None:
    kafka, clock = FakePositions({P0: 5}), Clock()
    reader = stream(kafka, clock, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20")
    next_end(reader, {"orders": {"0": 0}})
    assert next_end(reader, {"orders": {"0": 0}}) == {P0: 0}
    kafka.ends = {P0: 100}
    assert next_end(reader, {"orders": {"0": 0}}) == {P0: 20}


def test_available_now_does_not_wait_for_the_least_number() -> None:
    kafka = FakePositions({P0: 5})
    kafka.initial = {P0: 0}
    reader = stream(kafka, startingOffsets="earliest", minOffsetsPerTrigger="10")
    reader.prepareForTriggerAvailableNow()
    next_end(reader, {"orders": {"0": 0}})
    assert next_end(reader, {"orders": {"0": 0}}) == {P0: 5}


def test_the_latest_offsets_are_reported_also_when_a_batch_stops_before() -> None:
    reader = stream(FakePositions({P0: 10}), maxOffsetsPerTrigger="6")
    assert reader.reportLatestOffset() is None
    next_end(reader, {"orders": {"0": 0}})
    assert reader.reportLatestOffset() == {"orders": {"0": 10}}


def test_one_batch_is_planned_once_however_often_spark_asks() -> None:
    kafka = FakePositions({P0: 10, P1: 3})
    reader = stream(kafka)
    plan = [({"orders": {"0": 0}}, {"orders": {"0": 10, "1": 3}})] * 2
    first = work(reader, *plan[0])
    kafka.begins[P1] = 2  # retention moved on
    assert work(reader, *plan[1]) == first == [(0, 0, 10), (1, 0, 3)]


def test_a_partition_that_is_gone_ends_the_query_or_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    start, end = {"orders": {"0": 5, "1": 5}}, {"orders": {"0": 8}}
    with pytest.raises(DataLossError, match=r"^orders-1 existed .* not any more\. .*failOnDataLoss=false"):
        stream(FakePositions({P0: 8})).partitions(start, end)
    assert work(stream(FakePositions({P0: 8}), failOnDataLoss="false"), start, end) == [(0, 5, 8)]
    assert "orders-1 existed" in caplog.text


def test_a_partition_that_went_back_ends_the_query_or_goes_on_from_its_end() -> None:
    start, end = {"orders": {"0": 50}}, {"orders": {"0": 8}}
    with pytest.raises(DataLossError, match="went back, from offset 50 to 8"):
        stream(FakePositions({P0: 8})).partitions(start, end)
    assert work(stream(FakePositions({P0: 8}), failOnDataLoss="false"), start, end) == []


# --- topics that were created anew


def with_id(topic_id: str, **partitions: int) -> dict[str, dict[str, Any]]:
    offsets = {name.removeprefix("p"): at for name, at in partitions.items()}
    return {"orders": offsets, "@topic_ids": {"orders": topic_id}}


def ids_of_work(reader: StreamReader, start: Any, end: Any) -> list[tuple[str | None, int, int]]:
    found = [work for each in reader.partitions(start, end) for work in each.value]
    return [(each.topic_id, each.start, each.end) for each in found]


def test_offsets_carry_the_ids_of_their_topics() -> None:
    kafka = FakePositions({P0: 10}, orders="idA")
    kafka.initial = {P0: 0}
    reader = stream(kafka, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert (start, end) == (with_id("idA", p0=0), with_id("idA", p0=10))
    assert reader.reportLatestOffset() == end
    assert ids_of_work(reader, start, end) == [("idA", 0, 10)]
    assert reader.latestOffset(end, EVERYTHING) == end, "nothing is new"


def test_offsets_from_before_there_were_ids_go_on_and_get_them() -> None:
    reader = stream(FakePositions({P0: 10}, orders="idA"))
    end = reader.latestOffset({"orders": {"0": 4}}, EVERYTHING)
    assert end == with_id("idA", p0=10)
    assert ids_of_work(reader, {"orders": {"0": 4}}, end) == [("idA", 4, 10)]


def test_a_batch_from_before_there_were_ids_is_replayed_with_those_of_now() -> None:
    reader = stream(FakePositions({P0: 10}, orders="idA"))
    assert ids_of_work(reader, {"orders": {"0": 4}}, {"orders": {"0": 8}}) == [("idA", 4, 8)]


def test_a_topic_that_was_created_anew_ends_the_query_before_anything_is_logged() -> None:
    reader = stream(FakePositions({P0: 80}, orders="idB"))
    sentence = r"^topic 'orders' was deleted and created again: its id was idA and is idB now.* failOnDataLoss=false"
    with pytest.raises(DataLossError, match=sentence):
        reader.latestOffset(with_id("idA", p0=50), EVERYTHING)
    with pytest.raises(DataLossError, match=sentence):
        reader.partitions(with_id("idA", p0=50), with_id("idB", p0=80))


def test_a_topic_that_was_created_anew_is_read_from_its_beginning_if_data_may_be_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka = FakePositions({P0: 80, P1: 3}, orders="idB")
    reader = stream(kafka, failOnDataLoss="false")
    start = with_id("idA", p0=50, p1=7, p2=9)
    end = reader.latestOffset(start, EVERYTHING)
    assert ids_of_work(reader, start, end) == [("idB", 0, 80), ("idB", 0, 3)]
    assert "its id was idA and is idB now" in caplog.text


def test_a_limit_counts_all_of_a_topic_that_was_created_anew() -> None:
    reader = stream(FakePositions({P0: 80}, orders="idB"), failOnDataLoss="false", maxOffsetsPerTrigger="10")
    end = reader.latestOffset(with_id("idA", p0=50), reader.getDefaultReadLimit())
    assert end == with_id("idB", p0=10)


def test_a_batch_that_waits_for_more_records_ends_where_it_begins_to_the_letter() -> None:
    reader = stream(FakePositions({P0: 5}, orders="idA"), minOffsetsPerTrigger="10")
    reader.latestOffset({"orders": {"0": 0}}, reader.getDefaultReadLimit())
    start = {"orders": {"0": 4}}
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start


def test_a_first_batch_that_is_replayed_after_its_topic_was_created_anew_ends_the_query() -> None:
    """The beginning is found out anew then, and is one of the new topic."""
    kafka = FakePositions({P0: 80}, orders="idB")
    kafka.initial = {P0: 0}
    logged = with_id("idA", p0=50)
    strict, lenient = (stream(kafka, startingOffsets="earliest", failOnDataLoss=loss) for loss in ("true", "false"))
    with pytest.raises(DataLossError, match="its id was idA and is idB now"):
        strict.partitions(strict.initialOffset(), logged)
    assert ids_of_work(lenient, lenient.initialOffset(), logged) == []
    assert ids_of_work(lenient, logged, lenient.latestOffset(logged, EVERYTHING)) == [("idB", 0, 80)]


def test_a_topic_that_was_created_anew_before_the_first_batch_is_read_from_its_beginning_if_data_may_be_lost() -> None:
    kafka = FakePositions({P0: 50}, orders="idA")
    kafka.initial = {P0: 20}
    reader = stream(kafka, startingOffsets="earliest", failOnDataLoss="false")
    start = reader.initialOffset()
    kafka.topic_ids, kafka.ends = {"orders": "idB"}, {P0: 80}
    logged = reader.latestOffset(start, EVERYTHING)
    assert ids_of_work(reader, start, logged) == [("idB", 0, 80)]
    kafka.initial = {P0: 0}
    restarted = stream(kafka, startingOffsets="earliest", failOnDataLoss="false")
    assert ids_of_work(restarted, restarted.initialOffset(), logged) == [("idB", 0, 80)]


def test_available_now_looks_again_at_a_topic_that_was_created_anew() -> None:
    """What was there when it began may have come from a broker that did not know yet."""
    kafka = FakePositions({P0: 30}, orders="idA")
    reader = stream(kafka)
    reader.prepareForTriggerAvailableNow()
    kafka.topic_ids, kafka.ends = {"orders": "idB"}, {P0: 80}
    assert reader.latestOffset(with_id("idB", p0=50), EVERYTHING) == with_id("idB", p0=80)


def test_a_reader_travels_to_the_executors() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "orders"}
    pickle.loads(pickle.dumps(StreamReader(SourceOptions.of(given))))


@given(st.lists(st.integers(1, 5_000), max_size=12), st.none() | st.integers(1, 4_000))
def test_small_ranges_share_a_task_and_nothing_is_lost(sizes: list[int], least: int | None) -> None:
    ranges = [Range("orders", number, 7, 7 + size) for number, size in enumerate(sizes)]
    tasks = gathered(ranges, least)
    assert [each for task in tasks for each in task] == ranges
    for task in tasks:
        assert len(task) == 1 or sum(each.size for each in task) <= (least or 0)
    if least is not None:
        pairs = pairwise(tasks)
        assert all(sum(each.size for each in one) + two[0].size > least for one, two in pairs), "as few as can be"

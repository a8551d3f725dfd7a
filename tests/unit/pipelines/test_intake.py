"""From records of Kafka to parcels, and to columns."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from onceflow.errors import ConfigError
from onceflow.pipelines import Input, Pipeline
from onceflow.pipelines.intake import PACKED_AT_ONCE, packing, typing
from onceflow.pipelines.parcels import opened
from onceflow.pipelines.stages import topic_names
from onceflow.spark.decoding import SCHEMA
from tests.support.pages_pipeline import PAGES, Click, View, sent

GOOD = b'{"page":"/","user":"ann"}'


def batch(topic: str, partition: int, *records: tuple[int, int, bytes | None, bytes | None]) -> pa.RecordBatch:
    """Of offsets, timestamps in ms, keys, and values: as the source makes it."""
    offsets, timestamps, keys, values = (list(each) for each in zip(*records, strict=True))
    micros = pa.array([each * 1000 for each in timestamps], pa.timestamp("us", tz="UTC"))
    count = len(records)
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([topic] * count),
        pa.array([partition] * count, pa.int32()),
        pa.array(offsets, pa.int64()),
        micros,
        pa.array([0] * count, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def packed(*batches: pa.RecordBatch, prefix: str = "") -> list[pa.RecordBatch]:
    return list(packing(PAGES, topic_names(PAGES, prefix)).convert(iter(batches)))


class TestPacking:
    def test_records_are_parsed_under_the_name_that_the_pipeline_knows(self) -> None:
        [rows] = packed(batch("eu-clicks", 1, (5, 99, b"k", GOOD)), prefix="eu-")
        items, passing = opened(rows.column("parcel").to_pylist())
        assert items == [(99, "clicks", 1, 5, ("/", "ann"))]
        assert passing == []

    def test_a_time_before_1970_is_one_of_ms_like_any_other(self) -> None:
        [rows] = packed(batch("clicks", 0, (0, -1, None, GOOD)))
        assert opened(rows.column("parcel").to_pylist())[0][0][0] == -1

    def test_what_does_not_fit_travels_along_as_a_dead_letter_with_its_own_origin(self) -> None:
        [rows] = packed(batch("clicks", 2, (5, 1, b"a", GOOD), (9, 2, b"b", b"{"), (10, 3, b"c", GOOD)))
        items, passing = opened(rows.column("parcel").to_pylist())
        [(topic, key, letter)] = sent(passing)
        assert (len(items), topic, key) == (2, "pages_dead_letters", None)
        assert json.loads(letter or "") == {
            "reason": "not JSON",
            "topic": "clicks",
            "partition": 2,
            "offset": 9,
            "timestamp": 2,
            "key": "b",
            "value": "{",
        }

    def test_where_nothing_fits_there_is_a_parcel_nonetheless(self) -> None:
        [rows] = packed(batch("clicks", 0, (0, 1, None, None)))
        items, passing = opened(rows.column("parcel").to_pylist())
        assert (items, len(sent(passing))) == ([], 1)

    def test_records_are_counted_once_good_or_bad(self) -> None:
        values = [json.dumps({"page": f"/{number}", "user": "ann"}).encode() for number in range(50)]
        [rows] = packed(
            batch("clicks", 0, *((number, 1, None, value) for number, value in enumerate(values))),
            batch("clicks", 1, (0, 1, None, b"{")),
        )
        assert sum(rows.column("records").to_pylist()) == 51
        assert rows.num_rows > 1

    def test_a_task_with_much_to_read_does_not_wait_for_the_end(self) -> None:
        half = batch("clicks", 0, *((number, 1, None, GOOD) for number in range(PACKED_AT_ONCE // 2)))
        assert [sum(each.column("records").to_pylist()) for each in packed(half, half, half)] == [
            PACKED_AT_ONCE,
            PACKED_AT_ONCE // 2,
        ]

    def test_nothing_read_is_nothing_packed(self) -> None:
        assert packed() == []


class Typed(NamedTuple):
    page: int


class Topical(NamedTuple):
    topic: str


class Tally(NamedTuple):
    page: str
    seconds: float
    count: int
    is_new: bool | None


def same(frame: Any) -> Any:
    return frame


class TestTyping:
    def test_a_field_of_several_inputs_is_one_column(self) -> None:
        inputs = [Input("clicks", Click), Input("views", View)]
        pipeline = Pipeline(name="p", inputs=inputs, outputs={"o": 1}, build=same)
        schema = typing(pipeline, topic_names(pipeline, "")).schema
        assert schema.count("`page` STRING") == 1
        assert schema.count("`user` STRING") == 1

    def test_rows_have_the_fields_of_their_topic_or_a_dead_letter(self) -> None:
        inputs = [Input("clicks", Click), Input("tallies", Tally)]
        pipeline = Pipeline(name="p", inputs=inputs, outputs={"o": 1}, build=same)
        tally = b'{"page":"/","seconds":1.5,"count":3,"is_new":null}'
        clicks = batch("clicks", 0, (3, 7, None, GOOD), (4, 8, None, b"[]"))
        tallies = batch("tallies", 1, (0, 9, None, tally))
        found = typing(pipeline, topic_names(pipeline, "")).convert(iter([clicks, tallies]))
        rows = [row for each in found for row in each.to_pylist()]
        assert [row["dead_letter"] is None for row in rows] == [True, False, True]
        origin = {"topic": "clicks", "partition": 0, "offset": 3, "timestamp": 7}
        fields = {"page": "/", "user": "ann", "seconds": None, "count": None, "is_new": None}
        assert rows[0] == {**origin, **fields, "dead_letter": None}
        assert (rows[2]["seconds"], rows[2]["count"], rows[2]["is_new"], rows[2]["user"]) == (1.5, 3, None, None)

    @pytest.mark.parametrize(
        ("schema", "words"), [(Typed, "'page' is of different types"), (Topical, "cannot be called 'topic'")]
    )
    def test_fields_that_cannot_be_columns_are_refused(self, schema: type[Any], words: str) -> None:
        inputs = [Input("clicks", Click), Input("others", schema)]
        pipeline = Pipeline(name="p", inputs=inputs, outputs={"o": 1}, build=same)
        with pytest.raises(ConfigError, match=words):
            typing(pipeline, topic_names(pipeline, ""))

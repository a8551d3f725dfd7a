"""Record batches as Arrow rows: exactly the records that `wire.records` reads, for anything that can be written."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import MalformedMessage
from onceflow.spark import decoding, record_starts, unpacking
from onceflow.spark.decoding import SCHEMA, SCHEMA_WITH_HEADERS, arrow_batches, to_arrow
from onceflow.wire.batch import HEADER_SIZE, BatchHeader, checksum, read_header
from onceflow.wire.compression import Codec
from onceflow.wire.records import Record, build_batch, read_records
from tests.support.effort import examples

UNPACKED_MAX = 2**20
"""Corrupt data are tried with all the room there may be: little of it keeps the tests quick."""


def parsed(batches: Iterable[bytes]) -> list[tuple[BatchHeader, memoryview]]:
    return [(read_header(each), memoryview(each)) for each in batches]


def decoded(
    batches: Iterable[bytes], start: int = 0, end: int = 2**62, *, include_headers: bool = True
) -> pa.RecordBatch:
    return to_arrow(parsed(batches), start, end, topic="orders", partition=3, include_headers=include_headers)


def rows(found: pa.RecordBatch | None) -> list[dict[str, Any]]:
    """With the timestamps as numbers: Python's cannot be as large as Kafka's."""
    if found is None:
        return []
    found.validate(full=True)
    at = found.schema.get_field_index("timestamp")
    return found.set_column(at, "timestamp", found.column(at).cast(pa.int64())).to_pylist()


def expected(batches: Sequence[bytes], start: int = 0, end: int = 2**62) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 3,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": int(read_header(batch).is_append_time),
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for batch in batches
        for record in read_records(batch, max_bytes=UNPACKED_MAX)
        if start <= record.offset < end
    ]


def sealed(batch: bytearray) -> bytes:
    """With a right checksum, so that the damage is found where it is."""
    struct.pack_into(">I", batch, 17, checksum(batch))
    return bytes(batch)


# --- whatever can be written

MS_MAX = (2**63 - 1) // 1000
byte_strings = st.none() | st.binary(max_size=12) | st.sampled_from([b"x" * 60, b"y" * 64, b"z" * 8200])
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
timestamps = st.integers(-1, 200) | st.integers(1_700_000_000_000, 1_700_000_100_000) | st.integers(-MS_MAX, MS_MAX)
gaps = st.just(1) | st.sampled_from([2, 70, 9000])


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches as compaction may have left them: in order, with gaps between and inside, some without records."""
    batches = []
    offset = draw(st.integers(0, 10))
    for _ in range(draw(st.integers(1, 5))):
        records = []
        base = offset
        for _ in range(draw(st.integers(0, 6))):
            records.append(
                Record(offset, draw(timestamps), draw(byte_strings), draw(byte_strings), draw(headers | st.just(())))
            )
            offset += draw(gaps)
        batches.append(
            build_batch(
                records,
                base_offset=base,
                codec=draw(st.sampled_from(Codec)),
                append_time_ms=draw(st.none() | st.just(1_700_000_000_123)),
                last_offset_delta=max(offset - base - 1, 0),
            )
        )
        offset = max(offset, base + 1)
    return batches


@examples(50, soak=1_500)
@given(batches=logs(), abreast=st.sampled_from([1, 2, 24]), data=st.data())
def test_it_gives_what_reading_one_by_one_gives(batches: list[bytes], abreast: int, data: st.DataObject) -> None:
    last = read_header(batches[-1]).last_offset
    start = data.draw(st.integers(0, last + 1))
    end = data.draw(st.integers(start, last + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_starts, "ABREAST_MIN", abreast)
        assert rows(decoded(batches)) == expected(batches)
        assert rows(decoded(batches, start, end)) == expected(batches, start, end)
        without = [{name: value for name, value in row.items() if name != "headers"} for row in expected(batches)]
        assert rows(decoded(batches, include_headers=False)) == without


@examples(100, soak=3_000)
@given(batches=logs(), abreast=st.sampled_from([1, 24]), data=st.data())
def test_damaged_records_are_malformed_or_read_as_one_by_one(
    batches: list[bytes], abreast: int, data: st.DataObject
) -> None:
    damaged = bytearray(data.draw(st.sampled_from(batches)))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(21, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    batch = sealed(damaged)
    try:
        wanted = expected([batch])
    except MalformedMessage:
        wanted = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_starts, "ABREAST_MIN", abreast)
        patch.setattr(unpacking, "UNPACKED_BYTES_MAX", UNPACKED_MAX)
        try:
            found = rows(decoded([batch]))
        except MalformedMessage:
            # Beyond what the records must be, they must fit into Spark's columns.
            too_late = wanted is not None and any(abs(row["timestamp"]) > MS_MAX * 1000 for row in wanted)
            header = read_header(batch)
            is_backwards = header.last_offset_delta < 0  # it would end before it begins
            assert wanted is None or too_late or header.is_control or is_backwards
        else:
            if read_header(batch).is_control:
                assert found == []
            else:
                replaced = None if wanted is None else [_with_replaced_keys(row) for row in wanted]
                assert found == replaced


def _with_replaced_keys(row: dict[str, Any]) -> dict[str, Any]:
    if row["headers"] is None:
        return row
    found = [
        {**each, "key": each["key"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")}
        for each in row["headers"]
    ]
    return {**row, "headers": found}


# --- how records are found


def log_of(counts: Iterable[int], sizes: Sequence[int] = (100,)) -> list[bytes]:
    """Batches with so many records, whose values have these sizes in turn."""
    batches, offset = [], 0
    for count in counts:
        records = [
            Record(offset + at, 1000 + at, b"k%d" % at, bytes([at % 251]) * sizes[at % len(sizes)])
            for at in range(count)
        ]
        batches.append(build_batch(records, base_offset=offset))
        offset += count
    return batches


@pytest.mark.parametrize(
    "counts",
    [[1] * 100, [5, 1, 300] * 9, range(1, 60), [2000], [40, 700]],
    ids=["tiny", "mixed", "rising", "large", "few"],
)
@pytest.mark.parametrize("sizes", [(100,), (20,), (10, 100, 1000), (9000,), (100, 100, 9000)], ids=str)
def test_many_small_and_few_large_batches(counts: Iterable[int], sizes: Sequence[int]) -> None:
    batches = log_of(counts, sizes)
    assert rows(decoded(batches)) == expected(batches)


def test_a_run_of_equal_records_ends_where_their_length_changes() -> None:
    values = [b"a" * 50] * 700 + [b"b" * 51] * 700 + [b"c"] * 40 + [b"a" * 50] * 700
    # Without keys, timestamps and offsets of one size: only the values make a difference.
    batches = [
        build_batch(
            [Record(at, 0, None, value) for at, value in enumerate(values[first : first + 60], first)],
            base_offset=first,
        )
        for first in range(0, len(values), 60)
    ]
    one = build_batch([Record(at, 0, None, value) for at, value in enumerate(values)], base_offset=0)
    assert rows(decoded(batches)) == expected(batches)
    assert rows(decoded([one])) == expected([one])


# --- columns


def test_the_schema_is_what_spark_makes_of_the_columns_of_its_kafka_source() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    to_arrow_schema = pytest.importorskip("pyspark.sql.pandas.types").to_arrow_schema
    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    columns = (
        types.StructType()
        .add("key", types.BinaryType())
        .add("value", types.BinaryType())
        .add("topic", types.StringType())
        .add("partition", types.IntegerType())
        .add("offset", types.LongType())
        .add("timestamp", types.TimestampType())
        .add("timestampType", types.IntegerType())
    )
    assert to_arrow_schema(columns, timezone="UTC").equals(SCHEMA)
    with_headers = columns.add("headers", types.ArrayType(header))
    assert to_arrow_schema(with_headers, timezone="UTC").equals(SCHEMA_WITH_HEADERS)


def test_batches_have_the_schema() -> None:
    batches = [build_batch([Record(0, 5, None, None)], base_offset=0)]
    assert decoded(batches, include_headers=False).schema.equals(SCHEMA)
    assert decoded(batches).schema.equals(SCHEMA_WITH_HEADERS)


def test_no_timestamp_is_the_millisecond_before_1970() -> None:
    [found] = decoded([build_batch([Record(0, -1, None, b"v")], base_offset=0)]).to_pylist()
    assert found["timestamp"] == datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    assert found["timestampType"] == 0


@pytest.mark.parametrize("timestamp", [MS_MAX + 1, -MS_MAX - 1, 2**63 - 1, -(2**63)])
def test_a_timestamp_that_spark_cannot_hold_is_refused(timestamp: int) -> None:
    batch = build_batch([Record(7, timestamp, None, None)], base_offset=7)
    with pytest.raises(MalformedMessage, match=f"offsets 7 and 7 has a timestamp .* {timestamp}"):
        decoded([batch])


def test_a_timestamp_outside_of_the_range_asked_for_does_not_matter() -> None:
    batch = build_batch([Record(0, 2**63 - 1, None, None), Record(1, 5, None, b"v")], base_offset=0)
    assert [row["offset"] for row in rows(decoded([batch], 1, 2))] == [1]


def test_header_keys_that_are_not_utf8_are_replaced() -> None:
    batch = build_batch([Record(0, 0, None, None, (("\udcff", b"v"), ("ä", None)))], base_offset=0)
    [found] = decoded([batch]).to_pylist()
    assert found["headers"] == [{"key": "\ufffd", "value": b"v"}, {"key": "ä", "value": None}]


def test_nothing_in_the_range_is_none() -> None:
    batches = [build_batch([Record(5, 0, None, b"v")], base_offset=0, last_offset_delta=9)]
    assert decoded([]) is None
    assert decoded(batches, 0, 5) is None
    assert decoded(batches, 6, 10) is None
    assert decoded([build_batch([], base_offset=0, last_offset_delta=3)]) is None


def test_batches_outside_of_the_range_are_not_opened() -> None:
    batches = log_of([10, 10, 10])
    damaged = [batches[0][:-1] + b"\xff", batches[1], batches[2][:-1] + b"\xff"]
    assert len(rows(decoded(damaged, 10, 20))) == 10


def test_control_batches_are_never_rows() -> None:
    marker = build_batch([Record(0, 0, b"\0\0\0\1", b"\0\0\0\0\0\0")], base_offset=0, control=True)
    assert decoded([marker]) is None


# --- damage


def test_a_wrong_checksum_is_named_with_its_offset() -> None:
    batch = bytearray(build_batch([Record(12, 0, None, b"value")], base_offset=12))
    batch[-3] ^= 1
    with pytest.raises(MalformedMessage, match="checksum of the batch at offset 12"):
        decoded([bytes(batch)])


def test_a_batch_that_is_not_whole_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="says it has"):
        decoded([log_of([3])[0][:-1]])


@pytest.mark.parametrize("count", [-1, 0, 2, 4, 2**31 - 1])
def test_a_wrong_count_is_refused(count: int) -> None:
    batch = bytearray(log_of([3])[0])
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(MalformedMessage):
        decoded([sealed(batch)])


def test_batches_in_the_wrong_order_are_refused() -> None:
    first, second = log_of([3, 3])
    with pytest.raises(MalformedMessage, match="offsets do not rise"):
        decoded([second, first])


def test_more_than_arrow_can_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = log_of([3, 3])
    monkeypatch.setattr(unpacking, "BUFFER_BYTES_MAX", len(batches[0]) + 10)
    assert len(rows(decoded(batches[:1]))) == 3
    with pytest.raises(MalformedMessage, match=r"unpack to more than .* read fewer at once"):
        decoded(batches)


def test_much_comes_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = log_of([3, 3, 3, 3, 3])
    monkeypatch.setattr(decoding, "PART_BYTES", len(batches[0]) + 10)
    parts = list(arrow_batches(parsed(batches), 4, 12, topic="orders", partition=3, include_headers=True))
    assert [part.num_rows for part in parts] == [5, 3]
    assert [row for part in parts for row in rows(part)] == expected(batches, 4, 12)


def test_what_lies_in_one_part_comes_in_one() -> None:
    batches = log_of([3, 3])
    [part] = arrow_batches(parsed(batches), 0, 6, topic="orders", partition=3, include_headers=True)
    assert rows(part) == expected(batches)
    assert list(arrow_batches(parsed(batches), 6, 9, topic="orders", partition=3, include_headers=True)) == []


@pytest.mark.parametrize("cut", range(1, 19))
def test_records_that_are_cut_short_are_refused(cut: int) -> None:
    batch = bytearray(build_batch([Record(0, 0, b"key", b"value", (("h", b"v"),))], base_offset=0)[:-cut])
    assert len(batch) > HEADER_SIZE
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(MalformedMessage):
        decoded([sealed(batch)])

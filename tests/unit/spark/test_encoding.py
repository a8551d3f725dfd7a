"""Columns to batches: the same bytes as `build_batch` makes of the same records, and cuts where they are due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.spark.encoding import (
    BATCH_BYTES_MAX,
    Packed,
    Rows,
    header_section,
    pack,
    pack_by_partition,
)
from onceflow.wire.batch import HEADER_SIZE, checksum, read_header
from onceflow.wire.compression import Codec
from onceflow.wire.records import Record, build_batch, read_records

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""A busy machine is no finding."""

Header = tuple[str, bytes | None]
# Lengths on both sides of 63 and 8191, where a varint grows.
PAYLOADS = st.none() | st.one_of(
    st.binary(max_size=20),
    st.integers(40, 80).map(lambda size: b"v" * size),
    st.integers(8150, 8200).map(lambda size: b"w" * size),
)
TIMESTAMPS = st.one_of(st.integers(NOW_MS, NOW_MS + 200), st.integers(0, 2**63 - 1))
HEADER_LISTS = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3)
ROWS = st.lists(st.tuples(PAYLOADS, PAYLOADS, HEADER_LISTS, TIMESTAMPS), max_size=90)


def header_column(lists: list[list[Header] | None]) -> pa.Array:
    dicts = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in lists]
    return pa.array(dicts, HEADERS)


def rows_of(rows: list[tuple[Any, Any, Any, Any]], with_keys: bool, with_headers: bool, with_times: bool) -> Rows:
    keys, values, headers, timestamps = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Rows(
        keys=pa.array(keys, pa.binary()) if with_keys else None,
        values=pa.array(values, pa.binary()),
        headers=header_column(list(headers)) if with_headers else None,
        timestamps_ms=np.array(timestamps, dtype=np.int64) if with_times else None,
    )


def numbered(count: int, **others: Any) -> Rows:
    keys = pa.array([b"key %d" % number for number in range(count)], pa.binary())
    return Rows(keys=keys, values=pa.array([b"%d" % number for number in range(count)], pa.binary()), **others)


def seal(packed: Packed) -> bytes:
    return packed.sealed(producer_id=77, epoch=3, base_sequence=11, transactional=True)


def rebuilt(batch: bytes, codec: Codec = Codec.NONE) -> bytes:
    """The batch as the plain encoder writes it."""
    records = list(read_records(batch))
    return build_batch(
        records,
        base_offset=0,
        codec=codec,
        producer_id=77,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
    )


def records_of(batches: list[bytes]) -> list[tuple[bytes | None, bytes | None, tuple[Header, ...], int]]:
    return [(r.key, r.value, r.headers, r.timestamp) for batch in batches for r in read_records(batch)]


def values_of(packed: Packed) -> list[bytes | None]:
    return [record.value for record in read_records(seal(packed))]


# --- bytes


@given(
    ROWS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([HEADER_SIZE, 200, 20_000, BATCH_BYTES_MAX]),
    st.integers(0, 5),
)
def test_batches_hold_the_rows_and_are_the_bytes_of_the_plain_encoder(
    rows: list[Any], with_keys: bool, with_headers: bool, with_times: bool, bytes_max: int, skipped: int
) -> None:
    columns = rows_of(rows, with_keys, with_headers, with_times)
    part = columns.slice(skipped, max(0, len(columns) - skipped))
    batches = [seal(each) for each in pack(part, batch_bytes_max=bytes_max, now_ms=NOW_MS)]
    assert records_of(batches) == [
        (
            key if with_keys else None,
            value,
            tuple(headers or ()) if with_headers else (),
            timestamp if with_times else NOW_MS,
        )
        for key, value, headers, timestamp in rows[skipped:]
    ]
    for batch in batches:
        assert batch == rebuilt(batch)
        assert len(batch) <= bytes_max or read_header(batch).count == 1


@given(st.text(min_size=1), st.text(), st.integers(1, 300))
def test_a_header_of_every_row_is_in_every_row(name: str, value: str, count: int) -> None:
    rows = replace(numbered(count), every_header=header_section(name, value))
    batches = [seal(each) for each in pack(rows, batch_bytes_max=2_000, now_ms=NOW_MS)]
    assert [headers for _, _, headers, _ in records_of(batches)] == [((name, value.encode()),)] * count
    for batch in batches:
        assert batch == rebuilt(batch)
        assert len(batch) <= 2_000 or read_header(batch).count == 1


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193])
def test_offset_deltas_grow_with_the_batch(count: int) -> None:
    [packed] = pack(numbered(count), now_ms=NOW_MS)
    batch = seal(packed)
    assert [record.offset for record in read_records(batch)] == list(range(count))
    assert batch == rebuilt(batch)


@pytest.mark.parametrize("size", [0, 56, 57, 58, 8184, 8185, 1_048_576, 3_000_000])
def test_lengths_around_those_where_a_varint_grows(size: int) -> None:
    [packed] = pack(Rows(values=pa.array([b"x" * size], pa.binary())), now_ms=NOW_MS)
    assert seal(packed) == rebuilt(seal(packed))


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_every_codec_packs_the_same_records(codec: Codec) -> None:
    [packed] = pack(numbered(1000), codec=codec, now_ms=NOW_MS)
    batch = seal(packed)
    assert read_header(batch).compression == codec
    assert batch == rebuilt(batch, codec)
    assert packed.size == len(batch)


def test_the_level_is_that_of_the_codec() -> None:
    rows = numbered(5000)
    [fast] = pack(rows, codec=Codec.ZSTD, level=1, now_ms=NOW_MS)
    [slow] = pack(rows, codec=Codec.ZSTD, level=19, now_ms=NOW_MS)
    assert slow.size < fast.size


def test_the_header_says_whose_batch_it_is() -> None:
    [packed] = pack(numbered(4, timestamps_ms=np.array([50, 90, 10, 60])), codec=Codec.LZ4, now_ms=NOW_MS)
    batch = packed.sealed(producer_id=2**40, epoch=32767, base_sequence=2**31 - 2, transactional=True)
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 32767, 2**31 - 2)
    assert (header.base_offset, header.last_offset_delta, header.count) == (0, 3, 4)
    assert (header.base_timestamp, header.max_timestamp) == (50, 90)
    assert (header.size, header.crc) == (len(batch), checksum(batch))
    assert header.is_transactional
    assert not header.is_append_time
    assert not header.is_control


def test_a_batch_outside_a_transaction_does_not_claim_one() -> None:
    [packed] = pack(numbered(1), now_ms=NOW_MS)
    assert not read_header(packed.sealed(1, 0, 0, transactional=False)).is_transactional


def test_sealing_again_is_the_same_batch_with_another_sequence() -> None:
    [packed] = pack(numbered(10), codec=Codec.ZSTD, now_ms=NOW_MS)
    first, second = packed.sealed(5, 0, 0, True), packed.sealed(5, 0, 10, True)
    assert (read_header(first).base_sequence, read_header(second).base_sequence) == (0, 10)
    assert checksum(second) == read_header(second).crc
    assert first[HEADER_SIZE:] == second[HEADER_SIZE:]


# --- cuts


def test_rows_that_fit_are_one_batch() -> None:
    assert [packed.count for packed in pack(numbered(8000), now_ms=NOW_MS)] == [8000]


def test_batches_are_nearly_as_full_as_they_may_be() -> None:
    rows = Rows(values=pa.array([b"x" * 100] * 10_000, pa.binary()))
    sizes = [packed.size for packed in pack(rows, batch_bytes_max=100_000, now_ms=NOW_MS)]
    assert max(sizes) <= 100_000
    assert min(sizes[:-1]) > 97_000


def test_a_batch_may_have_all_bytes_that_are_allowed_and_not_one_more() -> None:
    rows = Rows(values=pa.array([b"x" * 10] * 40, pa.binary()))
    [whole] = pack(rows, now_ms=NOW_MS)
    assert [each.count for each in pack(rows, batch_bytes_max=whole.size, now_ms=NOW_MS)] == [40]
    assert [each.count for each in pack(rows, batch_bytes_max=whole.size - 1, now_ms=NOW_MS)] == [39, 1]


def test_a_record_that_is_too_large_alone_is_alone() -> None:
    values = pa.array([b"a", b"b" * 5000, b"c", b"d"], pa.binary())
    counts = [packed.count for packed in pack(Rows(values=values), batch_bytes_max=1000, now_ms=NOW_MS)]
    assert counts == [1, 1, 2]


def test_deltas_begin_again_in_each_batch() -> None:
    rows = numbered(3000, timestamps_ms=np.arange(NOW_MS, NOW_MS + 3000))
    batches = [seal(packed) for packed in pack(rows, batch_bytes_max=10_000, now_ms=0)]
    assert len(batches) > 3
    assert [batch for batch in batches if batch != rebuilt(batch)] == []
    assert [timestamp for *_, timestamp in records_of(batches)] == list(range(NOW_MS, NOW_MS + 3000))


def test_no_rows_are_no_batches() -> None:
    assert list(pack(numbered(0), now_ms=NOW_MS)) == []
    assert list(pack_by_partition(numbered(0), np.zeros(0, np.int32), now_ms=NOW_MS)) == []


# --- partitions


@given(
    st.lists(st.sampled_from([0, 1, 2, 5, 70_000, 2_000_000_000]), max_size=200),
    st.sampled_from([200, BATCH_BYTES_MAX]),
)
def test_packing_by_partition_is_grouping_and_packing(places: list[int], bytes_max: int) -> None:
    partitions = np.array(places, dtype=np.int64)
    timestamps = NOW_MS + 7 * np.arange(len(places), dtype=np.int64)
    headers = header_column([[("row", b"%d" % row)] if row % 3 else None for row in range(len(places))])
    rows = numbered(len(places), headers=headers, timestamps_ms=timestamps)
    by_partition = [
        (partition, seal(packed))
        for partition, packed in pack_by_partition(rows, partitions, batch_bytes_max=bytes_max, now_ms=NOW_MS)
    ]
    for _, batch in by_partition:
        assert batch == rebuilt(batch)
        assert len(batch) <= bytes_max or read_header(batch).count == 1
    found = {
        partition: records_of([batch for each, batch in by_partition if each == partition])
        for partition, _ in by_partition
    }
    assert found == {
        partition: records_of([seal(packed) for packed in pack(rows.take(indices), now_ms=NOW_MS)])
        for partition in set(places)
        for indices in [np.flatnonzero(partitions == partition)]
    }


# --- rows


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.string_view()])
def test_strings_and_large_types_are_payloads_like_others(kind: pa.DataType) -> None:
    column = pa.array(["a", None, "", "Grüße"], pa.string()).cast(kind)
    [packed] = pack(Rows(keys=column, values=column), now_ms=NOW_MS)
    found = [(record.key, record.value) for record in read_records(seal(packed))]
    assert found == [(each, each) for each in (b"a", None, b"", "Grüße".encode())]


def test_header_values_may_be_strings_and_large() -> None:
    kind = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.string())]))
    headers = pa.array([[{"key": "h", "value": "1"}], None], kind)
    [packed] = pack(Rows(values=pa.array([b"a", b"b"]), headers=headers), now_ms=NOW_MS)
    assert [record.headers for record in read_records(seal(packed))] == [(("h", b"1"),), ()]


def test_bytes_under_a_null_are_not_written() -> None:
    hidden = pa.array([b"hidden", b"seen"], pa.binary())
    column = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), *hidden.buffers()[1:]])
    rows = Rows(keys=column, values=column)
    [packed] = pack(rows, now_ms=NOW_MS)
    assert [(r.key, r.value) for r in read_records(seal(packed))] == [(None, None), (b"seen", b"seen")]
    assert rows.nbytes == 8


def test_taken_rows_keep_their_columns_together() -> None:
    headers = header_column([[("row", b"%d" % row)] for row in range(5)])
    rows = numbered(5, headers=headers, timestamps_ms=np.arange(5)).take(np.array([4, 0, 0]))
    [packed] = pack(rows, now_ms=NOW_MS)
    assert list(read_records(seal(packed))) == [
        Record(offset, row, b"key %d" % row, b"%d" % row, (("row", b"%d" % row),))
        for offset, row in enumerate((4, 0, 0))
    ]


def test_the_bytes_of_a_slice_are_those_of_its_rows() -> None:
    headers = header_column([None, [("ab", b"c"), ("d", None)], [("e", b"")], None])
    rows = Rows(
        keys=pa.array([b"1", b"22", None, b"4444"]), values=pa.array([b"x" * 100, None, b"yyy", b""]), headers=headers
    )
    assert rows.nbytes == 1 + 2 + 4 + 100 + 3 + 2 + 1 + 1 + 1
    assert rows.slice(1, 2).nbytes == 2 + 3 + 2 + 1 + 1 + 1
    assert len(rows.slice(1, 2)) == 2


def test_columns_must_be_of_one_length() -> None:
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        Rows(keys=pa.array([b"a", b"b"]), values=pa.array([b"c"]))


def test_a_timestamp_before_1970_is_refused() -> None:
    with pytest.raises(ValueError, match=r"before 1970.*-5 ms"):
        list(pack(numbered(2, timestamps_ms=np.array([1, -5])), now_ms=NOW_MS))


@pytest.mark.parametrize("header", [{"key": None, "value": b"v"}, None], ids=["no-key", "null"])
def test_a_header_without_a_key_is_refused(header: dict[str, bytes | None] | None) -> None:
    headers = pa.array([[header]], HEADERS)
    with pytest.raises(ValueError, match="header has no key"):
        list(pack(numbered(1, headers=headers), now_ms=NOW_MS))

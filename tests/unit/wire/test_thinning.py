"""Thinning against reading and building: the same records, whichever way they were taken out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import MalformedMessage
from onceflow.wire.batch import HEADER_SIZE, BatchHeader, checksum, read_header
from onceflow.wire.compression import Codec
from onceflow.wire.records import Record, build_batch, read_records
from onceflow.wire.thinning import emptied, spans, thinned, unpacked

T0 = 1_700_000_000_000
MAX_BYTES = 1 << 20

some_bytes = st.none() | st.binary(max_size=200)
times = st.integers(T0 - 10_000, T0 + 10_000) | st.integers(0, 2**62)
headers = st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3).map(tuple)


@st.composite
def batches_of_records(draw: st.DrawFn) -> tuple[list[Record], bytes]:
    base_offset = draw(st.integers(0, 2**40))
    gaps = draw(st.lists(st.integers(1, 300), min_size=1, max_size=20))
    records = []
    offset = base_offset - 1
    for gap in gaps:
        offset += gap
        records.append(Record(offset, draw(times), draw(some_bytes), draw(some_bytes), draw(headers)))
    return records, build_batch(
        records,
        base_offset=base_offset,
        codec=draw(st.sampled_from(list(Codec))),
        producer_id=7,
        producer_epoch=1,
        base_sequence=40,
        leader_epoch=3,
        last_offset_delta=offset - base_offset + draw(st.integers(0, 3)),
    )


def opened(batch: bytes) -> tuple[BatchHeader, bytes]:
    header = read_header(batch)
    return header, unpacked(header, batch, MAX_BYTES)


@given(batches_of_records())
def test_spans_say_what_reading_says(case: tuple[list[Record], bytes]) -> None:
    records, batch = case
    found = list(spans(*opened(batch)))
    assert [(span[2], span[3]) for span in found] == [(record.offset, record.timestamp) for record in records]
    body = opened(batch)[1]
    for (_, _, _, _, key_at, key_size, value_at, value_size), record in zip(found, records, strict=True):
        assert (body[key_at : key_at + key_size] if key_size >= 0 else None) == record.key
        assert (body[value_at : value_at + value_size] if value_size >= 0 else None) == record.value


@given(batches_of_records(), st.data(), st.none() | st.integers(0, 2**63 - 1))
def test_what_is_kept_reads_as_before(
    case: tuple[list[Record], bytes], data: st.DataObject, horizon: int | None
) -> None:
    records, batch = case
    header, body = opened(batch)
    all_spans = list(spans(header, body))
    chosen = sorted(data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1)))
    thin = thinned(header, body, [all_spans[at] for at in chosen], delete_horizon_ms=horizon)
    after = read_header(thin)
    assert list(read_records(thin)) == [records[at] for at in chosen]
    assert after.crc == checksum(thin)
    assert after.delete_horizon_ms == horizon
    assert after.max_timestamp == max(records[at].timestamp for at in chosen)
    assert after.count == len(chosen)
    for field in ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence", "leader_epoch"):
        assert getattr(after, field) == getattr(header, field)
    assert after.compression == header.compression


def test_nothing_taken_out_means_the_same_bytes() -> None:
    batch = build_batch([Record(at, T0 + at, b"k", b"v" * at) for at in range(200)], base_offset=0)
    header, body = opened(batch)
    assert thinned(header, body, list(spans(header, body))) == batch


def test_an_emptied_batch_keeps_its_range_its_producer_and_its_age() -> None:
    batch = build_batch(
        [Record(5, T0, b"k", None)],
        base_offset=5,
        last_offset_delta=9,
        codec=Codec.LZ4,
        producer_id=7,
        producer_epoch=1,
        base_sequence=40,
        delete_horizon_ms=T0 + 5,
    )
    empty = emptied(read_header(batch))
    header = read_header(empty)
    assert len(empty) == HEADER_SIZE
    assert header.crc == checksum(empty)
    assert (header.base_offset, header.last_offset, header.count) == (5, 14, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 1, 40, 49)
    assert (header.max_timestamp, header.compression, header.delete_horizon_ms) == (T0, Codec.NONE, None)
    assert list(read_records(empty)) == []
    assert list(spans(*opened(empty))) == []


@given(st.binary(max_size=60), st.integers(0, 5))
def test_bytes_that_are_no_records_are_refused_and_nothing_else_happens(body: bytes, count: int) -> None:
    header = read_header(build_batch([], base_offset=0, last_offset_delta=10))._replace(count=count)
    try:
        found = list(spans(header, body))
    except MalformedMessage:
        return
    assert len(found) == count


@pytest.mark.parametrize("cut", [1, 3, 10])
def test_records_cut_short_or_too_many_are_refused(cut: int) -> None:
    header, body = opened(build_batch([Record(0, T0, b"key", b"value")] * 1, base_offset=0))
    for wrong in (body[:-cut], body + b"\x00" * cut):
        with pytest.raises(MalformedMessage):
            list(spans(header, wrong))

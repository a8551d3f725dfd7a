"""Records: what we build and read, against bytes of Apache Kafka and librdkafka, and against two clients.

`JAVA` was written by `MemoryRecordsBuilder` of Apache Kafka 4.3.1; `LIBRDKAFKA` by confluent-kafka 2.16, and
taken from the log of that broker.
"""

from __future__ import annotations

import contextlib
import struct
import warnings
from typing import Any

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from tests.support.effort import examples

from onceflow.errors import MalformedMessage
from onceflow.wire.batch import HEADER, HEADER_SIZE, NO_TIMESTAMP, BatchHeader, checksum, read_header
from onceflow.wire.compression import Codec, compress
from onceflow.wire.records import EndTxnMarker, Record, build_batch, control_type, read_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in an old way
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

T0 = 1_700_000_000_000

JAVA = {
    Codec.NONE: "00000000000000640000008c000000030287f8d43e0010000000020000018bcfe568000000018bcfe569f4"
    "000000000000000700020000000a000000037a000000046b316a7631207631207631207631207631207631207631207631"
    "207631207631207631207631207631207631207631207631207631207631000e00e807020101002800cf0f040000040a74"
    "726163650400ff04c3a901",
    Codec.GZIP: "00000000000000640000006f0000000302b713279d0011000000020000018bcfe568000000018bcfe569f4"
    "000000000000000700020000000a000000031f8b08000000000000ffab62606060c936cc2a3354201d31f031bc60676264"
    "64d06038cfcf023488aba42831399585e13fcbe1958c003c6a18595b000000",
    Codec.SNAPPY: "00000000000000640000007400000003028d77ceaa0012000000020000018bcfe568000000018bcfe569f4"
    "000000000000000700020000000a0000000382534e415050590000000001000000010000002f5b287a000000046b316a76"
    "3120c6030074000e00e807020101002800cf0f040000040a74726163650400ff04c3a901",
    Codec.LZ4: "00000000000000640000006f0000000302f97c7fec0013000000020000018bcfe568000000018bcfe569f4"
    "000000000000000700020000000a0000000304224d186040822f000000bf7a000000046b316a76312003001ff00f000e00"
    "e807020101002800cf0f040000040a74726163650400ff04c3a90100000000",
    Codec.ZSTD: "00000000000000640000006d00000003027b8012d70014000000020000018bcfe568000000018bcfe569f4"
    "000000000000000700020000000a0000000328b52ffd005884010094027a000000046b316a763120000e00e80702010100"
    "2800cf0f040000040a74726163650400ff04c3a90101001b392f010000",
}
JAVA_RECORDS = [
    Record(100, T0, b"k1", b" ".join([b"v1"] * 18)),
    Record(101, T0 + 500, None, None),
    Record(102, T0 - 1000, b"", b"", (("trace", b"\x00\xff"), ("é", None))),
]
JAVA_APPEND_TIME = (
    "000000000000000500000043ffffffff0278cd16b200080000000100000000000000010000018bcfe58f0fffffffffffffffff"
    "ffffffffffff00000002100000000261026200100002020263026400"
)
JAVA_COMMIT = (
    "00000000000000c80000004200000000026bb3caeb0030000000000000018bcfe56be80000018bcfe56be80000000000000007"
    "0002ffffffff000000012000000008000000010c00000000000500"
)
JAVA_ABORT = (
    "00000000000000c9000000420000000002ab6ab43a0030000000000000018bcfe56be80000018bcfe56be80000000000000007"
    "0002ffffffff000000012000000008000000000c00000000000600"
)
JAVA_EMPTIED = (
    "000000000000012c0000003100000000020c830a85001000000009ffffffffffffffff0000018bcfe568000000000000000007"
    "00020000000a00000000"
)
LIBRDKAFKA = {
    Codec.GZIP: "00000000000000000000006f00000000025fd38b560001000000020000018bcfe568000000018bcfe56802"
    "0000000000000003000000000000000000031f8b08000000000000039bc5c8c0c0c0926d505166a8403662e22a294a4c4e"
    "6561f83f8b9181898925db907ac6b1b0b0641b51c938001b75dba7ed000000",
    Codec.SNAPPY: "000000000000000000000066000000000233fa171d0002000000020000018bcfe568000000018bcfe56802"
    "000000000000000000000000000000000003ed012c9a01000000046b3078763120e2030044020a74726163650400ff9a01"
    "000202046b31fe4f00194f100404046b32fe4f000d4f",
    Codec.LZ4: "00000000000000000000007600000000029b7701860003000000020000018bcfe568000000018bcfe56802"
    "00000000000000010000000000000000000304224d1860408236000000cf9a01000000046b3078763120030026ff03020a"
    "74726163650400ff9a01000202046b314f00375f0404046b324f002f5063650400ff00000000",
    Codec.ZSTD: "00000000000000000000006a00000000027c66b2600004000000020000018bcfe568000000018bcfe56802"
    "00000000000000020000000000000000000328b52ffd005885010034029a01000000046b3078763120020a747261636504"
    "00ff9a01000202046b310404046b32030004a8765240833d1d1d",
}
LIBRDKAFKA_RECORDS = [Record(i, T0 + i, b"k%d" % i, b"v1 " * 20, (("trace", b"\x00\xff"),)) for i in range(3)]


def batch_of(
    body: bytes,
    *,
    count: int = 1,
    last_offset_delta: int = 1000,
    attributes: int = 0,
    base_timestamp: int = T0,
) -> bytes:
    """A batch around any bytes, right in everything but them."""
    fields = BatchHeader(
        base_offset=0,
        length=HEADER_SIZE - 12 + len(body),
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=T0 + 5,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
    )
    return HEADER.pack(*fields) + body


def assert_malformed(batch: bytes, match: str) -> None:
    with pytest.raises(MalformedMessage, match=match) as raised:
        list(read_records(batch))
    assert str(raised.value).endswith(".")


# --- there and back

keys_and_values = st.none() | st.binary(max_size=40) | st.integers(0, 20_000).map(bytes)
timestamps = st.integers(-(2**63), 2**63 - 1) | st.integers(T0 - 10_000, T0 + 10_000)
headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=100)), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn) -> tuple[int, list[Record]]:
    base_offset = draw(st.integers(0, 2**62))
    offsets = sorted(draw(st.sets(st.integers(0, 300) | st.integers(0, 2**31 - 1), max_size=8)))
    return base_offset, [
        Record(base_offset + offset, *draw(st.tuples(timestamps, keys_and_values, keys_and_values, headers)))
        for offset in offsets
    ]


@given(drawn=record_lists(), codec=st.sampled_from(Codec))
def test_what_was_built_reads_the_same(drawn: tuple[int, list[Record]], codec: Codec) -> None:
    base_offset, records = drawn
    batch = build_batch(records, base_offset=base_offset, codec=codec)
    header = read_header(batch)
    assert header.size == len(batch)
    assert header.crc == checksum(batch)
    assert header.count == len(records)
    assert header.last_offset == (records[-1].offset if records else base_offset)
    assert list(read_records(batch)) == records
    assert list(read_records(memoryview(b"." + batch)[1:])) == records


@given(drawn=record_lists(), horizon=st.integers(-(2**63), 2**63 - 1))
def test_any_base_timestamp_gives_the_same_records(drawn: tuple[int, list[Record]], horizon: int) -> None:
    base_offset, records = drawn
    batch = build_batch(records, base_offset=base_offset, delete_horizon_ms=horizon)
    assert read_header(batch).delete_horizon_ms == horizon
    assert list(read_records(batch)) == records


# --- Apache Kafka and librdkafka


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_of_apache_kafka_is_read(codec: Codec) -> None:
    batch = bytes.fromhex(JAVA[codec])
    assert read_header(batch).compression == codec
    assert list(read_records(batch)) == JAVA_RECORDS


def test_a_batch_built_here_is_the_one_of_apache_kafka_byte_for_byte() -> None:
    built = build_batch(
        JAVA_RECORDS,
        base_offset=100,
        producer_id=7,
        producer_epoch=2,
        base_sequence=10,
        transactional=True,
        leader_epoch=3,
    )
    assert built.hex() == JAVA[Codec.NONE]


@pytest.mark.parametrize("codec", LIBRDKAFKA)
def test_a_batch_of_librdkafka_is_read(codec: Codec) -> None:
    batch = bytes.fromhex(LIBRDKAFKA[codec])
    assert read_header(batch).compression == codec
    assert list(read_records(batch)) == LIBRDKAFKA_RECORDS


def test_with_log_append_time_every_record_has_the_time_of_the_batch() -> None:
    records = list(read_records(bytes.fromhex(JAVA_APPEND_TIME)))
    assert [(record.offset, record.timestamp) for record in records] == [(5, T0 + 9999), (6, T0 + 9999)]


def test_an_emptied_batch_built_here_is_the_one_of_apache_kafka() -> None:
    """What compaction leaves of a producer's last batch, so that its sequences are not forgotten."""
    built = build_batch(
        [],
        base_offset=300,
        last_offset_delta=9,
        max_timestamp=T0,
        producer_id=7,
        producer_epoch=2,
        base_sequence=10,
        transactional=True,
        leader_epoch=0,
        codec=Codec.ZSTD,
    )
    assert built.hex() == JAVA_EMPTIED
    assert list(read_records(built)) == []


@pytest.mark.parametrize(
    ("java", "offset", "marker"),
    [(JAVA_COMMIT, 200, EndTxnMarker(True, 5)), (JAVA_ABORT, 201, EndTxnMarker(False, 6))],
)
def test_a_marker_is_read_and_built_as_by_apache_kafka(java: str, offset: int, marker: EndTxnMarker) -> None:
    batch = bytes.fromhex(java)
    (record,) = read_records(batch)
    assert read_header(batch).is_control
    assert EndTxnMarker.read(record) == marker
    built = build_batch(
        [marker.to_record(offset=offset, timestamp=T0 + 1000)],
        base_offset=offset,
        producer_id=7,
        producer_epoch=2,
        transactional=True,
        control=True,
        leader_epoch=0,
    )
    assert built.hex() == java


# --- aiokafka and kafka-python

CLIENTS = {
    "aiokafka": (AiokafkaBuilder, AiokafkaBatch, list(Codec)),
    # For the others it needs libraries that are not installed here.
    "kafka-python": (KafkaPythonBuilder, KafkaPythonBatch, [Codec.NONE, Codec.GZIP]),
}
CLIENTS_AND_CODECS = [(client, codec) for client, (_, _, codecs) in CLIENTS.items() for codec in codecs]

client_records = st.lists(
    st.tuples(
        st.integers(T0 - 10_000, T0 + 10_000),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=40) | st.integers(0, 5000).map(bytes),
        headers,
    ),
    min_size=1,
    max_size=70,
)


@pytest.mark.parametrize(("client", "codec"), CLIENTS_AND_CODECS)
@examples(20, soak=500)
@given(drawn=client_records)
def test_what_a_client_built_is_read(client: str, codec: Codec, drawn: list[Any]) -> None:
    builder_class, _, _ = CLIENTS[client]
    builder = builder_class(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=7,
        producer_epoch=2,
        base_sequence=10,
        batch_size=1_000_000,
    )
    for offset, (timestamp, key, value, its_headers) in enumerate(drawn):
        builder.append(offset, timestamp, key, value, list(its_headers))
    batch = bytes(builder.build())
    assert list(read_records(batch)) == [Record(offset, *fields) for offset, fields in enumerate(drawn)]


@pytest.mark.parametrize(("client", "codec"), CLIENTS_AND_CODECS)
@examples(20, soak=500)
@given(drawn=client_records, gap=st.integers(1, 1000))
def test_a_client_reads_what_we_built(client: str, codec: Codec, drawn: list[Any], gap: int) -> None:
    _, batch_class, _ = CLIENTS[client]
    records = [Record(500 + at * gap, *fields) for at, fields in enumerate(drawn)]
    batch = batch_class(build_batch(records, base_offset=500, codec=codec, last_offset_delta=100_000))
    assert batch.validate_crc()
    read = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert read == records


def test_aiokafka_understands_our_markers() -> None:
    for marker, theirs in ((EndTxnMarker(True, 1), COMMIT_MARKER), (EndTxnMarker(False, 1), ABORT_MARKER)):
        key = marker.to_record(offset=0, timestamp=0).key
        assert key is not None
        assert ControlRecord.parse(key) == theirs


# --- building


def test_compaction_keeps_offsets_and_the_range_of_the_batch() -> None:
    records = [Record(1003, T0, b"a", b"1"), Record(1009, T0 + 7, b"b", None)]
    batch = build_batch(records, base_offset=1000, last_offset_delta=12, base_sequence=40, producer_id=1)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.count) == (1000, 1012, 2)
    assert (header.base_sequence, header.last_sequence) == (40, 52)
    assert list(read_records(batch)) == records


def test_append_time_takes_the_place_of_the_records_timestamps() -> None:
    records = [Record(0, 5, b"k", b"v"), Record(1, 9, b"k", b"v")]
    batch = build_batch(records, base_offset=0, append_time_ms=T0)
    header = read_header(batch)
    assert header.is_append_time
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0)
    assert [record.timestamp for record in read_records(batch)] == [T0, T0]


def test_the_largest_timestamp_is_the_maximum_and_the_first_is_the_base() -> None:
    records = [Record(0, T0, None, b""), Record(1, T0 + 90, None, b""), Record(2, T0 - 90, None, b"")]
    header = read_header(build_batch(records, base_offset=0))
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0 + 90)


def test_an_empty_batch_has_no_times() -> None:
    header = read_header(build_batch([], base_offset=0))
    assert (header.base_timestamp, header.max_timestamp) == (NO_TIMESTAMP, NO_TIMESTAMP)
    assert (header.count, header.last_offset_delta) == (0, 0)


def test_a_header_key_that_is_not_utf_8_survives() -> None:
    body = bytes.fromhex("14 00 00 00 01 01 02 04 ff fe 01".replace(" ", ""))
    (record,) = read_records(batch_of(body))
    assert record.headers == (("\udcff\udcfe", None),)
    assert build_batch([record], base_offset=0)[HEADER_SIZE:] == body


@pytest.mark.parametrize(
    ("records", "settings", "complaint"),
    [
        ([Record(4, 0, None, None)], {}, "Offset 4 does not come after 4"),
        ([Record(6, 0, None, None), Record(6, 0, None, None)], {}, "Offset 6 does not come after 6"),
        ([Record(9, 0, None, None)], {"last_offset_delta": 3}, "last offset delta of 3"),
        ([Record(5 + 2**31, 0, None, None)], {}, "last offset delta of 2147483648"),
        ([Record(5, 2**63, None, None)], {}, "does not fit 64 bits"),
        ([], {"producer_epoch": 2**15}, "out of range"),
        ([], {"base_timestamp": 1, "delete_horizon_ms": 1}, "give one of the two"),
        ([], {"codec": 5}, "not a valid Codec"),
    ],
)
def test_what_does_not_fit_is_the_callers_mistake(
    records: list[Record], settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        build_batch(records, base_offset=5, **settings)


# --- damage

GOOD = bytes.fromhex("0e 00 00 00 02 6b 01 00".replace(" ", ""))  # one record: key "k", value null


def test_the_example_of_the_damage_tests_is_good() -> None:
    assert list(read_records(batch_of(GOOD))) == [Record(0, T0, b"k", None)]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("", "0 bytes cannot hold the 1 records"),
        ("0e 00 00 00 02 6b 01", "A record of 7 bytes where 6 are left"),
        ("ff ff ff ff 0f 00 00 00 02 6b 01 00", "A record of -2147483648 bytes"),
        ("ff ff ff ff ff 00 00 00 02 6b 01 00", "does not end within 32 bits"),
        ("ff ff ff ff 1f 00 00 00 02 6b 01 00", "does not fit 32 bits"),
        ("0e 00 00 01 02 6b 01 00", "Offset delta -1 after -1"),
        ("10 00 00 d2 0f 02 6b 01 00", "Offset delta 1001 after -1, in a batch that ends at 1000"),
        ("0e 00 00 00 03 6b 01 00", "a key of -2 bytes"),
        ("0e 00 00 00 02 6b 03 00", "a value of -2 bytes"),
        ("0e 00 00 00 02 6b 01 01", "A record with -1 headers"),
        ("12 00 00 00 02 6b 01 02 01 01", "header with a key of -1 bytes"),
        ("14 00 00 00 02 6b 01 02 00 03 00", "header with a value of -2 bytes"),
        ("0e 00 00 00 04 6b 01 00", "end in the middle of one"),
        ("0e 00 00 00 80 80 80 80", "end in the middle of one"),
        ("0c 00 00 00 02 6b 01 00", "A record of 6 bytes has fields of 7 bytes"),
        ("10 00 00 00 02 6b 01 00 00", "A record of 8 bytes has fields of 7 bytes"),
        ("0e 00 00 00 02 6b 01 00 00", "1 bytes are left after the 1 records"),
        ("20 00 ff ff ff ff ff ff ff ff ff 03 00 02 6b 01 00", "does not fit 64 bits"),
        ("20 00 ff ff ff ff ff ff ff ff ff ff 00 02 6b 01 00", "does not end within 64 bits"),
    ],
)
def test_a_body_that_is_not_records_is_malformed(body: str, complaint: str) -> None:
    assert_malformed(batch_of(bytes.fromhex(body.replace(" ", ""))), complaint)


def test_a_header_count_of_two_billion_ends_where_the_bytes_end() -> None:
    body = bytes.fromhex("18 00 00 00 01 01 fe ff ff ff 0f 00 00".replace(" ", ""))
    assert_malformed(batch_of(body), "end in the middle")


def test_offsets_that_do_not_rise_are_malformed() -> None:
    assert_malformed(batch_of(GOOD + GOOD, count=2), "Offset delta 0 after 0")


@pytest.mark.parametrize(
    ("count", "complaint"),
    [(4, "end in the middle"), (2, "bytes are left"), (0, "bytes are left"), (-1, "-1 records")],
)
def test_fewer_and_more_records_than_counted_are_malformed(count: int, complaint: str) -> None:
    batch = build_batch([Record(i, T0, b"key", b"value") for i in range(3)], base_offset=0)
    assert_malformed(batch[:57] + struct.pack(">i", count) + batch[61:], complaint)


def test_a_count_that_the_bytes_cannot_hold_is_refused_by_the_call() -> None:
    with pytest.raises(MalformedMessage, match="cannot hold the 2147483647 records"):
        read_records(batch_of(GOOD, count=2**31 - 1))


def test_a_batch_that_is_not_whole_is_refused_by_the_call() -> None:
    batch = batch_of(GOOD)
    for wrong, complaint in (
        (batch[:60], "here are only 60"),
        (batch[:-1], "has 68"),
        (batch + b"x", "has 70"),
        (batch[:16] + b"\x01" + batch[17:], "magic 1"),
        (batch_of(GOOD, attributes=6), "no compression codec 6"),
        (batch_of(b"garbage", attributes=Codec.ZSTD), "zstd data are corrupt"),
    ):
        with pytest.raises(MalformedMessage, match=complaint):
            read_records(wrong)


def test_a_bomb_is_refused_by_the_call() -> None:
    bomb = batch_of(compress(Codec.ZSTD, bytes(10_000_000)), attributes=Codec.ZSTD)
    with pytest.raises(MalformedMessage, match="more than 1000000 bytes"):
        read_records(bomb, max_bytes=1_000_000)


def test_records_before_the_damage_are_still_given() -> None:
    records = read_records(batch_of(GOOD + b"\xff", count=1))
    assert next(records).key == b"k"
    with pytest.raises(MalformedMessage):
        next(records)


@pytest.mark.parametrize("java", [*JAVA.values(), JAVA_COMMIT])
@examples(150, soak=5_000)
@given(changes=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_malformed_or_other_records(java: str, changes: list[tuple[int, int]]) -> None:
    batch = bytearray.fromhex(java)
    for at, byte in changes:
        batch[at % len(batch)] = byte
    with contextlib.suppress(MalformedMessage):
        for record in read_records(batch, max_bytes=100_000):
            EndTxnMarker.read(record)


@examples(150, soak=5_000)
@given(body=st.binary(max_size=60), count=st.integers(0, 5), base_timestamp=timestamps)
def test_garbage_is_malformed_or_can_be_built_again(body: bytes, count: int, base_timestamp: int) -> None:
    batch = batch_of(body, count=count, last_offset_delta=2**31 - 1, base_timestamp=base_timestamp)
    with contextlib.suppress(MalformedMessage):
        records = list(read_records(batch))
        assert list(read_records(build_batch(records, base_offset=0))) == records


# --- control records


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (None, b"\0\0\0\0\0\0", "no version and type"),
        (b"\0\0\0", b"\0\0\0\0\0\0", "no version and type"),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\0", "key of version -1"),
        (b"\0\0\0\2", b"\0\0\0\0\0\0", "type 2: no marker"),
        (b"\0\0\0\1", None, "no coordinator epoch"),
        (b"\0\0\0\1", b"\0\0\0\0\0", "no coordinator epoch"),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\0", "has version -1"),
    ],
)
def test_a_marker_that_is_none_is_malformed(key: bytes | None, value: bytes | None, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        EndTxnMarker.read(Record(3, T0, key, value))


def test_a_marker_of_a_later_version_with_more_fields_is_read() -> None:
    assert EndTxnMarker.read(Record(3, T0, b"\0\1\0\1", b"\0\1\0\0\0\7more")) == EndTxnMarker(True, 7)


def test_the_type_of_a_controllers_record_is_known_without_reading_it() -> None:
    assert control_type(Record(3, T0, b"\0\0\0\2", b"whatever")) == 2

"""Produce, as exactly as Apache Kafka answers it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from uuid import uuid4

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.batch import NO_TIMESTAMP
from onceflow.wire.compression import Codec
from onceflow.wire.messages.api_versions import ApiVersionsRequest
from onceflow.wire.messages.produce import PartitionProduceResponse
from onceflow.wire.records import Record, build_batch
from tests.support.raw import ConnectionClosed, Wire, batch, now_ms, produce_request, rewrite
from tests.support.waiting import eventually

HOUR_MS = 3_600_000
CONTROL, APPEND_TIME, UNUSED = 0x20, 0x08, 0x80

few_are_counted = pytest.mark.onceflow_differs(
    "The records of a batch are counted if they are eight or less and not compressed: all of them take too long"
)
is_the_clients_mistake = pytest.mark.onceflow_differs(
    "What is not compressed as the batch says is the client's mistake: 87, where Kafka fails with -1"
)


def old_message(magic: int) -> bytes:
    """A message of the formats before record batches."""
    timestamp = struct.pack(">q", now_ms()) if magic else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">i", -1) + struct.pack(">i", 5) + b"value"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def damaged(whole: bytes) -> bytes:
    return whole[:-1] + bytes([whole[-1] ^ 1])


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_stores_the_batch(wire: Wire, topic: str, version: int) -> None:
    assert wire.produce(topic, batch("a", "b"), version=version).base_offset == 0
    answer = wire.produce(topic, batch("c"), version=version)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (ErrorCode.NONE, 2, -1)
    assert [record.value for record in wire.records(topic)] == [b"a", b"b", b"c"]


def test_version_13_names_the_topic_by_id(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    topic_id = wire.create_topic(topic)
    [answer] = wire.ask(produce_request(topic_id, batch("a")), version=13).responses
    assert answer.topic_id == topic_id
    assert answer.partition_responses[0].error_code == ErrorCode.NONE
    assert wire.end(topic) == 1


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (damaged(batch("a")), ErrorCode.CORRUPT_MESSAGE),
        (rewrite(batch("a"), magic=3), ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.INVALID_RECORD),
        (batch("a") + batch("b"), ErrorCode.INVALID_RECORD),
        (batch("a")[:-3], ErrorCode.INVALID_RECORD),
        (batch("a")[:30], ErrorCode.INVALID_RECORD),
        (old_message(magic=0), ErrorCode.INVALID_RECORD),
        (old_message(magic=1), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a", "b"), count=3), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a", "b"), count=1), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a", "b"), last_offset_delta=5), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a", "b"), last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a"), last_offset_delta=-1, count=0), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a", "b"), base_offset=55), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a"), attributes=CONTROL), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a", "b"), last_offset_delta=2, count=3), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a" * 100, "b"), last_offset_delta=2, count=3), ErrorCode.INVALID_RECORD),
        (rewrite(batch("a", "b"), last_offset_delta=0, count=1), ErrorCode.INVALID_RECORD),
        pytest.param(
            rewrite(batch(*["a" * 100] * 20), last_offset_delta=20, count=21),
            ErrorCode.INVALID_RECORD,
            marks=few_are_counted,
        ),
        pytest.param(
            rewrite(batch("a" * 100, "b", compression=Codec.GZIP), last_offset_delta=2, count=3),
            ErrorCode.INVALID_RECORD,
            marks=few_are_counted,
        ),
        pytest.param(
            rewrite(batch("a"), attributes=Codec.GZIP), ErrorCode.UNKNOWN_SERVER_ERROR, marks=is_the_clients_mistake
        ),
    ],
    ids=[
        "checksum",
        "magic-3",
        "no-batch",
        "two-batches",
        "cut-body",
        "cut-header",
        "magic-0",
        "magic-1",
        "count-too-high",
        "count-too-low",
        "last-offset-too-high",
        "last-offset-negative",
        "no-records",
        "base-offset",
        "control-batch",
        "fewer-records-inside",
        "fewer-records-inside-that-are-long",
        "more-records-inside",
        "fewer-of-many-records-inside",
        "fewer-records-inside-gzip",
        "no-gzip-inside",
    ],
)
def test_a_bad_batch_is_refused_and_nothing_is_stored(wire: Wire, topic: str, records: bytes, code: ErrorCode) -> None:
    answer = wire.produce(topic, records)
    assert (answer.error_code, answer.base_offset, answer.record_errors) == (code, -1, [])
    assert wire.end(topic) == 0


@pytest.mark.onceflow_differs("An unknown codec is the client's mistake: 87, where Kafka fails with -1")
def test_an_unknown_codec_is_an_error_of_the_server(wire: Wire, topic: str) -> None:
    answer = wire.produce(topic, rewrite(batch("a"), attributes=5))
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("attribute", [APPEND_TIME, UNUSED], ids=["append-time", "unused"])
def test_attributes_that_are_the_brokers_are_not_the_clients_to_set(wire: Wire, topic: str, attribute: int) -> None:
    assert wire.produce(topic, rewrite(batch("a"), attributes=attribute)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("acks", [2, -2])
def test_acks_are_all_one_or_none(wire: Wire, topic: str, acks: int) -> None:
    answer = wire.produce(topic, batch("a"), acks=acks)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert wire.end(topic) == 0


def test_without_acks_there_is_no_answer(wire: Wire, topic: str) -> None:
    wire.send(produce_request(topic, batch("a"), acks=0), version=12)
    # The next answer on the connection is the one to the next request.
    assert wire.ask(ApiVersionsRequest(), version=0).error_code == ErrorCode.NONE
    eventually(lambda: wire.end(topic) == 1, "the record is there")


@pytest.mark.parametrize("records", [damaged(batch("a")), b""], ids=["checksum", "no-batch"])
def test_without_acks_an_error_closes_the_connection(wire: Wire, topic: str, records: bytes) -> None:
    wire.send(produce_request(topic, records, acks=0), version=12)
    with pytest.raises(ConnectionClosed):
        wire.read_frame()


def test_an_unknown_topic_is_not_created(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    assert wire.produce(name, batch("a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.metadata(name=name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_partition_is_refused(wire: Wire, topic: str) -> None:
    answer = wire.produce(topic, batch("a"), partition=9)
    assert (answer.index, answer.error_code) == (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_an_unknown_topic_id_is_refused(wire: Wire) -> None:
    [answer] = wire.ask(produce_request(uuid4(), batch("a")), version=13).responses
    assert answer.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_one_bad_partition_does_not_spoil_the_others(wire: Wire, topic: str) -> None:
    request = produce_request(topic, batch("a"))
    request.topic_data[0].partition_data += produce_request(topic, batch("b"), partition=9).topic_data[0].partition_data
    [answer] = wire.ask(request, version=12).responses
    codes = {each.index: each.error_code for each in answer.partition_responses}
    assert codes == {0: ErrorCode.NONE, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_batch_larger_than_the_topic_allows_is_refused(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    fitting, large = batch("x" * 100), batch("x" * 101)
    wire.create_topic(topic, max_message_bytes=str(len(fitting)))
    assert wire.produce(topic, large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert wire.produce(topic, fitting).error_code == ErrorCode.NONE


# --- timestamps


def test_a_timestamp_too_far_in_the_future_is_refused(wire: Wire, topic: str) -> None:
    answer = wire.produce(topic, batch("a", "b", timestamps=[now_ms(), now_ms() + 2 * HOUR_MS]))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
    assert wire.end(topic) == 0


def test_a_timestamp_too_far_in_the_past_is_refused(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    wire.create_topic(topic, message_timestamp_before_max_ms="1000")
    assert wire.produce(topic, batch("a", timestamps=[now_ms() - HOUR_MS])).error_code == ErrorCode.INVALID_TIMESTAMP
    assert wire.produce(topic, batch("a")).error_code == ErrorCode.NONE


@pytest.mark.parametrize("timestamp", [NO_TIMESTAMP, 0, 1])
def test_an_old_timestamp_or_none_is_stored(wire: Wire, topic: str, timestamp: int) -> None:
    assert wire.produce(topic, batch("a", timestamps=[timestamp])).error_code == ErrorCode.NONE
    assert wire.records(topic)[0].timestamp == timestamp


def test_log_append_time_is_stamped_on_the_batch_and_told(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    wire.create_topic(topic, message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = wire.produce(topic, batch("a", "b", timestamps=[1, now_ms() + 9 * HOUR_MS]))
    assert answer.error_code == ErrorCode.NONE
    assert before <= answer.log_append_time_ms <= now_ms()
    [header] = wire.headers(topic)
    assert header.is_append_time
    assert header.max_timestamp == answer.log_append_time_ms
    assert [record.timestamp for record in wire.records(topic)] == [answer.log_append_time_ms] * 2


# --- what the topic's settings do to a batch


@pytest.mark.parametrize(
    ("setting", "sent", "stored"),
    [
        ("producer", Codec.SNAPPY, Codec.SNAPPY),
        ("gzip", Codec.NONE, Codec.GZIP),
        ("zstd", Codec.GZIP, Codec.ZSTD),
        ("uncompressed", Codec.LZ4, Codec.NONE),
    ],
)
def test_a_topic_may_insist_on_its_codec(
    wire: Wire, new_name: Callable[[], str], setting: str, sent: Codec, stored: Codec
) -> None:
    topic = new_name()
    wire.create_topic(topic, compression_type=setting)
    assert wire.produce(topic, batch("a", "b", compression=sent)).error_code == ErrorCode.NONE
    [header] = wire.headers(topic)
    assert header.compression == stored
    assert [record.value for record in wire.records(topic)] == [b"a", b"b"]


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.GZIP])
def test_a_compacted_topic_wants_keys(wire: Wire, new_name: Callable[[], str], compression: Codec) -> None:
    topic = new_name()
    wire.create_topic(topic, cleanup_policy="compact")
    assert wire.produce(topic, batch("a", compression=compression)).error_code == ErrorCode.INVALID_RECORD
    assert wire.end(topic) == 0
    assert wire.produce(topic, batch("a", key=b"k", compression=compression)).error_code == ErrorCode.NONE


# --- which records it was (KIP-467)


def named(answer: PartitionProduceResponse) -> list[int]:
    assert answer.error_message
    assert all(each.batch_index_error_message for each in answer.record_errors)
    return [each.batch_index for each in answer.record_errors]


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.GZIP])
def test_every_record_with_a_timestamp_out_of_range_is_named(
    wire: Wire, new_name: Callable[[], str], compression: Codec
) -> None:
    topic = new_name()
    wire.create_topic(topic, message_timestamp_before_max_ms=str(HOUR_MS))
    now = now_ms()
    times = [now, now + 9 * HOUR_MS, now - 9 * HOUR_MS, now, NO_TIMESTAMP, now + 9 * HOUR_MS]
    answer = wire.produce(topic, batch(*"abcdef", timestamps=times, compression=compression))
    assert (answer.error_code, named(answer)) == (ErrorCode.INVALID_TIMESTAMP, [1, 2, 5])
    assert wire.end(topic) == 0


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.GZIP])
def test_a_record_in_the_future_is_named_by_a_topic_with_default_settings(
    wire: Wire, topic: str, compression: Codec
) -> None:
    now = now_ms()
    records = batch(*"abc", timestamps=[now - 9 * HOUR_MS, now + 9 * HOUR_MS, now], compression=compression)
    answer = wire.produce(topic, records)
    assert (answer.error_code, named(answer)) == (ErrorCode.INVALID_TIMESTAMP, [1])
    assert wire.end(topic) == 0


def test_a_batch_whose_header_tells_of_a_timestamp_that_no_record_has_is_corrected(wire: Wire, topic: str) -> None:
    now = now_ms()
    lie = rewrite(batch("a", "b", timestamps=[now, now + 5]), max_timestamp=now + 9 * HOUR_MS)
    assert wire.produce(topic, lie).error_code == ErrorCode.NONE
    [header] = wire.headers(topic)
    assert header.max_timestamp == now + 5
    assert wire.list_offset(topic, now + 6).offset == -1


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.GZIP])
def test_every_record_without_key_is_named_by_a_compacted_topic(
    wire: Wire, new_name: Callable[[], str], compression: Codec
) -> None:
    topic = new_name()
    wire.create_topic(topic, cleanup_policy="compact")
    now = now_ms()
    keys = [b"k", None, b"", None, None]
    records = [Record(at, now, key, b"value") for at, key in enumerate(keys)]
    answer = wire.produce(topic, build_batch(records, base_offset=0, codec=compression))
    assert (answer.error_code, named(answer)) == (ErrorCode.INVALID_RECORD, [1, 3, 4])
    records[0] = Record(0, now + 9 * HOUR_MS, b"k", b"value")
    answer = wire.produce(topic, build_batch(records, base_offset=0, codec=compression))
    assert (answer.error_code, named(answer)) == (ErrorCode.INVALID_TIMESTAMP, [0, 1, 3, 4])
    assert wire.end(topic) == 0


def test_every_record_is_named_if_the_client_sets_the_brokers_timestamp(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    wire.create_topic(topic, message_timestamp_type="LogAppendTime")
    answer = wire.produce(topic, rewrite(batch("a", "b"), attributes=APPEND_TIME))
    assert (answer.error_code, named(answer)) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])
    assert wire.end(topic) == 0

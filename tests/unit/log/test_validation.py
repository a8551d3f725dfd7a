"""What may enter the log: every refusal with its code, and what the broker makes of what it takes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.config import TopicConfig
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    checksum,
    read_header,
    stamp_append_time,
)
from onceflow.wire.compression import Codec
from onceflow.wire.records import Record, build_batch, read_records
from tests.support.at_once import accept, at_once
from tests.support.effort import examples
from tests.unit.log.support import T0, make_batch, open_log, read_all

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
FIELDS = {  # position and format of header fields that are changed here
    "base_offset": (0, ">q"),
    "length": (8, ">i"),
    "magic": (16, ">b"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "max_timestamp": (35, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "count": (57, ">i"),
}


def changed(batch: bytearray, *, seal: bool = True, **values: int) -> bytearray:
    """A batch with other values in its header, and with its checksum right again."""
    batch = bytearray(batch)
    for name, value in values.items():
        at, code = FIELDS[name]
        struct.pack_into(code, batch, at, value)
    if seal:
        struct.pack_into(">I", batch, 17, checksum(batch))
    return batch


def refusal(batch: bytes | bytearray, config: TopicConfig | None = None, **rest: Any) -> ErrorCode:
    """The code with which a batch is refused; it is as it was."""
    batch = bytearray(batch)
    before = bytes(batch)
    with pytest.raises(ProtocolError) as refused:
        accept(memoryview(batch), config or TopicConfig(), T0, **rest)
    assert bytes(batch) == before
    assert refused.value.message
    return refused.value.code


def accepted(batch: bytearray, config: TopicConfig | None = None, **rest: Any) -> bytes:
    """The batch as it goes into the log; its header and checksum are right."""
    taken, header = accept(memoryview(batch), config or TopicConfig(), T0, **rest)
    assert header == read_header(taken)
    assert header.crc == checksum(taken)
    assert header.size == len(taken)
    return bytes(taken)


def recompressed(codec: str, **rest: Any) -> TopicConfig:
    return TopicConfig(compression_type=codec, **rest)


# The common case


def test_a_sound_batch_goes_in_as_it_is() -> None:
    batch = make_batch(3, producer=(1, 0, 0))
    taken, _ = accept(memoryview(batch), TopicConfig(), T0)
    assert taken.obj is batch, "not even a copy is made"


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_taken_as_it_is(codec: Codec) -> None:
    batch = make_batch(3, codec=codec)
    assert accepted(batch) == bytes(batch)


@pytest.mark.parametrize("codec", Codec)
def test_the_common_case_looks_at_the_first_records_only(codec: Codec) -> None:
    """What they cost does not depend on how many there are, or on what they unpack to."""
    batch = make_batch(1000, codec=codec)
    batch[HEADER_SIZE + 200 :] = b"\xff" * (len(batch) - HEADER_SIZE - 200)
    batch = changed(batch)
    assert accepted(batch) == bytes(batch)


# Refusals


@pytest.mark.parametrize("size", [0, 1, 16, 17, 60])
def test_what_is_too_short_for_a_batch(size: int) -> None:
    assert refusal(make_batch()[:size]) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("magic", "code"), [(0, 87), (1, 87), (3, 2), (-1, 2)])
def test_another_magic(magic: int, code: int) -> None:
    assert refusal(changed(make_batch(), magic=magic)) == code


def test_a_batch_that_is_cut_short() -> None:
    assert refusal(make_batch()[:-1]) == ErrorCode.INVALID_RECORD


def test_two_batches() -> None:
    assert refusal(make_batch() + make_batch()) == ErrorCode.INVALID_RECORD


def test_bytes_after_the_batch() -> None:
    assert refusal(make_batch() + b"x") == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_that_no_batch_can_have(length: int) -> None:
    assert refusal(changed(make_batch(), length=length)) == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_larger_than_the_topic_allows() -> None:
    batch = make_batch(3)
    assert refusal(batch, TopicConfig(max_message_bytes=len(batch) - 1)) == ErrorCode.MESSAGE_TOO_LARGE
    assert accepted(batch, TopicConfig(max_message_bytes=len(batch)))


@pytest.mark.parametrize("at", [17, 21, 30, 57, HEADER_SIZE, -1])
def test_a_flipped_bit(at: int) -> None:
    batch = make_batch(3)
    batch[at] ^= 1
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


def test_offsets_that_do_not_begin_at_0() -> None:
    assert refusal(changed(make_batch(), base_offset=5)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("count", "delta"), [(0, 0), (0, -1), (-1, 0), (2, 0), (1, 1), (3, -3), (2**31 - 1, 0)])
def test_a_count_that_does_not_fit_the_offsets(count: int, delta: int) -> None:
    assert refusal(changed(make_batch(), count=count, last_offset_delta=delta)) == ErrorCode.INVALID_RECORD


def test_a_control_batch() -> None:
    assert refusal(changed(make_batch(), attributes=CONTROL_BIT)) == ErrorCode.INVALID_RECORD
    both = CONTROL_BIT | TRANSACTIONAL_BIT
    assert refusal(changed(make_batch(producer=(1, 0, 0)), attributes=both)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist(codec: int) -> None:
    assert refusal(changed(make_batch(), attributes=codec)) == ErrorCode.INVALID_RECORD


def test_zstd_in_a_request_that_is_too_old_for_it() -> None:
    batch = make_batch(codec=Codec.ZSTD)
    assert refusal(batch, zstd_allowed=False) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert accepted(make_batch(codec=Codec.LZ4), zstd_allowed=False)


@pytest.mark.parametrize("values", [{"base_sequence": -1}, {"base_sequence": -5}, {"producer_epoch": -1}])
def test_a_producer_without_epoch_or_sequence(values: dict[str, int]) -> None:
    assert refusal(changed(make_batch(producer=(1, 0, 0)), **values)) == ErrorCode.INVALID_RECORD


def test_a_record_without_key_in_a_compacted_topic() -> None:
    compacted = TopicConfig(compact=True, delete=False)
    assert refusal(make_batch(3, key=None), compacted) == ErrorCode.INVALID_RECORD
    assert refusal(make_batch(3, key=None, codec=Codec.GZIP), compacted) == ErrorCode.INVALID_RECORD
    batch = make_batch(3, key=b"")
    assert accepted(batch, compacted) == bytes(batch)


@pytest.mark.parametrize(
    "config", [TopicConfig(compact=True), TopicConfig(timestamp_before_max_ms=5), recompressed("gzip")]
)
@pytest.mark.parametrize("codec", Codec)
def test_records_that_cannot_be_read_where_they_have_to_be(config: TopicConfig, codec: Codec) -> None:
    batch = make_batch(3, codec=codec)
    if codec == CODECS.get(config.compression_type):
        return  # they stay as they are
    batch[HEADER_SIZE:] = b"\xfe" * (len(batch) - HEADER_SIZE)
    assert refusal(changed(batch), config) == ErrorCode.INVALID_RECORD


def test_the_order_of_the_checks_is_kafkas() -> None:
    """What is wrong in several ways is refused for the first of them."""
    too_large = TopicConfig(max_message_bytes=10)
    wrong = changed(make_batch(producer=(1, 0, -7)), seal=False, count=9, attributes=CONTROL_BIT)
    assert refusal(wrong, too_large) == ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(wrong) == ErrorCode.CORRUPT_MESSAGE
    assert refusal(changed(wrong)) == ErrorCode.INVALID_RECORD


# Timestamps


def test_a_timestamp_in_the_future_is_taken_up_to_the_limit() -> None:
    config = TopicConfig(timestamp_after_max_ms=1000)
    assert accepted(make_batch(2, timestamps=[T0, T0 + 1000]), config)
    assert refusal(make_batch(2, timestamps=[T0, T0 + 1001]), config) == ErrorCode.INVALID_TIMESTAMP


def test_a_timestamp_in_the_past_is_taken_up_to_the_limit() -> None:
    config = TopicConfig(timestamp_before_max_ms=1000)
    assert accepted(make_batch(2, timestamps=[T0, T0 - 1000]), config)
    for codec in (Codec.NONE, Codec.ZSTD):
        late = make_batch(2, timestamps=[T0, T0 - 1001], codec=codec)
        assert refusal(late, config) == ErrorCode.INVALID_TIMESTAMP
    assert accepted(make_batch(timestamps=[0])), "by default there is no limit"


def test_a_record_without_timestamp_is_not_old() -> None:
    batch = make_batch(2, timestamps=[-1, -1])
    assert accepted(batch, TopicConfig(timestamp_before_max_ms=1000)) == bytes(batch)


def test_with_log_append_time_the_producers_clock_does_not_matter() -> None:
    config = TopicConfig(append_time=True, timestamp_before_max_ms=1000, timestamp_after_max_ms=1000)
    assert accepted(make_batch(2, timestamps=[T0 - 10**9, T0 + 10**9]), config)


def test_only_the_broker_sets_log_append_time() -> None:
    """As Kafka's `LogValidator.validateTimestamp`: refused where the topic stamps itself, or there is no timestamp."""
    stamped = changed(make_batch(), attributes=TIMESTAMP_TYPE_BIT)
    assert refusal(stamped, TopicConfig(append_time=True)) == ErrorCode.INVALID_TIMESTAMP
    assert accepted(stamped) == bytes(stamped)
    without = changed(make_batch(timestamps=[-1]), attributes=TIMESTAMP_TYPE_BIT)
    assert refusal(without) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time_is_stamped_on_the_whole_batch(codec: Codec) -> None:
    log = open_log(config=TopicConfig(append_time=True), fsync=False)
    batch = make_batch(3, timestamps=[5, 6, 7], codec=codec, producer=(1, 0, 0))
    taken, header = accept(memoryview(batch), log.config, T0)
    appended = log.append(taken, header)
    assert appended.append_time_ms == T0
    [(stored, data)] = read_all(log)
    assert (stored.is_append_time, stored.max_timestamp, stored.compression) == (True, T0, codec)
    assert stored.crc == checksum(data)
    assert [record.timestamp for record in read_records(data)] == [T0] * 3
    assert at_once(log.first_offset_at(T0)) == (T0, 0)
    assert at_once(log.first_offset_at(T0 + 1)) == (-1, -1)


def test_a_repeat_is_told_the_stamp_of_the_first_time() -> None:
    log = open_log(config=TopicConfig(append_time=True), fsync=False)
    for now, repeated in ((T0, False), (T0 + 500, True)):
        taken, header = accept(memoryview(make_batch(3, producer=(1, 0, 0))), log.config, now)
        assert log.append(taken, header, now) == (0, T0, repeated)


@examples(20, soak=5_000)
@given(st.integers(0, 2**62), st.sampled_from(list(Codec)), st.integers(1, 4))
def test_a_stamp_changes_time_type_and_checksum_and_nothing_else(now_ms: int, codec: Codec, count: int) -> None:
    batch = make_batch(count, codec=codec, producer=(1, 2, 3))
    before = bytes(batch)
    stamp_append_time(batch, now_ms)
    header, old = read_header(batch), read_header(before)
    assert header.crc == checksum(batch)
    expected = old._replace(attributes=old.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=now_ms, crc=header.crc)
    assert header == expected
    assert batch[HEADER_SIZE:] == before[HEADER_SIZE:]


# Compression


RECORDS = [
    Record(0, T0, b"k", b"v" * 100),
    Record(1, T0 - 7, None, None),
    Record(2, T0 + 9, b"", b"", (("h", b"1"), ("h", None))),
]


@pytest.mark.parametrize("target", CODECS)
@pytest.mark.parametrize("source", Codec)
def test_a_batch_is_compressed_as_the_topic_wants(source: Codec, target: str) -> None:
    batch = bytearray(
        build_batch(RECORDS, base_offset=0, codec=source, producer_id=9, producer_epoch=2, base_sequence=40)
    )
    before = bytes(batch)
    stored = accepted(batch, recompressed(target))
    assert bytes(batch) == before, "the bytes that came in are still those of the client"
    header, old = read_header(stored), read_header(before)
    assert header.compression == CODECS[target]
    assert list(read_records(stored)) == RECORDS
    kept = ("count", "last_offset_delta", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch")
    assert [getattr(header, name) for name in kept] == [getattr(old, name) for name in kept]
    assert header.base_sequence == 40
    assert (stored == before) == (CODECS[target] == source)


def test_a_transactional_batch_stays_one() -> None:
    batch = make_batch(2, producer=(1, 0, 0), transactional=True)
    assert read_header(accepted(batch, recompressed("zstd"))).is_transactional


@pytest.mark.parametrize(
    ("codec", "setting", "fast", "slow"),
    [
        ("gzip", "compression_gzip_level", 1, 9),
        ("lz4", "compression_lz4_level", 9, 17),  # 9 is Kafka's name for its fast compressor
        ("zstd", "compression_zstd_level", -5, 19),
    ],
)
def test_the_level_of_the_topic_is_used(codec: str, setting: str, fast: int, slow: int) -> None:
    text = b" ".join(b"%d" % (number * number) for number in range(3000))
    sizes = [len(accepted(make_batch(value=text), recompressed(codec, **{setting: level}))) for level in (fast, slow)]
    assert sizes[1] < sizes[0] < len(text)


def test_what_is_larger_unpacked_than_the_topic_allows_is_refused() -> None:
    """As in Kafka: the limit holds for what was sent and for what would be stored."""
    batch = make_batch(value=bytes(10_000), codec=Codec.GZIP)
    assert refusal(batch, recompressed("uncompressed", max_message_bytes=5_000)) == ErrorCode.MESSAGE_TOO_LARGE
    assert accepted(batch, TopicConfig(max_message_bytes=5_000))


def test_a_bomb_is_refused() -> None:
    one = build_batch([Record(0, T0, None, bytes(65 * 1024 * 1024))], base_offset=0, codec=Codec.GZIP)
    assert len(one) < 100_000
    assert refusal(one, recompressed("uncompressed")) == ErrorCode.MESSAGE_TOO_LARGE


def test_what_was_recompressed_can_be_appended() -> None:
    log = open_log(config=recompressed("zstd", append_time=True), fsync=False)
    batch = bytearray(build_batch(RECORDS, base_offset=0, codec=Codec.GZIP))
    log.append(*accept(memoryview(batch), log.config, T0))
    log.append(*accept(memoryview(batch), log.config, T0))
    stored = [list(read_records(data)) for _, data in read_all(log)]
    assert [[record.offset for record in records] for records in stored] == [[0, 1, 2], [3, 4, 5]]
    assert {record.timestamp for records in stored for record in records} == {T0}

"""What a batch must be before it may enter the log, and what the broker makes of it.

The order of the checks, and the codes, are those of Kafka's `ProduceRequest` and `LogValidator`. The common case
reads the 61-byte header, and of what is inside no more than costs nothing. Kafka looks at every record of every batch.
Here that would take as long again as all the rest, against who can only harm the readers of its own topic. So a batch
of few records is looked at, which finds the client that counts or writes them wrongly; of a larger one it is seen that
the records have room in it, and that compressed ones begin as they should. A batch is opened only where a topic asks
for something that stands inside, or where a record has to be named that is refused:

    message.timestamp.before.max.ms set     the oldest timestamp of the records
    cleanup.policy=compact                  that every record has a key
    compression.type other than producer    the records, to compress them anew
    a timestamp too far in the future       which records have it

`examine` is what is done with every batch. `unpack` and `opened` may take long: a few kilobytes can hold 64 MB of
records. They depend on nothing but what they are given, so that may be done in a thread. No record becomes an object.
"""

from __future__ import annotations

from typing import Final

from onceflow.config import LONG_MAX, TopicConfig
from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError, UnpacksToTooMuch
from onceflow.wire.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    checksum,
    read_header,
    set_max_timestamp,
)
from onceflow.wire.compression import DEFAULT_LEVELS, Codec, begins_as
from onceflow.wire.records import RECORD_SIZE_MIN
from onceflow.wire.thinning import recompressed, spans, unpacked

__all__ = ["RECORD_ERRORS_MAX", "examine", "is_quickly_packed", "is_to_be_opened", "opened", "unpack"]

MAGIC_AT = 16
ONE_BATCH = "A produce request holds exactly one record batch per partition, whole."

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_ZSTD = 4
WALKED_MAX: Final = 8
"""Records of a batch that is looked at although the topic does not ask for it. Each is a percent of all the work for a
small batch."""
RECORD_ERRORS_MAX: Final = 10_000
"""Records of a batch that are named in its refusal."""


def examine(
    batch: memoryview, config: TopicConfig, now_ms: int, *, zstd_allowed: bool = True
) -> tuple[BatchHeader, bool]:
    """The header, and whether the batch must also be `opened`; or `ProtocolError`."""
    size = len(batch)
    if size <= MAGIC_AT:
        raise ProtocolError(ErrorCode.INVALID_RECORD, ONE_BATCH)
    magic = batch[MAGIC_AT]
    if magic != MAGIC:
        code = ErrorCode.INVALID_RECORD if magic < MAGIC else ErrorCode.CORRUPT_MESSAGE
        raise ProtocolError(code, f"Only record batches of magic 2 are taken; this one has magic {magic}.")
    if size < HEADER_SIZE:
        raise ProtocolError(ErrorCode.INVALID_RECORD, ONE_BATCH)
    header = read_header(batch)
    if header.length + OVERHEAD != size:
        if header.length < HEADER_SIZE - OVERHEAD:
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"A record batch cannot have length {header.length}.")
        raise ProtocolError(ErrorCode.INVALID_RECORD, ONE_BATCH)
    if size > config.max_message_bytes:
        raise _too_large(size, config)
    if checksum(batch) != header.crc:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "The record batch fails its checksum.")
    attributes = header.attributes
    count = header.count
    compression = attributes & COMPRESSION_MASK
    _check_header(header, attributes, compression, zstd_allowed)
    # What can be known of the records at no cost, see above.
    if compression:
        if not begins_as(compression, batch, HEADER_SIZE):
            raise _not_packed_so(compression)
    elif count * RECORD_SIZE_MIN > size - HEADER_SIZE:
        raise _no_records(f"{size - HEADER_SIZE} bytes cannot hold the {count} records of the batch.")
    elif count <= WALKED_MAX:
        _walk(batch, size, count)
    if attributes & TIMESTAMP_TYPE_BIT:
        _check_time_type(header, config)
    return header, is_to_be_opened(header, config, now_ms)


def _too_large(size: int, config: TopicConfig) -> ProtocolError:
    return ProtocolError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch size of {size} bytes is more than max.message.bytes {config.max_message_bytes}.",
    )


def _check_header(header: BatchHeader, attributes: int, compression: int, zstd_allowed: bool) -> None:
    if header.base_offset != 0:
        raise ProtocolError(
            ErrorCode.INVALID_RECORD, f"Offsets of a batch to be stored begin at 0, not at {header.base_offset}."
        )
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise ProtocolError(
            ErrorCode.INVALID_RECORD,
            f"The record batch has {header.count} records but its last offset delta is {header.last_offset_delta}.",
        )
    if attributes & CONTROL_BIT:
        raise ProtocolError(ErrorCode.INVALID_RECORD, "Clients are not allowed to write control records.")
    if compression > _ZSTD:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"Unknown compression {compression}.")
    if compression == _ZSTD and not zstd_allowed:
        raise ProtocolError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 or newer.")
    if header.producer_id != NO_PRODUCER_ID and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise ProtocolError(
            ErrorCode.INVALID_RECORD,
            f"Producer {header.producer_id} sent epoch {header.producer_epoch} and sequence {header.base_sequence}.",
        )


def _not_packed_so(compression: int) -> ProtocolError:
    return _no_records(f"The records are no {Codec(compression).name.lower()} data, though the batch says so.")


def _walk(batch: memoryview, size: int, count: int) -> None:
    """From the length of each record to the next one, which must lead to the end."""
    at = HEADER_SIZE
    try:
        while count:
            count -= 1
            byte = batch[at]
            if byte < 0x80:
                length = byte
                at += 1
            else:
                length, shift = byte & 0x7F, 7
                while byte >= 0x80:
                    at += 1
                    byte = batch[at]
                    length |= (byte & 0x7F) << shift
                    shift += 7
                at += 1
            if length & 1:
                raise _no_records("A record of negative length.")
            at += length >> 1
    except IndexError:
        at = size + 1
    if at != size:
        raise _no_records("The records of the batch are not as many as it says, or not as long as they say.")


def _no_records(why: object) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_RECORD, f"{why} Nothing was written.")


def _check_time_type(header: BatchHeader, config: TopicConfig) -> None:
    """As Kafka, only where the topic sets it itself, or no record has a timestamp."""
    if config.append_time or header.max_timestamp == NO_TIMESTAMP:
        why = "Only the broker sets the timestamp type LogAppendTime."
        named = tuple((at, why) for at in range(min(header.count, RECORD_ERRORS_MAX)))
        raise ProtocolError(ErrorCode.INVALID_TIMESTAMP, f"{why} Nothing was written.", named)


def is_to_be_opened(header: BatchHeader, config: TopicConfig, now_ms: int) -> bool:
    """Whether it has to be known what is inside."""
    if config.compact:
        return True
    if not config.append_time and (
        header.max_timestamp - now_ms > config.timestamp_after_max_ms or config.timestamp_before_max_ms < LONG_MAX
    ):
        return True
    return config.compression_type != "producer" and _codec_for(config, header) != header.compression


def _codec_for(config: TopicConfig, header: BatchHeader) -> int:
    return _CODECS.get(config.compression_type, header.compression)


def is_quickly_packed(header: BatchHeader, config: TopicConfig) -> bool:
    """Whether the codec of the topic, if it is another one, is at its usual level: the highest ones take their time."""
    codec = _codec_for(config, header)
    return codec == header.compression or _level(config, codec) == DEFAULT_LEVELS.get(Codec(codec))


def unpack(batch: memoryview, header: BatchHeader) -> bytes:
    """The records of a batch that was examined, or `ProtocolError`."""
    try:
        return unpacked(header, batch)
    except UnpacksToTooMuch as error:
        raise ProtocolError(ErrorCode.MESSAGE_TOO_LARGE, f"{error} Send fewer records in a batch.") from None
    except MalformedMessage as error:
        raise _no_records(error) from None


def opened(
    batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int, data: bytes
) -> tuple[memoryview, BatchHeader]:
    """The batch as it goes into the log and its header, or `ProtocolError`, of one that was examined and unpacked to
    `data`. It may be changed in place."""
    try:
        max_timestamp = _look_through(header, data, config, now_ms)
    except MalformedMessage as error:
        raise _no_records(error) from None
    codec = _codec_for(config, header)
    if codec != header.compression:
        # Again, as Kafka does: unpacked, it may be of any size.
        rebuilt = recompressed(header, data, codec, _level(config, codec), max_timestamp, config.max_message_bytes)
        if isinstance(rebuilt, int):
            raise _too_large(rebuilt, config)
        batch = memoryview(bytearray(rebuilt))
        return batch, read_header(batch)
    if max_timestamp != header.max_timestamp and not config.append_time:
        set_max_timestamp(batch, max_timestamp)
        header = read_header(batch)
    return batch, header


def _look_through(header: BatchHeader, data: bytes, config: TopicConfig, now_ms: int) -> int:
    """The largest timestamp of the records; or `ProtocolError`, with all that the topic does not take."""
    needs_key = config.compact
    oldest, latest = now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms
    if config.append_time:
        oldest, latest = -LONG_MAX - 1, LONG_MAX
    max_timestamp = NO_TIMESTAMP
    refused = 0
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    for at, (_, _, _, timestamp, _, key_size, _, _) in enumerate(spans(header, data)):
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        if needs_key and key_size < 0:
            why = f"Record {at} has no key, which a compacted topic needs of every record."
        elif oldest <= timestamp <= latest or timestamp == NO_TIMESTAMP:
            continue
        else:
            side, setting = ("past", "before") if timestamp < oldest else ("future", "after")
            why = (
                f"Timestamp {timestamp} of record {at} is further in the {side} than "
                f"message.timestamp.{setting}.max.ms allows."
            )
            code = ErrorCode.INVALID_TIMESTAMP
        refused += 1
        if refused <= RECORD_ERRORS_MAX:
            errors.append((at, why))
    if refused:
        raise ProtocolError(
            code,
            f"{refused} of {header.count} records are refused, so nothing was written. {errors[0][1]}",
            tuple(errors),
        )
    return max_timestamp


def _level(config: TopicConfig, codec: int) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None

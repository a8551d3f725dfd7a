"""What a batch must be before it may enter the log, and what the broker makes of it.

The order of the checks, and the codes, are those of Kafka's `ProduceRequest` and `LogValidator`. The common case
reads the 61-byte header and nothing else; a batch is opened only where a topic asks for something that stands inside:

    message.timestamp.before.max.ms set     the oldest timestamp of the records
    cleanup.policy=compact                  that every record has a key
    compression.type other than producer    the records, to compress them anew
"""

from __future__ import annotations

from onceflow.config import LONG_MAX, TopicConfig
from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError
from onceflow.wire.batch import (
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    OVERHEAD,
    BatchHeader,
    checksum,
    read_header,
)
from onceflow.wire.compression import Codec
from onceflow.wire.records import Record, build_batch, read_records

__all__ = ["accept"]

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


def accept(
    batch: memoryview, config: TopicConfig, now_ms: int, *, zstd_allowed: bool = True
) -> tuple[memoryview, BatchHeader]:
    """The batch as it goes into the log and its header, or `ProtocolError`. `batch` may be changed in place."""
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
    _check_size(size, config)
    if checksum(batch) != header.crc:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "The record batch fails its checksum.")
    _check_header(header, zstd_allowed)
    return _fit_to_topic(batch, header, config, now_ms)


def _check_size(size: int, config: TopicConfig) -> None:
    if size > config.max_message_bytes:
        raise ProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size of {size} bytes is more than max.message.bytes {config.max_message_bytes}.",
        )


def _check_header(header: BatchHeader, zstd_allowed: bool) -> None:
    if header.base_offset != 0:
        raise ProtocolError(
            ErrorCode.INVALID_RECORD, f"Offsets of a batch to be stored begin at 0, not at {header.base_offset}."
        )
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise ProtocolError(
            ErrorCode.INVALID_RECORD,
            f"The record batch has {header.count} records but its last offset delta is {header.last_offset_delta}.",
        )
    if header.is_control:
        raise ProtocolError(ErrorCode.INVALID_RECORD, "Clients are not allowed to write control records.")
    if header.compression > _ZSTD:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"Unknown compression {header.compression}.")
    if header.compression == _ZSTD and not zstd_allowed:
        raise ProtocolError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 or newer.")
    if header.producer_id != NO_PRODUCER_ID and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise ProtocolError(
            ErrorCode.INVALID_RECORD,
            f"Producer {header.producer_id} sent epoch {header.producer_epoch} and sequence {header.base_sequence}.",
        )


def _fit_to_topic(
    batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    newest = header.max_timestamp
    if config.append_time or newest == NO_TIMESTAMP:
        if header.is_append_time:
            raise ProtocolError(ErrorCode.INVALID_TIMESTAMP, "Only the broker sets the timestamp type LogAppendTime.")
    elif newest - now_ms > config.timestamp_after_max_ms:
        raise ProtocolError(
            ErrorCode.INVALID_TIMESTAMP,
            f"Timestamp {newest} is further in the future than message.timestamp.after.max.ms allows.",
        )
    codec = _CODECS.get(config.compression_type, header.compression)
    check_oldest = config.timestamp_before_max_ms < LONG_MAX and not config.append_time
    if not (config.compact or check_oldest or codec != header.compression):
        return batch, header
    unpacked: list[Record] = []
    try:
        for at, record in enumerate(read_records(batch)):
            if config.compact and record.key is None:
                raise ProtocolError(
                    ErrorCode.INVALID_RECORD,
                    f"Record {at} has no key, which a compacted topic needs of every record.",
                )
            if check_oldest and NO_TIMESTAMP != record.timestamp < now_ms - config.timestamp_before_max_ms:
                raise ProtocolError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"Timestamp {record.timestamp} is further in the past than message.timestamp.before.max.ms allows.",
                )
            if codec != header.compression:
                unpacked.append(record)
    except MalformedMessage as error:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if codec == header.compression:
        return batch, header
    rebuilt = bytearray(
        build_batch(
            unpacked,
            base_offset=header.base_offset,
            codec=Codec(codec),
            level=_level(config, codec),
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            leader_epoch=header.leader_epoch,
        )
    )
    _check_size(len(rebuilt), config)  # again, as Kafka does: unpacked, it may be any size
    return memoryview(rebuilt), read_header(rebuilt)


def _level(config: TopicConfig, codec: int) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None

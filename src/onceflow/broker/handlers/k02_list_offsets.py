"""ListOffsets (2), v1-10: where a log starts and ends, and what was there at a time.

- With isolation read_committed the log ends at the last stable offset, also for what is looked for by time.
- Special timestamps: -1 the end (by isolation level), -2 the start, -3 the largest timestamp (v7), -4 the local
  start (v8), -5 the end of what was tiered (v9: nothing is, so -1). Else: the first record with at least that
  timestamp, -1 if there is none.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.complaints import complain
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.errors import CorruptLog, ErrorCode, MalformedMessage, ProtocolError, StorageError
from onceflow.log.partition import LEADER_EPOCH, NOTHING_FOUND, TimestampedOffset
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_SINCE: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
READ_COMMITTED: Final = 1


def handle(node: Node, context: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    topics = []
    for asked in request.topics:
        topic = node.topics.get(asked.name)
        denied = refusal(node, context, Operation.DESCRIBE, Resource.TOPIC, asked.name)
        results = []
        for entry in asked.partitions:
            try:
                if denied:
                    raise ProtocolError(denied)
                if topic is None or not 0 <= entry.partition_index < len(topic.partitions):
                    raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                found = _find(topic.partitions[entry.partition_index], entry, request.isolation_level, context.version)
            except ProtocolError as error:
                result = ListOffsetsPartitionResponse(error_code=error.code)
            else:
                result = ListOffsetsPartitionResponse(timestamp=found.timestamp, offset=found.offset)
                if found != NOTHING_FOUND:
                    result.leader_epoch = LEADER_EPOCH
            result.partition_index = entry.partition_index
            results.append(result)
        topics.append(ListOffsetsTopicResponse(name=asked.name, partitions=results))
    return ListOffsetsResponse(topics=topics)


def _find(partition: Partition, entry: ListOffsetsPartition, isolation: int, version: int) -> TimestampedOffset:
    log = partition.log
    if entry.current_leader_epoch > LEADER_EPOCH:
        raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)
    timestamp = entry.timestamp
    if timestamp < 0 and version < _SINCE.get(timestamp, 2**15):
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION)
    end = log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark
    try:
        match timestamp:
            case -1:
                return TimestampedOffset(-1, end)
            case -2 | -4:
                return TimestampedOffset(-1, log.start_offset)
            case -3:
                return log.offset_of_newest(end)
            case -5:
                return NOTHING_FOUND
        return log.first_offset_at(timestamp, end)
    except (StorageError, CorruptLog) as error:
        if isinstance(error, CorruptLog):
            complain(f"reading {partition.topic}-{partition.index}", "%s", error)
        raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    except MalformedMessage as error:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

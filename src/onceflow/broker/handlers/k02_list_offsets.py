"""ListOffsets (2), v1-10: where a log starts and ends, and what was there at a time.

- With isolation read_committed the log ends at the last stable offset, also for what is looked for by time.
- Special timestamps: -1 the end (by isolation level), -2 the start, -3 the largest timestamp (v7), -4 the local
  start (v8), -5 the end of what was tiered (v9: nothing is, so -1). Else: the first record with at least that
  timestamp, -1 if there is none.
- A partition that is asked for twice is 42, in both places.
- A batch that has to be opened and is not small is opened in the thread (`large_requests`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.errors import CorruptLog, ErrorCode, MalformedMessage, ProtocolError, StorageError
from onceflow.log.by_time import NOTHING_FOUND, TimestampedOffset
from onceflow.log.by_time import Steps as ByTime
from onceflow.log.partition import LEADER_EPOCH
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_SINCE: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
READ_COMMITTED: Final = 1


Place = tuple[str, int]


def handle(node: Node, context: Context, request: ListOffsetsRequest) -> Steps:
    repeated = _repeated(request.topics)
    topics = []
    for asked in request.topics:
        denied = refusal(node, context, Operation.DESCRIBE, Resource.TOPIC, asked.name)
        results = []
        for entry in asked.partitions:
            result = ListOffsetsPartitionResponse(partition_index=entry.partition_index)
            try:
                if denied:
                    raise ProtocolError(denied)
                if (asked.name, entry.partition_index) in repeated:
                    raise ProtocolError(ErrorCode.INVALID_REQUEST)
                topic = node.topics.get(asked.name)  # each time: there was a pause
                if topic is None or not 0 <= entry.partition_index < len(topic.partitions):
                    raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                partition = topic.partitions[entry.partition_index]
                found = yield from _find(partition, entry, request.isolation_level, context.version)
            except ProtocolError as error:
                result.error_code = error.code
            else:
                result.timestamp, result.offset = found
                if found != NOTHING_FOUND:
                    result.leader_epoch = LEADER_EPOCH
            results.append(result)
            yield 1
        topics.append(ListOffsetsTopicResponse(name=asked.name, partitions=results))
        yield 1
    return ListOffsetsResponse(topics=topics)


def _repeated(topics: Sequence[ListOffsetsTopic]) -> set[Place]:
    """What is asked for more than once, which Kafka answers in none of the places."""
    places = [(topic.name, entry.partition_index) for topic in topics for entry in topic.partitions]
    if len(set(places)) == len(places):
        return set()
    return {place for place, count in Counter(places).items() if count > 1}


def _find(partition: Partition, entry: ListOffsetsPartition, isolation: int, version: int) -> ByTime:
    if entry.current_leader_epoch > LEADER_EPOCH:
        raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)
    log = partition.log
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
                return (yield from log.offset_of_newest(end))
            case -5:
                return NOTHING_FOUND
        return (yield from log.first_offset_at(timestamp, end))
    except (StorageError, CorruptLog) as error:
        if isinstance(error, CorruptLog):
            partition.report_damage(f"Timestamp {timestamp}", error)
        raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    except MalformedMessage as error:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

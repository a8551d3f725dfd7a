"""WriteTxnMarkers (27), v1-2: end a transaction on single partitions.

In a cluster coordinators speak it to the leaders of partitions. Here it is for administrators: `onceflow txns abort`
and `kafka-transactions abort` end a hanging transaction with it. Each partition is answered when its marker is on disk.
v2 says which version of the protocol the transaction is in: in V2 the marker's epoch is one above that of its records.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceflow.broker.access import may_on_cluster, refusal
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from onceflow.wire.records import EndTxnMarker

V2: Final = 2


def handle(node: Node, context: Context, request: WriteTxnMarkersRequest) -> Steps:
    outcome = _Outcome()
    denied = ErrorCode.NONE
    if not may_on_cluster(node, context, Operation.ALTER):
        denied = refusal(node, context, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            results = []
            for index in topic.partition_indexes:
                result = WritableTxnMarkerPartitionResult(partition_index=index, error_code=denied)
                results.append(result)
                if not denied:
                    outcome.mark(node, marker, topic.name, result)
                yield 1
            topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
            yield 1
        outcome.response.markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        yield 1
    outcome.settle()
    return outcome.deferred


class _Outcome:
    """The answer, and how many of its markers are not on disk yet."""

    def __init__(self) -> None:
        self.response = WriteTxnMarkersResponse()
        self.deferred = Deferred()
        self._waiting = 1  # the request itself, until all of it has been looked at

    def mark(self, node: Node, asked: WritableTxnMarker, topic: str, result: WritableTxnMarkerPartitionResult) -> None:
        partition = node.topics.partition(topic, result.partition_index)
        if partition is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return
        marker = EndTxnMarker(asked.transaction_result, asked.coordinator_epoch)
        bumped = asked.transaction_version >= V2
        try:
            end = node.transactions.mark(partition, asked.producer_id, asked.producer_epoch, marker, bumped=bumped)
        except ProtocolError as error:
            result.error_code = error.code
        except StorageError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            if end > partition.log.high_watermark:
                self._waiting += 1
                partition.when_durable(end, partial(self._durable, result))

    def _durable(self, result: WritableTxnMarkerPartitionResult, error: ErrorCode) -> None:
        result.error_code = error
        self.settle()

    def settle(self) -> None:
        self._waiting -= 1
        if self._waiting == 0:
            self.deferred.resolve(Answer(self.response))

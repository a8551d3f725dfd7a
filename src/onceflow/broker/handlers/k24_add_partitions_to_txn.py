"""AddPartitionsToTxn (24), v0-5: partitions join a transaction, before anything is written to them.

- v0-3 come from V1 clients, one transaction each. All partitions join or none: if one does not exist (3), the others
  are not attempted (55).
- v4 and v5 are spoken between brokers, with many transactions, to add or only to verify.
- v0 and v1 know 47 for what is 90 since.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.txn.transaction import TopicPartition
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

FENCED_FROM_VERSION: Final = 2
BATCHED_FROM_VERSION: Final = 4

Outcome = dict[TopicPartition, ErrorCode]


def handle(node: Node, context: Context, request: AddPartitionsToTxnRequest) -> Steps:
    version = context.version
    if version >= BATCHED_FROM_VERSION:
        denied = refusal(node, context, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
        if denied:
            return AddPartitionsToTxnResponse(error_code=denied)
    asked = request.transactions if version >= BATCHED_FROM_VERSION else [_single(request)]
    deferred = Deferred()
    results: dict[int, list[AddPartitionsToTxnTopicResult]] = {}

    def settle(at: int, outcome: Outcome) -> None:
        results[at] = _by_topic(outcome)
        if len(results) == len(asked):
            deferred.resolve(Answer(_response(asked, results, version)))

    for at, transaction in enumerate(asked):
        _add(node, context, transaction, partial(settle, at))
        yield 1 + sum(len(topic.partitions) for topic in transaction.topics)
    if not asked:
        deferred.resolve(Answer(AddPartitionsToTxnResponse()))
    return deferred


def _single(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


def _add(node: Node, context: Context, asked: AddPartitionsToTxnTransaction, settle: Callable[[Outcome], None]) -> None:
    version = context.version
    partitions = frozenset((topic.name, index) for topic in asked.topics for index in topic.partitions)
    impossible = _impossible(node, context, asked, partitions)
    if impossible:
        settle(dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | impossible)
        return

    def refuse(error: ErrorCode) -> None:
        if error is ErrorCode.PRODUCER_FENCED and version < FENCED_FROM_VERSION:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        settle(dict.fromkeys(partitions, error))

    def proceed() -> None:
        settle(dict.fromkeys(partitions, ErrorCode.NONE))

    identity = (asked.transactional_id, asked.producer_id, asked.producer_epoch, partitions)
    if asked.verify_only:
        node.transactions.verify(*identity, add=False, proceed=proceed, refuse=refuse)
    else:
        spoken = 2 if version > BATCHED_FROM_VERSION else 0
        node.transactions.add(*identity, version=spoken, proceed=proceed, refuse=refuse)


def _impossible(
    node: Node, context: Context, asked: AddPartitionsToTxnTransaction, partitions: frozenset[TopicPartition]
) -> Outcome:
    """What may not be added, or does not exist. Brokers, who speak the newer versions, may add everything."""
    denied: dict[str, ErrorCode] = {}
    if context.version < BATCHED_FROM_VERSION:
        error = refusal(node, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, asked.transactional_id)
        if error:
            return dict.fromkeys(partitions, error)
        names = {name for name, _ in partitions}
        denied = {name: refusal(node, context, Operation.WRITE, Resource.TOPIC, name) for name in names}
    return {where: denied[where[0]] for where in partitions if denied.get(where[0])} | {
        where: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for where in partitions
        if not denied.get(where[0]) and node.topics.partition(*where) is None
    }


def _response(
    asked: list[AddPartitionsToTxnTransaction], results: dict[int, list[AddPartitionsToTxnTopicResult]], version: int
) -> AddPartitionsToTxnResponse:
    if version < BATCHED_FROM_VERSION:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0])
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results[at])
            for at, transaction in enumerate(asked)
        ]
    )


def _by_topic(outcome: Outcome) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
                for (_, index), error in entries
            ],
        )
        for name, entries in groupby(sorted(outcome.items()), key=lambda entry: entry[0][0])
    ]

"""DescribeTransactions (65), v0: all about some transactional ids (KIP-664); 105 for one that nobody has."""

from __future__ import annotations

from itertools import groupby

from onceflow.broker.access import is_visible, refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.txn.states import State
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


def handle(node: Node, context: Context, request: DescribeTransactionsRequest) -> Steps:
    found = []
    for id in request.transactional_ids:
        found.append(_describe(node, context, id))
        yield 1 + sum(len(topic.partitions) for topic in found[-1].topics)
    # What was read may have been decided a moment ago: nobody is told before it is on disk.
    return node.transactions.answer(
        DescribeTransactionsResponse(transaction_states=found),
        lambda error: DescribeTransactionsResponse(
            transaction_states=[
                TransactionState(transactional_id=id, error_code=error) for id in request.transactional_ids
            ]
        ),
    )


def _describe(node: Node, context: Context, transactional_id: str) -> TransactionState:
    denied = refusal(node, context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)
    if denied:
        return TransactionState(transactional_id=transactional_id, error_code=denied)
    transaction = node.transactions.coordinator.get(transactional_id)
    if transaction is None or transaction.state is State.DEAD:
        unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
        return TransactionState(transactional_id=transactional_id, error_code=unknown)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.label,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[
            TopicData(topic=name, partitions=[index for _, index in entries])
            for name, entries in groupby(sorted(transaction.partitions), key=lambda entry: entry[0])
            if is_visible(node, context, Resource.TOPIC, name)
        ],
    )

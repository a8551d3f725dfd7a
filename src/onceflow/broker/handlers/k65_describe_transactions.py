"""DescribeTransactions (65), v0: all about some transactional ids (KIP-664); 105 for one that nobody has."""

from __future__ import annotations

from itertools import groupby

from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.txn.states import State
from onceflow.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


def handle(node: Node, context: Context, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(node, transactional_id) for transactional_id in request.transactional_ids]
    )


def _describe(node: Node, transactional_id: str) -> TransactionState:
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
        ],
    )

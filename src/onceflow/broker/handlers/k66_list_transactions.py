"""ListTransactions (66), v0-2: transactional ids, all or some.

By state, by producer id, by duration (v1, KIP-994) and by pattern (v2, KIP-1152), a regular expression for an id.
"""

from __future__ import annotations

from onceflow.broker.access import is_visible
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.group.topic_regex import BadRegex, TopicRegex
from onceflow.txn.states import State
from onceflow.wire.acls import Resource
from onceflow.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


def handle(node: Node, context: Context, request: ListTransactionsRequest) -> Steps:
    labels = {state.label for state in State}
    pattern = None
    if request.transactional_id_pattern:
        try:
            pattern = TopicRegex(request.transactional_id_pattern)
        except BadRegex:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    states = set(request.state_filters) & labels
    producer_ids = set(request.producer_id_filters)
    started_before_ms = node.clock.now_ms() - request.duration_filter
    answer = ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in labels]
    )
    for transactional_id, transaction in tuple(node.transactions.coordinator):
        if (
            (not request.state_filters or transaction.state.label in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (request.duration_filter < 0 or transaction.started_ms < started_before_ms)
            and (pattern is None or pattern.matches(transactional_id))
            and is_visible(node, context, Resource.TRANSACTIONAL_ID, transactional_id)
        ):
            answer.transaction_states.append(
                TransactionState(
                    transactional_id=transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.label,
                )
            )
            yield 1
        else:
            yield 0
    return node.transactions.answer(answer, lambda error: ListTransactionsResponse(error_code=error))

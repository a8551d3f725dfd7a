"""AddOffsetsToTxn (25), v0-4: the offsets of a group join a V1 transaction, before TxnOffsetCommit brings them.

The partition of the offsets topic that keeps the group becomes part of the transaction like any other. v0 and v1 know
47 for what is 90 since.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import check
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.topics import CONSUMER_OFFSETS
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FENCED_FROM_VERSION: Final = 2


def handle(node: Node, context: Context, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse | Deferred:
    deferred = Deferred()

    def answer(error: ErrorCode) -> None:
        if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_FROM_VERSION:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        deferred.resolve(Answer(AddOffsetsToTxnResponse(error_code=error)))

    try:
        check(node, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
        check(node, context, Operation.READ, Resource.GROUP, request.group_id)
        index = node.groups.index_of(request.group_id)
    except ProtocolError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    node.transactions.add(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        frozenset([(CONSUMER_OFFSETS, index)]),
        version=0,
        proceed=lambda: answer(ErrorCode.NONE),
        refuse=answer,
    )
    return deferred

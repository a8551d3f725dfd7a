"""EndTxn (26), v0-5: commit or abort.

- Answered when the outcome is on disk; the markers follow. What comes for the same transactional id meanwhile waits.
- v5 is V2 (KIP-890): the answer carries the producer id and epoch of the next transaction. A repeat, recognised by the
  epoch before the current one, gets the same answer again.
- v0-4 are V1: the epoch stays. v0 and v1 know 47 for what is 90 since.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

FENCED_FROM_VERSION: Final = 2
V2_FROM_VERSION: Final = 5


def handle(node: Node, context: Context, request: EndTxnRequest) -> EndTxnResponse | Deferred:
    denied = refusal(node, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
    if denied:
        return EndTxnResponse(error_code=denied)
    deferred = Deferred()

    def proceed(producer_id: int, epoch: int) -> None:
        deferred.resolve(Answer(EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)))

    def refuse(error: ErrorCode) -> None:
        if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_FROM_VERSION:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        deferred.resolve(Answer(EndTxnResponse(error_code=error)))

    node.transactions.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        commit=request.committed,
        version=2 if context.version >= V2_FROM_VERSION else 0,
        proceed=proceed,
        refuse=refuse,
    )
    return deferred

"""InitProducerId (22), v0-5: an identity for an idempotent producer, or the next epoch of a transactional one.

- Without a transactional id every call gets a fresh producer id with epoch 0, never given out before (KIP-98).
- With one: the id's producer id and a raised epoch, which fences every earlier instance. What that one left open is
  aborted first; until that is done the answer is 51, and the client asks again.
- v3 and newer may say who they are (KIP-360): the current pair gets the next epoch, the pair before that is a repeat,
  an older one is fenced. v0-3 know 47 for what is 90 since.

Left out: v6 (two-phase commit with an outside coordinator, KIP-939), which no released client uses.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import may_produce, refusal
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FENCED_FROM_VERSION: Final = 4


def handle(node: Node, context: Context, request: InitProducerIdRequest) -> InitProducerIdResponse | Deferred:
    if request.transactional_id is None:
        return _idempotent(node) if may_produce(node, context) else _refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    denied = refusal(node, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
    if denied:
        return _refusal(denied)
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return _refusal(ErrorCode.INVALID_REQUEST)
    expected = (request.producer_id, request.producer_epoch) if request.producer_id >= 0 else None
    deferred = Deferred()

    def proceed(producer_id: int, epoch: int) -> None:
        deferred.resolve(Answer(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)))

    def refuse(error: ErrorCode) -> None:
        if error is ErrorCode.PRODUCER_FENCED and context.version < FENCED_FROM_VERSION:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        deferred.resolve(Answer(_refusal(error)))

    node.transactions.init(request.transactional_id, request.transaction_timeout_ms, expected, proceed, refuse)
    return deferred


def _idempotent(node: Node) -> InitProducerIdResponse:
    try:
        return InitProducerIdResponse(producer_id=node.new_producer_id(), producer_epoch=0)
    except StorageError:
        # Retriable for producers, unlike the storage error itself on this API.
        return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _refusal(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_epoch=-1)

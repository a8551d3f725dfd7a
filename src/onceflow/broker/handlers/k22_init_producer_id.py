"""InitProducerId (22), v0-5: an identity for an idempotent producer.

Without a transactional id every call gets a fresh producer id with epoch 0, never given out before (KIP-98).

Left out: transactional ids (35), until there is a transaction coordinator.
"""

from __future__ import annotations

from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, StorageError
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def handle(node: Node, context: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        code = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    try:
        return InitProducerIdResponse(producer_id=node.new_producer_id(), producer_epoch=0)
    except StorageError:
        # Retriable for producers, unlike the storage error itself on this API.
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_epoch=-1)

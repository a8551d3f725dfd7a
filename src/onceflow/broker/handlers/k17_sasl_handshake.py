"""SaslHandshake (17), v0-1: too late, or at the wrong listener (34).

Where a login is asked for, `broker/admission.py` answers it before it comes here.
"""

from __future__ import annotations

from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(node: Node, context: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)

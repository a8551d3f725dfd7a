"""DescribeUserScramCredentials (50), v0: who may log in, and how (KIP-554). Of a password nothing is told.

No list, or an empty one, means all users. A user asked for twice is 92, one that does not exist 91.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from onceflow.broker.access import check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation
from onceflow.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

MECHANISM_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
TWICE: Final = "Cannot describe SCRAM credentials for the same user twice in a single request: "
MISSING: Final = "Attempt to describe a user credential that does not exist: "


def handle(node: Node, context: Context, request: DescribeUserScramCredentialsRequest) -> Steps:
    try:
        check_cluster(node, context, Operation.DESCRIBE)
    except ProtocolError as error:
        return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message)
    asked = Counter(each.name for each in request.users or ()) or Counter(list(node.users))
    results = yield from in_steps(asked, lambda name: _describe(node, name, asked[name]))
    return DescribeUserScramCredentialsResponse(results=results)


def _describe(node: Node, name: str, times: int) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name)
    if times > 1:
        result.error_code, result.error_message = ErrorCode.DUPLICATE_RESOURCE, TWICE + name
    elif name not in node.users:
        result.error_code, result.error_message = ErrorCode.RESOURCE_NOT_FOUND, MISSING + name
    else:
        result.credential_infos = [
            CredentialInfo(mechanism=MECHANISM_NUMBERS[mechanism], iterations=credential.iterations)
            for mechanism, credential in sorted(node.users.credentials(name).items())
        ]
    return result

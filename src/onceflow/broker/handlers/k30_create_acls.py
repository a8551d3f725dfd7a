"""CreateAcls (30), v1-3: new rules, each with its own outcome (KIP-140, KIP-290).

Those that are well-formed are made, in one step, and are on disk before the answer; the others get 42. A rule that is
there already is made with success. From the next request on, whoever sends it, the new rules count.
"""

from __future__ import annotations

from onceflow.broker.access import check_cluster
from onceflow.broker.acls import checked_acl
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k29_describe_acls import NO_AUTHORIZER
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Acl, Operation
from onceflow.wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse


def handle(node: Node, context: Context, request: CreateAclsRequest) -> Steps:
    outcomes: list[Acl | ProtocolError] = []
    try:
        if node.authorizer is None:
            raise ProtocolError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        check_cluster(node, context, Operation.ALTER)
        rules: dict[Acl, None] = {}
        for asked in request.creations:
            outcome = _checked(asked)
            outcomes.append(outcome)
            if isinstance(outcome, Acl):
                rules[outcome] = None
            yield 1
        node.authorizer.acls.add(rules)
    except ProtocolError as error:
        outcomes = [error] * len(request.creations)
    return CreateAclsResponse(results=(yield from in_steps(outcomes, _result)))


def _checked(asked: AclCreation) -> Acl | ProtocolError:
    try:
        return checked_acl(
            asked.resource_type,
            asked.resource_name,
            asked.resource_pattern_type,
            asked.principal,
            asked.host,
            asked.operation,
            asked.permission_type,
        )
    except ProtocolError as error:
        return error


def _result(outcome: Acl | ProtocolError) -> AclCreationResult:
    if isinstance(outcome, ProtocolError):
        return AclCreationResult(error_code=outcome.code, error_message=outcome.message)
    return AclCreationResult()

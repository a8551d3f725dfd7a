"""DeleteAcls (31), v1-3: rules go, those that match one of the filters; the answer names them (KIP-140, KIP-290).

All in one step, which is on disk before the answer. A filter that cannot be meant gets 42, and the others are carried
out. A rule that two filters match is named by both.
"""

from __future__ import annotations

from onceflow.broker.access import check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k29_describe_acls import NO_AUTHORIZER, filter_of
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Acl, Operation, Pattern, Permission, Resource
from onceflow.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


def handle(node: Node, context: Context, request: DeleteAclsRequest) -> Steps:
    outcomes: list[list[Acl] | ProtocolError] = []
    try:
        if node.authorizer is None:
            raise ProtocolError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        check_cluster(node, context, Operation.ALTER)
        acls = node.authorizer.acls
        gone: set[Acl] = set()
        for asked in request.filters:
            outcome = _matching(node, asked)
            outcomes.append(outcome)
            if isinstance(outcome, list):
                gone.update(outcome)
            yield len(outcome) if isinstance(outcome, list) else 1
        acls.remove(gone)
    except ProtocolError as error:
        outcomes = [error] * len(request.filters)
    return DeleteAclsResponse(filter_results=(yield from in_steps(outcomes, _result)))


def _matching(node: Node, asked: DeleteAclsFilter) -> list[Acl] | ProtocolError:
    assert node.authorizer is not None
    try:
        _check_known(asked)
        return node.authorizer.acls.matching(filter_of(asked))
    except ProtocolError as error:
        return error


def _check_known(asked: DeleteAclsFilter) -> None:
    """Of what we do not know, we cannot say that it is not there."""
    try:
        Resource(asked.resource_type_filter)
        Pattern(asked.pattern_type_filter)
        Operation(asked.operation)
        Permission(asked.permission_type)
    except ValueError as error:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"The filter has an unknown element: {error}.") from None


def _result(outcome: list[Acl] | ProtocolError) -> DeleteAclsFilterResult:
    if isinstance(outcome, ProtocolError):
        return DeleteAclsFilterResult(error_code=outcome.code, error_message=outcome.message)
    return DeleteAclsFilterResult(matching_acls=[_deleted(acl) for acl in outcome])


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )

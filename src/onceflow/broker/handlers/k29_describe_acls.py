"""DescribeAcls (29), v1-3: the rules about who may do what, all or some (KIP-140, KIP-290).

54 if there is no authorizer: then there are no rules. Pattern type MATCH finds whatever concerns a name.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from onceflow.broker.access import check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Acl, AclFilter, Operation
from onceflow.wire.messages.delete_acls import DeleteAclsFilter
from onceflow.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

NO_AUTHORIZER: Final = "No Authorizer is configured on the broker; start it with --acls."
UNKNOWN: Final = 0
"""The code of what the client itself does not know."""


def handle(node: Node, context: Context, request: DescribeAclsRequest) -> DescribeAclsResponse:
    try:
        if node.authorizer is None:
            raise ProtocolError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        check_cluster(node, context, Operation.DESCRIBE)
        found = sorted(node.authorizer.acls.matching(filter_of(request)))
    except ProtocolError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                resource_type=resource,
                resource_name=name,
                pattern_type=pattern,
                acls=[_described(acl) for acl in acls],
            )
            for (resource, name, pattern), acls in groupby(found, key=lambda acl: acl[:3])
        ]
    )


def filter_of(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    codes = (asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)
    if UNKNOWN in codes:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "The filter has an element that is UNKNOWN.")
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _described(acl: Acl) -> AclDescription:
    return AclDescription(
        principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
    )

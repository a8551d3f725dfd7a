"""Access rules of any Kafka, as an administrator sees them: list, add, delete.

Nothing is asked twice. To add a rule that is there, or to delete one that is not, changes nothing and is no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from onceflow.client.cluster import Cluster, Refused, error_name
from onceflow.client.problems import ClientError
from onceflow.errors import ErrorCode
from onceflow.wire.acls import Acl, AclFilter, Operation, Pattern, Permission, Resource
from onceflow.wire.messages.create_acls import AclCreation, CreateAclsRequest
from onceflow.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from onceflow.wire.messages.describe_acls import DescribeAclsRequest

__all__ = ["AclAdmin", "AclsPartlyAdded"]

ADVICE: Final[Mapping[int, str]] = {
    ErrorCode.SECURITY_DISABLED: "this broker has no ACLs: everybody may do everything. Ours has them with --acls, "
    "Apache Kafka with authorizer.class.name",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "you may not do that: reading ACLs takes DESCRIBE on the cluster, changing "
    "them takes ALTER; a super user (super.users) may always",
}


class AclsPartlyAdded(ClientError):
    """Some rules of a request are there now, and some are not."""


class AclAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def matching(self, wanted: AclFilter) -> list[Acl]:
        """In the order of resources and names."""
        answer = self._cluster.any_broker().ask(DescribeAclsRequest(**_fields(wanted)))
        _refuse(answer.error_code, "listing ACLs", answer.error_message)
        return sorted(
            _acl(
                (each.resource_type, each.resource_name, each.pattern_type),
                (rule.principal, rule.host, rule.operation, rule.permission_type),
            )
            for each in answer.resources
            for rule in each.acls
        )

    def add(self, acls: Sequence[Acl]) -> None:
        """Raises `Refused` if none was added, and `AclsPartlyAdded`, which says what was, if some were."""
        answer = self._cluster.any_broker().ask(CreateAclsRequest(creations=[_creation(acl) for acl in acls]))
        if len(answer.results) != len(acls):
            raise ClientError(f"the broker's answer is about {len(answer.results)} of {len(acls)} ACLs: look with list")
        failed = [result for result in answer.results if result.error_code]
        if not failed:
            return
        if len(failed) == len(acls):
            _refuse(failed[0].error_code, "adding ACLs", failed[0].error_message)
        reason = failed[0].error_message or error_name(failed[0].error_code)
        raise AclsPartlyAdded(
            f"{len(acls) - len(failed)} of {len(acls)} ACLs were added, the others not: {reason}; to add the same ones "
            f"again does no harm"
        )

    def delete(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """What was deleted."""
        asked = [DeleteAclsFilter(**_fields(wanted)) for wanted in filters]
        answer = self._cluster.any_broker().ask(DeleteAclsRequest(filters=asked))
        deleted = []
        for result in answer.filter_results:
            _refuse(result.error_code, "deleting ACLs", result.error_message)
            for each in result.matching_acls:
                _refuse(each.error_code, f"deleting an ACL of {each.principal}", each.error_message)
                deleted.append(
                    _acl(
                        (each.resource_type, each.resource_name, each.pattern_type),
                        (each.principal, each.host, each.operation, each.permission_type),
                    )
                )
        return sorted(deleted)


def _refuse(code: int, doing: str, message: str | None) -> None:
    if code:
        raise Refused(doing, code, ADVICE.get(code, message))


def _acl(resource: tuple[int, str, int], rule: tuple[str, str, int, int]) -> Acl:
    try:
        kind, name, pattern = resource
        principal, host, operation, permission = rule
        return Acl(
            Resource(kind), name, Pattern(pattern), principal, host, Operation(operation), Permission(permission)
        )
    except ValueError as unknown:
        raise ClientError(f"the broker has an ACL of a kind that this program does not know: {unknown}") from None


def _creation(acl: Acl) -> AclCreation:
    return AclCreation(
        resource_type=acl.resource,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _fields(wanted: AclFilter) -> dict[str, Any]:
    """A filter under the names that it has in requests."""
    return {
        "resource_type_filter": wanted.resource,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }

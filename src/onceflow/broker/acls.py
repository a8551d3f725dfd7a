"""The rules on disk: `DIR/acls.json`, replaced as a whole and synced before anybody is told of a change.

    create, delete    the new file first, then what decisions go by: a crash leaves the old rules or the new ones
    start             the file is read as a whole; one that is damaged keeps the broker from starting, since a broker
                      without its rules would be closed to some and open to others

Rules have no ids and no order: two that say the same are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Final

from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.log.files import FileSystem
from onceflow.log.small_files import read_json, reading_version, replace_json
from onceflow.wire.acls import CLUSTER_NAME, Acl, AclFilter, Operation, Pattern, Permission, Resource

__all__ = ["Acls", "checked_acl"]

ACLS_FILE: Final = "acls.json"
FORMAT_VERSION: Final = 1
ACLS_MAX: Final = 10_000
"""Each change writes all of them."""
REMEDY: Final = (
    "Without its rules the broker does not start. Restore it from a backup of the directory, or write {} into it and "
    "make the rules again."
)
TEXT_MAX: Final = 1_000
"""Characters of a name, a principal or a host; topics and hosts have far fewer."""


class Acls:
    """All rules of a broker."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / ACLS_FILE
        self._acls: dict[Acl, None] = dict.fromkeys(self._load())
        self.on_change: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def __len__(self) -> int:
        return len(self._acls)

    def matching(self, wanted: AclFilter) -> list[Acl]:
        only = wanted.only
        if only is not None:
            return [acl for acl in (only,) if acl in self._acls]
        return [acl for acl in self._acls if wanted.matches(acl)]

    def add(self, acls: Iterable[Acl]) -> None:
        """Raises `ProtocolError` with nothing changed."""
        wanted = self._acls | dict.fromkeys(acls)
        if len(wanted) > ACLS_MAX:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"There would be {len(wanted)} rules; this broker keeps {ACLS_MAX}."
            )
        self._replace(wanted)

    def remove(self, acls: Set[Acl]) -> None:
        """Raises `ProtocolError` with nothing changed."""
        self._replace({acl: None for acl in self._acls if acl not in acls})

    def _replace(self, wanted: dict[Acl, None]) -> None:
        if wanted.keys() == self._acls.keys():
            return
        try:
            self._save(wanted)
        except StorageError as error:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"No rule was changed: {error}") from error
        self._acls = wanted
        self.on_change()

    def create_file(self) -> None:
        """For a new directory: from then on a file that is missing was removed by somebody."""
        if not self._files.exists(self._path):
            self._save(self._acls)

    def _save(self, acls: Iterable[Acl]) -> None:
        content = {"version": FORMAT_VERSION, "acls": [_to_json(acl) for acl in acls]}
        replace_json(self._files, self._path, content, private=True)

    def _load(self) -> list[Acl]:
        if not self._files.exists(self._path):
            return []
        content = read_json(self._files, self._path, REMEDY)
        if not content:
            return []
        with reading_version(FORMAT_VERSION, self._path, content, REMEDY):
            return [_from_json(entry) for entry in content["acls"]]


def _to_json(acl: Acl) -> dict[str, str]:
    return {
        "resource": acl.resource.name,
        "name": acl.name,
        "pattern": acl.pattern.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


def _from_json(entry: dict[str, str]) -> Acl:
    return checked_acl(
        Resource[entry["resource"]],
        entry["name"],
        Pattern[entry["pattern"]],
        entry["principal"],
        entry["host"],
        Operation[entry["operation"]],
        Permission[entry["permission"]],
    )


def checked_acl(
    resource: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> Acl:
    """A rule from what a client or a file says. Raises `ProtocolError` for what cannot be one."""
    acl = Acl(
        _concrete(Resource, resource, "resource type", Resource.ANY),
        name,
        _concrete(Pattern, pattern, "pattern type", Pattern.ANY, Pattern.MATCH),
        principal,
        host,
        _concrete(Operation, operation, "operation", Operation.ANY),
        _concrete(Permission, permission, "permission type", Permission.ANY),
    )
    _check_texts(acl)
    return acl


def _concrete(cls: type[Any], code: int, what: str, *general: int) -> Any:
    """The member of that code; those that leave something open are for filters."""
    try:
        member = cls(code)
    except ValueError:
        raise _invalid(f"There is no {what} {code}.") from None
    if member in general:
        raise _invalid(f"{member.name} is a {what} for filters; a rule has to say which one.")
    return member


def _check_texts(acl: Acl) -> None:
    texts: Sequence[str] = (acl.name, acl.principal, acl.host)
    if not all(isinstance(text, str) and len(text) <= TEXT_MAX for text in texts):
        raise _invalid(f"Names, principals and hosts have at most {TEXT_MAX} characters.")
    if not acl.name:
        raise _invalid("Invalid empty resource name.")
    if acl.resource is Resource.CLUSTER and acl.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}.")
    kind, colon, who = acl.principal.partition(":")
    if not (kind and colon and who):
        raise _invalid(f"A principal looks like User:alice, not like {acl.principal!r}.")
    if not acl.host:
        raise _invalid("Invalid empty host; * stands for every host.")


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)

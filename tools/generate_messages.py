"""Writes `src/onceflow/wire/messages/`: one module per API, and the index by api key.

The source is kio, which has one set of frozen classes per version; we merge them into one class for all
versions. kio is needed here and in the tests only, never by the broker.

    python tools/generate_messages.py            write what changed
    python tools/generate_messages.py --check    write nothing; exit 1 if something would change
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kio.schema.index import api_key_map, schema_name_map

APIS = [
    # The log and its administration.
    "produce",
    "fetch",
    "list_offsets",
    "metadata",
    "find_coordinator",
    "api_versions",
    "sasl_handshake",
    "sasl_authenticate",
    "create_topics",
    "delete_topics",
    "delete_records",
    "init_producer_id",
    "offset_for_leader_epoch",
    "describe_configs",
    "alter_configs",
    "incremental_alter_configs",
    "create_partitions",
    "describe_cluster",
    "describe_producers",
    "describe_topic_partitions",
    "describe_log_dirs",
    "alter_replica_log_dirs",
    "elect_leaders",
    "alter_partition_reassignments",
    "list_partition_reassignments",
    "describe_client_quotas",
    "alter_client_quotas",
    "describe_quorum",
    "update_features",
    "list_config_resources",
    # Groups and transactions.
    "offset_commit",
    "offset_fetch",
    "join_group",
    "heartbeat",
    "leave_group",
    "sync_group",
    "describe_groups",
    "list_groups",
    "delete_groups",
    "offset_delete",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "end_txn",
    "write_txn_markers",
    "txn_offset_commit",
    "describe_transactions",
    "list_transactions",
    "consumer_group_heartbeat",
    "consumer_group_describe",
    # Who may do what.
    "describe_acls",
    "create_acls",
    "delete_acls",
    "describe_user_scram_credentials",
    "alter_user_scram_credentials",
]

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "onceflow" / "wire" / "messages"
LINE_LENGTH = 120

KINDS = {"error_code": "int16", "timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
"""kio's richer types, as they stand on the wire; every other kind has the same name there and here."""

MILLISECONDS = {"timedelta_i32", "timedelta_i64", "datetime_i64"}
"""kio drops the suffix Ms from fields of these types; we give it back."""

PYTHON_TYPES = {
    "float64": "float",
    "bool": "bool",
    "uuid": "UUID | None",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
}

NULL_BY_DEFAULT = {"string", "bytes", "records"}
"""A nullable field of these kinds for which Kafka names no default gets None. Kafka's own classes would take
an empty value, but whoever leaves an error message or a config value out means that there is none."""


LOST_NULL_DEFAULTS = {("ConsumerGroupHeartbeatRequest", "topic_partitions")}
"""Arrays of structs whose default in Kafka's schemas is null; kio keeps no default for such a field."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionedField:
    """One field in one version."""

    kind: str
    is_message: bool
    is_array: bool
    nullable: bool
    tag: int | None
    default: object


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedField:
    """One field over all versions."""

    name: str
    kind: str
    is_message: bool
    is_array: bool
    versions: str
    null: str
    tag: int | None
    default: object

    def annotation(self) -> str:
        inner = self.kind if self.is_message else PYTHON_TYPES.get(self.kind, "int")
        annotation = f"list[{inner}]" if self.is_array else inner
        optional = self.null and not annotation.endswith("| None")
        return f"{annotation} | None" if optional else annotation

    def declaration(self) -> str:
        kind = self.kind if self.is_message else f'"{self.kind}"'
        arguments = [f"[{kind}]" if self.is_array else kind, f'"{self.versions}"']
        if self.null:
            arguments.append(f'null="{self.null}"')
        if self.default is not dataclasses.MISSING:
            arguments.append(f"default={self.default!r}")
        if self.tag is not None:
            arguments.append(f"tag={self.tag}")
        return f"    {self.name}: {self.annotation()} = field({', '.join(arguments)})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedClass:
    name: str
    fields: tuple[MergedField, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Api:
    name: str
    key: int
    first: int
    last: int
    flexible: int | None
    classes: tuple[MergedClass, ...]
    request: str
    response: str


def versions_text(found: list[int], last: int) -> str:
    """A range as Kafka's schemas write it. A hole in it would need a notation of its own; none exists."""
    if found != list(range(found[0], found[-1] + 1)):
        raise ValueError(f"versions {found} have a hole")
    if found[-1] == last:
        return f"{found[0]}+"
    return str(found[0]) if found[0] == found[-1] else f"{found[0]}-{found[-1]}"


def plain(value: object) -> object:
    """A default of kio's as one of ours."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (float, str, bytes)):
        return value
    raise TypeError(f"no plain form of the default {value!r}")


def versioned_field(declared: dataclasses.Field[object]) -> VersionedField:
    arguments = typing.get_args(declared.type)
    nullable = type(None) in arguments
    inner: Any = next(a for a in arguments if a is not type(None)) if nullable else declared.type
    is_array = typing.get_origin(inner) is tuple
    element = typing.get_args(inner)[0] if is_array else inner
    is_message = dataclasses.is_dataclass(element)
    kafka_type = declared.metadata.get("kafka_type", "")
    kind = element.__name__ if is_message else KINDS.get(kafka_type, kafka_type)

    default: object = declared.default
    if is_array or is_message:
        # The default of an array is empty and that of a struct is its fields' defaults, or either is null.
        if default is not dataclasses.MISSING and default is not None:
            if default != (() if is_array else element()):
                raise ValueError(f"{declared.name} has the composed default {default!r}")
            default = dataclasses.MISSING
    elif kafka_type == "datetime_i64":
        # kio reads -1 as None; to us a time is a plain number.
        default = -1 if default is None else dataclasses.MISSING
        nullable = False
    elif kind == "uuid":
        default, nullable = dataclasses.MISSING, False
    elif default is not dataclasses.MISSING:
        default = plain(default)
    return VersionedField(
        kind=kind,
        is_message=is_message,
        is_array=is_array,
        nullable=nullable,
        tag=declared.metadata.get("tag"),
        default=default,
    )


def field_name(declared: dataclasses.Field[object]) -> str:
    in_ms = declared.metadata.get("kafka_type") in MILLISECONDS
    return f"{declared.name}_ms" if in_ms and not declared.name.endswith("_ms") else declared.name


def wire_order(orders: list[list[str]]) -> list[str]:
    """One order of all names that agrees with every version's own; the newest decides what is open."""
    after: dict[str, set[str]] = {}
    for order in orders:
        for position, name in enumerate(order):
            after.setdefault(name, set()).update(order[:position])
    preferred = list(dict.fromkeys(name for order in reversed(orders) for name in order))
    result: list[str] = []
    while len(result) < len(preferred):
        result.append(next(n for n in preferred if n not in result and after[n] <= set(result)))
    return result


def merge_field(owner: str, name: str, found: dict[int, VersionedField], last: int) -> MergedField:
    shapes = {(entry.kind, entry.is_array, entry.tag, entry.default) for entry in found.values()}
    if len(shapes) != 1:
        raise ValueError(f"{name} changes between versions: {shapes}")
    first = next(iter(found.values()))
    nullable = [version for version, entry in found.items() if entry.nullable]
    default = None if (owner, name) in LOST_NULL_DEFAULTS else first.default
    if default is dataclasses.MISSING and nullable and not first.is_array and first.kind in NULL_BY_DEFAULT:
        default = None
    empty = {"string": "", "bytes": b"", "float64": 0.0, "bool": False}.get(first.kind, 0)
    if default is not dataclasses.MISSING and default == empty and type(default) is type(empty):
        default = dataclasses.MISSING
    return MergedField(
        name=name,
        kind=first.kind,
        is_message=first.is_message,
        is_array=first.is_array,
        versions=versions_text(list(found), last),
        null=versions_text(nullable, last) if nullable else "",
        tag=first.tag,
        default=default,
    )


def kio_classes(api: str, version: int, side: str) -> Iterator[type]:
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{side}")
    for value in vars(module).values():
        is_class = isinstance(value, type) and dataclasses.is_dataclass(value)
        if is_class and value.__module__ == module.__name__:
            yield value


def merge_side(api: str, versions: list[int], side: str) -> tuple[list[MergedClass], int | None]:
    """All classes of the request or of the response, parts before wholes, and the first flexible version."""
    fields: dict[str, dict[str, dict[int, VersionedField]]] = {}
    orders: dict[str, list[list[str]]] = {}
    class_orders: list[list[str]] = []
    flexible = set()
    for version in versions:
        class_orders.append([])
        for cls in kio_classes(api, version, side):
            class_orders[-1].append(cls.__name__)
            if cls.__flexible__:  # type: ignore[attr-defined]
                flexible.add(version)
            declared = dataclasses.fields(cls)
            orders.setdefault(cls.__name__, []).append([field_name(f) for f in declared])
            merged = fields.setdefault(cls.__name__, {})
            for entry in declared:
                merged.setdefault(field_name(entry), {})[version] = versioned_field(entry)
    if flexible and sorted(flexible) != [v for v in versions if v >= min(flexible)]:
        raise ValueError(f"{api} {side} is flexible in {sorted(flexible)} only")
    classes = [
        MergedClass(
            name=name,
            fields=tuple(
                merge_field(name, field, fields[name][field], versions[-1]) for field in wire_order(orders[name])
            ),
        )
        for name in wire_order(class_orders)
    ]
    return classes, min(flexible, default=None)


def merge_api(name: str) -> Api:
    versions = sorted(schema_name_map[name])
    versions_text(versions, versions[-1])
    request, flexible = merge_side(name, versions, "request")
    response, response_flexible = merge_side(name, versions, "response")
    if flexible != response_flexible:
        raise ValueError(f"{name} becomes flexible at {flexible} and at {response_flexible}")
    # A part that is the same on both sides is one class; two that differ are named after their side.
    by_name = {cls.name: cls for cls in request}
    clashing = {cls.name for cls in response if cls.name in by_name and cls != by_name[cls.name]}
    for cls in response:  # parts come before wholes: what contains one of two differs, too
        if cls.name in by_name and any(f.is_message and f.kind in clashing for f in cls.fields):
            clashing.add(cls.name)
    shared = {cls.name for cls in response if cls.name in by_name} - clashing
    request = [renamed(cls, clashing, "Request") for cls in request]
    response = [renamed(cls, clashing, "Response") for cls in response if cls.name not in shared]
    return Api(
        name=name,
        key=next(key for key, known in api_key_map.items() if known == name),
        first=versions[0],
        last=versions[-1],
        flexible=flexible,
        classes=(*request, *response),
        request=request[-1].name,
        response=response[-1].name,
    )


def renamed(cls: MergedClass, clashing: set[str], side: str) -> MergedClass:
    return MergedClass(
        name=side + cls.name if cls.name in clashing else cls.name,
        fields=tuple(
            dataclasses.replace(f, kind=side + f.kind) if f.is_message and f.kind in clashing else f for f in cls.fields
        ),
    )


def module_source(api: Api) -> str:
    declarations = "\n\n\n".join(class_source(api, cls) for cls in api.classes)
    imports = ["Buffer"] if ": Buffer" in declarations else []
    imports += ["Message", "field"] if "= field(" in declarations else ["Message"]
    uuid = "from uuid import UUID\n\n" if "UUID" in declarations else ""
    exported = "\n".join(f'    "{cls.name}",' for cls in api.classes)
    return f'''"""{title(api.name)}: api key {api.key}, versions {api.first} to {api.last}.

Generated by tools/generate_messages.py; do not edit.
"""

from __future__ import annotations

{uuid}from onceflow.wire.schema import {", ".join(imports)}

__all__ = [
{exported}
]


{declarations}
'''


def class_source(api: Api, cls: MergedClass) -> str:
    keywords = [f"flexible={api.flexible}"]
    if cls.name in (api.request, api.response):
        keywords = [f"api_key={api.key}", f"versions=({api.first}, {api.last})", *keywords]
    lines = [f"class {cls.name}(Message, {', '.join(keywords)}):"]
    return "\n".join(lines + ([f.declaration() for f in cls.fields] or ["    pass"]))


def title(api: str) -> str:
    return "".join(word.capitalize() for word in api.split("_"))


def index_source(apis: list[Api]) -> str:
    rows = "\n".join(
        f'    {a.key}: ApiSchema("{a.name}", "{a.request}", "{a.response}", {a.first}, {a.last}, {a.flexible}),'
        for a in sorted(apis, key=lambda a: a.key)
    )
    return f'''"""The messages of Kafka's protocol, one module per API, and their index by api key.

Generated by tools/generate_messages.py; do not edit.

Importing this package imports none of the modules: a class is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from onceflow.wire.schema import Message

__all__ = ["REQUESTS", "ApiSchema", "request_class", "request_is_flexible", "response_class"]


class ApiSchema(NamedTuple):
    """What is known of an API without loading its classes."""

    name: str
    """Also the name of its module here."""
    request: str
    response: str
    min_version: int
    max_version: int
    flexible_from: int | None


REQUESTS: Final[dict[int, ApiSchema]] = {{
{rows}
}}


def request_is_flexible(api_key: int, version: int) -> bool:
    """Whether this version has compact lengths and tagged fields.

    Also right for versions yet unknown, which an ApiVersions request may have. An unknown api is taken as not
    flexible.
    """
    api = REQUESTS.get(api_key)
    return api is not None and api.flexible_from is not None and version >= api.flexible_from


def request_class(api_key: int) -> type[Message]:
    """The request's class; a KeyError for an api that is not in the index."""
    api = REQUESTS[api_key]
    return _load(api.name, api.request)


def response_class(api_key: int) -> type[Message]:
    """The response's class; a KeyError for an api that is not in the index."""
    api = REQUESTS[api_key]
    return _load(api.name, api.response)


def _load(module: str, name: str) -> type[Message]:
    cls: type[Message] = getattr(importlib.import_module(f"{{__name__}}.{{module}}"), name)
    return cls
'''


def formatted(source: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    command: list[str | Path] = [
        ruff,
        "format",
        "--line-length",
        str(LINE_LENGTH),
        "--stdin-filename",
        TARGET / "x.py",
        "-",
    ]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def generate() -> dict[Path, str]:
    apis = [merge_api(name) for name in APIS]
    files = {TARGET / f"{api.name}.py": module_source(api) for api in apis}
    files[TARGET / "__init__.py"] = index_source(apis)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the message classes from kio's schemas.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    check = parser.parse_args().check

    files = {path: formatted(source) for path, source in generate().items()}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    orphans = [path for path in TARGET.glob("*.py") if path not in files]
    for path in stale:
        print(f"{'differs' if check else 'writing'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(files[path])
    for path in orphans:
        print(f"no API of this name is generated: {path.relative_to(ROOT)}")
    return 1 if check and (stale or orphans) else 0


if __name__ == "__main__":
    sys.exit(main())

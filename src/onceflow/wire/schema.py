"""What a protocol message is: a class whose fields carry their own place on the wire.

    class MetadataRequestTopic(Message, flexible=9):
        topic_id: UUID | None = field("uuid", "10+")
        name: str | None = field("string", "0+", null="10+", default=None)

- One class serves all versions of a message: it has every field that any version has, in wire order. A
  field that a version lacks keeps its default when that version is read, and is left out when it is
  written.
- Every field has a default, and no two messages share a mutable one.
- `"10+"` means from version 10, `"3-5"` from 3 to 5; `null` is the range in which the field may be null. A
  field with a `tag` travels in the tagged section (KIP-482), only when it differs from its default.
- Kinds: `int8 int16 int32 int64 uint16 uint32 float64 bool uuid string bytes records`, another message
  class, or a list holding one of these for an array. The all-zero uuid is None.

Not `@dataclass`: that compiles its methods at import, for some two hundred classes of which a run uses a
few. Here a class costs microseconds, and its `__init__` is compiled at its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeAlias, dataclass_transform

__all__ = ["Buffer", "Field", "Kind", "Message", "field", "in_range"]

Buffer: TypeAlias = bytes | bytearray | memoryview

Kind: TypeAlias = "str | type[Message]"

IMPLICIT_DEFAULTS: Final[dict[str, object]] = {
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uint16": 0,
    "uint32": 0,
    "float64": 0.0,
    "bool": False,
    "uuid": None,
    "string": "",
    "bytes": b"",
    "records": b"",
}

_UNSET: Final[Any] = object()


def in_range(version: int, versions: str) -> bool:
    """Whether `version` lies in a range such as `"4+"`, `"2-5"` or `"3"`; `""` is the empty one."""
    if not versions:
        return False
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    first, _, last = versions.partition("-")
    return int(first) <= version <= int(last or first)


class Field:
    """Where one field of a message stands on the wire."""

    __slots__ = ("default", "is_array", "kind", "name", "null", "tag", "versions")

    def __init__(self, kind: Kind | list[Any], versions: str, null: str, default: Any, tag: int | None) -> None:
        self.name = ""
        self.is_array = isinstance(kind, list)
        self.kind: Kind = kind[0] if isinstance(kind, list) else kind
        self.versions = versions
        self.null = null
        self.tag = tag
        if default is _UNSET:
            default = IMPLICIT_DEFAULTS[kind] if isinstance(kind, str) else _UNSET
        self.default = default

    @property
    def is_built(self) -> bool:
        """Whether the default is a list or a message, so that every message needs its own."""
        return self.default is _UNSET

    def build_default(self) -> Any:
        if self.default is not _UNSET:
            return self.default
        if self.is_array:
            return []
        assert not isinstance(self.kind, str)
        return self.kind()


def field(
    kind: Kind | list[Any], versions: str, *, null: str = "", default: Any = _UNSET, tag: int | None = None
) -> Any:
    """Declare a field; see the top of this file."""
    return Field(kind, versions, null, default, tag)


@dataclass_transform(kw_only_default=True)
class MessageType(type):
    """Turns the declared fields into slots."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        flexible: int | None = None,
        api_key: int | None = None,
        versions: tuple[int, int] | None = None,
    ) -> MessageType:
        fields = []
        for key, value in list(namespace.items()):
            if isinstance(value, Field):
                value.name = key
                fields.append(value)
                del namespace[key]
        namespace["__slots__"] = tuple(entry.name for entry in fields)
        namespace["FIELDS"] = tuple(fields)
        namespace["FLEXIBLE_FROM"] = flexible
        namespace["API_KEY"] = api_key
        namespace["VERSIONS"] = versions
        return super().__new__(mcs, name, bases, namespace)


class Message(metaclass=MessageType):
    """A message, or a part of one. Mutable, compared by value, built with keywords only."""

    FIELDS: ClassVar[tuple[Field, ...]]
    FLEXIBLE_FROM: ClassVar[int | None]
    """The first version with compact lengths and tagged fields; None if there is none."""
    API_KEY: ClassVar[int | None]
    """None in the parts of a message."""
    VERSIONS: ClassVar[tuple[int, int] | None]
    """First and last version known; None in the parts of a message."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        # Reached once per class: from then on the class has its own.
        own = _compile_init(type(self))
        type.__setattr__(type(self), "__init__", own)
        own(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, entry.name) == getattr(other, entry.name) for entry in self.FIELDS)

    def __repr__(self) -> str:
        """Only what differs from the defaults: most messages are mostly defaults."""
        shown = (
            f"{entry.name}={value!r}"
            for entry in self.FIELDS
            if (value := getattr(self, entry.name)) != entry.build_default()
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def _compile_init(cls: type[Message]) -> Callable[..., None]:
    names: dict[str, Any] = {"_unset": _UNSET}
    parameters = []
    body = []
    for entry in cls.FIELDS:
        name = entry.name
        if entry.is_built:
            names[f"_new_{name}"] = entry.build_default
            parameters.append(f"{name}=_unset")
            body.append(f"    self.{name} = _new_{name}() if {name} is _unset else {name}")
        else:
            names[f"_default_{name}"] = entry.default
            parameters.append(f"{name}=_default_{name}")
            body.append(f"    self.{name} = {name}")
    signature = ", ".join(["self", "*", *parameters] if parameters else ["self"])
    source = "\n".join([f"def __init__({signature}):", *(body or ["    pass"])])
    exec(source, names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init

"""Writes, for a message class and a version, the Python source that reads or writes it, and compiles it.

The loop over fields and the questions (flexible? nullable? in this version?) are answered once, here; the
source has none of them left. Neighbouring fields of fixed size become one `struct` call, and the byte of an
empty tagged section is read and written along with the numbers before it.

Invariants of the readers:

- A length is compared with the bytes left before anything is allocated for it, and an array's count with
  the bytes left divided by the least size of an element. That is never zero: `compile_reader` refuses such
  a schema. An array of more than `ARRAY_LENGTH_MAX` elements is refused whatever there is room for: small
  elements become large objects, and each has to be dealt with.
- A slice never stands for a check, for slicing past the end shortens silently. Reading a byte or a `struct`
  past the end raises IndexError or struct.error; `codec` turns these into the message that the input is cut
  short.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from onceflow.wire import primitives
from onceflow.wire.schema import Buffer, Field, Kind, Message, in_range

__all__ = [
    "CountingReader",
    "Reader",
    "Writer",
    "compile_counting_reader",
    "compile_reader",
    "compile_writer",
    "is_flexible",
]

Reader: TypeAlias = Callable[[Buffer, int, int], "tuple[Any, int]"]
"""(data, where the message begins, len(data)) -> (message, where it ends)"""
CountingReader: TypeAlias = Callable[[Buffer, int, int, list[int]], "tuple[Any, int]"]
"""The same with one number more, in a list: how many elements may still be read."""
Writer: TypeAlias = Callable[[Any, Callable[[Buffer], None]], None]
"""(message, what takes the pieces)"""

FIXED: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}
"""Kinds of fixed size, as `struct` knows them."""

NUMBERS: Final = {kind for kind in FIXED if kind != "uuid"}


def is_flexible(cls: type[Message], version: int) -> bool:
    """Whether this version has compact lengths and tagged fields (KIP-482)."""
    return cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM


_HELPERS: Final[dict[str, Any]] = {name: getattr(primitives, name) for name in primitives.__all__} | {
    "read_int16": struct.Struct(">h").unpack_from,
    "read_int32": struct.Struct(">i").unpack_from,
    "write_int16": struct.Struct(">h").pack,
    "write_int32": struct.Struct(">i").pack,
    "unpack_many": struct.unpack_from,
    "pack_many": struct.pack,
}


class _Source:
    """Lines of a function being written, and the objects they name."""

    def __init__(self, *, counts: bool = False) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = dict(_HELPERS)
        self.depth = 1
        self.counts = counts

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def block(self, head: str) -> _Block:
        self.add(head)
        return _Block(self)

    def name(self, value: Any, hint: str) -> str:
        """A name by which the source can say `value`."""
        name = f"{hint}_{len(self.names)}"
        self.names[name] = value
        return name

    def compile(self, signature: str, what: str) -> Any:
        source = "\n".join([f"def {signature}:", *self.lines])
        exec(compile(source, f"<{what}>", "exec"), self.names)
        return self.names[signature.partition("(")[0]]


class _Block:
    """Indents what is added inside `with`."""

    def __init__(self, source: _Source) -> None:
        self.source = source

    def __enter__(self) -> None:
        self.source.depth += 1

    def __exit__(self, *_: object) -> None:
        self.source.depth -= 1


def _is_fixed(field: Field) -> bool:
    return not field.is_array and isinstance(field.kind, str) and field.kind in FIXED


def _split(cls: type[Message], version: int) -> tuple[list[Field], list[Field], list[Field]]:
    """The fields of this version in wire order, its tagged fields by tag, and the fields it lacks."""
    present = [field for field in cls.FIELDS if in_range(version, field.versions)]
    untagged = [field for field in present if field.tag is None]
    tagged = sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)
    return untagged, tagged, [field for field in cls.FIELDS if field not in present]


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Neighbours of fixed size together, every other field alone."""
    runs: list[list[Field]] = []
    for field in fields:
        if runs and _is_fixed(field) and _is_fixed(runs[-1][-1]):
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


@functools.cache
def _least_size(kind: Kind, version: int, flexible: bool) -> int:
    """The fewest bytes that a value of this kind can take as an element of an array."""
    if isinstance(kind, str):
        if kind in FIXED:
            return struct.calcsize(">" + FIXED[kind])
        return 1 if flexible else 2 if kind == "string" else 4
    size = 1 if flexible else 0
    for field in _split(kind, version)[0]:
        if field.is_array:
            size += 1 if flexible else 4
        elif not isinstance(field.kind, str) and in_range(version, field.null):
            size += 1
        else:
            size += _least_size(field.kind, version, flexible)
    return size


# A reader's variables: data, at (the position), end (len(data)), m (the message), n (a length), left (the budget).


@functools.cache
def compile_reader(cls: type[Message], version: int) -> Reader:
    reader: Reader = _compile_reader(cls, version, _Source())
    return reader


@functools.cache
def compile_counting_reader(cls: type[Message], version: int) -> CountingReader:
    reader: CountingReader = _compile_reader(cls, version, _Source(counts=True))
    return reader


def _compile_reader(cls: type[Message], version: int, source: _Source) -> Any:
    flexible = is_flexible(cls, version)
    untagged, tagged, absent = _split(cls, version)
    source.add(f"m = {source.name(cls.__new__, 'new')}({source.name(cls, 'cls')})")
    # A tagged field may be there or not; what is absent gets its default in either case.
    for field in (*absent, *tagged):
        source.add(f"m.{field.name} = {_default_source(source, field)}")

    runs = _runs(untagged)
    for run in runs:
        if _is_fixed(run[0]):
            # A section without tagged fields is one zero byte: read along with the numbers before it.
            with_tags = flexible and run is runs[-1]
            _read_run(source, run, with_tags)
            if with_tags:
                _read_tags(source, cls, version, tagged, counted=True)
                break
        else:
            _read_value(source, cls, run[0], version, flexible)
    else:
        if flexible:
            _read_tags(source, cls, version, tagged, counted=False)
    source.add("return m, at")
    parameters = "data, at, end, left" if source.counts else "data, at, end"
    return source.compile(f"read({parameters})", f"reader of {cls.__name__} version {version}")


def _nested_read(source: _Source, cls: type[Message], version: int) -> str:
    """An expression that reads a message of this class at the position."""
    if source.counts:
        return f"{source.name(compile_counting_reader(cls, version), 'read')}(data, at, end, left)"
    return f"{source.name(compile_reader(cls, version), 'read')}(data, at, end)"


def _charge(source: _Source, count: str, what: str) -> None:
    """Takes what is about to be read from the budget."""
    if source.counts:
        source.add(f"left[0] -= {count}")
        with source.block("if left[0] < 0:"):
            source.add(f"refuse_work({what})")


def _default_source(source: _Source, field: Field) -> str:
    if not field.is_built:
        return repr(field.default)
    return "[]" if field.is_array else source.name(field.kind, "cls") + "()"


def _read_run(source: _Source, run: list[Field], with_tags: bool) -> None:
    fixed = struct.Struct(">" + "".join(FIXED[str(field.kind)] for field in run) + ("B" if with_tags else ""))
    targets = [f"m.{field.name}" for field in run] + (["n"] if with_tags else [])
    source.add(f"{', '.join(targets)}, = {source.name(fixed.unpack_from, 'unpack')}(data, at)")
    source.add(f"at += {fixed.size}")
    for field in run:
        if field.kind == "uuid":
            source.add(f"m.{field.name} = to_uuid(m.{field.name})")


def _read_value(source: _Source, cls: type[Message], field: Field, version: int, flexible: bool) -> None:
    """Reads one field into `m`."""
    target = f"m.{field.name}"
    what = repr(f"{cls.__name__}.{field.name}")
    nullable = in_range(version, field.null)
    if field.is_array:
        least = _least_size(field.kind, version, flexible)
        if least == 0:
            raise TypeError(f"{what} version {version} has elements without any bytes")
        _read_length(source, "int32", flexible)
        with _null_or_length(source, target, what, nullable, least):
            with source.block(f"if n > {primitives.ARRAY_LENGTH_MAX}:"):
                source.add(f"refuse_many({what}, n)")
            _charge(source, "n", what)
            _read_array(source, target, what, field.kind, version, flexible)
    elif not isinstance(field.kind, str):
        read = _nested_read(source, field.kind, version)
        if nullable:
            # A byte tells: negative for null (KIP-893), but in a tagged field zero is.
            source.add("n = data[at]", "at += 1")
            with source.block("if n > 127:" if field.tag is None else "if n == 0:"):
                source.add(f"{target} = None")
            with source.block("else:"):
                source.add(f"{target}, at = {read}")
        else:
            source.add(f"{target}, at = {read}")
    elif field.kind in FIXED:
        _read_run(source, [field], with_tags=False)
    else:
        _read_length(source, "int16" if field.kind == "string" else "int32", flexible)
        with _null_or_length(source, target, what, nullable, 1, flexible and field.kind == "string"):
            _read_slice(source, target, field.kind)


def _read_length(source: _Source, legacy: str, flexible: bool) -> None:
    """Leaves -1 for null, else the length, in `n`."""
    if flexible:
        source.add("n = data[at]", "at += 1")
        with source.block("if n > 127:"):
            source.add("n, at = read_varint(data, at - 1)")
        source.add("n -= 1")
    else:
        source.add(f"n, = read_{legacy}(data, at)", f"at += {2 if legacy == 'int16' else 4}")


def _null_or_length(
    source: _Source, target: str, what: str, nullable: bool, least: int, is_string: bool = False
) -> _Block:
    """Checks `n`; what follows in the block is for a length that the data can hold.

    `is_string` is for one whose length is not bounded by the two bytes that it is written in.
    """
    needed = "n" if least == 1 else f"n * {least}"
    too_long = f" or n > {primitives.STRING_LENGTH_MAX}" if is_string else ""
    with source.block(f"if {needed} > end - at or n < -1{too_long}:"):
        source.add(f"{'refuse_string' if is_string else 'refuse'}({what}, n, end - at)")
    with source.block("if n < 0:"):
        source.add(f"{target} = None" if nullable else f"refuse_null({what})")
    return source.block("else:")


def _read_slice(source: _Source, target: str, kind: str) -> None:
    """Reads `n` bytes, known to be there."""
    piece = "data[at : at + n]"
    if kind == "string":
        source.add(f'{target} = str({piece}, "utf-8")')
    elif kind == "bytes":
        source.add(f"{target} = bytes({piece})")
    else:
        source.add(f"{target} = memoryview(data)[at : at + n]")
    source.add("at += n")


def _read_array(source: _Source, target: str, what: str, kind: Kind, version: int, flexible: bool) -> None:
    """Reads `n` elements, for which there is room."""
    if isinstance(kind, str) and kind in NUMBERS:
        code = FIXED[kind]
        source.add(f'{target} = list(unpack_many(f">{{n}}{code}", data, at))')
        source.add(f"at += n * {struct.calcsize('>' + code)}")
        return
    source.add("items = []")
    with source.block("for _ in range(n):"):
        if not isinstance(kind, str):
            source.add(f"item, at = {_nested_read(source, kind, version)}")
        elif kind == "uuid":
            source.add("item = to_uuid(bytes(data[at : at + 16]))", "at += 16")
        else:
            _read_length(source, "int16" if kind == "string" else "int32", flexible)
            with _null_or_length(source, "item", what, False, 1, flexible and kind == "string"):
                _read_slice(source, "item", kind)
        source.add("items.append(item)")
    source.add(f"{target} = items")


def _read_tags(source: _Source, cls: type[Message], version: int, tagged: list[Field], *, counted: bool) -> None:
    """Reads the tagged section; if `counted`, its first byte is in `n` already."""
    if not counted:
        source.add("n = data[at]", "at += 1")
    with source.block("if n:"):
        if not tagged:
            if source.counts:
                source.add("count, _ = read_varint(data, at - 1)")
                _charge(source, "count", repr(f"{cls.__name__}, in tagged fields,"))
            source.add("at = skip_tags(data, at - 1, end)")
            return
        source.add("count, at = read_varint(data, at - 1)")
        with source.block(f"if count > {primitives.TAGS_MAX}:"):
            source.add("refuse_tags(count)")
        _charge(source, "count", repr(f"{cls.__name__}, in tagged fields,"))
        with source.block("for _ in range(count):"):
            source.add("tag, at = read_varint(data, at)")
            source.add("size, at = read_varint(data, at)")
            with source.block("if size > end - at:"):
                source.add("refuse('A tagged field', size, end - at)")
            source.add("start = at")
            branch = "if"
            for field in tagged:
                with source.block(f"{branch} tag == {field.tag}:"):
                    _read_value(source, cls, field, version, flexible=True)
                    with source.block("if at - start != size:"):
                        source.add(f"refuse_tag({field.name!r}, size, at - start)")
                branch = "elif"
            with source.block("else:"):
                source.add("at += size")


# A writer's variables: m (the message), put (takes the pieces), v (the value at hand).


@functools.cache
def compile_writer(cls: type[Message], version: int) -> Writer:
    flexible = is_flexible(cls, version)
    untagged, tagged, _ = _split(cls, version)
    source = _Source()
    pending_tags = flexible
    runs = _runs(untagged)
    for run in runs:
        if _is_fixed(run[0]):
            # The usual end of a message is an empty tagged section: one zero byte, packed along.
            with_tags = flexible and not tagged and run is runs[-1]
            pending_tags = pending_tags and not with_tags
            _write_run(source, run, with_tags)
        else:
            _write_value(source, run[0], version, flexible, "put")
    if pending_tags:
        _write_tags(source, version, tagged)
    source.add("return None")
    writer: Writer = source.compile("write(m, put)", f"writer of {cls.__name__} version {version}")
    return writer


def _write_run(source: _Source, run: list[Field], with_tags: bool, put: str = "put") -> None:
    pack = struct.Struct(">" + "".join(FIXED[str(field.kind)] for field in run) + ("x" if with_tags else "")).pack
    values = [
        f"(ZERO_UUID if m.{field.name} is None else m.{field.name}.bytes)"
        if field.kind == "uuid"
        else f"m.{field.name}"
        for field in run
    ]
    source.add(f"{put}({source.name(pack, 'pack')}({', '.join(values)}))")


def _write_value(source: _Source, field: Field, version: int, flexible: bool, put: str) -> None:
    nullable = in_range(version, field.null)
    if _is_fixed(field):
        _write_run(source, [field], with_tags=False, put=put)
        return
    source.add(f"v = m.{field.name}")
    if not field.is_array and not isinstance(field.kind, str):
        write = source.name(compile_writer(field.kind, version), "write")
        if nullable:
            null = b"\xff" if field.tag is None else b"\0"
            with source.block("if v is None:"):
                source.add(f"{put}({null!r})")
            with source.block("else:"):
                source.add(f'{put}(b"\\x01")', f"{write}(v, {put})")
        else:
            with source.block("if v is None:"):
                source.add(f"v = {source.name(field.kind, 'cls')}()")
            source.add(f"{write}(v, {put})")
        return

    is_short = field.kind == "string" and not field.is_array
    with source.block("if v is None:"):
        if nullable:
            source.add(f"{put}({_null_length(is_short, flexible)})")
        else:
            empty = () if field.is_array else field.default
            if empty is None:
                empty = "" if field.kind == "string" else b""
            source.add(f"v = {empty!r}")
    with source.block("else:") if nullable else contextlib.nullcontext():
        if field.is_array:
            _write_array(source, field.kind, version, flexible, put)
        else:
            _write_slice(source, str(field.kind), flexible, put)


def _null_length(is_short: bool, flexible: bool) -> str:
    return 'b"\\0"' if flexible else 'b"\\xff\\xff"' if is_short else 'b"\\xff\\xff\\xff\\xff"'


def _length_source(value: str, is_short: bool, flexible: bool) -> str:
    if flexible:
        return f"varint({value} + 1)"
    return f"write_int16({value})" if is_short else f"write_int32({value})"


def _write_slice(source: _Source, kind: str, flexible: bool, put: str) -> None:
    """Writes the string or bytes in `v`."""
    if kind == "string":
        source.add("v = v.encode()")
    # A view may have elements of any width; its length on the wire is in bytes.
    size = "(v.nbytes if type(v) is memoryview else len(v))" if kind == "records" else "len(v)"
    source.add(f"{put}({_length_source(size, kind == 'string', flexible)})", f"{put}(v)")


def _write_array(source: _Source, kind: Kind, version: int, flexible: bool, put: str) -> None:
    """Writes the list in `v`."""
    source.add(f"{put}({_length_source('len(v)', False, flexible)})")
    if isinstance(kind, str) and kind in NUMBERS:
        source.add(f'{put}(pack_many(f">{{len(v)}}{FIXED[kind]}", *v))')
        return
    with source.block("for e in v:"):
        if not isinstance(kind, str):
            source.add(f"{source.name(compile_writer(kind, version), 'write')}(e, {put})")
        elif kind == "uuid":
            source.add(f"{put}(ZERO_UUID if e is None else e.bytes)")
        else:
            source.add("v = e")
            _write_slice(source, kind, flexible, put)


def _write_tags(source: _Source, version: int, tagged: list[Field]) -> None:
    if not tagged:
        source.add('put(b"\\0")')
        return
    source.add("tags = []")
    for field in tagged:
        with source.block(f"if {_differs(f'm.{field.name}', field, version)}:"):
            source.add("parts = []")
            _write_value(source, field, version, True, "parts.append")
            source.add(f'tags.append(({primitives.varint(field.tag or 0)!r}, b"".join(parts)))')
    source.add("put(varint(len(tags)))")
    with source.block("for tag, piece in tags:"):
        source.add("put(tag)", "put(varint(len(piece)))", "put(piece)")


def _differs(value: str, field: Field, version: int) -> str:
    """An expression: is this field other than its default? None is the default where null is not allowed."""
    if field.is_array:
        test = f"{value} is not None" if field.default is None else f"{value} != []"
    elif not isinstance(field.kind, str):
        if field.default is None:
            return f"{value} is not None"
        untagged, tagged, _ = _split(field.kind, version)
        inner = [_differs(f"{value}.{part.name}", part, version) for part in (*untagged, *tagged)]
        test = f"({' or '.join(inner)})" if inner else "False"
        if in_range(version, field.null):
            return f"({value} is None or {test})"
    else:
        test = f"{value} is not None" if field.default is None else f"{value} != {field.default!r}"
    return test if in_range(version, field.null) else f"({value} is not None and {test})"

"""Every generated message in every version, against two other readings of Kafka's schemas: kio's codec, and
the schema files that kafka-python ships. And every request decoder against bytes that no client meant.

kio's reader is native and aborts the process on a malformed length: it only gets bytes that are well formed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import importlib
import importlib.util
import io
import json
import random
import re
import subprocess
import sys
import tracemalloc
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from tests.support.effort import examples

from onceflow.errors import MalformedMessage
from onceflow.wire.codec import decode, encode, encode_large
from onceflow.wire.messages import REQUESTS, request_class, response_class
from onceflow.wire.schema import Field, Message, in_range

ROOT = Path(__file__).resolve().parents[3]
API_NAMES = {api.name: key for key, api in REQUESTS.items()}
by_api = pytest.mark.parametrize("api", API_NAMES)
seeds = st.integers(0, 2**64 - 1)


def versions(api: str) -> range:
    schema = REQUESTS[API_NAMES[api]]
    return range(schema.min_version, schema.max_version + 1)


def both_sides(api: str) -> Iterator[tuple[str, type[Message]]]:
    yield "request", request_class(API_NAMES[api])
    yield "response", response_class(API_NAMES[api])


@functools.cache
def kio_class(cls: type[Message], api: str, side: str, version: int) -> Any:
    return getattr(importlib.import_module(f"kio.schema.{api}.v{version}.{side}"), cls.__name__)


# --- random values, made from kio's idea of the fields: if ours differs, the bytes will

INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "timedelta_i32": (-(2**31), 2**31 - 1),
    "timedelta_i64": (0, 10**14),
}
ERROR_CODES = [int(code) for code in KioErrorCode]
ALPHABET = "abcABC019._- /é中\U0001f41f\0"


@dataclasses.dataclass(frozen=True)
class KioField:
    """A field of kio's, taken apart, with the name that it has here."""

    kio_name: str
    name: str
    kafka_type: str
    element: Any
    is_message: bool
    is_array: bool
    nullable: bool


@functools.cache
def kio_fields(kio: Any, cls: Any) -> tuple[KioField, ...]:
    ours = {entry.name for entry in cls.FIELDS}
    result = []
    for declared in dataclasses.fields(kio):
        arguments = typing.get_args(declared.type)
        nullable = type(None) in arguments
        inner = next(a for a in arguments if a is not type(None)) if nullable else declared.type
        is_array = typing.get_origin(inner) is tuple
        element = typing.get_args(inner)[0] if is_array else inner
        name = declared.name if declared.name in ours else f"{declared.name}_ms"
        kafka_type = declared.metadata.get("kafka_type", "")
        is_message = dataclasses.is_dataclass(element)
        result.append(KioField(declared.name, name, kafka_type, element, is_message, is_array, nullable))
    return tuple(result)


def random_message(cls: type[Message], kio: type, rng: random.Random) -> Any:
    ours = {entry.name: entry for entry in cls.FIELDS}
    values: dict[str, Any] = {}
    for field in kio_fields(kio, cls):
        kind = ours[field.name].kind
        may_be_default = field.nullable or ours[field.name].build_default() is not None
        if may_be_default and rng.random() < 0.15:
            continue
        if field.nullable and rng.random() < 0.3 and field.kafka_type != "datetime_i64":
            values[field.name] = None
        elif field.is_array:
            count = rng.choice([0, 1, 1, 2, 3]) if rng.random() < 0.98 or field.is_message else 150
            values[field.name] = [random_value(field, kind, rng) for _ in range(count)]
        else:
            values[field.name] = random_value(field, kind, rng)
    return cls(**values)


def random_value(field: KioField, kind: Any, rng: random.Random) -> Any:
    if field.is_message:
        return random_message(kind, field.element, rng)
    match field.kafka_type:
        case "string":
            length = rng.choice([0, 1, 5, 20]) if rng.random() < 0.97 else rng.choice([63, 64, 127, 128, 5000])
            return "".join(rng.choices(ALPHABET, k=length))
        case "bytes" | "records":
            return rng.randbytes(rng.choice([0, 1, 126, 127, 128, 300]))
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.uniform(-1e9, 1e9)
        case "uuid":
            return rng.choice([None, uuid.UUID(int=rng.getrandbits(128) | 1)])
        case "error_code":
            return rng.choice(ERROR_CODES)
        case "datetime_i64":
            return 1000 * rng.randrange(4 * 10**9)
        case number:
            low, high = INTEGERS[number]
            return rng.choice([0, -1 if low else 1, low, high, rng.randint(low, high)])


def as_ours(value: Any) -> Any:
    """A value of kio's as it should stand in our message."""
    match value:
        case datetime.timedelta():
            return value // datetime.timedelta(milliseconds=1)
        case datetime.datetime():
            return round(value.timestamp() * 1000)
        case tuple():
            return [as_ours(element) for element in value]
        case _:
            return value


def assert_same(ours: Any, kio: Any, path: str) -> None:
    names = kio_fields(type(kio), type(ours))
    for field in names:
        mine, theirs = getattr(ours, field.name), getattr(kio, field.kio_name)
        here = f"{path}.{field.name}"
        if field.is_message and field.is_array and mine is not None:
            assert len(mine) == len(theirs), here
            for position, (left, right) in enumerate(zip(mine, theirs, strict=True)):
                assert_same(left, right, f"{here}[{position}]")
        elif field.is_message and mine is not None:
            assert_same(mine, theirs, here)
        elif field.kafka_type == "datetime_i64" and theirs is None:
            assert mine == -1, here
        else:
            assert mine == as_ours(theirs), here


# --- tests


@by_api
@examples(10, soak=200)
@given(seed=seeds)
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(api: str, seed: int) -> None:
    rng = random.Random(seed)
    for side, cls in both_sides(api):
        for version in versions(api):
            kio = kio_class(cls, api, side, version)
            message = random_message(cls, kio, rng)
            ours = encode(message, version)
            assert encode_large(message, version) == ours

            theirs, size = entity_reader(kio)(ours, 0)
            assert size == len(ours)
            assert_same(message, theirs, f"{cls.__name__} v{version}")

            buffer = io.BytesIO()
            entity_writer(kio)(buffer, theirs)
            assert buffer.getvalue() == ours
            assert decode(cls, version, buffer.getvalue()) == message


@by_api
def test_a_message_of_defaults_is_the_same_to_kio(api: str) -> None:
    for side, cls in both_sides(api):
        for version in versions(api):
            kio = kio_class(cls, api, side, version)
            data = encode(cls(), version)
            theirs, size = entity_reader(kio)(data, 0)
            assert size == len(data)
            back = decode(cls, version, data)
            assert_same(back, theirs, f"{cls.__name__} v{version}")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One of the things that happen to bytes: lost, repeated, changed, or a length made absurd."""
    if not data or rng.random() < 0.1:
        return rng.randbytes(rng.randrange(64))
    at = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + rng.randbytes(rng.randrange(1, 5)) + data[at:]
        case 2:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 3:
            huge = rng.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80\0\0\0", b"\xff\xff\xff\xfe"])
            return data[:at] + huge + data[at + len(huge) :]
        case _:
            return data[:at] + data[at + 1 :]


@by_api
@examples(10, soak=200)
@given(seed=seeds)
def test_damaged_requests_are_refused_or_read_and_nothing_else(api: str, seed: int) -> None:
    rng = random.Random(seed)
    cls = request_class(API_NAMES[api])
    for version in versions(api):
        data = encode(random_message(cls, kio_class(cls, api, "request", version), rng), version)
        for _ in range(10):
            damaged = mutated(data, rng)
            with contextlib.suppress(MalformedMessage):
                again = encode(decode(cls, version, damaged), version)
                assert encode(decode(cls, version, again), version) == again


@by_api
def test_absurd_lengths_take_no_memory(api: str) -> None:
    """Frames that are all lengths: whatever field they fall on, they claim gigabytes."""
    cls = request_class(API_NAMES[api])
    fillings = [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff\x07",
        b"\x7f",
        b"\0\0\x07",
        b"\xfe\xff\xff\xff\x0f",
        b"\x01\0",
    ]
    frames = [(filling * 4096)[:4096] for filling in fillings]
    for version in versions(api):
        with pytest.raises(MalformedMessage):  # and the decoder is compiled before memory counts
            decode(cls, version, b"\x7f" * 7)
        tracemalloc.start()
        try:
            for frame in frames:
                for start in range(12):
                    with contextlib.suppress(MalformedMessage):
                        decode(cls, version, frame[start:])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 150 * len(frames[0]), f"{cls.__name__} v{version} took {peak} bytes"


@by_api
def test_many_small_elements_take_memory_in_proportion(api: str) -> None:
    cls = request_class(API_NAMES[api])
    for version in versions(api):
        for field in cls.FIELDS:
            if not field.is_array or not in_range(version, field.versions):
                continue
            element = 0 if field.kind != "string" and isinstance(field.kind, str) else ""
            elements: list[Any] = [element if isinstance(field.kind, str) else field.kind()] * 300
            data = encode(cls(**{field.name: elements}), version)
            decode(cls, version, data)
            tracemalloc.start()
            try:
                decode(cls, version, data)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 80 * len(data), f"{cls.__name__}.{field.name} v{version}"


def test_the_generated_files_are_up_to_date() -> None:
    tool = [sys.executable, "tools/generate_messages.py", "--check"]
    result = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_the_codec_imports_no_message_module() -> None:
    script = "import sys, onceflow.wire.codec; print([m for m in sys.modules if 'wire.messages.' in m])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# --- Kafka's own schema files

KAFKA_PYTHON = importlib.util.find_spec("kafka")  # found, not imported: that takes long and warns
assert KAFKA_PYTHON is not None
assert KAFKA_PYTHON.origin is not None
SCHEMAS = Path(KAFKA_PYTHON.origin).parent / "protocol" / "schemas" / "resources"


def kafka_schema(name: str) -> Any:
    text = (SCHEMAS / f"{name}.json").read_text()
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def kafka_default(entry: Any) -> Any:
    """What Kafka's schema says, or None where it says nothing of a nullable string: see the generator."""
    kind, default = entry["type"], entry.get("default")
    if default == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind in ("string", "bytes", "records"):
        empty = "" if kind == "string" else b""
        return default if default is not None else None if "nullableVersions" in entry else empty
    if kind == "uuid":
        return None
    if kind == "bool":
        return str(default).lower() == "true"
    return 0 if default is None else int(str(default), 0)


def check_fields(cls: type[Message], entries: list[Any], common: dict[str, Any], span: range) -> None:
    ours = {field.name: field for field in cls.FIELDS}
    for entry in entries:
        present = [v for v in span if entry["versions"] != "none" and in_range(v, entry["versions"])]
        if not present:
            continue
        field: Field = ours.pop(snake_case(entry["name"]))
        # A part may say "0+" although the whole came later, or went; then ours has the range of the whole.
        if entry["versions"] == "0+":
            present = [v for v in present if in_range(v, field.versions)]
        assert [v for v in span if in_range(v, field.versions)] == present, field.name
        nullable = [v for v in present if in_range(v, entry.get("nullableVersions", ""))]
        assert [v for v in present if in_range(v, field.null)] == nullable, field.name
        assert field.tag == entry.get("tag"), field.name
        if field.tag is not None:
            assert all(in_range(v, entry["taggedVersions"]) for v in present), field.name
        kind = entry["type"].removeprefix("[]")
        assert field.is_array == entry["type"].startswith("[]"), field.name
        if isinstance(field.kind, str):
            assert field.kind == kind, field.name
            assert field.build_default() == kafka_default(entry), field.name
        else:
            check_fields(field.kind, entry.get("fields") or common[kind], common, span)
    assert not ours, cls


@by_api
def test_names_ranges_types_and_defaults_are_kafkas(api: str) -> None:
    for _, cls in both_sides(api):
        if not (SCHEMAS / f"{cls.__name__}.json").exists():
            assert api.startswith("consumer_group_")  # kafka-python does not have these two yet
            continue
        schema = kafka_schema(cls.__name__)
        assert cls.VERSIONS is not None
        first, last = cls.VERSIONS
        valid = schema["validVersions"]
        assert (f"{first}-{last}" if first < last else str(first)) == valid
        flexible = schema["flexibleVersions"]
        assert (None if flexible == "none" else int(flexible.removesuffix("+"))) == cls.FLEXIBLE_FROM
        common = {part["name"]: part["fields"] for part in schema.get("commonStructs", [])}
        check_fields(cls, schema["fields"], common, range(first, last + 1))

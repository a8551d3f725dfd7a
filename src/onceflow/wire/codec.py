"""Messages to bytes and back, and the headers before them.

Invariants:

- What comes from a peer either decodes or raises `MalformedMessage`; nothing else escapes.
- Time and memory are bounded by the length of the input, whatever it claims (`codegen` says how).
- Encoding trusts its caller: a value of the wrong type or range is a bug and raises ValueError. So does, in
  both directions, a version that the message does not have: the broker compares versions before it reads a
  body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from onceflow.errors import MalformedMessage
from onceflow.wire.codegen import (
    CountingReader,
    Reader,
    Writer,
    compile_counting_reader,
    compile_reader,
    compile_writer,
    is_flexible,
)
from onceflow.wire.messages import request_is_flexible
from onceflow.wire.primitives import refuse, skip_tags
from onceflow.wire.schema import Buffer, Message

__all__ = [
    "RequestHeader",
    "decode",
    "decode_from",
    "encode",
    "encode_large",
    "encode_parts",
    "is_flexible",
    "read_request_header",
    "request_header",
    "response_header",
]

M = TypeVar("M", bound=Message)

API_VERSIONS_KEY: Final = 18

_readers: Final[dict[tuple[type[Message], int], Reader]] = {}
_counting_readers: Final[dict[tuple[type[Message], int], CountingReader]] = {}
_writers: Final[dict[tuple[type[Message], int], Writer]] = {}


def decode(cls: type[M], version: int, data: Buffer, at: int = 0) -> M:
    """The message that fills `data` from `at` on. Its `records` are views into `data`, all else is copied."""
    message, end = decode_from(cls, version, data, at)
    if end != len(data):
        raise MalformedMessage(
            f"{cls.__name__} version {version} is complete, but {len(data) - end} more bytes follow."
        )
    return message


def decode_from(
    cls: type[M], version: int, data: Buffer, at: int = 0, elements_max: int | None = None
) -> tuple[M, int]:
    """The message that begins at `at`, and where it ends. More than `elements_max` elements in its arrays, all
    together, are refused before they are read."""
    try:
        if elements_max is None or len(data) - at <= elements_max:  # an element has at least a byte
            reader = _readers.get((cls, version)) or _load_reader(cls, version)
            message, end = reader(data, at, len(data))
        else:
            counting_reader = _counting_readers.get((cls, version)) or _load_counting_reader(cls, version)
            message, end = counting_reader(data, at, len(data), [elements_max])
    except (IndexError, struct.error):
        raise MalformedMessage(f"{cls.__name__} version {version} is cut short.") from None
    except UnicodeDecodeError:
        raise MalformedMessage(f"{cls.__name__} version {version} has a string that is not UTF-8.") from None
    return message, end


def encode(message: Message, version: int) -> bytes:
    """The message as bytes. Fields that this version lacks are left out, whatever they hold."""
    return b"".join(encode_parts(message, version))


def encode_large(message: Message, version: int) -> bytes:
    """As `encode`, without all the pieces at once: of many small ones they take ten times the memory of the result."""
    whole = bytearray()
    _write(message, version, whole.extend)
    return bytes(whole)


def encode_parts(message: Message, version: int) -> list[Buffer]:
    """The message in pieces whose concatenation is `encode`; records are passed through, not copied."""
    parts: list[Buffer] = []
    _write(message, version, parts.append)
    return parts


def _write(message: Message, version: int, put: Callable[[Buffer], None]) -> None:
    cls = type(message)
    writer = _writers.get((cls, version)) or _load_writer(cls, version)
    try:
        writer(message, put)
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"A value in this {cls.__name__} does not fit version {version}: {error}") from error


def _load_reader(cls: type[Message], version: int) -> Reader:
    _check_version(cls, version)
    return _readers.setdefault((cls, version), compile_reader(cls, version))


def _load_counting_reader(cls: type[Message], version: int) -> CountingReader:
    _check_version(cls, version)
    return _counting_readers.setdefault((cls, version), compile_counting_reader(cls, version))


def _load_writer(cls: type[Message], version: int) -> Writer:
    _check_version(cls, version)
    return _writers.setdefault((cls, version), compile_writer(cls, version))


def _check_version(cls: type[Message], version: int) -> None:
    if cls.VERSIONS is not None and not cls.VERSIONS[0] <= version <= cls.VERSIONS[1]:
        first, last = cls.VERSIONS
        raise ValueError(f"{cls.__name__} has the versions {first} to {last}, not {version}.")


# --- headers


class RequestHeader(NamedTuple):
    """What stands before the body of every request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    """Where the body begins in the frame."""


_REQUEST_HEADER: Final = struct.Struct(">hhih")
_INT32: Final = struct.Struct(">i")


def read_request_header(frame: Buffer, flexible: Callable[[int, int], bool] = request_is_flexible) -> RequestHeader:
    """The header of a request; `frame` begins after the length prefix.

    `flexible(api_key, version)` says which header it is. The client id has its old form in both, so that a
    broker can read this much of a request whose version it does not know.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame, 0)
        at = _REQUEST_HEADER.size
        client_id = None
        if length >= 0:
            if length > len(frame) - at:
                refuse("The client id", length, len(frame) - at)
            client_id = str(frame[at : at + length], "utf-8")
            at += length
        elif length < -1:
            refuse("The client id", length, len(frame) - at)
        if flexible(api_key, api_version):
            at = skip_tags(frame, at, len(frame))
    except (IndexError, struct.error):
        raise MalformedMessage("A request header is cut short.") from None
    except UnicodeDecodeError:
        raise MalformedMessage("The client id in a request header is not UTF-8.") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, at)


def request_header(cls: type[Message], version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header that a client puts before a request of this class."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if is_flexible(cls, version) else b""
    return _REQUEST_HEADER.pack(cls.API_KEY, version, correlation_id, length) + name + tags


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header that the broker puts before a response.

    ApiVersions has the old one in all versions: its client does not know yet what the broker can (KIP-511).
    """
    tags = b"\0" if api_key != API_VERSIONS_KEY and request_is_flexible(api_key, version) else b""
    return _INT32.pack(correlation_id) + tags

"""Small files that are replaced as a whole: JSON with a checksum of its own.

    {"crc32c": "e3069283", "offset": 20, ...}

The checksum is of the content without it, written without spaces and with sorted keys. So the file stays JSON that a
person can read, spaces do not count, and whatever else is not as it was written is found when the file is read:
`CorruptLog` names the file and says what to do. There is no other way to read or write such a file.

A person who has no backup may write {} into one: no damage looks like that, and it says that nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import google_crc32c

from onceflow.errors import ConfigError, CorruptLog, ProtocolError
from onceflow.log.files import FileSystem

__all__ = ["RESTORE", "from_json", "read_json", "reading_version", "replace_json", "to_json"]

CHECKSUM: Final = "crc32c"
RESTORE: Final = "Restore it from a backup of the directory."


def _checksum_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(text.encode()):08x}"


def to_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps({CHECKSUM: _checksum_of(content), **content}, indent=1).encode()


def from_json(data: bytes) -> dict[str, Any]:
    """The content without the checksum, or `ValueError` with the reason why it cannot be had. Empty for {}."""
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict) or (content and CHECKSUM not in content):
        raise ValueError("it has no checksum")
    if content and content.pop(CHECKSUM) != _checksum_of(content):
        raise ValueError("it fails its checksum")
    return content


def replace_json(files: FileSystem, path: Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """Raises `StorageError` with nothing changed."""
    files.replace(path, to_json(content), private=private)


def read_json(files: FileSystem, path: Path, remedy: str = RESTORE) -> dict[str, Any]:
    """`remedy` is a sentence: what to do about a file that is damaged."""
    try:
        return from_json(files.read_bytes(path))
    except ValueError as error:
        raise CorruptLog(f"{path} is damaged ({error}). {remedy}") from None


@contextmanager
def reading_version(version: int, path: Path, content: Mapping[str, Any], remedy: str = RESTORE) -> Iterator[None]:
    """Around making something of the content: what does not fit, another format version first, is `CorruptLog`."""
    try:
        if content["version"] != version:
            raise ValueError(f"its format is {content['version']!r}, and this version reads {version}")
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ConfigError, ProtocolError) as error:
        raise CorruptLog(f"{path} is damaged ({error}). {remedy}") from None

"""Java's properties files, in which Kafka's settings are kept: `name=value`, `#` for comments; a line that ends with
a backslash goes on in the next.

Errors name the file, the line and the setting, never a value: any may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onceflow.errors import ConfigError

__all__ = ["parse_properties", "read_properties"]

_NAME_AND_VALUE: Final = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*[=:\s]\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_MEANINGS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """Raises `ConfigError`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8.") from None
    return parse_properties(text, str(path))


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Raises `ConfigError`."""
    found: dict[str, str] = {}
    for number, line in _lines(text):
        parts = _NAME_AND_VALUE.fullmatch(line)
        if parts is None:
            raise ConfigError(f"{source}, line {number}: this is not NAME=VALUE.")
        name, value = (_ESCAPE.sub(_meaning, part) for part in parts.groups())
        if name in found:
            raise ConfigError(f"{source}, line {number}: {name} is set twice.")
        found[name] = value.strip()
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with something to say, with what they go on in, and their numbers."""
    begun, number_begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not begun and (not line or line[0] in "#!"):
            continue
        number_begun = number_begun if begun else number
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        begun += line[:-1] if goes_on else line
        if not goes_on:
            yield number_begun, begun
            begun = ""
    if begun:
        yield number_begun, begun


def _meaning(escape: re.Match[str]) -> str:
    what = escape[1]
    return chr(int(what[1:], 16)) if len(what) == 5 else _MEANINGS.get(what, what)

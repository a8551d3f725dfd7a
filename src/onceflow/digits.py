"""Numbers that people write: in options, addresses, settings and names of files.

`str.isdigit` is no question to ask before `int`: it says yes to "²", which `int` does not read, `str.isdecimal` says
yes to the digits of all scripts, which nobody else reads, and `int` itself takes "1_000" and refuses more than 4,300
digits.
"""

from __future__ import annotations

from typing import Final

__all__ = ["INT32_MAX", "INT64_MAX", "PORT_MAX", "address_of", "whole_number_of"]

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
PORT_MAX: Final = 65535


def whole_number_of(text: str, most: int = INT64_MAX) -> int | None:
    """The number, if the text is nothing but ASCII digits and no more than `most`."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(most)):
        return None
    number = int(digits)
    return number if number <= most else None


def address_of(text: str) -> tuple[str, int] | None:
    """The host, which may be empty, and the port of `HOST:PORT`; without the brackets of an IPv6 address."""
    host, colon, digits = text.rpartition(":")
    port = whole_number_of(digits, PORT_MAX)
    if not colon or port is None or any(each.isspace() or each in "/@" for each in host):
        return None
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return None if "[" in bare or "]" in bare else (bare, port)

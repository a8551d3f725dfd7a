"""Bootstrap addresses: what they look like, and whether anybody answers there.

librdkafka takes nearly any text for an address and then retries for ever in silence. A person who mistyped
a port wants to know at once, so addresses are checked before a client is made of them, and knocked at
before the first request.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from onceflow.client.problems import NoBrokerReachable
from onceflow.digits import PORT_MAX, whole_number_of
from onceflow.errors import ConfigError

__all__ = [
    "Address",
    "DEFAULT_BOOTSTRAP",
    "BOOTSTRAP_VARIABLE",
    "default_bootstrap",
    "knock",
    "parse_bootstrap",
    "why_not_reached",
]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "ONCEFLOW_BOOTSTRAP"
DEFAULT_PORT = 9092
KNOCK_TIMEOUT_S = 3.0  # long enough for another continent, short enough for somebody who waits at a prompt


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def default_bootstrap() -> str:
    """The address used when none is given: from the environment, else a broker on this machine."""
    return os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP


def parse_bootstrap(text: str) -> list[Address]:
    """`host[:port][,host[:port]...]`, each perhaps with `protocol://` in front, as librdkafka takes them."""
    return [_parse_one(part.strip(), text) for part in text.split(",")]


def _parse_one(part: str, whole: str) -> Address:
    rest = part.rpartition("://")[2]
    if rest.startswith("["):  # an IPv6 address stands in brackets because it has colons of its own
        host, bracket, tail = rest[1:].partition("]")
        colon, port = tail[:1], tail[1:]
        well_formed = bool(bracket) and colon in ("", ":")
    else:
        host, colon, port = rest.partition(":")
        well_formed = True
    if not well_formed or not host or any(c.isspace() or c in "/@" for c in host) or (colon and not port):
        raise ConfigError(f"{whole!r} is not an address: it should look like HOST:PORT, for example 127.0.0.1:9092")
    if not port:
        return Address(host, DEFAULT_PORT)
    number = whole_number_of(port, PORT_MAX)
    if not number:
        raise ConfigError(f"{whole!r} is not an address: {port!r} is not a port, which is a number from 1 to 65535")
    return Address(host, number)


def knock(addresses: list[Address], timeout_s: float = KNOCK_TIMEOUT_S) -> Address:
    """The first address that accepts a connection. Raises `NoBrokerReachable` with the reasons if none does."""
    reasons: list[str] = []
    for address in addresses:
        try:
            with socket.create_connection(address, timeout=timeout_s):
                return address
        except (OSError, UnicodeError) as problem:
            reasons.append(f"{address}: {why_not_reached(problem, timeout_s)}")
    raise NoBrokerReachable(
        f"cannot reach a broker at {'; '.join(reasons)}. Is it running? Other address: --bootstrap HOST:PORT"
    )


def why_not_reached(problem: OSError | UnicodeError, timeout_s: float) -> str:
    """Why there is no connection, in words."""
    if isinstance(problem, socket.gaierror | UnicodeError):
        # A label longer than 63 bytes fails in the IDNA codec, before any look-up.
        return "there is no host of this name"
    if isinstance(problem, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(problem, ConnectionRefusedError):
        return "nobody listens there"
    return (problem.strerror or str(problem)).lower()

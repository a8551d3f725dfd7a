"""Where the broker listens, and what it asks of who comes there.

    PLAINTEXT       nothing
    SSL             TLS; a certificate, if `ssl.client.auth` says so
    SASL_PLAINTEXT  a login
    SASL_SSL        TLS and a login

**Whoever can reach a listener can use the broker, unless the listener asks who comes.** So one that does not ask is
opened on loopback only, and one that would have passwords sent in the clear as well; `--insecure` opens it all the
same.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from onceflow.config import BrokerConfig
from onceflow.errors import BrokerStartError, ConfigError

__all__ = ["Listener", "advertised", "bind", "check_exposure", "check_page_exposure", "is_loopback", "listeners_of"]

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
BACKLOG: Final = 512
PORT_MAX: Final = 65535
ANY_ADDRESS: Final = ("0.0.0.0", "::")
"""Where one listens to come from everywhere, and where nobody can connect to."""
_ADDRESS: Final = re.compile(r"(?:(?P<protocol>[A-Za-z_]+)://)?(?P<host>\[[^\]]*\]|[^:/\[\]]*):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Listener:
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @classmethod
    def parse(cls, text: str, option: str = "--listen") -> Listener:
        """`[PROTOCOL://]HOST:PORT`; without a host: this machine only."""
        found = _ADDRESS.fullmatch(text.strip())
        if found is None or int(found["port"]) > PORT_MAX:
            raise ConfigError(f"{option} takes [PROTOCOL://]HOST:PORT, not {text!r}.")
        protocol = (found["protocol"] or "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(f"{option}: there is no protocol {found['protocol']}, only {', '.join(PROTOCOLS)}.")
        return cls(found["host"].strip("[]") or "127.0.0.1", int(found["port"]), protocol)

    def __str__(self) -> str:
        """`HOST:PORT`, with the protocol in front unless it is PLAINTEXT."""
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return address if self.protocol == "PLAINTEXT" else f"{self.protocol}://{address}"


def listeners_of(config: BrokerConfig, given: Sequence[str] = ()) -> list[Listener]:
    """Those of the command line, else those of the settings."""
    listeners = [Listener.parse(text) for text in given]
    listeners = listeners or [Listener.parse(text, "listeners") for text in config["listeners"]]
    if not listeners:
        raise ConfigError("listeners is empty: a broker that listens nowhere is of no use.")
    taken = [(each.host, each.port) for each in listeners if each.port]
    if len(set(taken)) < len(taken):
        raise ConfigError("Two listeners have the same address; each needs a port of its own.")
    return listeners


def advertised(config: BrokerConfig, listeners: Sequence[Listener]) -> list[tuple[str, int] | None]:
    """For each listener, as it is bound, the address that its clients are told; None for the one they came by."""
    named = [_named(text) for text in config["advertised.listeners"].split(",") if text.strip()]
    if unused := {each.protocol for each in named} - {each.protocol for each in listeners}:
        raise ConfigError(f"advertised.listeners names {min(unused)}, and no listener speaks it.")
    told: list[tuple[str, int] | None] = []
    for listener in listeners:
        own = next((each for each in named if each.protocol == listener.protocol), listener)
        if own in named:
            named.remove(own)
        told.append(None if own.host in ANY_ADDRESS else (own.host, own.port))
    if named:
        raise ConfigError(f"advertised.listeners names more of {named[0].protocol} than there are listeners.")
    return told


def _named(text: str) -> Listener:
    try:
        return Listener.parse(text)
    except ConfigError:
        raise ConfigError(f"advertised.listeners must look like PLAINTEXT://HOST:PORT, not {text!r}.") from None


def bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family[0], socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(family[4])
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # a label that is empty or too long fails before any look-up
        reason = error.strerror if isinstance(error, OSError) else "Name or service not known"
        raise BrokerStartError(f"Cannot listen on {host}:{port}: {reason}.") from error
    return listener


# Who can reach it


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name has to lead there whatever it is resolved to."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return True  # nothing can listen there, which whoever tries will be told
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def check_exposure(listeners: Iterable[Listener], config: BrokerConfig, insecure: bool) -> list[str]:
    """Warnings about listeners that strangers can use; without `insecure`, a `ConfigError` about the first."""
    dangers = [
        f"{listener} can be reached from other machines, and {danger}"
        for listener in listeners
        if (danger := _danger(listener, config)) and not is_loopback(listener.host)
    ]
    if dangers and not insecure:
        raise ConfigError(
            f"{dangers[0]}. Listen on 127.0.0.1, or let clients log in over TLS (SASL_SSL://...; docs/security.md), or "
            f"say --insecure if everybody who can reach it may do everything."
        )
    return dangers


def _danger(listener: Listener, config: BrokerConfig) -> str | None:
    if listener.protocol == "SASL_PLAINTEXT" and "PLAIN" in config["sasl.enabled.mechanisms"]:
        return "PLAIN without TLS sends passwords for everybody on the way to read"
    if listener.uses_sasl or (listener.uses_tls and config["ssl.client.auth"] == "required"):
        return None
    return "does not ask who comes: anybody could read, write and delete everything"


def check_page_exposure(host: str, insecure: bool) -> list[str]:
    """The same for the page, which has no login at all."""
    if is_loopback(host):
        return []
    danger = f"the page on {host} can be reached from other machines, and has no login"
    if not insecure:
        raise ConfigError(
            f"--http: {danger}. Serve it on 127.0.0.1, behind a proxy that asks who comes, or say --insecure if "
            f"everybody may see topics, groups and clients."
        )
    return [danger]

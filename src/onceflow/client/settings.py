"""Where to connect and how: for our own protocol client, and as a librdkafka configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onceflow.client.addresses import Address, knock, parse_bootstrap

__all__ = ["ClientSettings"]


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Where to connect and how."""

    bootstrap: str
    """`HOST:PORT`, several with commas between. Checked: a typing error is an error, not a retry loop."""

    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further client settings, security mostly. They win over our defaults, not over what we rely on. Passwords are
    among them, so they are never shown.
    """

    timeout_s: float = 5.0
    """How long one question to the broker may take: a person is waiting."""

    addresses: list[Address] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "addresses", parse_bootstrap(self.bootstrap))

    def knock(self) -> Address:
        """Raises `NoBrokerReachable` unless somebody accepts connections at one of the addresses."""
        return knock(self.addresses)

    def librdkafka(
        self, *, error_cb: Callable[[Any], None], defaults: Mapping[str, Any] | None = None, **fixed: Any
    ) -> dict[str, Any]:
        """A client's configuration: our defaults, then the person's settings, then what must be as it is."""
        return {
            "client.id": "onceflow",
            # librdkafka prints a line for every failed attempt to connect; we say it once, in a sentence.
            "log_level": 7 if "debug" in self.extra else 0,
            "socket.connection.setup.timeout.ms": 5000,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            **(defaults or {}),
            **self.extra,
            "bootstrap.servers": self.bootstrap,
            "error_cb": error_cb,
            **{name.replace("_", "."): value for name, value in fixed.items()},
        }

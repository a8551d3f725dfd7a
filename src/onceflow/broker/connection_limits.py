"""How many connections may be open: at all, from one address, and from addresses that have a limit of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onceflow.config import BrokerConfig
from onceflow.digits import INT32_MAX, whole_number_of
from onceflow.errors import ConfigError

__all__ = ["ConnectionLimits"]

OVERRIDES: Final = "max.connections.per.ip.overrides"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    most: int
    per_address: int
    by_address: Mapping[str, int]

    @classmethod
    def of(cls, config: BrokerConfig) -> ConnectionLimits:
        """Raises `ConfigError`."""
        return cls(
            most=config["max.connections"],
            per_address=config["max.connections.per.ip"],
            by_address=_limits_by_address(config[OVERRIDES]),
        )

    def from_address(self, host: str) -> int:
        return self.by_address.get(host, self.per_address)


def _limits_by_address(words: tuple[str, ...]) -> dict[str, int]:
    limits = {}
    for word in words:
        host, _, digits = word.rpartition(":")
        count = whole_number_of(digits, INT32_MAX)
        if not host or count is None:
            raise ConfigError(f"{OVERRIDES} takes ADDRESS:COUNT,..., not {word!r}.")
        limits[host.strip("[]")] = count
    return limits

"""How to consume into a database: the arguments of `consume_into` as one checked value, and the client made of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError

__all__ = ["EARLIEST", "ConsumeSettings"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, kw_only=True)
class ConsumeSettings:
    """Checked at construction: a wrong value is an error before anything starts."""

    topics: tuple[str, ...]
    group: str
    """Names the progress in the database, and the consumer group in Kafka."""
    bootstrap_servers: str
    starting_offsets: str = EARLIEST
    """Where a group begins that the database does not know: "earliest" or "latest". Partitions that are added to a
    topic later are read from their first record, whatever this says."""
    max_records: int = 500
    """At most so many in one transaction."""
    max_wait_s: float = 0.1
    """How long a transaction waits for more records, once it has one."""
    fail_on_data_loss: bool = True
    """End with an error if records that were not read yet are gone from the topic; otherwise go on with a warning."""
    report_offsets: bool = True
    """Commit offsets to the group in Kafka as well, for tools that show how far it is behind. They are never read."""
    retries: int = 5
    """How often a transaction is run again that the database gave up: deadlocks, serialization failures, locks."""
    patience_s: float = 120.0
    """How long a database that does not answer is waited for. Below `max.poll.interval.ms` (300 s by default) the group
    does not notice."""
    lock_timeout_s: float = 10.0
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further client settings under librdkafka's names: security.protocol, sasl.*, ssl.*, session.timeout.ms,
    group.instance.id, group.protocol, fetch.*. Passwords are among them, so they are never shown."""

    def __post_init__(self) -> None:
        self._check_topics()
        if not isinstance(self.group, str) or not self.group.strip():
            raise ConfigError("group= must be a name: it identifies the progress in the database, over restarts")
        _check_choice("starting_offsets", self.starting_offsets, (EARLIEST, LATEST))
        for name, least in (("max_records", 1), ("retries", 0)):
            _check_number(name, getattr(self, name), int, least)
        for name in ("max_wait_s", "patience_s", "lock_timeout_s"):
            _check_number(name, getattr(self, name), (int, float), 0)
        self._check_kafka()
        _ = self.client  # a bad address is refused here

    def _check_topics(self) -> None:
        if not self.topics:
            raise ConfigError("topic= is empty: name a topic, or several")
        for name in self.topics:
            if not isinstance(name, str) or not name:
                raise ConfigError(f"topic={name!r} is not the name of a topic")
            if name.startswith("^"):
                raise ConfigError(f"topic={name!r} is a pattern; consume_into needs the names of its topics")

    def _check_kafka(self) -> None:
        if wrong := [name for name in self.kafka if str(name).startswith("kafka.")]:
            raise ConfigError(
                f"kafka={{{wrong[0]!r}: ...}} has the prefix twice: write {wrong[0].removeprefix('kafka.')!r}"
            )
        if refused := sorted(_OURS & set(self.kafka)):
            raise ConfigError(
                f"kafka={{{refused[0]!r}: ...}} cannot be set: consume_into needs it as it is, or has an argument of "
                "its own for it"
            )

    @property
    def client(self) -> ClientSettings:
        return ClientSettings(bootstrap=self.bootstrap_servers, extra=dict(self.kafka), timeout_s=10.0)

    @property
    def is_incremental(self) -> bool:
        """Whether a rebalance takes and gives single partitions, or everything at once."""
        strategies = self.kafka.get("partition.assignment.strategy", _COOPERATIVE)
        return self._has_new_protocol or strategies == _COOPERATIVE

    @property
    def _has_new_protocol(self) -> bool:
        return str(self.kafka.get("group.protocol", "classic")).lower() == "consumer"

    def consumer(self, error_cb: Callable[[Any], None], on_commit: Callable[..., None]) -> dict[str, Any]:
        """The configuration of a consumer."""
        defaults = {} if self._has_new_protocol else {"partition.assignment.strategy": _COOPERATIVE}
        return self.client.librdkafka(
            error_cb=error_cb,
            defaults=defaults,
            group_id=self.group,
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            isolation_level="read_committed",
            # Where to begin is in the database. An offset that Kafka does not have is for us to judge.
            auto_offset_reset="error",
        ) | {"on_commit": on_commit}


_COOPERATIVE: Final = "cooperative-sticky"
_OURS: Final = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "error_cb",
        "group.id",
        "isolation.level",
        "on_commit",
    }
)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{name}={value!r} does not exist; there is {', '.join(map(repr, allowed))}{hint}")


def _check_number(name: str, value: object, kind: type | tuple[type, ...], least: float) -> None:
    if not isinstance(value, kind) or isinstance(value, bool) or value < least:  # type: ignore[operator]
        raise ConfigError(f"{name}={value!r} is not possible: it must be a number from {least} on")

"""What can be said of consumer groups in the broker's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from onceflow.group.assignors import ASSIGNORS, Assignor
from onceflow.group.classic import ClassicSettings

__all__ = ["ConsumerSettings", "MigrationPolicy"]


class MigrationPolicy(Enum):
    """Which groups with members may become groups of the other kind."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    session_timeout_ms: int = 45_000
    """A member that is silent for this long has left."""
    heartbeat_interval_ms: int = 5_000
    """What members are told."""
    members_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    """The first is for groups whose members name none."""
    assignment_interval_ms: int = 0
    """How long a target assignment stands before there is a new one. Kafka's default is a second; on one machine a
    member that joins is better served at once."""
    regex_refresh_interval_ms: int = 600_000
    regex_refresh_min_ms: int = 10_000
    """Not more often, however many topics appear."""
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    classic: ClassicSettings = field(default_factory=ClassicSettings)
    """For the classic group that this one may become."""

    def assignor(self, name: str) -> Assignor:
        return ASSIGNORS[name]

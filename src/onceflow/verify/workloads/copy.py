"""`copy`: consume, transform, produce, by several instances in one group, with state that moves along with partitions.

    producers -> input -> copiers -> output
                             \\---> state, the number of records of each key

Every record of `input` has to be in `output` once and in order, and the counts in `state` have to be those of the
outputs. Which kind of classic group it is (eager or cooperative) comes from the seed, or from the option `group`.

KIP-848's groups ("consumer") are there only if asked for. librdkafka 2.16 can tell the group that it has no partitions
after it was given some: it repeats its whole state, with an empty assignment, if the answer to its joining took longer
than a heartbeat, and goes on to take what that answer gave it. If somebody else joins in between, the group gives the
same partitions away a second time, as Kafka's rules have it, and both members copy them: a duplicate that no broker can
prevent, since the offsets of both come with a valid epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from onceflow.errors import ConfigError
from onceflow.verify.history import Derivation
from onceflow.verify.stage import NotDrained, Pace, Stage, Target
from onceflow.verify.workloads.input import add_producers, await_group, finish_producers

__all__ = ["MEMBERSHIPS", "Copy", "Membership"]

PARTITIONS: Final = 4
COPIERS: Final = 3
RATE: Final = 60
"""Records per second of each producer."""
KEYS: Final = 24
TRANSACTION_TIMEOUT_MS: Final = 10_000


class Membership(NamedTuple):
    """How the copiers form a group."""

    config: Mapping[str, Any]
    """For librdkafka, with underscores in place of dots."""
    is_incremental: bool
    """Partitions come and go one by one; otherwise all are given back whenever somebody joins or leaves."""


# Killed members are missed after six seconds: Kafka's lower limit. KIP-848 leaves it to the broker.
_CLASSIC: Final = {"group_protocol": "classic", "session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
MEMBERSHIPS: Final = {
    "eager": Membership({**_CLASSIC, "partition_assignment_strategy": "range"}, False),
    "cooperative": Membership({**_CLASSIC, "partition_assignment_strategy": "cooperative-sticky"}, True),
    "consumer": Membership({"group_protocol": "consumer"}, True),
}
CHOSEN_BY_SEED: Final = ("eager", "cooperative")


class Copy:
    name = "copy"
    strikes = ("producer", "copier", "copier", "copier")
    pace = Pace()

    def topics(self, stage: Stage) -> Mapping[str, int]:
        return {stage.named(name): PARTITIONS for name in ("input", "output", "state")}

    def derivations(self, stage: Stage) -> Sequence[Derivation]:
        return [Derivation(stage.named("input"), stage.named("output"))]

    def groups(self, stage: Stage) -> Sequence[str]:
        return [stage.named("copiers")]

    def start(self, stage: Stage) -> None:
        add_producers(stage, stage.named("input"), PARTITIONS, rate=RATE, keys=KEYS)
        membership = _membership(stage)
        for number in range(1, COPIERS + 1):
            stage.workers.add(
                "copier",
                f"copier-{number}",
                "onceflow.verify.programs.copier",
                **{topic: stage.named(topic) for topic in ("input", "output", "state")},
                group=stage.named("copiers"),
                transactional_id=stage.named(f"copier-{number}"),
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                membership=dict(membership.config),
                is_incremental=membership.is_incremental,
            )

    def targets(self) -> Sequence[Target]:
        return ()

    def finish(self, stage: Stage, timeout_s: float) -> None:
        finish_producers(stage)
        await_group(stage, stage.named("copiers"), stage.named("input"), PARTITIONS, timeout_s)
        if killed := stage.workers.finish("copier"):
            raise NotDrained(f"{', '.join(killed)} did not end although everything was healed")


def _membership(stage: Stage) -> Membership:
    name = stage.options.get("group") or stage.chance.choice(CHOSEN_BY_SEED)
    if name not in MEMBERSHIPS:
        raise ConfigError(f"there is no kind of group {name!r}; there is {', '.join(MEMBERSHIPS)}")
    return MEMBERSHIPS[name]

"""`copy`: consume, transform, produce, by several instances in one group, with state that moves along with partitions.

    producers -> input -> copiers -> output
                             \\---> state, the number of records of each key

Every record of `input` has to be in `output` once and in order, and the counts in `state` have to be those of the
outputs. Which kind of group it is (eager, cooperative, or KIP-848's) comes from the seed, or from the option "group".
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from onceflow.client.cluster import Cluster
from onceflow.client.offsets import LATEST, committed_offsets, list_offsets
from onceflow.client.problems import ClientError
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.verify.history import Derivation, Place
from onceflow.verify.stage import NotDrained, Pace, Stage, Target

__all__ = ["MEMBERSHIPS", "Copy", "Membership"]

PARTITIONS: Final = 4
PRODUCERS: Final = 2
COPIERS: Final = 3
RATE: Final = 60
"""Records per second of each producer."""
KEYS: Final = 24
TRANSACTION_TIMEOUT_MS: Final = 10_000
LOOK_EVERY_S: Final = 0.2


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
        for number in range(1, PRODUCERS + 1):
            stage.workers.add(
                "producer",
                f"producer-{number}",
                "onceflow.verify.programs.producer",
                topic=stage.named("input"),
                partitions=PARTITIONS,
                rate=RATE * stage.scale,
                keys=KEYS,
            )
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
        deadline = time.monotonic() + timeout_s
        stage.workers.finish("producer")
        settings = ClientSettings(bootstrap=stage.direct, extra=stage.client_config, timeout_s=10)
        with Cluster(settings) as cluster:
            ends = self._ends(stage, cluster)
            while left := self._left(stage, cluster, ends):
                if time.monotonic() > deadline:
                    raise NotDrained(_sentence(left, timeout_s))
                time.sleep(LOOK_EVERY_S)
        if killed := stage.workers.finish("copier"):
            raise NotDrained(f"{', '.join(killed)} did not end although everything was healed")

    def _ends(self, stage: Stage, cluster: Cluster) -> dict[Place, int]:
        places = [(stage.named("input"), partition) for partition in range(PARTITIONS)]
        return list_offsets(cluster, dict.fromkeys(places, LATEST), read_committed=True)

    def _left(self, stage: Stage, cluster: Cluster, ends: Mapping[Place, int]) -> dict[Place, tuple[int, int]]:
        """What the group has still to deal with: from where to where.

        Partitions are asked for one by one: about one whose transaction is being decided nothing is known, and of
        several there is always one.
        """
        [group] = self.groups(stage)
        left = {}
        for place, end in ends.items():
            try:
                committed = committed_offsets(cluster, group, [place], patience_s=1.0).get(place, 0)
            except ClientError:
                committed = -1
            if committed < end:
                left[place] = committed, end
        return left


def _membership(stage: Stage) -> Membership:
    name = stage.options.get("group") or stage.chance.choice(list(MEMBERSHIPS))
    if name not in MEMBERSHIPS:
        raise ConfigError(f"there is no kind of group {name!r}; there is {', '.join(MEMBERSHIPS)}")
    return MEMBERSHIPS[name]


def _sentence(left: Mapping[Place, tuple[int, int]], timeout_s: float) -> str:
    parts = [
        f"{topic}-{partition} from {'where a transaction will decide' if begin < 0 else begin} to {end}"
        for (topic, partition), (begin, end) in left.items()
    ]
    return f"after {timeout_s:g} s the copiers have still not dealt with {', '.join(parts)}"

"""What workloads share that have an input topic: who fills it, and how to tell that all of it was dealt with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from onceflow.client.cluster import Cluster
from onceflow.client.offsets import LATEST, committed_offsets, list_offsets
from onceflow.client.problems import ClientError
from onceflow.verify.history import Place
from onceflow.verify.stage import NotDrained, Stage

__all__ = ["add_producers", "await_group", "finish_producers"]

PRODUCERS: Final = 2
LOOK_EVERY_S: Final = 0.2
ASK_S: Final = 1.0


def add_producers(stage: Stage, topic: str, partitions: int, *, rate: float, keys: int) -> None:
    """Idempotent ones; `rate` is in records per second, of each."""
    for number in range(1, PRODUCERS + 1):
        stage.workers.add(
            "producer",
            f"producer-{number}",
            "onceflow.verify.programs.producer",
            topic=topic,
            partitions=partitions,
            rate=rate * stage.scale,
            keys=keys,
        )


def finish_producers(stage: Stage) -> None:
    if killed := stage.workers.finish("producer"):
        raise NotDrained(f"{', '.join(killed)} did not end although everything was healed")


def await_group(stage: Stage, group: str, topic: str, partitions: int, timeout_s: float) -> None:
    """Until the group has committed all of the topic, to which nobody writes any more. Raises `NotDrained`."""
    deadline = time.monotonic() + timeout_s
    places = [(topic, partition) for partition in range(partitions)]
    with Cluster(stage.settings()) as cluster:
        ends = list_offsets(cluster, dict.fromkeys(places, LATEST), read_committed=True)
        while left := _left(cluster, group, ends):
            if time.monotonic() > deadline:
                raise NotDrained(_sentence(group, left, timeout_s))
            time.sleep(LOOK_EVERY_S)


def _left(cluster: Cluster, group: str, ends: Mapping[Place, int]) -> dict[Place, tuple[int, int]]:
    """What the group has still to deal with: from where to where.

    Partitions are asked for one by one: about one whose transaction is being decided nothing is known, and of several
    there is always one.
    """
    left = {}
    for place, end in ends.items():
        try:
            committed = committed_offsets(cluster, group, [place], patience_s=ASK_S).get(place, 0)
        except ClientError:
            committed = -1
        if committed < end:
            left[place] = committed, end
    return left


def _sentence(group: str, left: Mapping[Place, tuple[int, int]], timeout_s: float) -> str:
    parts = [
        f"{topic}-{partition} from {'where a transaction will decide' if begin < 0 else begin} to {end}"
        for (topic, partition), (begin, end) in left.items()
    ]
    return f"{timeout_s:g} s after everything was healed {group} has still not dealt with {', '.join(parts)}"

"""Who looks on from outside, on the way that the nemesis leaves alone: offsets and ends all the time, and the final
read."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from onceflow.client.cluster import Cluster
from onceflow.client.final_read import NotRead, committed_messages
from onceflow.client.offsets import LATEST, committed_offsets, list_offsets
from onceflow.client.problems import ClientError
from onceflow.client.settings import ClientSettings
from onceflow.verify.history import Outcome, Place, Record, Recorder, Seen
from onceflow.verify.stage import NotDrained

__all__ = ["OffsetWatcher", "everything_committed", "open_partitions", "places_of"]

EVERY_S: Final = 0.25
ASK_S: Final = 2.0
ISOLATIONS: Final = {"read_uncommitted": False, "read_committed": True}


def places_of(topics: Mapping[str, int]) -> list[Place]:
    return [(topic, partition) for topic, count in topics.items() for partition in range(count)]


class OffsetWatcher:
    """Asks for the ends of all partitions and the offsets of groups, again and again, in a thread."""

    def __init__(
        self, settings: ClientSettings, recorder: Recorder, places: Collection[Place], groups: Sequence[str]
    ) -> None:
        self._settings = settings
        self._recorder = recorder
        self._places = frozenset(places)
        self._groups = groups
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offset watcher", daemon=True)

    def __enter__(self) -> OffsetWatcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with Cluster(self._settings) as cluster:
            while not self._over.wait(EVERY_S):
                for isolation in ISOLATIONS:
                    self._note("ends", self._ends, cluster, isolation=isolation)
                for group in self._groups:
                    self._note("offsets", self._offsets, cluster, group=group)

    def _note(self, f: str, ask: Any, cluster: Cluster, **about: str) -> None:
        began = self._recorder.now()
        try:
            found = ask(cluster, *about.values())
        except ClientError:
            return  # a broker is away, or a transaction is being decided: a question without an answer says nothing
        op = self._recorder.begin(f, since=began, **about)
        self._recorder.end(op, Outcome.OK, offsets=[[*place, offset] for place, offset in found.items()])

    def _ends(self, cluster: Cluster, isolation: str) -> dict[Place, int]:
        wanted = dict.fromkeys(self._places, LATEST)
        return list_offsets(cluster, wanted, read_committed=ISOLATIONS[isolation], patience_s=ASK_S)

    def _offsets(self, cluster: Cluster, group: str) -> dict[Place, int]:
        found = committed_offsets(cluster, group, patience_s=ASK_S)
        return {place: offset for place, offset in found.items() if place in self._places}


def open_partitions(settings: ClientSettings, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
    """Where an open transaction keeps readers from the end: the last stable offset and the end."""
    wanted = dict.fromkeys(places, LATEST)
    with Cluster(settings) as cluster:
        ends = list_offsets(cluster, wanted, read_committed=False)
        stable = list_offsets(cluster, wanted, read_committed=True)
    return {place: (stable[place], ends[place]) for place in places if stable[place] < ends[place]}


def everything_committed(settings: ClientSettings, places: Collection[Place], timeout_s: float) -> list[Seen]:
    """The final read, through librdkafka: all that a read_committed consumer finds up to the end of every partition.

    Raises `NotDrained` if it does not get there.
    """
    try:
        return [
            Seen(each.topic(), each.partition(), each.offset(), Record.from_bytes(each.value()))
            for each in committed_messages(settings, places, timeout_s)
        ]
    except NotRead as problem:
        raise NotDrained(str(problem)) from None

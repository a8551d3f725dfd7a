"""Asks Kafka where a query's partitions are, begin and end: what the source plans with, on the driver.

Questions only, but for `Committed`, which first fences whoever else runs that app. A broker that is away is waited for;
one that never was there is reported soon, since then the address is wrong.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from typing import Final

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, TopicPartition
from onceflow.client.offsets import EARLIEST, LATEST, MISSING_PATIENCE_S, list_offsets, persistently
from onceflow.client.settings import ClientSettings
from onceflow.client.topic_ids import to_text
from onceflow.errors import ConfigError
from onceflow.spark.options import Committed, Everywhere, Offsets, Position, SourceOptions, Timestamps
from onceflow.spark.planning import name_all, other_topics, went_back
from onceflow.spark.progress import PROGRESS_TOPIC, committed_start

__all__ = ["Positions", "connected", "disconnect"]

log = logging.getLogger(__name__)

FIRST_CONTACT_S: Final = 10.0
UNSEEN_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", PROGRESS_TOPIC})
"""Never matched by a pattern: Kafka's own, and ours, to which every micro-batch adds a record (so one would follow
from the other for ever)."""

_clusters: dict[tuple[object, ...], Cluster] = {}


def connected(settings: ClientSettings, patience_s: float = FIRST_CONTACT_S) -> Cluster:
    """The cluster behind these settings, with the connections that this process has to it already."""
    key = _key(settings)
    if key not in _clusters:
        _clusters[key] = persistently(lambda: Cluster(settings), patience_s)
    return _clusters[key]


def disconnect(settings: ClientSettings) -> None:
    """Forgets the connections: after an error nobody knows what is still under way on them."""
    cluster = _clusters.pop(_key(settings), None)
    if cluster is not None:
        cluster.close()


def _key(settings: ClientSettings) -> tuple[object, ...]:
    return settings.bootstrap, settings.timeout_s, *sorted(settings.extra.items())


class Positions:
    """The partitions that the options ask for, and offsets in them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.topic_ids: dict[str, str] = {}
        """Of the topics to read, as of when partitions were last looked for."""
        self._ids: dict[str, str] = {}

    @property
    def _cluster(self) -> Cluster:
        return connected(self._options.settings)

    def partitions(self, known: Collection[TopicPartition] = ()) -> set[TopicPartition]:
        """All partitions to read, now.

        A topic or partition that was asked for by name and is not there raises `TopicMissingError`; unless it was
        `known` and data may be lost: then it is left out.
        """
        found = self._wanted(known)
        self.topic_ids = {topic: self._ids[topic] for topic, _ in found if topic in self._ids}
        return found

    def _wanted(self, known: Collection[TopicPartition]) -> set[TopicPartition]:
        wanted = self._options.subscription
        if wanted.pattern is not None:
            return {place for place in self._existing(None) if _matches(wanted.pattern, place[0])}
        topics = set(wanted.topics) or {topic for topic, _ in wanted.partitions}
        try:
            found = set(self._existing(topics))
            self._check_assigned(found)
        except TopicMissingError:
            if self._options.fail_on_data_loss or not any(topic in topics for topic, _ in known):
                raise
            found = {place for place in self._existing(None) if place[0] in topics}
        return found & set(wanted.partitions) if wanted.partitions else found

    def _existing(self, topics: Collection[str] | None) -> Collection[TopicPartition]:
        found = persistently(lambda: self._cluster.topics(topics), self._options.patience_s)
        self._ids = {topic: to_text(layout.id) for topic, layout in found.items() if layout.id is not None}
        return [(topic, partition) for topic, layout in found.items() for partition in layout.leaders]

    def _check_assigned(self, found: Collection[TopicPartition]) -> None:
        if missing := set(self._options.subscription.partitions).difference(found):
            raise TopicMissingError(f"there is no partition {name_all(missing)}, which assign asks for")

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ask(dict.fromkeys(partitions, EARLIEST))

    def earliest_of_existing(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Leaves out partitions that are not there any more."""
        if not partitions:
            return {}
        existing = set(self._existing(None))
        return self.earliest([place for place in partitions if place in existing])

    def latest(
        self, known: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
    ) -> dict[TopicPartition, int]:
        """The ends of all partitions. `known`: how far they were read, in topics that had these ids.

        An end before what was already read is asked for again a few times: while a leader changes, the new one may
        not know yet how far its predecessor got. And a topic that is another one than it was for a moment: one broker
        may know of it later than the next.
        """
        deadline = time.monotonic() + MISSING_PATIENCE_S
        attempt = 0
        while True:
            found = self._ask(dict.fromkeys(self.partitions(known), LATEST))
            attempt += 1
            if others := other_topics(topic_ids or {}, self.topic_ids):
                if time.monotonic() >= deadline:
                    return found
            elif attempt >= self._options.retries or not went_back(known, found):
                return found
            log.debug("asking again: %s", f"other topics are called {others}" if others else "a partition went back")
            time.sleep(self._options.retry_interval_s)

    def resolve(self, position: Position) -> dict[TopicPartition, int]:
        """An offset for every partition."""
        if isinstance(position, Committed):
            return self._committed(position)
        partitions = self.partitions()
        if isinstance(position, Everywhere):
            return self._ask(dict.fromkeys(partitions, position.at))
        if isinstance(position, Offsets):
            _check_complete(position.of, partitions)
            _check_topics(position.topic_ids, self.topic_ids)
            return self._resolve_special(position.of)
        return self._at_times(position, partitions)

    def _committed(self, position: Committed) -> dict[TopicPartition, int]:
        # In this order: it fences, and whatever ended before that is in the offsets that it then reads.
        start, topic_ids = committed_start(self._cluster, position.app_id)
        partitions = self.partitions()
        _check_topics(topic_ids, self.topic_ids)
        new = self.earliest([place for place in partitions if place not in start])
        return {place: start.get(place, new.get(place, 0)) for place in partitions}

    def _at_times(self, position: Timestamps, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        times = dict(position.of)
        if position.everywhere is not None:
            times = dict.fromkeys(partitions, position.everywhere)
        _check_complete(times, partitions)
        # In this order: a record that comes in between and is new enough is found, and not passed over.
        ends = self._ask(dict.fromkeys(times, LATEST)) if position.or_latest else {}
        found = self._ask(times)
        if not position.or_latest and (without := [place for place, offset in found.items() if offset < 0]):
            raise ConfigError(
                f"no record of {name_all(without)} is as new as {times[min(without)]}; "
                f"startingOffsetsByTimestampStrategy=latest would start at the end there"
            )
        return {place: offset if offset >= 0 else ends[place] for place, offset in found.items()}

    def _resolve_special(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        asked = self._ask({place: offset for place, offset in offsets.items() if offset in (EARLIEST, LATEST)})
        return {**offsets, **asked}

    def _ask(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        options = self._options
        return list_offsets(self._cluster, wanted, read_committed=options.read_committed, patience_s=options.patience_s)


def _matches(pattern: str, topic: str) -> bool:
    """Anywhere in the name, as Spark's source does; a pattern for whole names says so with ^ and $."""
    return topic not in UNSEEN_TOPICS and re.search(pattern, topic) is not None


def _check_topics(given: Mapping[str, str], found: Mapping[str, str]) -> None:
    for topic in other_topics(given, found):
        raise ConfigError(
            f"the offsets are of a topic {topic!r} with the id {given[topic]}, and the topic of that name has the id "
            f"{found[topic]}: it was deleted and created again. Give offsets of the new one, or earliest"
        )


def _check_complete(given: Collection[TopicPartition], partitions: Collection[TopicPartition]) -> None:
    if missing := set(partitions).difference(given):
        raise ConfigError(f"the offsets or timestamps must be given for all partitions; {name_all(missing)} is missing")
    if unknown := set(given).difference(partitions):
        raise ConfigError(f"there are offsets or timestamps for {name_all(unknown)}, which this query does not read")

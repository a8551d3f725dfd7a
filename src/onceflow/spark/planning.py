"""From offsets to work: what a micro-batch reads, and how it is cut into tasks. Pure: no Kafka, no Spark, no clock.

An offset is where to read next, per partition. As JSON it is `{"orders": {"0": 23}}`, as Spark's own Kafka source
writes it, always in the same order: Spark compares the texts to see whether there is anything new. Our source adds
which topics these are, since a name may be another topic's later: `"@topic_ids": {"orders": "tTq..."}`. There is no
"@" in the name of a topic, so keys that begin with it are not topics; who does not know them passes over them. Offsets
in a checkpoint from before there were ids have none, and those of the next batch have. The end of a first batch also
says where it began, if that depends on what is there: `"@begin": {"orders": {"0": 5}}`, of partitions that did not
begin at 0.

`from_json`, `topic_ids_in` and `offsets_in` are the only readers of that format.

The arithmetic is Spark's: a limit per trigger is shared out in proportion to what each partition has waiting, and
`minPartitions` cuts the ranges that hold more than their share.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from onceflow.client.cluster import TopicPartition

__all__ = [
    "Range",
    "begin_in",
    "behind",
    "behind_latest",
    "from_json",
    "gathered",
    "lag",
    "limited",
    "loss",
    "name_all",
    "offsets_in",
    "other_topics",
    "ranges_of",
    "split",
    "to_json",
    "topic_ids_in",
    "went_back",
    "with_begin",
    "without_begin",
]

OffsetsOf = Mapping[TopicPartition, int]
TopicIds = Mapping[str, str]
"""By the topics' names, as Kafka prints them."""

NOT_A_TOPIC: Final = "@"
"""How the keys begin that are not topics: no name of a topic has this character."""
TOPIC_IDS: Final = "@topic_ids"
BEGIN: Final = "@begin"


@dataclass(frozen=True)
class Range:
    """The offsets `[start, end)` of a partition: what one task reads."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None
    """Which topic of that name; None if that was not known when this was planned."""

    @property
    def size(self) -> int:
        """Offsets, which may be more than records: transaction markers and compaction leave gaps."""
        return self.end - self.start


def to_json(offsets: OffsetsOf, topic_ids: TopicIds | None = None) -> dict[str, dict[str, Any]]:
    """Topics that have no offsets are left out of the ids, too."""
    found: dict[str, dict[str, Any]] = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    if ids := {topic: topic_ids[topic] for topic in found if topic in topic_ids} if topic_ids else {}:
        found[TOPIC_IDS] = ids
    return found


def with_begin(end: Mapping[str, dict[str, Any]], begin: OffsetsOf) -> dict[str, dict[str, Any]]:
    """The end of a first batch, which says where it began."""
    later = to_json({place: offset for place, offset in begin.items() if offset > 0})
    return {**end, BEGIN: later} if later else dict(end)


def begin_in(end: Mapping[str, Mapping[str, Any]], places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where the first batch began in these partitions; of offsets from before topics had ids that is not known."""
    later, ids = from_json(end.get(BEGIN, {})), topic_ids_in(end)
    return {place: later.get(place, 0) for place in places if place[0] in ids}


def without_begin(offsets: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: value for name, value in offsets.items() if name != BEGIN}


def from_json(offsets: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Raises `ValueError`, `TypeError` or `AttributeError` if these are no offsets."""
    return {
        (topic, int(partition)): _whole(offset)
        for topic, partitions in offsets.items()
        if not topic.startswith(NOT_A_TOPIC)
        for partition, offset in partitions.items()
    }


def _whole(offset: Any) -> int:
    if not isinstance(offset, int):
        raise TypeError(f"{offset!r} is not an offset")
    return offset


def topic_ids_in(offsets: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Which topics these are; those of which that is not known are missing."""
    return {topic: str(topic_id) for topic, topic_id in offsets.get(TOPIC_IDS, {}).items()}


def offsets_in(value: Any) -> dict[TopicPartition, int]:
    """What a source says of itself, as text or as what that means; of another source than Kafka's: nothing."""
    try:
        return from_json(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, AttributeError, TypeError):
        return {}


def other_topics(before: TopicIds, after: TopicIds) -> list[str]:
    """The names that are another topic's than before, as far as both are known."""
    return sorted(topic for topic, topic_id in before.items() if after.get(topic, topic_id) != topic_id)


def behind(start: OffsetsOf, end: OffsetsOf) -> int:
    """How many offsets lie between the two."""
    return sum(max(0, end[place] - start[place]) for place in end if place in start)


def limited(limit: int, start: OffsetsOf, end: OffsetsOf) -> dict[TopicPartition, int]:
    """`end`, or nearer: `limit` offsets shared out by what each partition has; at least one to each that has any."""
    waiting = {place: end[place] - start[place] for place in end if place in start and end[place] > start[place]}
    total = sum(waiting.values())
    if total <= limit:
        return dict(end)
    return {
        place: start[place] + max(1, limit * waiting[place] // total) if place in waiting else offset
        for place, offset in end.items()
    }


def ranges_of(start: OffsetsOf, end: OffsetsOf, topic_ids: TopicIds | None = None) -> list[Range]:
    """What is between the two, in order, without what is empty. A partition that has no start is left out."""
    ids = topic_ids or {}
    return [
        Range(*place, start[place], end[place], ids.get(place[0]))
        for place in sorted(end)
        if end[place] > start.get(place, end[place])
    ]


def loss(start: OffsetsOf, end: OffsetsOf, earliest_of_new: OffsetsOf) -> str | None:
    """What cannot be read any more, as far as offsets show it; None if all is well.

    `earliest_of_new` holds the beginnings of the partitions that are in `end` only, those that still exist.
    """
    if gone := start.keys() - end.keys():
        return f"{name_all(gone)} existed when the query last looked, and not any more"
    if gone := end.keys() - start.keys() - earliest_of_new.keys():
        return f"{name_all(gone)} appeared while the query ran, and disappeared before being read"
    if cut := [place for place, offset in earliest_of_new.items() if offset > 0]:
        return f"{name_all(cut)} appeared while the query ran, and already lost what was written first"
    if back := went_back(start, end):
        place = min(back)
        return f"{name_all(back)} went back, from offset {start[place]} to {end[place]}"
    return None


def went_back(start: OffsetsOf, end: OffsetsOf) -> list[TopicPartition]:
    """The partitions that end before where they start."""
    return [place for place in end if place in start and end[place] < start[place]]


def name_all(places: Collection[TopicPartition], most: int = 5) -> str:
    """`orders-0, orders-1`; of many only the first."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(places)]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def split(ranges: Iterable[Range], partitions_min: int | None, records_max: int | None) -> list[Range]:
    """The same offsets in pieces: none above `records_max`, and about `partitions_min` of them if they are fewer."""
    found = [piece for each in ranges for piece in _cut(each, -(-each.size // (records_max or each.size)))]
    if partitions_min is None or len(found) >= partitions_min:
        return found
    total = sum(each.size for each in found)
    # Those too small to be cut take their share first; the others divide what is left.
    small = {each for each in found if _share(each.size, total, partitions_min) == 1}
    rest, places = total - sum(each.size for each in small), max(1, partitions_min - len(small))
    return [
        piece
        for each in found
        for piece in _cut(each, 1 if each in small else min(each.size, _share(each.size, rest, places)))
    ]


def gathered(ranges: Iterable[Range], records_min: int | None) -> list[tuple[Range, ...]]:
    """What each task reads: several ranges, as long as they are fewer offsets than this together. A task costs what a
    thousand records do, and in a small micro-batch there is one for each partition."""
    found: list[list[Range]] = []
    waiting = 0
    for each in ranges:
        if found and waiting + each.size <= (records_min or 0):
            found[-1].append(each)
            waiting += each.size
        else:
            found.append([each])
            waiting = each.size
    return [tuple(each) for each in found]


def _share(size: int, total: int, places: int) -> int:
    return max(1, (2 * size * places + total) // (2 * total))  # rounded to the nearest


def _cut(whole: Range, parts: int) -> list[Range]:
    edges = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]


def lag(progress: Any) -> dict[str, float]:
    """How far a query is behind, from one of its progress reports: offsets behind the latest, over all partitions.

    The names are those of the metrics of Spark's Kafka source. Takes a `StreamingQueryProgress`, or the same as a
    dict. Empty if no source said where it is.
    """
    sources = _field(progress, "sources") or ()
    distances = [distance for source in sources for distance in behind_latest(source).values()]
    if not distances:
        return {}
    return {
        "minOffsetsBehindLatest": min(distances),
        "maxOffsetsBehindLatest": max(distances),
        "avgOffsetsBehindLatest": sum(distances) / len(distances),
    }


def behind_latest(source: Any) -> dict[TopicPartition, int]:
    """Of one source of a progress report: how many offsets each partition is behind, transaction markers included.

    A partition that the query does not read yet, as it has appeared since, will be read from its beginning: all of it
    counts. Where the source does not say where it is, nothing does.
    """
    end, latest = (offsets_in(_field(source, name)) for name in ("endOffset", "latestOffset"))
    return {place: max(0, offset - end.get(place, 0)) for place, offset in latest.items()} if end else {}


def _field(owner: Any, name: str) -> Any:
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)

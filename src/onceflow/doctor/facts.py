"""What the checks go by: plain values, gathered once (`gathering.py`, `files.py`, `python_jobs.py`).

Nothing here asks anybody anything, so that a check is a function that can be tried on any cluster one can think of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from onceflow.client.transactions import HangingTransaction, Transaction
from onceflow.digits import whole_number_of

__all__ = [
    "UNSEEN",
    "Case",
    "ClientFacts",
    "ClusterFacts",
    "GroupFacts",
    "PartitionFacts",
    "SparkFacts",
    "TopicFacts",
]

Place = tuple[str, int]

UNSEEN: Final = "(computed)"
"""In place of a value that a program computes: it is set, to what is not known."""


def _number(text: str) -> int | None:
    number = whole_number_of(text.removeprefix("-"))
    return -number if number is not None and text.startswith("-") else number


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    partition: int
    leader: int | None
    replicas: int
    in_sync: int


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    name: str
    internal: bool = False
    partitions: tuple[PartitionFacts, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    """The settings that it was given itself; the others come from the broker."""

    @property
    def replicas(self) -> int:
        """Of the partition that has the fewest."""
        return min((each.replicas for each in self.partitions), default=0)

    @property
    def min_insync(self) -> int | None:
        text = self.settings.get("min.insync.replicas", "")
        return whole_number_of(text)

    @property
    def cleanup(self) -> set[str]:
        return {word.strip() for word in self.settings.get("cleanup.policy", "").split(",") if word.strip()}


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    id: str
    state: str
    committed: Mapping[Place, int]

    @property
    def has_members(self) -> bool:
        return self.state not in ("Empty", "Dead")


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """A cluster as it looked when it was asked. A part that could not be asked for is in `unknown`, and empty here."""

    address: str
    now_ms: int
    brokers: Mapping[int, str] = field(default_factory=dict)
    """Addresses by id."""
    unreachable: Mapping[int, str] = field(default_factory=dict)
    """Why a broker that the cluster names could not be reached, by id."""
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """First and last version of every request that all brokers know, by api key."""
    features: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Of each broker."""
    is_onceflow: bool = False
    """It is our broker, and settings about replicas have no effect."""
    topics: tuple[TopicFacts, ...] = ()
    """Those that were asked for, and the internal ones."""
    coordinators: Mapping[str, str | None] = field(default_factory=dict)
    """By the topic that a coordinator keeps its state in: None, or why there is none. Only of topics that exist: to
    ask for another one would create it."""
    transactions: tuple[Transaction, ...] = ()
    """Those that have not ended, and those of the transactional ids that were asked for."""
    hanging: tuple[HangingTransaction, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    starts: Mapping[Place, int] = field(default_factory=dict)
    """The first offset, of partitions for which a group has committed one."""
    stable: Mapping[Place, int] = field(default_factory=dict)
    """How far read_committed consumers may read there."""
    ends: Mapping[Place, int] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Parts that could not be looked at (`brokers`, `versions`, `settings`, `topics`, `transactions`, `hanging`,
    `groups`), and why."""

    def has(self, name: str, value: str) -> bool:
        """Whether a broker has this value of a setting: one that differs from the others is enough to do harm."""
        return any(each.get(name) == value for each in self.settings.values())

    def number(self, name: str) -> int | None:
        """A broker setting; if brokers differ, the smallest."""
        texts = [each.get(name, "") for each in self.settings.values()]
        return min((number for text in texts if (number := _number(text)) is not None), default=None)

    def topic(self, name: str) -> TopicFacts | None:
        return next((each for each in self.topics if each.name == name), None)

    @property
    def data_topics(self) -> list[TopicFacts]:
        return [each for each in self.topics if not each.internal]


@dataclass(frozen=True, kw_only=True)
class ClientFacts:
    """The settings of a producer, of a consumer or of Kafka Streams."""

    name: str
    role: str
    """`producer`, `consumer` or `streams`."""
    flavor: str
    """`java`, `librdkafka` or `unknown`: whose defaults apply."""
    values: Mapping[str, str]

    def get(self, *names: str) -> str | None:
        """The value under the first of these names that is set; names of one setting that has aliases."""
        return next((self.values[name].strip() for name in names if name in self.values), None)

    def number(self, *names: str) -> int | None:
        text = self.get(*names) or ""
        return _number(text)

    @property
    def may_be_librdkafka(self) -> bool:
        return self.flavor != "java"

    @property
    def may_be_java(self) -> bool:
        return self.flavor != "librdkafka"


@dataclass(frozen=True, kw_only=True)
class SparkFacts:
    """What is known of a Spark job. Names of options are in lower case, as Spark compares them."""

    name: str
    conf: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[Mapping[str, str], ...] = ()
    """The options of each reader, and its `format`."""
    sinks: tuple[Mapping[str, str], ...] = ()
    """The options of each writer and its `format`; for a `KafkaSink` the arguments, and the format `onceflow`."""
    queries: tuple[Mapping[str, str], ...] = ()
    """What else is said of a query: `checkpointlocation`, `queryname`, `trigger`, `continuous`."""
    version: str | None = None
    """PySpark's; None if it is not known."""
    stateful: bool | None = None

    def of_kafka(self) -> Iterator[Mapping[str, str]]:
        """The readers of Kafka, by Spark's own source or by ours."""
        return (each for each in self.sources if each.get("format") in ("kafka", "onceflow"))

    def our_sinks(self) -> Iterator[Mapping[str, str]]:
        return (each for each in self.sinks if each.get("format") == "onceflow")

    @property
    def is_local(self) -> bool | None:
        """Whether it runs on one machine; None if that is not known."""
        master = self.conf.get("spark.master")
        return None if master in (None, UNSEEN) else master.startswith("local")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Everything that is looked at together."""

    cluster: ClusterFacts | None = None
    clients: tuple[ClientFacts, ...] = ()
    jobs: tuple[SparkFacts, ...] = ()
    processing_ms: int | None = None
    """The longest that one transaction, or the work between two polls, takes; None if nobody said."""

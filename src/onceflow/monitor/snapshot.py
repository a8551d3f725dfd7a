"""How a cluster looks at a moment, as plain values: what metrics, alerts and the page are made of.

Our broker makes one from within (`broker/watching.py`) and knows everything. Who looks at another Kafka by asking it
(`client/watching.py`) leaves out what a broker does not tell: a field that is None, or an empty tuple or mapping, means
"not known here", never "zero". Times are milliseconds since 1970, by the clock of whoever made the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Coordinator",
    "Counters",
    "EndedTransaction",
    "Fencing",
    "Group",
    "GroupPartition",
    "MicroBatch",
    "Partition",
    "Producer",
    "Snapshot",
    "Timing",
    "TopicTraffic",
    "Transaction",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    topic: str
    partition: int
    start: int
    """The first offset that can be read."""
    last_stable: int
    """Up to here everything is decided: where a read_committed consumer stops."""
    end: int
    """The high watermark: where a read_uncommitted consumer stops."""
    size_bytes: int | None = None
    leader: int | None = None
    replicas: int = 1
    in_sync: int = 1

    @property
    def lso_lag(self) -> int:
        """Offsets that a read_committed consumer may not see yet."""
        return self.end - self.last_stable


@dataclass(frozen=True, kw_only=True, slots=True)
class Producer:
    """A producer id as one partition knows it."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    last_sequence: int
    last_write_ms: int
    """When it last wrote here: by our broker's clock; elsewhere the timestamp of its last record."""
    transaction_start: int | None = None
    """The first offset of its open transaction here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transaction:
    """A transactional id as its coordinator knows it."""

    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    """Kafka's name: Empty, Ongoing, PrepareCommit, ..."""
    timeout_ms: int | None = None
    started_ms: int | None = None
    """Since when its transaction is open; None if none is."""
    updated_ms: int | None = None
    """When it last changed: the age of a producer id and its epoch counts from here."""
    partitions: tuple[tuple[str, int], ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedTransaction:
    transactional_id: str
    producer_id: int
    epoch: int
    committed: bool
    started_ms: int
    ended_ms: int
    partitions: int
    reason: str = "client"
    """Who ended it: client, timeout, or fenced (a new instance of the producer)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fencing:
    """Somebody came with an epoch that is past, and was refused."""

    at_ms: int
    producer_id: int
    epoch: int
    """The one it came with."""
    current_epoch: int
    transactional_id: str | None = None
    place: tuple[str, int] | None = None
    """The partition, if it was refused there and not by a coordinator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPartition:
    topic: str
    partition: int
    committed: int | None
    lag: int | None
    """Up to the last stable offset: what a read_committed member could have read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    group_id: str
    state: str
    protocol: str
    """classic or consumer (KIP-848)."""
    members: int
    partitions: tuple[GroupPartition, ...] = ()

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.partitions)


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """A micro-batch that was committed, as its progress record tells."""

    app_id: str
    batch_id: int
    recorded_ms: int
    """When its progress was put down, to go into the transaction while the tasks write."""
    started_ms: int | None = None
    committed_ms: int | None = None
    """When it became visible."""
    transaction_ms: float | None = None
    """What the transaction took of it: fencing, reading progress, verifying, recording, committing. Known, as `rows`
    is, when the next micro-batch of the app is committed."""
    rows: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinator:
    kind: str
    """transaction or group."""
    state: str
    """active, loading or unavailable."""
    load_ms: float | None = None
    """How long it took to read its state from its topic, at the last start."""
    partitions: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """How long something took, as a histogram: `counts[i]` lasted at most `bounds[i]` seconds (and more than the
    bound before); the last count is of what took longer."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total_s: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicTraffic:
    """Totals since the broker started."""

    records_in: int
    bytes_in: int
    records_out: int
    """Read by consumers: by how much their positions moved."""
    bytes_out: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Totals since the broker started (for another Kafka: seen since we began to look)."""

    commits: int = 0
    aborts: int = 0
    """All of them: by the client, by timeout, by fencing."""
    timeouts: int = 0
    fenced_aborts: int = 0
    """Transactions that were open when a new instance of their producer began."""
    fencings: int = 0
    duplicates: int = 0
    """Batches that were repeated by a producer and not stored again."""
    out_of_order: int = 0
    """Batches that were refused because one before them is missing."""
    connections: int = 0
    """Accepted ones."""
    connections_refused: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    failed_authentications: Mapping[str, int] = field(default_factory=dict)
    """By mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, SSL."""
    successful_authentications: Mapping[str, int] = field(default_factory=dict)
    denied: Mapping[str, int] = field(default_factory=dict)
    """Refused by an ACL, by kind of resource: topic, group, transactional_id, cluster."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors answered to produce requests, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    at_ms: int
    cluster_id: str
    software: str
    """`onceflow 0.1.0`, or `Apache Kafka`."""
    brokers: tuple[str, ...] = ()
    """Their addresses."""
    started_ms: int | None = None
    partitions: tuple[Partition, ...] = ()
    producers: tuple[Producer, ...] = ()
    transactions: tuple[Transaction, ...] = ()
    ended: tuple[EndedTransaction, ...] = ()
    """The last ones, oldest first."""
    fencings: tuple[Fencing, ...] = ()
    """The last ones, oldest first."""
    groups: tuple[Group, ...] = ()
    micro_batches: tuple[MicroBatch, ...] = ()
    """The last ones, oldest first."""
    coordinators: tuple[Coordinator, ...] = ()
    counters: Counters = field(default_factory=Counters)
    traffic: Mapping[str, TopicTraffic] = field(default_factory=dict)
    """By topic."""
    timings: Mapping[str, Timing] = field(default_factory=dict)
    """By what was done: `fsync`, `fetch wait` (long polls), and requests by Kafka's name of them (`Produce`, `Fetch`,
    `OffsetCommit`, ...)."""
    consumers: Mapping[str, int] = field(default_factory=dict)
    """Consumers that have fetched lately, by isolation level: read_committed, read_uncommitted."""
    connections_open: int | None = None
    truncated: bool = False
    """There was more of something than a snapshot takes; what was left out is not in the lists."""
    notes: tuple[str, ...] = ()
    """What could not be found out, and why, in sentences: an API that is not allowed here, or not known."""
    remarks: tuple[str, ...] = ()
    """What is odd, in sentences; nothing that a rule asks for is missing for it."""

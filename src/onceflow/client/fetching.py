"""Reading partitions with our own protocol client: offsets, and record batches as they are stored.

    with Cluster(settings) as cluster:
        for batches in read_range(cluster, "orders", 0, 1000, 2000):
            ...

Invariants:

- `read_range` ends only when everything below `end` was seen or is known not to exist. What is gone raises `DataLost`,
  what is not there yet (an open transaction, no leader, a broker that restarts) is waited for, and after `patience_s`
  without any progress raises the reason. Never silence in place of records.
- **The position moves by batches that were delivered, and by nothing else.** A batch that begins behind the position
  says that nothing is left before it: a broker answers with the first batch at or after the offset. (Unless the log,
  too, begins behind it: then what was there is deleted.) An answer without batches says nothing, however often it
  comes: a broker with tiered storage gives one each time its remote read takes too long. What compaction removed is
  always followed by a batch. The active segment is not cleaned, and of what is cleaned the last batch stays, if need be
  without records (Kafka from 3.9 on, KAFKA-17076, and our broker). To a reader of committed records the next batch may
  be invisible, since it belongs to an open transaction; then it is looked at as a reader of everything, and if it
  begins at `end` or later, nothing is left before. Older Kafka can lose the end of a compacted log to the cleaner;
  there nobody can tell, and that is an error (`NothingDelivered`).
- Nothing here changes anything at the broker, so every question may be asked again.
- **A range is of one topic, not of a name.** Topics are named by id in the request itself (Fetch 13, KIP-516): the id
  that the caller gives, or the one that the topic had when the reading began. So what is read is never of another topic
  that got the name since; that raises `TopicRecreated`. To ask for ids by Metadata before and after would not do: that
  is answered by any broker, which may not know yet. It may also know less than the caller, so another id has to stay
  for a moment before it is believed, as a topic that is missing has. Brokers that know ids, and whose Fetch does not
  (Kafka 2.8 and 3.0), are asked by name, and after each answer whose name it is: there is nothing better.
- The leader is asked, with the epoch in which it leads (KIP-320). From version 11 on followers answer too (KIP-392),
  but a broker that has become a follower knows a newer epoch, and refuses. A leader may send its readers to a follower,
  and they go: that one may be behind, but silence is never taken for the end. `fetch` without a topic id uses
  version 10, which only leaders answer.
- What a reader of committed records sees is decided by Kafka's rule (`CompletedFetch` of its consumer): a data batch
  of a transaction is skipped from the first offset in the list of aborted ones to the producer's abort marker.
- Checksums of data batches are left to whoever opens them; those of markers are checked here, since they decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Leader, Refused, TopicPartition, refuse
from onceflow.client.offsets import (
    EARLIEST,
    LATEST,
    PATIENCE_S,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    NotYet,
    committed_offsets,
    list_offsets,
    persistently,
)
from onceflow.client.problems import ClientError
from onceflow.client.topic_ids import TopicRecreated, from_text, to_text
from onceflow.errors import CorruptLog, ErrorCode, MalformedMessage
from onceflow.wire import batch as wire_batch
from onceflow.wire.batch import BatchHeader
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from onceflow.wire.records import control_type, read_records

__all__ = [
    "EARLIEST",
    "FETCH_BYTES",
    "LATEST",
    "PATIENCE_S",
    "CommittedFilter",
    "DataLost",
    "Fetched",
    "NotYet",
    "NothingDelivered",
    "TopicRecreated",
    "committed_offsets",
    "fetch",
    "list_offsets",
    "persistently",
    "read_range",
]

Batch = tuple[BatchHeader, memoryview]

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Per answer: 40,000 records of 100 bytes, which make the costs per answer small, and harmless as memory of a task."""
THROTTLE_S_MAX: Final = 30.0

BY_NAME_VERSION_MAX: Final = 10  # from 11 on followers answer too (KIP-392)
BY_ID_VERSION: Final = 13

WAIT_MS: Final = 500
WAIT_SLACK_MS: Final = 50
ROOM_MIN: Final = 64 * 1024
BYTES_PER_OFFSET_GUESS: Final = 1024
ROOM_FACTOR: Final = 1.25
"""How much more than the estimate is asked for, so that one answer usually brings the rest."""
_ABORT: Final = 0


class DataLost(ClientError):
    """Records that were asked for do not exist: deleted already, or never written as far as the cluster knows."""

    def __init__(self, message: str, place: TopicPartition, *, first: int, end: int) -> None:
        super().__init__(message)
        self.place = place
        self.first = first
        """The first offset that there is."""
        self.end = end
        """The offset after the last one that there is."""

    def __reduce__(self) -> tuple[Callable[..., DataLost], tuple[object, ...]]:
        return _data_lost, (str(self), self.place, self.first, self.end)  # it may travel from a worker to its driver


def _data_lost(message: str, place: TopicPartition, first: int, end: int) -> DataLost:
    return DataLost(message, place, first=first, end=end)


class NothingDelivered(NotYet):
    """The log has these offsets by its own account, and the broker answers without records for them. Nothing says that
    they are lost, nor that there were none: who skips them does so on their own responsibility."""

    def __init__(self, message: str, place: TopicPartition, *, position: int, end: int) -> None:
        super().__init__(message)
        self.place = place
        self.position = position
        """From here on nothing came."""
        self.end = end
        """Where the range ends that was asked for."""

    def __reduce__(self) -> tuple[Callable[..., NothingDelivered], tuple[object, ...]]:
        return _nothing_delivered, (str(self), self.place, self.position, self.end)


def _nothing_delivered(message: str, place: TopicPartition, position: int, end: int) -> NothingDelivered:
    return NothingDelivered(message, place, position=position, end=end)


# --- one fetch


@dataclass(frozen=True)
class Fetched:
    """The answer to one fetch, from one partition."""

    high_watermark: int
    last_stable_offset: int
    log_start: int
    batches: list[Batch]
    """Whole ones only, control batches among them. The first may begin before the offset that was asked for."""
    aborted: list[tuple[int, int]]
    """Producer id and first offset of the transactions aborted in there; empty unless committed records were asked."""
    preferred_replica: int | None = None
    """Whom the leader wants to be asked instead; then there are no batches."""
    by_id: bool = False
    """Whether it is certainly of the topic with the id that was given: an old broker goes by the name."""


def fetch(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    leader: int,
    read_committed: bool,
    max_bytes: int,
    wait_ms: int,
    topic_id: UUID | None = None,
    leader_epoch: int = -1,
) -> Fetched:
    """What the leader has from an offset on. Raises `Refused`, for example with `OFFSET_OUT_OF_RANGE`.

    At least one whole batch if there is any, whatever `max_bytes` says. `NotYet`: the broker's quota is used up. With a
    topic id (of the topic of this name) another topic is never read: `Refused` with `UNKNOWN_TOPIC_ID`; unless the
    broker is too old for that (`Fetched.by_id`).
    """
    broker = cluster.node(leader)
    by_id = topic_id is not None and broker.version(FetchRequest, at_most=BY_ID_VERSION) == BY_ID_VERSION
    at = FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=leader_epoch,
    )
    question = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[at])],
    )
    answer = broker.ask(
        question,
        at_most=BY_ID_VERSION if by_id else BY_NAME_VERSION_MAX,
        timeout_s=cluster.timeout_s + (wait_ms + WAIT_SLACK_MS) / 1000,
    )
    doing = f"reading {topic}-{partition} at offset {offset}"
    found = _only_partition(answer, partition, doing)
    refuse(found.error_code, doing)
    return Fetched(
        high_watermark=found.high_watermark,
        last_stable_offset=found.last_stable_offset,
        log_start=found.log_start_offset,
        batches=_whole_batches(found, doing),
        aborted=[(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()],
        preferred_replica=found.preferred_read_replica if found.preferred_read_replica >= 0 else None,
        by_id=by_id,
    )


def _only_partition(answer: FetchResponse, partition: int, doing: str) -> PartitionData:
    refuse(answer.error_code, doing)
    for topic in answer.responses:
        for each in topic.partitions:
            if each.partition_index == partition:
                return each
    # So a broker answers whose quota for us is used up: without records, and it reads on after that time (KIP-219).
    time.sleep(min(answer.throttle_time_ms / 1000, THROTTLE_S_MAX))
    raise NotYet(f"{doing} was put off: the broker gives this client no more bytes for now (its quota)")


def _whole_batches(found: PartitionData, doing: str) -> list[Batch]:
    data = found.records or b""
    try:
        whole = list(wire_batch.batches(data))
    except CorruptLog as problem:
        raise MalformedMessage(
            f"{doing} gave bytes that are no record batches of Kafka 0.11 or newer: {problem}"
        ) from None
    if len(data) and not whole:
        raise MalformedMessage(f"{doing} gave {len(data)} bytes of a batch, and not all of it.")
    return whole


# --- who sees what


class CommittedFilter:
    """What a reader of committed records sees of one fetch; batches go through it in their order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = sorted(((first, producer_id) for producer_id, first in aborted), reverse=True)
        self._aborting: set[int] = set()

    def sees(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether the records of this batch are visible. Those of control batches never are."""
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._aborting.add(self._waiting.pop()[1])
        if header.is_control:
            if header.producer_id in self._aborting and _is_abort(header, batch):
                self._aborting.remove(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)

    def visible(self, batches: Iterable[Batch]) -> list[Batch]:
        return [(header, batch) for header, batch in batches if self.sees(header, batch)]


def _is_abort(header: BatchHeader, batch: memoryview) -> bool:
    """A marker that compaction emptied is none any more, as in Kafka."""
    if wire_batch.checksum(batch) != header.crc:
        raise MalformedMessage(f"The checksum of the transaction marker at offset {header.base_offset} is wrong.")
    first = next(read_records(batch), None)
    return first is not None and control_type(first) == _ABORT


# --- a range


def read_range(
    cluster: Cluster,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    read_committed: bool = True,
    fetch_bytes: int = FETCH_BYTES,
    patience_s: float = PATIENCE_S,
    topic_id: str | None = None,
) -> Iterator[list[Batch]]:
    """All visible data batches that overlap `[start, end)`, in order: one list per fetch, none of them empty.

    `topic_id`: the topic that is meant, as Kafka prints it; None for the one that has the name now. Raises
    `TopicRecreated` if the name is another topic's.

    The first and the last batch may reach beyond the range, and compaction may have removed offsets from inside:
    whoever opens the batches looks at the offsets. Survives a change of the leader and a restart of the broker.
    """
    wanted = None if topic_id is None else from_text(topic_id)
    reader = _RangeReader(cluster, (topic, partition), start, end, read_committed, fetch_bytes, wanted)
    while reader.position < end:
        if batches := persistently(reader.step, patience_s):
            yield batches


class _RangeReader:
    """Where a reading of one range stands, and the next step of it."""

    def __init__(
        self,
        cluster: Cluster,
        place: TopicPartition,
        start: int,
        end: int,
        read_committed: bool,
        fetch_bytes: int,
        topic_id: UUID | None,
    ) -> None:
        self.position = start
        self._cluster = cluster
        self._place = place
        self._start, self._end = start, end
        self._read_committed = read_committed
        self._fetch_bytes = fetch_bytes
        self._bytes_per_offset: float = BYTES_PER_OFFSET_GUESS
        self._topic_id = topic_id
        self._leader: Leader | None = None
        self._replica: int | None = None
        """Whom the leader wants to be asked in its place."""

    def step(self) -> list[Batch]:
        """The visible batches of one fetch, perhaps none. Raises `NotYet` if there is nothing to go on with."""
        fetched = self._fetch()
        self._check_log_start(fetched)
        if not fetched.batches:
            return self._without_batches(fetched)
        position = self.position
        self._advance(fetched.batches)
        visible = CommittedFilter(fetched.aborted).visible(fetched.batches)
        return [
            (header, batch)
            for header, batch in visible
            if header.count and header.base_offset < self._end and header.last_offset >= position
        ]

    def _fetch(self, *, everything: bool = False) -> Fetched:
        """At the position. `everything`: also what is not committed, and no more than the first batch of it."""
        try:
            fetched = self._fetch_from(self._replica, everything)
            if not fetched.batches and fetched.preferred_replica is not None:
                self._replica = fetched.preferred_replica
                fetched = self._fetch_from(self._replica, everything)
            if self._topic_id is not None and not fetched.by_id:
                self._find_leader()  # raises if the name is another topic's by now
            return fetched
        except ClientError as problem:
            self._forget_leader()
            if isinstance(problem, Refused) and problem.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._raise_out_of_range()
            raise

    def _fetch_from(self, replica: int | None, everything: bool) -> Fetched:
        if self._leader is None:
            self._leader = self._find_leader()
        return fetch(
            self._cluster,
            *self._place,
            self.position,
            leader=self._leader.node if replica is None else replica,
            leader_epoch=self._leader.epoch,
            topic_id=self._topic_id,
            read_committed=self._read_committed and not everything,
            max_bytes=1 if everything else self._room(),
            wait_ms=WAIT_MS,
        )

    def _find_leader(self) -> Leader:
        topic, partition = self._place
        found = self._cluster.topics([topic])[topic]
        if self._topic_id is None:
            self._topic_id = found.id
        elif found.id is not None and found.id != self._topic_id:
            raise TopicRecreated.of(topic, to_text(self._topic_id), to_text(found.id))
        if partition not in found.leaders:
            raise TopicMissingError(f"topic {topic!r} has no partition {partition}")
        leader = found.leaders[partition]
        if leader is None:
            raise Refused(f"looking for the leader of {self._name}", ErrorCode.LEADER_NOT_AVAILABLE)
        return leader

    def _forget_leader(self) -> None:
        self._leader = self._replica = None

    def _room(self) -> int:
        """No more than is missing, as far as can be guessed: what lies behind the end would be read for nothing."""
        missing = (self._end - self.position) * self._bytes_per_offset * ROOM_FACTOR
        return min(self._fetch_bytes, int(missing) + ROOM_MIN)

    def _advance(self, batches: list[Batch]) -> None:
        first, last = batches[0][0].base_offset, batches[-1][0].last_offset
        if last < self.position:
            raise MalformedMessage(f"Asked for offset {self.position} of {self._name}, got {first} to {last}.")
        self._bytes_per_offset = sum(header.size for header, _ in batches) / (last + 1 - first)
        self.position = last + 1

    def _check_log_start(self, fetched: Fetched) -> None:
        """What is before the log's beginning is not there because it was deleted, and not because of compaction."""
        if fetched.log_start <= self.position:
            return
        if fetched.batches and fetched.batches[0][0].base_offset <= self.position:
            return  # deleted since it was read
        self._forget_leader()
        self._raise_if_lost()
        raise NotYet(f"the log of {self._name} begins at {fetched.log_start} at a broker, and earlier at its leader")

    def _without_batches(self, fetched: Fetched) -> list[Batch]:
        readable = fetched.last_stable_offset if self._read_committed else fetched.high_watermark
        if readable >= self._end:
            if readable < fetched.high_watermark and self._goes_on_behind_the_end():
                self.position = self._end
                return []
            raise NothingDelivered(
                f"no records of {self._name} came from offset {self.position} on, though its log ends at "
                f"{fetched.high_watermark}: the broker answers without records, as while a read from remote (tiered) "
                "storage takes too long. Nothing was skipped; another start begins with the same offsets",
                self._place,
                position=self.position,
                end=self._end,
            )
        if fetched.high_watermark >= self._end:
            raise NotYet(
                f"the offsets of {self._name} below {self._end} cannot all be read yet: from {readable} on there is "
                f"a transaction that is still open. When it ends, or its timeout passes, reading goes on"
            )
        self._forget_leader()
        self._raise_if_lost()
        raise NotYet(f"the leader of {self._name} is not ready to serve all offsets below {self._end}")

    def _goes_on_behind_the_end(self) -> bool:
        """Whether the first batch from the position on, visible or not, begins behind the range."""
        fetched = self._fetch(everything=True)
        self._check_log_start(fetched)
        return bool(fetched.batches) and fetched.batches[0][0].base_offset >= self._end

    def _raise_out_of_range(self) -> None:
        self._raise_if_lost()
        # Whom we asked has a shorter log than the leader that we asked now: it is not the leader any more.
        raise NotYet(f"offset {self.position} of {self._name} is out of range at a broker that led it until now")

    def _raise_if_lost(self) -> None:
        """Asks the leader, which does not answer before it knows where its log ends (KIP-207)."""
        (first,) = list_offsets(self._cluster, {self._place: EARLIEST}, read_committed=False, patience_s=0).values()
        (end,) = list_offsets(self._cluster, {self._place: LATEST}, read_committed=False, patience_s=0).values()
        if self.position < first:
            raise DataLost(
                f"offsets {self.position} to {min(first, self._end) - 1} of {self._name} are gone: its log begins at "
                f"{first} now. Retention or somebody deleted them before they were read",
                self._place,
                first=first,
                end=end,
            )
        if end < self._end:
            raise DataLost(
                f"offsets {max(end, self.position)} to {self._end - 1} of {self._name} do not exist: its log ends at "
                f"{end}. The topic was created anew, or the cluster lost its newest records",
                self._place,
                first=first,
                end=end,
            )

    @property
    def _name(self) -> str:
        return f"{self._place[0]}-{self._place[1]}"

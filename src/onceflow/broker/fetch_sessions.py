"""Fetch sessions (KIP-227): what a consumer asks for again and again, kept, so that it names only what has changed.

- A session is a list of partitions with what was asked of each, and what its client knows of each: the high watermark
  and the log start that it was told last. An answer has the partitions in it that have records, an error, or another
  high watermark or log start.
- **An epoch counts the requests of a session.** Any other than the next one is 71, and changes nothing: client and
  broker would not mean the same list.
- Partitions whose records were sent go to the end, so that those before them do not take all the room of every answer.
- Sessions are in memory only, and bounded: one for each connection, which ends with it, `SESSIONS_MAX` in all,
  `PARTITIONS_MAX` partitions in each, and `ALL_PARTITIONS_MAX` in all of them. One that has not been used for `IDLE_S`
  makes room for another; if there is none, the client gets no session, and names everything each time. One that is
  gone is 70: the client begins anew, and names everything once.
- What is answered is what was asked when the request came, also if it waited; what the client knows changes when it is
  answered.

As Kafka's `FetchSession.scala`, except that there is one kind of clients.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

__all__ = [
    "ALL_PARTITIONS_MAX",
    "PARTITIONS_MAX",
    "SESSIONS_MAX",
    "UNKNOWN",
    "Asked",
    "FetchSession",
    "FetchSessions",
    "PartitionKey",
    "TopicKey",
]

SESSIONS_MAX: Final = 1000
"""Kafka's `max.incremental.fetch.session.cache.slots`."""
PARTITIONS_MAX: Final = 2_000
"""Of a session. They are looked at without a pause; who has more asks without a session, and is served in steps."""
IDLE_S: Final = 120.0
"""Kafka's `min.incremental.fetch.session.eviction.ms`."""
ALL_PARTITIONS_MAX: Final = 200_000
"""Some hundred megabytes."""
EPOCH_MAX: Final = 2**31 - 1
ID_MAX: Final = 2**31 - 1
UNKNOWN: Final = -2
"""A high watermark that no partition has: whatever it is, it is news."""

TopicKey = UUID | str | None
"""A topic as clients name it: by id from v13 on, by name before."""
PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True, eq=False)
class Asked:
    """One partition of a session."""

    topic: FetchTopic
    entry: FetchPartition
    high_watermark: int = UNKNOWN
    log_start_offset: int = UNKNOWN

    def knows(self, high_watermark: int, log_start_offset: int) -> bool:
        return self.high_watermark == high_watermark and self.log_start_offset == log_start_offset


class FetchSession:
    __slots__ = ("by_id", "epoch", "id", "partitions", "used_at")

    def __init__(self, id: int, by_id: bool, now: float) -> None:
        self.id = id
        self.by_id = by_id
        self.epoch = 1
        """Of the next request."""
        self.used_at = now
        self.partitions: dict[PartitionKey, Asked] = {}

    def update(self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]) -> None:
        """Take in what a request names."""
        for topic in topics:
            key = topic.topic_id if self.by_id else topic.topic
            for entry in topic.partitions:
                known = self.partitions.get((key, entry.partition))
                if known is None:
                    self.partitions[key, entry.partition] = Asked(topic, entry)
                else:
                    known.entry = entry
        for gone in forgotten:
            key = gone.topic_id if self.by_id else gone.topic
            for index in gone.partitions:
                self.partitions.pop((key, index), None)

    def move_to_end(self, key: PartitionKey) -> None:
        self.partitions[key] = self.partitions.pop(key)


class FetchSessions:
    def __init__(self, dice: random.Random | None = None) -> None:
        self._dice = dice or random.Random()
        self._sessions: dict[int, FetchSession] = {}
        """The one that was used last at the end."""
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        return self._partitions

    def begin(self, topics: Iterable[FetchTopic], by_id: bool, now: float) -> FetchSession | None:
        """A session for what a request names, if there is room."""
        session = FetchSession(0, by_id, now)
        session.update(topics, ())
        size = len(session.partitions)
        if not 0 < size <= PARTITIONS_MAX or not self._has_room(size, now):
            return None
        while not session.id or session.id in self._sessions:
            session.id = self._dice.randint(1, ID_MAX)
        self._sessions[session.id] = session
        self._partitions += size
        return session

    def _has_room(self, size: int, now: float) -> bool:
        while len(self._sessions) >= SESSIONS_MAX or self._partitions + size > ALL_PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at < IDLE_S:
                return False
            self.end(oldest.id)
        return True

    def go_on(
        self,
        id: int,
        epoch: int,
        by_id: bool,
        topics: Iterable[FetchTopic],
        forgotten: Iterable[ForgottenTopic],
        now: float,
    ) -> FetchSession | None:
        """The session, with what a request changes in it; None if nothing is left of it, which ends it.

        Raises `ProtocolError`, with nothing changed unless it has grown too large, which ends it.
        """
        session = self._sessions.get(id)
        if session is None:
            raise ProtocolError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise ProtocolError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise ProtocolError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        before = len(session.partitions)
        session.update(topics, forgotten)
        size = len(session.partitions)
        self._partitions += size - before
        if not size:
            self.end(id)
            return None
        if size > PARTITIONS_MAX or (size > before and self._partitions > ALL_PARTITIONS_MAX):
            self.end(id)
            raise ProtocolError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.used_at = now
        self._sessions[id] = self._sessions.pop(id)
        return session

    def end(self, id: int) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

"""How far a group has come, in the database that it writes to: one row per partition.

- **Whoever gets a partition fences it**: adds one to the epoch of its row and reads where to go on, in one statement.
  From then on nothing that was read before can be written: each transaction begins with moving the rows of its
  partitions, and only from the epoch and the offset that it knows.
- The rows are changed first, and so they are locked until the transaction ends. Who fences waits for a transaction that
  is being committed, and reads what came of it; and who got no answer to a COMMIT finds out in the same way.
- All rows of a group for a topic are made when the group begins, before anything is read. So "latest" means the same
  moment for all partitions and processes, and a partition without a row is one that appeared later: read from 0.
- Rows are always changed in the order of topic and partition: two processes never wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from onceflow.client.cluster import TopicPartition
from onceflow.errors import OnceflowError
from onceflow.sinks.databases.database import Column, Database, Kind, Refused, Session, TableName
from onceflow.sinks.progress_table import now_ms
from onceflow.spark.planning import name_all
from onceflow.spark.problems import SinkError

__all__ = ["Held", "Move", "OffsetsTable", "Superseded"]

NAME: Final = "onceflow_offsets"
KEY: Final = ("group_id", "topic", "partition")
COLUMNS: Final = (
    Column("group_id", Kind("text")),
    Column("topic", Kind("text")),
    Column("partition", Kind("integer")),
    Column("next_offset", Kind("bigint")),
    Column("epoch", Kind("bigint")),
    Column("at_ms", Kind("bigint")),
)


class Held(NamedTuple):
    """A partition that is ours, as far as we know."""

    epoch: int
    next_offset: int


class Move(NamedTuple):
    held: Held
    to: int
    """The next offset, when this is done."""


class Superseded(OnceflowError):
    """Somebody else has fenced partitions since we did. Nothing was written."""

    def __init__(self, places: Collection[TopicPartition]) -> None:
        super().__init__(f"another process has taken over {name_all(places)}")
        self.places = frozenset(places)


class OffsetsTable:
    """The rows of one group. All but `create` are called inside of a transaction, or need none."""

    def __init__(self, database: Database, group: str) -> None:
        self._database = database
        self._group = group
        self.name = TableName(None, NAME)
        self._quoted = database.quoted(self.name)
        self._key = ", ".join(database.quoted(name) for name in KEY)
        self._same_key = " AND ".join(f"{database.quoted(name)} = ?" for name in KEY)

    def create(self, session: Session) -> None:
        """If it is not there yet. By itself: several processes may do it at the same time."""
        try:
            self._database.create_if_missing(session, self.name, self.statement())
        except Refused as problem:
            raise SinkError(
                f"the table {self.name}, which keeps the offsets, does not exist in {self._database.shown} and cannot "
                f"be created: {str(problem).rstrip('.')}. Nothing was written. Somebody who may create it can do so "
                f"with: {self.statement()}"
            ) from None

    def statement(self) -> str:
        """For CREATE TABLE."""
        columns = [
            f"{self._database.quoted(each.name)} {self._database.type_for(each.kind)} NOT NULL" for each in COLUMNS
        ]
        return f"CREATE TABLE IF NOT EXISTS {self._quoted} ({', '.join(columns)}, PRIMARY KEY ({self._key}))"

    def read(self, session: Session, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Where the group is, in all partitions that it knows."""
        found = session.execute(
            f"SELECT topic, {self._database.quoted('partition')}, next_offset FROM {self._quoted} WHERE group_id = ?",
            [self._group],
        )
        wanted = set(topics)
        return {(topic, int(partition)): int(at) for topic, partition, at in found.rows if topic in wanted}

    def begin(self, session: Session, starts: Mapping[TopicPartition, int]) -> None:
        """Rows for the partitions of topics that the group has not begun yet. Who comes second changes nothing."""
        begun = {topic for topic, _ in self.read(session, {topic for topic, _ in starts})}
        for (topic, partition), start in sorted(starts.items()):
            if topic not in begun:
                session.execute(
                    f"INSERT INTO {self._quoted} ({self._key}, next_offset, epoch, at_ms) VALUES (?, ?, ?, ?, 0, ?) "
                    f"ON CONFLICT ({self._key}) DO NOTHING",
                    [self._group, topic, partition, start, now_ms()],
                )

    def start_over(self, session: Session, topic: str, starts: Mapping[TopicPartition, int]) -> None:
        """In another topic of the same name. Whoever has its partitions is fenced: what was read of the old topic, or
        at its offsets, cannot be written any more. Partitions that only the old one had are among them: the new one may
        get them later, and they are read from 0 then."""
        for place in sorted({*starts, *self.read(session, [topic])}):
            session.execute(
                f"INSERT INTO {self._quoted} AS known ({self._key}, next_offset, epoch, at_ms) "
                f"VALUES (?, ?, ?, ?, 1, ?) ON CONFLICT ({self._key}) DO UPDATE SET "
                "next_offset = excluded.next_offset, epoch = known.epoch + 1, at_ms = excluded.at_ms",
                [self._group, *place, starts.get(place, 0), now_ms()],
            )

    def fence(self, session: Session, places: Collection[TopicPartition]) -> dict[TopicPartition, Held]:
        """The partitions are ours from the commit of this transaction on."""
        return {place: self._fence(session, place) for place in sorted(places)}

    def _fence(self, session: Session, place: TopicPartition) -> Held:
        found = session.execute(
            f"INSERT INTO {self._quoted} AS known ({self._key}, next_offset, epoch, at_ms) VALUES (?, ?, ?, 0, 1, ?) "
            f"ON CONFLICT ({self._key}) DO UPDATE SET epoch = known.epoch + 1, at_ms = excluded.at_ms "
            "RETURNING epoch, next_offset",
            [self._group, *place, now_ms()],
        )
        epoch, next_offset = found.rows[0]
        return Held(int(epoch), int(next_offset))

    def move(self, session: Session, moves: Mapping[TopicPartition, Move]) -> None:
        """Raises `Superseded` for partitions that are not ours any more; then the transaction must be rolled back."""
        lost = [place for place, move in sorted(moves.items()) if not self._move(session, place, move)]
        if lost:
            raise Superseded(lost)

    def _move(self, session: Session, place: TopicPartition, move: Move) -> bool:
        changed = session.execute(
            f"UPDATE {self._quoted} SET next_offset = ?, at_ms = ? "
            f"WHERE {self._same_key} AND epoch = ? AND next_offset = ?",
            [move.to, now_ms(), self._group, *place, move.held.epoch, move.held.next_offset],
        )
        if changed.count == 0:
            self._check_epoch(session, place, move)
        return changed.count == 1

    def _check_epoch(self, session: Session, place: TopicPartition, move: Move) -> None:
        """An offset that was changed without the epoch was not changed by us: to go on would lose or double records."""
        now = self.current(session, place)
        if now is not None and now.epoch == move.held.epoch:
            raise SinkError(
                f"{self.name} says {now.next_offset} for {place[0]}-{place[1]} of group {self._group!r} where "
                f"{move.held.next_offset} was expected: either the function ended the transaction that it was given, "
                "or somebody has changed the table by hand. Nothing more was written; a new start goes on from "
                f"{now.next_offset}"
            )

    def current(self, session: Session, place: TopicPartition) -> Held | None:
        """As it is now, and as it stays until our transaction ends; None if somebody has deleted the row."""
        select = f"SELECT epoch, next_offset FROM {self._quoted} WHERE {self._same_key}"
        found = session.execute(self._database.lock_row(select), [self._group, *place])
        return Held(*map(int, found.rows[0])) if found.rows else None

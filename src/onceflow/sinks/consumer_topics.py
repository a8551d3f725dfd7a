"""Which topics the offsets of a group are of, in the database that it writes to: one row per topic, with its id.

A topic that is deleted and created again has the same name and the same offsets, and other records. Its id tells: what
a group has read of one topic says nothing about another. A group from before this table existed gets its rows with the
next start. A role that may not create the table goes without, with a warning; then only a topic that ends before what
was read is known to be another one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from onceflow.sinks.databases.database import Column, Database, Kind, Refused, Session, TableName
from onceflow.sinks.progress_table import now_ms

__all__ = ["TopicsTable"]

log = logging.getLogger(__name__)

NAME: Final = "onceflow_topics"
KEY: Final = ("group_id", "topic")
COLUMNS: Final = (
    Column("group_id", Kind("text")),
    Column("topic", Kind("text")),
    Column("topic_id", Kind("text")),
    Column("at_ms", Kind("bigint")),
)


class TopicsTable:
    """The rows of one group. All but `create` are called inside of a transaction."""

    def __init__(self, database: Database, group: str) -> None:
        self._database = database
        self._group = group
        self.name = TableName(None, NAME)
        self._quoted = database.quoted(self.name)
        self._is_there = True

    def create(self, session: Session) -> None:
        """If it is not there yet. By itself: several processes may do it at the same time."""
        try:
            self._database.create_if_missing(session, self.name, self.statement())
        except Refused as problem:
            self._is_there = False
            log.warning(
                "the table %s does not exist in %s and cannot be created (%s): whether a topic is deleted and created "
                "again is not noticed for sure. Somebody who may create it can do so with: %s",
                self.name,
                self._database.shown,
                str(problem).rstrip("."),
                self.statement(),
            )

    def statement(self) -> str:
        """For CREATE TABLE."""
        columns = [
            f"{self._database.quoted(each.name)} {self._database.type_for(each.kind)} NOT NULL" for each in COLUMNS
        ]
        return f"CREATE TABLE IF NOT EXISTS {self._quoted} ({', '.join(columns)}, PRIMARY KEY ({', '.join(KEY)}))"

    def begin(self, session: Session, topic_ids: Mapping[str, str]) -> dict[str, str]:
        """Rows for the topics that have none. Returns which topics the group's offsets are of, as far as is known."""
        if not self._is_there:
            return {}
        for topic, topic_id in sorted(topic_ids.items()):
            session.execute(
                f"INSERT INTO {self._quoted} (group_id, topic, topic_id, at_ms) VALUES (?, ?, ?, ?) "
                f"ON CONFLICT ({', '.join(KEY)}) DO NOTHING",
                [self._group, topic, topic_id, now_ms()],
            )
        return self.read(session, topic_ids)

    def read(self, session: Session, topics: Iterable[str]) -> dict[str, str]:
        found = session.execute(f"SELECT topic, topic_id FROM {self._quoted} WHERE group_id = ?", [self._group])
        wanted = set(topics)
        return {str(topic): str(topic_id) for topic, topic_id in found.rows if topic in wanted}

    def replace(self, session: Session, topic: str, old: str, new: str) -> bool:
        """Whether it was ours to do: somebody else of the group may have done it."""
        changed = session.execute(
            f"UPDATE {self._quoted} SET topic_id = ?, at_ms = ? WHERE group_id = ? AND topic = ? AND topic_id = ?",
            [new, now_ms(), self._group, topic, old],
        )
        return changed.count == 1

"""How far an application has come: one row per app id, beside the tables that it writes, changed in the same
transaction.

- **The epoch says whose it is.** A driver that starts adds one to it, in one statement that also reads the rest of the
  row. From then on no other driver's merge can succeed: each locks the row first and looks for its own epoch.
- `offsets` is for people, too: it is what `startingOffsets` takes. `details` is the rest of what identifies a
  micro-batch, as JSON, under the names that the progress record in Kafka has (`spark/progress.py`).
- The row is locked from the beginning of a merge to its end. So whoever fences waits for a merge that is being
  committed, and reads what came of it; and who got no answer to a COMMIT finds out in the same way.
"""

from __future__ import annotations

import json
import time
from typing import Final, NamedTuple

from onceflow.sinks.databases.database import Column, Database, Kind, Refused, Session, TableName
from onceflow.spark.planning import from_json, to_json
from onceflow.spark.progress import Progress

__all__ = ["Owned", "ProgressTable"]

NAME: Final = "onceflow_progress"
COLUMNS: Final = (
    Column("app_id", Kind("text")),
    Column("epoch", Kind("bigint")),
    Column("query_id", Kind("text")),
    Column("batch_id", Kind("bigint")),
    Column("offsets", Kind("text")),
    Column("at_ms", Kind("bigint")),
    Column("details", Kind("text")),
)
READ: Final = "epoch, query_id, batch_id, offsets, at_ms, details"


class Owned(NamedTuple):
    """What the row of an app says."""

    epoch: int
    progress: Progress | None
    """None before the first micro-batch."""


class ProgressTable:
    """The row of one app. All but `create` are called inside of a transaction."""

    def __init__(self, database: Database, schema: str | None, app_id: str) -> None:
        self._database = database
        self._app_id = app_id
        self.name = TableName(schema, NAME)
        self._quoted = database.quoted(self.name)

    def create(self, session: Session) -> None:
        """If it is not there yet. By itself: two drivers may do it at the same time."""
        self._database.create_if_missing(session, self.name, self.statement())
        self.exists(session)

    def exists(self, session: Session) -> bool:
        """Raises `Refused` if it is there and not as we make it."""
        columns = self._database.columns(session, self.name)
        if columns is None:
            return False
        there = {each.name for each in columns}
        if missing := [each for each in COLUMNS if each.name not in there]:
            raise Refused(
                f"the table {self.name} has no column {missing[0].name!r}: it was made by an older version, or by "
                f"hand. Have its owner add it: ALTER TABLE {self._quoted} ADD COLUMN {missing[0].name} "
                f"{self._database.type_for(missing[0].kind)}"
            )
        return True

    def statement(self) -> str:
        """For CREATE TABLE."""
        columns = ", ".join(
            f"{each.name} {self._database.type_for(each.kind)}{_RULES.get(each.name, '')}" for each in COLUMNS
        )
        return f"CREATE TABLE IF NOT EXISTS {self._quoted} ({columns})"

    def fence(self, session: Session) -> Owned:
        """The app is ours from the commit of this transaction on."""
        found = session.execute(
            f"INSERT INTO {self._quoted} AS known (app_id, epoch) VALUES (?, 1) "
            "ON CONFLICT (app_id) DO UPDATE SET epoch = known.epoch + 1 "
            f"RETURNING {READ}",
            [self._app_id],
        )
        return self._owned(found.rows[0])

    def locked(self, session: Session) -> Owned | None:
        """As it is, and as it stays until our transaction ends; None if somebody has deleted the row."""
        select = f"SELECT {READ} FROM {self._quoted} WHERE app_id = ?"
        found = session.execute(self._database.lock_row(select), [self._app_id])
        return self._owned(found.rows[0]) if found.rows else None

    def record(self, session: Session, progress: Progress) -> None:
        changed = session.execute(
            f"UPDATE {self._quoted} SET query_id = ?, batch_id = ?, offsets = ?, at_ms = ?, details = ? "
            "WHERE app_id = ?",
            [
                progress.query_id,
                progress.batch_id,
                json.dumps(to_json(progress.offsets)),
                progress.at_ms,
                json.dumps(progress.details()),
                self._app_id,
            ],
        )
        if changed.count != 1:  # it was locked: this is a bug, and the transaction must not be committed
            raise AssertionError(f"the progress of {self._app_id!r} is {changed.count} rows")

    def _owned(self, row: tuple[object, ...]) -> Owned:
        epoch, query_id, batch_id, offsets, at_ms, details = row
        if query_id is None:
            return Owned(int(str(epoch)), None)
        try:
            progress = Progress(
                app_id=self._app_id,
                query_id=str(query_id),
                batch_id=int(str(batch_id)),
                offsets=from_json(json.loads(str(offsets or "{}"))),
                at_ms=int(str(at_ms or 0)),
                **Progress.from_details(json.loads(str(details or "{}"))),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise Refused(
                f"the row of {self._app_id!r} in {self.name} is not one that this program has written ({problem}): "
                "bring it back from a backup, or delete it if you know that nothing depends on it"
            ) from None
        return Owned(int(str(epoch)), progress)


_RULES: Final = {"app_id": " PRIMARY KEY", "epoch": " NOT NULL"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000

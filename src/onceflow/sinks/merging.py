"""From a stage into its table, by mode: the statements, and what rows they refuse.

All of it is one part of the transaction that also moves the progress. Nothing here knows which database it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from onceflow.sinks.databases.database import Column, Database, Refused, Session, Stage
from onceflow.sinks.tables import BATCH, OFFSET, PARTITION, QUERY, Table, kept

__all__ = ["Applied", "merge"]

RANK: Final = "onceflow_rank"
BEFORE: Final = "onceflow_upsert"
ONE_ROW_PER_KEY: Final = "give the sink order_by=[...], the columns that say which is the last"


class Applied(NamedTuple):
    """The micro-batch, as a row of mode "increment" remembers it."""

    query_id: str
    batch_id: int


def merge(database: Database, session: Session, table: Table, stage: Stage, batch: Applied) -> int:
    """How many rows of the table were added, changed or deleted. Raises `Refused` for rows that contradict each other.

    The stage is sealed, so what is found out about its rows stays true.
    """
    return _Merge(database, session, table, stage).run(batch)


class _Merge:
    def __init__(self, database: Database, session: Session, table: Table, stage: Stage) -> None:
        self._database = database
        self._session = session
        self._table = table
        self._columns: Sequence[Column] = kept(table, stage.columns)
        self._stage = database.quoted(stage.name)
        self._target = database.quoted(table.target)
        self._key = [database.quoted(name) for name in table.key]
        self._names = [database.quoted(each.name) for each in self._columns]
        self._others = [name for name in self._names if name not in self._key]

    def run(self, batch: Applied) -> int:
        match self._table.mode:
            case "append":
                return self._change(f"INSERT INTO {self._target} ({_list(self._names)}) {self._select(self._names)}")
            case "upsert":
                return self._upsert(self._last_rows())
            case "delete_and_upsert":
                return self._delete_and_upsert(self._last_rows())
            case _:
                self._check_keys()
                return self._increment(batch) if self._table.position is None else self._increment_by_position()

    def _change(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._session.execute(statement, values).count

    def _select(self, names: Sequence[str], source: str | None = None, where: str = "") -> str:
        return f"SELECT {_list(names)} FROM {source or self._stage}{where}"

    # --- rows in place of others

    def _last_rows(self) -> str:
        """What to select from: the one row of each key that counts."""
        self._check_keys()
        if not self._table.order_by:
            if not self._is_refused_anyway():
                self._check_unique(self._stage, ONE_ROW_PER_KEY)
            return self._stage
        order = ", ".join(f"{self._database.quoted(name)} DESC NULLS LAST" for name in self._table.order_by)
        ranked = (
            f"(SELECT *, RANK() OVER (PARTITION BY {_list(self._key)} ORDER BY {order}) AS {RANK} FROM {self._stage})"
        )
        last = f"(SELECT * FROM {ranked} AS ranked WHERE {RANK} = 1)"
        self._check_unique(f"{last} AS latest", f"order_by={list(self._table.order_by)} does not say which is the last")
        return f"{last} AS latest"

    def _is_refused_anyway(self) -> bool:
        """Two rows with the same key, by the database. Not if one of them deletes, or there is nothing to update."""
        return self._database.refuses_double_keys and self._table.mode == "upsert" and bool(self._others)

    def _check_keys(self) -> None:
        needed = [*self._table.key, *(self._table.position or ())]
        missing = " OR ".join(f"{self._database.quoted(name)} IS NULL" for name in needed)
        if self._session.execute(f"SELECT 1 FROM {self._stage} WHERE {missing} LIMIT 1").rows:
            raise Refused(f"a row for {self._table.name} has no value in one of {', '.join(needed)}")

    def _check_unique(self, source: str, advice: str) -> None:
        found = self._session.execute(
            f"SELECT {_list(self._key)}, COUNT(*) FROM {source} GROUP BY {_list(self._key)} HAVING COUNT(*) > 1 LIMIT 1"
        )
        for *key, count in found.rows:
            raise Refused(f"{count} rows for {self._table.name} have the key {self._shown(key)}: {advice}")

    def _shown(self, key: Sequence[Any]) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in zip(self._table.key, key, strict=True))

    def _upsert(self, source: str, where: str = " WHERE true") -> int:
        """The WHERE is for SQLite: without one, it takes the ON of ON CONFLICT for that of a join."""
        changes = ", ".join(f"{name} = excluded.{name}" for name in self._others)
        action = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
        self._session.execute(f"SAVEPOINT {BEFORE}")
        try:
            return self._change(
                f"INSERT INTO {self._target} ({_list(self._names)}) {self._select(self._names, source, where)} "
                f"ON CONFLICT ({_list(self._key)}) {action}"
            )
        except Refused:
            self._session.execute(f"ROLLBACK TO SAVEPOINT {BEFORE}")
            self._check_unique(source, ONE_ROW_PER_KEY)  # if that is why, it says so better
            raise

    def _delete_and_upsert(self, source: str) -> int:
        deleted = self._database.quoted(self._table.deleted)
        gone = self._change(
            f"DELETE FROM {self._target} WHERE ({_list(self._key)}) IN "
            f"({self._select(self._key, source, f' WHERE {deleted}')})"
        )
        return gone + self._upsert(source, f" WHERE {deleted} IS NOT TRUE")

    # --- numbers that are added

    def _increment(self, batch: Applied) -> int:
        """A row that this micro-batch, or a later one of the same query, has changed is left as it is."""
        names = [*self._names, QUERY.name, BATCH.name]
        sums = [*self._key, *(f"SUM({name})" for name in self._others), "?", "?"]
        return self._change(
            f"INSERT INTO {self._target} AS known ({_list(names)}) "
            f"SELECT {_list(sums)} FROM {self._stage} WHERE true GROUP BY {_list(self._key)} "
            f"ON CONFLICT ({_list(self._key)}) DO UPDATE SET {self._additions([QUERY.name, BATCH.name])} "
            f"WHERE COALESCE(known.{QUERY.name}, '') <> excluded.{QUERY.name} "
            f"OR COALESCE(known.{BATCH.name}, -1) < excluded.{BATCH.name}",
            [*batch],
        )

    def _increment_by_position(self) -> int:
        """Only records that are newer than what the row of their key remembers. Others may write the same records at
        the same time, in transactions of their own: hence the lock."""
        self._database.lock_table(self._session, self._table.target)
        partition, offset = (self._database.quoted(name) for name in self._table.position or ())
        self._check_partitions(partition)
        names = [*self._names, PARTITION.name, OFFSET.name]
        sums = [
            *(f"fresh.{name}" for name in self._key),
            *(f"SUM(fresh.{name})" for name in self._others),
            f"MIN(fresh.{partition})",
            f"MAX(fresh.{offset})",
        ]
        return self._change(
            f"INSERT INTO {self._target} AS known ({_list(names)}) "
            f"SELECT {_list(sums)} FROM {self._stage} AS fresh LEFT JOIN {self._target} AS there ON {self._same_key()} "
            f"WHERE there.{OFFSET.name} IS NULL OR fresh.{offset} > there.{OFFSET.name} "
            f"GROUP BY {', '.join(f'fresh.{name}' for name in self._key)} "
            f"ON CONFLICT ({_list(self._key)}) DO UPDATE SET {self._additions([PARTITION.name, OFFSET.name])}"
        )

    def _same_key(self) -> str:
        return " AND ".join(f"there.{name} = fresh.{name}" for name in self._key)

    def _additions(self, taken_over: Sequence[str]) -> str:
        """What is NULL counts as nothing; NULL and NULL stay NULL."""
        added = [
            f"{name} = COALESCE(known.{name} + excluded.{name}, known.{name}, excluded.{name})" for name in self._others
        ]
        return ", ".join([*added, *(f"{name} = excluded.{name}" for name in taken_over)])

    def _check_partitions(self, partition: str) -> None:
        """Offsets of different partitions cannot be compared."""
        in_stage = f"SELECT {_list(self._key)}, {partition} AS place FROM {self._stage}"
        joined = f"{self._stage} AS fresh JOIN {self._target} AS there ON {self._same_key()}"
        in_table = f"SELECT {', '.join(f'there.{name}' for name in self._key)}, there.{PARTITION.name} FROM {joined}"
        found = self._session.execute(
            f"SELECT {_list(self._key)}, MIN(place), MAX(place) FROM ({in_stage} UNION ALL {in_table}) AS places "
            f"GROUP BY {_list(self._key)} HAVING MIN(place) <> MAX(place) LIMIT 1"
        )
        for *key, first, second in found.rows:
            raise Refused(
                f"records for {self._shown(key)} of {self._table.name} are in partitions {first} and {second}, and a "
                "row remembers one offset: write records with the same key to one partition, or leave position= out"
            )


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)

"""The ways to land rows that are compared, each with an empty table before it and the totals of the table after it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.landing import data
from benchmarks.landing.data import Totals
from benchmarks.landing.steps import Steps
from onceflow.sinks import SqlSink, write
from onceflow.sinks.databases.postgresql_copy import csv_of

TABLE = "landed"
TEMPLATE = "template"
KEYED = f"{data.COLUMNS}, PRIMARY KEY (id)"
USERS_COLUMNS = (
    "user_id bigint PRIMARY KEY, amount numeric(20,2), events bigint, onceflow_query text, onceflow_batch bigint"
)
HALF_OF_THE_IDS = f"INSERT INTO {TABLE} SELECT id, user_id, 0, price, '', at, ok FROM {TEMPLATE} WHERE id % 2 = 0"
HALF_OF_THE_USERS = (
    f"INSERT INTO {TABLE} (user_id, amount, events) SELECT DISTINCT user_id, 0, 0 FROM {TEMPLATE} WHERE user_id % 2 = 0"
)
JDBC_DEFAULTS = {"batchsize": "1000"}
JDBC_TUNED = {"batchsize": "10000"}
REWRITE = "&reWriteBatchedInserts=true"


@dataclass(frozen=True)
class Way:
    """What is timed is `land` alone; it returns the milliseconds of its steps, where it knows any."""

    prepare: Callable[[], None]
    land: Callable[[], dict[str, float]]
    totals: Callable[[], Totals]
    expected: Totals


class Ways:
    """All ways for the same rows. The DataFrame is cached in memory, the CSV is ready: what they cost is not timed."""

    def __init__(self, frame: Any, url: str, folder: Path) -> None:
        self._frame = frame
        self._url = url
        self._file = folder / "landed.db"
        self._landings = 0
        table = frame.toArrow()
        self._pieces = [piece for piece, _ in csv_of(table.to_batches())]
        self._tuples = _tuples(frame)
        self._expected = data.totals(frame)
        self._expected_users = data.totals_of_users(frame)
        self._execute(f"CREATE TABLE {TEMPLATE} ({data.COLUMNS})")
        _copy(url, TEMPLATE, self._pieces)

    def by_name(self) -> dict[str, Way]:
        jdbc, jdbc_tuned = self._jdbc(JDBC_DEFAULTS), self._jdbc(JDBC_TUNED, REWRITE)
        return {
            "jdbc": self._plain(jdbc),
            "jdbc-tuned": self._plain(jdbc_tuned),
            "copy": self._plain(lambda: self._copy(1)),
            "copy-2": self._plain(lambda: self._copy(2)),
            "sink": self._plain(lambda: self._sink()),
            "jdbc-key": self._plain(jdbc_tuned, KEYED),
            "copy-key": self._plain(lambda: self._copy(1), KEYED),
            "sink-key": self._plain(lambda: self._sink(key=["id"]), KEYED),
            "sink-upsert": self._plain(lambda: self._sink(key=["id"], mode="upsert"), KEYED, HALF_OF_THE_IDS),
            "sink-increment": self._users(),
            "sqlite-executemany": self._sqlite(self._executemany),
            "sqlite-sink": self._sqlite(self._sqlite_sink),
        }

    # --- PostgreSQL

    def _plain(self, land: Callable[[], dict[str, float]], columns: str = data.COLUMNS, filled: str = "") -> Way:
        return Way(lambda: self._create(columns, filled), land, lambda: self._totals(data.TOTALS_SQL), self._expected)

    def _users(self) -> Way:
        events = self._frame.selectExpr("user_id", "amount", "1L AS events")
        return Way(
            lambda: self._create(USERS_COLUMNS, HALF_OF_THE_USERS),
            lambda: self._sink(events, key=["user_id"], mode="increment"),
            lambda: self._totals(data.EVENTS_SQL),
            self._expected_users,
        )

    def _create(self, columns: str, filled: str) -> None:
        """Nothing is left to be written to disk when the clock starts."""
        self._execute(f"DROP TABLE IF EXISTS {TABLE}", f"CREATE TABLE {TABLE} ({columns})", filled, "CHECKPOINT")

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in filter(None, statements):
                connection.execute(statement.encode())

    def _totals(self, query: str) -> Totals:
        with psycopg.connect(self._url) as connection:
            return Totals(*connection.execute(query.format(TABLE).encode()).fetchall()[0])

    def _sink(self, frame: Any = None, **settings: Any) -> dict[str, float]:
        return self._write(frame or self._frame, url=self._url, **settings)

    def _write(self, frame: Any, **settings: Any) -> dict[str, float]:
        """Each landing has a name of its own, or it would be the repeat of the last one."""
        self._landings += 1
        steps = Steps()
        write(frame, table=TABLE, app_id="benchmark", once=str(self._landings), listeners=[steps], **settings)
        return steps.last()

    def _jdbc(self, options: dict[str, str], settings: str = "") -> Callable[[], dict[str, float]]:
        def land() -> dict[str, float]:
            write_jdbc(self._frame, self._url, TABLE, options, settings)
            return {}

        return land

    def _copy(self, connections: int) -> dict[str, float]:
        """Dealt out like cards where there are several."""
        hands = [self._pieces[number::connections] for number in range(connections)]
        threads = [threading.Thread(target=_copy, args=(self._url, TABLE, hand)) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {}

    # --- SQLite

    def _sqlite(self, land: Callable[[], dict[str, float]]) -> Way:
        expected = Totals(
            self._expected.rows, self._expected.ids, self._expected.amount * 100, self._expected.characters
        )
        return Way(self._new_file, land, self._sqlite_totals, expected)

    def _new_file(self) -> None:
        for path in self._file.parent.glob(f"{self._file.name}*"):
            if path.is_file():
                path.unlink()
        connection = sqlite3.connect(self._file)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"CREATE TABLE {TABLE} ({data.SQLITE_COLUMNS})")
        connection.close()

    def _sqlite_sink(self) -> dict[str, float]:
        return self._write(self._frame, url=f"sqlite:///{self._file}")

    def _executemany(self) -> dict[str, float]:
        connection = sqlite3.connect(self._file, isolation_level=None)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?, ?, ?, ?)", self._tuples)
        connection.execute("COMMIT")
        connection.close()
        return {}

    def _sqlite_totals(self) -> Totals:
        connection = sqlite3.connect(self._file)
        [found] = connection.execute(data.SQLITE_TOTALS_SQL.format(TABLE)).fetchall()
        connection.close()
        return Totals(*found)


def jdbc_sink(url: str, table: str) -> Callable[[Any, int], None]:
    """For `foreachBatch`, as most do it: at least once."""
    return lambda frame, _: write_jdbc(frame, url, table, JDBC_TUNED, REWRITE)


def sql_sink(url: str, table: str, app_id: str, steps: Steps) -> SqlSink:
    return SqlSink(url=url, table=table, app_id=app_id, listeners=[steps])


def write_jdbc(frame: Any, url: str, table: str, options: dict[str, str], settings: str) -> None:
    known = psycopg.conninfo.conninfo_to_dict(url)
    address = f"jdbc:postgresql://{known['host']}:{known['port']}/{known['dbname']}"
    login = f"user={known['user']}&password={known['password']}"
    writer = frame.write.format("jdbc").option("url", f"{address}?{login}{settings}")
    writer.options(dbtable=table, driver="org.postgresql.Driver", **options).mode("append").save()


def _copy(url: str, table: str, pieces: Sequence[bytes]) -> None:
    statement = f"COPY {table} FROM STDIN (FORMAT csv)".encode()
    with psycopg.connect(url) as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
        for piece in pieces:
            copy.write(piece)


def _tuples(frame: Any) -> list[tuple[Any, ...]]:
    """As SQLite keeps them."""
    texts = frame.selectExpr(
        *("id", "user_id", "cast(amount AS string)", "price", "note"),
        *('date_format(at, "yyyy-MM-dd HH:mm:ss.SSSSSSXXX")', "cast(ok AS int)"),
    )
    return list(zip(*(column.to_pylist() for column in texts.toArrow().columns), strict=True))

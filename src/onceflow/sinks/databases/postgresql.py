"""PostgreSQL. A stage is an unlogged table, with a second one for which tasks are in it.

- **Unlogged**: what the tasks load does not go through the server's write-ahead log as well. A crash of the server
  empties such tables, and both of a stage alike: it is then empty and says so. So it is on a standby that takes over.
- **A task** copies its rows and adds its line to the second table in one transaction.
- **Sealing** takes a lock that keeps writers out, on both tables in the order in which tasks take theirs. It waits for
  loads that are open; those that come later wait for the end of the merge, and find no stage any more. Readers do not
  matter: `pg_dump` has a lock on every table that it found, for as long as it takes.
- **Dropping** needs a lock that keeps readers out too. Inside of the merge it waits for none: it drops the stage if it
  can, so that a stage and its micro-batch end together, and otherwise leaves it for the call after the merge.

The url is anything that libpq takes. Messages never show it with its password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from onceflow.digits import PORT_MAX, whole_number_of
from onceflow.errors import ConfigError
from onceflow.extras import require
from onceflow.sinks.databases.database import (
    Again,
    Column,
    Database,
    Kind,
    Loaded,
    Refused,
    Session,
    Stage,
    TableColumn,
    TableName,
)
from onceflow.sinks.databases.postgresql_types import PostgreSqlColumn, misfit, type_for

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgreSql"]

_LOAD_LOCK_TIMEOUT_S: Final = 30.0
"""A task only waits for a lock when its stage is sealed, and then it is too late anyway."""
_NAME_BYTES_MAX: Final = 63
_TASKS: Final = "_tasks"
_NO_TABLES: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}

_IDENTITY = "SELECT pg_postmaster_start_time(), current_database(), to_regclass(?)::oid"
_KIND = "SELECT c.relkind::text FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(?)"
_COLUMNS = """
    WITH RECURSIVE base AS (
        SELECT a.attnum, a.atttypid AS type, a.atttypmod AS modifier, false AS is_required, false AS is_given
          FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT b.attnum, t.typbasetype, t.typtypmod,
               b.is_required OR t.typnotnull, b.is_given OR t.typdefault IS NOT NULL
          FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type
         WHERE t.typtype = 'd'
    )
    SELECT a.attname, format_type(b.type, b.modifier), NOT (a.attnotnull OR b.is_required),
           a.atthasdef OR a.attidentity <> '' OR b.is_given, a.attidentity = 'a' OR a.attgenerated <> '',
           format_type(a.atttypid, a.atttypmod), n.nspname, l.collname
      FROM base b
      JOIN pg_catalog.pg_attribute a ON a.attrelid = to_regclass(?) AND a.attnum = b.attnum
      JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
      LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
      LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
     ORDER BY a.attnum"""
_UNIQUE_KEYS = """
    SELECT (SELECT array_agg(a.attname::text)
              FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1]))
      FROM pg_catalog.pg_index i
     WHERE i.indrelid = to_regclass(?) AND i.indisunique AND i.indimmediate AND i.indisvalid
       AND NOT i.indisexclusion AND i.indpred IS NULL AND i.indexprs IS NULL"""
_MAY = {
    **{each: f"SELECT has_any_column_privilege(to_regclass(?), '{each}')" for each in ("SELECT", "INSERT", "UPDATE")},
    "DELETE": "SELECT has_table_privilege(to_regclass(?), 'DELETE')",
}
_UNLOGGED = """
    SELECT c.relname::text
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND starts_with(c.relname::text, ?)
       AND (n.nspname = ? OR ?::text IS NULL AND pg_catalog.pg_table_is_visible(c.oid))
     ORDER BY c.relname"""

_FOR_LOADING = """
    SELECT set_config('TimeZone', 'UTC', true),
           ARRAY(SELECT a.atttypid::bigint FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped
                  ORDER BY a.attnum)"""
"""How tasks write times, until their transaction ends; and the types of a stage's columns, in its order."""


class PostgreSql(Database):
    refuses_double_keys = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._parameters = _parameters(url)

    def __repr__(self) -> str:
        return f"PostgreSql({self.shown!r})"

    @property
    def shown(self) -> str:
        known = self._parameters
        user = f"{known['user']}@" if "user" in known else ""
        hosts = known.get("host", known.get("hostaddr", "")).split(",")
        ports = known.get("port", "").split(",")
        pairs = zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=False)
        places = ",".join(_place(host, port) for host, port in pairs)
        return f"postgresql://{user}{places}/{known.get('dbname', '')}"

    def connect(self, *, lock_timeout_s: float, statement_timeout_s: float | None = None) -> Session:
        from onceflow.sinks.databases.postgresql_session import connect

        return connect(self.url, self.shown, lock_timeout_s=lock_timeout_s, statement_timeout_s=statement_timeout_s)

    def identity(self, session: Session, table: TableName) -> str:
        return ":".join(map(str, session.execute(_IDENTITY, (self.quoted(table),)).rows[0]))

    # --- names and types

    def quoted(self, name: str | TableName) -> str:
        if isinstance(name, TableName):
            return ".".join(self.quoted(part) for part in name if part is not None)
        if not name or "\0" in name or len(name.encode()) > _NAME_BYTES_MAX:
            raise Refused(f"{name!r} cannot be a name in PostgreSQL: it takes 1 to {_NAME_BYTES_MAX} bytes, and no NUL")
        return '"' + name.replace('"', '""') + '"'

    def type_for(self, kind: Kind) -> str:
        return type_for(kind)

    def misfit(self, column: Column, there: TableColumn) -> str | None:
        return misfit(column, there)

    def columns(self, session: Session, table: TableName) -> list[TableColumn] | None:
        found = session.execute(_KIND, (self.quoted(table),)).rows
        if not found:
            return None
        ((kind,),) = found
        if kind not in ("r", "p"):
            raise Refused(f"{table} is {_NO_TABLES.get(kind, 'no table')}: rows can be landed in tables only")
        return [PostgreSqlColumn(*row[:5]) for row in self._attributes(session, table)]

    def unique_keys(self, session: Session, table: TableName) -> list[frozenset[str]]:
        return [frozenset(names) for (names,) in session.execute(_UNIQUE_KEYS, (self.quoted(table),)).rows]

    def check_rights(self, session: Session, table: TableName, rights: Sequence[str]) -> None:
        quoted = self.quoted(table)
        missing = [each for each in rights if not session.execute(_MAY[each], (quoted,)).rows[0][0]]
        if missing:
            ((role,),) = session.execute("SELECT quote_ident(current_user)").rows
            raise Refused(
                f"permission denied for table {table}. Its owner or a superuser can allow it: "
                f"GRANT {', '.join(missing)} ON {quoted} TO {role}"
            )

    # --- stages

    def create_stage(self, session: Session, stage: Stage, target: TableName) -> None:
        types = {row[0]: self._declared(*row[5:]) for row in self._attributes(session, target)}
        columns = (
            f"{self.quoted(each.name)} {types.get(each.name) or self.type_for(each.kind)}" for each in stage.columns
        )
        # It lives for seconds. A vacuum or an analyze that begins meanwhile would only be in the way of the seal.
        kept = "WITH (autovacuum_enabled = false)"
        session.execute(f"CREATE UNLOGGED TABLE {self.quoted(stage.name)} ({', '.join(columns)}) {kept}")
        session.execute(
            f"CREATE UNLOGGED TABLE {self.quoted(_manifest(stage.name))} "
            f"(task bigint NOT NULL, attempt bigint NOT NULL, row_count bigint NOT NULL) {kept}"
        )

    def load(self, stage: Stage, task: int, attempt: int, batches: Iterable[Any]) -> int:
        session = self.connect(lock_timeout_s=_LOAD_LOCK_TIMEOUT_S)
        try:
            with session.transaction():
                rows = self._copy(session, stage, batches)
                into = f"INSERT INTO {self.quoted(_manifest(stage.name))} VALUES (?, ?, ?)"
                session.execute(into, (task, attempt, rows))
            return rows
        except Refused as error:
            _raise_if_dropped(error, stage)
            raise
        finally:
            session.close()

    def gather(self, session: Session, stage: Stage) -> None:
        """Nothing: the rows are where they are merged from."""

    def seal(self, session: Session, stage: Stage) -> list[Loaded]:
        table, manifest = self.quoted(stage.name), self.quoted(_manifest(stage.name))
        exists = "SELECT to_regclass(?) IS NOT NULL AND to_regclass(?) IS NOT NULL"
        if session.execute(exists, (table, manifest)).rows != [(True,)]:
            return []  # somebody has dropped it
        try:
            session.execute(f"LOCK TABLE {table}, {manifest} IN SHARE MODE")
        except Refused as error:
            _raise_if_dropped(error, stage)
            raise
        return [Loaded(*row) for row in session.execute(f"SELECT task, attempt, row_count FROM {manifest}").rows]

    def drop_stage(self, session: Session, stage: TableName) -> None:
        table, manifest = self.quoted(stage), self.quoted(_manifest(stage))
        drop = f"DROP TABLE IF EXISTS {table}, {manifest}"
        if not session.is_in_transaction:
            session.execute(drop)
            return
        session.execute("SAVEPOINT onceflow_drop")
        try:
            session.execute(f"LOCK TABLE {table}, {manifest} IN ACCESS EXCLUSIVE MODE NOWAIT")
            session.execute(drop)
        except (Again, Refused):  # a reader, or it is not there
            session.execute("ROLLBACK TO SAVEPOINT onceflow_drop")
        session.execute("RELEASE SAVEPOINT onceflow_drop")

    def stages(self, session: Session, prefix: TableName) -> list[TableName]:
        found = [row[0] for row in session.execute(_UNLOGGED, (prefix.name, prefix.schema, prefix.schema)).rows]
        manifests = {name + _TASKS for name in found}
        return [TableName(prefix.schema, name) for name in found if name not in manifests]

    # --- behind it

    def _attributes(self, session: Session, table: TableName) -> list[tuple[Any, ...]]:
        name = self.quoted(table)
        return session.execute(_COLUMNS, (name, name)).rows

    def _declared(self, type_there: str, collation_schema: str | None, collation: str | None) -> str:
        """With its collation: two texts that are the same key in the table must be so in the stage."""
        if collation is None or collation_schema is None or collation == "default":
            return type_there
        return f"{type_there} COLLATE {self.quoted(TableName(collation_schema, collation))}"

    def _copy(self, session: Session, stage: Stage, batches: Iterable[Any]) -> int:
        from onceflow.sinks.databases.postgresql_session import PostgreSqlSession

        assert isinstance(session, PostgreSqlSession)
        pieces, form = self._pieces(session, stage, batches)
        names = ", ".join(self.quoted(each.name) for each in stage.columns)
        statement = f"COPY {self.quoted(stage.name)} ({names}) FROM STDIN (FORMAT {form})"
        rows = 0
        connection: psycopg.Connection[Any] = session.connection
        with session.troubles(), connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for piece, count in pieces:
                copy.write(piece)
                rows += count
        return rows

    def _pieces(
        self, session: Session, stage: Stage, batches: Iterable[Any]
    ) -> tuple[Iterator[tuple[bytes, int]], str]:
        """What is to be sent, and in which format: the faster one, if all of the stage's columns can be written so."""
        from onceflow.sinks.databases.postgresql_binary import binary_of, can_be_binary
        from onceflow.sinks.databases.postgresql_copy import csv_of

        ((_, types),) = session.execute(_FOR_LOADING, (self.quoted(stage.name),)).rows
        if can_be_binary(stage.columns, types):
            return binary_of(batches, types), "binary"
        return csv_of(batches), "csv"


def _parameters(url: str) -> dict[str, str]:
    """What libpq makes of it. Its own complaints are not passed on: they quote what may be a part of the password."""
    conninfo, error_of_psycopg = _psycopg()
    wrong = ConfigError(
        "url= is no address that PostgreSQL's libpq understands: postgresql://user:password@host:port/database. In "
        "user and password, write @ as %40, : as %3A, / as %2F, ? as %3F, % as %25"
    )
    authority, _, path = re.sub(r"^\w+://", "", url).partition("?")[0].partition("/")
    if authority.count("@") > 1 or "@" in path:
        raise wrong
    try:
        known = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items() if value is not None}
    except error_of_psycopg:
        raise wrong from None
    if "@" in known.get("host", "") or any(
        port and whole_number_of(port, PORT_MAX) is None for port in known.get("port", "").split(",")
    ):
        raise wrong
    return {name: value for name, value in known.items() if name in ("user", "host", "hostaddr", "port", "dbname")}


def _psycopg() -> tuple[Any, Any]:
    try:
        import psycopg
    except ImportError as error:
        require("sql", "PostgreSQL")
        raise ConfigError(f"PostgreSQL needs psycopg, which cannot be imported: {error}") from error
    return psycopg.conninfo, psycopg.Error


def _place(host: str, port: str) -> str:
    return (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")


def _manifest(stage: TableName) -> TableName:
    return TableName(stage.schema, stage.name + _TASKS)


def _raise_if_dropped(error: Refused, stage: Stage) -> None:
    """A stage that is not there was dropped: by another driver, or by an administrator who cleans up."""
    if getattr(error.__cause__, "sqlstate", None) == "42P01":
        raise Again(
            f"The staging table {stage.name} is not there any more: another run or somebody has dropped it"
        ) from error

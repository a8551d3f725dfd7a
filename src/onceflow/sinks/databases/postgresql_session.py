"""A connection to PostgreSQL: explicit BEGIN and COMMIT, and no exception of psycopg's leaves it.

- Between `begin` and the end, statements are in one transaction; outside of it each is by itself.
- READ COMMITTED, whatever the role's default is: after the wait for a lock the next statement must see what the one who
  held it has committed.
- COMMIT of a transaction in which a statement has failed is answered with ROLLBACK, without an error. Here it raises.
- A COMMIT that was answered survives a crash: `synchronous_commit = off` is not accepted from the role's settings,
  since Spark would take for done what the server can forget.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from onceflow.sinks.databases import postgresql_problems as problems
from onceflow.sinks.databases.database import Again, Result, Session

__all__ = ["PostgreSqlSession", "connect"]

IDLE_IN_TRANSACTION_S: Final = 60
"""A driver that hangs in the middle of a merge holds the progress row, and its successor waits for it. Between two
statements of ours there are milliseconds; a minute is a process that is stopped, or a host that is gone."""

_CONNECTING: Final = {
    "application_name": "onceflow",
    "connect_timeout": "10",
    # A server that is gone without a word is noticed within a minute, while we wait for an answer and while we send.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_TOKENS: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\?""")


def connect(url: str, shown: str, *, lock_timeout_s: float, statement_timeout_s: float | None) -> PostgreSqlSession:
    settings = {
        "lock_timeout": _milliseconds(lock_timeout_s),
        "idle_in_transaction_session_timeout": _milliseconds(IDLE_IN_TRANSACTION_S),
        "default_transaction_isolation": "read committed",
        "DateStyle": "ISO",  # psycopg reads no other
        # The same on the server's side: a task whose host is gone in the middle of a COPY is not idle, only silent.
        "tcp_keepalives_idle": "30",
        "tcp_keepalives_interval": "10",
        "tcp_keepalives_count": "3",
    }
    if statement_timeout_s is not None:
        settings["statement_timeout"] = _milliseconds(statement_timeout_s)
    try:
        # No prepared statements: they are of no use for statements that differ, and not for every pooler.
        connection = psycopg.connect(_with_defaults(url), autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise problems.while_connecting(error, shown) from error
    session = PostgreSqlSession(connection)
    try:
        session.set_up(settings)
    except BaseException:
        session.close()
        raise
    return session


def _with_defaults(url: str) -> str:
    given = conninfo_to_dict(url)
    wanted = {name: value for name, value in _CONNECTING.items() if name not in given}
    return make_conninfo(url, **wanted, client_encoding="UTF8")  # whatever is given: it is what our statements are in


class PostgreSqlSession(Session):
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._connection

    @property
    def is_in_transaction(self) -> bool:
        status = self._connection.info.transaction_status
        return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)

    def set_up(self, settings: dict[str, str]) -> None:
        calls = ", ".join("set_config(?, ?, false)" for _ in settings)
        self.execute(f"SELECT {calls}", [text for setting in settings.items() for text in setting])
        self.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        with self.troubles(), psycopg.RawCursor(self._connection) as cursor:
            cursor.execute(numbered(statement).encode(), values or None)
            rows = cursor.fetchall() if cursor.description is not None else []
            return Result(rows, max(cursor.rowcount, 0))

    def begin(self) -> None:
        self.execute("BEGIN")

    def commit(self) -> None:
        with self.troubles(), psycopg.RawCursor(self._connection) as cursor:
            cursor.execute("COMMIT")
            answer = cursor.statusmessage
        if answer != "COMMIT":
            raise Again(f"A statement of the transaction had failed, so it was rolled back (COMMIT answered: {answer})")

    def rollback(self) -> None:
        with suppress(psycopg.Error):
            if self.is_in_transaction:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    @contextmanager
    def troubles(self) -> Iterator[None]:
        """What psycopg raises inside leaves as `Trouble`."""
        try:
            yield
        except psycopg.Error as error:
            is_lost = self._connection.closed
            user = "" if is_lost else self._connection.info.user
            raise problems.trouble(error, is_lost=is_lost, user=user) from error


@functools.lru_cache(maxsize=512)
def numbered(statement: str) -> str:
    """`?` as PostgreSQL's own $1, $2. Those in names and texts stay."""
    number = 0

    def replaced(found: re.Match[str]) -> str:
        nonlocal number
        if found[0] != "?":
            return found[0]
        number += 1
        return f"${number}"

    return _TOKENS.sub(replaced, statement)


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"

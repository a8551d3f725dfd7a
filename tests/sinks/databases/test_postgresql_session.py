"""A session with a real PostgreSQL: transactions, settings, statements with `?`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onceflow.sinks.databases.database import Again, Gone, Refused, Result, Session, TableName
from onceflow.sinks.databases.postgresql import PostgreSql
from onceflow.sinks.databases.postgresql_session import IDLE_IN_TRANSACTION_S
from tests.support.database_proxy import DatabaseProxy
from tests.support.postgresql import PostgreSQL
from tests.support.waiting import eventually


@pytest.fixture
def server(database: str) -> PostgreSql:
    return PostgreSql(database)


@pytest.fixture
def session(server: PostgreSql) -> Iterator[Session]:
    session = server.connect(lock_timeout_s=1.5, statement_timeout_s=20)
    yield session
    session.close()


def value(session: Session, statement: str, *values: Any) -> Any:
    ((found,),) = session.execute(statement, values).rows
    return found


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("lock_timeout", "1500ms"),
        ("statement_timeout", "20s"),
        ("idle_in_transaction_session_timeout", "1min"),
        ("application_name", "onceflow"),
        ("client_encoding", "UTF8"),
        ("transaction_isolation", "read committed"),
        ("synchronous_commit", "on"),
        ("tcp_keepalives_idle", "30"),
    ],
)
def test_a_session_is_set_up_whatever_the_role_has(session: Session, setting: str, expected: str) -> None:
    assert IDLE_IN_TRANSACTION_S == 60
    assert value(session, "SELECT current_setting(?)", setting) == expected


def test_settings_that_would_break_the_promise_are_not_taken_from_the_role(server: PostgreSql) -> None:
    with psycopg.connect(server.url) as connection:
        for setting in ("synchronous_commit = off", "default_transaction_isolation = 'serializable'"):
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}".encode())
    session = server.connect(lock_timeout_s=1)
    assert value(session, "SHOW synchronous_commit") == "on"
    assert value(session, "SHOW transaction_isolation") == "read committed"
    session.close()


def test_a_stricter_synchronous_commit_stays(server: PostgreSql) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET synchronous_commit = remote_apply".encode())
    session = server.connect(lock_timeout_s=1)
    assert value(session, "SHOW synchronous_commit") == "remote_apply"
    session.close()


def test_what_the_url_says_about_the_connection_counts(server: PostgreSql) -> None:
    url = server.url + "?application_name=mine&options=-csearch_path%3Delsewhere"
    session = PostgreSql(url).connect(lock_timeout_s=1)
    assert value(session, "SHOW application_name") == "mine"
    assert value(session, "SHOW search_path") == "elsewhere"
    session.close()


def test_question_marks_are_values_except_in_names_and_texts(session: Session) -> None:
    session.execute('CREATE TABLE t ("what?" text, "a""?b" text, n bigint)')
    session.execute("""INSERT INTO t ("what?", "a""?b", n) VALUES (?, '100%s ?''?', ?)""", ("it's ?", 2**40))
    found = session.execute("SELECT * FROM t WHERE n = ? AND 1 = 5 % 2", (2**40,)).rows
    assert found == [("it's ?", "100%s ?'?", 2**40)]


def test_a_statement_tells_how_many_rows_it_has_changed(session: Session) -> None:
    session.execute("CREATE TABLE t (n bigint)")
    assert session.execute("INSERT INTO t SELECT generate_series(1, 5)").count == 5
    assert session.execute("DELETE FROM t WHERE n > ? RETURNING n", (3,)) == Result([(4,), (5,)], 2)
    assert session.execute("UPDATE t SET n = n WHERE false").count == 0


def test_a_transaction_ends_as_it_should(session: Session) -> None:
    session.execute("CREATE TABLE t (n bigint)")
    with session.transaction():
        assert session.is_in_transaction
        session.execute("INSERT INTO t VALUES (1)")
    assert not session.is_in_transaction
    with pytest.raises(Refused), session.transaction():
        session.execute("INSERT INTO t VALUES (2); SELECT 1 / 0")
    assert not session.is_in_transaction
    assert session.execute("SELECT n FROM t").rows == [(1,)]


def test_a_statement_that_fails_leaves_a_transaction_that_can_be_rolled_back(session: Session) -> None:
    session.begin()
    with pytest.raises(Refused):
        session.execute("SELECT 1 / 0")
    assert session.is_in_transaction
    with pytest.raises(Refused, match="A statement before it had failed"):
        session.execute("SELECT 1")
    session.rollback()
    assert value(session, "SELECT 1") == 1


def test_a_commit_that_rolls_back_raises(session: Session) -> None:
    session.execute("CREATE TABLE t (n bigint)")
    session.begin()
    session.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(Refused):
        session.execute("SELECT 1 / 0")
    with pytest.raises(Again, match="rolled back"):
        session.commit()
    assert session.execute("SELECT n FROM t").rows == []


def test_a_deferred_constraint_refuses_at_the_commit(session: Session) -> None:
    session.execute("CREATE TABLE t (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    session.begin()
    session.execute("INSERT INTO t VALUES (1), (1)")
    with pytest.raises(Refused, match=r"Key \(n\)=\(1\)"):
        session.commit()
    assert not session.is_in_transaction
    assert session.execute("SELECT n FROM t").rows == []


def test_rollback_and_close_never_raise(server: PostgreSql) -> None:
    session = server.connect(lock_timeout_s=1)
    session.rollback()
    session.begin()
    cut_off(server, session)
    session.rollback()
    session.close()
    session.close()
    session.rollback()
    assert not session.is_in_transaction


def cut_off(server: PostgreSql, session: Session) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", (session.connection.info.backend_pid,))


def test_a_session_that_was_ended_is_gone_and_so_is_its_transaction(server: PostgreSql, session: Session) -> None:
    session.execute("CREATE TABLE t (n bigint)")
    session.begin()
    session.execute("INSERT INTO t VALUES (1)")
    cut_off(server, session)
    with pytest.raises(Gone, match="57P01"):
        session.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(Gone):
        session.execute("SELECT 1")
    other = server.connect(lock_timeout_s=1)
    assert other.execute("SELECT n FROM t").rows == []
    other.close()


def test_a_transaction_that_stays_idle_is_ended_by_the_server(server: PostgreSql, session: Session) -> None:
    session.execute("SET idle_in_transaction_session_timeout = '100ms'")
    session.begin()
    session.execute("CREATE TABLE t (n bigint)")
    pid = session.connection.info.backend_pid
    with psycopg.connect(server.url, autocommit=True) as other:
        asked = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: other.execute(asked, (pid,)).fetchone() is None, "the server ended the session")
    with pytest.raises(Gone):
        session.commit()


@pytest.mark.parametrize("is_done", [True, False])
def test_a_commit_without_an_answer_is_gone_whatever_became_of_it(
    postgresql: PostgreSQL, server: PostgreSql, session: Session, is_done: bool
) -> None:
    session.execute("CREATE TABLE t (n bigint)")
    with DatabaseProxy(postgresql.port) as proxy:
        through = PostgreSql(proxy.url(server.url)).connect(lock_timeout_s=5)
        through.begin()
        through.execute("INSERT INTO t VALUES (1)")
        lost = proxy.lose_next_commit_answer() if is_done else proxy.lose_next_commit()
        with pytest.raises(Gone, match="The connection to PostgreSQL was lost"):
            through.commit()
        assert lost.wait(10)
        through.close()
    with session.transaction():
        server.lock_table(session, TableName(None, "t"))  # waits for the lost transaction to end
        assert session.execute("SELECT n FROM t").rows == ([(1,)] if is_done else [])


def test_the_connection_is_an_ordinary_one_for_code_of_users(session: Session) -> None:
    with session.transaction():
        assert session.connection.execute("SELECT %s::text", ("%s ok",)).fetchone() == ("%s ok",)
        with session.connection.transaction():
            session.connection.execute("CREATE TABLE t (n bigint)")
    assert session.execute("SELECT * FROM t").rows == []


def test_a_cancelled_statement_is_worth_another_try(server: PostgreSql) -> None:
    session = server.connect(lock_timeout_s=1, statement_timeout_s=0.05)
    with pytest.raises(Again, match="57014"):
        session.execute("SELECT pg_sleep(30)")
    session.close()


def test_a_socket_folder_and_a_second_host_are_addresses_too(postgresql: PostgreSQL, server: PostgreSql) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(server.url)
    login = f"user={parts['user']}&password={parts['password']}&port={parts['port']}"
    by_socket = PostgreSql(f"postgresql:///{parts['dbname']}?host={postgresql.socket_folder}&{login}")
    by_second = PostgreSql(server.url.replace("127.0.0.1:", "127.0.0.1:1,127.0.0.1:"))
    for each in (by_socket, by_second):
        session = each.connect(lock_timeout_s=1)
        assert value(session, "SELECT 1") == 1
        session.close()

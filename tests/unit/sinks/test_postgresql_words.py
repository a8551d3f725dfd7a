"""Why there is no connection, by the words of libpq and the server: which pass, and which do not."""

from __future__ import annotations

import psycopg
import pytest

from onceflow.sinks.databases.database import Gone, Refused, Trouble
from onceflow.sinks.databases.postgresql_problems import trouble, while_connecting
from onceflow.sinks.databases.postgresql_session import numbered

SHOWN = "postgresql://ann@db/sales"


def why_not(words: str) -> Trouble:
    return while_connecting(psycopg.OperationalError(f"connection failed: {words}"), SHOWN)


@pytest.mark.parametrize(
    "words",
    [
        'connection to server at "db", port 5432 failed: Connection refused\n\tIs the server running on that host?',
        "FATAL:  the database system is starting up",
        "FATAL:  the database system is shutting down",
        "FATAL:  the database system is in recovery mode",
        "FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "server closed the connection unexpectedly",
        "SSL SYSCALL error: EOF detected",
        "SSL error: unexpected eof while reading",
        "session is read-only",
        "server is in hot standby mode",
        "failed to resolve host 'db': [Errno -3] Temporary failure in name resolution",
        "connection timeout expired",
        "FATAL:  Passwort-Authentifizierung für Benutzer »ann« fehlgeschlagen",
    ],
)
def test_what_may_pass_is_gone(words: str) -> None:
    problem = why_not(words)
    assert isinstance(problem, Gone)
    assert str(problem) == f"No connection to {SHOWN}: {' '.join(words.split())}"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ('FATAL:  password authentication failed for user "ann"', "Check user and password in url="),
        ("fe_sendauth: no password supplied", "Check user and password in url="),
        ('FATAL:  Peer authentication failed for user "ann"', "pg_hba.conf"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "ann", database "sales"', "pg_hba.conf"),
        ('FATAL:  database "sales" does not exist', "Create it (createdb)"),
        ('FATAL:  role "ann" does not exist', "CREATE ROLE"),
        ('FATAL:  role "ann" is not permitted to log in', "CREATE ROLE"),
        ('FATAL:  permission denied for database "sales"', "GRANT CONNECT ON DATABASE"),
        ('FATAL:  database "sales" is not currently accepting connections', "ALLOW_CONNECTIONS"),
        ("server does not support SSL, but SSL was required", "sslmode="),
        ("SSL error: certificate verify failed", "sslmode="),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", "Check the host"),
    ],
)
def test_what_stays_as_it_is_is_refused_with_what_to_do(words: str, advice: str) -> None:
    problem = why_not(words)
    assert isinstance(problem, Refused)
    assert advice in str(problem)


@pytest.mark.parametrize("state", ["08006", "08003", "57P01", "57P02", "57P03", "53300", "25P03"])
def test_states_that_end_a_connection_are_gone_even_if_it_looks_alive(state: str) -> None:
    error = psycopg.errors.lookup(state)("what the server said")
    assert isinstance(trouble(error, is_lost=False), Gone)


def test_a_lost_connection_is_gone_whatever_the_last_words_were() -> None:
    assert isinstance(trouble(psycopg.errors.DeadlockDetected("x"), is_lost=True), Gone)
    assert isinstance(trouble(psycopg.OperationalError("x"), is_lost=True), Gone)


@pytest.mark.parametrize("state", ["58030", "53200", "XX001", "0A000"])
def test_what_the_server_cannot_do_is_refused(state: str) -> None:
    assert isinstance(trouble(psycopg.errors.lookup(state)("x"), is_lost=False), Refused)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT ?, ? WHERE x = ?", "SELECT $1, $2 WHERE x = $3"),
        ("SELECT '?', \"?\", ?", "SELECT '?', \"?\", $1"),
        ("SELECT 'it''s ?', ?", "SELECT 'it''s ?', $1"),
        ('SELECT "a""?", ? % 2', 'SELECT "a""?", $1 % 2'),
        ("SELECT 1", "SELECT 1"),
    ],
)
def test_question_marks_are_numbered_outside_of_names_and_texts(statement: str, expected: str) -> None:
    assert numbered(statement) == expected

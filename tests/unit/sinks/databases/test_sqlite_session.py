"""Transactions, who waits for whom, and what errors say."""

from __future__ import annotations

import datetime
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from onceflow.sinks.databases.database import Again, Gone, Refused, Session
from onceflow.sinks.databases.sqlite import Sqlite
from onceflow.sinks.databases.sqlite_session import meaning
from tests.support.tmpfs import Tmpfs, can_mount_tmpfs


@pytest.fixture
def database(tmp_path: Path) -> Sqlite:
    return Sqlite(f"sqlite:///{tmp_path}/shop.db")


@pytest.fixture
def session(database: Sqlite) -> Iterator[Session]:
    session = database.connect(lock_timeout_s=5)
    session.execute("CREATE TABLE t (a INTEGER)")
    yield session
    session.close()


def count(database: Sqlite) -> Any:
    """As somebody else sees it."""
    other = sqlite3.connect(database.path)
    try:
        return other.execute("SELECT count(*) FROM t").fetchone()[0]
    finally:
        other.close()


def in_one_transaction(session: Session, *statements: str) -> None:
    with session.transaction():
        for statement in statements:
            session.execute(statement)


# --- transactions


def test_a_session_writes_ahead_and_syncs_every_commit(session: Session) -> None:
    settings = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "temp_store")
    assert [session.execute(f"PRAGMA {each}").rows[0][0] for each in settings] == ["wal", 2, 1, 5000, 1]


def test_results_have_rows_and_the_number_of_changes(session: Session) -> None:
    added = session.execute("INSERT INTO t VALUES (?), (?)", [1, 2])
    assert (added.rows, added.count) == ([], 2)
    assert session.execute("SELECT a FROM t ORDER BY a").rows == [(1,), (2,)]
    assert session.execute("UPDATE t SET a = a + 1 RETURNING a").rows == [(2,), (3,)]
    assert session.execute("CREATE TABLE u (a)").count == 0


def test_a_transaction_is_seen_when_it_is_committed(database: Sqlite, session: Session) -> None:
    with session.transaction():
        session.execute("INSERT INTO t VALUES (1)")
        assert session.is_in_transaction
        assert count(database) == 0
    assert not session.is_in_transaction
    assert count(database) == 1


def test_tables_are_created_and_dropped_with_the_transaction(database: Sqlite, session: Session) -> None:
    with pytest.raises(Refused, match="no such table: none"):
        in_one_transaction(session, "CREATE TABLE u (a)", "DROP TABLE t", "INSERT INTO none VALUES (1)")
    assert count(database) == 0
    assert session.execute("SELECT name FROM sqlite_master").rows == [("t",)]


def test_a_session_that_ends_in_a_transaction_has_changed_nothing(database: Sqlite, session: Session) -> None:
    session.begin()
    session.execute("INSERT INTO t VALUES (1)")
    session.close()
    session.close()
    session.rollback()
    assert not session.is_in_transaction
    assert count(database) == 0
    with pytest.raises(Gone, match="closed"):
        session.execute("SELECT 1")


def test_who_begins_waits_for_the_transaction_of_another(database: Sqlite, session: Session) -> None:
    session.begin()
    session.execute("INSERT INTO t VALUES (1)")
    seen: list[Any] = []
    has_begun = threading.Event()

    def second() -> None:
        other = database.connect(lock_timeout_s=30)
        with other.transaction():
            seen.extend(other.execute("SELECT a FROM t").rows)
            has_begun.set()
        other.close()

    thread = threading.Thread(target=second)
    thread.start()
    assert not has_begun.wait(0.3)
    session.commit()  # in this thread, though another may have used the session before
    thread.join(30)
    assert seen == [(1,)]


def test_who_waits_too_long_may_try_again(database: Sqlite, session: Session) -> None:
    other = database.connect(lock_timeout_s=0.1)
    session.begin()
    with pytest.raises(Again, match="another session, writes into"):
        other.begin()
    assert not other.is_in_transaction
    session.commit()
    with other.transaction():
        other.execute("INSERT INTO t VALUES (1)")
    other.close()
    assert count(database) == 1


def test_a_session_can_be_used_by_one_thread_after_another(session: Session) -> None:
    session.begin()
    thread = threading.Thread(target=lambda: session.execute("INSERT INTO t VALUES (1)"))
    thread.start()
    thread.join()
    session.commit()
    assert session.execute("SELECT a FROM t").rows == [(1,)]


def test_to_switch_to_the_write_ahead_log_waits_for_a_writer(database: Sqlite) -> None:
    other = sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE t (a)")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Again):
        database.connect(lock_timeout_s=0.1)
    timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    timer.start()
    session = database.connect(lock_timeout_s=30)
    timer.join()
    assert session.execute("PRAGMA journal_mode").rows == [("wal",)]
    session.close()
    other.close()


def test_a_transaction_that_the_users_code_has_ended_is_not_committed_as_if_it_had_not(session: Session) -> None:
    session.begin()
    session.execute("INSERT INTO t VALUES (1)")
    session.connection.commit()
    with pytest.raises(Refused, match=r"commit\(\) or rollback\(\)"):
        session.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(Refused, match=r"commit\(\) or rollback\(\)"):
        session.commit()
    session.rollback()
    with session.transaction():
        assert session.execute("SELECT a FROM t").rows == [(1,)]


def test_nothing_is_written_into_a_file_that_was_deleted(database: Sqlite, session: Session) -> None:
    os.rename(database.path, database.path + ".old")
    with pytest.raises(Refused, match="was deleted, or another file"):
        session.begin()
    database.connect(lock_timeout_s=1).close()
    with pytest.raises(Refused, match="was deleted, or another file"):
        session.begin()


def test_a_statement_is_ended_when_it_takes_too_long(database: Sqlite) -> None:
    session = database.connect(lock_timeout_s=1, statement_timeout_s=0.05)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(Again, match="longer than it may"):
        session.execute(endless)
    assert session.execute("SELECT 1").rows == [(1,)]
    session.close()


def test_values_of_python_become_what_columns_hold(session: Session) -> None:
    berlin = datetime.timezone(datetime.timedelta(hours=2))
    given = [
        datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=berlin),
        datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        datetime.date(2024, 2, 29),
        Decimal("1E-7"),
        True,
        None,
        b"\0",
    ]
    assert session.execute("SELECT ?, ?, ?, ?, ?, ?, ?", given).rows == [
        ("2024-02-28T23:02:03.000000+00:00", "2024-02-29T01:02:03.000004", "2024-02-29", "0.0000001", 1, None, b"\0")
    ]


# --- other processes

WRITER = """
import sys
from onceflow.sinks.databases.sqlite import Sqlite
session = Sqlite(f"sqlite:///{sys.argv[1]}").connect(lock_timeout_s=5)
session.execute("PRAGMA cache_size=5")  # so that much of it is in the log before the commit
session.begin()
numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
session.execute(f"{numbers} INSERT INTO t SELECT i FROM n")
session.execute("CREATE TABLE u AS SELECT randomblob(2000) AS b FROM t")
print("written", flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_killed_in_a_transaction_leaves_nothing(database: Sqlite, session: Session) -> None:
    command = [sys.executable, "-c", WRITER, database.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        assert os.path.getsize(database.path + "-wal") > 500_000
        writer.kill()
    with session.transaction():
        assert session.execute("SELECT count(*) FROM t").rows == [(0,)]
        assert session.execute("SELECT name FROM sqlite_master").rows == [("t",)]


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
for _ in sys.stdin:
    print(connection.execute("SELECT count(*) FROM t").fetchone()[0], flush=True)
"""


def test_a_reader_in_another_process_sees_whole_transactions_only(database: Sqlite, session: Session) -> None:
    command = [sys.executable, "-c", READER, database.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        stdin, stdout = reader.stdin, reader.stdout

        def seen() -> int:
            stdin.write("look\n")
            return int(stdout.readline())

        for number in range(3):
            with session.transaction():
                session.execute("INSERT INTO t VALUES (1), (2)")
                assert seen() == 2 * number
                session.execute("DELETE FROM t WHERE a = 2")
                session.execute("INSERT INTO t VALUES (3)")
                assert seen() == 2 * number
            session.execute("UPDATE t SET a = 9")
            assert seen() == 2 * (number + 1)


# --- errors


@pytest.mark.parametrize(
    ("table", "statement", "message"),
    [
        ("(a INTEGER PRIMARY KEY)", "INSERT INTO c VALUES (1), (1)", "same key is there already: .*c.a"),
        ("(a TEXT PRIMARY KEY)", "INSERT INTO c VALUES (1), (1)", "same key is there already: .*c.a"),
        ("(a, b, UNIQUE (a, b))", "INSERT INTO c VALUES (1, 2), (1, 2)", "same values is there already: .*c.a, c.b"),
        ("(a NOT NULL)", "INSERT INTO c VALUES (NULL)", "must have a value has none: .*c.a"),
        ("(a, CONSTRAINT positive CHECK (a > 0))", "INSERT INTO c VALUES (0)", "breaks a CHECK .*: .*positive"),
        ("(a REFERENCES p)", "INSERT INTO c VALUES (7)", "refers to one that is not there"),
        ("(a INTEGER) STRICT", "INSERT INTO c VALUES ('x')", "type that a STRICT table asks for: .*c.a"),
        ("(a)", "INSERT INTO none VALUES (1)", "no such table: none"),
        ("(a)", "INSERT INTO c VALUES (1, 2)", "2 values"),
    ],
)
def test_a_constraint_is_refused_with_its_name(session: Session, table: str, statement: str, message: str) -> None:
    session.execute("CREATE TABLE p (a PRIMARY KEY)")
    session.execute(f"CREATE TABLE c {table}")
    with pytest.raises(Refused, match=message):
        in_one_transaction(session, "INSERT INTO t VALUES (1)", statement)
    assert session.execute("SELECT count(*) FROM t").rows == [(0,)]


def test_what_a_trigger_says_is_passed_on(session: Session) -> None:
    session.execute("CREATE TRIGGER no BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'not on Sundays'); END")
    with pytest.raises(Refused, match="a trigger refuses a row: not on Sundays"):
        session.execute("INSERT INTO t VALUES (1)")


def test_a_constraint_that_breaks_at_the_commit_is_rolled_back(database: Sqlite, session: Session) -> None:
    session.execute("CREATE TABLE p (a PRIMARY KEY)")
    session.execute("CREATE TABLE c (a REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(Refused, match="refers to one that is not there"):
        in_one_transaction(session, "INSERT INTO t VALUES (1)", "INSERT INTO c VALUES (7)")
    assert not session.is_in_transaction
    assert count(database) == 0


def test_a_read_only_database_is_refused(session: Session) -> None:
    session.execute("PRAGMA query_only=ON")
    with pytest.raises(Refused, match="is read-only for this process"):
        session.execute("INSERT INTO t VALUES (1)")


def test_damage_is_refused(database: Sqlite, session: Session) -> None:
    session.execute("INSERT INTO t VALUES (?)", ["x" * 10_000])
    session.close()
    with open(database.path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    other = database.connect(lock_timeout_s=1)
    with pytest.raises(Refused, match="is damaged"):
        other.execute("SELECT count(*) FROM t")
    other.close()


def test_no_exception_of_the_driver_comes_through(session: Session) -> None:
    for values in ([2**63], [object()], ["\ud800"], [1, 2]):
        with pytest.raises(Refused):
            session.execute("SELECT ?", values)
    with pytest.raises(Refused):
        session.execute("SELECT 1; SELECT 2")
    with pytest.raises(Refused):
        session.execute("SELECT ?", [bytes(1_000_000_001)])


def test_a_transaction_that_sqlite_has_rolled_back_is_over(database: Sqlite, session: Session) -> None:
    session.execute("PRAGMA max_page_count=3")
    session.begin()
    session.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(Refused, match="no room left"):
        session.execute("INSERT INTO t VALUES (zeroblob(100000))")
    with pytest.raises(Refused, match="the transaction is over"):
        session.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(Refused, match="the transaction is over"):
        session.commit()
    session.rollback()
    assert count(database) == 0


FULL = """
import os, sys
from onceflow.sinks.databases.database import Refused
from onceflow.sinks.databases.sqlite import Sqlite
session = Sqlite(f"sqlite:///{sys.argv[1]}/shop.db").connect(lock_timeout_s=5)
session.execute("CREATE TABLE IF NOT EXISTS t (a)")
try:
    with session.transaction():
        for _ in range(int(sys.argv[2])):
            session.execute("INSERT INTO t VALUES (zeroblob(10000))")
except Refused as refused:
    print("Refused", refused)
print(session.execute("SELECT count(*) FROM t").rows[0][0], session.execute("PRAGMA integrity_check").rows[0][0])
session.close()
"""


@pytest.mark.skipif(not can_mount_tmpfs(), reason="needs a file system of its own")
@pytest.mark.parametrize("rows", [100, 1000])  # full at the commit, and before it
def test_a_full_disk_is_refused_and_nothing_is_half_there(rows: int) -> None:
    with Tmpfs(size_kb=700) as disk:

        def run(rows: int) -> list[str]:
            command = [*disk.enter, sys.executable, "-c", FULL, str(disk.path), str(rows)]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

        refused, after = run(rows)
        assert refused.startswith("Refused there is no room left on the disk of")
        assert after == "0 ok"
        assert run(10) == ["10 ok"]


LIMITED = """
import resource, sys
from onceflow.sinks.databases.database import Gone
from onceflow.sinks.databases.sqlite import Sqlite
database = Sqlite(f"sqlite:///{sys.argv[1]}")
session = database.connect(lock_timeout_s=5)
session.begin()
session.execute("INSERT INTO t VALUES (zeroblob(50000))")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, hard))
try:
    session.commit()
except Gone as gone:
    print(gone)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
with database.connect(lock_timeout_s=5).transaction():
    print("connected")
"""


def test_of_a_commit_with_an_input_output_error_nobody_knows(database: Sqlite, session: Session) -> None:
    session.close()
    command = [sys.executable, "-c", LIMITED, database.path]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert answer[0].startswith("an I/O error while a transaction was committed")
    assert answer[1] == "connected"
    assert count(database) in (0, 1)


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("SQLITE_LOCKED_SHAREDCACHE", Again, "holds a lock"),
        ("SQLITE_BUSY_SNAPSHOT", Again, "writes into"),
        ("SQLITE_PROTOCOL", Again, "at the same time"),
        ("SQLITE_IOERR_READ", Refused, "an I/O error in shop.db"),
        ("SQLITE_CANTOPEN", Refused, "cannot be opened"),
        ("SQLITE_TOOBIG", Refused, "larger than SQLite allows"),
        ("SQLITE_AUTH", Refused, "may not do that"),
        ("SQLITE_CONSTRAINT_FUNCTION", Refused, "a constraint of the table does not allow it"),
    ],
)
def test_errors_that_are_hard_to_bring_about(code: str, kind: type[Exception], message: str) -> None:
    error = sqlite3.OperationalError("text of SQLite's")
    error.sqlite_errorcode = getattr(sqlite3, code)
    error.sqlite_errorname = code
    trouble = meaning(error, "shop.db")
    assert type(trouble) is kind
    assert message in str(trouble)
    assert "text of SQLite's" in str(trouble)

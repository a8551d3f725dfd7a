"""What the tests of landing rely on: a server that can be broken, a proxy that loses the right message, a full disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.database_proxy import DatabaseProxy
from tests.support.postgresql import Mode, PostgreSQL, PostgreSQLDidNotStart
from tests.support.postgresql_binaries import binaries, reachable_binaries, server_user
from tests.support.tmpfs import Tmpfs, can_mount_tmpfs
from tests.support.waiting import eventually

HAPPENS_S = 15.0
ROWS = "SELECT count(*) FROM landed"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """One that may be killed."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[DatabaseProxy]:
    with DatabaseProxy(postgresql.port) as proxy:
        yield proxy


@pytest.fixture
def through_proxy(proxy: DatabaseProxy, database: str) -> Iterator[psycopg.Connection]:
    """A connection with one row on its way into a table."""
    execute(database, "CREATE TABLE landed (n int)")
    with psycopg.connect(proxy.url(database)) as connection:
        connection.execute("INSERT INTO landed VALUES (1)")
        yield connection


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement)


def count(url: str, query: str = ROWS) -> int:
    with psycopg.connect(url) as connection:
        [(answer,)] = connection.execute(query).fetchall()
        return int(answer)


def make_tables(url: str) -> None:
    execute(url, "CREATE TABLE landed (n int)", "CREATE UNLOGGED TABLE staged (n int)")
    execute(url, "INSERT INTO landed VALUES (1)", "INSERT INTO staged VALUES (1), (2)")


# The server


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart_keeps_committed_rows_and_the_port(server: PostgreSQL, mode: Mode) -> None:
    url = server.new_database()
    make_tables(url)
    server.restart(mode)
    assert count(url) == 1


def test_clean_restart_keeps_unlogged_tables(server: PostgreSQL) -> None:
    url = server.new_database()
    make_tables(url)
    server.restart("fast")
    assert count(url, "SELECT count(*) FROM staged") == 2


def test_killed_server_recovers_committed_rows_only_and_empties_unlogged_tables(server: PostgreSQL) -> None:
    url = server.new_database()
    make_tables(url)
    with psycopg.connect(url) as open_transaction:
        open_transaction.execute("INSERT INTO landed VALUES (2)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            open_transaction.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    server.start()
    assert count(url) == 1
    assert count(url, "SELECT count(*) FROM staged") == 0


def test_kill_leaves_no_process_behind(server: PostgreSQL) -> None:
    everybody = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    assert len(everybody) > 3
    server.kill()
    try:
        assert not [each for each in everybody if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    finally:
        server.start()


def test_commits_are_synced_unless_settings_say_otherwise(server: PostgreSQL) -> None:
    assert server.execute("SHOW fsync") == [("on",)]
    server.settings["fsync"] = False
    try:
        server.restart("immediate")
        assert server.execute("SHOW fsync") == [("off",)]
    finally:
        del server.settings["fsync"]
        server.restart("immediate")


def test_setting_that_does_not_exist_is_an_error_with_what_the_server_said() -> None:
    with pytest.raises(PostgreSQLDidNotStart, match="no_such_setting"), PostgreSQL(settings={"no_such_setting": 1}):
        pass


def test_wrong_password_is_refused(postgresql: PostgreSQL) -> None:
    right = postgresql.new_role("visitor", "a:b@c/d")
    assert count(right, "SELECT 1") == 1
    with pytest.raises(psycopg.OperationalError, match="password authentication failed") as refused:
        psycopg.connect(right.replace("a%3Ab%40c%2Fd", "wrong"))
    assert refused.value.sqlstate is None  # libpq keeps the code of a refusal to itself, so we look into the log
    assert re.search('28P01 .*"visitor"', postgresql.log_file.read_text())


def test_new_role_may_do_nothing_with_the_tables_of_others(postgresql: PostgreSQL, database: str) -> None:
    execute(database, "CREATE TABLE landed (n int)")
    guest = postgresql.new_role("guest", "guest", database)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        count(guest)


def test_databases_are_apart(postgresql: PostgreSQL) -> None:
    one, other = postgresql.new_database(), postgresql.new_database()
    execute(one, "CREATE TABLE landed (n int)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        count(other)


def test_server_and_its_folder_go_with_a_killed_process() -> None:
    program = (
        "import sys\nfrom tests.support.postgresql import PostgreSQL\n"
        "with PostgreSQL() as server:\n print(server.pid, server.data, flush=True)\n sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        server = psutil.Process(int(pid))
        assert Path(folder).is_dir()
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: not server.is_running(), "the server ended")
    eventually(lambda: not Path(folder).parent.exists(), "its folder was removed")


def test_data_can_be_in_a_folder_of_the_callers_choice_and_stays_there(postgresql: PostgreSQL) -> None:
    chosen = postgresql.socket_folder / "chosen"
    with PostgreSQL(folder=chosen) as server:
        assert server.execute("SHOW data_directory") == [(str(chosen),)]
    assert (chosen / "PG_VERSION").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_folder_that_the_servers_user_cannot_reach_is_refused_with_a_sentence(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(PostgreSQLDidNotStart, match="is closed to others"), PostgreSQL(folder=closed / "data"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_binaries_that_the_servers_user_cannot_reach_are_copied(
    tmp_path: Path, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "postgresql").symlink_to(binaries())
    monkeypatch.setattr("tests.support.postgresql_binaries.binaries", lambda: closed / "postgresql")
    spare = postgresql.socket_folder / "spare"
    spare.mkdir()
    assert reachable_binaries(None, spare) == closed / "postgresql"
    copy = reachable_binaries(server_user(), spare)
    assert copy.parent == spare
    assert (copy / "bin" / "postgres").is_file()


# The proxy


def commit_by_method(connection: psycopg.Connection) -> None:
    connection.commit()


def commit_as_text(connection: psycopg.Connection) -> None:
    connection.execute(" commit ;")


def commit_in_a_pipeline(connection: psycopg.Connection) -> None:
    with connection.pipeline():
        connection.execute("SELECT 1")
        connection.commit()


def commit_as_a_prepared_statement(connection: psycopg.Connection) -> None:
    connection.execute("COMMIT", prepare=True)


Commit = Callable[[psycopg.Connection], None]
WAYS: list[Commit] = [commit_by_method, commit_as_text, commit_in_a_pipeline, commit_as_a_prepared_statement]


@pytest.mark.parametrize("commit", WAYS)
def test_lost_answer_to_commit_leaves_the_row_there(
    proxy: DatabaseProxy, through_proxy: psycopg.Connection, database: str, commit: Commit
) -> None:
    lost = proxy.lose_next_commit_answer()
    with pytest.raises(psycopg.OperationalError):
        commit(through_proxy)
    assert lost.wait(HAPPENS_S)
    assert count(database) == 1


@pytest.mark.parametrize("commit", WAYS)
def test_lost_commit_leaves_nothing_there(
    proxy: DatabaseProxy, through_proxy: psycopg.Connection, database: str, commit: Commit
) -> None:
    lost = proxy.lose_next_commit()
    with pytest.raises(psycopg.OperationalError):
        commit(through_proxy)
    assert lost.wait(HAPPENS_S)
    assert count(database) == 0


def test_next_commit_is_lost_and_no_other(
    proxy: DatabaseProxy, through_proxy: psycopg.Connection, database: str
) -> None:
    through_proxy.commit()
    proxy.lose_next_commit_answer()
    through_proxy.execute("INSERT INTO landed VALUES (2)")
    with pytest.raises(psycopg.OperationalError):
        through_proxy.commit()
    execute(proxy.url(database), "INSERT INTO landed VALUES (3)")
    assert count(database) == 3


def test_cut_disconnects_everybody_and_lets_them_come_back(
    proxy: DatabaseProxy, through_proxy: psycopg.Connection, database: str
) -> None:
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        through_proxy.execute("SELECT 1")
    assert count(proxy.url(database)) == 0


def test_held_proxy_passes_nothing_until_it_goes_on(proxy: DatabaseProxy, database: str) -> None:
    execute(database, "CREATE TABLE landed (n int)")
    with psycopg.connect(proxy.url(database), autocommit=True) as connection, ThreadPoolExecutor() as pool:
        proxy.hold()
        inserted = pool.submit(connection.execute, "INSERT INTO landed VALUES (1)")
        with pytest.raises(TimeoutError):
            inserted.result(timeout=0.3)
        assert count(database) == 0
        proxy.go_on()
        inserted.result(HAPPENS_S)
    assert count(database) == 1


def test_proxy_passes_large_data_both_ways(proxy: DatabaseProxy, database: str) -> None:
    with psycopg.connect(proxy.url(database)) as connection:
        connection.execute("CREATE TABLE landed (n int, text text)")
        with connection.cursor().copy("COPY landed FROM STDIN") as copy:
            for n in range(20_000):
                copy.write_row((n, "x" * 100))
        rows = connection.execute("SELECT n, text FROM landed ORDER BY n").fetchall()
    assert rows == [(n, "x" * 100) for n in range(20_000)]


# A small disk


@pytest.mark.skipif(not can_mount_tmpfs(), reason="neither root nor user namespaces: a small disk cannot be mounted")
def test_full_tablespace_is_an_error_of_the_statement_and_room_helps() -> None:
    with Tmpfs(size_kb=4096) as disk, PostgreSQL(prefix=disk.enter) as server:
        small = server.new_tablespace(disk.path / "small", seen=disk.seen / "small")
        url = server.new_database()
        execute(url, f"CREATE TABLE landed (text text) TABLESPACE {small}")
        disk.fill()
        insert = "INSERT INTO landed SELECT repeat('x', 1000) FROM generate_series(1, 1000)"
        with pytest.raises(psycopg.errors.DiskFull) as full:
            execute(url, insert)
        assert full.value.sqlstate == "53100"
        disk.free()
        execute(url, insert)
        assert count(url) == 1000

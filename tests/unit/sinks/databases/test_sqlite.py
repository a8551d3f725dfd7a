"""Addresses, names, and what SQLite tells about its tables."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.errors import ConfigError
from onceflow.sinks.databases import open_database
from onceflow.sinks.databases.database import Column, Kind, Refused, Session, TableColumn, TableName
from onceflow.sinks.databases.sqlite import Sqlite
from tests.support.tmpfs import Tmpfs, can_mount_tmpfs


@pytest.fixture
def database(tmp_path: Path) -> Sqlite:
    return Sqlite(f"sqlite:///{tmp_path}/shop.db")


@pytest.fixture
def session(database: Sqlite) -> Iterator[Session]:
    session = database.connect(lock_timeout_s=5)
    yield session
    session.close()


# --- addresses


def test_three_slashes_are_relative_to_the_working_directory_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = Sqlite("sqlite:///folder/shop.db")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(database)).path == f"{tmp_path.resolve()}/folder/shop.db"


def test_four_slashes_are_a_path_from_the_root() -> None:
    database = open_database("SQLite:////folder/shop 1%.db")
    assert isinstance(database, Sqlite)
    assert database.path == "/folder/shop 1%.db"
    assert database.shown == "sqlite:////folder/shop 1%.db"


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://:memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="every process would have one of its own"):
        Sqlite(url)


@pytest.mark.parametrize("url", ["sqlite:shop.db", "sqlite:/shop.db", "sqlite://host/shop.db", "sqlite:///a\0b"])
def test_what_is_no_address_of_a_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no address of a file"):
        Sqlite(url)


def test_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match="no parameters"):
        Sqlite("sqlite:///shop.db?mode=ro")


def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(ConfigError, match=r"3\.35\.0 is the oldest"):
        Sqlite("sqlite:///shop.db")


def test_two_names_of_a_file_are_the_same_database(tmp_path: Path) -> None:
    (tmp_path / "other.db").symlink_to(tmp_path / "shop.db")
    assert Sqlite(f"sqlite:///{tmp_path}/other.db").path == Sqlite(f"sqlite:///{tmp_path}/shop.db").path


# --- the file


def refusal(path: Path) -> str:
    with pytest.raises(Refused) as refused:
        Sqlite(f"sqlite:///{path}").connect(lock_timeout_s=1)
    return str(refused.value)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path.resolve()}/none" in refusal(tmp_path / "none" / "shop.db")


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.write_text("id,name\n1,Ann\n" * 100)
    assert "is no SQLite database" in refusal(path)
    assert path.read_text() == "id,name\n1,Ann\n" * 100
    assert os.listdir(tmp_path) == ["shop.db"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize(("what", "message"), [("shop.db", "the database"), ("", "the folder")])
def test_without_the_right_to_write_it_is_refused(tmp_path: Path, what: str, message: str) -> None:
    (tmp_path / "shop.db").touch()
    (tmp_path / what).chmod(0o500)
    try:
        refused = refusal(tmp_path / "shop.db")
        assert refused.startswith(message)
        assert "is not writable" in refused
    finally:
        (tmp_path / what).chmod(0o700)


OPEN = """
import sys
from onceflow.sinks.databases.sqlite import Sqlite
try:
    Sqlite(f"sqlite:///{sys.argv[1]}/shop.db").connect(lock_timeout_s=1).close()
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not can_mount_tmpfs(), reason="needs a file system of its own")
def test_a_file_system_that_is_read_only_is_refused() -> None:
    with Tmpfs(size_kb=1024) as disk:
        command = [*disk.enter, sys.executable, "-c", OPEN, str(disk.path)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""
        subprocess.run([*disk.enter, "mount", "-o", "remount,ro", str(disk.path)], check=True)
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert answer.startswith("Refused")
    assert "is not writable" in answer


# --- names


@pytest.mark.parametrize("name", ['a"b', "select", "größe", "a b", "a;--", "'", "[x]", ""])
def test_any_name_can_be_quoted(database: Sqlite, session: Session, name: str) -> None:
    session.execute(f"CREATE TABLE t ({database.quoted(name)} INTEGER)")
    assert [each.name for each in database.columns(session, TableName(None, "t")) or []] == [name]


def test_a_name_with_a_zero_byte_is_refused(database: Sqlite) -> None:
    with pytest.raises(ConfigError, match="no name"):
        database.quoted("a\0b")


def test_main_is_the_only_schema(database: Sqlite) -> None:
    assert database.quoted(TableName("main", "t")) == database.quoted(TableName(None, "t")) == '"t"'
    with pytest.raises(ConfigError, match="no schema 'sales'"):
        database.quoted(TableName("sales", "t"))


# --- tables


def columns(database: Sqlite, session: Session, statement: str) -> list[TableColumn]:
    session.execute(statement)
    found = database.columns(session, TableName(None, "t"))
    assert found is not None
    return found


def test_a_table_that_does_not_exist_has_no_columns(database: Sqlite, session: Session) -> None:
    assert database.columns(session, TableName(None, "t")) is None


def test_columns_tell_what_rows_must_bring(database: Sqlite, session: Session) -> None:
    found = columns(
        database,
        session,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, at TEXT DEFAULT 'x', plain, "
        "twice INTEGER GENERATED ALWAYS AS (id * 2) STORED, thrice INT AS (id * 3))",
    )
    assert [(each.name, each.type, each.is_nullable, each.has_default) for each in found] == [
        ("id", "INTEGER", False, True),  # NULL would become a number
        ("name", "VARCHAR(20)", False, False),
        ("at", "TEXT", True, True),
        ("plain", "", True, False),
        ("twice", "INTEGER", True, True),
        ("thrice", "INT", True, True),
    ]


def test_a_generated_column_takes_no_rows(database: Sqlite, session: Session) -> None:
    found = columns(database, session, "CREATE TABLE t (id INTEGER, twice INTEGER AS (id * 2))")
    assert "generated" in str(database.misfit(Column("twice", Kind("bigint")), found[1]))


def test_a_table_is_found_whatever_the_case_of_its_name(database: Sqlite, session: Session) -> None:
    session.execute("CREATE TABLE Orders (Id INTEGER)")
    found = database.columns(session, TableName("main", "orders"))
    assert [each.name for each in found or []] == ["Id"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [("CREATE VIEW t AS SELECT 1 AS id", "is a view"), ("CREATE VIRTUAL TABLE t USING fts5(id)", "virtual table")],
)
def test_views_and_virtual_tables_are_refused(database: Sqlite, session: Session, statement: str, message: str) -> None:
    session.execute(statement)
    with pytest.raises(Refused, match=message):
        database.columns(session, TableName(None, "t"))


@pytest.mark.parametrize(
    ("statement", "keys"),
    [
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, a)", [{"id"}]),
        ("CREATE TABLE t (id INTEGER, a, PRIMARY KEY (id))", [{"id"}]),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY DESC, a)", [{"id"}]),  # this one has an index, for old times' sake
        ("CREATE TABLE t (id INT PRIMARY KEY, a TEXT UNIQUE)", [{"a"}, {"id"}]),
        ("CREATE TABLE t (a, b, c, PRIMARY KEY (a, b)) WITHOUT ROWID", [{"a", "b"}]),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, a) WITHOUT ROWID", [{"id"}]),
        ("CREATE TABLE t (a, b, UNIQUE (b, a))", [{"a", "b"}]),
        ("CREATE TABLE t (a, b)", []),
    ],
)
def test_unique_keys_are_what_on_conflict_can_name(
    database: Sqlite, session: Session, statement: str, keys: list[set[str]]
) -> None:
    session.execute(statement)
    found = database.unique_keys(session, TableName(None, "t"))
    assert sorted(map(sorted, found)) == sorted(map(sorted, keys))
    for key in found:
        session.execute(f"INSERT INTO t SELECT * FROM t WHERE true ON CONFLICT ({', '.join(key)}) DO NOTHING")


def test_indexes_that_are_partial_or_of_expressions_or_not_unique_are_no_keys(
    database: Sqlite, session: Session
) -> None:
    session.execute("CREATE TABLE t (a, b)")
    session.execute("CREATE UNIQUE INDEX i1 ON t (a) WHERE b > 0")
    session.execute("CREATE UNIQUE INDEX i2 ON t (lower(a))")
    session.execute("CREATE INDEX i3 ON t (a)")
    assert database.unique_keys(session, TableName(None, "t")) == []
    session.execute("CREATE UNIQUE INDEX i4 ON t (b)")
    assert database.unique_keys(session, TableName(None, "t")) == [frozenset({"b"})]


def test_a_row_is_locked_by_its_transaction_alone(database: Sqlite, session: Session) -> None:
    assert database.lock_row("SELECT 1") == "SELECT 1"
    database.lock_table(session, TableName(None, "none"))
    assert database.details()["stages"] == f"{database.path}.onceflow"

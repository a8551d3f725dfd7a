"""Stages: all rows of an attempt or none, nobody adds after the driver has gathered, and nothing stays behind."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from onceflow.sinks.databases.database import (
    Again,
    Column,
    Kind,
    Loaded,
    Refused,
    Session,
    Stage,
    TableName,
)
from onceflow.sinks.databases.sqlite import Sqlite
from tests.support.tmpfs import Tmpfs, can_mount_tmpfs

TABLE: Final = TableName(None, "t")
NAME: Final = TableName(None, "app/1.stage")
STAGE: Final = Stage(NAME, (Column("id", Kind("bigint")), Column("name", Kind("text"))))


@pytest.fixture
def database(tmp_path: Path) -> Sqlite:
    return Sqlite(f"sqlite:///{tmp_path}/shop.db")


@pytest.fixture
def session(database: Sqlite) -> Iterator[Session]:
    session = database.connect(lock_timeout_s=0.2)
    session.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    with session.transaction():
        database.create_stage(session, STAGE, TABLE)
    yield session
    session.close()


def batch(*ids: int) -> Any:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"name {each}" for each in ids])], ["id", "name"])


def gathered(database: Sqlite, session: Session) -> tuple[list[Loaded], list[int]]:
    database.gather(session, STAGE)
    with session.transaction():
        loaded = database.seal(session, STAGE)
        rows = session.execute(f"SELECT id FROM {database.quoted(NAME)} ORDER BY id").rows
    return loaded, [number for (number,) in rows]


def left_behind(database: Sqlite) -> list[str]:
    return sorted(name for name in os.listdir(os.path.dirname(database.path)) if "onceflow" in name)


def test_what_tasks_load_is_gathered(database: Sqlite, session: Session) -> None:
    elsewhere = pickle.loads(pickle.dumps(database))
    assert elsewhere.load(pickle.loads(pickle.dumps(STAGE)), 0, 17, iter([batch(1, 2), batch(3)])) == 3
    assert elsewhere.load(STAGE, 1, 18, []) == 0
    for task in range(2, 14):  # more than can be attached at the same time
        assert elsewhere.load(STAGE, task, task + 100, [batch(10 * task)]) == 1
    loaded, ids = gathered(database, session)
    expected = [Loaded(0, 17, 3), Loaded(1, 18, 0), *(Loaded(task, task + 100, 1) for task in range(2, 14))]
    assert sorted(loaded) == expected
    assert ids == [1, 2, 3, *range(20, 140, 10)]


def test_an_attempt_that_fails_leaves_nothing(database: Sqlite, session: Session) -> None:
    def breaks() -> Iterator[Any]:
        yield batch(1)
        raise FileNotFoundError("of the rows, not of the stage")

    with pytest.raises(FileNotFoundError, match="of the rows"):
        database.load(STAGE, 0, 1, breaks())
    assert database.load(STAGE, 0, 2, [batch(2)]) == 1
    assert gathered(database, session) == ([Loaded(0, 2, 1)], [2])


def test_two_attempts_of_a_task_are_both_told(database: Sqlite, session: Session) -> None:
    database.load(STAGE, 0, 1, [batch(1)])
    database.load(STAGE, 0, 2, [batch(1)])
    assert gathered(database, session) == ([Loaded(0, 1, 1), Loaded(0, 2, 1)], [1, 1])


def test_an_attempt_that_is_late_is_told_so_and_adds_nothing(database: Sqlite, session: Session) -> None:
    def is_overtaken() -> Iterator[Any]:
        yield batch(1)
        database.gather(session, STAGE)
        yield batch(2)

    for batches in (is_overtaken(), iter([batch(3)])):
        with pytest.raises(Again, match="this attempt came too late"):
            database.load(STAGE, 0, 1, batches)
    assert gathered(database, session) == ([], [])


def test_a_stage_can_be_gathered_again_after_a_rollback_and_in_another_session(
    database: Sqlite, session: Session
) -> None:
    database.load(STAGE, 0, 1, [batch(1, 2)])
    expected = ([Loaded(0, 1, 2)], [1, 2])
    assert gathered(database, session) == expected
    session.begin()
    database.drop_stage(session, NAME)
    session.rollback()
    with session.transaction():
        assert database.seal(session, STAGE) == expected[0]
    assert gathered(database, session) == expected
    other = database.connect(lock_timeout_s=1)
    with other.transaction():
        assert database.seal(other, STAGE) == []
    assert gathered(database, other) == expected
    other.close()


def test_a_stage_is_dropped_with_the_transaction_and_its_folder_after_it(database: Sqlite, session: Session) -> None:
    database.load(STAGE, 0, 1, [batch(1)])
    database.gather(session, STAGE)
    with session.transaction():
        session.execute(f"INSERT INTO t SELECT * FROM {database.quoted(NAME)}")
        database.drop_stage(session, NAME)
    assert database.stages(session, TableName(None, "app")) == [NAME]
    database.drop_stage(session, NAME)
    assert database.stages(session, TableName(None, "app")) == []
    assert left_behind(database) == []
    assert session.execute("SELECT * FROM temp.sqlite_master").rows == []
    assert session.execute("SELECT * FROM t").rows == [(1, "name 1")]
    database.drop_stage(session, NAME)


def test_stages_are_found_by_how_their_names_begin(database: Sqlite, session: Session) -> None:
    others = [TableName("main", name) for name in ("app%2F", "app2", "app/2.sealed", "..")]
    with session.transaction():
        for name in others:
            database.create_stage(session, Stage(name, STAGE.columns), TABLE)
    database.gather(session, Stage(others[2], STAGE.columns))
    assert database.stages(session, TableName("main", "app/")) == [
        TableName("main", "app/1.stage"),
        TableName("main", "app/2.sealed"),
    ]
    assert len(database.stages(session, TableName(None, ""))) == 5
    for name in database.stages(session, TableName(None, "")):
        database.drop_stage(session, name)
    assert left_behind(database) == []


def test_a_stage_of_a_transaction_that_was_rolled_back_is_found_and_can_be_made_again(
    database: Sqlite, session: Session
) -> None:
    database.load(STAGE, 0, 1, [batch(1)])
    session.begin()
    database.create_stage(session, STAGE, TABLE)
    session.rollback()
    assert database.stages(session, NAME) == [NAME]
    with session.transaction():
        database.create_stage(session, STAGE, TABLE)
    assert gathered(database, session) == ([], [])


def test_a_later_driver_drops_a_stage_that_is_in_use(database: Sqlite, session: Session) -> None:
    later = database.connect(lock_timeout_s=1)

    def is_overtaken() -> Iterator[Any]:
        yield batch(1)
        database.drop_stage(later, NAME)
        yield batch(2)

    database.load(STAGE, 0, 1, [batch(7)])
    with pytest.raises(Again, match="is closed"):
        database.load(STAGE, 0, 2, is_overtaken())
    assert left_behind(database) == []
    assert gathered(database, session) == ([], [])
    later.close()


def test_a_file_that_vanishes_or_is_damaged_is_not_in_the_manifest(database: Sqlite, session: Session) -> None:
    for task in range(4):
        database.load(STAGE, task, task, [batch(task)])
    database.gather(session, STAGE)
    folder = Path(f"{database.path}.onceflow/app%2F1%2Estage.sealed")
    (folder / "1-1.db").write_text("not a database" * 1000)
    (folder / "2-2.db").unlink()
    (folder / "2-2.db").symlink_to("nowhere")
    assert gathered(database, session) == ([Loaded(0, 0, 1), Loaded(3, 3, 1)], [0, 3])


def test_gathering_and_dropping_need_no_lock_of_the_database(database: Sqlite, session: Session) -> None:
    database.load(STAGE, 0, 1, [batch(1)])
    other = database.connect(lock_timeout_s=1)
    other.begin()
    other.execute("INSERT INTO t VALUES (9, 'nine')")
    database.gather(session, STAGE)
    assert session.execute(f"SELECT id FROM {database.quoted(NAME)}").rows == [(1,)]
    database.drop_stage(session, NAME)
    other.commit()
    other.close()
    assert left_behind(database) == []


def test_keys_that_are_the_same_in_the_table_are_the_same_in_the_stage(database: Sqlite, session: Session) -> None:
    session.execute("CREATE TABLE u (name TEXT COLLATE NOCASE PRIMARY KEY, other TEXT COLLATE NOCASE)")
    stage = Stage(TableName(None, "s"), (Column("name", Kind("text")), Column("other", Kind("text"))))
    with session.transaction():
        database.create_stage(session, stage, TableName(None, "u"))
    rows = pa.record_batch([pa.array(["a", "A", "b"]), pa.array(["x", "x", "x"])], ["name", "other"])
    database.load(stage, 0, 1, [rows])
    database.gather(session, stage)
    found = session.execute("SELECT lower(min(name)), count(*) FROM s GROUP BY name ORDER BY 1").rows
    assert found == [("a", 2), ("b", 1)]


def test_columns_that_the_table_does_not_have_are_staged_too(database: Sqlite, session: Session) -> None:
    stage = Stage(TableName(None, "s"), (Column("id", Kind("bigint")), Column('is "gone"', Kind("boolean"))))
    with session.transaction():
        database.create_stage(session, stage, TABLE)
    database.load(stage, 0, 1, [pa.record_batch([pa.array([1, 2]), pa.array([True, None])], ["id", "deleted"])])
    database.gather(session, stage)
    assert session.execute('SELECT id FROM s WHERE "is ""gone""" IS NOT TRUE').rows == [(2,)]


def test_a_task_on_another_machine_is_told_where_it_must_run(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"must run on the driver's machine \(local\[N\]\)"):
        Sqlite(f"sqlite:///{tmp_path}/shop.db").load(STAGE, 0, 1, [batch(1)])


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    database = Sqlite(f"sqlite:///{tmp_path}/shop.db")
    session = database.connect(lock_timeout_s=1)
    (tmp_path / "shop.db.onceflow").write_text("in the way")
    for attempt in (
        lambda: database.create_stage(session, STAGE, TABLE),
        lambda: database.stages(session, NAME),
        lambda: database.gather(session, STAGE),
    ):
        with pytest.raises(Refused, match=r"the staging folder .* cannot be used: "):
            attempt()
    session.close()


LOADING = """
import pickle, sys
import pyarrow as pa
database, stage = pickle.loads(bytes.fromhex(sys.argv[1]))
def batches():
    for number in range(50):
        yield pa.record_batch([pa.array(range(10000)), pa.array(["x" * 20] * 10000)], ["id", "name"])
    print("loading", flush=True)
    sys.stdin.read()
database.load(stage, 0, 1, batches())
"""


def test_a_process_that_is_killed_while_it_loads_leaves_nothing_in_the_stage(
    database: Sqlite, session: Session
) -> None:
    command = [sys.executable, "-c", LOADING, pickle.dumps((database, STAGE)).hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "loading\n"
        assert os.listdir(f"{database.path}.onceflow/app%2F1%2Estage") != ["columns.sql"]
        task.kill()
    assert database.load(STAGE, 0, 2, [batch(5)]) == 1
    assert gathered(database, session) == ([Loaded(0, 2, 1)], [5])
    database.drop_stage(session, NAME)
    assert left_behind(database) == []


FULL = """
import os, pickle, sys
import pyarrow as pa
from onceflow.sinks.databases.database import *
from onceflow.sinks.databases.sqlite import Sqlite
stage = pickle.loads(bytes.fromhex(sys.argv[2]))
database = Sqlite(f"sqlite:///{sys.argv[1]}/shop.db")
session = database.connect(lock_timeout_s=5)
with session.transaction():
    database.create_stage(session, stage, TableName(None, "t"))
rows = pa.record_batch([pa.array(range(10000)), pa.array(["x" * 20] * 10000)], ["id", "name"])
for task, size in enumerate((100, 1)):
    try:
        print(database.load(stage, task, task, [rows] * size))
    except Refused as refused:
        print("Refused", refused)
database.gather(session, stage)
with session.transaction():
    print(*database.seal(session, stage))
database.drop_stage(session, stage.name)
session.close()
print(*os.listdir(sys.argv[1]))
"""


@pytest.mark.skipif(not can_mount_tmpfs(), reason="needs a file system of its own")
def test_a_full_disk_is_refused_and_leaves_room_for_others() -> None:
    with Tmpfs(size_kb=2000) as disk:
        command = [*disk.enter, sys.executable, "-c", FULL, str(disk.path), pickle.dumps(STAGE).hex()]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert answer[0].startswith("Refused there is no room left on the disk of")
    assert answer[1:] == ["10000", "Loaded(task=1, attempt=1, rows=10000)", "shop.db"]

"""Stages in a real PostgreSQL: who waits for whom, and what a crash leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from onceflow.sinks.databases.database import Again, Column, Gone, Kind, Loaded, Session, Stage, TableName
from onceflow.sinks.databases.postgresql import PostgreSql
from tests.support.postgresql import PostgreSQL
from tests.support.waiting import eventually

TARGET = TableName(None, "target")
STAGE = Stage(TableName(None, "onceflow_s_1"), (Column("x", Kind("bigint")),))


@pytest.fixture
def server(database: str) -> PostgreSql:
    return PostgreSql(database)


@pytest.fixture
def session(server: PostgreSql) -> Iterator[Session]:
    session = server.connect(lock_timeout_s=30)
    yield session
    session.close()


@pytest.fixture
def stage(server: PostgreSql, session: Session) -> Stage:
    return created(server, session)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def created(server: PostgreSql, session: Session, stage: Stage = STAGE) -> Stage:
    session.execute("CREATE TABLE IF NOT EXISTS target (x bigint)")
    with session.transaction():
        server.create_stage(session, stage, TARGET)
    return stage


def numbers(count: int) -> Any:
    return pa.record_batch({"x": pa.array(range(count), pa.int64())})


class HeldLoad:
    """A load whose rows are on the server, and which goes on when it is told to."""

    def __init__(self, server: PostgreSql, stage: Stage, threads: ThreadPoolExecutor) -> None:
        self._go_on = threading.Event()
        self._began = threading.Event()
        self.result: Future[int] = threads.submit(server.load, stage, 1, 100, self._batches())
        assert self._began.wait(20)

    def _batches(self) -> Iterator[Any]:
        yield numbers(1000)
        self._began.set()
        assert self._go_on.wait(60)

    def go_on(self) -> int:
        self._go_on.set()
        return self.result.result(30)

    def let_go(self) -> None:
        self._go_on.set()


def is_waiting(url: str, words: str) -> bool:
    """Is there a session that waits for a lock, in a statement that begins so?"""
    with psycopg.connect(url, autocommit=True) as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND starts_with(query, %s)"
        row = connection.execute(asked, (words,)).fetchone()
    assert row is not None
    return bool(row[0])


def test_seal_waits_for_a_load_that_is_open_and_then_sees_it(
    server: PostgreSql, session: Session, stage: Stage, threads: ThreadPoolExecutor
) -> None:
    load = HeldLoad(server, stage, threads)
    session.begin()
    sealing = threads.submit(server.seal, session, stage)
    eventually(lambda: is_waiting(server.url, "LOCK TABLE"), "the seal waited")
    assert load.go_on() == 1000
    assert sealing.result(30) == [Loaded(1, 100, 1000)]
    assert session.execute('SELECT count(*) FROM "onceflow_s_1"').rows == [(1000,)]
    session.rollback()


def test_seal_does_not_wait_longer_than_the_lock_timeout(
    server: PostgreSql, stage: Stage, threads: ThreadPoolExecutor
) -> None:
    load = HeldLoad(server, stage, threads)
    impatient = server.connect(lock_timeout_s=0.2)
    try:
        with pytest.raises(Again, match="a lock was not to be had in time"), impatient.transaction():
            server.seal(impatient, stage)
        assert not impatient.is_in_transaction
    finally:
        impatient.close()
    assert load.go_on() == 1000


def test_a_load_that_comes_after_the_seal_waits_and_finds_no_stage(
    server: PostgreSql, session: Session, stage: Stage, threads: ThreadPoolExecutor
) -> None:
    server.load(stage, 0, 1, [numbers(5)])
    session.begin()
    assert server.seal(session, stage) == [Loaded(0, 1, 5)]
    late = threads.submit(server.load, stage, 1, 2, [numbers(7)])
    eventually(lambda: is_waiting(server.url, "COPY"), "the load waited")
    assert session.execute('SELECT count(*) FROM "onceflow_s_1"').rows == [(5,)]
    server.drop_stage(session, stage.name)
    session.commit()
    assert isinstance(late.exception(30), Again)
    assert tables(session) == ["target"]


def test_a_stage_and_its_merge_end_together(server: PostgreSql, session: Session, stage: Stage) -> None:
    session.begin()
    server.seal(session, stage)
    server.drop_stage(session, stage.name)
    session.rollback()
    assert tables(session) == ["onceflow_s_1", "onceflow_s_1_tasks", "target"]
    with session.transaction():
        server.seal(session, stage)
        server.drop_stage(session, stage.name)
    assert tables(session) == ["target"]


def test_a_reader_of_the_stage_does_not_hold_up_the_merge(
    server: PostgreSql, session: Session, stage: Stage, threads: ThreadPoolExecutor
) -> None:
    """As pg_dump does, for hours."""
    server.load(stage, 0, 1, [numbers(5)])
    session.execute("SET lock_timeout = 0")  # who waits here would wait for the reader
    with psycopg.connect(server.url) as reader:
        reader.execute('SELECT * FROM "onceflow_s_1"')
        with session.transaction():
            assert server.seal(session, stage) == [Loaded(0, 1, 5)]
            session.execute('INSERT INTO target SELECT * FROM "onceflow_s_1"')
            threads.submit(server.drop_stage, session, stage.name).result(10)
        assert session.execute("SELECT count(*) FROM target").rows == [(5,)]
        assert server.stages(session, TableName(None, "onceflow_s_")) == [stage.name]
    server.drop_stage(session, stage.name)
    assert tables(session) == ["target"]


def test_dropping_what_is_not_there_does_nothing_in_and_outside_of_a_transaction(
    server: PostgreSql, session: Session
) -> None:
    server.drop_stage(session, STAGE.name)
    with session.transaction():
        session.execute("CREATE TABLE kept (x int)")
        server.drop_stage(session, STAGE.name)
    assert tables(session) == ["kept"]


def test_sealing_a_stage_that_somebody_has_dropped_finds_nothing(
    server: PostgreSql, session: Session, stage: Stage
) -> None:
    server.drop_stage(session, stage.name)
    with session.transaction():
        assert server.seal(session, stage) == []


def test_a_killed_server_empties_rows_and_manifest_alike() -> None:
    with PostgreSQL() as own:
        server = PostgreSql(own.new_database())
        session = server.connect(lock_timeout_s=5)
        stage = created(server, session)
        server.load(stage, 0, 1, [numbers(1000)])
        own.kill()
        with pytest.raises(Gone, match="The connection to PostgreSQL was lost"):
            session.execute("SELECT 1")
        session.close()
        with pytest.raises(Gone, match=r"No connection to postgresql://onceflow@127.0.0.1:\d+/database_1"):
            server.connect(lock_timeout_s=5)
        own.start()
        session = server.connect(lock_timeout_s=5)
        with session.transaction():
            assert server.seal(session, stage) == []
            assert session.execute('SELECT count(*) FROM "onceflow_s_1"').rows == [(0,)]
        session.close()


def test_a_restart_in_the_middle_of_a_load_leaves_nothing_of_it(threads: ThreadPoolExecutor) -> None:
    with PostgreSQL() as own:
        server = PostgreSql(own.new_database())
        session = server.connect(lock_timeout_s=5)
        stage = created(server, session)
        server.load(stage, 0, 1, [numbers(3)])
        session.close()
        load = HeldLoad(server, stage, threads)
        own.restart()
        load.let_go()
        assert isinstance(load.result.exception(30), Gone)
        session = server.connect(lock_timeout_s=5)
        with session.transaction():
            assert server.seal(session, stage) == [Loaded(0, 1, 3)]
            assert session.execute('SELECT count(*) FROM "onceflow_s_1"').rows == [(3,)]
        session.close()


def test_leftover_stages_are_found_by_the_very_prefix(server: PostgreSql, session: Session) -> None:
    session.execute("CREATE TABLE target (x bigint)")
    for name in ("onceflow_a_1", "onceflow_a_2", "onceflowXa_3", "onceflow_ab_tasks", "Onceflow_a_4"):
        created(server, session, Stage(TableName(None, name), STAGE.columns))
    session.execute("CREATE TABLE onceflow_a_logged (x int)")
    assert names(server, session, "onceflow_a_") == ["onceflow_a_1", "onceflow_a_2"]
    assert names(server, session, "onceflow_a") == ["onceflow_a_1", "onceflow_a_2", "onceflow_ab_tasks"]
    assert names(server, session, "onceflow%") == []


def names(server: PostgreSql, session: Session, prefix: str) -> list[str]:
    return [name for _, name in server.stages(session, TableName(None, prefix))]


def test_stages_are_those_of_the_schema(server: PostgreSql, session: Session) -> None:
    session.execute('CREATE SCHEMA "Other one"; CREATE TABLE target (x bigint)')
    elsewhere = Stage(TableName("Other one", "onceflow_s_2"), STAGE.columns)
    created(server, session)
    created(server, session, elsewhere)
    assert server.stages(session, TableName("Other one", "onceflow_s_")) == [elsewhere.name]
    assert server.stages(session, TableName(None, "onceflow_s_")) == [STAGE.name]
    server.drop_stage(session, elsewhere.name)
    assert server.stages(session, TableName("Other one", "onceflow_s_")) == []


def test_a_stage_has_the_types_and_collations_of_the_target(server: PostgreSql, session: Session) -> None:
    session.execute("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    session.execute("CREATE DOMAIN code AS varchar(8) CHECK (VALUE <> '')")
    session.execute("CREATE TYPE mood AS ENUM ('fine')")
    session.execute("CREATE TABLE target (a text COLLATE any_case, b code, c mood, d numeric(9,2), e timestamp(3))")
    session.execute("ALTER TABLE target ALTER e SET NOT NULL")
    kinds = {"a": "text", "b": "text", "c": "text", "d": "decimal", "e": "timestamp_ntz", "of_ours": "bigint"}
    columns = tuple(Column(name, Kind(kind)) for name, kind in kinds.items())
    created(server, session, Stage(STAGE.name, columns))
    found = session.execute(
        "SELECT attname, format_type(atttypid, atttypmod), "
        "(SELECT collname FROM pg_collation WHERE oid = attcollation), attnotnull "
        "FROM pg_attribute WHERE attrelid = 'onceflow_s_1'::regclass AND attnum > 0 ORDER BY attnum"
    ).rows
    assert found == [
        ("a", "text", "any_case", False),
        ("b", "code", "default", False),
        ("c", "mood", None, False),
        ("d", "numeric(9,2)", None, False),
        ("e", "timestamp(3) without time zone", None, False),
        ("of_ours", "bigint", None, False),
    ]


def tables(session: Session) -> list[str]:
    found = session.execute("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").rows
    return [name for (name,) in found]

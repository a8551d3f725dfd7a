"""The table of offsets: who owns a partition, and what nobody else can do to it then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.sinks.consumer_offsets import Held, Move, OffsetsTable, Superseded
from onceflow.sinks.databases import Database, open_database
from onceflow.sinks.databases.database import Session
from onceflow.spark.problems import SinkError

A, B, C = ("orders", 0), ("orders", 1), ("clicks", 0)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(f"sqlite:///{tmp_path}/landed.db")


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    session = database.connect(lock_timeout_s=1)
    yield session
    session.close()


@pytest.fixture
def table(database: Database, session: Session) -> OffsetsTable:
    table = OffsetsTable(database, "group")
    table.create(session)
    return table


def test_it_is_created_once(table: OffsetsTable, session: Session) -> None:
    table.create(session)
    assert table.read(session, ["orders"]) == {}


def test_a_group_begins_where_it_was_told_to_and_the_second_one_changes_nothing(
    table: OffsetsTable, session: Session
) -> None:
    table.begin(session, {A: 7, B: 9})
    table.begin(session, {A: 100, B: 100, C: 3})
    assert table.read(session, ["orders", "clicks"]) == {A: 7, B: 9, C: 3}
    assert table.read(session, ["clicks"]) == {C: 3}


def test_a_partition_that_appears_later_is_read_from_its_first_record(table: OffsetsTable, session: Session) -> None:
    table.begin(session, {A: 7})
    table.begin(session, {A: 7, B: 50})
    assert table.fence(session, [A, B]) == {A: Held(1, 7), B: Held(1, 0)}


def test_groups_are_apart(database: Database, table: OffsetsTable, session: Session) -> None:
    table.begin(session, {A: 7})
    other = OffsetsTable(database, "another")
    other.begin(session, {A: 1})
    other.fence(session, [A])
    assert table.fence(session, [A]) == {A: Held(1, 7)}
    assert other.fence(session, [A]) == {A: Held(2, 1)}


def test_offsets_move_from_where_they_are(table: OffsetsTable, session: Session) -> None:
    held = table.fence(session, [A, B])
    table.move(session, {A: Move(held[A], 5), B: Move(held[B], 8)})
    assert table.read(session, ["orders"]) == {A: 5, B: 8}
    assert table.fence(session, [A]) == {A: Held(2, 5)}


def test_who_was_fenced_moves_nothing(table: OffsetsTable, session: Session) -> None:
    held = table.fence(session, [A, B])
    table.fence(session, [B])
    session.begin()
    with pytest.raises(Superseded, match=r"another process has taken over orders-1$"):
        table.move(session, {A: Move(held[A], 5), B: Move(held[B], 8)})
    session.rollback()
    assert table.read(session, ["orders"]) == {A: 0, B: 0}


def test_a_row_that_was_deleted_is_not_ours(table: OffsetsTable, session: Session) -> None:
    held = table.fence(session, [A])
    session.execute("DELETE FROM onceflow_offsets")
    with pytest.raises(Superseded):
        table.move(session, {A: Move(held[A], 5)})
    assert table.current(session, A) is None


def test_an_offset_that_was_changed_by_hand_is_an_error(table: OffsetsTable, session: Session) -> None:
    held = table.fence(session, [A])
    session.execute("UPDATE onceflow_offsets SET next_offset = 3")
    with pytest.raises(SinkError, match=r"says 3 for orders-0 of group 'group' where 0 was expected.*goes on from 3"):
        table.move(session, {A: Move(held[A], 5)})


def test_in_another_topic_all_partitions_begin_anew_also_those_that_it_does_not_have_yet(
    table: OffsetsTable, session: Session
) -> None:
    table.begin(session, {A: 7, B: 9, C: 3})
    held = table.fence(session, [A, B, C])
    table.start_over(session, "orders", {A: 2})  # it has one partition, and gets a second one later
    assert table.read(session, ["orders", "clicks"]) == {A: 2, B: 0, C: 3}
    for place in (A, B):
        with pytest.raises(Superseded):
            table.move(session, {place: Move(held[place], 10)})
    table.move(session, {C: Move(held[C], 10)})

"""Addresses of PostgreSQL: what is shown of them, and what is refused. Nothing is connected."""

from __future__ import annotations

import pickle
import sys

import pytest

from onceflow.errors import ConfigError
from onceflow.sinks.databases import open_database
from onceflow.sinks.databases.database import Refused, TableName
from onceflow.sinks.databases.postgresql import PostgreSql


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db:5433/sales", "postgresql://ann@db:5433/sales"),
        ("postgres://ann:secret@db/sales", "postgresql://ann@db/sales"),
        ("postgresql://db/sales?user=ann&password=secret&sslpassword=secret", "postgresql://ann@db/sales"),
        ("postgresql://ann:se%40cr%2Fet@a:1,b:2/sales?options=-cx%3Dsecret", "postgresql://ann@a:1,b:2/sales"),
        ("postgresql:///sales?host=/run/pg&password=secret", "postgresql:///run/pg/sales"),
        ("postgresql://ann:secret@[::1]:5432/sales", "postgresql://ann@[::1]:5432/sales"),
        ("postgresql://ann:sec?ret@db/sales", "postgresql://ann@db/sales"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    database = open_database(url)
    assert database.shown == shown
    assert "secret" not in repr(database)
    assert database.details() == {"url": shown}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:sec/ret@db/sales",
        "postgresql://ann:1/ret@db/sales",
        "postgresql://ann:se@cret@db/sales",
        "postgresql://ann:sec?r@et@db/sales",
        "postgresql://ann:%zzsecret@db/sales",
        "postgresql://ann:secret@db:port/sales",
        "postgresql://ann:secret@db/sales?nonsense=secret",
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(ConfigError, match="write @ as %40") as refused:
        PostgreSql(url)
    assert "ret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_without_psycopg_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'onceflow\[sql\]'"):
        open_database("postgresql://db/sales")


def test_a_database_can_be_sent_to_tasks() -> None:
    database = PostgreSql("postgresql://ann:secret@db/sales")
    copy = pickle.loads(pickle.dumps(database))
    assert (copy.url, copy.shown) == (database.url, database.shown)


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("orders", '"orders"'),
        ('a"; DROP TABLE x; --', '"a""; DROP TABLE x; --"'),
        (TableName(None, "Orders"), '"Orders"'),
        (TableName("sales", 'o"r'), '"sales"."o""r"'),
        ("ä" * 31, '"' + "ä" * 31 + '"'),
    ],
)
def test_a_name_is_nothing_but_a_name(name: str | TableName, quoted: str) -> None:
    assert PostgreSql("postgresql://db/sales").quoted(name) == quoted


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "ä" * 32])
def test_what_postgresql_would_cut_or_misread_is_no_name(name: str) -> None:
    with pytest.raises(Refused, match="cannot be a name in PostgreSQL"):
        PostgreSql("postgresql://db/sales").quoted(name)

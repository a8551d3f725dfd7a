"""Databases for the tests of landing; a broker and Spark for those that need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sinks.consuming import Landed, Topic
from tests.spark.conftest import new_driver, spark
from tests.support.brokers import RunningBroker, Shared, running_broker
from tests.support.postgresql import PostgreSQL, shared_postgresql
from tests.support.sql_sink_places import Place, PostgresqlPlace, SqlitePlace

if TYPE_CHECKING:
    from tests.support.sql_sink_cases import Case
    from tests.support.sql_sink_without_spark import Job

__all__ = ["new_driver", "spark"]


@pytest.fixture(scope="session")
def postgresql(shared: Shared) -> PostgreSQL:
    """One server for all tests of a process. Who breaks it starts their own."""
    return shared_postgresql(shared)


@pytest.fixture
def database(postgresql: PostgreSQL) -> str:
    """The address of an empty database."""
    return postgresql.new_database()


@pytest.fixture(scope="session")
def emptied(postgresql: PostgreSQL) -> str:
    """The address of a database that `place` empties for each test: a new one takes half a second, and stays."""
    return postgresql.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty database of each kind."""
    if request.param == "postgresql":
        place = PostgresqlPlace(request.getfixturevalue("emptied"))
        place.execute("DROP SCHEMA IF EXISTS public, sales CASCADE", "CREATE SCHEMA public")
        return place
    folder = tmp_path / "sqlite"
    folder.mkdir()
    return SqlitePlace(folder / "landed.db")


@pytest.fixture
def new_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    """Jobs without Spark: `new_job(place, CASE)`."""
    from tests.support.sql_sink_without_spark import Job, without_spark

    jobs: list[Job] = []

    def job(place: Place, case: Case, **names: str) -> Job:
        jobs.append(Job(place, case, **names))
        return jobs[-1]

    with without_spark(monkeypatch):
        yield job
        for each in jobs:
            each.close()


# --- of `consume_into`


@pytest.fixture(params=["postgresql", "sqlite"])
def landed(request: pytest.FixtureRequest, tmp_path: Path) -> Landed:
    """An empty database of each kind, with the tables that records go into."""
    if request.param == "sqlite":
        return Landed(f"sqlite:///{tmp_path}/landed.db")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return Landed(server.new_database())


@pytest.fixture
def on_postgresql(postgresql: PostgreSQL) -> Landed:
    return Landed(postgresql.new_database())


@pytest.fixture
def topic(broker: RunningBroker, new_name: Callable[[], str]) -> Topic:
    return Topic(broker.bootstrap, new_name())


# --- of Spark


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest, shared: Shared) -> str:
    """Of our broker, or of the one that `--broker` names: what landing does does not depend on where records come
    from."""
    return running_broker(request.config.getoption("broker") or "onceflow", shared).bootstrap

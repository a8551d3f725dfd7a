"""A pipeline and its database, before Spark is started."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onceflow.errors import ConfigError, OnceflowError
from onceflow.pipelines import Pipeline, orders, pricing, viewing
from onceflow.pipelines.job import JobSettings, check
from onceflow.pipelines.landing import check_database, check_landed, knock, sql_sink, table_names
from tests.pipelines.clicks import PIPELINE as CLICKS


def settings(sql: str, **more: str) -> JobSettings:
    return JobSettings(bootstrap="127.0.0.1:1", checkpoint="unused", sql=sql, **more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "landed.db"


def tables(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())


@pytest.mark.parametrize(
    ("pipeline", "names"),
    [
        (orders.PIPELINE, {"validated_orders", "user_summaries"}),
        (viewing.PIPELINE, {"models"}),
        (pricing.PIPELINE, {"current_prices", "pricing_audit"}),
    ],
)
def test_tables_are_created_with_their_keys(pipeline: Pipeline, names: set[str], path: Path) -> None:
    check_database(pipeline, settings(f"sqlite:///{path}"))
    created = tables(path)
    assert created.keys() == names
    assert all("PRIMARY KEY" in each for each in created.values())
    check_database(pipeline, settings(f"sqlite:///{path}"))
    assert tables(path) == created


def test_tables_have_the_prefix_of_the_run(path: Path) -> None:
    chosen = settings(f"sqlite:///{path}", prefix="test-1.")
    check_database(orders.PIPELINE, chosen)
    names = ["test_1_validated_orders", "test_1_user_summaries"]
    assert table_names(orders.PIPELINE, chosen) == list(tables(path)) == names
    sink = sql_sink(orders.PIPELINE, chosen, {"validated_orders": "test-1.v", "user_summaries": "test-1.u"})
    assert [each.name for each in sink.tables] == names
    assert sink.app_id == "test-1.orders"


def test_a_table_that_does_not_fit_is_refused_before_anything_is_started(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE models (version TEXT PRIMARY KEY)")
    with pytest.raises(ConfigError, match="column 'version' of models: it is TEXT"):
        check_database(viewing.PIPELINE, settings(f"sqlite:///{path}"))


def test_a_pipeline_that_lands_nothing_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="the pipeline 'clicks' lands nothing in a database"):
        check(dataclasses.replace(CLICKS, lands=[]), settings(f"sqlite:///{path}"))
    assert not path.exists()


@pytest.mark.parametrize("url", ["mysql://me:secret@host/shop", "postgresql://me:se@secret@host/shop", "secret"])
def test_an_address_that_nobody_understands_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(orders.PIPELINE, settings(url))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["postgresql://me:secret@127.0.0.1:1/shop", "sqlite:///no/such/folder/orders.db"])
def test_a_database_that_cannot_be_reached_is_an_error_of_one_sentence(url: str) -> None:
    with pytest.raises(OnceflowError, match=r"Nothing was started$") as refused:
        knock(orders.PIPELINE, url)
    assert "secret" not in str(refused.value)


def progressed(path: Path, batch: int | None) -> JobSettings:
    """The database knows the app, up to a micro-batch."""
    with closing(sqlite3.connect(path)) as connection:
        columns = "app_id, epoch, query_id, batch_id, offsets, at_ms, details"
        connection.execute(f"CREATE TABLE onceflow_progress ({columns})")
        query = None if batch is None else "q"
        connection.execute("INSERT INTO onceflow_progress VALUES ('orders', 3, ?, ?, '{}', 1, '{}')", [query, batch])
        connection.commit()
    return settings(f"sqlite:///{path}")


@pytest.mark.parametrize(("landed", "last"), [(4, 4), (5, 4), (4, None), (None, None)])
def test_tables_that_have_all_that_the_checkpoint_knows_can_go_on(
    landed: int | None, last: int | None, path: Path
) -> None:
    check_landed(orders.PIPELINE, progressed(path, landed), last)


def test_tables_that_would_have_a_hole_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="have micro-batches up to 4, and the checkpoint is at 9") as refused:
        check_landed(orders.PIPELINE, progressed(path, 4), 9)
    assert "DELETE FROM onceflow_progress WHERE app_id = 'orders'" in str(refused.value)


def test_tables_of_a_database_that_is_new_to_a_pipeline_begin_now(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_landed(orders.PIPELINE, settings(f"sqlite:///{path}"), 9)
    check_landed(orders.PIPELINE, progressed(path, None), 9)
    assert ["the tables begin with micro-batch 10" in each for each in caplog.messages] == [True, True]


def test_settings_are_shown_without_the_address(path: Path) -> None:
    assert "secret" not in repr(settings("postgresql://me:secret@host/shop"))

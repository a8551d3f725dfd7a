"""The guide to landing: its snippets run, and its tables are those of the code."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import types as spark_types

import onceflow
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.sinks import SqlSink, Table, write
from onceflow.sinks.consumer_settings import ConsumeSettings
from onceflow.sinks.consuming import consume_into
from onceflow.sinks.databases import open_database
from onceflow.sinks.landing import Landing
from onceflow.sinks.progress_table import ProgressTable
from onceflow.sinks.spark_rows import columns_of
from onceflow.spark import problems
from tests.docs.landing_page import PAGE, ROOT, blocks, table
from tests.support.brokers import Shared, started
from tests.support.postgresql import PostgreSQL, shared_postgresql
from tests.support.readers import committed
from tests.support.spark import spark_session
from tests.support.spark_jvm import QUICK_CHECKPOINTS
from tests.support.sql_sink_without_spark import Frame, without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 100
TOPICS = ("orders", "views", "customer_changes", "invoices")


@pytest.fixture(scope="session")
def postgresql(shared: Shared) -> PostgreSQL:
    return shared_postgresql(shared)


# --- the snippets, from top to bottom


class Guide:
    """A reader who does what the page says, in one session."""

    def __init__(self, bootstrap: str, url: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.names: dict[str, Any] = {}
        self._replaced = {"kafka:9092": bootstrap, "postgresql://loader:secret@db/shop": url}
        self._replaced["/checkpoints"] = str(folder)

    def run(self, code: str) -> str:
        """Returns what it printed."""
        for ours, theirs in self._replaced.items():
            code = code.replace(ours, theirs)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/landing.md", "exec"), self.names)
        return printed.getvalue()

    def produce(self, topic: str, records: Sequence[tuple[str, str]]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 2})
        for key, value in records:
            producer.produce(topic, key=key, value=value)
        assert producer.flush(30) == 0

    def read(self, topic: str) -> Iterator[Any]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader", "log_level": 2})
        consumer.assign([TopicPartition(topic, number, 0) for number in (0, 1)])
        yield from consumer.consume(COUNT, timeout=30)
        consumer.close()


@pytest.fixture(scope="module")
def spark(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The session that the tests of Spark use, too, where they run in the same process."""
    folder = tmp_path_factory.mktemp("spark")
    return started(lambda: shared.only("session of Spark", "quick", lambda: spark_session(folder, QUICK_CHECKPOINTS)))


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_the_first_example_prints_what_is_shown_and_goes_on_when_it_is_run_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guide = Guide("", "", tmp_path)
    # The JVM of the session has a working directory of its own.
    code = blocks("Quick start")[0].replace('"checkpoint"', f'"{tmp_path}/checkpoint"')
    assert guide.run(code) == blocks("Quick start", "")[0]
    assert guide.run(code) == "(2000, 999000)\n('landing', 5, '{\"orders\": {\"0\": 2000}}')\n"


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_the_snippets_run_from_top_to_bottom_and_do_what_the_page_says(
    spark: SparkSession, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    url = postgresql.new_database()
    with onceflow.Broker(tmp_path / "broker") as broker, psycopg.connect(url, autocommit=True) as shop:
        admin = Admin(ClientSettings(bootstrap=broker.bootstrap))
        for name in TOPICS:
            admin.create(name, partitions=1 if name == "customer_changes" else 2)
        guide = Guide(broker.bootstrap, url, tmp_path / "checkpoints")
        guide.produce("orders", [(f"customer-{number % 7}", str(number)) for number in range(COUNT)])
        guide.produce("views", [(f"page-{number % 3}", "") for number in range(COUNT)])
        guide.run(blocks("Quick start")[1])

        guide.produce("customer_changes", [("", _change(*each)) for each in CHANGES])
        guide.run(blocks("Change data")[0])
        assert shop.execute("SELECT * FROM customers ORDER BY id").fetchall() == [(1, "Ada L.", 2), (3, "Cy", 5)]

        by_spark, by_hand = blocks("Counters")
        guide.run(by_spark)
        pages = shop.execute("SELECT page, views FROM page_views ORDER BY page").fetchall()
        assert pages == [("page-0", 34), ("page-1", 33), ("page-2", 33)]
        guide.run(by_hand)
        counted = [guide.names["count"](shop.cursor(), message) for message in guide.read("views")]
        assert counted == [False] * COUNT, "they were counted by the sink"
        shop.execute("TRUNCATE page_views")
        assert all(guide.names["count"](shop.cursor(), message) for message in guide.read("views"))
        assert shop.execute("SELECT page, views FROM page_views ORDER BY page").fetchall() == pages

        guide.run(blocks("Several tables")[0])
        assert _sums(shop) == (COUNT, sum(range(COUNT)), COUNT, sum(range(COUNT)))

        guide.run(blocks("Kafka and a database")[0])
        invoices = sorted(int(each.value or b"") for each in committed(broker.bootstrap, "invoices"))
        numbers = shop.execute("SELECT number FROM invoices ORDER BY number").fetchall()
        assert invoices == [number for (number,) in numbers] == list(range(COUNT))

        assert guide.run(blocks("Batch jobs")[0]) == blocks("Batch jobs", "")[0]
        assert shop.execute("SELECT * FROM prices ORDER BY item").fetchall() == [("mug", 12), ("pen", 3)]

        shop.execute(blocks("Without Spark", "sql")[0])
        assert guide.run(blocks("Without Spark")[0]) == blocks("Without Spark", "")[0]
        clicks = shop.execute("SELECT page, count(*) FROM clicks GROUP BY page ORDER BY page").fetchall()
        assert clicks == pages

        guide.produce("orders", [("customer-0", "1000")])  # while there is no checkpoint
        guide.run(blocks("When a checkpoint is lost")[0])
        assert _sums(shop) == (COUNT + 1, sum(range(COUNT)) + 1000) * 2

        assert guide.run(blocks("Monitoring")[0]) == blocks("Monitoring", "")[0].replace("100", str(COUNT + 1))
        watched = shop.execute(blocks("Monitoring", "sql")[0]).fetchall()
        assert {row[0] for row in watched} == {"customers", "views", "orders", "billing", "prices", "watched"}


CHANGES = [
    *[(1, "Ada", "c"), (2, "Bob", "c"), (1, "Ada L.", "u")],
    *[(2, "Bob", "d"), (3, "Cy", "d"), (3, "Cy", "c")],
]


def _change(id_: int, name: str, op: str) -> str:
    return f'{{"id": {id_}, "name": "{name}", "op": "{op}"}}'


def _sums(shop: psycopg.Connection[Any]) -> tuple[Any, ...]:
    orders = shop.execute("SELECT count(*), sum(cents)::int FROM orders").fetchone()
    customers = shop.execute("SELECT sum(orders)::int, sum(cents)::int FROM customer_totals").fetchone()
    return (*(orders or ()), *(customers or ()))


# --- rights, staging tables


def test_the_grants_are_all_that_a_role_needs(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgresql.new_database()
    role = f"loader_{postgresql.port}_{os.getpid()}"
    theirs = postgresql.new_role(role, "secret", url)
    grants, _ = blocks("Rights", "sql")
    create, *others = grants.replace("loader", role).strip().split(";\n")
    with psycopg.connect(url, autocommit=True) as shop, without_spark(monkeypatch):
        shop.execute("CREATE TABLE orders (id bigint PRIMARY KEY, name text)")
        shop.execute(create)
        job: dict[str, Any] = {"url": theirs, "table": "orders", "schema": "landing", "app_id": "rights", "key": ["id"]}
        frame = Frame("id bigint, name string, deleted boolean", [[(1, "mug", False)]])
        for missing in others:
            with pytest.raises(problems.SinkError, match="permission denied"):
                write(frame, **job, mode="delete_and_upsert")
            shop.execute(missing)
        write(frame, **job, mode="delete_and_upsert")
        assert shop.execute("SELECT * FROM orders").fetchall() == [(1, "mug")]


MODES_WITH_RIGHTS = [row[1:] for row in table("Rights", "on") if row[1].startswith("`")]


@pytest.mark.parametrize(("modes", "rights"), MODES_WITH_RIGHTS)
def test_each_mode_needs_the_rights_of_its_row_and_no_others(
    modes: str, rights: str, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in re.findall(r"\w+", modes):
        url = postgresql.new_database()
        role = f"{mode}_{postgresql.port}_{os.getpid()}"
        theirs = postgresql.new_role(role, "secret", url)
        with psycopg.connect(url, autocommit=True) as shop, without_spark(monkeypatch):
            shop.execute(_TABLE)
            shop.execute(f"CREATE SCHEMA landing; GRANT USAGE, CREATE ON SCHEMA landing TO {role}")
            job = {"url": theirs, "table": "things", "schema": "landing", "app_id": "rights", "mode": mode}
            more = {} if mode == "append" else {"key": ["id"]}
            flag = mode == "delete_and_upsert"
            frame = Frame("id bigint, n bigint" + ", deleted boolean" * flag, [[(1, 5, False)[: 2 + flag]]])
            shop.execute(f"GRANT {rights} ON things TO {role}")
            write(frame, **job, **more)
            shop.execute("TRUNCATE things")
            for right in rights.split(", "):
                shop.execute(f"REVOKE {right} ON things FROM {role}")
                with pytest.raises(problems.SinkError, match="permission denied for table things"):
                    write(frame, **job, **more)
                shop.execute(f"GRANT {right} ON things TO {role}")


_TABLE = "CREATE TABLE things (id bigint PRIMARY KEY, n bigint, onceflow_query text, onceflow_batch bigint)"


def test_the_progress_table_is_told_as_it_is_created() -> None:
    _, told = blocks("Rights", "sql")
    created = ProgressTable(open_database("postgresql://host/shop"), "landing", "app").statement()
    assert _plain(told) == _plain(created.replace("IF NOT EXISTS ", "").replace('"', ""))


def _plain(statement: str) -> str:
    return re.sub(r"\s*([();,])\s*", r"\1", statement).strip("; \n")


def test_staging_tables_are_found_by_the_queries_of_the_page(postgresql: PostgreSQL) -> None:
    url = postgresql.new_database()
    prefixes, clean_up = blocks("Staging tables", "sql")
    to_drop, to_forget = re.split(r";\n", clean_up.strip())
    old, new = (_staged(url, app_id) for app_id in ("an-old-one", "a-new-one"))
    with psycopg.connect(url, autocommit=True) as shop:
        prefix_of = dict(shop.execute(prefixes).fetchall())
        assert (old, new) == (f"{prefix_of['an-old-one']}_1_7_1_0", f"{prefix_of['a-new-one']}_1_7_1_0")
        for (statement,) in shop.execute(to_drop).fetchall():
            shop.execute(statement)
        shop.execute(to_forget)
        left = shop.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'onceflow%' ORDER BY 1").fetchall()
        assert [name for (name,) in left] == ["onceflow_progress", new, f"{new}_tasks"]
        assert shop.execute("SELECT app_id FROM onceflow_progress").fetchall() == [("a-new-one",)]


def _staged(url: str, app_id: str) -> str:
    """The stage that an app leaves behind which dies in batch 7."""
    columns = columns_of(spark_types.StructType([spark_types.StructField("id", spark_types.LongType())]))
    landing = Landing(open_database(url), app_id, [Table("things", create=True)])
    landing.check([columns])
    landing.fence(7)
    [stage] = landing.stage(7, [columns])
    landing.close()
    return stage.name.name


# --- tables of settings and errors


def test_every_argument_of_the_sink_is_in_its_table_with_its_default() -> None:
    told = {cells[0].strip("`"): cells[1] for cells in table("Settings", "argument")}
    assert told == _defaults(inspect.signature(SqlSink).parameters.values())


def test_every_argument_of_consume_into_is_in_its_table_with_its_default() -> None:
    told = {cells[0].strip("`"): cells[1] for cells in table("Without Spark", "argument")}
    named = [each for each in inspect.signature(consume_into).parameters.values() if each.kind is each.KEYWORD_ONLY]
    more = inspect.signature(ConsumeSettings).parameters
    known = {*(each.name for each in named), "topics"}
    assert told == _defaults([*named, *(each for name, each in more.items() if name not in known)])


def _defaults(parameters: Any) -> dict[str, str]:
    empty = inspect.Parameter.empty
    return {
        each.name: "" if each.default is empty else "`{}`".format(repr(each.default).replace("'", '"'))
        for each in parameters
    }


def test_the_arguments_of_a_table_are_told() -> None:
    [told] = [cells[2] for cells in table("Settings", "argument") if cells[0] == "`tables`"]
    assert set(re.findall(r"(\w+)=", told)) == {each.name for each in dataclasses.fields(Table)} - {"name"}


def test_every_error_is_told() -> None:
    told = {cells[0].strip("`") for cells in table("Errors, and what to do", "error")}
    assert set(problems.__all__) - {"TransactionTimedOut"} <= told
    assert {"ConfigError", "DataLossError", "ClientError"} <= told


# --- the page itself


def anchor(title: str) -> str:
    """As GitHub makes it."""
    return "#" + re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")


def test_links_within_the_page_lead_somewhere_and_all_sections_are_listed() -> None:
    anchors = {anchor(title) for title in re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\((#[^)]+)\)", PAGE)) <= anchors
    assert len(re.findall(r"^- \[.*\]\(#.*\)$", PAGE, flags=re.MULTILINE)) == len(anchors)


def test_files_that_the_page_names_are_there() -> None:
    named = re.findall(r"`((?:tests|src|examples)/[\w/.]+)`", PAGE)
    assert named
    for name in named:
        assert (ROOT / name).exists(), name

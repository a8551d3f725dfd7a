"""The guide to Spark: its snippets run, and its tables are those of the code."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

import onceflow
import onceflow.spark
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.spark import problems
from onceflow.spark.listening import BatchResult
from onceflow.spark.option_names import KAFKA_SETTINGS, OPTIONS, SECURITY_PREFIXES
from onceflow.spark.progress import PROGRESS_TOPIC, TOPIC_SETTINGS
from onceflow.spark.writing import COLUMNS, WriteSettings
from tests.support.brokers import Shared, started
from tests.support.readers import committed
from tests.support.spark import spark_session
from tests.support.spark_jvm import QUICK_CHECKPOINTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()
ORDERS = 100
TOPICS = ("orders", "invoices", "orders-copied", "orders-per-customer", "prices")
ADDRESS = re.compile(r"kafka:909\d")


def section(title: str) -> str:
    """From its heading to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def block(title: str, language: str = "python") -> str:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section(title), flags=re.MULTILINE | re.DOTALL)
    [found] = [text for name, text in fenced if name == language]
    return str(found)


def output(title: str) -> str:
    """What the page shows behind a snippet."""
    return block(title, "")


def rows(title: str) -> dict[str, list[str]]:
    """The tables of a section: the first cell, and the others. A cell with several names gives a row for each."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section(title).splitlines()
        if line.startswith("|") and not line.startswith("| ---")
    ]
    return {name.strip(" `"): each[1:] for each in cells for name in each[0].split(",")}


class Guide:
    """A reader who does what the page says, from top to bottom, in one session."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self._folder = folder
        self._names: dict[str, Any] = {}

    def run(self, title: str) -> str:
        """The snippet of a section; returns what it printed."""
        code = ADDRESS.sub(self.bootstrap, block(title)).replace("/checkpoints/", f"{self._folder}/")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"docs/spark.md, {title}", "exec"), self._names)
        return printed.getvalue()

    def values(self, topic: str) -> list[str]:
        return sorted((each.value or b"").decode() for each in committed(self.bootstrap, topic))

    def order(self, first: int, last: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 2})
        for number in range(first, last):
            producer.produce("orders", str(number), key=f"customer-{number % 7}")
        assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def spark(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The session that the tests of Spark use, too, where they run in the same process."""
    folder = tmp_path_factory.mktemp("spark")
    return started(lambda: shared.only("session of Spark", "quick", lambda: spark_session(folder, QUICK_CHECKPOINTS)))


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_the_snippets_run_from_top_to_bottom_and_do_what_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    with onceflow.Broker(tmp_path / "broker") as broker:
        admin = Admin(ClientSettings(bootstrap=broker.bootstrap))
        for name in TOPICS:
            admin.create(name, partitions=2)
        guide = Guide(broker.bootstrap, tmp_path / f"checkpoints-{uuid4().hex}")
        guide.order(0, ORDERS)
        invoices = sorted(f"invoice for {number}" for number in range(ORDERS))

        guide.run("Quick start")
        assert guide.values("invoices") == invoices
        guide.run("The sink")
        assert guide.values("orders-copied") == sorted(map(str, range(ORDERS)))
        assert guide.values("orders-per-customer") == sorted(["15", "15", "14", "14", "14", "14", "14"])
        guide.run("Rows that a topic cannot take")
        assert guide.run("Batch jobs") == output("Batch jobs")
        assert guide.values("prices") == ["12", "3"]
        assert guide.run("Monitoring") == output("Monitoring")
        assert len(guide.values("invoices")) == 2 * ORDERS
        guide.order(ORDERS, ORDERS + 1)  # while there is no checkpoint
        guide.run("When a checkpoint is lost")
        assert [each for each in guide.values("invoices") if each.startswith("invoice for 100")] == ["invoice for 100"]
        assert len(guide.values("invoices")) == 2 * ORDERS + 1
        guide.run("Security and rights")


def test_the_diff_leads_to_the_quick_start() -> None:
    after = [
        line[1:] for line in block("From Spark's `kafka` format in one diff", "diff").splitlines() if line[0] in " +"
    ]
    code = compile("\n".join(after), "the diff", "exec")
    assert {"onceflow", "KafkaSink", "session"} <= set(code.co_names)
    before = "".join(line for line in PAGE.splitlines() if line.startswith("-"))
    assert 'format("kafka")' in before


def test_every_option_of_the_source_is_in_its_table_and_no_other() -> None:
    told = {name for name in rows("The source") if not name.endswith("*")}
    columns = {
        "column",
        "option",
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    }
    known = {*OPTIONS, *KAFKA_SETTINGS}
    assert told - columns <= known
    is_security = (*SECURITY_PREFIXES, "kafka.enable.ssl.")
    assert {name for name in known - told if not name.startswith(is_security)} == set()


def test_every_argument_of_the_sink_is_in_its_table_with_its_default() -> None:
    told = rows("The sink")
    for field in dataclasses.fields(WriteSettings):
        assert field.name in told, field.name
    for name in ("guarantee", "partitioning", "compression"):
        assert told[name][0] == f'`"{getattr(WriteSettings, name)}"`'
    for name in ("batch_bytes", "buffer_bytes", "transaction_timeout_ms", "delivery_timeout_ms", "retries"):
        assert told[name][0] == f"`{getattr(WriteSettings, name):_}`"
    assert set(COLUMNS) <= told.keys()


def test_every_setting_of_the_session_is_in_its_table() -> None:
    recommended = inspect.getmodule(onceflow.spark.session).recommended
    told = rows("Quick start")
    assert {each.name for each in recommended("local[2]")} == told.keys() - {"setting"}
    for each in recommended(None):
        assert each.value in told[each.name][0] or "RocksDB" in each.value


def test_every_error_and_every_field_of_a_result_is_told() -> None:
    assert set(problems.__all__) <= rows("Errors, and what to do").keys()
    told = section("Monitoring")
    assert all(f"`{field.name}`" in told for field in dataclasses.fields(BatchResult))


def test_the_progress_topic_is_described_as_it_is_created() -> None:
    told = section("On a cluster")
    assert PROGRESS_TOPIC in told
    assert all(f"`{name}={value}`" in told for name, value in TOPIC_SETTINGS.items())


def anchor(title: str) -> str:
    """As GitHub makes it."""
    return "#" + re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def test_links_within_the_page_lead_somewhere() -> None:
    anchors = {anchor(title) for title in re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\((#[^)]+)\)", PAGE)) <= anchors
    listed = re.findall(r"^- \[.*\]\((#.*)\)$", PAGE, flags=re.MULTILINE)
    assert len(listed) == len(anchors), "the table of contents has all sections"


def test_files_that_the_page_names_are_there() -> None:
    for name in re.findall(r"`((?:tests|src|demo)/[\w/.]+)`", PAGE):
        assert (ROOT / name).exists(), name

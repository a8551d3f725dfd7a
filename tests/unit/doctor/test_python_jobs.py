"""A Spark job in Python is read, not run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from onceflow.doctor.examination import examine_case
from onceflow.doctor.facts import UNSEEN, Case, SparkFacts
from onceflow.doctor.findings import Verdict
from onceflow.doctor.python_jobs import read_job
from onceflow.doctor.spark_checks import SINK_ARGUMENTS
from onceflow.errors import ConfigError
from onceflow.spark.sink import KafkaSink
from onceflow.spark.writing import WriteSettings

Read = Callable[[str], SparkFacts]


@pytest.fixture
def job(tmp_path: Path) -> Read:
    def read(text: str) -> SparkFacts:
        path = tmp_path / "job.py"
        path.write_text(text)
        return read_job(str(path))

    return read


def test_a_chain_of_calls_is_a_source_or_a_query(job: Read) -> None:
    found = job("""
raise SystemExit("never run")
spark = SparkSession.builder.master("yarn").config("spark.speculation", True).getOrCreate()
orders = spark.readStream.format("kafka").option("subscribe", "orders").options(failOnDataLoss=False).load()
query = (
    orders.groupBy("key").count().writeStream.format("kafka").option("topic", "out")
    .trigger(processingTime="10 seconds").queryName("q").start()
)
""")
    assert found.conf == {"spark.master": "yarn", "spark.speculation": "true"}
    assert found.sources == ({"format": "kafka", "subscribe": "orders", "failondataloss": "false"},)
    assert found.sinks == ({"format": "kafka", "topic": "out", "trigger": "10 seconds", "queryname": "q"},)
    assert found.queries == found.sinks
    assert found.stateful is True


def test_names_that_are_assigned_once_are_followed(job: Read) -> None:
    found = job("""
import onceflow.spark
APP, TIMEOUT = "x", 1
app = "billing"
kafka = {"kafka.bootstrap.servers": "b:9092", "subscribe": where()}
sink = onceflow.spark.KafkaSink(app_id=app, bootstrap_servers=address, topic="out", transaction_timeout_ms=60_000)
reader = spark.readStream.format("onceflow").options(**kafka)
rows = reader.option("startingOffsets", "earliest").load()
rows.writeStream.foreachBatch(sink).option("checkpointLocation", place).start()
""")
    assert found.sources == (
        {"format": "onceflow", "kafka.bootstrap.servers": "b:9092", "subscribe": UNSEEN, "startingoffsets": "earliest"},
    )
    assert found.sinks == (
        {
            "format": "onceflow",
            "app_id": "billing",
            "bootstrap_servers": UNSEEN,
            "topic": "out",
            "transaction_timeout_ms": "60000",
        },
    )
    assert found.queries == ({"checkpointlocation": UNSEEN},)
    assert found.stateful is False


def test_a_name_that_is_assigned_again_means_what_it_was_last_assigned_before(job: Read) -> None:
    found = job("""
offsets = "latest"
offsets = "earliest"
rows = spark.readStream.format("onceflow").option("subscribe", "orders")
rows = rows.option("startingOffsets", offsets).load()
offsets = "never"
""")
    assert found.sources == ({"format": "onceflow", "subscribe": "orders", "startingoffsets": "earliest"},)


def test_what_may_be_said_of_a_reader_in_another_block_is_not_missing(job: Read) -> None:
    found = job("""
rows = spark.readStream.format("kafka")
if careful:
    rows = rows.option("kafka.isolation.level", "read_committed")
rows.load()
""")
    assert found.sources == ({"format": "kafka", "kafka.isolation.level": UNSEEN, "startingoffsets": UNSEEN},)


def test_a_pipeline_has_the_source_and_the_sink_that_it_is_given(job: Read) -> None:
    found = job('from onceflow.pipelines import Pipeline\nFRAUD = Pipeline(name="fraud", inputs=[])')
    assert [each["format"] for each in (*found.sources, *found.sinks)] == ["onceflow", "onceflow"]
    assert found.sinks[0]["app_id"] == "fraud"


PIPELINES = [f"src/onceflow/pipelines/{each}.py" for each in ("orders", "viewing", "pricing")]
OURS = ("examples/land_with_spark.py", *PIPELINES)


@pytest.mark.parametrize("path", ["examples/land_with_spark.py", *PIPELINES, "README.md", "docs/spark.md"])
def test_what_we_recommend_is_fit(path: str, job: Read) -> None:
    """Of a guide, each program in it that has anything of Spark."""
    text = (Path(__file__).parents[3] / path).read_text()
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL) if path.endswith(".md") else [text]
    jobs = [job(each) for each in programs if "readStream" in each or "Sink(" in each or "Pipeline(" in each]
    assert jobs
    said = [line for each in jobs for line in examine_case(Case(jobs=(each,))) if line.verdict is not Verdict.OK]
    assert [f"{line.check}: {line.found}" for line in said if path == "README.md" or line.verdict != "note"] == []


def test_our_session_brings_its_settings_and_what_it_is_given(job: Read) -> None:
    found = job('spark = onceflow.spark.session("b", master="local[2]", conf={"spark.speculation": "true"})')
    assert found.conf["spark.master"] == "local[2]"
    assert found.conf["spark.speculation"] == "true"
    assert found.conf["spark.sql.streaming.minBatchesToRetain"] == "100"


def test_other_reads_writes_and_sessions_are_none_of_ours(job: Read) -> None:
    other = 'text = open("a").read()\nopen("b").write(text)\nrequests.session(conf={"spark.speculation": "true"})\n'
    with pytest.raises(ConfigError, match="has no readers, writers, sinks or sessions of Spark in it"):
        job(other)
    assert job(other + "spark.read.format('kafka').load()").sources == ({"format": "kafka"},)


def test_names_that_go_round_in_circles_come_to_an_end(job: Read) -> None:
    found = job("a = b.select()\nb = a.select()\na.writeStream.format('kafka').start()")
    assert found.sinks == ({"format": "kafka"},)


def test_what_is_no_program_is_a_sentence(job: Read) -> None:
    with pytest.raises(ConfigError, match=r"not a Python program \(line 1\)"):
        job("def :")
    with pytest.raises(ConfigError, match="not a Python program"):
        job("x = " + "-" * 50_000 + "1")


def test_the_arguments_of_the_sink_are_all_known() -> None:
    arguments = set(inspect.signature(KafkaSink).parameters) - {"settings"}
    assert arguments | {each.name for each in fields(WriteSettings)} | {"format"} == SINK_ARGUMENTS

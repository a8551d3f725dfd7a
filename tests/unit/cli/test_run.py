"""`onceflow run` without Spark: mistakes, what a job is asked for, what is shown of it, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

import onceflow
from onceflow.cli import durations, main, run, run_display, run_loading
from onceflow.cli.run_display import BatchLines
from onceflow.cli.run_problems import output_to, reason_in, spark_started
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.errors import OnceflowError
from onceflow.pipelines import job as jobs
from onceflow.pipelines.job import Job, JobSettings
from onceflow.spark.listening import BatchResult, Listeners
from onceflow.spark.metrics import MetricsServer
from onceflow.spark.metrics_queries import QueryMetrics
from onceflow.spark.planning import lag

CLICKS = """
from typing import NamedTuple
from onceflow.pipelines import Input, Pipeline, Step

class Click(NamedTuple):
    page: str

def count(state, clicks):
    yield from ()

CLICKS = Pipeline(name="clicks", inputs=[Input("clicked", Click)], steps=[Step(count, by="page")], outputs={"views": 2})
NUMBER = 7
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own, with modules that are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    for name in ("ONCEFLOW_BOOTSTRAP", "ONCEFLOW_SQL", "ONCEFLOW_METRICS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "clicks_of_a_test.py").write_text(CLICKS)
    (tmp_path / "broken_of_a_test.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "wrong_of_a_test.py").write_text(CLICKS.replace('by="page"', 'by="colour"'))
    yield tmp_path
    for name in [each for each in sys.modules if each.endswith("_of_a_test")]:
        del sys.modules[name]


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err.rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: PIPELINE"),
        (["shopping"], "there is no pipeline 'shopping': there is orders, viewing, pricing, and PACKAGE.MODULE:NAME"),
        (["clicks_of_a_test"], "there is no pipeline 'clicks_of_a_test'"),
        (["no_such_module:X"], "the module 'no_such_module' cannot be loaded: ModuleNotFoundError"),
        (["broken_of_a_test:X"], "'broken_of_a_test' cannot be loaded: ModuleNotFoundError: No module named 'no_such"),
        (["wrong_of_a_test:CLICKS"], "Click has no field 'colour'"),
        (["clicks_of_a_test:VIEWS"], "has no 'VIEWS': its pipelines are CLICKS"),
        (["clicks_of_a_test:NUMBER"], "clicks_of_a_test:NUMBER is not a Pipeline: it is 7"),
        (["clicks_of_a_test:CLICKS", "--trigger", "soon"], "'soon' is not a time such as 100ms, '1 second' or 0"),
        (["clicks_of_a_test:CLICKS", "--per-batch", "0"], "'0' is not a whole number from 1 up"),
        (["clicks_of_a_test:CLICKS", "--metrics", "4041"], "--metrics: '4041' is no address for metrics"),
        (["clicks_of_a_test:CLICKS", "--starting-offsets", "7"], "invalid choice: '7'"),
        (["clicks_of_a_test:CLICKS", "--until-now", "--trigger", "1s"], "leave out --trigger"),
        (["clicks_of_a_test:CLICKS", "--client-config", "a"], "should look like NAME=VALUE"),
        (["clicks_of_a_test:CLICKS", "--client-config", "a=b"], "give their address with --bootstrap"),
        (["clicks_of_a_test:CLICKS", "--bootstrap", "local host"], "is not an address"),
        (["clicks_of_a_test:CLICKS", "--sql", "sqlite:///x.db"], "--sql: the pipeline 'clicks' lands nothing in a"),
        (["orders", "--sql", "mysql://me:secret@host/shop"], "--sql: url= is no address of a database that is known"),
        (["orders", "--sql", "sqlite://"], "sqlite:///file.db names a file"),
        (["orders", "--sql-schema", "shop"], "give its address with --sql, or in $ONCEFLOW_SQL"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    assert words in (said := complaint(capsys))
    assert "secret" not in said


@pytest.mark.parametrize("is_in_environment", [False, True])
def test_an_unreachable_database_is_one_sentence_without_its_password_and_nothing_is_started(
    is_in_environment: bool, closed_port: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    url = f"postgresql://me:secret@127.0.0.1:{closed_port}/shop"
    if is_in_environment:
        monkeypatch.setenv("ONCEFLOW_SQL", url)
    assert main(["run", "orders", *([] if is_in_environment else ["--sql", url])]) == 1
    assert f"postgresql://me@127.0.0.1:{closed_port}/shop" in (said := complaint(capsys))
    assert "secret" not in said
    assert not (folder / "onceflow-checkpoints").exists()


def test_an_unreachable_broker_is_one_sentence_and_spark_is_not_started(
    closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "clicks_of_a_test:CLICKS", "--bootstrap", f"127.0.0.1:{closed_port}"]) == 1
    assert f"cannot reach a broker at 127.0.0.1:{closed_port}" in complaint(capsys)


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("0", None),
        ("0s", None),
        ("100ms", "100 milliseconds"),
        ("1 second", "1000 milliseconds"),
        ("2 minutes", "120000 milliseconds"),
        ("1.5s", "1500 milliseconds"),
        ("250 milliseconds", "250 milliseconds"),
    ],
)
def test_a_trigger_is_told_as_people_and_as_spark_tell_it(text: str, trigger: str | None) -> None:
    assert durations.trigger(text) == trigger


@pytest.mark.parametrize("name", ["orders", "viewing", "pricing"])
def test_the_reference_pipelines_are_known_by_their_names(name: str) -> None:
    assert run_loading.load_pipeline(name).name == name


# --- a job that Spark does not run


def progress(batch: int, rows: int = 10, behind: int = 0) -> dict[str, Any]:
    ends, latest = {"clicked": {"0": 40, "1": 2}}, {"clicked": {"0": 40 + behind, "1": 2}}
    return {
        "batchId": batch,
        "timestamp": "2026-11-16T10:00:00.000Z",
        "numInputRows": 3,  # of Spark's rows
        "observedMetrics": {"onceflow": {"records": rows}},
        "durationMs": {"triggerExecution": 1234, **({"addBatch": 1000} if rows else {})},
        "sources": [{"endOffset": json.dumps(ends), "latestOffset": json.dumps(latest)}],
    }


@pytest.mark.parametrize(
    ("end", "latest", "behind"),
    [
        ({"t": {"0": 10, "1": 20}}, {"t": {"0": 10, "1": 50}}, 30),
        ({"t": {"0": 10}}, {"t": {"0": 12, "1": 9}}, 11),  # a partition that is new is read from its beginning
        ({"t": {"0": 10}}, {"t": {"0": 7}, "new": {"0": 3}}, 3),
        (None, {"t": {"0": 12}}, 0),
        ({"t": {"0": 12}}, None, 0),
        (17, 20, 0),  # not Kafka's
    ],
)
def test_run_metrics_and_lag_agree_about_how_far_a_query_is_behind(end: Any, latest: Any, behind: int) -> None:
    for as_told in (lambda value: value, json.dumps):
        told = {**progress(0), "id": "q", "runId": "r"}
        told["sources"] = [{"endOffset": as_told(end), "latestOffset": as_told(latest)}]
        result = BatchResult(app_id="q", batch_id=0, query_id="q")
        assert run_display._facts(told, result, None)["lag"] == behind
        registry = CollectorRegistry()
        QueryMetrics(registry).see(told, lambda _: None)
        assert registry.get_sample_value("onceflow_query_lag_offsets", {"query": "q"}) == behind
        found = lag(told)
        partitions = sum(len(each) for each in latest.values()) if found else 0
        assert round(found.get("avgOffsetsBehindLatest", 0) * partitions) == behind


class Query:
    """A query that does one thing each time somebody looks whether it is active."""

    def __init__(self, *happenings: Callable[[Query], None]) -> None:
        self._happenings = list(happenings)
        self.listener: Any = None
        self.recentProgress: list[dict[str, Any]] = []  # Spark's name
        self.status = {"isTriggerActive": True}
        self.problem: Exception | None = None
        self.is_stopped = False

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802, Spark's name
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def isActive(self) -> bool:  # noqa: N802, Spark's name
        if not self._happenings:
            return False
        self._happenings.pop(0)(self)
        return True

    def exception(self) -> Exception | None:
        return self.problem

    def stop(self) -> None:
        self.is_stopped = True

    def tell(self, number: int) -> None:
        self.listener.on_batch(BatchResult(app_id="a", batch_id=number, query_id="q", rows=20))

    def end_batch(self, number: int, **told: Any) -> None:
        self.tell(number)
        self.recentProgress.append(progress(number, **told))


class Spark:
    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Stage:
    """Takes the place of Spark: keeps what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.query = Query()
        self.spark = Spark()
        self.settings: JobSettings | None = None
        monkeypatch.setattr(run, "_session", lambda *_: self.spark)
        monkeypatch.setattr(jobs, "start", self._start)
        monkeypatch.setattr(jobs, "LOOK_EVERY_S", 0.0)

    def _start(self, pipeline: Any, settings: JobSettings, spark: Any) -> Job:
        self.settings = settings
        [self.query.listener] = settings.sink_options["listeners"]
        return Job(self.query)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[onceflow.Broker]:
    with onceflow.Broker(tmp_path_factory.mktemp("broker"), durability="os") as broker:
        yield broker


def test_missing_topics_are_named_and_created_only_when_that_is_asked_for(
    broker: onceflow.Broker, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--prefix", "m."]
    assert main(command) == 1
    assert "there is no topic 'm.clicked', 'm.views', 'm.clicks_dead_letters'" in (said := complaint(capsys))
    assert "--create-topics creates what is missing" in said
    assert stage.settings is None
    assert main([*command, "--create-topics"]) == 0
    assert "onceflow: created m.clicked, m.views, m.clicks_dead_letters\n" in capsys.readouterr().err
    admin = Admin(ClientSettings(bootstrap=broker.bootstrap))
    assert [len(admin.topic(f"m.{name}").partitions) for name in ("clicked", "views", "clicks_dead_letters")] == [
        3,
        2,
        1,
    ]
    assert main(command) == 0
    assert stage.spark.is_stopped


def test_options_become_the_settings_of_the_job(broker: onceflow.Broker, stage: Stage) -> None:
    command = ["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]
    more = ["--prefix", "eu.", "--trigger", "1 second", "--per-batch", "50", "--starting-offsets", "latest"]
    assert main([*command, *more, "--checkpoint", "here", "--client-config", "client.id=me"]) == 0
    found = stage.settings
    assert found is not None
    assert (found.bootstrap, found.checkpoint, found.prefix, found.app_id) == (
        broker.bootstrap,
        "here",
        "eu.",
        "eu.clicks",
    )
    assert (found.trigger, found.per_batch, found.starting_offsets) == ("1000 milliseconds", 50, "latest")
    assert found.source_options == {"kafka.client.id": "me"}
    assert found.sink_options["kafka"] == {"client.id": "me"}
    assert main([*command, "--app-id", "mine", "--until-now"]) == 0
    assert stage.settings is not None
    assert (stage.settings.app_id, stage.settings.available_now) == ("mine", True)
    assert stage.settings.checkpoint == "onceflow-checkpoints/mine"
    assert stage.settings.per_batch == JobSettings(bootstrap="b", checkpoint="c").per_batch


def test_with_a_database_its_tables_are_there_before_spark_and_lines_say_how_much_has_landed(
    broker: onceflow.Broker, stage: Stage, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def land(query: Query) -> None:
        assert stage.settings is not None
        [listener] = stage.settings.sql_options["listeners"]
        tables = {"l_user_summaries": 4, "l_validated_orders": 1000}
        listener.on_batch(BatchResult(app_id="a", batch_id=0, query_id="q", rows=1004, tables=tables))
        query.end_batch(0)

    command = ["run", "orders", "--bootstrap", broker.bootstrap, "--create-topics", "--prefix", "l."]
    command += ["--sql", "sqlite:///landed.db"]
    stage.query = Query(land)
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out == "batch 0             10 in        20 out     1.23 s   lag 0   landed 1,004\n"
    assert f"onceflow: lands l_validated_orders, l_user_summaries in sqlite:///{folder}/landed.db\n" in err
    with closing(sqlite3.connect(folder / "landed.db")) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"l_validated_orders", "l_user_summaries"}
    stage.query = Query(land)
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["landed"], said["landing_attempts"]) == ({"l_user_summaries": 4, "l_validated_orders": 1000}, 1)


def test_metrics_are_served_from_before_spark_starts_until_the_job_ends(
    broker: onceflow.Broker, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watched: list[Any] = []
    monkeypatch.setattr(MetricsServer, "watch", lambda _, spark: watched.append(spark))
    urls: list[str] = []

    def scrape(_: Query) -> None:
        urls.append(re.findall("metrics at (.*)", capsys.readouterr().err)[0])
        Listeners([]).tell(BatchResult(app_id="a", batch_id=0, query_id="q", rows=20))
        with urlopen(urls[0], timeout=10) as answer:
            assert 'onceflow_microbatch_rows_total{app="a",sink="kafka"} 20.0' in answer.read().decode()

    stage.query = Query(scrape)
    command = ["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]
    assert main([*command, "--metrics", "127.0.0.1:0"]) == 0
    assert watched == [stage.spark]
    with pytest.raises(OSError, match="refused"):
        urlopen(urls[0], timeout=10)


def test_a_port_for_metrics_that_somebody_has_is_one_sentence_and_spark_is_not_started(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        assert main(["run", "clicks_of_a_test:CLICKS", "--metrics", address]) == 2
    assert f"--metrics: cannot serve metrics at {address}: address already in use" in complaint(capsys)
    assert stage.settings is None


def test_a_pipeline_with_state_cannot_begin_where_it_left_off_and_spark_is_not_started(
    broker: onceflow.Broker, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]
    assert main([*command, "--starting-offsets", "committed"]) == 2
    assert "'clicks' keeps state, and that is in its checkpoint" in capsys.readouterr().err
    assert stage.settings is None


def test_without_an_address_there_is_a_broker_beside_the_checkpoint_and_its_address_is_said(
    stage: Stage, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "clicks_of_a_test:CLICKS", "--checkpoint", "kept/clicks"]) == 0
    assert stage.settings is not None
    said = capsys.readouterr().err
    assert f"onceflow produce clicked --bootstrap {stage.settings.bootstrap}\n" in said
    assert (folder / "kept" / "clicks-broker" / "clicked-0").is_dir()
    with pytest.raises(OnceflowError, match="cannot reach"):
        ClientSettings(bootstrap=stage.settings.bootstrap).knock()


def test_each_micro_batch_is_a_line_and_idle_triggers_are_none(
    broker: onceflow.Broker, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    def two_at_once(query: Query) -> None:
        query.end_batch(1, rows=5000, behind=7)
        query.end_batch(2)

    stage.query = Query(
        lambda query: query.end_batch(0),
        lambda query: query.recentProgress.append(progress(1, rows=0)),  # there was nothing to do
        lambda query: query.tell(1),  # committed, and Spark has not said so yet
        two_at_once,
    )
    command = ["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]
    assert main(command) == 0
    assert capsys.readouterr().out == (
        "batch 0             10 in        20 out     1.23 s   lag 0\n"
        "batch 1          5,000 in        20 out     1.23 s   lag 7\n"
        "batch 2             10 in        20 out     1.23 s   lag 0\n"
    )
    stage.query = Query(lambda query: query.end_batch(0, behind=3))
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "batch": 0,
        "at": "2026-11-16T10:00:00.000Z",
        "in": 10,
        "out": 20,
        "seconds": 1.234,
        "lag": 3,
        "attempts": 1,
        "skipped": False,
    }


def test_what_the_sink_had_done_before_and_what_took_several_attempts_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, query = BatchLines(as_json=False), Query()
    lines.on_batch(BatchResult(app_id="a", batch_id=0, query_id="q", skipped=True))
    lines.on_batch(BatchResult(app_id="a", batch_id=1, query_id="q", attempts=3))
    query.recentProgress = [progress(0), progress(1)]
    lines.show(query)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("(was committed before)")
    assert second.endswith("(attempt 3)")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_waits_for_the_micro_batch_and_the_exit_code_is_0(
    number: signal.Signals, broker: onceflow.Broker, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = []
    stage.query = Query(
        lambda _: os.kill(os.getpid(), number),
        lambda _: looked.append("the micro-batch runs"),
        lambda query: query.end_batch(0),
        lambda _: looked.append("too late"),
    )
    assert main(["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]) == 0
    assert looked == ["the micro-batch runs"]
    out, err = capsys.readouterr()
    assert out.startswith("batch 0 ")
    assert "ending after this micro-batch" in err
    assert stage.query.is_stopped
    assert stage.spark.is_stopped


def test_asked_to_end_between_micro_batches_it_ends_at_once(broker: onceflow.Broker, stage: Stage) -> None:
    def ask(query: Query) -> None:
        query.status = {"isTriggerActive": False}
        os.kill(os.getpid(), signal.SIGTERM)

    stage.query = Query(ask, lambda _: pytest.fail("it looked again"))
    assert main(["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]) == 0
    assert stage.query.is_stopped


def test_asked_twice_it_does_not_wait(broker: onceflow.Broker, stage: Stage) -> None:
    ask: Callable[[Query], None] = lambda _: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    stage.query = Query(ask, ask, lambda _: pytest.fail("it looked again"))
    before = signal.getsignal(signal.SIGTERM)
    assert main(["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]) == 0
    assert stage.query.is_stopped
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_a_query_failed_with_is_one_sentence_and_exit_code_1(
    broker: onceflow.Broker, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.errors import StreamingQueryException

    stage.query.problem = StreamingQueryException(FENCED)
    command = ["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        "onceflow: TakenOver: another driver runs as 'clicks'. Nothing was written "
        "(Spark's log: onceflow-checkpoints/clicks-spark.log)"
    )
    assert "Traceback" not in err


@pytest.mark.parametrize(("checkpoint", "reason"), [("file/x/y", "Not a directory"), ("x" * 300, "File name too long")])
def test_a_checkpoint_beside_which_nothing_can_be_written_is_one_sentence_and_spark_is_not_started(
    checkpoint: str,
    reason: str,
    broker: onceflow.Broker,
    stage: Stage,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "file").touch()
    command = ["run", "clicks_of_a_test:CLICKS", "--bootstrap", broker.bootstrap, "--create-topics"]
    assert main([*command, "--checkpoint", checkpoint]) == 2
    assert f"{reason}. Choose" in (said := capsys.readouterr().err)
    assert "with --checkpoint" in said
    assert stage.settings is None


# --- what Spark says

FENCED = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was raised by the Python Proxy. \
Return Message: Traceback (most recent call last):
  File "site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
onceflow.client.shared_transaction.Fenced: PRODUCER_FENCED

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "onceflow/spark/sink.py", line 91, in __call__
onceflow.spark.problems.TakenOver: another driver runs as 'clicks'. Nothing was written

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
SQLSTATE: XXKST"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FENCED, "TakenOver: another driver runs as 'clicks'. Nothing was written"),
        ("Traceback:\n  File x\nValueError: no such page\n\tat org.apache", "ValueError: no such page"),
        ("\n[PATH_NOT_FOUND] Path does not exist: x.\nand more", "[PATH_NOT_FOUND] Path does not exist: x."),
        (
            "An error occurred while calling o1.create.\n: java.io.IOException: mkdir of /dev/null/x failed\n\tat org",
            "IOException: mkdir of /dev/null/x failed",
        ),
        ("", "Spark gave no reason"),
    ],
)
def test_the_reason_is_found_in_what_spark_says(text: str, reason: str) -> None:
    assert reason_in(text) == reason


def test_spark_that_does_not_start_says_what_it_needs_and_where_its_log_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("...\nUnable to locate a Java Runtime.\n")
    with pytest.raises(OnceflowError) as failed, spark_started(log):
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    assert str(failed.value) == (
        f"Spark could not be started, it needs Java 17 or newer: Unable to locate a Java Runtime. (Spark's log: {log})"
    )


def test_what_processes_print_goes_to_the_log_and_only_theirs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    print("before")
    with output_to(log):
        os.system("echo noise; echo more noise >&2")
    print("after")
    out, err = capfd.readouterr()
    assert (out, err) == ("before\nafter\n", "")
    assert log.read_text() == "noise\nmore noise\n"

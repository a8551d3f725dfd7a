"""`onceflow demo` without a run: mistakes, what a run is asked for, what is said at its end, and its exit codes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow import extras
from onceflow.cli import main
from onceflow.cli.demo_display import DemoDisplay, demo_display
from onceflow.errors import ConfigError
from onceflow.verify import runner
from onceflow.verify.brokers import ControlledBrokers, EmbeddedBrokers, GivenBrokers
from onceflow.verify.history import History
from onceflow.verify.runner import Display, RunSettings, Silent
from onceflow.verify.verdict import Anomaly, Verdict
from onceflow.verify.workloads import spark
from tests.unit.verify.sample_run import SampleRun

COMPARED = {
    "exact": True,
    "records": 40_000,
    "batches": 31,
    "topics": {
        "validated_orders": {
            "expected": 1234, "found": 1233, "missing": 1, "twice": 0, "wrong": 0, "unexpected": 0,
        },
    },
    "state": {"expected": 7, "found": 7, "missing": 0, "twice": 0, "wrong": 0, "unexpected": 0},
    "looks": {"equal": 900, "between": 4},
    "reads": 55,
}  # fmt: skip


class Runner:
    """Takes the place of a run."""

    def __init__(self) -> None:
        self.asked: list[RunSettings] = []
        self.found: dict[str, Any] = {"anomalies": (), "problems": ()}
        self.compared: dict[str, Any] | None = COMPARED

    def __call__(self, settings: RunSettings, display: Display) -> tuple[Verdict, History]:
        self.asked.append(settings)
        (settings.folder / "broker").mkdir(parents=True, exist_ok=True)
        (settings.folder / "checkpoint").mkdir()
        if self.compared is not None:
            (settings.folder / "comparison.json").write_text(json.dumps(self.compared))
        sample = SampleRun(rounds=30)
        verdict = sample.verdict(**self.found)
        verdict.workload, verdict.seed = settings.workload, settings.seed
        return verdict, sample.history()

    @property
    def only(self) -> RunSettings:
        [settings] = self.asked
        return settings


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark, "require_spark", lambda: None)
    monkeypatch.setenv("ONCEFLOW_SQL", "")  # what a run sets is forgotten afterwards
    fake = Runner()
    monkeypatch.setattr(runner, "run", fake)
    return fake


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which pipeline? There is orders, viewing, pricing"),
        (["ordres"], "there is no pipeline 'ordres'; did you mean 'orders'?"),
        (["x"], "there is no pipeline 'x'; there is orders, viewing, pricing"),
        (["orders", "--records", "0"], "'0' is not a whole number from 1 up"),
        (["orders", "--rate", "0"], "'0' is not a whole number from 1 up"),
        (["orders", "--faults", "-1"], "--faults"),
        (["orders", "--trigger", "soon"], "'soon' is not a time such as 100ms"),
        (["orders", "--control", "./x"], "--control needs --bootstrap"),
        (["orders", "--report", "."], "--report . is not an empty folder"),
        (["orders", "--checkpoint", "file"], "--checkpoint file is not an empty folder"),
        (["orders", "--report", "file/below"], "cannot be used: Not a directory. Choose one with --report"),
        (["orders", "--report", "x" * 300], "cannot be used: File name too long. Choose one with --report"),
        (["orders", "--checkpoint", "x" * 300], "cannot be used: File name too long. Choose one with --checkpoint"),
        (["orders", "--sql", "mysql://me:secret@host/shop"], "--sql: url= is no address of a database that is known"),
        (["orders", "--sql", "env"], "--sql env: $ONCEFLOW_SQL is not set to the address of a database"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_started(
    arguments: list[str], words: str, run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert run.asked == []


def test_a_kafka_that_cannot_be_reached_is_said_before_anything_is_started(
    run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "orders", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "cannot reach a broker at 127.0.0.1:1" in capsys.readouterr().err
    assert run.asked == []


def test_a_database_that_cannot_be_reached_is_said_before_anything_is_started(
    run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "orders", "--sql", "postgresql://me:secret@127.0.0.1:1/shop"]) == 1
    assert "postgresql://me@127.0.0.1:1/shop" in (said := capsys.readouterr().err)
    assert "secret" not in said
    assert run.asked == []


@pytest.mark.parametrize(
    ("given", "variable", "url", "kept"),
    [
        ("sqlite", "", "sqlite:///{folder}/landed.db", True),
        ("sqlite:///mine.db", "", "sqlite:///mine.db", False),
        ("env", "sqlite:///its.db", "sqlite:///its.db", False),
    ],
)
def test_a_database_reaches_those_who_need_it_by_the_environment(
    given: str, variable: str, url: str, kept: bool, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_SQL", variable)
    assert main(["demo", "orders", "--sql", given]) == 0
    assert os.environ["ONCEFLOW_SQL"] == url.format(folder=run.only.folder)
    assert run.only.options["sql"] == "yes"
    assert ("keep_tables" in run.only.options) == kept
    assert not any("sqlite:" in each for each in run.only.options.values())


def test_the_tables_of_a_database_are_in_the_table_and_a_password_is_in_no_command(
    run: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = {"expected": 944, "found": 944, "missing": 0, "twice": 0, "wrong": 0, "unexpected": 0}
    run.compared = {**COMPARED, "tables": {"user_summaries": tally}, "queries": {"whole": 80, "torn": 1}}
    monkeypatch.setattr("onceflow.pipelines.landing.knock", lambda *_: None)
    assert main(["demo", "orders", "--sql", "postgresql://me:secret@host/shop"]) == 0
    out = capsys.readouterr().out
    row = next(line.split() for line in out.splitlines() if line.startswith("table"))
    assert row == ["table", "user_summaries", "944", "944", "0", "0", "0", "0"]
    assert "Of 81 looks at all tables at once, 80 found whole micro-batches." in out
    assert "--sql postgresql://me@host/shop" in out
    assert "secret" not in out
    assert "secret" not in Path(run.only.folder / "report.html").read_text()


def test_a_missing_spark_is_said_before_anything_is_started(
    run: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise ConfigError("needs pyspark")

    monkeypatch.setattr(spark, "require_spark", missing)
    assert main(["demo", "orders"]) == 2
    assert "needs pyspark" in capsys.readouterr().err
    assert run.asked == []


def test_without_options_our_broker_is_struck_a_few_times(run: Runner) -> None:
    assert main(["demo", "orders"]) == 0
    assert run.only.workload == "orders"
    assert isinstance(run.only.brokers, EmbeddedBrokers)
    assert run.only.faults == 6
    assert run.only.options == {"records": "40000", "faults": "6"}
    assert run.only.folder == Path("onceflow-demo").absolute() / f"orders-{run.only.seed}"


def test_options_reach_the_run(run: Runner) -> None:
    words = "--records 5 --rate 7 --faults 20 --seed 3 --trigger 1s --checkpoint c --report r --executors"
    assert main(["demo", "pricing", *words.split()]) == 0
    assert (run.only.seed, run.only.faults, run.only.folder) == (3, 20, Path("r").absolute())
    assert run.only.options == {
        "records": "5",
        "rate": "7",
        "faults": "20",
        "trigger": "1000 milliseconds",
        "checkpoint": str(Path("c").absolute()),
        "master": spark.MASTER,
    }


@pytest.mark.parametrize(("more", "kind"), [([], GivenBrokers), (["--control", "./x"], ControlledBrokers)])
def test_a_kafka_of_the_users_is_used_if_it_is_named(
    more: list[str], kind: type, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceflow.client.settings.ClientSettings.knock", lambda _: None)
    assert main(["demo", "orders", "--bootstrap", "kafka:9092", *more]) == 0
    assert type(run.only.brokers) is kind


# --- the end


def test_the_table_and_the_verdict_are_printed(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "orders", "--seed", "4", "--trigger", "500ms"]) == 0
    out = capsys.readouterr().out
    row = next(line.split() for line in out.splitlines() if line.startswith("validated_orders"))
    assert row == ["validated_orders", "1,234", "1,233", "1", "0", "0", "0"]
    assert "40,000 records in 31 micro-batches. Of 904 looks at all outputs at once, 900 found" in out
    assert "EXACT under" in out
    assert "again   onceflow demo orders --records 40000 --faults 6 --seed 4 --trigger 500ms" in out


def test_what_was_right_leaves_a_report_and_nothing_bulky(run: Runner) -> None:
    main(["demo", "orders"])
    assert (run.only.folder / "report.html").exists()
    assert not (run.only.folder / "broker").exists()
    assert not (run.only.folder / "checkpoint").exists()


FOUND: list[tuple[dict[str, Any], str]] = [
    ({"anomalies": [Anomaly(name="missing", sentence="x is missing.")], "problems": ()}, "NOT EXACT under"),
    ({"anomalies": (), "problems": ["it hangs"]}, "NOT PROVEN under"),
]


@pytest.mark.parametrize(("found", "words"), FOUND)
def test_what_differs_is_said_and_everything_is_kept(
    found: dict[str, Any], words: str, run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    run.found = found
    assert main(["demo", "orders"]) == 1
    out = capsys.readouterr().out
    assert words in out
    assert "EXACT under" not in out.replace("NOT EXACT under", "")
    assert any(each in out for each in ("- missing: x is missing.", "- it hangs"))
    assert (run.only.folder / "broker").exists()
    assert (run.only.folder / "checkpoint").exists()


def test_a_run_that_was_not_compared_has_no_table(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    run.found, run.compared = {"anomalies": (), "problems": ["it hangs"]}, None
    assert main(["demo", "orders"]) == 1
    assert "expected" not in capsys.readouterr().out


def test_json_is_one_object_and_nothing_else(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "orders", "--json", "--seed", "4"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert found["exact"] is True
    assert (found["pipeline"], found["seed"], found["records"], found["batches"]) == ("orders", 4, 40_000, 31)
    assert found["topics"] == COMPARED["topics"]
    assert found["faults"]


# --- while it runs


class Heard(Silent):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)


def tell(display: Display) -> None:
    counts = {"records in": 1000, "batches": 2}
    display.progress(faults_done=1, faults_planned=6, elapsed_s=1.0, planned_s=None, counts=counts)


@pytest.mark.parametrize(
    ("every_s", "said"), [(0.0, ["faults", "faults: 1,000 records in, 2 batches"]), (60.0, ["faults"])]
)
def test_records_and_batches_are_shown_along_with_what_goes_on(every_s: float, said: list[str]) -> None:
    heard = Heard()
    display = DemoDisplay(heard, every_s=every_s)
    display.stage("faults")
    tell(display)
    assert heard.stages == said


def test_a_log_gets_a_line_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    make: Callable[..., Any] = demo_display
    with make(is_silent=False, title="orders", stream=out) as display:
        display.stage("starting")
    assert out.getvalue().splitlines()[0] == "orders"
    assert out.getvalue().splitlines()[1].endswith("starting")


def test_without_the_spark_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = extras._is_there
    monkeypatch.setattr(extras, "_is_there", lambda module: module != "orjson" and found(module))
    spark.require_spark.cache_clear()
    try:
        assert main(["demo", "orders", "--records", "10"]) == 2
    finally:
        spark.require_spark.cache_clear()
    assert "needs orjson, which is not installed: pip install 'onceflow[spark]'" in capsys.readouterr().err

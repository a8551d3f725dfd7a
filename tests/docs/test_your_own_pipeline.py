"""The guide to a pipeline of one's own: its code runs, does what the page says, and is as short as the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import onceflow
from onceflow.pipelines import Pipeline, Record
from onceflow.pipelines.conversion import Conversion
from onceflow.pipelines.job import JobSettings
from onceflow.pipelines.landing import check_database
from onceflow.pipelines.parsing import Parser, Unfit
from onceflow.pipelines.tables import fields_of
from tests.support.spark_jvm import environment, write_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-own-pipeline.md").read_text()
SHARED = (ROOT / "docs" / "pipelines" / "README.md").read_text()
RUN_S = 200
LINES_MAX = 30


def section(title: str, page: str = PAGE) -> str:
    """From its heading to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def blocks(title: str, language: str = "python") -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section(title), flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a reader has written the files of the guide."""
    names = ("fraud", "test_fraud", "check_fraud", "verified", "large", "landing")
    check, verified = blocks("Prove it")
    for name, text in {
        "fraud": blocks("Thirty lines")[0],
        "test_fraud": blocks("Test a step")[0],
        "check_fraud": check,
        "verified": verified,
        "large": blocks("The same in plain Spark")[0],
        "landing": blocks("Into a database")[0],
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


def imported(name: str) -> Any:
    import importlib

    return importlib.import_module(name)


def test_the_pipeline_is_as_short_as_the_page_says() -> None:
    [code] = blocks("Thirty lines")
    assert len([line for line in code.splitlines() if line.strip()]) <= LINES_MAX


def test_what_it_lands_fits_what_it_sends_and_becomes_a_table(folder: Path) -> None:
    pipeline: Pipeline = imported("landing").LANDING
    settings = JobSettings(bootstrap="unused", checkpoint="unused", sql=f"sqlite:///{folder}/fraud.db")
    check_database(pipeline, settings)
    [lands] = pipeline.lands
    sent = imported("fraud").Payment("p-1", "c-1", 500, 1_767_603_599_820)._asdict() | {"in_a_minute": 4}
    converted = Conversion("held_payments", "held_payments", tuple(fields_of(lands)))
    [row] = converted.convert([json.dumps(sent).encode()]).to_pylist()
    assert row["at"].isoformat() == "2026-01-05T08:59:59.820000+00:00"
    assert {**row, "at": sent["at"], "in_a_minute": 4} == sent


def test_its_unit_test_passes_and_needs_neither_spark_nor_kafka(folder: Path) -> None:
    without_spark = {**os.environ, "JAVA_HOME": "/nowhere", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_fraud.py"]
    done = subprocess.run(
        command, cwd=folder, env=without_spark, capture_output=True, text=True, timeout=60, check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_second_step_adds_up_what_it_is_handed(folder: Path) -> None:
    [code] = blocks("A second step")
    names: dict[str, Any] = dict(vars(imported("fraud")))
    exec(compile(code, "docs/your-own-pipeline.md, A second step", "exec"), names)
    passed, step = names["Passed"], names["SECOND"]
    state: dict[str, Any] = {}
    assert [each.value for each in step.run(state, [passed("a", 1), passed("a", 2), passed("b", 5)])] == [
        {"shop": "a", "cents": 3},
        {"shop": "b", "cents": 5},
    ]
    assert [each.value["cents"] for each in step.run(state, [passed("a", 10)])] == [13]
    fraud = names["FRAUD"]
    chained = Pipeline(
        name="fraud", inputs=fraud.inputs, steps=[*fraud.steps, step], outputs={**fraud.outputs, "takings": 1}
    )
    assert len(chained.steps) == 2


def test_the_pipeline_for_verify_takes_what_verify_sends_and_keeps_every_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_INPUT", "in")
    monkeypatch.setenv("ONCEFLOW_OUTPUT", "out")
    pipeline = imported("verified").VERIFIED
    [source], [step] = pipeline.inputs, pipeline.steps
    event = Parser(source.schema)(b'{"id": "producer-1.1-7", "key": "k3"}')
    [sent] = step.run({}, [Record(0, "in", 0, 0, event)])
    assert (source.topic, sent) == ("in", ("out", "k3", {"id": "producer-1.1-7", "number": 1}))


def test_the_program_for_a_cluster_names_what_there_is() -> None:
    [code] = blocks("On a cluster")
    assert {"start", "JobSettings", "session", "await_end"} <= set(compile(code, "submit_fraud.py", "exec").co_names)


# --- with Spark


class Reader:
    """Somebody who follows the guide at a prompt."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        settings = write_settings(folder / "spark", {"spark.master": "local[2]"})
        self._environment = {**environment(folder, settings), "ONCEFLOW_BOOTSTRAP": bootstrap}
        self._environment["PYTHONPATH"] = ""  # the module is found because it is in the current folder

    def command(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "onceflow", *words],
            cwd=self._folder,
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout


def without_times(text: str) -> list[str]:
    return re.sub(r'"timestamp":\d+', '"timestamp":0', text).splitlines()


@pytest.mark.faults  # two minutes; the code of the page is of every day
@pytest.mark.timeout(500)
def test_the_commands_do_what_the_page_shows_and_the_check_finds_nothing_wrong(folder: Path) -> None:
    [payments] = blocks("Run it", "json")
    [_, shown] = blocks("Run it", "")
    with onceflow.Broker(folder / "broker") as broker:
        reader = Reader(folder, broker.bootstrap)
        for topic, count in imported("fraud").FRAUD.topics().items():
            reader.command("topics", "create", topic, "--partitions", str(count))
        reader.command("produce", "payments", "--partition", "0", stdin=payments)
        [line] = reader.command("run", "fraud:FRAUD", "--until-now", "--json").splitlines()
        told = json.loads(line)
        assert (told["batch"], told["in"], told["out"], told["lag"]) == (0, 7, 7, 0)
        seen = reader.command("consume", "held_payments", "--headers", "--keys")
        seen += reader.command("consume", "fraud_dead_letters")
        assert sorted(without_times(seen)) == sorted(without_times(shown)), "dead letters come in any order"

        check = imported("check_fraud").check
        assert check(broker.bootstrap)
        _pay_again(broker.bootstrap)
        assert not check(broker.bootstrap), "what is not there yet is missed"
        assert reader.command("run", "fraud:FRAUD", "--until-now").startswith("batch 1 ")
        assert check(broker.bootstrap)

        [line] = reader.command("run", "large:LARGE", "--create-topics", "--until-now", "--json").splitlines()
        assert json.loads(line)["out"] == 4
        large = map(json.loads, reader.command("consume", "large_payments").splitlines())
        assert sorted(each["id"] for each in large) == ["p-3", "p-4"]
        assert len(reader.command("consume", "large_dead_letters").splitlines()) == 2


def _pay_again(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for number in range(200):
        card = f"card-{number % 9}"
        payment = {"id": f"more-{number}", "card": card, "cents": number % 50, "at": 1_800_000_000_000 + number * 2000}
        producer.produce("payments", json.dumps(payment), key=card)
    assert producer.flush(30) == 0


# --- the pages themselves


def anchor(title: str) -> str:
    """As GitHub makes it."""
    return "#" + re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [PAGE, SHARED], ids=["your-own-pipeline", "pipelines"])
def test_links_within_a_page_lead_somewhere_and_all_sections_are_listed(page: str) -> None:
    anchors = {anchor(title) for title in re.findall(r"^## (.*)$", page, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\((#[^)]+)\)", page)) <= anchors
    assert len(re.findall(r"^- \[.*\]\((#.*)\)$", page, flags=re.MULTILINE)) == len(anchors)


@pytest.mark.parametrize("page", ["your-own-pipeline.md", "pipelines/README.md"])
def test_links_to_other_pages_lead_to_their_sections(page: str) -> None:
    path = ROOT / "docs" / page
    for target, part in re.findall(r"\]\(([\w./-]+)(#[\w-]+)?\)", path.read_text()):
        other = path.parent / target
        assert other.is_file(), target
        if part:
            assert part in {anchor(title) for title in re.findall(r"^## (.*)$", other.read_text(), flags=re.MULTILINE)}


def test_every_reason_of_the_parser_is_told_as_it_is_given() -> None:
    from typing import NamedTuple

    class Bought(NamedTuple):
        user: str
        quantity: int

    told = section("Dead letters", SHARED)
    raws = [
        None,
        b"\xff",
        b"{",
        b"[1]",
        b"{}",
        b'{"user": 7, "quantity": 1}',
        b'{"user": "a", "quantity": 9223372036854775808}',
    ]
    for raw in raws:
        with pytest.raises(Unfit) as unfit:
            Parser(Bought)(raw)
        assert f"`{unfit.value}`" in told

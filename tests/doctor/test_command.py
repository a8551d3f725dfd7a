"""The command on files: what it shows, its exit codes, and what it never shows."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import onceflow.doctor
from onceflow.cli import main
from onceflow.doctor.display import print_report

DOCS = Path(__file__).parents[2] / "docs"
README = (DOCS.parent / "README.md").read_text()
GOOD = {
    "producer.properties": "key.serializer=x\ntransactional.id=billing-0\nbootstrap.servers=kafka:9092\n",
    "consumer.json": '{"group.id": "billing", "enable.auto.commit": false, "auto.offset.reset": "none", '
    '"enable.auto.offset.store": false}',
    "job.py": """
import onceflow.spark
spark = onceflow.spark.session("invoices")
rows = spark.readStream.format("onceflow").option("subscribe", "orders").option("startingOffsets", "earliest").load()
sink = onceflow.spark.KafkaSink(app_id="invoices", bootstrap_servers="kafka:9092", topic="invoices")
rows.writeStream.foreachBatch(sink).option("checkpointLocation", "s3://checkpoints/invoices").start()
""",
}
BAD = "acks=1\nsasl.jaas.config=Login required password=hunter2;\nsasl.password=hunter2\nacsk=hunter2\n"


class Shown:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in a folder with good files and a bad one."""
    for name, text in {**GOOD, "bad.properties": BAD}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Shown:
        code = main(["doctor", *arguments])
        return Shown(code, *capsys.readouterr())

    return call


def test_good_files_are_fit_and_quiet(run: Any) -> None:
    shown = run("--client", "producer.properties", "--client", "consumer.json", "--spark", "job.py")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[-1] == "Fit for exactly-once."
    assert re.findall(r"^  (\w+)", shown.out, re.MULTILINE) == ["ok"] * 4, "a line for each file, and one for all"


def test_a_fault_has_verdict_reason_and_fix(run: Any) -> None:
    shown = run("--client", "bad.properties")
    assert shown.code == 1
    assert "  FAULT    acks: acks=1\n" in shown.out
    assert "\n           fix: acks=all\n" in shown.out
    assert shown.out.splitlines()[-1] == "Not fit for exactly-once: 2 faults, 2 warnings."


@pytest.mark.parametrize("form", [["--verbose"], ["--json"], []])
def test_secrets_are_never_shown(run: Any, form: list[str]) -> None:
    shown = run("--client", "bad.properties", *form)
    assert "acsk" in shown.out
    assert "hunter2" not in shown.out + shown.err


def test_verbose_names_what_is_well(run: Any) -> None:
    shown = run("--client", "producer.properties", "--verbose")
    assert "  ok       max.in.flight.requests.per.connection\n" in shown.out


def test_two_files_with_one_transactional_id_are_a_fault(run: Any, tmp_path: Path) -> None:
    (tmp_path / "second.properties").write_text(GOOD["producer.properties"])
    shown = run("--client", "producer.properties", "--client", "second.properties")
    assert shown.code == 1
    assert "billing-0 is used by producer.properties, second.properties: they fence each other" in shown.out


def test_warnings_count_if_strict(run: Any, tmp_path: Path) -> None:
    (tmp_path / "warned.properties").write_text(GOOD["producer.properties"] + "transaction.timeout.ms=9000\n")
    shown = run("--client", "warned.properties")
    assert (shown.code, shown.out.splitlines()[-1]) == (0, "Fit for exactly-once: 1 warning.")
    shown = run("--client", "warned.properties", "--strict")
    assert (shown.code, shown.out.splitlines()[-1]) == (1, "Not fit for exactly-once: 1 warning.")


def test_processing_time_is_compared_with_timeouts(run: Any) -> None:
    shown = run("--client", "producer.properties", "--processing-time", "2m")
    assert shown.code == 1
    assert "transaction.timeout.ms=60000, and a transaction takes up to 120000 ms" in shown.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--client", "missing"), "cannot read missing"),
        (("--client", "producer.properties", "--topic", "a"), "give --bootstrap as well"),
        (("--spark", "job.py", "--role", "producer"), "give --client as well"),
        (("--bootstrap", "nonsense:port"), "nonsense:port"),
        (("--processing-time", "soon"), "not a duration"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_two(run: Any, arguments: tuple[str, ...], words: str) -> None:
    shown = run(*arguments)
    assert (shown.code, shown.out) == (2, "")
    assert words in shown.err
    assert shown.err.count("\n") == 1


def test_the_examples_of_the_guide_do_what_it_says(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (DOCS / "doctor.md").read_text()
    (tmp_path / "producer.properties").write_text("acks=1\nkey.serializer=x\n")
    [output] = re.findall(r"```\n(producer.properties.*?)```", guide, re.DOTALL)
    assert run("--client", "producer.properties").out == output

    [settings] = re.findall(r"```json\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "job.json").write_text(settings)
    assert run("--spark", "job.json", "--strict").out.splitlines()[-1] == "Fit for exactly-once."

    [program] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "billing.py").write_text(GOOD["job.py"])
    with onceflow.Broker(data_dir=None) as broker:
        exec(program.replace("kafka:9092", broker.bootstrap), {})
    assert capsys.readouterr().out == "producer.properties (producer)\n  producer.acks\n  acks=1\n  acks=all\n"


def test_the_readme_shows_what_doctor_says(run: Any, tmp_path: Path) -> None:
    (tmp_path / "producer.properties").write_text("acks=1\nkey.serializer=x\n")
    [shown] = re.findall(r"\$ onceflow doctor --client producer.properties\n(.*?)  \.\.\.\n", README, re.DOTALL)
    assert run("--client", "producer.properties").out.startswith(shown)


def test_a_running_session_can_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    conf = SimpleNamespace(getAll=lambda: [("spark.speculation", "true"), ("spark.master", "yarn")])
    session = SimpleNamespace(version="3.5.1", sparkContext=SimpleNamespace(appName="billing", getConf=lambda: conf))
    report = onceflow.doctor.check_spark(session, options={"sink.format": "kafka", "checkpointLocation": "s3://c"})
    wrong = {line.check for line in report.lines if line.verdict in ("fault", "warning")}
    assert wrong == {"spark.speculation", "spark.version", "spark.sink"}
    print_report(report)
    assert capsys.readouterr().out.startswith("billing (Spark)\n  FAULT    ")

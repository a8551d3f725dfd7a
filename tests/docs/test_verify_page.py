"""The guide to `onceflow verify`: its tables are those of the code, its snippets run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

import onceflow
from onceflow.cli import main
from onceflow.cli.verify_options import WORKLOADS
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.verify import report
from onceflow.verify.nemesis import DISK, JOB, NETWORK, PROCESS
from onceflow.verify.stage import Workload
from tests.support.readers import committed
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verify.md").read_text()
RECORDS = 60


def section(title: str) -> str:
    """From its heading to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def blocks(title: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section(title), flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def test_the_anomalies_are_those_of_the_code() -> None:
    assert dict(rows("Anomalies")) == report.definitions()


def test_the_faults_are_those_of_the_code() -> None:
    groups = {"processes": PROCESS, "the network": NETWORK, "our broker's disk": DISK, "the Spark job": JOB}
    assert rows("Faults") == [[kind, of, words] for of, kinds in groups.items() for kind, words in kinds.items()]


def test_the_workloads_are_those_of_the_command() -> None:
    assert [name.strip("`") for name, _ in rows("Workloads")] == list(WORKLOADS)


def test_every_section_is_in_the_list_and_every_picture_is_there() -> None:
    titles = re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    listed = re.findall(r"^- \[(.*)\]\(#(.*)\)$", PAGE, flags=re.MULTILINE)
    assert [title for title, _ in listed] == titles
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) == anchors
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", PAGE):
        assert (ROOT / "docs" / picture).exists()


def test_every_command_line_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the options go: with the flag that only lists faults, nothing is started."""
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^onceflow verify (?:.*\\\n)*.*$", PAGE, flags=re.MULTILINE)
    assert len(lines) == 9
    for line in lines:
        words = shlex.split(line.replace("\\\n", " "))
        assert main([*words[1:], "--list-faults"]) == 0, line


def test_the_control_script_does_what_it_says(tmp_path: Path) -> None:
    [script] = [each for each in blocks("A cluster of yours", "sh") if each.startswith("#!")]
    (tmp_path / "control.sh").write_text(script)
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$@"\n')
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = {}
    for verb in ("kill", "stop", "start", "pause", "resume"):
        command = [shutil.which("sh") or "sh", str(tmp_path / "control.sh"), verb, "2"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said[verb] = done.stdout.strip()
    assert said == {
        "kill": "kill kafka-2",
        "stop": "stop kafka-2",
        "start": "start kafka-2",
        "pause": "pause kafka-2",
        "resume": "unpause kafka-2",
    }


def test_the_pipeline_copies_everything_once_although_it_is_killed(tmp_path: Path) -> None:
    [job] = blocks("A pipeline of yours", "python")
    (tmp_path / "my_job.py").write_text(job)
    with onceflow.Broker(tmp_path / "data") as broker:
        admin = Admin(ClientSettings(bootstrap=broker.bootstrap))
        for topic in ("in", "out"):
            admin.create(topic, partitions=2, replication_factor=1)
        for last in (RECORDS // 2, RECORDS):
            fill(broker.bootstrap, range(last - RECORDS // 2, last))
            process = subprocess.Popen(
                [sys.executable, "my_job.py"], cwd=tmp_path, env=environment(broker.bootstrap, tmp_path)
            )
            try:
                eventually(partial(has_copied, broker.bootstrap, last), "the records are copied", timeout_s=60)
            finally:
                process.kill()
                process.wait()
        assert sorted(copied(broker.bootstrap)) == sorted(f"id-{number}" for number in range(RECORDS))


def fill(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce("in", key=str(number), value=json.dumps({"id": f"id-{number}", "key": "k"}))
    assert producer.flush(30) == 0


def environment(bootstrap: str, folder: Path) -> dict[str, str]:
    names = {"BOOTSTRAP": bootstrap, "INPUT": "in", "OUTPUT": "out", "INSTANCE": "1", "FOLDER": str(folder)}
    assert [f"ONCEFLOW_{name}" in PAGE for name in names] == [True] * len(names)
    return {**os.environ, **{f"ONCEFLOW_{name}": value for name, value in names.items()}}


def has_copied(bootstrap: str, number: int) -> bool:
    return len(copied(bootstrap)) >= number


def copied(bootstrap: str) -> list[str]:
    return [json.loads(each.value)["id"] for each in committed(bootstrap, "out")]


def test_the_workload_has_everything_that_a_workload_needs() -> None:
    workload, writer = blocks("A workload of your own", "python")
    names: dict[str, object] = {}
    exec(workload, names)
    offered = set(dir(names["Orders"]))
    assert {each for each in (*vars(Workload), *Workload.__annotations__) if not each.startswith("_")} <= offered
    compile(writer, "my_writer.py", "exec")

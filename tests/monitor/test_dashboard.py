"""`onceflow dashboard`: the page of a cluster that is asked over the network."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow.cli import main
from tests.support.raw import Wire
from tests.support.raw_transactions import V2, TransactionalProducer
from tests.support.waiting import eventually


class Dashboard:
    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "onceflow", "dashboard", "--http", "127.0.0.1:0", "--every", "200ms", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        self.url = self.said.rpartition(" ")[2]

    def state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/state.json", timeout=15) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def scrape(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=15) as answer:
            text: str = answer.read().decode()
        return text

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, complaints = self.process.communicate(timeout=30)
        return self.process.returncode, complaints


@contextmanager
def dashboard(*options: str) -> Iterator[Dashboard]:
    running = Dashboard(*options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate()


def test_it_shows_a_cluster_says_when_that_is_away_and_finds_it_again(tmp_path: Path) -> None:
    with onceflow.Broker(tmp_path, durability="os") as broker, dashboard("--bootstrap", broker.bootstrap) as shown:
        assert re.fullmatch(rf"onceflow dashboard of {broker.bootstrap} on http://127\.0\.0\.1:\d+", shown.said)
        with Wire(broker.bootstrap) as wire:
            wire.create_topic("orders")
            producer = TransactionalProducer(wire, "orders-1", V2).init()
            producer.write("orders", "a")
            eventually(lambda: shown.state().get("transactions", {}).get("states") == {"Ongoing": 1}, "it is open")
            assert re.search(r"^onceflow_open_transactions 1(\.0)?$", shown.scrape(), re.MULTILINE)
        address = broker.bootstrap
        broker.kill()
        problem = eventually(lambda: shown.state()["problem"], "the page says that nobody answers")
        assert address in problem["text"]
        assert shown.state()["transactions"]["states"] == {"Ongoing": 1}  # what was seen last
        assert shown.scrape() == ""
        broker.start()
        eventually(lambda: shown.state()["problem"] is None, "the page has news again", timeout_s=30)
        assert shown.end(signal.SIGTERM) == (0, "")


def test_without_a_cluster_it_starts_all_the_same_and_ctrl_c_ends_it_quietly() -> None:
    with dashboard("--bootstrap", "127.0.0.1:1") as shown:
        eventually(lambda: shown.state()["problem"], "the page says that nobody answers")
        assert shown.state()["now_ms"] is None
        assert shown.end(signal.SIGINT) == (130, "")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--http", "nonsense"], "--http takes HOST:PORT, not 'nonsense'."),
        (["--http", "0.0.0.0:0"], "can be reached from other machines"),
        (["--every", "1ms"], "--every takes at least 200ms"),
        (["--every", "soon"], "is not a duration"),
    ],
)
def test_a_mistake_on_the_command_line_starts_nothing(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboard", *options]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""

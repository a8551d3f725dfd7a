"""Commands that end with Ctrl-C or SIGTERM do so too if they were started with these signals ignored or blocked: in the
background of a script, or by a program that waits for its signals in one thread."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import onceflow
from onceflow.verify.brokers import EmbeddedBrokers
from tests.support.inherited_signals import HOW, TAKEN_AWAY, started_with
from tests.support.raw import batch
from tests.support.raw_client import RawClient

CTRL_C = 130
ENDS_S = 30

pytestmark = pytest.mark.parametrize("how", HOW)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with onceflow.Broker(durability="os") as broker:
        with RawClient(broker.bootstrap) as client:
            assert client.make_topic("orders") == 0
            assert client.produce("orders", batch(b"one")).error_code == 0
        yield broker.bootstrap


@contextmanager
def started(how: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = started_with(how, [sys.executable, "-m", "onceflow", *words])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "says", "codes"),
    [
        (["consume", "orders", "--follow"], "one", (CTRL_C, -signal.SIGTERM)),
        (["alerts", "--watch"], "", (CTRL_C, -signal.SIGTERM)),
        (["dashboard", "--http", "127.0.0.1:0"], "onceflow dashboard of", (CTRL_C, 0)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_command_ends_as_if_it_had_been_started_in_the_foreground(
    address: str, how: str, number: signal.Signals, command: list[str], says: str, codes: tuple[int, int]
) -> None:
    with started(how, *command, "--bootstrap", address) as process:
        assert first_line(process).startswith(says)
        process.send_signal(number)
        assert process.wait(ENDS_S) == codes[number is signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_broker_stops_cleanly(tmp_path: Path, how: str, number: signal.Signals) -> None:
    with started(how, "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path)) as process:
        assert first_line(process).startswith("onceflow broker ready on")
        process.send_signal(number)
        assert process.wait(ENDS_S) == 0


@pytest.mark.parametrize("kind", ["onceflow.Broker", "of the verifier"])
def test_the_broker_of_a_program_without_signals_stops_cleanly_when_told_to(
    tmp_path: Path, how: str, kind: str, taken_away: None
) -> None:
    """`stop` sends SIGTERM. It would be killed after a while, without the snapshot that a clean stop leaves behind."""
    with onceflow.Broker(tmp_path) if kind == "onceflow.Broker" else EmbeddedBrokers(tmp_path) as broker:
        with RawClient(broker.bootstrap) as client:
            assert client.make_topic("orders") == 0
            assert client.produce("orders", batch(b"one")).error_code == 0
        (broker if isinstance(broker, onceflow.Broker) else broker.nodes()[0]).stop()
    assert list(tmp_path.rglob(f"orders-0/{1:020d}.snapshot"))


@pytest.fixture
def taken_away(how: str) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in TAKEN_AWAY}
    if how == "ignored":
        for number in before:
            signal.signal(number, signal.SIG_IGN)
    else:
        signal.pthread_sigmask(signal.SIG_BLOCK, before)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, before)

"""Ids that steer terminals and forge lines, from a client that is let in: as an administrator sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from onceflow.cli import main
from tests.support.broker_process import BrokerProcess
from tests.support.raw import Wire, batch
from tests.support.raw_groups import commit
from tests.support.raw_transactions import V1, TransactionalProducer
from tests.support.waiting import eventually

HOSTILE = "[red]a\x1b]0;owned\x07\r\n2026-11-19 06:00:00,000 INFO onceflow: all is well\u202e"
SHOWN = "[red]a\\x1b]0;owned\\x07\\r\\n2026-11-19 06:00:00,000 INFO onceflow: all is well\\u202e"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With a group, offsets and an open transaction of such a name."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    folder = tmp_path_factory.mktemp("hostile")
    with BrokerProcess(folder / "data", settings=settings, log_level="info") as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create_topic("orders")
            commit(wire, HOSTILE, "orders", 0)
            producer = TransactionalProducer(wire, HOSTILE, V1).init()
            producer.write("orders", "a")
            short = TransactionalProducer(wire, f"{HOSTILE}-2", V1, timeout_ms=1).init()
            short.add("orders")
            wire.create_topic("plain")
            wire.produce("plain", batch(HOSTILE, key=HOSTILE.encode()))
            eventually(lambda: "has outlived its timeout" in broker.reports, "the short one is aborted")
        yield broker


@pytest.mark.parametrize(
    "command",
    [
        ["groups", "list"],
        ["groups", "describe", HOSTILE],
        ["groups", "reset-offsets", HOSTILE, "--topic", "orders", "--to", "earliest"],
        ["groups", "delete", f"{HOSTILE}-x"],
        ["txns", "list"],
        ["txns", "describe", HOSTILE],
        ["txns", "describe", f"{HOSTILE}-x"],
        ["txns", "find-hanging", "--older-than", "1ms"],
        ["alerts", "--for", "1s"],
        ["consume", "plain", "--keys", "--json"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_no_command_prints_what_steers_a_terminal(
    broker: BrokerProcess, capfdbinary: pytest.CaptureFixture[bytes], command: list[str]
) -> None:
    main([*command, "--bootstrap", broker.bootstrap])
    out, err = capfdbinary.readouterr()
    assert out or err
    for line in (out + err).decode().split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("2026-11-19 06:00:00,000 INFO onceflow"), "a name has made a line of its own"


def test_json_still_has_the_name(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", "list", "--json", "--bootstrap", broker.bootstrap]) == 0
    assert HOSTILE in [each["group"] for each in json.loads(capsys.readouterr().out)]


def test_the_brokers_log_has_a_line_for_an_entry(broker: BrokerProcess) -> None:
    assert f"The transaction of '{SHOWN}-2' has outlived its timeout" in broker.reports
    for line in broker.reports.splitlines():
        assert line.isprintable()
        assert not line.startswith("2026-11-19 06:00:00,000")

"""What the benchmarks read out of the words of Kafka's ProducerPerformance."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from benchmarks import clients
from benchmarks.clients import ClientError, Produced

WINDOW = "139937 records sent, 27987.4 records/sec (27.33 MB/sec), 50.1 ms avg latency, 346.0 ms max latency.\n"
TOTAL = (
    "400000 records sent, 38498.55 records/sec (37.60 MB/sec), 33.37 ms avg latency, 346.00 ms max latency, "
    "20 ms 50th, 104 ms 95th, 214 ms 99th, 330 ms 99.9th.\n"
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is printed by the client that is started next, and its arguments."""
    exchange: dict[str, Any] = {"printed": ""}

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        exchange["command"] = [str(part) for part in command]
        return subprocess.CompletedProcess([], 0, stdout=exchange["printed"], stderr="")

    monkeypatch.setattr(clients, "_run", run)
    monkeypatch.setattr(clients, "java", lambda: "java")
    monkeypatch.setattr(clients, "classpath", lambda: "jars")
    return exchange


def produce(**settings: Any) -> Produced:
    return clients.producer_performance("127.0.0.1:1", "topic", records=400_000, size=100, **settings)


def test_last_line_with_percentiles_is_the_sum(asked: dict[str, Any]) -> None:
    asked["printed"] = WINDOW + TOTAL

    assert produce() == Produced(38498.55, 20, 214)


def test_output_without_a_sum_is_an_error(asked: dict[str, Any]) -> None:
    asked["printed"] = WINDOW

    with pytest.raises(ClientError, match="did not send 400000 records"):
        produce()


def test_fewer_records_than_asked_for_are_an_error(asked: dict[str, Any]) -> None:
    asked["printed"] = TOTAL.replace("400000", "399999")

    with pytest.raises(ClientError, match="did not send 400000 records"):
        produce()

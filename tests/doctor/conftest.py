"""`onceflow doctor`, against both brokers: shared ones that are as they should be, and ones that are spoilt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

import onceflow
from onceflow.cli import main
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.brokers import run_against_both, started

SPOILT: dict[str, object] = {
    "transaction.max.timeout.ms": 30_000,
    "transactional.id.expiration.ms": 3_600_000,
    "producer.id.expiration.ms": 60_000,
    "offsets.retention.minutes": 60,
    "unclean.leader.election.enable": "true",
}
ONLY_KAFKA: dict[str, object] = {
    "transaction.partition.verification.enable": "false",
    "offsets.topic.replication.factor": 3,
}


class Answer(NamedTuple):
    code: int
    lines: list[dict[str, str]]

    def verdicts(self, check: str) -> list[str]:
        return [line["verdict"] for line in self.lines if line["check"] == check]

    def found(self, check: str) -> str:
        return "; ".join(line["found"] for line in self.lines if line["check"] == check)

    @property
    def troubles(self) -> set[str]:
        """The checks that have something against it."""
        return {line["check"] for line in self.lines if line["verdict"] in ("fault", "warning", "unknown")}


Doctor = Callable[..., Answer]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_against_both(metafunc)


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The command, in this process: exit code, and the lines of its JSON."""

    def run(*arguments: str) -> Answer:
        code = main(["doctor", "--json", *arguments])
        shown = capsys.readouterr()
        assert shown.err == ""
        report: dict[str, Any] = json.loads(shown.out)
        return Answer(code, report["lines"])

    return run


@pytest.fixture(scope="module", params=["onceflow", pytest.param("kafka", marks=pytest.mark.faults)])
def spoilt(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A broker with settings that exactly-once cannot do with."""
    with ExitStack() as stack:
        if request.param == "onceflow":
            yield stack.enter_context(onceflow.Broker(data_dir=None, settings=SPOILT))
        else:
            kafka = ApacheKafka(SPOILT | ONLY_KAFKA, jvm_options=QUICK_JVM_OPTIONS)
            yield started(lambda: stack.enter_context(kafka))

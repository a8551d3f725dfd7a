"""Suites that run against Onceflow and against Apache Kafka, and expect the same of both.

The fixtures are in `tests/conftest.py`; a suite asks for both brokers with `run_against_both`.

`--broker onceflow` or `--broker kafka` runs one half. Without Java there is no reference to compare with, and the half
that needs it fails with a sentence that says what to install: a silent skip would look like conformance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol, TypeVar

import pytest

import onceflow
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.kafka_jars import JarsMissing, JavaMissing

__all__ = ["BROKERS", "SETTINGS", "RunningBroker", "Shared", "running_broker", "run_against_both", "started"]

BROKERS = ("onceflow", "kafka")
SETTINGS: Mapping[str, int] = {
    # Timed-out transactions are found by a scan; every ten seconds is too seldom for a test to wait for it.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    # Members die in these tests, and what the broker tells the others it tells in answers to heartbeats. Those that are
    # meant to live must not seem dead on a busy machine: they, too, say nothing while a test does something else.
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 12_000,
    "group.consumer.heartbeat.interval.ms": 200,
    # Compacted topics are looked at every 15 s.
    "log.cleaner.backoff.ms": 500,
}
T = TypeVar("T")


class RunningBroker(Protocol):
    name: str

    @property
    def bootstrap(self) -> str: ...


def run_against_both(metafunc: pytest.Metafunc) -> None:
    """What the `pytest_generate_tests` of such a suite does."""
    if "broker" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("broker", default=None)
        metafunc.parametrize("broker", [chosen] if chosen else BROKERS, indirect=True, scope="session")


def started(start: Callable[[], T]) -> T:
    """What `start` returns; without Java the test fails with the sentence that says so, and nothing around it."""
    try:
        return start()
    except (JavaMissing, JarsMissing) as error:
        sentence = str(error)
    pytest.fail(sentence, pytrace=False)


class _Onceflow:
    name = "onceflow"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap


class Shared:
    """Brokers and clients that all tests of a process use: started when first asked for, ended after the last test.

    A fixture with a parameter would end, and start again, whenever the parameter changes.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[object, Any] = {}
        self._only: dict[str, tuple[object, ExitStack, Any]] = {}

    def get(self, key: object, start: Callable[[], AbstractContextManager[T]]) -> T:
        if key not in self._running:
            self._running[key] = self._stack.enter_context(start())
        found: T = self._running[key]
        return found

    def only(self, kind: str, key: object, start: Callable[[], AbstractContextManager[T]]) -> T:
        """As `get`, for what a process can have one of: another one of its kind is ended first."""
        if kind in self._only and self._only[kind][0] != key:
            self._only.pop(kind)[1].close()
        if kind not in self._only:
            stack = self._stack.enter_context(ExitStack())
            self._only[kind] = (key, stack, stack.enter_context(start()))
        found: T = self._only[kind][2]
        return found


def running_broker(name: str, shared: Shared) -> RunningBroker:
    if name == "kafka":
        return started(lambda: shared.get("kafka", lambda: ApacheKafka(SETTINGS, jvm_options=QUICK_JVM_OPTIONS)))
    running = shared.get("onceflow", lambda: onceflow.Broker(data_dir=None, settings=SETTINGS))
    return _Onceflow(running.bootstrap)

"""Spark with a broker: a session per process, driver programs that can be killed, clusters of either kind.

Tests that ask for `broker` run against Onceflow and against Apache Kafka, as in `tests/conformance`. A JVM takes 4 s to
start and the first query another 4 s, so a test that can share the session does, and names what is its own: topics,
application ids, checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.brokers import Shared, run_against_both, started
from tests.support.kafka_cluster import ThreeBrokers
from tests.support.spark import DriverProcess, spark_session
from tests.support.spark_cluster import StandaloneCluster
from tests.support.spark_jvm import QUICK_CHECKPOINTS, connector_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_against_both(metafunc)


@pytest.fixture(scope="module")
def spark(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Spark in local mode with two cores, and with its own Kafka connector; stopped after the last test of the process.

    Drivers of `new_driver` have no connector, as users of ours have none, unless the test gives it to them.
    """
    folder = tmp_path_factory.mktemp("spark")
    settings = {**QUICK_CHECKPOINTS, **started(connector_settings)}
    return started(lambda: shared.only("session of Spark", "with a connector", lambda: spark_session(folder, settings)))


@pytest.fixture(scope="session")
def three_brokers(shared: Shared) -> ThreeBrokers:
    """An Apache Kafka of three nodes. A test that kills one starts it again."""
    return started(lambda: shared.get("three brokers", ThreeBrokers))


@pytest.fixture(scope="session")
def standalone(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> StandaloneCluster:
    """A Spark cluster with a master and two workers."""
    folder = tmp_path_factory.mktemp("standalone")
    return started(lambda: shared.get("standalone", lambda: StandaloneCluster(folder)))


@pytest.fixture
def new_driver(tmp_path: Path) -> Iterator[Callable[..., DriverProcess]]:
    """Starts driver programs: `new_driver(script, *arguments, settings=..., variables=...)`. All end with the test."""
    with ExitStack() as stack:
        count = 0

        def start(script: Path, *arguments: object, **rest: object) -> DriverProcess:
            nonlocal count
            count += 1
            folder = tmp_path / f"driver-{count}"
            driver = started(lambda: DriverProcess(script, *arguments, folder=folder, **rest))  # type: ignore[arg-type]
            return stack.enter_context(driver)

        yield start

"""The same brokers as for `tests/verify`: ours, with faults in it, and Apache Kafka, of which only the network is
struck. And our broker without faults, with a Spark session in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.brokers import RunningBroker, Shared, running_broker, started
from tests.support.spark import spark_session
from tests.verify.conftest import brokers, pytest_generate_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["brokers", "pytest_generate_tests"]


@pytest.fixture(scope="module")
def broker(shared: Shared) -> RunningBroker:
    return running_broker("onceflow", shared)


@pytest.fixture(scope="module")
def spark(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """With the state store that `onceflow.spark.session` sets: pipelines with steps need it."""
    from onceflow.spark import register
    from onceflow.spark.sessions import recommended

    folder = tmp_path_factory.mktemp("spark")
    settings = {each.name: each.value for each in recommended(None)}
    session = started(lambda: shared.only("session of Spark", "pipelines", lambda: spark_session(folder, settings)))
    register(session)
    return session

"""Runs are verified on our broker, with faults in it, and on Apache Kafka, which other tests use at the same time:
there only clients and the network are struck. `make verify` strikes Apache Kafka, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.verify.brokers import Brokers, EmbeddedBrokers, GivenBrokers
from tests.support.brokers import BROKERS, Shared, running_broker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "brokers" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("broker", default=None)
        metafunc.parametrize("brokers", [chosen] if chosen else BROKERS, indirect=True)


@pytest.fixture
def brokers(request: pytest.FixtureRequest, shared: Shared, tmp_path: Path) -> Brokers:
    """Not entered yet: that is up to the run."""
    if request.param == "kafka":
        return GivenBrokers(running_broker("kafka", shared).bootstrap)
    return EmbeddedBrokers(tmp_path / "broker")

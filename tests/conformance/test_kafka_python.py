from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import ClientScenarios
from tests.support.clients.kafka_python import KafkaPythonClient


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[KafkaPythonClient]:
    client = KafkaPythonClient(broker.bootstrap)
    yield client
    client.close()


class TestKafkaPythonClient(ClientScenarios):
    pass

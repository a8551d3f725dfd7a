from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import ClientScenarios
from tests.support.clients.confluent import ConfluentClient


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[ConfluentClient]:
    client = ConfluentClient(broker.bootstrap)
    yield client
    client.close()


class TestConfluentClient(ClientScenarios):
    pass

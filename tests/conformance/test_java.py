from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import ClientScenarios
from tests.support.clients.java import JavaClient


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[JavaClient]:
    client = JavaClient(broker.bootstrap)
    yield client
    client.close()


class TestJavaClient(ClientScenarios):
    pass

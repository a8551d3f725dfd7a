from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import ClientScenarios
from tests.support.clients.aio import AioClient


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[AioClient]:
    client = AioClient(broker.bootstrap)
    yield client
    client.close()


class TestAioClient(ClientScenarios):
    pass

"""Java clients from 2.8 to the newest: what each of them does with a broker, by one program (`java/versions`).

One JVM for each version plays all scenarios at once; a test is one scenario of one version.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from uuid import uuid4

import pytest

from tests.conformance.conftest import RunningBroker
from tests.support.brokers import Shared, started
from tests.support.clients.catalogue import JAVA, ClientVersion
from tests.support.clients.programs import Played
from tests.support.raw import Wire


@pytest.fixture(scope="session")
def played(broker: RunningBroker, shared: Shared) -> Callable[[ClientVersion], Played]:
    def play(client: ClientVersion) -> Played:
        prefix = f"java-{client.version}-{uuid4().hex[:8]}"
        return Played(client.get(), broker.bootstrap, prefix, client.scenarios)

    return lambda client: started(lambda: shared.get((broker.name, client), lambda: nullcontext(play(client))))


@pytest.mark.parametrize(
    ("client", "scenario"),
    [
        pytest.param(client, scenario, id=f"{client.version}-{scenario}")
        for client in JAVA
        for scenario in client.scenarios
    ],
)
def test_each_version_does_what_clients_do(
    played: Callable[[ClientVersion], Played], wire: Wire, client: ClientVersion, scenario: str
) -> None:
    played(client).check(scenario, wire)

"""Java clients from 2.8 to the newest: what each of them does with a broker, by one program (`java/versions`).

One JVM for each version plays all scenarios at once; a test is one scenario of one version.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from uuid import uuid4

import pytest

from tests.conformance.conftest import RunningBroker
from tests.support.brokers import Shared, started
from tests.support.clients.java import QUICK_START, QUIET
from tests.support.clients.programs import SCENARIOS, play, prepare, topic_of, verify
from tests.support.java_programs import classes
from tests.support.kafka_jars import CLIENT_VERSIONS, client_classpath, java
from tests.support.raw import Wire

OLDEST = CLIENT_VERSIONS[0]
WITH_THE_CONSUMER_PROTOCOL = 4, 0
"""Where it is no preview any more (KIP-848)."""

Played = tuple[str, dict[str, str | None]]
"""The prefix of the topics, and what the program said."""


def scenarios(version: str) -> list[str]:
    has_it = tuple(map(int, version.split(".")[:2])) >= WITH_THE_CONSUMER_PROTOCOL
    return [each for each in SCENARIOS if has_it or each != "consumer protocol"]


def run(broker: RunningBroker, version: str) -> Played:
    prefix, played = f"java-{version}-{uuid4().hex[:8]}", scenarios(version)
    with Wire(broker.bootstrap) as wire:
        prepare(wire, prefix, played)
    path = os.pathsep.join((str(classes("versions", client_classpath(OLDEST))), client_classpath(version)))
    command = [java(), *QUICK_START, QUIET, "-cp", path, "Scenarios"]
    return prefix, play(command, broker.bootstrap, prefix, played)


@pytest.fixture(scope="session")
def played(broker: RunningBroker, shared: Shared) -> Callable[[str], Played]:
    def get(version: str) -> Played:
        return started(lambda: shared.get((broker.name, "java", version), lambda: nullcontext(run(broker, version))))

    return get


@pytest.mark.parametrize(
    ("version", "scenario"), [(version, scenario) for version in CLIENT_VERSIONS for scenario in scenarios(version)]
)
def test_each_version_does_what_clients_do(
    played: Callable[[str], Played], wire: Wire, version: str, scenario: str
) -> None:
    prefix, said = played(version)
    assert said[scenario] is None, said[scenario]
    verify(wire, scenario, topic_of(prefix, scenario))

"""The network before a real broker, with clients that know nothing of it: none finds the way around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.verify.fates import PASS, Action, Frame, Hooks
from onceflow.verify.network import Network
from tests.conformance.conftest import RunningBroker, started
from tests.conformance.scenarios import numbered
from tests.support.clients import read
from tests.support.clients.coordinated import CoordinatedClient
from tests.support.clients.coordinated.aio import CoordinatedAioClient
from tests.support.clients.coordinated.confluent import CoordinatedConfluentClient
from tests.support.clients.coordinated.java import CoordinatedJavaClient
from tests.support.clients.coordinated.kafka_python import CoordinatedKafkaPythonClient
from tests.support.raw import Wire
from tests.support.waiting import eventually

PRODUCE, FETCH, FIND_COORDINATOR, END_TXN = 0, 1, 10, 26
CLIENTS: dict[str, Callable[[str], CoordinatedClient]] = {
    "librdkafka": CoordinatedConfluentClient,
    "java": CoordinatedJavaClient,
    "aiokafka": CoordinatedAioClient,
    "kafka-python": CoordinatedKafkaPythonClient,
}


@pytest.fixture
def network(broker: RunningBroker) -> Iterator[Network]:
    with Network(broker.bootstrap) as network:
        yield network


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, network: Network) -> Iterator[CoordinatedClient]:
    with ExitStack() as stack:
        stack.callback(network.heal)
        new = CLIENTS[request.param]
        yield stack.enter_context(closing(started(lambda: new(network.bootstrap))))


def test_clients_know_the_proxies_and_no_brokers_in_a_transaction_from_beginning_to_end(
    client: CoordinatedClient, network: Network, topic: str, new_name: Callable[[], str]
) -> None:
    [(node, proxy)] = network.nodes.items()
    assert client.cluster().nodes == {(node, proxy.host, proxy.port)}
    seen: set[int] = set()

    def look(frame: Frame) -> Action:
        seen.add(frame.api_key)
        return PASS

    proxy.plan = Hooks(request=look)
    with closing(client.transactional(new_name())) as producer:
        producer.begin()
        producer.send(topic, numbered(10))
        producer.commit()
    assert [each.value for each in read(client, topic, 10)] == [b"%d" % number for number in range(10)]
    assert proxy.counters.malformed == 0
    assert seen >= {PRODUCE, FETCH, FIND_COORDINATOR, END_TXN}


@pytest.mark.parametrize(
    ("kind", "api"),
    [
        ("lost answer", PRODUCE),
        ("lost answer", END_TXN),
        ("lost request", END_TXN),
        ("torn answer", END_TXN),
        ("late request", PRODUCE),
        ("late request", END_TXN),
        ("lost answer", FIND_COORDINATOR),
    ],
)
def test_what_is_written_is_there_once_whatever_was_lost(
    broker: RunningBroker,
    network: Network,
    topic: str,
    new_name: Callable[[], str],
    wire: Wire,
    kind: str,
    api: int,
) -> None:
    strike = network.strike(kind, api=api, delay_s=0.2)
    with (
        closing(CoordinatedConfluentClient(network.bootstrap)) as client,
        closing(client.transactional(new_name())) as producer,
    ):
        producer.begin()
        producer.send(topic, numbered(5))
        producer.commit()
    assert strike.struck is not None
    if kind == "late request":
        eventually(lambda: network.count("answered_late") == 1, "the late request is answered")
    values = [record.value for record in wire.records(topic)]
    assert [value for value in values if value is not None and value.isdigit()] == [b"%d" % n for n in range(5)]


def test_our_client_finds_all_nodes_through_the_network(network: Network, broker: RunningBroker) -> None:
    with Cluster(ClientSettings(bootstrap=network.bootstrap)) as cluster:
        found = [node.address for node in cluster.nodes()]
        assert cluster.transaction_coordinator("any").address in found
    assert found == parse_bootstrap(network.bootstrap)

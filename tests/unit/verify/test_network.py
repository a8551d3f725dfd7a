"""The network before our own broker, spoken to with our own client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import onceflow
from onceflow.client.addresses import Address, parse_bootstrap
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.connection import Connection, NoAnswer
from onceflow.client.fetching import fetch
from onceflow.client.problems import ClientError
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.verify.network import Network, why_not
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.metadata import MetadataRequest
from tests.support.waiting import eventually

METADATA, INIT_PRODUCER_ID = 3, 22
NOT_RUNNING = "127.0.0.1:1"


@pytest.fixture(scope="module")
def broker() -> Iterator[onceflow.Broker]:
    with onceflow.Broker(data_dir=None) as broker:
        yield broker


@pytest.fixture
def network(broker: onceflow.Broker) -> Iterator[Network]:
    with Network(broker.bootstrap) as network:
        yield network


def connect(network: Network, timeout_s: float = 20.0) -> Connection:
    return Connection(parse_bootstrap(network.bootstrap)[0], timeout_s=timeout_s)


def addresses(connection: Connection) -> list[Address]:
    return [Address(each.host, each.port) for each in connection.ask(MetadataRequest(topics=[])).brokers]


def new_producer_id(connection: Connection, **rest: float) -> int:
    answer = connection.ask(InitProducerIdRequest(transactional_id=None), **rest)
    assert answer.error_code == 0
    found: int = answer.producer_id
    return found


def test_clients_are_told_the_way_through_the_network_and_no_other(network: Network, broker: onceflow.Broker) -> None:
    assert network.bootstrap != broker.bootstrap
    with connect(network) as connection:
        [told] = addresses(connection)
        [found] = connection.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["t"])).coordinators
    assert str(told) == network.bootstrap
    assert f"{found.host}:{found.port}" == network.bootstrap


def test_a_lost_answer_was_executed_and_a_lost_request_was_not(network: Network) -> None:
    with connect(network) as connection:
        before = new_producer_id(connection)
        lost_answer = network.strike("lost answer", api=INIT_PRODUCER_ID)
        with pytest.raises(NoAnswer):
            new_producer_id(connection)
    lost_request = network.strike("lost request", api=INIT_PRODUCER_ID)
    with connect(network) as connection, pytest.raises(NoAnswer):
        new_producer_id(connection)
    with connect(network) as connection:
        assert new_producer_id(connection) == before + 2
    assert lost_answer.struck == lost_request.struck == "InitProducerId v5 at node 1"


def test_a_late_request_is_executed_when_its_client_has_long_tried_again(network: Network) -> None:
    late = network.strike("late request", api=INIT_PRODUCER_ID, delay_s=2)
    with connect(network) as connection, pytest.raises(NoAnswer):
        new_producer_id(connection)
    with connect(network) as connection:
        again = new_producer_id(connection)
        assert late.struck is not None
        assert network.count("delivered_late") == 0
        eventually(lambda: network.count("answered_late") == 1, "the broker has executed the late request")
        assert new_producer_id(connection) == again + 2


def test_a_partition_is_silent_until_it_is_healed(network: Network) -> None:
    with connect(network) as connection:
        new_producer_id(connection)
        network.partition()
        began = time.monotonic()
        threading.Timer(0.3, network.heal).start()
        new_producer_id(connection)
    assert time.monotonic() - began >= 0.25
    assert network.count("cuts") == 0


def test_a_refused_network_cuts_and_closes_until_it_is_healed(network: Network) -> None:
    with connect(network) as connection:
        addresses(connection)
        network.refuse()
        with pytest.raises(NoAnswer):
            addresses(connection)
    with connect(network) as connection, pytest.raises(NoAnswer):
        addresses(connection)
    network.heal()
    with connect(network) as connection:
        assert addresses(connection)


def test_everything_is_delayed_until_it_is_healed(network: Network) -> None:
    with connect(network) as connection:
        addresses(connection)
        network.delay(0.1)
        began = time.monotonic()
        addresses(connection)
        assert time.monotonic() - began > 0.19
        network.heal()
        assert network.count("delayed") == 2
        addresses(connection)
        assert network.count("delayed") == 2


def test_answers_to_a_fetch_are_empty_until_it_is_healed(network: Network, broker: onceflow.Broker) -> None:
    Admin(ClientSettings(bootstrap=broker.bootstrap)).create("emptied", partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("emptied", b"value", partition=0)
    assert producer.flush(20) == 0
    with Cluster(ClientSettings(bootstrap=network.bootstrap)) as cluster:
        leader = cluster.leaders(["emptied"])["emptied", 0]
        assert leader is not None

        def batches() -> tuple[int, int]:
            found = fetch(cluster, "emptied", 0, 0, leader=leader, read_committed=True, max_bytes=1 << 20, wait_ms=0)
            return len(found.batches), found.high_watermark

        network.empty()
        assert batches() == (0, 1)
        assert network.emptied == 1
        network.heal()
        assert batches() == (1, 1)
        assert network.emptied == 1


def test_healing_leaves_a_strike_that_waits_to_its_owner(network: Network) -> None:
    strike = network.strike("lost answer", api=METADATA)
    network.heal()
    with connect(network) as connection, pytest.raises(NoAnswer):
        addresses(connection)
    assert strike.struck is not None


def test_cutting_ends_the_connections_there_are(network: Network) -> None:
    with connect(network) as first, connect(network) as second:
        addresses(first), addresses(second)
        assert network.cut_all() == 2
        with pytest.raises(NoAnswer):
            addresses(first)
    with connect(network) as connection:
        assert addresses(connection)


def test_only_the_nodes_that_are_named_are_struck(network: Network) -> None:
    with connect(network) as connection:
        addresses(connection)
        network.partition(nodes={2})
        network.refuse(nodes={2})
        network.delay(60, nodes={2})
        assert network.cut_all(nodes={2}) == 0
        assert addresses(connection)


def test_a_node_keeps_its_port_when_its_address_changes_and_a_new_one_gets_its_own(network: Network) -> None:
    [before] = network.nodes.values()
    first = network._locate(1, Address("127.0.0.1", 1))
    second = network._locate(2, Address("127.0.0.1", 2))
    assert [str(first), str(second)] == network.bootstrap.split(",")
    assert network.nodes[1] is before
    assert (before.upstream, network.nodes[2].upstream) == (("127.0.0.1", 1), ("127.0.0.1", 2))


def test_a_broker_that_is_started_again_is_found_through_the_same_port() -> None:
    with onceflow.Broker(data_dir=None) as broker, Network(broker.bootstrap) as network:
        broker.kill()
        with connect(network) as connection, pytest.raises(NoAnswer):
            addresses(connection)
        broker.start()
        with connect(network) as connection:
            assert [str(each) for each in addresses(connection)] == [network.bootstrap]


def test_a_kafka_that_does_not_answer_is_an_error_at_once() -> None:
    with pytest.raises(ClientError), Network(NOT_RUNNING):
        pass


@pytest.mark.parametrize(
    ("bootstrap", "config", "possible"),
    [
        ("kafka:9092", {}, True),
        ("kafka:9092", {"security.protocol": "SASL_PLAINTEXT"}, True),
        ("kafka:9092", {"security.protocol": "SSL"}, False),
        ("kafka:9092", {"security.protocol": "sasl_ssl"}, False),
        ("SASL_SSL://kafka:9092,SASL_SSL://other:9092", {}, False),
        ("PLAINTEXT://kafka:9092", {}, True),
    ],
)
def test_there_is_no_network_before_a_kafka_that_is_spoken_to_with_tls(
    bootstrap: str, config: dict[str, str], possible: bool
) -> None:
    assert (why_not(bootstrap, config) is None) is possible
    if not possible:
        with pytest.raises(ConfigError, match="TLS"):
            Network(bootstrap, config)


def test_a_protocol_in_the_address_is_kept_for_clients(broker: onceflow.Broker) -> None:
    with Network(f"PLAINTEXT://{broker.bootstrap}") as network:
        assert network.bootstrap.startswith("PLAINTEXT://127.0.0.1:")
        with connect(network) as connection:
            assert addresses(connection)

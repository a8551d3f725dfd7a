"""Which broker to ask: bootstrap, coordinators, leaders, and what is put up with."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Node, Refused, error_name, patiently
from onceflow.client.connection import NoAnswer, Unreachable
from onceflow.client.problems import ClientError
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from onceflow.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from onceflow.wire.schema import Message
from tests.unit.client.fake_broker import FakeBroker, HangUp, KeepSilent, impatient_with


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster(broker.settings(timeout_s=10.0)) as cluster:
        yield cluster


def test_the_brokers_are_known_by_what_they_advertise(broker: FakeBroker, cluster: Cluster) -> None:
    assert cluster.nodes() == [Node(1, broker.address)]
    assert str(cluster.nodes()[0]) == f"broker 1 at {broker.address}"


def test_a_connection_is_kept_and_made_anew_when_it_broke(cluster: Cluster) -> None:
    first = cluster.node(1)
    assert cluster.node(1) is first
    first.close()
    assert cluster.node(1) is not first
    assert cluster.node(1).is_open


def test_a_broker_that_nobody_knows_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(Unreachable, match="does not know the address of broker 7"):
        cluster.node(7)


def test_the_next_bootstrap_address_is_taken_if_the_first_is_gone() -> None:
    with FakeBroker() as second:
        with FakeBroker() as first:
            settings = ClientSettings(bootstrap=f"{first.address},{second.address}")
            cluster = Cluster(settings)
            assert cluster.any_broker().address == first.address
        cluster.close()
        assert cluster.any_broker().address == second.address
        cluster.close()


def test_a_bootstrap_address_where_nobody_listens_is_passed_over() -> None:
    with socket.socket() as holder, FakeBroker() as second:
        holder.bind(("127.0.0.1", 0))
        bootstrap = f"127.0.0.1:{holder.getsockname()[1]},{second.address}"
        with Cluster(ClientSettings(bootstrap=bootstrap)) as cluster:
            assert cluster.any_broker().address == second.address
            assert cluster.nodes() == [Node(1, second.address)]


@pytest.mark.parametrize("failure", [HangUp, KeepSilent])
def test_a_question_that_one_broker_does_not_answer_is_asked_at_the_next(failure: type[Exception]) -> None:
    def fail(_: Message) -> Message:
        raise failure

    with FakeBroker() as first, FakeBroker() as second:
        first.on(MetadataRequest, fail)
        first.on(FindCoordinatorRequest, fail)
        settings = ClientSettings(bootstrap=f"{first.address},{second.address}", timeout_s=30.0)
        with impatient_with(first, MetadataRequest, FindCoordinatorRequest):
            with Cluster(settings) as cluster:
                assert cluster.nodes() == [Node(1, second.address)]
                assert cluster.any_broker().address == second.address
            with Cluster(settings) as cluster:
                assert cluster.transaction_coordinator("a") == Node(1, second.address)


def test_when_all_bootstrap_addresses_are_gone_a_broker_that_the_cluster_named_is_asked() -> None:
    with FakeBroker() as named:
        with FakeBroker() as bootstrap:
            advertised = [MetadataResponseBroker(node_id=2, host=named.address.host, port=named.address.port)]
            bootstrap.on(MetadataRequest, lambda _: MetadataResponse(brokers=advertised))
            cluster = Cluster(bootstrap.settings(timeout_s=10.0))
            assert cluster.nodes() == [Node(2, named.address)]
        cluster.close()
        assert cluster.group_coordinator("g") == Node(1, named.address)
        cluster.close()


def test_a_question_that_nobody_answers_says_what_the_first_broker_did(broker: FakeBroker, cluster: Cluster) -> None:
    def hang_up(_: Message) -> Message:
        raise HangUp

    broker.on(MetadataRequest, hang_up)
    with pytest.raises(NoAnswer, match=f"the broker at {broker.address} ended the connection without an answer"):
        cluster.nodes()


def test_leaders_by_partition_and_none_where_there_is_none(broker: FakeBroker, cluster: Cluster) -> None:
    partitions = [
        MetadataResponsePartition(partition_index=0, leader_id=1),
        MetadataResponsePartition(partition_index=1, leader_id=-1, error_code=5),
    ]
    broker.on(
        MetadataRequest, lambda _: MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=partitions)])
    )
    assert cluster.leaders(["t"]) == {("t", 0): 1, ("t", 1): None}


def test_a_missing_topic_is_named_and_not_made_by_asking(broker: FakeBroker, cluster: Cluster) -> None:
    with pytest.raises(TopicMissingError, match="there is no topic 'nope'"):
        cluster.leaders(["nope"])
    assert [request.allow_auto_topic_creation for request in broker.requests(MetadataRequest)] == [False]


def test_all_topics_are_asked_for_without_names(broker: FakeBroker, cluster: Cluster) -> None:
    broker.topics = {"a": 1, "b": 2}
    assert cluster.leaders() == {("a", 0): 1, ("b", 0): 1, ("b", 1): 1}


@pytest.mark.parametrize("newest", [6, 4, 3, 1])
def test_coordinators_are_found_with_old_and_new_requests(broker: FakeBroker, cluster: Cluster, newest: int) -> None:
    broker.versions[10] = (0, newest)
    here = Node(1, broker.address)
    assert cluster.transaction_coordinators(["a", "b"]) == {"a": here, "b": here}
    assert cluster.group_coordinator("g") == here
    asked = broker.requests(FindCoordinatorRequest)
    keys = [request.coordinator_keys or [request.key] for request in asked]
    assert keys == ([["a", "b"], ["g"]] if newest >= 4 else [["a"], ["b"], ["g"]])
    assert [request.key_type for request in asked] == ([1, 0] if newest >= 4 else [1, 1, 0])


def test_a_coordinator_that_is_not_there_yet_is_waited_for(broker: FakeBroker, cluster: Cluster) -> None:
    count = itertools.count()

    def answer(request: Any) -> FindCoordinatorResponse:
        code = 15 if next(count) < 3 else 0
        found = Coordinator(key="a", error_code=code, node_id=1, host=broker.address.host, port=broker.address.port)
        return FindCoordinatorResponse(coordinators=[found])

    broker.on(FindCoordinatorRequest, answer)
    assert cluster.transaction_coordinator("a") == Node(1, broker.address)
    assert next(count) == 4


def test_waiting_for_a_coordinator_ends(broker: FakeBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    never = FindCoordinatorResponse(coordinators=[Coordinator(key="a", error_code=15, error_message="soon")])
    broker.on(FindCoordinatorRequest, lambda _: never)
    cluster.any_broker()  # it is connected
    monkeypatch.setattr(Cluster, "timeout_s", 0.2)
    with pytest.raises(Refused, match="looking for the coordinator of 'a' failed: soon"):
        cluster.transaction_coordinator("a")


def test_an_answer_without_the_key_is_an_error(broker: FakeBroker, cluster: Cluster) -> None:
    broker.on(FindCoordinatorRequest, lambda _: FindCoordinatorResponse())
    with pytest.raises(ClientError, match="does not say who coordinates 'a'"):
        cluster.transaction_coordinator("a")


def test_an_advertised_address_that_nobody_listens_at_is_named(broker: FakeBroker, cluster: Cluster) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        advertised = [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)]
        broker.on(MetadataRequest, lambda _: MetadataResponse(brokers=advertised))
        with pytest.raises(Unreachable, match=f"cannot reach the broker at 127.0.0.1:{port}: nobody listens there"):
            cluster.node(1)


def test_only_the_codes_that_were_named_are_retried() -> None:
    asked = []

    def refused() -> None:
        asked.append(1)
        raise Refused("asking", 51)

    with pytest.raises(Refused, match=r"asking failed: concurrent transactions \(error 51\)"):
        patiently(refused, 5)
    assert len(asked) == 1


def test_unknown_codes_have_a_sentence_too() -> None:
    assert error_name(16) == "not coordinator (error 16)"
    assert error_name(999) == "error 999, which this program does not know"


@pytest.mark.parametrize(
    ("bootstrap", "extra", "words"),
    [
        ("SASL_SSL://kafka:9092", {}, "sasl.mechanism is missing"),
        ("SSL://kafka:9092", {"security.protocol": "plaintext"}, "security.protocol=PLAINTEXT contradict each other"),
        ("SSL://kafka:9092,kafka2:9092", {}, "has to name one protocol for all"),
        ("HTTPS://kafka:9092", {}, "has to name one protocol for all"),
        ("kafka:9092", {"sasl.mechanism": "PLAIN"}, "sasl.mechanism has no effect with security.protocol=PLAINTEXT"),
        ("kafka:9092", {"socket.timeout.ms": "1"}, "cannot take its setting 'socket.timeout.ms'"),
        ("kafka:9092", {"securty.protocol": "SSL"}, "'securty.protocol'; did you mean 'security.protocol'?"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused_before_anything_is_sent(
    bootstrap: str, extra: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Cluster(ClientSettings(bootstrap=bootstrap, extra=extra))


def test_plaintext_and_a_client_id_are_taken(broker: FakeBroker) -> None:
    extra = {"security.protocol": "plaintext", "client.id": "me"}
    with Cluster(ClientSettings(bootstrap=f"PLAINTEXT://{broker.address}", extra=extra)) as cluster:
        assert cluster.nodes() == [Node(1, broker.address)]

"""Real clients at a broker that asks who comes: right, wrong and no credentials, with and without TLS."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from onceflow.client.admin import Admin
from onceflow.client.connection import NoAnswer, NotAdmitted
from onceflow.client.problems import ClientError, NotYet
from onceflow.client.settings import ClientSettings
from onceflow.wire.messages.metadata import MetadataRequest
from tests.support.clients.java import QUICK_START, QUIET
from tests.support.java_programs import compiled
from tests.support.kafka_jars import java
from tests.support.secured_broker import LISTENERS, MECHANISMS, SecuredBroker
from tests.support.secured_kafka import USERS, Certificates
from tests.support.waiting import eventually

WAYS_IN = [(listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS]
ODD_USER = next(user for user in USERS if not user.isalnum())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker
        log = broker.log
    assert "Traceback" not in log
    for secret in ("hunter2", *USERS.values()):
        assert secret not in log


def round_trip(bootstrap: str, settings: dict[str, str], value: bytes = b"value") -> None:
    """Produce and consume with librdkafka."""
    topic, problems = f"t-{uuid.uuid4()}", []
    common: dict[str, Any] = {**settings, "bootstrap.servers": bootstrap, "log_level": 0}
    producer = Producer({**common, "message.max.bytes": 10_000_000})
    producer.produce(topic, value, on_delivery=lambda error, _: problems.append(error))
    assert producer.flush(15) == 0
    assert problems == [None]
    # Large, so that one fetch has it all.
    consumer = Consumer(
        {**common, "group.id": topic, "auto.offset.reset": "earliest", "fetch.message.max.bytes": 10_000_000}
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(15)
        assert message is not None
        assert message.error() is None
        assert message.value() == value
    finally:
        consumer.close()


def refusal(bootstrap: str, settings: dict[str, str]) -> int:
    """The error code with which librdkafka is refused."""
    seen: list[int] = []
    extra: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
    client = Producer({**settings, **extra, "error_cb": lambda error: seen.append(error.code())})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.5)
    eventually(lambda: client.poll(0.05) or seen, "librdkafka reports why")
    return next(code for code in seen if code != KafkaError._ALL_BROKERS_DOWN)


@pytest.mark.parametrize("listener", LISTENERS)
def test_clients_are_told_the_address_of_the_listener_they_came_by(broker: SecuredBroker, listener: str) -> None:
    with broker.cluster(listener) as cluster:
        assert [str(node.address) for node in cluster.nodes()] == [broker.addresses[listener]]
        assert str(cluster.group_coordinator("g").address) == broker.addresses[listener]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS_IN)
def test_librdkafka_logs_in_writes_and_reads(broker: SecuredBroker, listener: str, mechanism: str) -> None:
    round_trip(broker.addresses[listener], broker.client(listener, "alice", mechanism))


@pytest.mark.parametrize(("listener", "mechanism"), WAYS_IN)
def test_a_wrong_password_and_an_unknown_user_are_refused_in_the_same_words(
    broker: SecuredBroker, listener: str, mechanism: str
) -> None:
    said = []
    for user in ("alice", "nobody"):
        settings = {**broker.client(listener, user, mechanism), "sasl.password": "hunter2"}
        with pytest.raises(NotAdmitted) as refused, broker.cluster(listener, settings) as cluster:
            cluster.nodes()
        said.append(str(refused.value).partition("Authentication failed")[2])
    assert said[0] == said[1] != ""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_librdkafka_learns_that_its_password_is_wrong(broker: SecuredBroker, mechanism: str) -> None:
    settings = {**broker.client("SASL_SSL", "alice", mechanism), "sasl.password": "hunter2"}
    assert refusal(broker.addresses["SASL_SSL"], settings) == KafkaError._AUTHENTICATION


@pytest.mark.parametrize("question", ["topic_ids", "offsets"])
def test_a_wrong_password_is_no_trouble_that_passes(broker: SecuredBroker, question: str) -> None:
    """These are the first questions of `consume_into`. librdkafka says no more than that it got no answer in time."""
    login = {**broker.client("SASL_PLAINTEXT"), "sasl.password": "hunter2"}
    admin = Admin(ClientSettings(bootstrap=broker.addresses["SASL_PLAINTEXT"], timeout_s=2, extra=login))
    with pytest.raises(ClientError, match=r"the login at .* was refused") as refused:
        admin.topic_ids(["orders"]) if question == "topic_ids" else admin.offsets([("orders", 0)])
    assert not isinstance(refused.value, NotYet)


def test_a_client_without_credentials_gets_nothing_at_all(broker: SecuredBroker) -> None:
    with broker.raw("SASL_PLAINTEXT") as client:
        client.send_all([MetadataRequest(topics=None)])
        assert client.waits_for_end()
    with pytest.raises(NoAnswer), broker.cluster("SASL_SSL", broker.client("SSL")) as cluster:
        cluster.nodes()


def test_a_name_and_a_password_with_special_characters(broker: SecuredBroker) -> None:
    for mechanism in MECHANISMS:
        with broker.cluster("SASL_SSL", broker.client("SASL_SSL", ODD_USER, mechanism)) as cluster:
            assert cluster.nodes()


def test_large_answers_are_encrypted_as_well_as_small_ones(broker: SecuredBroker) -> None:
    """Fetched records go past our memory where there is no TLS, and must not where there is."""
    round_trip(broker.addresses["SSL"], broker.client("SSL"), os.urandom(900_000))


def test_a_certificate_that_nobody_vouches_for_is_refused(broker: SecuredBroker, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path)
    shown = {"ssl.certificate.location": str(stranger.client), "ssl.key.location": str(stranger.client_key)}
    with pytest.raises(NotAdmitted), broker.cluster("SSL", {**broker.client("SSL"), **shown}) as cluster:
        cluster.nodes()


def test_a_certificate_names_its_owner_and_acls_go_by_the_name(tmp_path: Path) -> None:
    settings = {
        "ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:CN=client;User:admin",
    }
    with SecuredBroker(tmp_path, settings) as broker:
        round_trip(broker.addresses["SSL"], {**broker.client("SSL"), **broker.own_certificate()})
        both = {**broker.client("SASL_SSL", "admin"), **broker.own_certificate()}
        round_trip(broker.addresses["SASL_SSL"], both)
        with broker.cluster("SASL_SSL", {**both, **broker.client("SASL_SSL", "alice")}) as cluster:
            assert cluster.leaders() == {}
        with pytest.raises(NotAdmitted), broker.cluster("SSL") as cluster:
            cluster.nodes()
        assert "Traceback" not in broker.log


def test_librdkafka_stays_connected_over_several_logins(tmp_path: Path) -> None:
    """More than a second each: who logs in again earlier is refused, as by Kafka. librdkafka does it shortly before the
    login ends, which has to be early enough on a busy machine."""
    with SecuredBroker(tmp_path, {"connections.max.reauth.ms": 2500}) as broker:
        problems: list[object] = []
        settings: dict[str, Any] = {**broker.client("SASL_SSL"), "bootstrap.servers": broker.addresses["SASL_SSL"]}
        producer = Producer({**settings, "log_level": 0, "error_cb": problems.append})
        until = time.monotonic() + 8
        while time.monotonic() < until:
            producer.produce("t", b"value", on_delivery=lambda error, _: error and problems.append(error))
            assert producer.flush(10) == 0
            producer.poll(0.1)
        assert problems == []
        assert "did not log in again" not in broker.log
        assert "Traceback" not in broker.log


# Java


def java_settings(broker: SecuredBroker, listener: str, mechanism: str = "", password: str | None = None) -> str:
    settings = {"bootstrap.servers": broker.addresses[listener], "security.protocol": listener}
    if listener.endswith("SSL"):
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.certificates.ca)}
        settings |= {"ssl.endpoint.identification.algorithm": "https"}
    if mechanism:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        login = f'username="alice" password="{password or USERS["alice"]}"'
        settings |= {"sasl.mechanism": mechanism}
        settings |= {"sasl.jaas.config": f"org.apache.kafka.common.security.{module} required {login};"}
    return "".join(f"{name}={value}\n" for name, value in settings.items())


@pytest.mark.faults
def test_javas_clients_get_in_with_the_right_password_and_kafkas_errors_with_a_wrong_one(
    broker: SecuredBroker, tmp_path: Path
) -> None:
    """All in one JVM: what takes time is its start."""
    right = [java_settings(broker, *way) for way in WAYS_IN]
    wrong = [java_settings(broker, "SASL_SSL", mechanism, "hunter2") for mechanism in MECHANISMS]
    store = f"ssl.keystore.type=PEM\nssl.keystore.location={broker.certificates.client_store}\n"
    files = []
    for number, text in enumerate([*right, java_settings(broker, "SSL") + store, *wrong]):
        files.append(tmp_path / f"{number}.properties")
        files[-1].write_text(text)
    done = subprocess.run(
        [java(), *QUICK_START, QUIET, "-cp", compiled("secured"), "SecuredClient", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    said = done.stdout.splitlines()
    assert said[:-3] == [f"read {file}" for file in files[:-3]]
    refused = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
    assert said[-3:] == [
        "SaslAuthenticationException: Authentication failed: Invalid username or password",
        f"SaslAuthenticationException: {refused} SCRAM-SHA-256",
        f"SaslAuthenticationException: {refused} SCRAM-SHA-512",
    ]


@pytest.mark.faults
def test_javas_producer_stays_connected_over_several_logins(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path, {"connections.max.reauth.ms": 1300, "num.partitions": 1}) as broker:
        with broker.raw() as client:
            assert client.make_topic("t") == 0
        file = tmp_path / "client.properties"
        file.write_text(java_settings(broker, "SASL_SSL", "SCRAM-SHA-512"))
        done = subprocess.run(
            [java(), *QUICK_START, QUIET, "-cp", compiled("secured"), "StayingClient", str(file), "6000"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) >= 3
        assert "did not log in again" not in broker.log
        assert "Traceback" not in broker.log

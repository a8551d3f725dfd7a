"""Our protocol client at an Apache Kafka that asks who comes: every way in, and one sentence for every wrong way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from onceflow.cli import main
from onceflow.client.addresses import parse_bootstrap
from onceflow.client.cluster import Cluster, Refused
from onceflow.client.connection import Connection, NoAnswer, NotAdmitted, Unreachable
from onceflow.client.problems import ClientError
from onceflow.client.sasl import Login
from onceflow.client.security import Security
from onceflow.client.settings import ClientSettings
from onceflow.wire.messages.metadata import MetadataRequest
from tests.support.kafka_jars import JarsMissing, JavaMissing
from tests.support.secured_kafka import SCRAM, SHORT_LOGIN_MS, USERS, SecuredKafka
from tests.support.waiting import eventually

ODD_USER = next(user for user in USERS if not user.isalnum())
TOPIC_DENIED = 29
TRANSACTIONAL_ID_DENIED = 53


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecuredKafka]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(SecuredKafka())
        except (JavaMissing, JarsMissing) as error:
            pytest.fail(str(error), pytrace=False)


def reach(
    kafka: SecuredKafka,
    listener: str,
    settings: Mapping[str, str] | None = None,
    *,
    host: str = "127.0.0.1",
    timeout_s: float = 5.0,
) -> None:
    """All brokers are asked, under the addresses that they advertise."""
    bootstrap = kafka.bootstraps[listener].replace("127.0.0.1", host)
    extra = kafka.client(listener) if settings is None else settings
    with Cluster(ClientSettings(bootstrap=bootstrap, extra=extra, timeout_s=timeout_s)) as cluster:
        nodes = cluster.nodes()
        assert [str(node.address) for node in nodes] == [kafka.bootstraps[listener]]
        for node in nodes:
            assert cluster.node(node.id).ask(MetadataRequest(topics=[])).brokers


def new_topic(kafka: SecuredKafka) -> str:
    from confluent_kafka.admin import NewTopic

    name = f"t-{uuid4()}"
    for future in kafka.admin().create_topics([NewTopic(name, 1, 1)]).values():
        future.result(timeout=15)
    return name


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL"])
def test_every_listener_lets_us_in_with_the_right_settings(kafka: SecuredKafka, listener: str) -> None:
    reach(kafka, listener)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_every_mechanism_with_and_without_tls(kafka: SecuredKafka, listener: str, mechanism: str) -> None:
    reach(kafka, listener, kafka.client(listener, "alice", mechanism))


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_name_and_a_password_with_special_characters(kafka: SecuredKafka, mechanism: str) -> None:
    reach(kafka, "SASL_PLAINTEXT", kafka.client("SASL_PLAINTEXT", ODD_USER, mechanism))


def test_a_login_as_java_writes_it(kafka: SecuredKafka) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    login = f'{module} required username="alice" password="{USERS["alice"]}";'
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": login}
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": kafka.ca_file}
    reach(kafka, "SASL_SSL", {**settings, **trust})


def test_a_keystore_as_java_takes_it(kafka: SecuredKafka) -> None:
    store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(kafka.certificates.client_store)}
    trust = {"ssl.truststore.certificates": kafka.certificates.ca.read_text()}
    reach(kafka, "MTLS", {"security.protocol": "SSL", **store, **trust})


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_or_user_is_one_sentence_without_the_password(
    kafka: SecuredKafka, user: str, mechanism: str
) -> None:
    settings = {**kafka.client("SASL_SSL", "alice", mechanism), "sasl.username": user, "sasl.password": "hunter2"}
    with pytest.raises(
        NotAdmitted, match=rf"does not accept the login of '{user}' \({mechanism}\): .*[Ii]nvalid"
    ) as said:
        reach(kafka, "SASL_SSL", settings)
    assert "hunter2" not in str(said.value)


def test_a_mechanism_that_is_not_enabled_is_told_with_those_that_are(kafka: SecuredKafka) -> None:
    (address,) = parse_bootstrap(kafka.bootstraps["SASL_PLAINTEXT"])
    unheard_of = Security(login=Login(mechanism="OAUTHBEARER", username="me", password="x"))
    with pytest.raises(NotAdmitted, match=r"does not take OAUTHBEARER at this port, but: .*SCRAM-SHA-512"):
        Connection(address, timeout_s=5, security=unheard_of)


def test_an_untrusted_certificate_is_one_sentence(kafka: SecuredKafka) -> None:
    settings = {**kafka.client("SSL"), "ssl.ca.location": str(kafka.certificates.other_ca)}
    with pytest.raises(NotAdmitted, match=r"is not trusted here .*name the file of its CA with ssl\.ca\.location"):
        reach(kafka, "SSL", settings)


def test_a_certificate_for_another_name_is_one_sentence_unless_any_name_will_do(kafka: SecuredKafka) -> None:
    with pytest.raises(NotAdmitted, match="is not for localhost"):
        reach(kafka, "SSL", host="localhost")
    reach(kafka, "SSL", {**kafka.client("SSL"), "ssl.endpoint.identification.algorithm": ""}, host="localhost")


@pytest.mark.parametrize(
    ("listener", "as_if_at", "error", "words"),
    [
        ("SSL", "PLAINTEXT", NotAdmitted, "speaks TLS at this port: set security.protocol to SSL or SASL_SSL"),
        ("SASL_SSL", "PLAINTEXT", NotAdmitted, "speaks TLS at this port"),
        ("SASL_SSL", "SASL_PLAINTEXT", NotAdmitted, "speaks TLS at this port"),
        ("PLAINTEXT", "SSL", Unreachable, "in the middle of the TLS handshake: does it speak TLS at this port"),
        ("SASL_PLAINTEXT", "SASL_SSL", Unreachable, "in the middle of the TLS handshake"),
        (
            "SASL_PLAINTEXT",
            "PLAINTEXT",
            NoAnswer,
            "If it asks for a login at this port, security.protocol=PLAINTEXT is",
        ),
        ("SASL_SSL", "SSL", NoAnswer, "If it asks for a login at this port, security.protocol=SSL is wrong"),
        ("PLAINTEXT", "SASL_PLAINTEXT", NotAdmitted, "takes no logins at this port"),
        ("SSL", "SASL_SSL", NotAdmitted, "takes no logins at this port"),
        (
            "MTLS",
            "SSL",
            (NotAdmitted, Unreachable),
            "If it asks for a client certificate, set ssl.certificate.location",
        ),
    ],
)
def test_the_wrong_protocol_is_one_sentence_and_comes_at_once(
    kafka: SecuredKafka, listener: str, as_if_at: str, error: type[ClientError], words: str
) -> None:
    before = time.monotonic()
    with pytest.raises(error, match=words):
        reach(kafka, listener, kafka.client(as_if_at), timeout_s=60)
    assert time.monotonic() - before < 30, "long before the deadline"


def test_a_connection_outlives_its_login(kafka: SecuredKafka) -> None:
    bootstrap, settings = kafka.bootstraps["SHORT_LOGINS"], kafka.client("SHORT_LOGINS", "alice", "PLAIN")
    with Cluster(ClientSettings(bootstrap=bootstrap, extra=settings)) as cluster:
        connection = cluster.any_broker()
        over = time.monotonic() + 2 * SHORT_LOGIN_MS / 1000
        question = MetadataRequest(topics=[])
        eventually(
            lambda: connection.ask(question).brokers and time.monotonic() > over, "two logins ended", every_s=0.1
        )
        assert connection.is_open


def test_what_is_not_allowed_is_refused_until_it_is_allowed(kafka: SecuredKafka) -> None:
    topic = new_topic(kafka)
    bootstrap, settings = kafka.bootstraps["SASL_PLAINTEXT"], kafka.client("SASL_PLAINTEXT", "alice")
    with Cluster(ClientSettings(bootstrap=bootstrap, extra=settings)) as cluster:
        with pytest.raises(Refused) as topic_denied:
            cluster.leaders([topic])
        with pytest.raises(Refused) as id_denied:
            cluster.transaction_coordinator("alices-app")
        kafka.allow("alice", "topic", topic, "describe")
        kafka.allow("alice", "transactional_id", "alices-", "describe", prefixed=True)
        assert cluster.leaders([topic]) == {(topic, 0): 1}
        assert cluster.transaction_coordinator("alices-app").id == 1
    kafka.disallow("alice")
    assert (topic_denied.value.code, id_denied.value.code) == (TOPIC_DENIED, TRANSACTIONAL_ID_DENIED)


def test_the_commands_about_transactions_take_security_settings(
    kafka: SecuredKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"--client-config={name}={value}" for name, value in kafka.client("SASL_SSL").items()]
    assert main(["txns", "list", "--json", "--bootstrap", kafka.bootstraps["SASL_SSL"], *settings]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), list | dict)
    wrong = [*settings, "--client-config=sasl.password=hunter2"]
    assert main(["txns", "list", "--bootstrap", kafka.bootstraps["SASL_SSL"], *wrong]) == 1
    said = capsys.readouterr().err
    assert "does not accept the login of 'admin'" in said
    assert "hunter2" not in said
    assert len(said.splitlines()) == 1


def test_users_are_managed_at_apache_kafka_too(
    kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`onceflow users` speaks Kafka's own requests; the admission of a new user takes a moment there."""
    (tmp_path / "password").write_text("first one\n")
    where = ["--bootstrap", kafka.bootstraps["PLAINTEXT"]]
    password = ["--password-file", str(tmp_path / "password")]
    assert main(["users", "add", "carol", *password, *where]) == 0

    def lets_in(secret: str, mechanism: str) -> bool:
        settings = {**kafka.client("SASL_SSL", "alice", mechanism), "sasl.username": "carol", "sasl.password": secret}
        try:
            reach(kafka, "SASL_SSL", settings)
        except NotAdmitted:
            return False
        return True

    for mechanism in SCRAM:
        eventually(lambda m=mechanism: lets_in("first one", m), "the new user may log in")
    (tmp_path / "password").write_text("second one\n")
    assert main(["users", "passwd", "carol", *password, *where]) == 0
    for mechanism in SCRAM:
        eventually(lambda m=mechanism: lets_in("second one", m), "the new password is known")
        assert not lets_in("first one", mechanism)
    capsys.readouterr()
    assert main(["users", "list", "--json", *where]) == 0
    users = {each["name"]: each["mechanisms"] for each in json.loads(capsys.readouterr().out)}
    assert users["carol"] == dict.fromkeys(SCRAM, 8192)
    assert main(["users", "delete", "carol", *where]) == 0
    eventually(lambda: not lets_in("second one", SCRAM[0]), "the user is gone")

"""What a connection does before the first request: TLS, a login, and one sentence when either fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from onceflow.client.addresses import Address
from onceflow.client.cluster import Cluster, Node
from onceflow.client.connection import Connection, NoAnswer, NotAdmitted, Unreachable
from onceflow.client.sasl import Login
from onceflow.client.security import Pem, Security, Tls
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.wire.messages.list_transactions import ListTransactionsRequest
from onceflow.wire.messages.metadata import MetadataRequest
from onceflow.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from onceflow.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from onceflow.wire.schema import Message
from tests.unit.client.fake_broker import FakeBroker, HangUp, KeepSilent
from tests.unit.client.secured_broker import LoginBroker

TLS = Security(tls=Tls())
SETTINGS = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "me", "sasl.password": "secret"}


def login(mechanism: str = "SCRAM-SHA-256") -> Security:
    return Security(login=Login(mechanism=mechanism, username="me", password="secret"))


def connect(broker: FakeBroker, security: Security, timeout_s: float = 5.0) -> Connection:
    return Connection(broker.address, timeout_s=timeout_s, security=security)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def silent() -> Iterator[Address]:
    """Accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address(*server.getsockname())


def test_a_login_comes_before_the_first_request_and_only_once() -> None:
    with LoginBroker() as broker:
        with connect(broker, login()) as connection:
            for _ in range(2):
                connection.ask(MetadataRequest(topics=[]))
        kinds = [type(request) for request, _ in broker.seen]
    assert kinds == [SaslHandshakeRequest, *[SaslAuthenticateRequest] * 2, *[MetadataRequest] * 2]


def test_every_connection_of_a_cluster_logs_in() -> None:
    with LoginBroker() as broker:
        settings = ClientSettings(bootstrap=f"SASL_PLAINTEXT://{broker.address}", extra=SETTINGS)
        with Cluster(settings) as cluster:
            assert cluster.nodes() == [Node(1, broker.address)]
            cluster.node(1).close()
            assert cluster.node(1).ask(MetadataRequest(topics=[])).brokers
        assert len(broker.requests(SaslHandshakeRequest)) == 2


def test_a_broker_that_does_not_know_the_password_gets_no_request() -> None:
    with LoginBroker(password="another") as broker:
        with pytest.raises(NotAdmitted, match="could not prove that it knows the password"):
            connect(broker, login())
        assert broker.requests(MetadataRequest) == []


def test_a_broker_that_skips_its_proof_gets_no_request(broker: FakeBroker) -> None:
    broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]))
    broker.on(SaslAuthenticateRequest, lambda _: SaslAuthenticateResponse())
    with pytest.raises(NotAdmitted, match="is not an answer to ours"):
        connect(broker, login())


def test_a_refused_login_is_told_in_the_brokers_words_and_without_the_password(broker: FakeBroker) -> None:
    refusal = SaslAuthenticateResponse(error_code=58, error_message="Wrong, sorry")
    broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]))
    broker.on(SaslAuthenticateRequest, lambda _: refusal)
    with pytest.raises(NotAdmitted, match=r"the login of 'me' \(PLAIN\): Wrong, sorry") as caught:
        connect(broker, login("PLAIN"))
    assert "secret" not in str(caught.value)


def test_a_mechanism_that_is_not_offered_is_told_with_those_that_are() -> None:
    with (
        LoginBroker() as broker,
        pytest.raises(NotAdmitted, match="does not take PLAIN at this port, but: SCRAM-SHA-256"),
    ):
        connect(broker, login("PLAIN"))


@pytest.mark.parametrize("announced", [True, False])
def test_a_login_where_none_is_taken(broker: FakeBroker, announced: bool) -> None:
    broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(error_code=34))
    if not announced:
        del broker.versions[17]
    with pytest.raises(NotAdmitted, match="takes no logins at this port"):
        connect(broker, login())


def test_a_login_that_ends_is_repeated_before_the_next_request() -> None:
    with LoginBroker(lifetime_ms=1) as broker:
        with connect(broker, login()) as connection:
            time.sleep(0.001)  # what is waited for is the passing of this time
            connection.ask(MetadataRequest(topics=[]))
        kinds = [type(request) for request, _ in broker.seen]
    logging_in = [SaslHandshakeRequest, SaslAuthenticateRequest, SaslAuthenticateRequest]
    assert kinds == [*logging_in, *logging_in, MetadataRequest]


def test_when_a_repeated_login_fails_nothing_was_sent() -> None:
    def hang_up(_: Message) -> Message:
        raise HangUp

    with LoginBroker(lifetime_ms=1) as broker:
        connection = connect(broker, login())
        broker.on(SaslHandshakeRequest, hang_up)
        time.sleep(0.001)
        with pytest.raises(Unreachable, match="ended the connection without an answer"):
            connection.ask(MetadataRequest(topics=[]))
        assert not connection.is_open
        assert broker.requests(MetadataRequest) == []


@pytest.mark.parametrize("request_kind", [SaslHandshakeRequest, SaslAuthenticateRequest])
def test_a_login_ends_at_the_deadline(request_kind: type[Message]) -> None:
    def keep_silent(_: Message) -> Message:
        raise KeepSilent

    with LoginBroker() as broker:
        broker.on(request_kind, keep_silent)
        before = time.monotonic()
        with pytest.raises(Unreachable, match="did not answer within"):
            connect(broker, login(), timeout_s=0.3)
        assert time.monotonic() - before >= 0.25


def test_a_tls_handshake_ends_at_the_deadline(silent: Address) -> None:
    before = time.monotonic()
    with pytest.raises(Unreachable, match=r"did not finish the TLS handshake within 0\.3 s"):
        Connection(silent, timeout_s=0.3, security=TLS)
    assert time.monotonic() - before >= 0.25


def test_a_plain_client_at_a_tls_port_is_told_so() -> None:
    with FakeBroker() as broker:
        broker.on(ListTransactionsRequest, lambda _: b"\x15\x03\x03\x00\x02\x02\x50")
        with connect(broker, Security()) as connection, pytest.raises(NotAdmitted, match="speaks TLS at this port"):
            connection.ask(ListTransactionsRequest())


def test_a_first_request_that_is_hung_up_on_gets_a_hint_and_later_ones_do_not(broker: FakeBroker) -> None:
    def hang_up(_: Message) -> Message:
        raise HangUp

    broker.on(ListTransactionsRequest, hang_up)
    with pytest.raises(NoAnswer, match=r"If it asks for a login at this port, security\.protocol=PLAINTEXT is wrong"):
        connect(broker, Security()).ask(ListTransactionsRequest())
    with connect(broker, Security()) as connection:
        connection.ask(MetadataRequest(topics=[]))
        with pytest.raises(NoAnswer) as caught:
            connection.ask(ListTransactionsRequest())
    assert "security.protocol" not in str(caught.value)


def test_a_ca_file_that_is_missing_is_named_and_the_connection_closed(broker: FakeBroker) -> None:
    nowhere = Security(tls=Tls(trusted=Pem(setting="ssl.ca.location", path="/nowhere/ca.pem")))
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location: cannot read /nowhere/ca\.pem: no such file"):
        connect(broker, nowhere)

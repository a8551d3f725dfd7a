"""Logging in, request by request: what is answered when, and what ends the connection."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.client.sasl import Login
from onceflow.errors import ErrorCode
from onceflow.wire.messages.api_versions import ApiVersionsRequest
from onceflow.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from onceflow.wire.messages.metadata import MetadataRequest
from onceflow.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from onceflow.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.support.raw_client import RawClient
from tests.support.secured_broker import MECHANISMS, SecuredBroker
from tests.support.secured_kafka import USERS
from tests.support.waiting import eventually

LIFETIME_MS = 1300
TOKEN_BYTES_MAX = 524288
"""Kafka's default of sasl.server.max.receive.size."""
OTHER_IDENTITY = "Authentication failed: Client requested an authorization id that is different from username"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "sasl.server.max.receive.size": 5000}
    with SecuredBroker(tmp_path_factory.mktemp("logins"), settings) as broker:
        yield broker
        assert "Traceback" not in broker.log


@pytest.fixture
def client(broker: SecuredBroker) -> Iterator[RawClient]:
    with broker.raw("SASL_PLAINTEXT") as client:
        yield client


def hands(mechanism: str = "PLAIN") -> SaslHandshakeRequest:
    return SaslHandshakeRequest(mechanism=mechanism)


def token(data: bytes) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=data)


def plain(user: str = "alice", password: str | None = None) -> bytes:
    return f"\0{user}\0{USERS[user] if password is None else password}".encode()


def log_in(client: RawClient, user: str = "alice", mechanism: str = "PLAIN") -> Any:
    """The answer to the last token."""
    assert client.ask(hands(mechanism)).error_code == 0
    conversation = Login(mechanism=mechanism, username=user, password=USERS[user]).conversation()
    said = next(conversation)
    while True:
        answer = client.ask(token(said))
        assert answer.error_code == 0, answer.error_message
        try:
            said = conversation.send(answer.auth_bytes)
        except StopIteration:
            return answer


def is_served(client: RawClient) -> bool:
    return bool(client.ask(MetadataRequest(topics=[])).brokers)


def test_before_the_login_only_versions_are_told(client: RawClient) -> None:
    for version in (0, 3):
        keys = client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"), version).api_keys
        assert {17, 36} <= {each.api_key for each in keys}
    client.send_all([MetadataRequest(topics=[])])
    assert client.waits_for_end()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_after_the_login_everything_is_answered(client: RawClient, mechanism: str) -> None:
    assert log_in(client, mechanism=mechanism).session_lifetime_ms == 0
    assert is_served(client)


def test_requests_right_behind_the_password_wait_for_its_check(client: RawClient) -> None:
    client.send_all([hands(), token(plain()), MetadataRequest(topics=[]), MetadataRequest(topics=[])])
    assert [client.receive_next().error_code for _ in range(2)] == [0, 0]
    assert [len(client.receive_next().brokers) for _ in range(2)] == [1, 1]


def test_requests_right_behind_a_wrong_password_are_never_answered(client: RawClient) -> None:
    client.send_all([hands(), token(plain(password="hunter2")), MetadataRequest(topics=[])])
    assert client.receive_next().error_code == 0
    assert client.receive_next().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED == 58
    assert client.waits_for_end()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "GSSAPI", "", "plain"])
def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(client: RawClient, mechanism: str) -> None:
    answer = client.ask(hands(mechanism))
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM == 33
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    assert client.waits_for_end()


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (plain(password="wrong"), "Authentication failed: Invalid username or password"),
        (b"\0nobody\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"admin" + plain(), OTHER_IDENTITY),
        (b"alice", "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"),
    ],
)
def test_what_plain_refuses_is_told_in_kafkas_words(client: RawClient, shown: bytes, said: str) -> None:
    client.ask(hands())
    answer = client.ask(token(shown))
    assert (answer.error_code, answer.error_message) == (58, said)
    assert client.waits_for_end()


def test_a_second_handshake_in_the_middle_is_an_illegal_state(client: RawClient) -> None:
    client.ask(hands())
    assert client.ask(hands()).error_code == ErrorCode.ILLEGAL_SASL_STATE == 34
    assert client.waits_for_end()


def test_a_token_without_a_handshake_ends_the_connection(client: RawClient) -> None:
    client.send_all([token(plain())])
    assert client.waits_for_end()


def test_where_no_login_is_asked_for_or_it_is_done_a_login_is_an_illegal_state(
    broker: SecuredBroker, client: RawClient
) -> None:
    log_in(client)
    with broker.raw("PLAINTEXT") as open_client:
        for each in (client, open_client):
            assert each.ask(hands()).error_code == 34
            assert each.ask(token(plain())).error_code == 34
            assert is_served(each)


def test_the_old_way_tokens_have_no_header(client: RawClient) -> None:
    assert client.ask(hands("SCRAM-SHA-256"), version=0).error_code == 0
    conversation = Login(mechanism="SCRAM-SHA-256", username="alice", password=USERS["alice"]).conversation()
    client.send_frame(next(conversation))
    client.send_frame(conversation.send(client.read_frame()))
    with pytest.raises(StopIteration):
        conversation.send(client.read_frame())
    assert is_served(client)


def test_the_old_way_plain_is_answered_with_an_empty_token_and_a_wrong_password_with_the_end(
    broker: SecuredBroker, client: RawClient
) -> None:
    client.ask(hands(), version=0)
    client.send_frame(plain())
    assert client.read_frame() == b""
    assert is_served(client)
    with broker.raw("SASL_PLAINTEXT") as wrong:
        wrong.ask(hands(), version=0)
        wrong.send_frame(plain(password="hunter2"))
        assert wrong.waits_for_end()


def test_a_request_before_the_login_may_not_be_large(client: RawClient) -> None:
    client.ask(hands())
    client.send_bytes(struct.pack(">i", 5001))
    assert client.waits_for_end()


def test_passwords_among_the_settings_are_not_described(broker: SecuredBroker) -> None:
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=["ssl.key.password"])
    with broker.raw() as client:
        [result] = client.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True)).results
    [setting] = result.configs
    assert (setting.value, setting.is_sensitive) == (None, True)


# Logging in again


def test_a_login_ends_unless_the_client_logs_in_again_as_the_same_user(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path, {"connections.max.reauth.ms": LIFETIME_MS}) as broker:
        with broker.raw("SASL_PLAINTEXT") as faithful, broker.raw("SASL_PLAINTEXT") as lazy:
            for client in (faithful, lazy):
                assert log_in(client).session_lifetime_ms == LIFETIME_MS
            assert log_in(faithful).session_lifetime_ms == LIFETIME_MS
            assert faithful.ask(hands()).error_code == 34, "not twice within a second"

            def has_ended() -> bool:
                lazy.send_all([MetadataRequest(topics=[])])
                try:
                    lazy.receive_next()
                except Exception:
                    return True
                assert log_in_again_if_due(faithful)
                return False

            eventually(has_ended, "the login of who does nothing ends", every_s=0.3)
            assert is_served(faithful)
        refuses_another_user_and_another_mechanism(broker)
        takes_no_larger_token_than_the_first_time(broker)
        assert "Traceback" not in broker.log


def log_in_again_if_due(client: RawClient) -> bool:
    answer = client.ask(hands())
    if answer.error_code == 0:
        assert client.ask(token(plain())).error_code == 0
    return is_served(client)


def takes_no_larger_token_than_the_first_time(broker: SecuredBroker) -> None:
    with broker.raw("SASL_PLAINTEXT") as client:
        log_in(client)
        assert client.ask(hands()).error_code == 0
        client.send_all([token(bytes(TOKEN_BYTES_MAX))])
        assert client.waits_for_end()


def refuses_another_user_and_another_mechanism(broker: SecuredBroker) -> None:
    with broker.raw("SASL_PLAINTEXT") as client:
        log_in(client)
        client.ask(hands())
        answer = client.ask(token(plain("admin")))
        assert answer.error_code == 58
        assert answer.error_message == "Cannot change principals during re-authentication from User.alice: User.admin"
        assert client.waits_for_end()
    with broker.raw("SASL_PLAINTEXT") as client:
        log_in(client)
        assert MECHANISMS[1] == "SCRAM-SHA-256"
        assert client.ask(hands("SCRAM-SHA-256")).error_code == 33
        assert client.waits_for_end()

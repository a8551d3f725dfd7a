"""TLS over a real socket: whom we trust, what we show, and what is said when a file is not what it should be."""

from __future__ import annotations

import ssl
import struct
import time
from pathlib import Path

import pytest

from onceflow.client.connection import Connection, NoAnswer, NotAdmitted, Unreachable
from onceflow.client.security import Security
from onceflow.client.tls import context, well_formed
from onceflow.errors import ConfigError
from onceflow.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from onceflow.wire.messages.metadata import MetadataRequest
from tests.support.secured_kafka import Certificates
from tests.unit.client.secured_broker import TlsBroker


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def security(**settings: object) -> Security:
    """`ssl_ca_location=path` and so on."""
    named = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return Security.of({"security.protocol": "SSL", **named})


def trusting(certificates: Certificates, **settings: object) -> Security:
    return security(ssl_ca_location=certificates.ca, **settings)


def brokers_seen(broker: TlsBroker, wanted: Security, host: str = "127.0.0.1") -> int:
    with Connection(broker.address._replace(host=host), timeout_s=5, security=wanted) as connection:
        return len(connection.ask(MetadataRequest(topics=[])).brokers)


def test_a_broker_of_a_trusted_authority_is_asked(certificates: Certificates) -> None:
    text = certificates.ca.read_text()
    with TlsBroker(certificates) as broker:
        assert brokers_seen(broker, trusting(certificates)) == 1
        assert brokers_seen(broker, security(ssl_truststore_certificates=text)) == 1
        assert brokers_seen(broker, security(ssl_truststore_certificates=" ".join(text.split("\n")))) == 1
        assert brokers_seen(broker, trusting(certificates, ssl_enabled_protocols="TLSv1.2")) == 1


def test_a_broker_of_nobody_trusted_gets_no_request(certificates: Certificates) -> None:
    with TlsBroker(certificates) as broker:
        for untrusting in (security(ssl_ca_location=certificates.other_ca), security()):
            with pytest.raises(NotAdmitted, match=r"is not trusted here \(.*certificate.*name the file of its CA"):
                brokers_seen(broker, untrusting)
        assert broker.seen == []
        assert brokers_seen(broker, security(enable_ssl_certificate_verification="false")) == 1


def test_a_broker_of_another_name_gets_no_request_unless_any_name_will_do(certificates: Certificates) -> None:
    with TlsBroker(certificates) as broker:
        with pytest.raises(NotAdmitted, match="is not for localhost: connect by the name"):
            brokers_seen(broker, trusting(certificates), host="localhost")
        assert broker.seen == []
        any_name = trusting(certificates, ssl_endpoint_identification_algorithm="")
        assert brokers_seen(broker, any_name, host="localhost") == 1
        still_checked = security(ssl_ca_location=certificates.other_ca, ssl_endpoint_identification_algorithm="")
        with pytest.raises(NotAdmitted, match="is not trusted here"):
            brokers_seen(broker, still_checked)


def test_a_client_certificate_is_shown_from_files_and_from_text(certificates: Certificates) -> None:
    ours = certificates
    two_files = {"ssl_certificate_location": ours.client, "ssl_key_location": ours.client_key}
    encrypted = {
        "ssl_certificate_location": ours.client,
        "ssl_key_location": ours.client_key_encrypted,
        "ssl_key_password": ours.client_key_password,
    }
    text = {
        "ssl_keystore_certificate_chain": ours.client.read_text(),
        "ssl_keystore_key": ours.client_key.read_text().replace("\n", " "),
    }
    one_file = {"ssl_keystore_location": ours.client_store, "ssl_keystore_type": "PEM"}
    with TlsBroker(certificates, asks=True) as broker:
        for shown in (two_files, encrypted, text, one_file):
            assert brokers_seen(broker, trusting(certificates, **shown)) == 1


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_broker_that_asks_for_a_certificate_and_gets_none_refuses(certificates: Certificates, version: str) -> None:
    with TlsBroker(certificates, asks=True) as broker:
        # With TLS 1.3 the broker may have hung up before its reason is read.
        with pytest.raises((NotAdmitted, Unreachable), match=r"If it asks for a client certificate, set ssl\.cert"):
            brokers_seen(broker, trusting(certificates, ssl_enabled_protocols=version))
        assert broker.seen == []


def test_messages_of_many_tls_records_go_both_ways(certificates: Certificates) -> None:
    names = [f"{number:030000d}" for number in range(40)]
    with TlsBroker(certificates) as broker:
        broker.on(
            ListTransactionsRequest, lambda asked: ListTransactionsResponse(unknown_state_filters=asked.state_filters)
        )
        with Connection(broker.address, timeout_s=10, security=trusting(certificates)) as connection:
            answer = connection.ask(ListTransactionsRequest(state_filters=names))
    assert answer.unknown_state_filters == names


class SlowReader(TlsBroker):
    """Answers the first request, and reads what follows a little at a time."""

    def _serve_encrypted(self, encrypted: ssl.SSLSocket) -> None:
        with encrypted.makefile("rb") as incoming:
            encrypted.sendall(self._answer(incoming.read(struct.unpack(">i", incoming.read(4))[0])))
            while not self._over.wait(0.05) and incoming.read(1 << 17):
                pass


def test_the_deadline_of_a_tls_connection_is_for_the_whole_request_not_for_each_piece(
    certificates: Certificates,
) -> None:
    with SlowReader(certificates) as broker:
        connection = Connection(broker.address, timeout_s=5, security=trusting(certificates))
        before = time.monotonic()
        with pytest.raises(NoAnswer, match=r"did not answer within 0\.5 s"):
            connection.ask(ListTransactionsRequest(state_filters=["x" * 30_000] * 1000), timeout_s=0.5)
        assert 0.49 < time.monotonic() - before < 8  # all of it would take 12 s
        assert not connection.is_open


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xfe\xed\xfe\xed\0\0\0\2", "is a JKS store. Convert it with: keytool"),
        (b"\x30\x82\x01\x02", "is a PKCS12 store or in DER form. Convert a store with: openssl pkcs12"),
        (b"hello", "ssl.ca.location holds no certificate in PEM form"),
        (b"", "ssl.ca.location holds no certificate in PEM form"),
    ],
)
def test_a_ca_file_of_another_kind_is_told_with_what_to_do(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        made(security(ssl_ca_location=path))


def test_text_without_certificates_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.ca\.pem holds no certificate in PEM form"):
        made(security(ssl_ca_pem="hello"))


def test_keys_that_cannot_be_used_are_told_apart(certificates: Certificates, tmp_path: Path) -> None:
    ours = certificates
    other_key = tmp_path / "other.key"
    other_key.write_text(ours.server.read_text().partition("-----BEGIN CERTIFICATE")[0])
    for key, settings, words in (
        (other_key, {}, "the key in ssl.key.location does not belong to the certificate in ssl.certificate.location"),
        (ours.client_key_encrypted, {}, "the key in ssl.key.location is encrypted: set ssl.key.password"),
        (ours.client_key_encrypted, {"ssl_key_password": "hunter2"}, "ssl.key.password does not open the key"),
        (ours.ca, {}, "ssl.key.location holds no key in PEM form"),
        (tmp_path / "none", {}, "ssl.key.location: cannot read .*none: no such file"),
    ):
        wanted = security(ssl_certificate_location=ours.client, ssl_key_location=key, **settings)
        with pytest.raises(ConfigError, match=words) as caught:
            made(wanted)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.location holds no key in PEM form"):
        made(security(ssl_certificate_location=ours.client))


def test_pem_on_one_line_gets_its_lines_back(certificates: Certificates) -> None:
    text = certificates.client.read_text()
    assert well_formed(" ".join(text.split("\n"))) == text
    assert well_formed(text + text) == text + text


def made(wanted: Security) -> ssl.SSLContext:
    assert wanted.tls is not None
    return context(wanted.tls)

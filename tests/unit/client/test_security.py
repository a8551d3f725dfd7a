"""From settings as people write them to TLS and a login; contradictions are refused and secrets not shown."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from onceflow.client.sasl import Login
from onceflow.client.security import PLAINTEXT, SECURITY_SETTINGS, Pem, Security, Tls
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError

LOGIN = {"sasl.username": "me", "sasl.password": "hunter2"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="hunter2";'


def sasl(mechanism: str = "SCRAM-SHA-256") -> Login:
    return Login(mechanism=mechanism, username="me", password="hunter2")


def file(setting: str, path: str) -> Pem:
    return Pem(setting=setting, path=path)


def test_nothing_said_means_plaintext() -> None:
    assert Security.of({}) == PLAINTEXT
    assert Security.of({"client.id": "me", "fetch.min.bytes": "1"}) == PLAINTEXT
    assert Security.of({"security.protocol": "plaintext"}).protocol == "PLAINTEXT"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"security.protocol": "SSL"}, Security(tls=Tls())),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "plain", **LOGIN}, Security(login=sasl("PLAIN"))),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512", **LOGIN},
            Security(tls=Tls(), login=sasl("SCRAM-SHA-512")),
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS},
            Security(tls=Tls(), login=sasl()),
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": JAAS,
                **LOGIN,
            },
            Security(login=sasl()),
        ),
    ],
)
def test_the_four_protocols(settings: Mapping[str, str], expected: Security) -> None:
    found = Security.of(settings)
    assert found == expected
    assert found.protocol == settings["security.protocol"].upper()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"ssl.ca.location": "ca.pem"}, Tls(trusted=file("ssl.ca.location", "ca.pem"))),
        ({"ssl.truststore.location": "ca.pem"}, Tls(trusted=file("ssl.truststore.location", "ca.pem"))),
        (
            {"ssl.truststore.type": "pem", "ssl.truststore.certificates": "-----BEGIN"},
            Tls(trusted=Pem(setting="ssl.truststore.certificates", text="-----BEGIN")),
        ),
        (
            {"ssl.certificate.location": "c.pem", "ssl.key.location": "k.pem", "ssl.key.password": "p"},
            Tls(
                certificate=file("ssl.certificate.location", "c.pem"),
                key=file("ssl.key.location", "k.pem"),
                key_password="p",
            ),
        ),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "store.pem"},
            Tls(certificate=file("ssl.keystore.location", "store.pem")),
        ),
        (
            {"ssl.keystore.certificate.chain": "C", "ssl.keystore.key": "K"},
            Tls(
                certificate=Pem(setting="ssl.keystore.certificate.chain", text="C"),
                key=Pem(setting="ssl.keystore.key", text="K"),
            ),
        ),
        ({"ssl.endpoint.identification.algorithm": ""}, Tls(check_host=False)),
        ({"ssl.endpoint.identification.algorithm": "none"}, Tls(check_host=False)),
        ({"ssl.endpoint.identification.algorithm": "HTTPS"}, Tls()),
        ({"enable.ssl.certificate.verification": "False"}, Tls(verify=False, check_host=False)),
        ({"enable.ssl.certificate.verification": "true"}, Tls()),
        ({"ssl.enabled.protocols": "TLSv1.2, TLSv1.3"}, Tls(versions=("TLSv1.2", "TLSv1.3"))),
    ],
)
def test_tls_by_the_names_of_java_and_of_librdkafka(settings: Mapping[str, str], expected: Tls) -> None:
    assert Security.of({"security.protocol": "SSL", **settings}).tls == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"security.protocol": "TLS"},
            "security.protocol=TLS is not supported: it is PLAINTEXT, SSL, SASL_PLAINTEXT or",
        ),
        ({"security.protocal": "SSL"}, "'security.protocal' here; did you mean 'security.protocol'"),
        ({"ssl.ca.locaton": "x"}, "'ssl.ca.locaton' here; did you mean 'ssl.ca.location'"),
        ({"sasl.user.name": "x"}, "'sasl.user.name' here; did you mean 'sasl.username'"),
        ({"ssl.provider": "x"}, "no security setting 'ssl.provider'"),
        ({"ssl.ca.location": "x"}, "ssl.ca.location has no effect with security.protocol=PLAINTEXT: it takes SSL or"),
        (
            {"security.protocol": "SSL", **LOGIN},
            "sasl.username has no effect with security.protocol=SSL: it takes SASL",
        ),
    ],
)
def test_settings_that_are_unknown_or_have_no_effect(settings: Mapping[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Security.of(settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (LOGIN, "sasl.mechanism is missing: it is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is not supported"),
        ({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "GSSAPI"}, "contradict each other"),
        ({"sasl.mechanism": "PLAIN", "sasl.password": "hunter2"}, "sasl.username is missing"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "me"}, "sasl.password is missing"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}, "for SCRAM-SHA-256 and SCRAM-SHA-512, and .* is PLAIN"),
        ({"sasl.mechanism": "PLAIN", **LOGIN, "sasl.password": "hunter2\0"}, "zero byte"),
        (
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS, "sasl.password": "hunter22"},
            "sasl.jaas.config and sasl.username or sasl.password contradict each other",
        ),
    ],
)
def test_half_a_login_is_refused_and_the_password_not_shown(settings: Mapping[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Security.of({"security.protocol": "SASL_PLAINTEXT", **settings})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"ssl.ca.location": "a", "ssl.truststore.location": "b"},
            "ssl.ca.location and ssl.truststore.location contra",
        ),
        ({"ssl.key.location": "a"}, "ssl.key.location has no effect without a certificate"),
        ({"ssl.key.password": "hunter2"}, "ssl.key.password has no effect without a certificate"),
        (
            {"ssl.keystore.location": "a", "ssl.key.location": "b"},
            "holds the key too, and contradicts ssl.key.location",
        ),
        ({"ssl.truststore.type": "JKS"}, "type=JKS cannot be read here, only PEM. Convert it with: keytool .* openssl"),
        ({"ssl.keystore.type": "PKCS12"}, "type=PKCS12 cannot be read here, only PEM. Convert it with: openssl pkcs12"),
        (
            {"ssl.truststore.location": "x.jks", "ssl.truststore.password": "hunter2"},
            "truststore.password has no effect",
        ),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "algorithm=ldaps is not supported: it is https or none"),
        ({"enable.ssl.certificate.verification": "no"}, "verification=no is not supported: it is true or false"),
        ({"ssl.enabled.protocols": "TLSv1.2,TLSv1.1"}, "ssl.enabled.protocols=TLSv1.1 is not supported"),
        (
            {"enable.ssl.certificate.verification": "false", "ssl.endpoint.identification.algorithm": "https"},
            "cannot be had with enable.ssl.certificate.verification=false",
        ),
    ],
)
def test_tls_that_cannot_be_is_refused(settings: Mapping[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Security.of({"security.protocol": "SSL", **settings})
    assert "hunter2" not in str(caught.value)


def test_security_travels_and_shows_no_secrets() -> None:
    secrets = {"ssl.keystore.key": "KEYTEXT", "ssl.key.password": "keypass"}
    tls = {"ssl.keystore.certificate.chain": "CHAIN", "ssl.ca.location": "ca.pem", **secrets}
    security = Security.of({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **LOGIN, **tls})
    assert pickle.loads(pickle.dumps(security)) == security
    assert hash(security) == hash(pickle.loads(pickle.dumps(security)))
    shown = repr(security)
    assert "ca.pem" in shown
    assert not [secret for secret in ("hunter2", "KEYTEXT", "keypass") if secret in shown]


def test_client_settings_travel_and_show_no_secrets() -> None:
    settings = ClientSettings(bootstrap="kafka:9092", extra={"security.protocol": "SASL_SSL", **LOGIN})
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "kafka:9092" in repr(settings)
    assert "hunter2" not in repr(settings)


def test_all_settings_are_named_once() -> None:
    assert len(set(SECURITY_SETTINGS)) == len(SECURITY_SETTINGS)

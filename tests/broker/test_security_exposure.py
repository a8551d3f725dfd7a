"""Without a login the broker listens on loopback only, unless told otherwise. Mistakes about TLS are one sentence."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

import onceflow
from onceflow.broker.listeners import Listener, advertised, is_loopback, listeners_of
from onceflow.broker.tls import server_context
from onceflow.cli import main
from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.config import BrokerConfig
from onceflow.errors import BrokerStartError, ConfigError
from tests.support.broker_process import run_broker_command
from tests.support.secured_broker import add_users
from tests.support.secured_kafka import Certificates

UTC_TIME = b"\x17\x0d"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def complaint(data: Path, *options: str) -> str:
    done = run_broker_command(data, *options)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not data.exists()
    return done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--listen", "0.0.0.0:0"],
        ["--listen", "[::]:0"],
        ["--listen", "127.0.0.1:0", "--listen", "192.0.2.1:0"],
        ["--listen", "SSL://0.0.0.0:0"],
        ["--listen", "SASL_PLAINTEXT://0.0.0.0:0", "--set", "sasl.enabled.mechanisms=PLAIN"],
        ["--set", "listeners=PLAINTEXT://0.0.0.0:0"],
        ["--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"],
        ["--listen", "SASL_PLAINTEXT://0.0.0.0:0", "--http", "0.0.0.0:0"],
    ],
)
def test_what_other_machines_could_use_without_a_login_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert main(["broker", "--data", str(tmp_path / "data"), *options]) == 2
    assert not (tmp_path / "data").exists()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "can be reached from other machines" in said
    assert "--insecure" in said


def test_a_program_cannot_do_it_unawares_either(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        onceflow.Broker(tmp_path, host="0.0.0.0")
    with pytest.raises(ConfigError, match="has no login"):
        onceflow.Broker(tmp_path, http="0.0.0.0:0")
    with onceflow.Broker(tmp_path, host="0.0.0.0", durability="os", insecure=True) as broker:
        assert f"--insecure: {broker.bootstrap} can be reached from other machines" in broker.log_file.read_text()
        here = broker.bootstrap.replace("0.0.0.0", "127.0.0.1")
        with Cluster(ClientSettings(bootstrap=here)) as cluster:
            assert [str(node.address) for node in cluster.nodes()] == [here], "not 0.0.0.0, where nobody can connect to"


def test_a_listener_with_a_login_may_be_reached(tmp_path: Path, certificates: Certificates) -> None:
    with onceflow.Broker(
        tmp_path,
        listeners=["SASL_PLAINTEXT://0.0.0.0:0", "SASL_SSL://0.0.0.0:0", "SSL://0.0.0.0:0"],
        settings={
            "ssl.keystore.location": str(certificates.server),
            "ssl.truststore.location": str(certificates.ca),
            "ssl.client.auth": "required",
        },
        durability="os",
    ) as broker:
        assert len(set(broker.bootstraps)) == 3
        assert broker.log_file.read_text() == ""


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_what_is_loopback(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ["ssl.keystore.location", "PEM"]),
        ({"ssl.keystore.location": "/no/such.pem"}, ["ssl.keystore.location", "/no/such.pem", "No such file"]),
        ({"ssl.keystore.location": "{ca}"}, ["no private key", "ssl.keystore.location"]),
        ({"ssl.keystore.location": "{mixed}"}, ["does not belong to the certificate"]),
        ({"ssl.keystore.location": "{encrypted}"}, ["is encrypted", "ssl.key.password"]),
        ({"ssl.keystore.location": "{server}", "ssl.client.auth": "required"}, ["ssl.truststore.location"]),
        ({"ssl.keystore.location": "{server}", "ssl.client.auth": "maybe"}, ["ssl.client.auth", "requested"]),
        ({"ssl.keystore.type": "JKS"}, ["ssl.keystore.type", "PEM"]),
        ({"ssl.enabled.protocols": "SSLv3"}, ["ssl.enabled.protocols", "TLSv1.2"]),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, ["sasl.enabled.mechanisms", "SCRAM-SHA-512"]),
    ],
)
def test_mistakes_about_tls_are_one_sentence(
    tmp_path: Path, certificates: Certificates, settings: dict[str, str], words: list[str]
) -> None:
    files = {"ca": certificates.ca, "server": certificates.server, **odd_stores(tmp_path, certificates)}
    with pytest.raises(ConfigError) as said:
        server_context(BrokerConfig(given={name: value.format(**files) for name, value in settings.items()}))
    for word in words:
        assert word in str(said.value)


def test_a_password_on_the_command_line_is_refused_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "--data", str(tmp_path / "data"), "--set", "ssl.key.password=hunter2"]) == 2
    said = capsys.readouterr().err
    assert "--config" in said
    assert "hunter2" not in said


def odd_stores(folder: Path, certificates: Certificates) -> dict[str, Path]:
    mixed, encrypted = folder / "mixed.pem", folder / "encrypted.pem"
    mixed.write_text(certificates.client_key.read_text() + certificates.ca.read_text())
    encrypted.write_text(certificates.client_key_encrypted.read_text() + certificates.client.read_text())
    return {"mixed": mixed, "encrypted": encrypted}


def test_the_password_of_the_key_comes_from_a_file_and_is_shown_nowhere(
    tmp_path: Path, certificates: Certificates
) -> None:
    password = certificates.client_key_password
    store = odd_stores(tmp_path, certificates)["encrypted"]
    file = tmp_path / "server.properties"
    file.write_text(
        f"# ours\nlisteners=SSL://127.0.0.1:0\nssl.keystore.location={store}\nssl.key.password={password}\n"
    )
    command = [sys.executable, "-m", "onceflow", "broker", "--config", str(file), "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, "--log-level", "debug"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("onceflow broker ready on SSL://127.0.0.1:")
        process.terminate()
        _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert password not in said
    file.write_text(file.read_text().replace(password, "another-one"))
    said = complaint(tmp_path / "other", "--config", str(file))
    assert "ssl.key.password does not open the key" in said
    assert "another-one" not in said


def test_an_embedded_broker_does_not_put_passwords_on_its_command_line(
    tmp_path: Path, certificates: Certificates
) -> None:
    store = odd_stores(tmp_path, certificates)["encrypted"]
    settings = {"ssl.keystore.location": str(store), "ssl.key.password": certificates.client_key_password}
    broker = onceflow.Broker(tmp_path / "data", listeners=["SSL://127.0.0.1:0"], settings=settings, durability="os")
    with broker:
        assert certificates.client_key_password not in Path(f"/proc/{broker.pid}/cmdline").read_text()
    with pytest.raises(BrokerStartError, match=r"ssl\.key\.password does not open the key"):
        onceflow.Broker(
            tmp_path / "data", listeners=["SSL://127.0.0.1:0"], settings={**settings, "ssl.key.password": "no"}
        ).start()


def test_the_pipe_with_the_passwords_is_closed_where_a_broker_cannot_be_started(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    broker = onceflow.Broker(tmp_path / "file", settings={"ssl.key.password": "secret"})
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BrokerStartError, match="cannot be used"):
        broker.start()
    assert os.listdir("/proc/self/fd") == before


def test_an_expired_certificate_is_a_warning(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    key, _, certificate = certificates.server.read_text().partition("-----BEGIN CERTIFICATE")
    der = ssl.PEM_cert_to_DER_cert("-----BEGIN CERTIFICATE" + certificate.partition("-----BEGIN")[0])
    ends = der.index(UTC_TIME, der.index(UTC_TIME) + 1) + len(UTC_TIME)
    store = tmp_path / "old-store.pem"  # who signed it would not have, but clients have to find that out
    store.write_text(key + ssl.DER_cert_to_PEM_cert(der[:ends] + b"200201000000Z" + der[ends + 13 :]))
    server_context(BrokerConfig(given={"ssl.keystore.location": str(store)}))
    assert "expired on 2020-02-01" in caplog.text
    caplog.clear()
    server_context(BrokerConfig(given={"ssl.keystore.location": str(certificates.server)}))
    assert caplog.text == ""


# Addresses


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("127.0.0.1:9092", Listener("127.0.0.1", 9092)),
        (":9092", Listener("127.0.0.1", 9092)),
        ("[::1]:0", Listener("::1", 0)),
        ("sasl_ssl://kafka:9093", Listener("kafka", 9093, "SASL_SSL")),
        ("SSL://[::]:9093", Listener("::", 9093, "SSL")),
    ],
)
def test_how_a_listener_is_written(text: str, listener: Listener) -> None:
    assert Listener.parse(text) == listener
    assert Listener.parse(str(listener)) == listener


@pytest.mark.parametrize("text", ["9092", "a:b", "host:65536", "HTTP://a:1", "SSL:/a:1", "::1:9092", "a:1/", ""])
def test_what_is_no_listener(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        Listener.parse(text)


def test_two_listeners_cannot_have_one_address() -> None:
    with pytest.raises(ConfigError, match="same address"):
        listeners_of(BrokerConfig(), ["a:1", "SSL://a:1"])


def test_each_listener_may_advertise_another_address() -> None:
    given = {"advertised.listeners": "SSL://outside:2, PLAINTEXT://inside:1"}
    listeners = [Listener("a", 10), Listener("0.0.0.0", 11, "SSL"), Listener("a", 12, "SASL_SSL"), Listener("::", 13)]
    assert advertised(BrokerConfig(given=given), listeners) == [("inside", 1), ("outside", 2), ("a", 12), None]
    with pytest.raises(ConfigError, match="no listener speaks it"):
        advertised(BrokerConfig(given=given), listeners[:1])


def test_users_of_the_directory_are_there_at_the_start_and_a_damaged_file_stops_it(tmp_path: Path) -> None:
    add_users(tmp_path / "data", {"alice": "alice-secret"})
    (tmp_path / "data" / "users.json").write_text("{")
    done = run_broker_command(tmp_path / "data", "--listen", "SASL_PLAINTEXT://127.0.0.1:0")
    assert done.returncode == 1
    assert "users.json is damaged" in done.stderr
    assert "Traceback" not in done.stderr

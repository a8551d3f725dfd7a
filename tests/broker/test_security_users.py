"""`onceflow users`: in a directory, and at a running broker, by whoever may."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import onceflow
from onceflow.cli import main
from onceflow.client.cluster import Cluster
from onceflow.client.connection import NotAdmitted
from onceflow.client.settings import ClientSettings

PASSWORD = "pa=ss, \u00e9 word"


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    (tmp_path / "password").write_text(PASSWORD + "\n")
    return str(tmp_path / "password")


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def lets_in(bootstrap: str, user: str, password: str, mechanism: str) -> bool:
    login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    extra = {"security.protocol": "SASL_PLAINTEXT", **login}
    try:
        with Cluster(ClientSettings(bootstrap=bootstrap, extra=extra)) as cluster:
            return bool(cluster.nodes())
    except NotAdmitted:
        return False


def users_in(data: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, int]]:
    capsys.readouterr()
    assert main(["users", "list", "--json", "--data", data]) == 0
    return {each["name"]: each["mechanisms"] for each in json.loads(capsys.readouterr().out)}


def test_users_of_a_directory_come_and_go(data: str, password_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["users", "add", "alice", "--data", data, "--password-file", password_file]) == 0
    assert main(["users", "add", "bob", "--data", data, "--password-file", password_file, "--mechanism",
                 "SCRAM-SHA-512", "--iterations", "4096"]) == 0  # fmt: skip
    assert users_in(data, capsys) == {
        "alice": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192},
        "bob": {"SCRAM-SHA-512": 4096},
    }
    assert main(["users", "list", "--data", data]) == 0
    assert "alice" in capsys.readouterr().out
    assert main(["users", "delete", "bob", "--data", data]) == 0
    assert list(users_in(data, capsys)) == ["alice"]
    assert PASSWORD not in (Path(data) / "users.json").read_text()


@pytest.fixture
def broker(data: str, password_file: str) -> Iterator[onceflow.Broker]:
    assert main(["users", "add", "admin", "--data", data, "--password-file", password_file]) == 0
    listeners = ["SASL_PLAINTEXT://127.0.0.1:0"]
    settings = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"}
    with onceflow.Broker(data, listeners=listeners, settings=settings, durability="os") as broker:
        yield broker


def test_users_of_a_running_broker_are_changed_through_its_address(
    broker: onceflow.Broker, password_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--bootstrap", broker.bootstrap]
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin"}
    for name, value in {**login, "sasl.password": PASSWORD}.items():
        options += ["--client-config", f"{name}={value}"]
    assert main(["users", "add", "alice", "--password-file", password_file, *options]) == 0
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert lets_in(broker.bootstrap, "alice", PASSWORD, mechanism)
    monkeypatch.setattr("sys.stdin", io.StringIO("another one\n"))
    assert main(["users", "passwd", "alice", "--password-stdin", *options]) == 0
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert not lets_in(broker.bootstrap, "alice", PASSWORD, mechanism)
        assert lets_in(broker.bootstrap, "alice", "another one", mechanism)
    broker.kill()
    broker.start()
    assert lets_in(broker.bootstrap, "alice", "another one", "PLAIN")
    assert main(["users", "delete", "alice", *options]) == 0
    assert not lets_in(broker.bootstrap, "alice", "another one", "PLAIN")
    capsys.readouterr()
    assert main(["users", "add", "admin", "--password-file", password_file, *options]) == 1
    assert "there is a user 'admin' already" in capsys.readouterr().err
    for action in ("passwd", "delete"):
        password = ["--password-file", password_file] if action == "passwd" else []
        assert main(["users", action, "alice", *password, *options]) == 1
        assert "there is no user 'alice'" in capsys.readouterr().err


def test_the_directory_of_a_running_broker_is_left_alone(
    broker: onceflow.Broker, data: str, password_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (Path(data) / "users.json").read_bytes()
    assert main(["users", "add", "eve", "--data", data, "--password-file", password_file]) == 1
    assert "a broker is running" in (said := capsys.readouterr().err)
    assert "--bootstrap" in said
    assert (Path(data) / "users.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "alice"], "--password-file or --password-stdin"),
        (["add", "", "--password-stdin"], "needs a name"),
        (["add", "alice", "--password-stdin"], "The password is empty"),
        (["add", "alice", "--password-file", "/no/such/file"], "Cannot read /no/such/file"),
        (["add", "alice", "--password-stdin", "--iterations", "100"], "from 4096 to 16384"),
        (["add", "alice", "--password-stdin", "--bootstrap", "127.0.0.1:1"], "give one of them"),
        (["add", "alice", "hunter2"], "unrecognized arguments"),
    ],
)
def test_mistakes_are_one_sentence_and_change_nothing(
    data: str,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["users", *arguments, "--data", data]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.count("\n") == 1
    assert not (Path(data) / "users.json").exists()


def test_a_password_is_asked_for_twice(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["one", "two", "same", "same"])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(answers))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert main(["users", "add", "alice", "--data", data]) == 2
    assert not (Path(data) / "users.json").exists()
    assert main(["users", "add", "alice", "--data", data]) == 0


def test_users_are_managed_by_other_clients_too(broker: onceflow.Broker) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "admin", "sasl.password": PASSWORD}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_PLAINTEXT", **login})
    rounds = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 10_000)
    upsertion = UserScramCredentialUpsertion("dora", rounds, b"dora-secret")
    admin.alter_user_scram_credentials([upsertion])["dora"].result(timeout=15)
    assert lets_in(broker.bootstrap, "dora", "dora-secret", "SCRAM-SHA-512")
    assert lets_in(broker.bootstrap, "dora", "dora-secret", "PLAIN")
    assert not lets_in(broker.bootstrap, "dora", "dora-secret", "SCRAM-SHA-256")
    described = admin.describe_user_scram_credentials(["dora"])["dora"].result(timeout=15)
    assert [(info.mechanism, info.iterations) for info in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 10_000)
    ]
    deletion = UserScramCredentialDeletion("dora", ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([deletion])["dora"].result(timeout=15)
    assert not lets_in(broker.bootstrap, "dora", "dora-secret", "SCRAM-SHA-512")

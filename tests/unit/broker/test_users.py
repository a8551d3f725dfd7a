"""The users of a data directory: salted and hashed, written as a whole, readable for nobody else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.users import Change, Credential, Users
from onceflow.errors import CorruptLog, ErrorCode
from onceflow.log.files import RealFileSystem
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.log.small_files import to_json
from onceflow.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from onceflow.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from tests.support.memory_broker import MemoryBroker

SHA_256, SHA_512 = 1, 2
PASSWORD = "correct horse battery staple"


def given_password(user: str, mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD) -> Change:
    return Change(user=user, mechanism=mechanism, credential=Credential.of_password(mechanism, password, 4096))


def test_the_file_has_no_password_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    users = Users(RealFileSystem(), tmp_path)
    users.apply([given_password("alice"), given_password("alice", "SCRAM-SHA-512")])
    file = tmp_path / "users.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in file.read_text()
    assert PASSWORD not in repr(users.credentials("alice"))
    again = Users(RealFileSystem(), tmp_path)
    assert list(again) == ["alice"]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        credential, exists = again.to_check("alice", mechanism)
        assert exists
        assert credential.is_password(PASSWORD)
        assert not credential.is_password(PASSWORD + " ")


def test_a_password_of_nobody_is_hashed_as_those_of_most_users_are() -> None:
    files = MemoryFileSystem()
    files.make_directory(Path("/data"))
    users = Users(files, Path("/data"))
    assert users.to_check_password("nobody")[0].mechanism == "SCRAM-SHA-256"
    users.apply([given_password(user, "SCRAM-SHA-512") for user in ("alice", "bob")])
    users.apply([given_password("carol")])
    assert users.to_check_password("nobody")[0].mechanism == "SCRAM-SHA-512"
    assert users.to_check_password("carol")[0].mechanism == "SCRAM-SHA-256"
    users.apply([given_password("alice"), given_password("dave")])
    assert users.to_check_password("nobody")[0].mechanism == "SCRAM-SHA-256"


def test_two_users_with_the_same_password_share_nothing_in_the_file(tmp_path: Path) -> None:
    Users(RealFileSystem(), tmp_path).apply([given_password("alice"), given_password("bob")])
    stored = json.loads((tmp_path / "users.json").read_text())["users"]
    alice, bob = stored["alice"]["SCRAM-SHA-256"], stored["bob"]["SCRAM-SHA-256"]
    assert all(alice[key] != bob[key] for key in ("salt", "stored_key", "server_key"))


def test_the_salt_of_a_user_that_does_not_exist_survives_a_restart(tmp_path: Path) -> None:
    users = Users(RealFileSystem(), tmp_path)
    users.apply([given_password("alice")])
    made_up, _ = users.to_check("nobody", "SCRAM-SHA-256")
    again, exists = Users(RealFileSystem(), tmp_path).to_check("nobody", "SCRAM-SHA-256")
    assert (again.salt, exists) == (made_up.salt, False)


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"version": 2}', b"\xff", to_json({"version": 2})])
def test_a_damaged_file_is_an_error_and_not_a_broker_without_users(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "users.json").write_bytes(damage)
    with pytest.raises(CorruptLog, match=r"users\.json is damaged"):
        Users(RealFileSystem(), tmp_path)


@pytest.mark.parametrize("key", ["salt", "iterations", "stored_key", "server_key"])
def test_a_damaged_credential_is_an_error(tmp_path: Path, key: str) -> None:
    Users(RealFileSystem(), tmp_path).apply([given_password("alice")])
    file = tmp_path / "users.json"
    content = json.loads(file.read_text())
    content["users"]["alice"]["SCRAM-SHA-256"][key] = "!"
    file.write_text(json.dumps(content))
    with pytest.raises(CorruptLog):
        Users(RealFileSystem(), tmp_path)


# Through the protocol


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 8192, **rest: Any) -> ScramCredentialUpsertion:
    hashed = {"salt": b"salt", "salted_password": b"x" * 32, **rest}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, iterations=iterations, **hashed)


def deletion(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(
    broker: MemoryBroker,
    *,
    upsertions: list[ScramCredentialUpsertion] | None = None,
    deletions: list[ScramCredentialDeletion] | None = None,
) -> dict[str, tuple[int, str | None]]:
    request = AlterUserScramCredentialsRequest(upsertions=upsertions or [], deletions=deletions or [])
    return {each.user: (each.error_code, each.error_message) for each in broker.ask(request, 0).results}


def described(broker: MemoryBroker, *names: str) -> dict[str, Any]:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] or None)
    return {
        each.user: each.error_code or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in broker.ask(request, 0).results
    }


def test_users_come_change_and_go_and_are_there_after_a_crash() -> None:
    broker = MemoryBroker()
    assert alter(broker, upsertions=[upsertion("alice"), upsertion("bob", SHA_512, 4096)]) == {
        "alice": (0, None),
        "bob": (0, None),
    }
    assert alter(broker, upsertions=[upsertion("alice", SHA_512, 16384)]) == {"alice": (0, None)}
    everybody = {"alice": [(1, 8192), (2, 16384)], "bob": [(2, 4096)]}
    assert described(broker) == everybody
    broker = broker.crashed(random.Random(1))
    assert described(broker) == everybody
    answers = alter(broker, deletions=[deletion("bob", SHA_512), deletion("alice")])
    assert answers == {"bob": (0, None), "alice": (0, None)}
    assert described(broker.crashed(random.Random(2))) == {"alice": [(2, 16384)]}


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"upsertions": [upsertion("", SHA_256)]}, (93, "Username must not be empty")),
        ({"upsertions": [upsertion("a", 0)]}, (33, "Unknown SCRAM mechanism")),
        ({"upsertions": [upsertion("a", 3)]}, (33, "Unknown SCRAM mechanism")),
        ({"upsertions": [upsertion("a", iterations=4095)]}, (93, "Too few iterations")),
        ({"upsertions": [upsertion("a", iterations=16385)]}, (93, "Too many iterations")),
        ({"deletions": [deletion("a")]}, (91, "Attempt to delete a user credential that does not exist")),
        ({"deletions": [deletion("alice", SHA_512)]}, (91, "Attempt to delete a user credential that does not exist")),
        ({"deletions": [deletion("")]}, (93, "Username must not be empty")),
        (
            {"upsertions": [upsertion("a"), upsertion("a", SHA_512)]},
            (92, "A user credential cannot be altered twice in the same request"),
        ),
        (
            {"upsertions": [upsertion("alice")], "deletions": [deletion("alice")]},
            (92, "A user credential cannot be altered twice in the same request"),
        ),
    ],
)
def test_what_kafka_refuses_is_refused_in_its_words_and_changes_nothing(
    change: dict[str, Any], answer: tuple[int, str]
) -> None:
    broker = MemoryBroker()
    alter(broker, upsertions=[upsertion("alice")])
    assert list(alter(broker, **change).values()) == [answer]
    assert described(broker) == {"alice": [(1, 8192)]}


def test_what_is_good_in_a_request_is_done_and_the_rest_refused() -> None:
    broker = MemoryBroker()
    answers = alter(broker, upsertions=[upsertion("good"), upsertion("bad", 9)], deletions=[deletion("missing")])
    assert {user: code for user, (code, _) in answers.items()} == {"good": 0, "bad": 33, "missing": 91}
    assert list(described(broker)) == ["good"]


def test_asking_for_a_user_twice_or_for_one_that_is_not_there() -> None:
    broker = MemoryBroker()
    alter(broker, upsertions=[upsertion("alice"), upsertion("bob")])
    assert described(broker, "alice", "alice", "bob", "nobody") == {"alice": 92, "bob": [(1, 8192)], "nobody": 91}


def one_user(files: MemoryFileSystem) -> Users:
    files.make_directory(Path("/data"))
    users = Users(files, Path("/data"))
    users.apply([given_password("old")])
    return users


def test_a_crash_at_any_step_leaves_the_old_users_or_the_new_ones() -> None:
    outcomes = []
    change = given_password("new")
    for steps in range(100):
        files = MemoryFileSystem()
        users = one_user(files)
        files.steps_until_crash = steps
        try:
            users.apply([change])
            ended = True
        except SimulatedCrash:
            ended = False
        for after in (files.kill(), *(files.crash(random.Random(seed)) for seed in range(8))):
            found = list(Users(after, Path("/data")))
            assert found in (["old"], ["new", "old"])
            assert not ended or found == ["new", "old"]
            outcomes.append(len(found))
        if ended:
            break
    assert ended
    assert set(outcomes) == {1, 2}


def test_a_disk_that_fails_changes_nothing_and_the_client_is_told() -> None:
    broker = MemoryBroker()
    alter(broker, upsertions=[upsertion("alice")])
    broker.files.sync_failures = 1
    assert alter(broker, upsertions=[upsertion("bob")])["bob"][0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert list(described(broker)) == ["alice"]
    assert alter(broker, upsertions=[upsertion("bob")]) == {"bob": (0, None)}


def test_users_are_changed_and_seen_only_by_who_may() -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    broker = MemoryBroker(settings={"authorizer.class.name": authorizer, "super.users": "User:admin"})
    assert alter(broker, upsertions=[upsertion("eve")])["eve"][0] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    answer = broker.ask(DescribeUserScramCredentialsRequest(users=None), 0)
    assert (answer.error_code, answer.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    assert list(broker.node.users) == []

"""The rules on disk: what a crash, a full disk and a damaged file leave of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from onceflow.broker import acls as acls_module
from onceflow.broker.acls import Acls
from onceflow.errors import CorruptLog, ErrorCode, ProtocolError
from onceflow.log.files import RealFileSystem
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.wire.acls import Acl, Operation, Pattern, Permission, Resource

DIRECTORY = Path("/data")
FILE = DIRECTORY / "acls.json"


def rule(name: str) -> Acl:
    return Acl(Resource.TOPIC, name, Pattern.LITERAL, "User:ålice", "*", Operation.READ, Permission.ALLOW)


@pytest.fixture
def files() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directory(DIRECTORY)
    return files


def read(files: MemoryFileSystem) -> set[Acl]:
    return set(Acls(files, DIRECTORY))


def test_rules_are_there_after_a_restart(files: MemoryFileSystem) -> None:
    acls = Acls(files, DIRECTORY)
    acls.add([rule("a"), rule("b"), rule("a")])
    acls.remove({rule("b"), rule("never there")})
    assert set(acls) == read(files) == {rule("a")}


def test_only_the_owner_of_the_file_may_read_who_may_do_what(tmp_path: Path) -> None:
    Acls(RealFileSystem(), tmp_path).add([rule("a")])
    assert (tmp_path / "acls.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("seed", range(20))
def test_what_was_answered_survives_loss_of_power(files: MemoryFileSystem, seed: int) -> None:
    Acls(files, DIRECTORY).add([rule("a")])
    assert read(files.crash(random.Random(seed))) == {rule("a")}


def test_a_crash_at_any_step_leaves_the_old_rules_or_the_new_ones(files: MemoryFileSystem) -> None:
    Acls(files, DIRECTORY).add([rule("old")])
    outcomes = []
    for step in range(20):
        for seed in range(10):
            disk = files.kill()
            acls = Acls(disk, DIRECTORY)
            disk.steps_until_crash = step
            try:
                acls.remove({rule("old")})
                acls.add([rule("new")])
            except SimulatedCrash:
                outcomes.append(frozenset(read(disk.crash(random.Random(seed)))))
    assert set(outcomes) == {frozenset({rule("old")}), frozenset(), frozenset({rule("new")})}


def test_where_the_disk_refuses_nothing_changes(files: MemoryFileSystem) -> None:
    acls = Acls(files, DIRECTORY)
    acls.add([rule("a")])
    changes: list[None] = []
    acls.on_change = lambda: changes.append(None)
    files.write_failure = (0, 3)
    with pytest.raises(ProtocolError, match="No rule was changed") as refused:
        acls.add([rule("b")])
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert set(acls) == read(files) == {rule("a")}
    assert not changes


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"version": 2, "acls": []}',
        b'{"version": 1}',
        b'{"version": 1, "acls": [{}]}',
        b'{"version": 1, "acls": [7]}',
        b"\xff",
    ],
)
def test_a_damaged_file_is_no_reason_to_go_on_without_rules(files: MemoryFileSystem, damage: bytes) -> None:
    files.replace(FILE, damage)
    with pytest.raises(CorruptLog, match=r"acls\.json is damaged"):
        Acls(files, DIRECTORY)


@pytest.mark.parametrize("word", ["TOPIC", "LITERAL", "User:", "READ", "ALLOW"])
def test_one_damaged_word_is_noticed(files: MemoryFileSystem, word: str) -> None:
    Acls(files, DIRECTORY).add([rule("a")])
    content = files.read_bytes(FILE)
    assert word.encode() in content
    files.replace(FILE, content.replace(word.encode(), b"ANY"))
    with pytest.raises(CorruptLog):
        Acls(files, DIRECTORY)


def test_there_is_a_limit(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls_module, "ACLS_MAX", 2)
    acls = Acls(files, DIRECTORY)
    acls.add([rule("a"), rule("b")])
    acls.add([rule("a")])
    with pytest.raises(ProtocolError, match="3 rules"):
        acls.add([rule("c")])
    assert len(acls) == 2

"""Levels on disk: what a restart, a crash, a full disk and a damaged file leave of them; and what is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from onceflow.broker.features import SUPPORTED, Features, FeatureUpdate, levels_after
from onceflow.errors import CorruptLog, ErrorCode, ProtocolError, StorageError
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash

DIRECTORY = Path("/data")
FILE = DIRECTORY / "features.json"
LOWER = {"group.version": 1, "transaction.version": 1}
UPGRADE, SAFE = 1, 2


@pytest.fixture
def files() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directory(DIRECTORY)
    return files


def test_a_new_directory_has_the_highest_levels_and_no_file(files: MemoryFileSystem) -> None:
    features = Features(files, DIRECTORY)
    assert (features.levels, features.epoch) == (SUPPORTED, 0)
    features.apply(SUPPORTED)
    assert not files.exists(FILE)


def test_levels_and_their_epoch_are_there_after_a_restart(files: MemoryFileSystem) -> None:
    Features(files, DIRECTORY).apply(LOWER)
    again = Features(files, DIRECTORY)
    assert (again.levels, again.epoch) == (LOWER, 1)
    again.apply(LOWER)
    assert again.epoch == 1
    again.apply(SUPPORTED)
    assert (again.levels, again.epoch) == (SUPPORTED, 2)
    assert Features(files, DIRECTORY).epoch == 2


def test_a_crash_at_any_step_leaves_the_old_levels_or_the_new_ones(files: MemoryFileSystem) -> None:
    outcomes = set()
    for step in range(10):
        for seed in range(10):
            disk = files.kill()
            disk.steps_until_crash = step
            try:
                Features(disk, DIRECTORY).apply(LOWER)
            except SimulatedCrash:
                found = Features(disk.crash(random.Random(seed)), DIRECTORY)
                outcomes.add((found.levels["transaction.version"], found.epoch))
            else:
                assert Features(disk.crash(random.Random(seed)), DIRECTORY).levels == LOWER
    assert outcomes == {(2, 0), (1, 1)}


def test_where_the_disk_refuses_nothing_changes(files: MemoryFileSystem) -> None:
    features = Features(files, DIRECTORY)
    files.write_failure = (0, 3)
    with pytest.raises(StorageError):
        features.apply(LOWER)
    assert (features.levels, features.epoch) == (SUPPORTED, 0)
    assert Features(files, DIRECTORY).levels == SUPPORTED


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"version": 1}',
        b'{"version": 2, "epoch": 1, "levels": {"group.version": 1, "transaction.version": 1}}',
        b'{"version": 1, "epoch": -1, "levels": {"group.version": 1, "transaction.version": 1}}',
        b'{"version": 1, "epoch": 1, "levels": {"group.version": 1, "transaction.version": 3}}',
        b'{"version": 1, "epoch": 1, "levels": {"group.version": true, "transaction.version": 1}}',
        b'{"version": 1, "epoch": 1, "levels": {"group.version": 1}}',
        b'{"version": 1, "epoch": 1, "levels": []}',
    ],
)
def test_a_damaged_file_is_no_level(files: MemoryFileSystem, damage: bytes) -> None:
    files.replace(FILE, damage)
    with pytest.raises(CorruptLog, match=r"features\.json is damaged"):
        Features(files, DIRECTORY)


def test_a_refused_change_says_what_was_changed_and_why_not() -> None:
    asked = [FeatureUpdate("group.version", 0, SAFE), FeatureUpdate("transaction.version", 1, UPGRADE)]
    with pytest.raises(ProtocolError, match=r"No feature was changed: 'transaction\.version' .* 1") as no:
        levels_after(SUPPORTED, asked)
    assert no.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert "has to be asked for" in str(no.value)


def test_what_is_not_named_stays() -> None:
    assert levels_after(LOWER, [FeatureUpdate("group.version", 0, SAFE)]) == {
        "group.version": 0,
        "transaction.version": 1,
    }

"""A disk that fails on demand, and what a log may rely on all the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from onceflow.errors import StorageError
from onceflow.verify.faulty_files import FaultyDisk, FaultyFiles


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path / "faults")


@pytest.fixture
def files(disk: FaultyDisk, tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(tmp_path / "faults")


def test_a_healthy_disk_does_what_it_is_asked(disk: FaultyDisk, files: FaultyFiles, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a")
    file.append(b"one")
    file.sync()
    files.replace(tmp_path / "b", b"two")
    assert (file.read(0, 3), files.read_bytes(tmp_path / "b")) == (b"one", b"two")
    assert disk.hits() == []


def test_a_full_disk_refuses_writes_and_leaves_sizes_as_they_were(
    disk: FaultyDisk, files: FaultyFiles, tmp_path: Path
) -> None:
    file = files.open(tmp_path / "a")
    file.append(b"one")
    disk.fill()
    with pytest.raises(StorageError, match="No space left"):
        file.append(b"never")
    assert (file.size, (tmp_path / "a").read_bytes()) == (3, b"one")
    assert disk.hits() == [f"write {tmp_path / 'a'}"]

    disk.heal()
    file.append(b"two")
    assert (tmp_path / "a").read_bytes() == b"onetwo"


def test_a_full_disk_keeps_the_old_content_of_what_is_replaced_and_makes_no_folders(
    disk: FaultyDisk, files: FaultyFiles, tmp_path: Path
) -> None:
    files.replace(tmp_path / "a", b"old")
    disk.fill()
    with pytest.raises(StorageError, match="No space left"):
        files.replace(tmp_path / "a", b"new")
    with pytest.raises(StorageError, match="No space left"):
        files.make_directory(tmp_path / "folder")
    files.make_directory(tmp_path)  # which is there already
    assert files.read_bytes(tmp_path / "a") == b"old"
    assert not (tmp_path / "folder").exists()


def test_the_next_sync_fails_and_fails_ever_after_on_that_open_file(
    disk: FaultyDisk, files: FaultyFiles, tmp_path: Path
) -> None:
    file, other = files.open(tmp_path / "a"), files.open(tmp_path / "b")
    disk.fail_syncs()
    with pytest.raises(StorageError, match="Input/output error"):
        file.sync()
    assert file.lost_pages
    with pytest.raises(StorageError, match="earlier flush"):
        file.sync()
    other.sync()
    files.open(tmp_path / "a").sync()
    assert disk.hits() == [f"sync {tmp_path / 'a'}"]


def test_only_syncs_of_the_paths_that_are_meant_fail(disk: FaultyDisk, files: FaultyFiles, tmp_path: Path) -> None:
    disk.fail_syncs("__transaction_state")
    files.open(tmp_path / "orders.log").sync()
    with pytest.raises(StorageError):
        files.open(tmp_path / "__transaction_state-0.log").sync()


def test_as_many_syncs_fail_as_were_asked_for(disk: FaultyDisk, files: FaultyFiles, tmp_path: Path) -> None:
    disk.fail_syncs(count=2)
    for _ in range(2):
        with pytest.raises(StorageError):
            files.open(tmp_path / "a").sync()
    files.open(tmp_path / "a").sync()


def test_a_failing_sync_fails_folders_and_replacements_too(
    disk: FaultyDisk, files: FaultyFiles, tmp_path: Path
) -> None:
    disk.fail_syncs()
    with pytest.raises(StorageError):
        files.sync_directory(tmp_path)
    disk.fail_syncs()
    with pytest.raises(StorageError):
        files.replace(tmp_path / "a", b"new")
    assert not files.exists(tmp_path / "a")


def test_a_slow_disk_takes_longer_until_it_is_healed(disk: FaultyDisk, files: FaultyFiles, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a")
    disk.slow_down(0.1)
    began = time.monotonic()
    file.sync()
    assert time.monotonic() - began >= 0.1
    disk.heal()
    file.sync()
    assert disk.hits() == [f"slow sync {tmp_path / 'a'}"]


def test_healing_takes_back_what_has_not_struck_yet(disk: FaultyDisk, files: FaultyFiles, tmp_path: Path) -> None:
    disk.fail_syncs(count=3)
    disk.fill()
    disk.heal()
    file = files.open(tmp_path / "a")
    file.append(b"one")
    file.sync()
    assert not disk.is_full
    assert disk.hits() == []

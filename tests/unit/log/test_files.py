"""The disk and its twin in memory: the same calls have the same outcome. And how the twin fails and forgets."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.errors import StorageError
from onceflow.log import files as real_files
from onceflow.log.files import DirectoryLock, FileSlice, FileSystem, RealFileSystem
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash

ROOT = Path("/data")


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, Path]:
    if request.param == "real":
        return RealFileSystem(), tmp_path
    files = MemoryFileSystem()
    files.make_directory(ROOT)
    return files, ROOT


Disk = tuple[FileSystem, Path]


# What both do


def test_appends_go_to_the_end_and_reads_stop_there(disk: Disk) -> None:
    files, folder = disk
    file = files.open(folder / "a")
    file.append(b"hello ")
    file.append(bytearray(b"wor"))
    file.append(memoryview(b"ld"))
    assert file.size == 11
    assert file.read(0, 5) == b"hello"
    assert file.read(6, 100) == b"world"
    assert file.read(11, 5) == b""
    assert file.read(50, 5) == b""
    assert files.read_bytes(folder / "a") == b"hello world"
    assert files.size(folder / "a") == 11


def test_an_open_file_knows_only_its_own_appends(disk: Disk) -> None:
    files, folder = disk
    first = files.open(folder / "a")
    first.append(b"one")
    second = files.open(folder / "a")
    assert second.size == 3
    first.append(b"two")
    assert (second.size, second.read(0, 10)) == (3, b"one")
    assert files.open(folder / "a").read(0, 10) == b"onetwo"


def test_a_cut_file_goes_on_from_there(disk: Disk) -> None:
    files, folder = disk
    file = files.open(folder / "a")
    file.append(b"hello world")
    file.truncate(5)
    assert (file.size, file.read(0, 20)) == (5, b"hello")
    file.append(b"!")
    assert files.read_bytes(folder / "a") == b"hello!"
    file.truncate(8)
    assert files.read_bytes(folder / "a") == b"hello!\x00\x00"


def test_a_closed_file_refuses_everything_but_another_close(disk: Disk) -> None:
    files, folder = disk
    file = files.open(folder / "a")
    file.append(b"x")
    file.close()
    file.close()
    calls: list[Callable[[], object]] = [
        lambda: file.append(b"y"),
        lambda: file.read(0, 1),
        file.sync,
        lambda: file.truncate(0),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="Bad file descriptor"):
            call()
    assert files.read_bytes(folder / "a") == b"x"


def test_a_removed_file_lives_on_for_who_has_it_open(disk: Disk) -> None:
    files, folder = disk
    file = files.open(folder / "a")
    file.append(b"x")
    files.remove(folder / "a")
    assert not files.exists(folder / "a")
    file.append(b"y")
    assert file.read(0, 2) == b"xy"
    files.remove(folder / "a")


def test_replace_is_seen_as_a_whole_and_leaves_nothing_else(disk: Disk) -> None:
    files, folder = disk
    files.replace(folder / "a", b"one")
    before = files.open(folder / "a")
    files.replace(folder / "a", b"two two")
    assert files.read_bytes(folder / "a") == b"two two"
    assert before.read(0, 10) == b"one"
    assert files.list(folder) == ["a"]


def test_a_name_of_255_bytes_can_be_replaced(disk: Disk) -> None:
    """A topic may have a name of 249 characters, and its file ends in .json."""
    files, folder = disk
    name = "t" * 249 + ".json"
    files.replace(folder / name, b"1")
    files.replace(folder / name, b"2")
    assert files.list(folder) == [name]
    assert files.read_bytes(folder / name) == b"2"


def test_rename_takes_the_place_of_what_was_there(disk: Disk) -> None:
    files, folder = disk
    files.open(folder / "a").append(b"a")
    files.open(folder / "b").append(b"b")
    files.rename(folder / "a", folder / "b")
    assert files.list(folder) == ["b"]
    assert files.read_bytes(folder / "b") == b"a"


def test_folders_are_made_with_those_around_them_and_removed_with_all_in_them(disk: Disk) -> None:
    files, folder = disk
    files.make_directory(folder / "x" / "y")
    files.make_directory(folder / "x" / "y")
    files.open(folder / "x" / "y" / "file").append(b"1")
    assert files.exists(folder / "x")
    assert files.list(folder) == ["x"]
    assert files.list(folder / "x") == ["y"]
    assert files.list(folder / "nowhere") == []
    files.remove_tree(folder / "x")
    files.remove_tree(folder / "x")
    assert not files.exists(folder / "x")
    assert not files.exists(folder / "x" / "y" / "file")
    assert files.list(folder) == []


def test_what_is_not_there_is_a_storage_error(disk: Disk) -> None:
    files, folder = disk
    calls: list[Callable[[], object]] = [
        lambda: files.read_bytes(folder / "a"),
        lambda: files.size(folder / "a"),
        lambda: files.rename(folder / "a", folder / "b"),
        lambda: files.open(folder / "nowhere" / "a"),
        lambda: files.replace(folder / "nowhere" / "a", b""),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="No such file"):
            call()
    assert files.list(folder) == []


def test_a_folder_is_no_file(disk: Disk) -> None:
    files, folder = disk
    files.make_directory(folder / "x")
    for call in (lambda: files.open(folder / "x"), lambda: files.read_bytes(folder / "x")):
        with pytest.raises(StorageError, match="Is a directory"):
            call()


def test_the_volume_has_a_size(disk: Disk) -> None:
    files, folder = disk
    total, usable = files.usage(folder)
    assert 0 < usable <= total


def test_a_slice_is_read_or_sent_in_parts(disk: Disk) -> None:
    files, folder = disk
    file = files.open(folder / "a")
    file.append(b"0123456789")
    part = FileSlice(file, 2, 6)
    assert (len(part), part.read(), part.read(4)) == (6, b"234567", b"67")
    out, into = os.pipe()
    try:
        assert part.send(into, 1) == 5
        assert os.read(out, 10) == b"34567"
    finally:
        os.close(out)
        os.close(into)


def test_a_slice_of_a_file_that_was_cut_meanwhile_is_an_error(disk: Disk) -> None:
    files, folder = disk
    file = files.open(folder / "a")
    file.append(b"0123456789")
    part = FileSlice(file, 2, 6)
    file.truncate(4)
    with pytest.raises(StorageError, match="was cut"):
        part.read()


# How the real one fails


def fail(number: int) -> Callable[..., object]:
    def call(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    return call


def test_a_failed_append_changes_nothing_and_the_next_one_writes_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealFileSystem().open(tmp_path / "a")
    file.append(b"hello")
    pwrite, calls = os.pwrite, iter([2, None, None])

    def disk_fills_up(fd: int, data: bytes, at: int) -> int:
        room = next(calls)
        if room is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, bytes(data)[:room], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", disk_fills_up)
        patch.setattr(os, "ftruncate", fail(errno.EIO))
        for _ in range(2):
            with pytest.raises(StorageError, match="No space left"):
                file.append(b" world")
    assert (file.size, file.read(0, 20)) == (5, b"hello")
    assert (tmp_path / "a").read_bytes() == b"hello w", "it could not even be cut off"
    file.append(b"!")
    assert file.read(0, 20) == b"hello!"


def test_a_failed_append_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFileSystem().open(tmp_path / "a")
    file.append(b"hello")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail(errno.ENOSPC))
        with pytest.raises(StorageError, match="No space left"):
            file.append(b" world")
    assert (tmp_path / "a").read_bytes() == b"hello"


def test_an_append_that_the_kernel_takes_in_parts_is_one_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealFileSystem().open(tmp_path / "a")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:3], at))
    file.append(b"0123456789")
    assert (file.size, file.read(0, 20)) == (10, b"0123456789")


def test_a_sync_that_failed_once_fails_ever_after_on_that_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealFileSystem().open(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail(errno.EIO))
        with pytest.raises(StorageError, match="Input/output"):
            file.sync()
    assert file.lost_pages
    with pytest.raises(StorageError, match="earlier flush"):
        file.sync()
    RealFileSystem().open(tmp_path / "a").sync()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_replace_leaves_the_old_content_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files = RealFileSystem()
    files.replace(tmp_path / "a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail(errno.EIO))
        with pytest.raises(StorageError, match="Could not write"):
            files.replace(tmp_path / "a", b"new")
    assert files.read_bytes(tmp_path / "a") == b"old"
    assert files.list(tmp_path) == ["a"]


def test_every_system_call_that_fails_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RealFileSystem()
    file = files.open(tmp_path / "a")
    files.make_directory(tmp_path / "x")
    calls: dict[tuple[object, str], Callable[[], object]] = {
        (os, "pread"): lambda: file.read(0, 1),
        (os, "ftruncate"): lambda: file.truncate(0),
        (os, "replace"): lambda: files.rename(tmp_path / "a", tmp_path / "b"),
        (os, "listdir"): lambda: files.list(tmp_path),
        (os, "fsync"): lambda: files.sync_directory(tmp_path),
        (os, "open"): lambda: files.open(tmp_path / "b"),
        (Path, "unlink"): lambda: files.remove(tmp_path / "a"),
        (Path, "mkdir"): lambda: files.make_directory(tmp_path / "y"),
        (Path, "stat"): lambda: files.size(tmp_path / "a"),
        (real_files.shutil, "rmtree"): lambda: files.remove_tree(tmp_path / "x"),
    }
    for (owner, name), call in calls.items():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail(errno.EIO))
            with pytest.raises(StorageError, match="Input/output"):
                call()
    assert files.list(tmp_path) == ["a", "x"]


def test_a_directory_is_locked_for_one(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(BlockingIOError):
        DirectoryLock(tmp_path)
    lock.release()
    DirectoryLock(tmp_path).release()


# How the twin fails


def memory() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directory(ROOT)
    return files


def test_a_write_fails_when_told_and_leaves_some_bytes_behind() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    files.write_failure = (1, 2)
    file.append(b"one")
    with pytest.raises(StorageError, match="No space left"):
        file.append(b"two")
    assert (file.size, file.read(0, 10)) == (3, b"one")
    assert files.read_bytes(ROOT / "a") == b"onetw"
    file.append(b"2")
    assert file.read(0, 10) == b"one2"


def test_a_failed_sync_drops_what_it_should_have_written() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    files.sync_directory(ROOT)
    file.append(b"one")
    files.sync_failures = 1
    with pytest.raises(StorageError, match="Input/output"):
        file.sync()
    assert file.lost_pages
    with pytest.raises(StorageError, match="earlier flush"):
        file.sync()
    assert files.read_bytes(ROOT / "a") == b"one", "a process still sees it"
    again = files.open(ROOT / "a")
    again.append(b"two")
    again.sync()
    for seed in range(20):
        assert files.crash(random.Random(seed)).read_bytes(ROOT / "a") == b"\x00\x00\x00two"


def test_a_failed_replace_in_memory_leaves_the_old_content_and_no_rubbish() -> None:
    files = memory()
    files.replace(ROOT / "a", b"old")
    files.write_failure = (0, 1)
    with pytest.raises(StorageError):
        files.replace(ROOT / "a", b"new")
    files.sync_failures = 1
    with pytest.raises(StorageError):
        files.replace(ROOT / "a", b"new")
    assert (files.read_bytes(ROOT / "a"), files.list(ROOT)) == (b"old", ["a"])


def test_death_comes_after_so_many_bytes() -> None:
    for size in range(1, 7):
        files = memory()
        file = files.open(ROOT / "a")
        files.bytes_until_crash = size
        with pytest.raises(SimulatedCrash):
            list(map(file.append, (b"one", b"two", b"more")))
        assert files.kill().read_bytes(ROOT / "a") == b"onetwo"[:size]
        with pytest.raises(SimulatedCrash):
            file.sync()


def test_death_comes_in_place_of_a_step() -> None:
    seen = []
    for step in range(100):
        files = memory()
        files.replace(ROOT / "a", b"old")
        files.steps_until_crash = step
        try:
            files.replace(ROOT / "a", b"new")
        except SimulatedCrash:
            after = files.kill()
            seen.append((after.list(ROOT), after.read_bytes(ROOT / "a")))
        else:
            break
    assert seen == [
        (["a"], b"old"),  # make the temporary file
        (["a", "a.tmp"], b"old"),  # write it
        (["a", "a.tmp"], b"old"),  # sync it
        (["a", "a.tmp"], b"old"),  # rename it
        (["a"], b"new"),  # sync the name
    ]


# How the twin forgets


def outcomes(files: MemoryFileSystem, name: str = "a", tries: int = 300) -> set[bytes | None]:
    """Everything that loss of power can make of a file."""
    found: set[bytes | None] = set()
    for seed in range(tries):
        after = files.crash(random.Random(seed))
        found.add(after.read_bytes(ROOT / name) if after.exists(ROOT / name) else None)
    return found


def test_what_was_synced_survives_and_the_rest_survives_in_part_or_as_zeros() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    file.append(b"one")
    file.sync()
    files.sync_directory(ROOT)
    assert outcomes(files) == {b"one"}
    file.append(b"two")
    assert outcomes(files) == {
        *(b"one", b"onet", b"onetw", b"onetwo"),
        *(b"onetw\x00", b"onet\x00\x00", b"one\x00\x00\x00"),
    }


def test_a_later_write_may_survive_an_earlier_one() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    files.sync_directory(ROOT)
    file.append(b"1")
    file.append(b"2")
    assert outcomes(files) == {b"", b"1", b"12", b"\x00", b"\x002", b"\x00\x00", b"1\x00"}


def test_a_cut_that_was_not_synced_may_come_back() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    file.append(b"onetwo")
    file.sync()
    files.sync_directory(ROOT)
    file.truncate(3)
    assert outcomes(files) == {b"one", b"onetwo"}
    file.sync()
    assert outcomes(files) == {b"one"}


def test_a_name_is_certain_only_after_its_folder_was_synced() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    file.append(b"1")
    file.sync()
    assert outcomes(files) == {None, b"1"}
    files.sync_directory(ROOT)
    files.remove(ROOT / "a")
    assert outcomes(files) == {None, b"1"}
    files.sync_directory(ROOT)
    assert outcomes(files) == {None}


def test_a_rename_survives_as_a_whole_or_not_at_all() -> None:
    files = memory()
    files.replace(ROOT / "a", b"old")
    files.replace(ROOT / "b", b"new")
    files.rename(ROOT / "b", ROOT / "a")
    found = set()
    for seed in range(50):
        after = files.crash(random.Random(seed))
        found.add((tuple(after.list(ROOT)), after.read_bytes(ROOT / "a")))
    assert found == {(("a", "b"), b"old"), (("a",), b"new")}


def test_replace_is_all_or_nothing_wherever_we_die() -> None:
    for step in range(5):
        files = memory()
        files.replace(ROOT / "a", b"old")
        files.steps_until_crash = step
        with pytest.raises(SimulatedCrash):
            files.replace(ROOT / "a", b"new")
        assert outcomes(files) <= {b"old", b"new"}
    files = memory()
    files.replace(ROOT / "a", b"old")
    files.replace(ROOT / "a", b"new")
    assert outcomes(files) == {b"new"}


def test_after_kill_everything_is_seen_and_what_was_not_certain_still_is_not() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    file.append(b"1")
    after = files.kill()
    assert after.read_bytes(ROOT / "a") == b"1"
    file.append(b"2")
    assert after.read_bytes(ROOT / "a") == b"1", "the dead process has no hand in it any more"
    assert outcomes(after) == {None, b"", b"1", b"\x00"}
    after.open(ROOT / "a").sync()
    after.sync_directory(ROOT)
    assert outcomes(after) == {b"1"}


def test_what_a_failed_sync_dropped_waits_again_in_the_next_process() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    files.sync_directory(ROOT)
    file.append(b"one")
    files.sync_failures = 1
    with pytest.raises(StorageError):
        file.sync()
    assert outcomes(files) == {b""}
    after = files.kill()
    after.open(ROOT / "a").sync()
    assert outcomes(after) == {b"one"}


def test_what_is_dropped_and_then_cut_or_written_over_does_not_come_back() -> None:
    files = memory()
    file = files.open(ROOT / "a")
    files.sync_directory(ROOT)
    file.append(b"one")
    file.append(b"two")
    files.sync_failures = 1
    with pytest.raises(StorageError):
        file.sync()
    again = files.open(ROOT / "a")
    again.truncate(1)
    again.append(b"!")
    again.sync()
    after = files.kill()
    assert after.read_bytes(ROOT / "a") == b"o!"
    after.open(ROOT / "a").sync()
    assert outcomes(after) == {b"o!"}


def test_a_folder_is_forgotten_with_all_in_it_where_that_is_asked_for() -> None:
    files = MemoryFileSystem()
    files.forgets_directories = True
    files.make_directory(ROOT)
    files.sync_directory(ROOT.parent)
    files.make_directory(ROOT / "x")
    files.replace(ROOT / "x" / "a", b"1")
    found = {files.crash(random.Random(seed)).exists(ROOT / "x" / "a") for seed in range(50)}
    assert found == {True, False}
    files.sync_directory(ROOT)
    assert outcomes(files, "x/a") == {b"1"}


def test_a_removed_folder_may_come_back_with_some_of_what_was_in_it() -> None:
    files = memory()
    files.make_directory(ROOT / "x")
    files.replace(ROOT / "x" / "a", b"1")
    files.replace(ROOT / "x" / "b", b"2")
    files.remove_tree(ROOT / "x")
    found = {tuple(files.crash(random.Random(seed)).list(ROOT / "x")) for seed in range(50)}
    assert found == {(), ("a",), ("b",), ("a", "b")}
    files.sync_directory(ROOT)
    assert {files.crash(random.Random(seed)).exists(ROOT / "x") for seed in range(50)} == {False}
    files.make_directory(ROOT / "x")
    assert files.list(ROOT / "x") == []

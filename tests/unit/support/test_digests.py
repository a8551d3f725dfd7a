"""Nothing that was downloaded is used unless it is, byte by byte, what the table of digests says."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import chromium, digests, kafka_jars, postgresql_binaries, registry
from tests.support.registry import Download, JarsMissing, cached

FILES = {"one-1.0.jar": b"one", "two-2.0.jar": b"two"}
SECTION = "things-1.0"
ALL = (*kafka_jars.DOWNLOADS, *postgresql_binaries.DOWNLOADS, *chromium.DOWNLOADS)


class Registry:
    """Hands out files, and counts how often it is asked."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.asked = 0

    def fetch(self, folder: Path) -> None:
        self.asked += 1
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def cached(self, unpack: Callable[[Path], None] | None = None) -> Path:
        return cached("things", Download(SECTION, self.fetch), unpack)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(digests, "TABLE", tmp_path / "digests.txt")
    write_table(FILES)
    return tmp_path / "cache"


def write_table(files: dict[str, bytes]) -> None:
    lines = [f"{hashlib.sha256(content).hexdigest()}  {SECTION}  {name}\n" for name, content in files.items()]
    digests.TABLE.write_text("# a comment\n" + "".join(lines))
    digests._table.cache_clear()


def test_what_the_table_has_is_fetched_once(cache: Path) -> None:
    registry = Registry(FILES)
    for _ in range(2):
        folder = registry.cached()
        assert {each.name: each.read_bytes() for each in folder.glob("*.jar")} == FILES
    assert registry.asked == 1


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            FILES | {"two-2.0.jar": b"tampered"},
            r"two-2\.0\.jar is not the file .* SHA-256 is [0-9a-f]{64}.*digests\.txt",
        ),
        (FILES | {"three-3.0.jar": b"three"}, r"three-3\.0\.jar is not expected"),
        ({"one-1.0.jar": b"one"}, r"two-2\.0\.jar is missing"),
    ],
    ids=["tampered", "unexpected", "missing"],
)
def test_what_differs_from_the_table_is_refused_and_nothing_of_it_is_kept_or_unpacked(
    cache: Path, files: dict[str, bytes], reason: str
) -> None:
    unpacked: list[Path] = []
    with pytest.raises(JarsMissing, match=reason):
        Registry(files).cached(unpacked.append)
    assert unpacked == []
    assert [each.name for each in cache.iterdir()] == ["things.lock"]


def test_a_folder_that_was_never_compared_is_fetched_again(cache: Path) -> None:
    (cache / "things").mkdir(parents=True)
    (cache / "things" / "one-1.0.jar").write_bytes(b"from before")
    folder = Registry(FILES).cached()
    assert (folder / "one-1.0.jar").read_bytes() == b"one"


def test_a_folder_that_was_compared_with_another_table_is_fetched_again(cache: Path) -> None:
    Registry(FILES).cached()
    newer = FILES | {"two-2.0.jar": b"newer"}
    write_table(newer)
    assert (Registry(newer).cached() / "two-2.0.jar").read_bytes() == b"newer"


def test_the_folder_stays_absent_if_what_was_fetched_cannot_be_unpacked(cache: Path) -> None:
    def fail(folder: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Registry(FILES).cached(fail)
    assert [each.name for each in cache.iterdir()] == ["things.lock"]


@pytest.mark.parametrize("download", ALL, ids=lambda download: download.section)
def test_all_that_the_tests_download_is_in_the_table(download: Download) -> None:
    found = digests.expected(download.section)
    assert found, "python -m tests.support.digests --write"
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in found.values())


def test_the_table_has_nothing_else() -> None:
    assert set(digests._table(digests.TABLE)) == {each.section for each in ALL}


@pytest.mark.parametrize(
    ("section", "artifacts"),
    [
        (kafka_jars.JARS.section, kafka_jars.ARTIFACTS),
        (kafka_jars.STREAMS_JARS.section, kafka_jars.STREAMS_ARTIFACTS),
        (kafka_jars.CONNECTOR_JARS.section, kafka_jars.CONNECTOR_ARTIFACTS),
    ],
)
def test_the_jars_that_are_asked_for_are_among_those_of_the_table(
    section: str, artifacts: tuple[registry.Artifact, ...]
) -> None:
    assert set(artifacts) <= set(digests.coordinates(section))


def test_jars_without_a_section_are_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(JarsMissing, match=r"kafka-0\.1 is not in the table of digests: .*--write"):
        registry.jars("kafka-0.1", ("org.apache.kafka", "kafka", "0.1")).fetch(tmp_path)


def test_a_browser_that_npm_cannot_fetch_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\necho 'npm error more' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent), prepend=":")
    with pytest.raises(JarsMissing, match=r"^npm did not fetch it \(npm error code ENOTFOUND\)$"):
        chromium.CHROMIUM.fetch(tmp_path)


def test_the_launcher_of_the_browser_brings_its_libraries_only_where_the_system_has_none(tmp_path: Path) -> None:
    launcher, shell = tmp_path / "chromium", tmp_path / "headless-shell"
    launcher.write_text(chromium.LAUNCHER)
    for is_complete in (True, False):
        needs = "true" if is_complete else '[ -n "$LD_LIBRARY_PATH" ]'
        shell.write_text(f'#!/bin/sh\n{needs} || exit 127\necho "$LD_LIBRARY_PATH|$FONTCONFIG_FILE|$1"\n')
        for each in (launcher, shell):
            each.chmod(0o755)
        shown = subprocess.run([launcher, "--flag"], env={"PATH": os.defpath}, capture_output=True, text=True)
        libraries = "" if is_complete else f"{tmp_path}/lib"
        assert shown.stdout == f"{libraries}|{tmp_path}/fonts.conf|--flag\n"

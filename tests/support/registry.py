"""What the tests need and no Python package brings: files of package registries, in `.cache/`.

Three invariants:

- A folder of the cache exists only when it is complete: everything arrives in a staging folder, and one rename
  publishes it. An interrupted download leaves nothing behind that a later run would trust.
- Nothing is unpacked, run or published that is not, name by name and byte by byte, in the table of digests
  (`digests.py`). The folder keeps what of the table it was compared with, so a folder that was fetched before the table
  changed, or before there was one, is fetched again.
- One process prepares a folder at a time (`flock`); the others wait for it and find it.

The resolver of `jgo` is pure Python, so Maven is not needed.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.support.digests import coordinates, expected, verify

if TYPE_CHECKING:
    from jgo.maven import MavenContext

__all__ = ["CACHE", "Artifact", "Download", "JarsMissing", "cached", "jars", "only_one_process"]

CACHE = Path(__file__).resolve().parents[2] / ".cache"
STAMP = ".compared-with"
Artifact = tuple[str, str, str]
"""Group, name, version."""


class JarsMissing(RuntimeError):
    """The jars, or other files of a registry, could not be fetched, or are not what they should be."""


@dataclass(frozen=True)
class Download:
    """Files that are fetched together. `section`: where in the table of digests they are."""

    section: str
    fetch: Callable[[Path], None]
    """Leaves the files, and nothing else, in the folder it is given."""
    resolve: Callable[[Path], dict[str, str]] | None = None
    """As `fetch`, by what the registry says now and not by the table: the coordinates of each file."""


def cached(name: str, download: Download, unpack: Callable[[Path], None] | None = None) -> Path:
    """The folder with this name in the cache. If it is not there, it is downloaded and compared with the table of
    digests; `unpack` may then make of the files what is to be there."""
    folder, compared = CACHE / name, _stamp(download.section)
    if not _is_stamped(folder, compared):
        with only_one_process(name):
            if not _is_stamped(folder, compared):
                staging = CACHE / f"{name}.partial"
                shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir()
                try:
                    download.fetch(staging)
                    _verify(download.section, staging)
                    if unpack is not None:
                        unpack(staging)
                except BaseException:
                    shutil.rmtree(staging, ignore_errors=True)
                    raise
                (staging / STAMP).write_text(compared)
                shutil.rmtree(folder, ignore_errors=True)
                staging.rename(folder)
    return folder


def _stamp(section: str) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(expected(section).items()))


def _is_stamped(folder: Path, compared: str) -> bool:
    try:
        return (folder / STAMP).read_text() == compared
    except FileNotFoundError:
        return False


def _verify(section: str, folder: Path) -> None:
    try:
        verify(section, folder)
    except ValueError as problem:
        raise JarsMissing(str(problem)) from None


@contextmanager
def only_one_process(name: str) -> Iterator[None]:
    """Whoever else prepares what has this name in the cache waits for us."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def jars(section: str, *artifacts: Artifact, alone: bool = False) -> Download:
    """The jars with everything that the artifacts depend on, or each alone. Which those are is resolved when the table
    is written; what is fetched are the jars in it, the same on every machine, and with 90 requests in place of 700."""

    def fetch(folder: Path) -> None:
        locked = coordinates(section)
        if not locked:
            raise JarsMissing(f"{section} is not in the table of digests: `python -m tests.support.digests --write`")
        _fetch(lambda context: [context.project(*each[:2]).at_version(each[2]).artifact() for each in locked], folder)

    def resolve(folder: Path) -> dict[str, str]:
        return _fetch(lambda context: _resolved(context, artifacts, alone=alone), folder)

    return Download(section, fetch, resolve)


def _resolved(context: MavenContext, artifacts: tuple[Artifact, ...], *, alone: bool) -> list[Any]:
    from jgo.maven import Dependency

    wanted = [
        Dependency(context.project(group, name).at_version(version).artifact(), "compile")
        for group, name, version in artifacts
    ]
    inputs, transitive = context.resolver.resolve(wanted)
    return [each.artifact for each in (inputs if alone else [*inputs, *transitive])]


def _fetch(choose: Callable[[MavenContext], list[Any]], folder: Path) -> dict[str, str]:
    """The coordinates of what is now in the folder, by the names of the files."""
    from jgo.maven import MavenContext, PythonResolver

    section = folder.name.removesuffix(".partial")
    print(f"Fetching the jars of {section} (once) ...", file=sys.stderr, flush=True)
    # A repository folder of our own: jgo writes downloads in place and trusts whatever it finds, so a file that another
    # interrupted run left in the shared ~/.m2 would be taken for a jar.
    repository = folder / "repository"
    context = MavenContext(resolver=PythonResolver(), repo_cache=repository, timeout=60)
    found = {}
    try:
        with _connections_are_kept():
            for artifact in choose(context):
                artifact.resolve().rename(folder / artifact.filename)
                found[artifact.filename] = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
    except (OSError, RuntimeError) as error:
        raise JarsMissing(
            f"Could not fetch the jars of {section} ({error}); nothing was kept, "
            "run `make setup` again when the package registry is reachable."
        ) from error
    shutil.rmtree(repository)
    return found


@contextmanager
def _connections_are_kept() -> Iterator[None]:
    """jgo asks 600 times, each time with `requests.request`: a new connection, and all certificates read anew."""
    import requests
    from requests.adapters import HTTPAdapter

    with requests.Session() as session, mock.patch("requests.request", session.request):
        session.mount("https://", HTTPAdapter(max_retries=3))  # a connection that is kept may be closed meanwhile
        yield

"""What the tests need and no Python package brings: artifacts of the package registry, in `.cache/`.

The resolver of `jgo` is pure Python, so Maven is not needed. Two invariants:

- A folder of the cache exists only when it is complete: everything arrives in a staging folder, each jar is checked (a
  jar is a zip, every entry has a CRC), and one rename publishes it. An interrupted download leaves nothing behind that
  a later run would trust.
- One process prepares a folder at a time (`flock`); the others wait for it and find it.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

__all__ = ["CACHE", "Artifact", "JarsMissing", "cached", "download", "only_one_process"]

CACHE = Path(__file__).resolve().parents[2] / ".cache"
Artifact = tuple[str, str, str]
"""Group, name, version."""


class JarsMissing(RuntimeError):
    """The jars could not be fetched."""


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder with this name in the cache; if it is not there, `fill` is given an empty one to become it."""
    folder = CACHE / name
    if not folder.is_dir():
        with only_one_process(name):
            if not folder.is_dir():
                staging = CACHE / f"{name}.partial"
                shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir()
                fill(staging)
                staging.rename(folder)
    return folder


@contextmanager
def only_one_process(name: str) -> Iterator[None]:
    """Whoever else prepares what has this name in the cache waits for us."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(artifacts: tuple[Artifact, ...], folder: Path, *, alone: bool = False) -> None:
    """The jars into `folder`, with everything that the artifacts depend on, or each alone."""
    from jgo.maven import Dependency, MavenContext, PythonResolver

    what = f"the jars of {' and '.join(name for _, name, _ in artifacts)}"
    print(f"Fetching {what} (once, half a minute) ...", file=sys.stderr, flush=True)
    # A repository folder of our own: jgo writes downloads in place and trusts whatever it finds, so a file that another
    # interrupted run left in the shared ~/.m2 would be taken for a jar.
    repository = folder / "repository"
    context = MavenContext(resolver=PythonResolver(), repo_cache=repository, timeout=60)
    try:
        with _connections_are_kept():
            wanted = [
                Dependency(context.project(group, name).at_version(version).artifact(), "compile")
                for group, name, version in artifacts
            ]
            inputs, transitive = context.resolver.resolve(wanted)
            for dependency in inputs if alone else [*inputs, *transitive]:
                _check(dependency.artifact.resolve()).rename(folder / dependency.artifact.filename)
    except (OSError, RuntimeError) as error:
        raise JarsMissing(
            f"Could not fetch {what} ({error}); nothing was kept, "
            "run `make setup` again when the package registry is reachable."
        ) from error
    shutil.rmtree(repository)


@contextmanager
def _connections_are_kept() -> Iterator[None]:
    """jgo asks 600 times, each time with `requests.request`: a new connection, and all certificates read anew."""
    import requests
    from requests.adapters import HTTPAdapter

    with requests.Session() as session, mock.patch("requests.request", session.request):
        session.mount("https://", HTTPAdapter(max_retries=3))  # a connection that is kept may be closed meanwhile
        yield


def _check(jar: Path) -> Path:
    try:
        with zipfile.ZipFile(jar) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile as error:
        raise OSError(f"{jar.name} is not a jar: {error}") from error
    if damaged is not None:
        raise OSError(f"{jar.name} arrived damaged at {damaged}")
    return jar

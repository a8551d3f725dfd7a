"""The jars of Apache Kafka, and of Spark's connector to it, from the package registry into `.cache/`, and the Java that
runs them.

Apache Kafka is the reference that the conformance tests and the benchmarks hold our broker against. The resolver of
`jgo` is pure Python, so neither Maven nor a Kafka distribution is needed. Two invariants:

- A folder such as `.cache/kafka-<version>` exists only when it is complete: jars arrive in a staging folder, each is
  checked (a jar is a zip, every entry has a CRC), and one rename publishes them. An interrupted download leaves nothing
  behind that a later run would trust.
- One process downloads at a time (`flock`); the others wait for it and find the jars.

`python -m tests.support.kafka_jars` fetches them ahead of time.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

__all__ = [
    "CACHE",
    "KAFKA_VERSION",
    "JarsMissing",
    "JavaMissing",
    "classpath",
    "connector_jars",
    "java",
    "java_version",
    "only_one_process",
    "streams_classpath",
]

KAFKA_VERSION = "4.3.1"
ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    # Kafka logs through SLF4J and its jars bring no back end; this one writes to stderr and needs no configuration.
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
STREAMS_ARTIFACTS = (("org.apache.kafka", "kafka-streams", KAFKA_VERSION),)
CONNECTOR_VERSION = "4.2.0"
CONNECTOR_ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    # Not every mirror of the registry has a newer one, and the connector runs with this one.
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
    ("org.scala-lang.modules", "scala-parallel-collections_2.13", "1.2.0"),
)
JAVA_MIN = 17

CACHE = Path(__file__).resolve().parents[2] / ".cache"
JARS = CACHE / f"kafka-{KAFKA_VERSION}"
STREAMS_JARS = CACHE / f"kafka-streams-{KAFKA_VERSION}"
"""Only the jar itself: what it needs is among the others, but for RocksDB (70 MB), for stores on disk."""
CONNECTOR_JARS = CACHE / f"spark-kafka-{CONNECTOR_VERSION}"
"""Only these five: the rest is among Spark's own jars, and a second copy of those would be in the way."""


class JavaMissing(RuntimeError):
    """There is no Java, or it is too old."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Java {JAVA_MIN} or newer is needed for the tests against Apache Kafka ({found}); install a JDK, "
            "for example `apt-get install openjdk-17-jdk-headless`, or point JAVA_HOME at one."
        )


class JarsMissing(RuntimeError):
    """The jars could not be fetched."""


@functools.cache
def java() -> str:
    """The `java` to run Kafka with: that of JAVA_HOME, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    executable = found or shutil.which("java")
    if executable is None:
        raise JavaMissing("there is no `java` on the path")
    version = _major_version(executable)
    if version < JAVA_MIN:
        raise JavaMissing(f"{executable} is version {version}" if version else f"{executable} does not run")
    return executable


def java_version() -> str:
    """All that `java` says about itself; an archive of classes belongs to exactly one build."""
    return _printed_version(java())


def _major_version(executable: str) -> int:
    """17 for `openjdk version "17.0.15"`, 8 for `java version "1.8.0_402"`, 0 for something that is no Java."""
    match = re.search(r'version "(?:1\.)?(\d+)', _printed_version(executable))
    return int(match[1]) if match else 0


def _printed_version(executable: str) -> str:
    return subprocess.run([executable, "-version"], capture_output=True, text=True, check=False).stderr


def classpath() -> str:
    """A class path with everything Apache Kafka's server, clients and tools need; the first call may download it."""
    return _folder(JARS, ARTIFACTS)


def streams_classpath() -> str:
    """What a Kafka Streams application needs whose stores are in memory."""
    return os.pathsep.join((_folder(STREAMS_JARS, STREAMS_ARTIFACTS, alone=True), classpath()))


def connector_jars() -> list[Path]:
    """Spark's own Kafka source and sink, for `spark.jars`."""
    _folder(CONNECTOR_JARS, CONNECTOR_ARTIFACTS, alone=True)
    return sorted(CONNECTOR_JARS.glob("*.jar"))


def _folder(folder: Path, artifacts: tuple[tuple[str, str, str], ...], *, alone: bool = False) -> str:
    if not folder.is_dir():
        with only_one_process(folder.name):
            if not folder.is_dir():
                _fetch(folder, artifacts, alone=alone)
    return f"{folder}{os.sep}*"


@contextmanager
def only_one_process(name: str) -> Iterator[None]:
    """Whoever else prepares what has this name in the cache waits for us."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path, artifacts: tuple[tuple[str, str, str], ...], *, alone: bool) -> None:
    """With everything that the artifacts depend on, or each alone."""
    from jgo.maven import Dependency, MavenContext, PythonResolver

    staging = CACHE / f"{folder.name}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    jars = staging / "jars"
    jars.mkdir(parents=True)
    what = f"the jars of {' and '.join(name for _, name, _ in artifacts)}"
    print(f"Fetching {what} into {folder} (once, half a minute) ...", file=sys.stderr, flush=True)
    # A repository folder of our own: jgo writes downloads in place and trusts whatever it finds, so a file that another
    # interrupted run left in the shared ~/.m2 would be taken for a jar.
    context = MavenContext(resolver=PythonResolver(), repo_cache=staging / "repository", timeout=60)
    try:
        with _connections_are_kept():
            wanted = [
                Dependency(context.project(group, name).at_version(version).artifact(), "compile")
                for group, name, version in artifacts
            ]
            inputs, transitive = context.resolver.resolve(wanted)
            for dependency in inputs if alone else [*inputs, *transitive]:
                _check(dependency.artifact.resolve()).rename(jars / dependency.artifact.filename)
    except (OSError, RuntimeError) as error:
        raise JarsMissing(
            f"Could not fetch {what} ({error}); nothing was kept, "
            "run `python -m tests.support.kafka_jars` again when the package registry is reachable."
        ) from error
    jars.rename(folder)
    shutil.rmtree(staging)


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


if __name__ == "__main__":
    try:
        java()
        print(streams_classpath())
        print(*connector_jars(), sep="\n")
    except (JavaMissing, JarsMissing) as error:
        sys.exit(str(error))

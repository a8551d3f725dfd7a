"""The jars of Apache Kafka, and of Spark's connector to it, from the package registry into `.cache/`, and the Java that
runs them.

Apache Kafka is the reference that the conformance tests and the benchmarks hold our broker against. How they get there,
and why a folder of them is complete or absent, is in `registry.py`.

`python -m tests.support.kafka_jars` fetches them ahead of time.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.registry import CACHE, Download, JarsMissing, cached, jars, only_one_process

__all__ = [
    "CACHE",
    "CLIENT_VERSIONS",
    "DOWNLOADS",
    "KAFKA_VERSION",
    "JarsMissing",
    "JavaMissing",
    "classpath",
    "client_classpath",
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
"""Spark's own is made for PySpark 4.2, and runs in 4.3, of which not every mirror of the registry has one."""
CONNECTOR_ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    # Not every mirror of the registry has a newer one, and the connector runs with this one.
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
    ("org.scala-lang.modules", "scala-parallel-collections_2.13", "1.2.0"),
)
CLIENT_VERSIONS = ("2.8.2", "3.0.2", "3.4.1", "3.7.2", "3.9.2", "4.0.2", KAFKA_VERSION, "4.4.0")
"""Java clients that are tried with the broker: the oldest that many still have, one with each way to ask for versions
and features, and the newest."""
JAVA_MIN = 17

JARS = jars(f"kafka-{KAFKA_VERSION}", *ARTIFACTS)
STREAMS_JARS = jars(f"kafka-streams-{KAFKA_VERSION}", *STREAMS_ARTIFACTS, alone=True)
"""Only the jar itself: what it needs is among the others, but for RocksDB (70 MB), for stores on disk."""
CONNECTOR_JARS = jars(f"spark-kafka-{CONNECTOR_VERSION}", *CONNECTOR_ARTIFACTS, alone=True)
"""Only these five: the rest is among Spark's own jars, and a second copy of those would be in the way."""
CLIENT_JARS = {
    version: jars(
        f"kafka-clients-{version}",
        ("org.apache.kafka", "kafka-clients", version),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    )
    for version in CLIENT_VERSIONS
}
"""With the codecs that each brings."""
DOWNLOADS = (JARS, STREAMS_JARS, CONNECTOR_JARS, *CLIENT_JARS.values())


class JavaMissing(RuntimeError):
    """There is no Java, or it is too old."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Java {JAVA_MIN} or newer is needed for the tests against Apache Kafka ({found}); install a JDK, "
            "for example `apt-get install openjdk-17-jdk-headless`, or point JAVA_HOME at one."
        )


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
    return _all_in(JARS)


def streams_classpath() -> str:
    """What a Kafka Streams application needs whose stores are in memory."""
    return os.pathsep.join((_all_in(STREAMS_JARS), classpath()))


def client_classpath(version: str) -> str:
    """What a program needs that uses the Java clients of this version."""
    return _all_in(CLIENT_JARS[version])


def connector_jars() -> list[Path]:
    """Spark's own Kafka source and sink, for `spark.jars`."""
    return sorted(cached(CONNECTOR_JARS.section, CONNECTOR_JARS).glob("*.jar"))


def _all_in(download: Download) -> str:
    return f"{cached(download.section, download)}{os.sep}*"


if __name__ == "__main__":
    try:
        java()
        print(streams_classpath())
        print(*connector_jars(), *map(client_classpath, CLIENT_VERSIONS), sep="\n")
    except (JavaMissing, JarsMissing) as error:
        sys.exit(str(error))

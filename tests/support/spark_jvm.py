"""How the tests start Spark: settings, environment, and two things in `.cache/` that save most of the time it takes.

Until the first micro-batch of a Python data source is done, Spark as pip installs it takes 16 to 21 s on two cores:

- Every Python worker imports PySpark from `python/lib/pyspark.zip`, which Spark puts first on the workers' path. A zip
  keeps no compiled code, so each worker compiles PySpark anew (1.3 s instead of 0.3 s); five start one after the other
  before the first micro-batch, and each further query starts one more. `spark_home` is a Spark home of links to the
  installed one, without the zip: workers find the same PySpark in site-packages, compiled.
- The JVM reads, checks and links all its classes anew. `class_archive` is a CDS archive of them (160 MB), made by
  `spark_warm_up.py`. A JVM that cannot use it (other Java, other jars) ignores it.

With both, the first micro-batch is done after 8 to 9 s. The archive takes a minute to make, which pays after twenty
JVMs or so: `python -m tests.support.spark_jvm` makes it, for `make faults`, and whoever finds it uses it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path

from tests.support.kafka_jars import CACHE, JarsMissing, JavaMissing, connector_jars, java_version, only_one_process

__all__ = [
    "LOOPBACK",
    "QUICK_CHECKPOINTS",
    "QUICK_JVM",
    "ROOT",
    "class_archive",
    "connector_settings",
    "environment",
    "java_options",
    "spark_home",
    "write_settings",
]

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1"
WARM_UP = Path(__file__).with_name("spark_warm_up.py")
WARM_UP_S = 240.0
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Tests end before the second compiler has earned back what it costs."""
QUICK_CHECKPOINTS: Mapping[str, object] = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Saves 100 ms in every micro-batch: without native code, Hadoop's usual classes start `chmod` for every file, and
twice, since they write a checksum file beside it. Not for tests about crashes, which ought to see what users have."""


@functools.cache
def spark_home() -> Path:
    """A Spark home that uses the jars and scripts of the installed PySpark, and its compiled Python code."""
    installed = _installed_pyspark()
    home = CACHE / f"spark-home-{_fingerprint(str(installed))}"
    if not home.is_dir():
        with only_one_process(home.name):
            if not home.is_dir():
                _link(installed, home)
    return home


def _installed_pyspark() -> Path:
    found = util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise JarsMissing("PySpark is not installed; `make setup` installs it with everything else the tests need.")
    return Path(found.origin).parent


def _link(installed: Path, home: Path) -> None:
    staging = home.with_suffix(".partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for part in ("bin", "jars", "sbin"):
        (staging / part).symlink_to(installed / part)
    staging.rename(home)


@functools.cache
def _archive() -> Path:
    """Where the CDS archive for this Java and this PySpark is, if there is one."""
    jars = spark_home() / "jars"
    # Java compares names, sizes and times of the jars; an archive made before PySpark was installed anew is of no use.
    times = sorted((jar.name, jar.stat().st_mtime_ns) for jar in jars.iterdir())
    return CACHE / f"spark-classes-{_fingerprint(java_version(), str(jars), *QUICK_JVM, repr(times))}.jsa"


def class_archive() -> Path:
    """The CDS archive for this Java and this PySpark; the first call takes a minute."""
    archive = _archive()
    if not archive.is_file():
        with only_one_process("spark-classes"):
            if not archive.is_file():
                _make_archive(archive)
    return archive


def _fingerprint(*parts: str) -> str:
    named = "\0".join((metadata.version("pyspark"), *parts))
    return f"{metadata.version('pyspark')}-{hashlib.sha256(named.encode()).hexdigest()[:12]}"


def _make_archive(archive: Path) -> None:
    print(f"Archiving Spark's classes in {archive} (once, a minute) ...", file=sys.stderr, flush=True)
    staging = archive.with_suffix(".partial")
    staging.unlink(missing_ok=True)
    # Java warns about each of the hundreds of classes that it cannot archive, those of signed jars for example.
    flags = (f"-XX:ArchiveClassesAtExit={staging}", "-Xlog:disable", "-Xlog:all=off")
    with tempfile.TemporaryDirectory(prefix="spark-classes-") as folder:
        settings = write_settings(Path(folder), jvm_flags=flags)
        done = subprocess.run(
            [sys.executable, str(WARM_UP)],
            env=environment(Path(folder), settings),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WARM_UP_S,
            check=False,
        )
    if done.returncode != 0 or not staging.is_file():
        raise RuntimeError(f"Spark's classes could not be archived:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    staging.rename(archive)


def java_options(*flags: str) -> str:
    """As Spark reads them from a setting or a variable: in one string, in which a path may have spaces."""
    return " ".join(shlex.quote(flag) for flag in flags)


def write_settings(
    folder: Path, settings: Mapping[str, object] | None = None, *, jvm_flags: tuple[str, ...] | None = None
) -> Path:
    """A file for `--properties-file`; what a program sets itself wins over it."""
    folder.mkdir(parents=True, exist_ok=True)
    if jvm_flags is None:
        jvm_flags = (f"-XX:SharedArchiveFile={_archive()}", "-Xshare:auto") if _archive().is_file() else ()
    # A JVM that is killed leaves its temporary files; here they go when pytest removes its folders.
    flags = java_options(*QUICK_JVM, *jvm_flags, f"-Djava.io.tmpdir={folder}")
    chosen: dict[str, object] = {
        "spark.master": "local[2]",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": flags,
        "spark.executor.extraJavaOptions": flags,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    path = folder / "spark.properties"
    path.write_text("".join(f"{key} {value}\n" for key, value in chosen.items()))
    return path


def connector_settings() -> dict[str, object]:
    """Settings that give Spark its own Kafka source and sink, `format("kafka")`, to compare with."""
    return {"spark.jars": ",".join(map(str, connector_jars()))}


def environment(folder: Path, settings: Path) -> dict[str, str]:
    """What a process needs to start Spark with these settings, from Python or by Spark's scripts."""
    chosen = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(settings))} pyspark-shell",
        # Executors import the functions and classes of the tests.
        "PYTHONPATH": os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))),
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LAUNCHER_OPTS": " ".join(QUICK_JVM),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    return {**os.environ, **chosen}


if __name__ == "__main__":
    try:
        print(spark_home(), class_archive(), sep="\n")
    except (JavaMissing, JarsMissing) as error:
        sys.exit(str(error))

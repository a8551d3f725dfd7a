"""The Java sources of the tests (`tests/conformance/java`), compiled once for every version of them.

The folder of classes is named after what the sources say, so that a changed source is compiled anew and nothing else
ever is; like the jars it is published by one rename.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.support.kafka_jars import CACHE, JavaMissing, classpath, java, only_one_process

__all__ = ["classes", "compiled"]

SOURCES = Path(__file__).resolve().parents[1] / "conformance" / "java"


def compiled(program: str, jars: str | None = None) -> str:
    """A class path with the classes of `java/<program>/*.java` and the jars they need."""
    jars = jars or classpath()
    return os.pathsep.join((str(classes(program, jars)), jars))


@functools.cache
def classes(program: str, jars: str) -> Path:
    """The folder with the classes of `java/<program>/*.java`, compiled with these jars."""
    sources = sorted((SOURCES / program).glob("*.java"))
    fingerprint = hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    folder = CACHE / f"java-{program}-{fingerprint}"
    if not folder.is_dir():
        with only_one_process(f"java-{program}"):
            if not folder.is_dir():
                _compile(sources, folder, jars)
    return folder


def _compile(sources: list[Path], classes: Path, jars: str) -> None:
    compiler = shutil.which("javac", path=str(Path(java()).resolve().parent))
    if compiler is None:
        raise JavaMissing("the one here is a JRE, which cannot compile")
    staging = classes.with_suffix(".partial")
    shutil.rmtree(staging, ignore_errors=True)
    command = [compiler, "-proc:none", "-cp", jars, "-d", str(staging), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"The Java sources do not compile:\n{done.stdout}{done.stderr}")
    staging.rename(classes)

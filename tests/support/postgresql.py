"""A real PostgreSQL for tests, in a folder of its own, that can be restarted, killed and filled up.

Nothing has to be installed (`postgresql_binaries.py`). What holds while it runs:

- It listens on 127.0.0.1, at a port that it keeps over restarts, and on a socket in its folder; everybody needs a
  password (scram).
- Commits are synced to disk, as in production: crash tests rely on it. `settings` may say otherwise.
- It ends, and its folder goes, with the process that started it, even if that is killed (`keeper.py`).
- For root it runs as `nobody`, because it refuses to run as root.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

import psutil
import psycopg
from psycopg import sql

from onceflow.ports import ReservedPort
from tests.support.apache_kafka import HOST
from tests.support.brokers import Shared, started
from tests.support.postgresql_binaries import jdbc_jar, reachable_binaries, server_user
from tests.support.waiting import eventually

__all__ = ["PASSWORD", "USER", "Mode", "PostgreSQL", "PostgreSQLDidNotStart", "jdbc_jar", "shared_postgresql"]

USER = "onceflow"
PASSWORD = "right-password"
START_S = 60.0
STOP_S = 60.0
KEEPER = Path(__file__).with_name("keeper.py")
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
Mode = Literal["fast", "immediate"]


class PostgreSQLDidNotStart(RuntimeError):
    """The server, or what makes its data folder, ended; the message has what it said."""


def shared_postgresql(shared: Shared) -> PostgreSQL:
    """The server that all tests of a process use, each with a `new_database`."""
    return started(lambda: shared.get("postgresql", PostgreSQL))


class PostgreSQL:
    """with PostgreSQL() as server, psycopg.connect(server.new_database()) as connection: ...

    `folder` is where the data goes, if not into a temporary folder; it is made, and left there in the end. `settings`
    are those of postgresql.conf, and can be changed before a restart. `prefix` is a command that runs the server's,
    for example in another mount namespace (`Tmpfs.enter`).
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        settings: Mapping[str, object] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.settings: dict[str, object] = dict(settings or {})
        self._prefix = list(prefix)
        self._user = server_user()
        self._home = Path(tempfile.mkdtemp(prefix="onceflow-pg-"))
        self._home.chmod(0o755)
        self.data = folder or self._home / "data"
        self.log_file = self._home / "server.log"
        self._keeper: subprocess.Popen[str] | None = None
        self._numbers = itertools.count(1)
        self._reserved = ReservedPort(HOST)
        self.port = self._reserved.number
        self.pid = 0

    def __enter__(self) -> PostgreSQL:
        try:
            self._own(self._home)
            if not self._prefix:  # who has other mounts sees to it that the server can write there
                self._own(self.data)
            self._binaries = reachable_binaries(self._user, self._home) / "bin"
            self._make_data()
            return self.start()
        except BaseException:
            self._close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._keeper is not None:
            # It ends the server as if we were gone: nobody wants what a clean end would take the time to write down.
            _let_go(self._keeper)
            self._keeper.wait()  # it removes thousands of files, which takes as long as it takes on a busy disk
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def url(self) -> str:
        return self._url("postgres")

    def _url(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@{HOST}:{self.port}/{database}"

    @property
    def socket_folder(self) -> Path:
        """`host` for a connection through the socket."""
        return self._home

    @property
    def is_running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    # What tests do with the process

    def start(self) -> PostgreSQL:
        assert not self.is_running, "PostgreSQL is running already."
        options = [f"-c{name}={_as_text(value)}" for name, value in (self._basics() | self.settings).items()]
        self._keeper = self._keep("postgres", "-D", str(self.data), *options)
        eventually(self._accepts_connections, "PostgreSQL accepted connections", timeout_s=START_S)
        return self

    def _basics(self) -> dict[str, object]:
        return {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": self._home,
            # In the data folder: what a killed server leaves in /dev/shm would stay there, and a container has little.
            "dynamic_shared_memory_type": "mmap",
            "log_line_prefix": "%m [%p] %e ",  # with the SQLSTATE, which clients are not always told
            "timezone": "UTC",
        }

    def stop(self, mode: Mode = "fast") -> None:
        """`fast` ends all sessions and writes everything down; `immediate` leaves that to the next start."""
        keeper = self._running_keeper()
        os.kill(self.pid, SIGNALS[mode])
        keeper.wait(STOP_S)
        _let_go(keeper)

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """End all of its processes at once; to clients it is a power cut. `start` brings it back, at the same port."""
        keeper = self._running_keeper()
        postmaster = psutil.Process(self.pid)
        postmaster.suspend()  # or it would start further ones while we look
        everybody = [*postmaster.children(recursive=True), postmaster]
        shared_memory = self._shared_memory()
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        eventually(lambda: all(map(_has_ended, everybody)), "all processes ended", timeout_s=STOP_S)
        keeper.wait(STOP_S)
        _let_go(keeper)
        _remove_shared_memory(shared_memory)

    def _running_keeper(self) -> subprocess.Popen[str]:
        assert self.is_running, "PostgreSQL is not running."
        assert self._keeper is not None
        return self._keeper

    # What tests do in the server

    def execute(self, statement: str | sql.Composed, *parameters: object) -> list[tuple[Any, ...]]:
        """One statement in a transaction of its own, as the superuser, in the database of `url`."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """The address of an empty database."""
        name = f"database_{next(self._numbers)}"
        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self._url(name)

    def new_role(self, name: str, password: str, url: str | None = None) -> str:
        """A role that may connect and owns nothing; the address of the same database for it."""
        statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password))
        self.execute(statement)
        parts = urlsplit(url or self.url)
        login = f"{quote(name, safe='')}:{quote(password, safe='')}"
        return urlunsplit(parts._replace(netloc=f"{login}@{parts.hostname}:{parts.port}"))

    def new_tablespace(self, folder: Path, *, seen: Path | None = None) -> str:
        """The name of a tablespace in `folder`; `seen` is where we see that, if the server has mounts of its own."""
        self._own(seen or folder)
        name = f"tablespace_{next(self._numbers)}"
        location = sql.Literal(str(folder))
        self.execute(sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(sql.Identifier(name), location))
        return name

    # How it comes to be

    def _own(self, folder: Path) -> None:
        """Make it, if need be, and give it to the server's user."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._user is None:
            return
        os.chown(folder, *self._user)
        closed = [parent for parent in folder.parents if not parent.stat().st_mode & 0o001]
        if closed:
            raise PostgreSQLDidNotStart(
                f"PostgreSQL runs as the user nobody here, which cannot reach {folder}: {closed[-1]} is closed to "
                "others. Choose a folder elsewhere, for example one of tempfile.mkdtemp() with chmod 755."
            )

    def _make_data(self) -> None:
        password = self._home / "password"
        password.write_text(PASSWORD)
        self._own_file(password)
        options = ["-D", str(self.data), "-U", USER, f"--pwfile={password}", "--auth=scram-sha-256"]
        # The builtin provider sorts by code point on every machine, and needs none of its locales.
        options += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        made = self._keep("initdb", *options, "--no-sync", "--no-instructions")
        code = made.wait(START_S)
        _let_go(made)
        if code != 0:
            raise PostgreSQLDidNotStart(f"initdb failed: {self._said()}")

    def _own_file(self, path: Path) -> None:
        path.chmod(0o600)
        if self._user is not None:
            os.chown(path, *self._user)

    def _keep(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        who = "{}:{}".format(*self._user) if self._user else ""
        command = [*self._prefix, sys.executable, "-I", "-S", str(KEEPER), who, str(self._home)]
        command += [str(self._binaries / program), *arguments]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        with open(self.log_file, "a") as log:
            keeper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the tests, and what they do about it needs the server
            )
        assert keeper.stdout is not None
        line = keeper.stdout.readline()
        if not line:
            keeper.wait()
            _let_go(keeper)
            raise PostgreSQLDidNotStart(f"{program} could not be run: {self._said()}")
        self.pid = int(line)
        return keeper

    def _accepts_connections(self) -> bool:
        if not self.is_running:
            raise PostgreSQLDidNotStart(f"PostgreSQL ended before it was ready: {self._said()}")
        try:
            psycopg.connect(self.url, connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True

    def _said(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-20:])

    def _shared_memory(self) -> int:
        """The number of the segment by which a data folder is known to be in use (System V; the rest is mapped)."""
        # Seen with the server's mounts, where there is such a thing.
        root = Path(f"/proc/{self.pid}/root")
        pid_file = (root if root.exists() else Path("/")) / self.data.relative_to("/") / "postmaster.pid"
        return int(pid_file.read_text().splitlines()[6].split()[1])


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _has_ended(process: psutil.Process) -> bool:
    """A zombie has ended: it holds nothing, and waits only for a parent that may be slow to look."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _remove_shared_memory(number: int) -> None:
    """A power cut takes it along; after a mere kill it would stay until the machine is restarted."""
    ctypes.CDLL(None).shmctl(number, 0, None)  # 0 is IPC_RMID


def _let_go(keeper: subprocess.Popen[str]) -> None:
    for stream in (keeper.stdin, keeper.stdout):
        if stream is not None:
            stream.close()

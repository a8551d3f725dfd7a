"""Spark for tests: a session in this process, and driver programs in processes of their own that can be killed.

A driver process leads a session (`setsid`). Its JVM, its Python workers and the executors of `local-cluster` stay in
that session, though PySpark's daemons lead process groups of their own; so the session is what `kill` ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import uuid4

import psutil

from tests.support.spark_jvm import environment, spark_home, write_settings
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL_CLUSTER", "DriverProcess", "SparkProcess", "end_jvm", "spark_session"]

LOCAL_CLUSTER: Mapping[str, object] = {"spark.master": "local-cluster[2,1,512]", "spark.executor.memory": "512m"}
"""Settings for a driver whose tasks run in two executors, each a JVM of its own with one core."""
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
GATEWAY = "org.apache.spark.deploy.SparkSubmit"
LINE_S = 60.0
END_S = 120.0


@contextlib.contextmanager
def spark_session(folder: Path, settings: Mapping[str, object] | None = None) -> Iterator[SparkSession]:
    """Spark in this process, with a JVM that ends with it."""
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    os.environ.update(environment(folder, write_settings(folder, settings)))
    try:
        session = SparkSession.builder.getOrCreate()
        try:
            yield session
        finally:
            end_jvm(session)
    finally:
        os.environ.clear()
        os.environ.update(before)


def end_jvm(session: SparkSession) -> None:
    """`stop` leaves the JVM running for the next session of the process; this waits for its end."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    process = gateway.proc
    process.stdin.close()
    process.wait(END_S)


class SparkProcess:
    """A process with children and a log; tests kill all of it or parts of it."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "log"
        self._looked_at = 0
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What it and its children wrote to stdout and stderr."""
        return self.log_path.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """All that live in its session, itself included."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            return os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE
        return False

    def processes_with(self, argument: str) -> list[psutil.Process]:
        """Those whose command line has this argument."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if argument in process.cmdline():
                    found.append(process)
        return found

    def executors(self) -> list[psutil.Process]:
        """JVMs of executors; in local mode there are none."""
        return self.processes_with(EXECUTOR)

    def wait_for(self, text: str, timeout_s: float = LINE_S) -> str:
        """The first line of the log with this text, after the one that the last `wait_for` found."""
        try:
            return eventually(lambda: self._next_line(text), f"the log says {text!r}", timeout_s=timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log[-4000:]}") from None

    def _next_line(self, text: str) -> str | None:
        ended = not self.is_running
        at = self._looked_at
        for line in self.log_path.read_bytes()[at:].splitlines(keepends=True):
            at += len(line)
            if line.endswith(b"\n") and text.encode() in line:
                self._looked_at = at
                return line.decode(errors="replace").rstrip("\n")
        assert not ended, f"It ended with {self._process.returncode} and never said {text!r}:\n{self.log[-4000:]}"
        return None

    def wait(self, timeout_s: float = END_S) -> int:
        """The exit code, once it ended by itself."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL for the whole session: what the loss of the machine looks like."""
        while alive := self.processes():
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive, timeout=1)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class DriverProcess(SparkProcess):
    """A driver program, started; Python and its JVM, or with `submit_to` what `spark-submit` starts.

    `settings` are Spark's; the program overrides them where it says so itself. It can import the package `tests`.
    """

    def __init__(
        self,
        script: Path,
        *arguments: object,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        variables: Mapping[str, str] | None = None,
        submit_to: str | None = None,
    ) -> None:
        self._script = str(script)
        # Executors of `local-cluster` work in SPARK_HOME/work/<application id>; ids that Spark makes are of the second.
        self._application = f"app-{uuid4().hex[:12]}"
        pattern = {"spark.deploy.appIdPattern": f"{self._application}-%s-%04d"}
        path = write_settings(folder, {**pattern, **(settings or {})})
        if submit_to is None:
            start = [sys.executable]
        else:
            start = [str(spark_home() / "bin" / "spark-submit"), "--master", submit_to, "--properties-file", str(path)]
        command = [*start, self._script, *map(str, arguments)]
        super().__init__(command, folder, {**environment(folder, path), **(variables or {})})

    @property
    def python(self) -> psutil.Process:
        """The Python process that runs the program."""
        [found] = [each for each in self.processes_with(self._script) if GATEWAY not in each.cmdline()]
        return found

    @property
    def jvm(self) -> psutil.Process:
        [found] = self.processes_with(GATEWAY)
        return found

    def executor_logs(self) -> str:
        """What the executors of `local-cluster` wrote."""
        logs = sorted(_work().glob(f"{self._application}*/*/std*"))
        return "".join(path.read_text(errors="replace") for path in logs)

    def kill_python(self) -> None:
        """SIGKILL for the Python program only. Its JVM notices, and ends by itself a little later."""
        python = self.python
        os.kill(python.pid, signal.SIGKILL)
        if python.pid == self.pid:
            self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for folder in _work().glob(f"{self._application}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _work() -> Path:
    return spark_home() / "work"

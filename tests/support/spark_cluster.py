"""A standalone Spark cluster on this machine: a master and workers as an operator starts them, on loopback.

with StandaloneCluster(folder) as cluster:
    with cluster.submit(script, "argument") as driver:
        driver.wait_for("done")
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psutil

from onceflow.ports import ReservedPort
from tests.support.spark import DriverProcess, SparkProcess
from tests.support.spark_jvm import (
    LOOPBACK,
    QUICK_JVM,
    class_archive,
    environment,
    java_options,
    spark_home,
    write_settings,
)

__all__ = ["StandaloneCluster"]

DEPLOY = "org.apache.spark.deploy"
DAEMON_MEMORY = "256m"


class StandaloneCluster:
    """`workers` machines with one core and one gigabyte each, as far as Spark can tell."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder = folder
        self._size = workers
        self._stack = ExitStack()
        self._port = ReservedPort(LOOPBACK)
        self.master_url = f"spark://{LOOPBACK}:{self._port.number}"
        self.master: SparkProcess
        self.workers: list[SparkProcess] = []

    def __enter__(self) -> StandaloneCluster:
        with ExitStack() as undo:
            undo.push(self)
            self._start()
            undo.pop_all()
        return self

    def _start(self) -> None:
        host, port = self.master_url.removeprefix("spark://").split(":")
        self.master = self._daemon("master", f"{DEPLOY}.master.Master", "--host", host, "--port", port)
        self.master.wait_for("I have been elected leader")
        for number in range(self._size):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}"))
            worker = self._daemon(f"worker-{number}", f"{DEPLOY}.worker.Worker", "--host", host, *size, self.master_url)
            self.workers.append(worker)
        for worker in self.workers:
            worker.wait_for("Successfully registered with master")

    def _daemon(self, name: str, kind: str, *arguments: str) -> SparkProcess:
        folder = self._folder / name
        folder.mkdir(parents=True)
        flags = (*QUICK_JVM, f"-XX:SharedArchiveFile={class_archive()}", "-Xshare:auto", f"-Djava.io.tmpdir={folder}")
        variables = {
            **environment(folder, write_settings(folder)),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": java_options(*flags),
        }
        command = [str(spark_home() / "bin" / "spark-class"), kind, "--webui-port", "0", *arguments]
        return self._stack.enter_context(SparkProcess(command, folder, variables))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def submit(
        self,
        script: Path,
        *arguments: object,
        settings: Mapping[str, object] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> DriverProcess:
        """`spark-submit` of a driver program, which then runs beside the cluster. The caller ends it."""
        number = len(list(self._folder.glob("driver-*")))
        return DriverProcess(
            script,
            *arguments,
            folder=self._folder / f"driver-{number}",
            settings={"spark.executor.memory": "512m", **(settings or {})},
            variables=variables,
            submit_to=self.master_url,
        )

    def executors(self) -> list[psutil.Process]:
        return [executor for worker in self.workers for executor in worker.executors()]

    def executor_logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("work-*/app-*/*/std*")))

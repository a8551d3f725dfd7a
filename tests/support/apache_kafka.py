"""A real Apache Kafka on this machine: one process, KRaft combined mode, loopback only.

    with ApacheKafka() as kafka:
        kafka.bootstrap            # "127.0.0.1:40123"

Nothing here knows about pytest: the benchmarks start their reference broker with it too.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from onceflow.ports import ReservedPort
from tests.support.kafka_jars import classpath, java

__all__ = ["HOST", "QUICK_JVM_OPTIONS", "ApacheKafka", "KafkaDidNotStart"]

HOST = "127.0.0.1"
NODE_ID = 1
CLUSTER_ID = "T25jZWZsb3dDb25mb3JtZQ"
"""Sixteen bytes in Kafka's base64; fixed, so that a data folder can be started again."""

KAFKA_JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""What Kafka's own start script passes."""
QUICK_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
"""For tests: up after 3.0 s of processor time instead of 5.3 s, since the second compiler stays out of the way."""

# Metadata v1 for no topics: header (key 3, version 1, correlation id, null client id), then an empty array.
_METADATA_REQUEST = struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", 0)


class KafkaDidNotStart(RuntimeError):
    """Apache Kafka ended or kept silent while starting; the message carries the end of its log."""


class ApacheKafka:
    """Apache Kafka as a context manager. `stop` and `kill` leave the data in place, and `start` picks it up again."""

    name = "kafka"

    def __init__(
        self,
        properties: Mapping[str, object] | None = None,
        *,
        heap_mb: int = 512,
        jvm_options: Sequence[str] = KAFKA_JVM_OPTIONS,
        start_timeout_s: float = 120,
        ports: tuple[int, int] | None = None,
        format_arguments: Sequence[str] = (),
    ) -> None:
        """`properties` come on top of those of a single node; `ports` are the broker's and the controller's.

        `format_arguments` go to Kafka's `format` command: users, for example, that have to be there from the start.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        self.log_path = self._folder / "server.log"
        self.data_dir = self._folder / "data"
        self._properties_path = self._folder / "server.properties"
        self._jvm = [f"-Xmx{heap_mb}m", f"-Xms{heap_mb}m", *jvm_options]
        self._start_timeout_s = start_timeout_s
        self._format_arguments = list(format_arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._reserved = [] if ports else [ReservedPort(HOST), ReservedPort(HOST)]
        self.port, controller_port = ports or [each.number for each in self._reserved]
        settings = {**_single_node(self.port, controller_port, self.data_dir), **(properties or {})}
        self._properties_path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        atexit.register(self.close)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("Apache Kafka is not running.")
        return self._process.pid

    def start(self) -> None:
        """Start the server on its data, formatted if new, and wait until it answers."""
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        """Start the server, and do not wait: a node of a cluster answers only when the others are there too."""
        if self._process is not None:
            raise RuntimeError("Apache Kafka is already running.")
        if not self.data_dir.exists():
            self._format()
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [
                    java(),
                    *self._jvm,
                    "-Dorg.slf4j.simpleLogger.showDateTime=true",
                    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
                    "-cp",
                    classpath(),
                    "kafka.Kafka",
                    str(self._properties_path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                # Ctrl-C in the terminal is for the tests; they stop the broker when they are done.
                start_new_session=True,
            )

    def stop(self, timeout_s: float = 30) -> None:
        """A clean shutdown; one that takes too long is cut short."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def terminate(self) -> None:
        """Ask for a clean shutdown, and do not wait for it; `stop` does."""
        if self._process is not None:
            self._process.terminate()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def exit_code(self) -> int | None:
        """Of a process that ended by itself, or after `terminate`; None while it runs and when there is none."""
        return None if self._process is None else self._process.poll()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: what a crash of the process looks like."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """End the process, whatever it does, and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    def __enter__(self) -> ApacheKafka:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log_tail(self, lines: int = 30) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _format(self) -> None:
        command = [java(), *QUICK_JVM_OPTIONS, "-cp", classpath(), "kafka.tools.StorageTool", "format"]
        with open(self.log_path, "ab") as log:
            formatted = subprocess.run(
                [
                    *command,
                    "--cluster-id",
                    CLUSTER_ID,
                    "--config",
                    str(self._properties_path),
                    *self._format_arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
            )
        if formatted.returncode != 0:
            raise KafkaDidNotStart(f"Apache Kafka could not format its storage:\n{self.log_tail()}")

    def wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_s
        while not _answers(self.port):
            if self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                raise KafkaDidNotStart(f"Apache Kafka ended with {_describe(code)}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise KafkaDidNotStart(f"No answer within {self._start_timeout_s} s:\n{self.log_tail()}")
            time.sleep(0.05)


def _single_node(port: int, controller_port: int, data_dir: Path) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": NODE_ID,
        "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data_dir,
        # There is one node to keep a copy on.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        # Fifty partitions each, made on first use, cost seconds and serve nobody here.
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # Lower limits of what the tests set to shorter times.
        "group.consumer.min.session.timeout.ms": 1,
        "group.consumer.min.heartbeat.interval.ms": 1,
    }


def _answers(port: int) -> bool:
    """Does Metadata name a broker? The port opens earlier than that."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as connection, connection.makefile("rb") as answers:
            connection.sendall(struct.pack(">i", len(_METADATA_REQUEST)) + _METADATA_REQUEST)
            frame = answers.read(12)
    except OSError:
        return False
    return len(frame) == 12 and struct.unpack(">iii", frame)[2] > 0


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    with ApacheKafka() as server:
        print(f"Apache Kafka on {server.bootstrap}, process {server.pid}, log {server.log_path}; Enter ends it.")
        os.read(0, 1)

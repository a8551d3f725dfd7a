"""What can be done to brokers: ours, those of a user who lets us, and those that nobody may touch.

    EmbeddedBrokers      our broker, a process of its own: kill, pause, restart, and a disk that fails
    ControlledBrokers    a user's cluster, through a command of the user: kill, pause, restart
    GivenBrokers         a user's cluster as it is: nothing

All are context managers, and end as they began: whatever was done to a broker, after `heal` all of them run and answer.

A broker that ended although nobody asked it to is a finding (`problems`), and not forgotten when it is started again.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, Protocol

from onceflow.broker.embedded import Broker
from onceflow.client.cluster import Cluster
from onceflow.client.problems import ClientError
from onceflow.client.security import SECURITY_SETTINGS
from onceflow.client.settings import ClientSettings
from onceflow.errors import BrokerStartError, OnceflowError
from onceflow.verify.faulty_files import FaultyDisk
from onceflow.verify.stage import Disk, Target

__all__ = [
    "SOON",
    "BrokerNode",
    "Brokers",
    "ControlFailed",
    "ControlledBrokers",
    "EmbeddedBrokers",
    "EmbeddedNode",
    "GivenBrokers",
    "answers",
    "wait_until_all_answer",
]

ROLE: Final = "broker"
PROCESS_FAULTS: Final = frozenset({"kill", "pause", "restart"})
DISK_FAULTS: Final = frozenset({"disk full", "fsync fails", "slow disk"})
HEAL_S: Final = 120.0
CONTROL_S: Final = 120.0
ASK_S: Final = 5.0
START_ATTEMPTS: Final = 5
SOON: Final = {
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.heartbeat.interval.ms": 1000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}
"""How soon our broker misses those who died. By default a member of a group has 45 s, in which nothing would happen."""


class BrokerNode(Target, Protocol):
    """One broker. Those that have faults of the process are started again by whoever killed or stopped them."""

    def start(self) -> None:
        """Start it on its data, at its port. Nothing happens if it runs."""


class Brokers(Protocol):
    """The brokers of a run, as a context manager."""

    @property
    def description(self) -> str:
        """For the report: "onceflow", "Kafka at 10.0.0.1:9092"."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def faults(self) -> frozenset[str]:
        """What can be done, by the names of `nemesis.KINDS`."""

    @property
    def disk(self) -> Disk | None: ...

    def nodes(self) -> Sequence[BrokerNode]: ...

    def heal(self) -> None:
        """Everything runs and is healthy again. Returns when all brokers answer, or raises `TimeoutError`."""

    def problems(self) -> list[str]:
        """Brokers that ended by themselves, with what they said last."""

    def __enter__(self) -> Brokers: ...

    def __exit__(self, *_: object) -> None: ...


def _settings(bootstrap: str, client_config: Mapping[str, str] | None) -> ClientSettings:
    security = {name: value for name, value in (client_config or {}).items() if name in SECURITY_SETTINGS}
    return ClientSettings(bootstrap=bootstrap, extra=security, timeout_s=ASK_S)


def wait_until_all_answer(settings: ClientSettings, node_ids: Sequence[int], timeout_s: float = HEAL_S) -> None:
    """Until every one of these nodes is in the metadata and gives metadata itself; by default whichever there are."""
    _eventually(lambda: _all_answer(settings, node_ids), timeout_s, f"the brokers at {settings.bootstrap} answer")


def answers(settings: ClientSettings, node_id: int) -> bool:
    """Whether the node at the address in `settings` is part of its cluster, and says so itself."""
    try:
        with Cluster(settings) as cluster:
            return node_id in [node.id for node in cluster.nodes()]
    except ClientError:
        return False


def _all_answer(settings: ClientSettings, node_ids: Sequence[int]) -> bool:
    try:
        with Cluster(settings) as cluster:
            found = {node.id for node in cluster.nodes()}
            for node in found:
                cluster.node(node).versions()
    except ClientError:
        return False
    return bool(found) and found >= set(node_ids)


def _eventually(probe: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError(f"It did not happen within {timeout_s:g} s that {what}.")
        time.sleep(0.05)


# Our broker


class _FaultyBroker(Broker):
    """Our broker on a disk that fails on demand."""

    faults_dir: Path

    def _program(self) -> list[str]:
        return ["onceflow.verify.faulty_broker", "--faults", str(self.faults_dir)]

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and when it was ended by us."""
        return None if self._process is None else self._process.poll()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


class EmbeddedNode:
    role = ROLE
    name = "broker-1"

    def __init__(self, broker: _FaultyBroker, disk: FaultyDisk) -> None:
        self._broker = broker
        self._disk = disk
        self._is_paused = False
        self.is_wanted = False
        """It is to run; if it does not, the disk does not let it, or it ended by itself."""
        self.problems: list[str] = []

    @property
    def is_running(self) -> bool:
        return self._broker.is_alive and not self._is_paused

    @property
    def pid(self) -> int:
        return self._broker.pid

    def kill(self) -> None:
        self._end(self._broker.kill)

    def stop(self) -> None:
        self.resume()
        self._end(self._broker.stop)

    def pause(self) -> None:
        if self._broker.is_alive:
            self._is_paused = True
            os.kill(self._broker.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self._is_paused:
            os.kill(self._broker.pid, signal.SIGCONT)
            self._is_paused = False

    def start(self) -> None:
        """On a disk that does not let it start, it is started as soon as the disk is healed."""
        self.look()
        self.is_wanted = True
        if self._broker.is_alive:
            return
        for attempt in range(1, START_ATTEMPTS + 1):
            spoiled = len(self._disk.hits())
            try:
                self._broker.start()
            except BrokerStartError:
                if len(self._disk.hits()) == spoiled or attempt == START_ATTEMPTS:
                    raise
                if self._disk.is_full:
                    return
            else:
                return

    def look(self) -> None:
        """Has it ended by itself? That is remembered, and it can be started again."""
        code = self._broker.exit_code
        if code is not None:
            said = self._broker.log_file.read_bytes()[-2000:].decode(errors="replace")
            self.problems.append(f"{self.name} ended by itself with {_describe(code)}; it said last:\n{said}")
            self._end(self._broker.kill)

    def _end(self, end: Callable[[], None]) -> None:
        self.is_wanted = self._is_paused = False
        end()


class _EmbeddedDisk(FaultyDisk):
    """The disk under a broker that could not be started on it before it was healed."""

    node: EmbeddedNode

    def heal(self) -> None:
        super().heal()
        if self.node.is_wanted:
            self.node.start()


class EmbeddedBrokers:
    """Our broker as a process of its own, with its data in `folder`; `settings` have Kafka's names."""

    description = "onceflow"
    faults = PROCESS_FAULTS | DISK_FAULTS

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str | int | bool] | None = None,
        *,
        durability: Literal["fsync", "os"] = "fsync",
    ) -> None:
        all_settings = {**SOON, **(settings or {})}
        self._broker = _FaultyBroker(folder / "data", durability=durability, settings=all_settings)
        self._broker.faults_dir = folder / "faults"
        self.disk: _EmbeddedDisk = _EmbeddedDisk(self._broker.faults_dir)
        self._node = self.disk.node = EmbeddedNode(self._broker, self.disk)
        self._bootstrap = ""

    @property
    def bootstrap(self) -> str:
        return self._bootstrap

    @property
    def log_file(self) -> Path:
        return self._broker.log_file

    def nodes(self) -> Sequence[EmbeddedNode]:
        return [self._node]

    def heal(self) -> None:
        self.disk.heal()
        self._node.resume()
        self._node.start()
        wait_until_all_answer(_settings(self.bootstrap, None), ())

    def problems(self) -> list[str]:
        self._node.look()
        return list(self._node.problems)

    def __enter__(self) -> EmbeddedBrokers:
        self._node.start()
        self._bootstrap = self._broker.bootstrap
        return self

    def __exit__(self, *_: object) -> None:
        self._node.look()
        FaultyDisk.heal(self.disk)  # a broker that is not there is not started for this, as `heal` would do it
        self._node.stop()


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


# A user's cluster


class GivenBrokers:
    """A Kafka that we may not touch: there is only the network before it."""

    faults: frozenset[str] = frozenset()
    disk = None

    def __init__(self, bootstrap: str, client_config: Mapping[str, str] | None = None) -> None:
        self.bootstrap = bootstrap
        self.description = f"Kafka at {bootstrap}"
        self._settings = _settings(bootstrap, client_config)

    def nodes(self) -> Sequence[BrokerNode]:
        return []

    def heal(self) -> None:
        wait_until_all_answer(self._settings, ())

    def problems(self) -> list[str]:
        return []

    def __enter__(self) -> GivenBrokers:
        self._settings.knock()  # a mistyped address is an error now, and not a run in which nothing happens
        return self

    def __exit__(self, *_: object) -> None: ...


class ControlFailed(OnceflowError):
    """The user's command did not do what it was asked for."""


State = Literal["up", "paused", "down", "starting"]


class _ControlledNode:
    role = ROLE

    def __init__(self, node_id: int, settings: ClientSettings, command: Sequence[str]) -> None:
        """`settings` are for connections to this node alone."""
        self.name = f"broker-{node_id}"
        self.id = node_id
        self._settings = settings
        self._command = command
        self._state: State = "up"

    @property
    def is_running(self) -> bool:
        """As far as we are concerned: nobody else is to touch it meanwhile."""
        if self._state == "starting" and answers(self._settings, self.id):
            self._state = "up"
        return self._state == "up"

    def kill(self) -> None:
        self._do("kill", "down")

    def stop(self) -> None:
        self.resume()
        self._do("stop", "down")

    def pause(self) -> None:
        self._do("pause", "paused")

    def resume(self) -> None:
        if self._state == "paused":
            self._do("resume", "up")  # it need not answer for that: it was up

    def start(self) -> None:
        if self._state == "down":
            self._do("start", "starting")

    def _do(self, verb: str, state: State) -> None:
        call = [*self._command, verb, str(self.id)]
        try:
            done = subprocess.run(
                call, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CONTROL_S, check=False
            )
        except OSError as problem:
            raise ControlFailed(f"{shlex.join(call)} cannot be run: {problem.strerror}.") from problem
        except subprocess.TimeoutExpired:
            raise ControlFailed(f"{shlex.join(call)} did not end within {CONTROL_S:g} s.") from None
        if done.returncode != 0:
            said = done.stderr.strip() or "It said nothing on stderr."
            raise ControlFailed(f"{shlex.join(call)} ended with {_describe(done.returncode)}: {said}")
        self._state = state


class ControlledBrokers(GivenBrokers):
    """A user's cluster, with a command that is called as `COMMAND kill|stop|start|pause|resume NODE`.

    NODE is the broker's id in the cluster's metadata. "stop" asks for a clean end and returns when it has come to it;
    "start" need not wait. The nodes are those that there are on entering.
    """

    faults = PROCESS_FAULTS

    def __init__(self, bootstrap: str, command: str, client_config: Mapping[str, str] | None = None) -> None:
        super().__init__(bootstrap, client_config)
        self._command = shlex.split(command)
        self._nodes: list[_ControlledNode] = []

    def nodes(self) -> Sequence[BrokerNode]:
        return self._nodes

    def heal(self) -> None:
        for node in self._nodes:
            node.resume()
            node.start()
        wait_until_all_answer(self._settings, [node.id for node in self._nodes])

    def __enter__(self) -> ControlledBrokers:
        with Cluster(self._settings) as cluster:
            found = cluster.nodes()
        scheme, separator, _ = self.bootstrap.rpartition("://")
        for each in found:
            alone = replace(self._settings, bootstrap=f"{scheme.rpartition(',')[2]}{separator}{each.address}")
            self._nodes.append(_ControlledNode(each.id, alone, self._command))
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:  # nobody is left lying there
            node.resume()
            node.start()

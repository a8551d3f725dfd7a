"""What a workload is given, and what it has to offer: the seam between a run and what is being run."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from onceflow.client.security import SECURITY_SETTINGS
from onceflow.client.settings import ClientSettings
from onceflow.verify.history import Derivation, History, Place

if TYPE_CHECKING:
    from onceflow.verify.nemesis import Planned
    from onceflow.verify.verdict import Anomaly
    from onceflow.verify.workers import Workers

__all__ = ["Disk", "HasJobFaults", "JobFault", "JudgesItself", "NotDrained", "Pace", "Stage", "Target", "Workload"]


class NotDrained(Exception):
    """The workload did not come to its end within its time, although nothing was in its way any more."""


class Target(Protocol):
    """A process, or a group of processes, that the nemesis may strike."""

    @property
    def role(self) -> str:
        """ "producer", "copier", "reader", "driver", "executor", "broker"."""

    @property
    def name(self) -> str: ...

    @property
    def is_running(self) -> bool: ...

    def kill(self) -> None:
        """SIGKILL. Whoever is in charge of it starts it again."""

    def pause(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""

    def stop(self) -> None:
        """SIGTERM: it may finish what it is doing. Whoever is in charge of it starts it again."""


class Disk(Protocol):
    """The disk under a broker of ours."""

    def fill(self) -> None: ...
    def fail_syncs(self) -> None: ...
    def slow_down(self) -> None: ...
    def heal(self) -> None: ...

    def hits(self) -> Sequence[str]:
        """Every write and flush that was spoiled so far, in words."""


class JobFault(Protocol):
    """Something that befalls a job, in several steps: the nemesis asks again and again whether it is over."""

    @property
    def target(self) -> str:
        """The process that it befalls."""

    @property
    def busy(self) -> str:
        """The worker that must not be struck otherwise meanwhile, by its name."""

    @property
    def struck(self) -> str | None:
        """What came of it, in words; None if nothing was struck."""

    def step(self) -> bool:
        """Do what can be done now, without waiting; whether it is over."""

    def end(self) -> None:
        """Put back what has to be, at once: over or not, the job can go on."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How quickly faults follow each other, and how long they last."""

    gap_s: tuple[float, float] = (0.2, 1.6)
    pause_s: tuple[float, float] = (0.2, 3.0)
    down_s: tuple[float, float] = (0.0, 1.0)
    """How long a broker stays away."""
    taken_over_s: float = 20.0
    """How long a zombie's successor has to take over; whether a pipeline of somebody else's has, nobody can tell."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Everything around a workload."""

    bootstrap: str
    """The way to the brokers that the nemesis has its hand on: for the workload's clients."""
    direct: str
    """The way around it: for set-up, observers and the final read."""
    client_config: Mapping[str, str]
    """Further librdkafka settings that every client needs (security)."""
    folder: Path
    """Of this run. Histories are `folder/history/PROCESS.jsonl`; a workload may make folders of its own beside."""
    zero: float
    """The run's beginning on the monotonic clock."""
    chance: random.Random
    """For what the workload leaves to chance: from the run's seed."""
    prefix: str
    """What the names of topics, groups and transactional ids begin with: unique to the run."""
    workers: Workers
    scale: float = 1.0
    """How much load: 1.0 is what two cores carry easily."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What this workload in particular is told."""
    kinds: frozenset[str] = frozenset()
    """The faults that will be made, as far as they are possible."""

    def named(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def settings(self) -> ClientSettings:
        """The way around the nemesis, for clients of our own: of what was set for librdkafka they need the security."""
        security = {name: value for name, value in self.client_config.items() if name in SECURITY_SETTINGS}
        return ClientSettings(bootstrap=self.direct, extra=security, timeout_s=10)


class Workload(Protocol):
    name: str
    strikes: Sequence[str]
    """Roles of processes that the nemesis strikes, the more often the more often they are named."""
    pace: Pace
    """A fault that strikes before anything was done proves nothing: who starts slowly is struck seldom."""

    def topics(self, stage: Stage) -> Mapping[str, int]:
        """With their numbers of partitions; full names (`stage.named`). They are created before `start`."""

    def derivations(self, stage: Stage) -> Sequence[Derivation]: ...

    def groups(self, stage: Stage) -> Sequence[str]:
        """Groups whose committed offsets are watched."""

    def start(self, stage: Stage) -> None:
        """Adds workers to `stage.workers`."""

    def targets(self) -> Sequence[Target]:
        """What there is to strike beyond the workers, at this moment: executors."""

    def finish(self, stage: Stage, timeout_s: float) -> None:
        """Everything is healed. Stop the input, wait until all of it was dealt with, stop the workers.

        Raises `NotDrained` with a sentence that says what was still missing.
        """


@runtime_checkable
class JudgesItself(Protocol):
    """A workload whose records are not those of `history.Record`: it knows by itself what must be in its topics. Of the
    anomalies, those are looked for that are about offsets and ends."""

    onlooker: str
    """The program that reads its topics while it runs, in place of `programs.reader`."""
    topic_settings: Mapping[str, str]

    def watched(self, stage: Stage) -> Mapping[str, int]:
        """Of its topics, those that are read while it runs."""

    def plan(self, seed: int, roles: Collection[str], kinds: Collection[str], pace: Pace) -> Iterator[Planned]:
        """As `nemesis.plan`."""

    def is_at_work(self) -> bool:
        """Has it done something since the last fault? The next one waits for that."""

    def progress(self) -> Mapping[str, int]:
        """How far it has come, for people who wait."""

    def read(self, stage: Stage, timeout_s: float) -> Mapping[Place, int]:
        """The final read; returns how far it came in what is watched. Raises `NotDrained`."""

    def judge(self, stage: Stage, history: History) -> Sequence[Anomaly]:
        """After a final read."""


@runtime_checkable
class HasJobFaults(Protocol):
    """A workload whose job can be struck in ways of its own: `nemesis.JOB`."""

    def job_fault(self, stage: Stage, kind: str) -> JobFault: ...

    def topics_of_faults(self) -> Mapping[str, int]:
        """Topics that were made for such faults so far, with their partitions. They are part of the final read; nobody
        watches them before: a topic that is created anew goes back."""

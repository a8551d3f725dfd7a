"""The nemesis: makes everything go wrong that can go wrong, by a plan that comes from a seed.

The plan is a list without end: after so long, this kind of fault, to one of those, for so long. It depends on the
seed and on what there is to strike, and on nothing that happens: two runs of one seed have the same plan. Whom a
fault finds in the middle of what is up to the processes; the history says what it was.

A fault has a beginning and an end (`fault` operations of the process "nemesis"). Several may overlap. One that found
nothing to strike (no such process is up, no such request came by) is recorded as failed, and is not counted.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from onceflow.verify.history import Outcome, Recorder
from onceflow.verify.stage import Disk, JobFault, Pace, Target
from onceflow.verify.workers import Worker, Workers

__all__ = [
    "DISK",
    "JOB",
    "KINDS",
    "NETWORK",
    "ON_REQUEST",
    "PROCESS",
    "UNGUARDED",
    "Nemesis",
    "Pace",
    "Planned",
    "plan",
]

PROCESS: Final = {
    "kill": "kill -9; whoever is in charge starts it again",
    "pause": "SIGSTOP, and SIGCONT after a while",
    "restart": "SIGTERM: a clean end, and a new start",
    "zombie": "SIGSTOP, a successor takes over, then SIGCONT: the old one does not know that it is over",
}
NETWORK: Final = {
    "cut": "every connection is cut",
    "partition": "nothing passes for a while, and nobody is told",
    "refusal": "every connection is cut, and new ones are closed at once, for a while",
    "delay": "every frame waits for a while",
    "lost request": "a request does not arrive, and its connection is cut",
    "lost answer": "a request is executed, and its answer does not arrive",
    "torn request": "half of a request arrives",
    "torn answer": "half of an answer arrives",
    "late request": "the connection is cut, and the request arrives afterwards, when the client has long tried again",
    "empty answers": "every Fetch is answered without records for a while, as by tiered storage whose reads are slow",
}
DISK: Final = {
    "disk full": "no write finds room for a while",
    "fsync fails": "the next flush to disk fails",
    "slow disk": "every flush takes long",
}
UNGUARDED: Final = {
    "late old request": "the same with EndTxn and TxnOffsetCommit of clients that speak the older protocol of "
    "transactions, in which nothing tells one transaction from the next: Kafka's known hole, closed by KIP-890",
}
"""Only if asked for by name: it finds what is known, on any broker."""
JOB: Final = {
    "older checkpoint": "the checkpoint of a Spark job is replaced by an older copy; when the sink has refused it, the "
    "newest one comes back",
    "recreated topic": "a topic that a Spark job reads is deleted and created again, longer than before; when the "
    "source has refused it, the job goes on with failOnDataLoss=false",
}
"""Only if asked for by name, and only of workloads that can do it (`stage.HasJobFaults`): each takes several starts of
the job."""
ON_REQUEST: Final = {**UNGUARDED, **JOB}
KINDS: Final = {**PROCESS, **NETWORK, **DISK}

# From these versions on a producer has a new epoch in each transaction, so that a late request is told from one of now.
GUARDED_SINCE: Final = {26: 5, 28: 5}

ZOMBIE_ROLES: Final = frozenset({"transactor", "copier", "driver", "pipeline"})
"""Who owns a transactional id, so that there is something to take over."""

# Which request a fault of the network waits for. Those that decide about exactly-once come by more often than they
# would by their numbers.
APIS: Final = {
    "Produce": 0,
    "Fetch": 1,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
}
API_WEIGHTS: Final = (4, 1, 1, 1, 1, 2, 2, 2, 6, 3)
FRAME_WAIT_S: Final = 3.0
"""How long a fault waits for a request of its kind."""
DELAY_SHARE: Final = 10
"""While frames are delayed, each waits for this part of the fault's time."""
JOB_S: Final = 300.0
"""How long a fault of a job may take. A driver of Spark needs half a minute to start on a busy machine."""
TOGETHER_MAX: Final = 3
"""Faults at the same time."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    after_s: float
    kind: str
    role: str
    """Of a process; "network", "disk" or "job"."""
    pick: float
    """Which one of those that run, as a share of their number."""
    lasting_s: float
    api: str
    """The request that a fault of the network waits for."""


def plan(seed: int, roles: Collection[str], kinds: Collection[str], pace: Pace) -> Iterator[Planned]:
    """Without end. `roles` are those of processes, by weight (a role may be named several times)."""
    chance = random.Random(f"nemesis/{seed}")
    options = [(kind, role) for kind in PROCESS if kind in kinds for role in roles if _fits(kind, role)]
    network = [(kind, "network") for kind in (*NETWORK, *UNGUARDED) if kind in kinds]
    disk = [(kind, "disk") for kind in DISK if kind in kinds]
    job = [(kind, "job") for kind in JOB if kind in kinds]
    groups = [(group, weight) for group, weight in ((options, 5), (network, 4), (disk, 1), (job, 1)) if group]
    while groups:
        [group] = chance.choices([each for each, _ in groups], [weight for _, weight in groups])
        kind, role = chance.choice(group)
        bounds = pace.down_s if role == "broker" and kind in ("kill", "restart") else pace.pause_s
        [api] = chance.choices(list(APIS), API_WEIGHTS)
        yield Planned(
            after_s=chance.uniform(*pace.gap_s),
            kind=kind,
            role=role,
            pick=chance.random(),
            lasting_s=chance.uniform(*bounds),
            api=api,
        )


def _fits(kind: str, role: str) -> bool:
    if kind == "zombie":
        return role in ZOMBIE_ROLES
    return not (kind == "restart" and role == "executor")  # nobody stops an executor politely


class Strike(Protocol):
    """A fault of the network that waits for its frame."""

    @property
    def struck(self) -> str | None:
        """What it hit, in words; None as long as it waits."""

    def cancel(self) -> None: ...


class Network(Protocol):
    def cut_all(self) -> int: ...

    def strike(
        self,
        kind: str,
        *,
        api: int | Collection[int],
        delay_s: float,
        versions_min: Mapping[int, int] | None = None,
    ) -> Strike: ...

    def delay(self, seconds: float) -> None:
        """Every frame waits so long, until `heal`."""

    def partition(self) -> None:
        """Nothing passes, and nobody is told, until `heal`."""

    def refuse(self) -> None:
        """Connections are cut and new ones closed, until `heal`."""

    def empty(self) -> None:
        """Every Fetch is answered without records, until `heal`."""

    @property
    def emptied(self) -> int:
        """How many answers have lost records so far."""

    def heal(self) -> None: ...


@dataclass(kw_only=True)
class _Going:
    """A fault that has struck and is not over."""

    op: str
    words: str
    due: float
    is_over: Callable[[], bool] = lambda: True
    """Asked once `due` is past; what is not over by `deadline` is ended all the same."""
    deadline: float
    heal: Callable[[], None] = lambda: None
    result: Callable[[], str | None] = lambda: ""
    """What it hit; None if nothing."""
    busy: str = ""
    """The target's name: one fault at a time for each."""


@dataclass
class Nemesis:
    recorder: Recorder
    planned: Iterator[Planned]
    workers: Workers
    brokers: Callable[[], Sequence[Target]]
    others: Callable[[], Sequence[Target]]
    network: Network | None
    disk: Disk | None
    tell: Callable[[str], None]
    taken_over_s: float = Pace.taken_over_s
    job: Callable[[str], JobFault] | None = None
    """Makes a fault of this kind (`JOB`) for the workload's job."""
    struck: int = 0
    _going: list[_Going] = field(default_factory=list)
    _next: Planned | None = None
    _next_at: float = 0.0

    def step(self, *, more: bool) -> None:
        """What is due now: end what is over, begin what is next. To be called all the time."""
        now = time.monotonic()
        for going in list(self._going):
            if now >= going.due and (going.is_over() or now >= going.deadline):
                self._end(going)
        if not more or len(self._going) >= TOGETHER_MAX:
            return
        if self._next is None:
            self._next = next(self.planned, None)
            if self._next is None:
                return
            self._next_at = now + self._next.after_s
        if now >= self._next_at:
            planned, self._next = self._next, None
            self._strike(planned)

    @property
    def is_at_rest(self) -> bool:
        return not self._going

    def heal(self) -> None:
        """End everything at once."""
        for going in list(self._going):
            self._end(going)

    def _end(self, going: _Going) -> None:
        self._going.remove(going)
        hit = going.result()
        going.heal()
        self.recorder.end(going.op, Outcome.FAILED if hit is None else Outcome.OK, **({"hit": hit} if hit else {}))
        if hit is not None:
            self.struck += 1
            self.tell(f"{going.words}{f': {hit}' if hit else ''}")

    def _strike(self, planned: Planned) -> None:
        begin = {"network": self._strike_network, "disk": self._strike_disk, "job": self._strike_job}
        begin.get(planned.role, self._strike_process)(planned)

    # Processes

    def _strike_process(self, planned: Planned) -> None:
        target = self._choose(planned)
        if target is None:
            return
        fault = {"kill": self._kill, "pause": self._pause, "restart": self._restart, "zombie": self._zombie}
        fault[planned.kind](planned, target)

    def _choose(self, planned: Planned) -> Target | None:
        busy = {each.busy for each in self._going}
        there: list[Target] = [*self.workers.of(planned.role), *self.brokers(), *self.others()]
        there = [each for each in there if each.role == planned.role and each.is_running and each.name not in busy]
        if planned.role == "broker" and any(each.busy.startswith("broker") for each in self._going):
            return None  # of three brokers two must be up, or nobody can do anything
        return there[int(planned.pick * len(there))] if there else None

    def _begin(self, planned: Planned, target: str, **detail: Any) -> tuple[str, float]:
        return self.recorder.begin("fault", kind=planned.kind, target=target, **detail), time.monotonic()

    def _kill(self, planned: Planned, target: Target) -> None:
        op, now = self._begin(planned, _name(target))
        target.kill()
        self._go(op, now, planned, target, heal=_starter(target))

    def _restart(self, planned: Planned, target: Target) -> None:
        op, now = self._begin(planned, _name(target))
        target.stop()
        self._go(op, now, planned, target, heal=_starter(target))

    def _pause(self, planned: Planned, target: Target) -> None:
        op, now = self._begin(planned, _name(target))
        target.pause()
        self._go(op, now, planned, target, heal=target.resume)

    def _zombie(self, planned: Planned, target: Target) -> None:
        assert isinstance(target, Worker)
        op, now = self._begin(planned, _name(target))
        old = target.process_name
        target.pause()
        target.replace()
        self._going.append(
            _Going(
                op=op,
                words=f"zombie {old}",
                due=now + planned.lasting_s,
                is_over=lambda: _has_taken(target),
                deadline=now + planned.lasting_s + self.taken_over_s,
                heal=target.wake_zombies,
                result=lambda: _successor(target),
                busy=target.name,
            )
        )

    def _go(self, op: str, now: float, planned: Planned, target: Target, heal: Callable[[], None]) -> None:
        lasting_s = planned.lasting_s if target.role == "broker" or planned.kind == "pause" else 0.0
        words = f"{planned.kind} {_name(target)}"
        due = now + lasting_s
        self._going.append(_Going(op=op, words=words, due=due, deadline=due, heal=heal, busy=target.name))

    # The network

    def _strike_network(self, planned: Planned) -> None:
        assert self.network is not None
        network = self.network
        if planned.kind == "cut":
            op, now = self._begin(planned, "network")
            cut = network.cut_all()
            hit = f"{cut} connections" if cut else None
            self._going.append(_Going(op=op, words="cut", due=now, deadline=now, result=lambda: hit))
        elif planned.kind in ("partition", "refusal", "delay", "empty answers"):
            if not any(each.busy == "network" for each in self._going):
                self._strike_all_frames(planned, network)
        else:
            op, now = self._begin(planned, "network", api=planned.api)
            strike = self._await_frame(planned)
            going = _Going(
                op=op,
                words=planned.kind,
                due=now,
                is_over=lambda: strike.struck is not None,
                deadline=now + FRAME_WAIT_S,
                heal=strike.cancel,
                result=lambda: strike.struck,
            )
            self._going.append(going)

    def _strike_all_frames(self, planned: Planned, network: Network) -> None:
        op, now = self._begin(planned, "network", seconds=round(planned.lasting_s, 3))
        end = now + planned.lasting_s
        going = _Going(op=op, words=planned.kind, due=end, deadline=end, heal=network.heal, busy="network")
        before = network.emptied
        if planned.kind == "delay":
            network.delay(planned.lasting_s / DELAY_SHARE)
        elif planned.kind == "empty answers":
            network.empty()
            going.result = lambda: _answers(network.emptied - before)
        else:
            {"partition": network.partition, "refusal": network.refuse}[planned.kind]()
        self._going.append(going)

    def _await_frame(self, planned: Planned) -> Strike:
        assert self.network is not None
        api, delay_s = APIS[planned.api], planned.lasting_s
        if planned.kind in UNGUARDED:
            # So late that it meets the next transaction, and not one long after.
            return self.network.strike("late request", api=list(GUARDED_SINCE), delay_s=delay_s / DELAY_SHARE)
        guarded = GUARDED_SINCE if planned.kind == "late request" else None
        return self.network.strike(planned.kind, api=api, delay_s=delay_s, versions_min=guarded)

    # The disk

    def _strike_disk(self, planned: Planned) -> None:
        if self.disk is None or any(each.busy == "disk" for each in self._going):
            return
        op, now = self._begin(planned, "disk", seconds=round(planned.lasting_s, 3))
        disk, before = self.disk, len(self.disk.hits())
        {"disk full": disk.fill, "fsync fails": disk.fail_syncs, "slow disk": disk.slow_down}[planned.kind]()
        due = now + planned.lasting_s

        def result() -> str | None:
            hits = disk.hits()[before:]
            if not hits:
                return None
            return hits[0] if len(hits) == 1 else f"{len(hits)} times, first: {hits[0]}"

        self._going.append(
            _Going(op=op, words=planned.kind, due=due, deadline=due, heal=disk.heal, result=result, busy="disk")
        )

    # The job

    def _strike_job(self, planned: Planned) -> None:
        assert self.job is not None
        fault = self.job(planned.kind)
        if any(each.busy == fault.busy for each in self._going):
            return
        op, now = self._begin(planned, fault.target)
        self._going.append(
            _Going(
                op=op,
                words=f"{planned.kind} {fault.target}",
                due=now,
                is_over=fault.step,
                deadline=now + JOB_S,
                heal=fault.end,
                result=lambda: fault.struck,
                busy=fault.busy,
            )
        )


def _answers(count: int) -> str | None:
    return f"{count} answers" if count else None


def _name(target: Target) -> str:
    return target.process_name if isinstance(target, Worker) else target.name


def _starter(target: Target) -> Callable[[], None]:
    """Brokers are started again by us; workers by their supervisor, executors by Spark."""
    start = getattr(target, "start", None)
    return (lambda: None) if isinstance(target, Worker) or start is None else start


def _successor(worker: Worker) -> str:
    return f"{worker.process_name} {'took over' if _has_taken(worker) else 'was started beside it'}"


def _has_taken(worker: Worker) -> bool:
    """Has the present life become the owner of its transactional id? Its history says so."""
    try:
        lines = worker.history_path.read_bytes().splitlines()
    except OSError:
        return False
    takes = set()
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("f") == "take":
            takes.add(event["op"])
        elif event.get("end") == Outcome.OK and event["op"] in takes:
            return True
    return False

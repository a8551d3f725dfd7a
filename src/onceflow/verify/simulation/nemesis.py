"""What goes wrong in a simulated run, chosen and timed by its seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from onceflow.verify.history import Outcome
from onceflow.verify.simulation.machine import Machine
from onceflow.verify.simulation.network import Network, Trouble
from onceflow.verify.simulation.processes import Recorder, Worker
from onceflow.verify.simulation.world import World

__all__ = ["Nemesis"]

NAME: Final = "nemesis"
DOWN_S: Final = (0.01, 0.6)
PAUSES_S: Final = ((0.02, 0.3), (0.2, 1.5))
STEPS_MAX: Final = (8, 24)
MOMENT_S: Final = (0.0, 0.015)
BYTES_MAX: Final = 3000
REQUESTS: Final = (
    "ProduceRequest",
    "ProduceRequest",
    "EndTxnRequest",
    "EndTxnRequest",
    "TxnOffsetCommitRequest",
    "AddPartitionsToTxnRequest",
    "InitProducerIdRequest",
    "FetchRequest",
)
MOMENTS: Final = ("ProduceRequest", "ProduceRequest", "EndTxnRequest", "EndTxnRequest", "TxnOffsetCommitRequest")
"""Before which a client is struck best, and after which a broker is."""


class Nemesis:
    def __init__(self, world: World, machine: Machine, network: Network, recorder: Recorder) -> None:
        self._world = world
        self._chance = world.chance
        self._machine = machine
        self._network = network
        self._recorder = recorder
        self._workers: Sequence[Worker] = ()
        self._kinds: list[tuple[Callable[[], tuple[str, str]], int]] = [
            (self._kill_broker, 3),
            (self._lose_power, 5),
            (self._restart_broker, 1),
            (self._die_over_a_write, 6),
            (self._fail_syncs, 2),
            (self._fill_disk, 2),
            (self._trouble, 10),
            (self._cut_all, 1),
            (self._kill_worker, 3),
            (self._make_zombie, 6),
            (self._pause_worker, 2),
        ]

    def plan(self, workers: Sequence[Worker], faults: int, within_s: float) -> None:
        """Strike so many times, at random moments."""
        self._workers = workers
        for _ in range(faults):
            self._world.after(self._world.between(0, within_s), self._strike)

    def heal(self) -> None:
        self._network.heal()
        self._machine.files.steps_until_crash = None
        self._machine.files.bytes_until_crash = None
        self._machine.files.sync_failures = 0
        self._machine.files.write_failure = None

    def _strike(self) -> None:
        [strike] = self._chance.choices([kind for kind, _ in self._kinds], [weight for _, weight in self._kinds])
        kind = strike.__name__.strip("_").replace("_", " ")
        began = self._recorder.begin(NAME, "fault", kind=kind)
        target, detail = strike()
        self._recorder.end(began, Outcome.OK, target=target, detail=detail)

    # The broker

    def _kill_broker(self) -> tuple[str, str]:
        return self._end_broker(self._machine.kill)

    def _lose_power(self) -> tuple[str, str]:
        return self._end_broker(self._machine.lose_power)

    def _restart_broker(self) -> tuple[str, str]:
        return self._end_broker(self._machine.stop)

    def _end_broker(self, end: Callable[[], None]) -> tuple[str, str]:
        """Now, or a moment after it is asked for something that takes several steps."""

        def strike() -> None:
            if self._machine.node is not None:
                end()
                self._world.after(self._world.between(*DOWN_S), self._machine.start)

        if self._chance.random() < 0.4:
            strike()
            return "broker", "now"
        request, moment_s = self._chance.choice(MOMENTS), self._world.between(*MOMENT_S)
        self._network.when_arriving(request, lambda: self._later(moment_s, strike))
        return "broker", f"{moment_s * 1000:.1f} ms after the next {request}"

    def _later(self, seconds: float, strike: Callable[[], None]) -> None:
        self._world.after(seconds, strike)

    def _die_over_a_write(self) -> tuple[str, str]:
        """In place of some step to come; best of all, of one that the next EndTxn or the like leads to."""
        if self._chance.random() < 0.3:
            return "broker", self._die_soon()
        request = self._chance.choice(MOMENTS)
        self._network.when_arriving(request, lambda: self._world.say(self._die_soon()))
        return "broker", f"soon after the next {request}"

    def _die_soon(self) -> str:
        files = self._machine.files
        if self._chance.random() < 0.8:
            files.steps_until_crash = self._chance.randrange(self._chance.choice(STEPS_MAX))
            return f"after {files.steps_until_crash} steps"
        files.bytes_until_crash = self._chance.randrange(1, BYTES_MAX)
        return f"after {files.bytes_until_crash} bytes"

    def _fail_syncs(self) -> tuple[str, str]:
        self._machine.files.sync_failures = count = self._chance.choice((1, 1, 2, 4))
        return "disk", f"the next {count} syncs fail"

    def _fill_disk(self) -> tuple[str, str]:
        self._machine.files.write_failure = passes, partial = self._chance.randrange(6), self._chance.randrange(200)
        return "disk", f"{passes} more writes and {partial} bytes"

    # The network

    def _trouble(self) -> tuple[str, str]:
        request, trouble = self._chance.choice(REQUESTS), self._chance.choice(list(Trouble))
        self._network.expect(request, trouble)
        return request, trouble.value

    def _cut_all(self) -> tuple[str, str]:
        self._network.cut_all()
        return "network", "every connection"

    # Clients

    def _kill_worker(self) -> tuple[str, str]:
        worker = self._chance.choice(self._workers)
        life = worker.life

        def strike() -> None:
            life.pause()  # until it is dead, in a moment: it may be in the middle of a step
            self._world.after(0.0, lambda: worker.kill(life))

        return life.name, self._when_it_suits(worker, strike)

    def _make_zombie(self) -> tuple[str, str]:
        worker = self._chance.choice(self._workers)
        life = worker.life

        def strike() -> None:
            worker.replace(life)
            self._world.after(self._pause_s(), life.resume)

        return life.name, self._when_it_suits(worker, strike)

    def _pause_worker(self) -> tuple[str, str]:
        worker = self._chance.choice(self._workers)
        life = worker.life

        def strike() -> None:
            life.pause()
            self._world.after(self._pause_s(), life.resume)

        return life.name, self._when_it_suits(worker, strike)

    def _pause_s(self) -> float:
        return self._world.between(*self._chance.choice(PAUSES_S))

    def _when_it_suits(self, worker: Worker, strike: Callable[[], None]) -> str:
        """Now, or when it is about to ask for something."""
        if self._chance.random() < 0.4:
            strike()
            return "now"
        request = self._chance.choice(MOMENTS)
        worker.life.before_asking(request, strike)
        return f"before its next {request}"

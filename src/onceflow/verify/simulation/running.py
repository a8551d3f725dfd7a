"""One simulated run from its seed to its verdict.

    world       virtual time, the queue of events, chance
    machine     the broker, all of it but sockets and threads, on a disk that can forget
    network     connections that break
    workers     clients by protocol; `nemesis` strikes them and everything else

After the last fault everything is healed and the clients finish what they were to do. A run that does not come to rest
then is stuck, which is a problem as much as an exception in the broker is. What is left is read, and judged together
with the history by the same checker that judges real processes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final

from onceflow.broker.node import Node
from onceflow.config import BrokerConfig
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.verify.anomalies import check
from onceflow.verify.history import Derivation, History, Operation, Seen
from onceflow.verify.simulation import requests
from onceflow.verify.simulation.machine import DIRECTORY, Machine
from onceflow.verify.simulation.nemesis import Nemesis
from onceflow.verify.simulation.network import Network
from onceflow.verify.simulation.processes import Recorder, Worker
from onceflow.verify.simulation.workers import (
    INPUT,
    OUTPUT,
    Copier,
    IdempotentProducer,
    Layout,
    Observer,
    Reader,
    Settings,
    TransactionalProducer,
)
from onceflow.verify.simulation.world import World
from onceflow.verify.verdict import Anomaly

__all__ = ["SimulationResult", "simulate"]

FAULTS: Final = (1, 2, 3, 4, 5, 6, 8)
STRUCK_FOR_S: Final = (0.1, 0.8)
HEALED_AFTER_S: Final = 0.6
DEADLINE_S: Final = 40.0
LOOKS_EVERY_S: Final = 0.02
TIMEOUTS_MS: Final = (400, 1500, 5000)
READ_BYTES: Final = 1_000_000


@dataclass(frozen=True)
class SimulationResult:
    seed: int
    history: History
    anomalies: Sequence[Anomaly]
    problems: Sequence[str]
    """Why the run proves less than it should: it was stuck, or the broker raised an exception."""
    faults: Sequence[Operation]
    trace: Sequence[str]
    """What happened when, if it was asked for."""
    seconds: float
    """Of virtual time."""

    @property
    def is_clean(self) -> bool:
        return not self.anomalies and not self.problems


def simulate(seed: int, *, is_traced: bool = False) -> SimulationResult:
    world = World(seed, is_traced=is_traced)
    with _logged_to(world):
        run = _Run(world)
        final = run.go()
    history = History(
        run.recorder.operations(), final, derivations=[Derivation(INPUT, OUTPUT)], is_drained=run.is_drained
    )
    return SimulationResult(
        seed=seed,
        history=history,
        anomalies=check(history),
        problems=world.problems,
        faults=history.of("fault"),
        trace=world.trace,
        seconds=world.now,
    )


class _Run:
    def __init__(self, world: World) -> None:
        chance = world.chance
        self._world = world
        self._layout = Layout()
        config = _config(
            chance.choice((400, 1500, 1_000_000)), chance.choice((600, 3000)), chance.choice((0, 200, 4096))
        )
        self._machine = Machine(world, _prepared_disk(self._layout).kill(), config)
        self._network = Network(world, self._machine)
        self.recorder = Recorder(world)
        self._nemesis = Nemesis(world, self._machine, self._network, self.recorder)
        self._settings = Settings(world, self._network, self.recorder, self._layout)
        self._copiers = [
            Copier(self._settings, index, v2=chance.random() < 0.7, timeout_ms=chance.choice(TIMEOUTS_MS))
            for index in range(self._layout.inputs)
        ]
        self._settings.producers += self._producers()
        self._onlookers: list[Worker] = [Reader(self._settings, "reader-0"), Observer(self._settings, "observer-0")]
        self._is_over = False
        self.is_drained = False

    def _producers(self) -> Iterator[Worker]:
        chance, settings = self._world.chance, self._settings
        for number in range(chance.choice((1, 2))):
            yield TransactionalProducer(
                settings,
                f"producer-{number}",
                chance.randrange(2, 5),
                v2=chance.random() < 0.6,
                timeout_ms=chance.choice(TIMEOUTS_MS),
            )
        if chance.random() < 0.5:
            yield IdempotentProducer(settings, "idempotent-0", chance.randrange(1, 4))

    def go(self) -> list[Seen]:
        world = self._world
        workers = [*self._settings.producers, *self._copiers, *self._onlookers]
        for worker in workers:
            worker.start()
        struck_for = world.between(*STRUCK_FOR_S)
        self._nemesis.plan(workers, world.chance.choice(FAULTS), struck_for)
        world.after(struck_for + HEALED_AFTER_S, self._nemesis.heal)
        self._look()
        self.is_drained = world.run(lambda: self._is_over, DEADLINE_S)
        self._settings.is_closing = True
        if not self.is_drained:
            world.problem(f"stuck after {world.now:.1f} s: {', '.join(self._unfinished())}")
        self._machine.check()
        return list(self._final())

    def _look(self) -> None:
        """Is it over? Asked now and then, for it is cheaper to run on for a moment than to ask after every event."""
        self._is_over = self._is_at_rest()
        self._world.after(LOOKS_EVERY_S, self._look)

    def _is_at_rest(self) -> bool:
        if not all(copier.is_at_rest for copier in self._copiers):
            return False
        return self._settings.input_is_complete and not self._undecided()

    def _undecided(self) -> list[str]:
        """Partitions in which something is open, or not on disk. One whose flush failed is mended by the next write."""
        if self._machine.node is None:
            return ["there is no broker"]
        logs = [(partition, partition.log) for partition in self._machine.node.topics.partitions()]
        return [
            f"{partition.topic}-{partition.index} is stable up to {log.last_stable_offset} of {log.end_offset}"
            for partition, log in logs
            if log.last_stable_offset < log.high_watermark
            or (log.high_watermark < log.end_offset and not log.awaits_repair)
        ]

    def _unfinished(self) -> list[str]:
        workers = [*self._settings.producers, *self._copiers]
        return [worker.name for worker in workers if not worker.is_at_rest] + self._undecided()

    def _final(self) -> Iterator[Seen]:
        """What a reader of committed records finds now."""
        positions = dict.fromkeys(self._layout.places, 0)
        while positions and self._machine.node is not None:
            answer = self._machine.ask(requests.fetch(positions.items(), READ_BYTES), requests.FETCH_VERSION)
            if answer is None:
                self._world.problem("the final read is not answered")
                return
            for place, partition in requests.partitions_of(answer):
                found = requests.fetched(place, positions[place], partition)
                if found.error:
                    self._world.problem(f"the final read of {place} at {positions[place]} is answered {found.error}")
                yield from found.seen
                if found.position == positions[place]:
                    del positions[place]
                else:
                    positions[place] = found.position


@cache
def _config(segment_bytes: int, state_segment_bytes: int, index_interval_bytes: int) -> BrokerConfig:
    """Small segments, so that a short run has several of them."""
    settings = {
        "log.segment.bytes": segment_bytes,
        "transaction.state.log.segment.bytes": state_segment_bytes,
        "offsets.topic.segment.bytes": state_segment_bytes,
        "log.index.interval.bytes": index_interval_bytes,
    }
    return BrokerConfig(given={name: str(value) for name, value in settings.items()}, fsync=True)


@cache
def _prepared_disk(layout: Layout) -> MemoryFileSystem:
    """A data directory with the topics in it, for every run to begin with a copy of."""
    files = MemoryFileSystem()
    node = Node(files, DIRECTORY, BrokerConfig(given={}, fsync=True), World(0))
    for name, partitions in layout.topics.items():
        node.topics.create(name, partitions, {})
    return files


class _Listener(logging.Handler):
    """What the broker logs goes to the trace; an exception in there is a problem of the run."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._world.problem(f"the broker logs: {logging.Formatter().format(record)}")
        else:
            self._world.say(f"broker: {record.getMessage()}")


@contextmanager
def _logged_to(world: World) -> Iterator[None]:
    logger = logging.getLogger("onceflow")
    before = logger.level, logger.propagate, logger.handlers
    logger.setLevel(logging.INFO if world.is_traced else logging.ERROR)
    logger.propagate, logger.handlers = False, [_Listener(world)]
    try:
        yield
    finally:
        logger.level, logger.propagate, logger.handlers = before
        logger.setLevel(before[0])

"""Clients as processes: a generator each, which can be killed and paused between any two of its steps.

A *worker* is what is to be done, a *life* is one process that does it. When a life ends before the work is done, the
next one begins: the worker "copier-1" has the lives "copier-1.1", "copier-1.2" and so on. A paused life whose successor
has begun is a zombie: it goes on one day, with all that it believes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from onceflow.verify.history import NEVER, Operation, Outcome
from onceflow.verify.simulation.network import Exchange, Line, Network
from onceflow.verify.simulation.world import World
from onceflow.wire.schema import Message

__all__ = ["Effect", "Ended", "Life", "Recorder", "Steps", "Worker"]

NEXT_LIFE_S: Final = (0.01, 0.2)

Effect = Callable[[Callable[[Any], None]], object]
"""What a life waits for: started with what is to be called when it is there."""
Steps = Generator[Effect, Any, Any]


class Ended(Exception):
    """A life is at its end: fenced, or refused in a way that it cannot go on from."""


class Recorder:
    """The operations of all processes of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun: dict[str, tuple[str, float, dict[str, Any]]] = {}
        self._ended: dict[str, tuple[float, Outcome, dict[str, Any]]] = {}
        self._counts: dict[str, int] = {}

    def begin(self, process: str, f: str, **asked: Any) -> str:
        self._counts[process] = number = self._counts.get(process, 0) + 1
        op = f"{process}:{number}"
        self._begun[op] = (f, self._world.now, asked)
        if self._world.is_traced:
            self._world.say(f"{op} {f} {asked}")
        return op

    def end(self, op: str, outcome: Outcome, **told: Any) -> None:
        self._ended[op] = (self._world.now, outcome, told)
        if self._world.is_traced:
            self._world.say(f"{op} {outcome.value} {told}")

    def operations(self) -> list[Operation]:
        found = []
        for op, (f, began, asked) in self._begun.items():
            ended, outcome, told = self._ended.get(op, (NEVER, Outcome.UNKNOWN, {}))
            found.append(Operation(id=op, f=f, began=began, ended=ended, outcome=outcome, asked=asked, told=told))
        return found


class Life:
    """One process: what it has in its hands, and how it waits."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.worker = worker
        self.world = worker.world
        self.chance = worker.world.chance
        self.recorder = worker.recorder
        self.name = f"{worker.name}.{number}"
        self._line: Line | None = None
        self._steps: Steps | None = None
        self._held: list[Any] = []
        self._traps: dict[str, Callable[[], None]] = {}
        self.is_running = True
        self.is_paused = False

    # For those who write clients

    def begin(self, f: str, **asked: Any) -> str:
        return self.recorder.begin(self.name, f, **asked)

    def end(self, op: str, outcome: Outcome, **told: Any) -> None:
        self.recorder.end(op, outcome, **told)

    def sleep(self, least: float, most: float) -> Steps:
        seconds = self.world.between(least, most)
        yield lambda resume: self.world.after(seconds, lambda: resume(None))

    def ask(self, request: Message, version: int, *, may_be_late: bool = True) -> Steps:
        """The answer, or None if it is not known what became of the request."""
        exchange = Exchange(request, version, may_be_late)
        yield from self.ask_all([exchange])
        return exchange.answer

    def ask_all(self, exchanges: Sequence[Exchange]) -> Steps:
        """Send several requests without waiting in between."""
        if self._traps:
            strike = self._traps.pop(type(exchanges[0].request).__name__, None)
            if strike is not None:
                strike()
                yield lambda resume: resume(None)  # which is held back as long as it is paused
        if self._line is None or not self._line.is_open:
            self._line = self.worker.network.connect(self.name)
        line = self._line
        yield lambda resume: line.ask(exchanges, resume)

    # For those who drive them

    def before_asking(self, request: str, strike: Callable[[], None]) -> None:
        """Strike when it is about to send a request of this class."""
        self._traps[request] = strike

    def start(self, steps: Steps) -> None:
        self._steps = steps
        self._go_on(None)

    def _go_on(self, value: Any) -> None:
        if not self.is_running:
            return
        if self.is_paused:
            self._held.append(value)
            return
        assert self._steps is not None
        try:
            effect = self._steps.send(value)
        except StopIteration:
            self._leave("has done its work")
            self.worker.ended(self)
        except Ended as reason:
            self._leave(f"ends: {reason}")
            self.worker.ended(self)
        except Exception:
            self.world.problem_with(f"an exception in {self.name}")
            self._leave("failed")
        else:
            effect(self._go_on)

    def kill(self) -> None:
        if self.is_running:
            self._leave("killed")
            assert self._steps is not None
            self._steps.close()

    def pause(self) -> None:
        self.world.say(f"{self.name} paused")
        self.is_paused = True

    def resume(self) -> None:
        if self.is_running and self.is_paused:
            self.world.say(f"{self.name} goes on")
            self.is_paused = False
            held, self._held = self._held, []
            for value in held:
                self._go_on(value)

    def _leave(self, how: str) -> None:
        self.world.say(f"{self.name} {how}")
        self.is_running = False
        if self._line is not None:
            self._line.cut(late=self.chance.random() < 0.5)


class Worker:
    """Something to be done, in as many lives as it takes."""

    def __init__(self, world: World, network: Network, recorder: Recorder, name: str) -> None:
        self.world = world
        self.network = network
        self.recorder = recorder
        self.name = name
        self.lives: list[Life] = []

    # What a kind of worker says

    def new_life(self, number: int) -> Life:
        raise NotImplementedError

    def steps(self, life: Life) -> Steps:
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        raise NotImplementedError

    # Lives

    @property
    def life(self) -> Life:
        """The newest."""
        return self.lives[-1]

    @property
    def is_at_rest(self) -> bool:
        return self.is_done and not any(life.is_running for life in self.lives)

    def start(self) -> None:
        if self.is_done:
            return
        life = self.new_life(len(self.lives) + 1)
        self.lives.append(life)
        life.start(self.steps(life))

    def ended(self, life: Life) -> None:
        """A life has ended by itself; the next one follows, unless it has its successor already."""
        if life is self.life and not self.is_done:
            self.world.after(self.world.between(*NEXT_LIFE_S), self.start)

    def kill(self, life: Life) -> None:
        if life.is_running:
            life.kill()
            self.ended(life)

    def replace(self, life: Life) -> None:
        """Pause a life and begin the next one; the old one is a zombie from now on."""
        if life.is_running:
            life.pause()
            self.ended(life)

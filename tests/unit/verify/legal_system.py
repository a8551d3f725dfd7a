"""Random histories of a system that does everything right, whatever happens to its processes.

Producers, transactional producers and copiers (consume, transform, produce, with state) against a `TinyBroker`.
Between any two of their steps they are killed, fall asleep and are succeeded, wake up as zombies; requests are lost,
arrive long after they were given up, and lose their answers. What happens is decided by a list of numbers, of which
any makes sense.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

from onceflow.verify.history import NEVER, Derivation, History, Operation, Outcome, Place, Record, Seen
from tests.unit.verify.tiny_broker import NotYet, Refused, TinyBroker

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
INPUT, OUTPUT, STATE, ORDERS, PAYMENTS = "input", "output", "state", "orders", "payments"
PARTITIONS = 2
WORKERS = ("producer-1", "transactor-1", "transactor-2", "copier-1", "copier-2", "reader-1", "observer")
KEYS = 4
DRAIN_STEPS_MAX = 3000

Steps = Generator["Request", None, None]


class Over(Exception):
    """A life ends by itself."""


class Request:
    """Something asked of the broker, on its way there or back."""

    def __init__(self, apply: Callable[[], Any]) -> None:
        self._apply = apply
        self.is_settled = False
        self.answer: Any = None
        self.problem: Exception | None = None
        self.is_lost = False

    def arrive(self, *, is_answered: bool) -> None:
        try:
            answer, problem = self._apply(), None
        except (Refused, NotYet) as refusal:
            answer, problem = None, refusal
        if self.is_settled:
            return  # who had asked has given it up
        self.answer, self.problem = answer, problem
        self.settle(is_lost=not is_answered)

    def settle(self, *, is_lost: bool) -> None:
        self.is_settled, self.is_lost = True, is_lost


class Life:
    def __init__(self, system: System, worker: str, number: int) -> None:
        self.system = system
        self.worker = worker
        self.name = f"{worker}.{number}"
        self.is_running = True
        self._operations = 0
        self._transactions = 0
        self._ids = 0
        self._waits_for: Request | None = None
        self._steps = self._program()()

    def go_on(self) -> None:
        if not self.is_running or (self._waits_for is not None and not self._waits_for.is_settled):
            return
        try:
            self._waits_for = next(self._steps)
        except (StopIteration, Over):
            self.is_running = False

    # --- what a program is made of

    def ask(self, apply: Callable[[], Any]) -> Generator[Request, None, Request]:
        request = Request(apply)
        self.system.on_their_way.append(request)
        yield request
        return request

    def operation(self, f: str, apply: Callable[[], Any], told: Any = None, **asked: Any) -> Any:
        """An operation with one request: `told` makes the end of the operation from the answer."""
        op = self.begin(f, **asked)
        request = yield from self.ask(apply)
        outcome = UNKNOWN if request.is_lost else FAILED if request.problem else OK
        self.end(op, outcome, **(told(request.answer) if told and outcome is OK else {}))
        return outcome, request.answer

    def begin(self, f: str, **asked: Any) -> str:
        self._operations += 1
        return self.system.begin(f"{self.name}:{self._operations}", f, asked)

    def end(self, op: str, outcome: Outcome, **told: Any) -> None:
        self.system.end(op, outcome, told)

    def pick(self, most: int) -> int:
        return self.system.pick(most)

    def new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}"

    # --- the programs

    def _program(self) -> Callable[[], Steps]:
        role = self.worker.partition("-")[0]
        programs = {
            "producer": self._produce,
            "transactor": self._transact,
            "copier": self._copy,
            "reader": self._read,
            "observer": self._observe,
        }
        return programs[role]

    def _produce(self) -> Steps:
        broker = self.system.broker
        while True:
            keys = [self.pick(KEYS) for _ in range(1 + self.pick(3))]
            records = [((INPUT, key % PARTITIONS), Record(self.new_id(), key=f"k{key}")) for key in keys]
            asked = [[*place, record.id] for place, record in records]

            def write(records: Any = tuple(records)) -> list[list[Any]]:
                return [[*place, broker.append(place, record), record.id] for place, record in records]

            told = (lambda written: {"written": written}) if self.pick(2) else None
            yield from self.operation("write", write, told, transaction=None, records=asked)

    def _transact(self) -> Steps:
        epoch = yield from self._take()
        while True:
            self._transactions += 1
            name = f"{self.name}/{self._transactions}"
            for _ in range(1 + self.pick(2)):
                places = [((ORDERS, PAYMENTS)[self.pick(2)], self.pick(PARTITIONS)) for _ in range(1 + self.pick(2))]
                records = [(place, Record(self.new_id(), name)) for place in places]
                yield from self._write(name, epoch, records)
            epoch = yield from self._end(name, epoch, is_commit=self.pick(4) > 0)

    def _take(self) -> Generator[Request, None, int]:
        outcome, epoch = yield from self.operation(
            "take", lambda: self.system.broker.take(self.worker), transactional_id=self.worker
        )
        if outcome is not OK:
            raise Over
        return int(epoch)

    def _write(self, name: str, epoch: int, records: list[tuple[Place, Record]]) -> Steps:
        """A life of which a write is refused or lost ends here and leaves its transaction open."""
        broker = self.system.broker
        asked = [[*place, record.id] for place, record in records if record.id is not None]
        op = self.begin("write", transaction=name, records=asked)
        written = []
        for place, record in records:
            request = yield from self.ask(
                lambda place=place, record=record: broker.write(self.worker, epoch, place, record)
            )
            if request.problem or request.is_lost:
                self.end(op, UNKNOWN, written=written)
                if self.pick(2):
                    yield from self._end(name, epoch, is_commit=False)
                raise Over
            if record.id is not None:
                written.append([*place, request.answer, record.id])
        self.end(op, OK, written=written)

    def _end(self, name: str, epoch: int, *, is_commit: bool, **part_of_it: Any) -> Generator[Request, None, int]:
        """Asks again while it is not known what became of it. Returns the next epoch."""
        broker, may_have_happened = self.system.broker, False
        while True:
            op = self.begin("commit" if is_commit else "abort", transaction=name, **part_of_it)
            request = yield from self.ask(lambda: broker.end(self.worker, epoch, is_commit=is_commit))
            if request.is_lost:
                self.end(op, UNKNOWN)
                may_have_happened = True
                if self.pick(3) == 0:
                    raise Over
            elif request.problem:
                self.end(op, UNKNOWN if may_have_happened else FAILED)
                raise Over
            else:
                self.end(op, OK)
                return int(request.answer)

    def _copy(self) -> Steps:
        broker = self.system.broker
        epoch = yield from self._take()
        while True:
            mine = [place for place, owner in broker.owners.items() if owner == self.name]
            source, generation = mine[self.pick(len(mine))] if mine else (INPUT, 0), broker.generation
            partition = source[1]
            start = yield from self.ask(lambda source=source: broker.committed_offset(source))
            if start.problem or start.is_lost or source not in mine or self._is_undecided(partition):
                continue
            batch, end = yield from self._poll([source], {source: start.answer})
            if not batch:
                continue
            self._transactions += 1
            name = f"{self.name}/{self._transactions}"
            yield from self._write(name, epoch, self._outputs(name, partition, batch))
            sent = yield from self.ask(
                lambda source=source, generation=generation, epoch=epoch, end=end[source]: broker.send_offsets(
                    self.worker, epoch, self.name, generation, source, end
                )
            )
            is_commit = not sent.problem and not sent.is_lost and self.pick(6) > 0
            offsets = {"group": "copiers", "offsets": [[*source, end[source]]]} if is_commit else {}
            epoch = yield from self._end(name, epoch, is_commit=is_commit, **offsets)

    def _is_undecided(self, partition: int) -> bool:
        """Whoever restores state waits for the end of what is being written to it."""
        log = self.system.broker.logs[STATE, partition]
        return any(entry.is_visible is None for entry in log)

    def _outputs(self, name: str, partition: int, batch: list[Seen]) -> list[tuple[Place, Record]]:
        counts: Counter[str] = Counter()
        for entry in self.system.broker.logs[STATE, partition]:
            if entry.is_visible and entry.record is not None:
                counts[str(entry.record.state)] = int(entry.record.n or 0)
        outputs = [((OUTPUT, partition), seen.record._replace(transaction=name)) for seen in batch]
        more = Counter(str(seen.record.key) for seen in batch)
        states = [Record(state=key, n=counts[key] + more[key], transaction=name) for key in more]
        return [*outputs, *(((STATE, partition), state) for state in states)]

    def _read(self) -> Steps:
        positions: dict[Place, int] = {}
        for place, log in self.system.broker.logs.items():
            positions[place] = self.pick(len(log) + 1)
        while True:
            places = [place for place in positions if self.pick(2)]
            _, ends = yield from self._poll(places, positions)
            positions |= ends

    def _poll(self, places: Sequence[Place], positions: dict[Place, int]) -> Any:
        broker, most = self.system.broker, 1 + self.pick(6)

        def look() -> list[tuple[list[Seen], int]]:
            return [broker.read(place, positions[place], most) for place in places]

        def told(answer: list[tuple[list[Seen], int]]) -> dict[str, Any]:
            shown = [[*seen[:3], seen.record.to_json()] for records, _ in answer for seen in records]
            moved = [[*place, positions[place], end] for place, (_, end) in zip(places, answer, strict=True)]
            return {"records": shown, "moved": moved}

        outcome, answer = yield from self.operation("read", look, told, isolation="read_committed")
        if outcome is not OK:
            return [], {}
        ends = {place: end for place, (_, end) in zip(places, answer, strict=True)}
        return [seen for records, _ in answer for seen in records], ends

    def _observe(self) -> Steps:
        broker = self.system.broker

        def told(offsets: dict[Place, int]) -> dict[str, Any]:
            return {"offsets": [[*place, offset] for place, offset in offsets.items()]}

        while True:
            yield from self.operation("offsets", lambda: dict(broker.committed), told, group="copiers")
            stable = lambda: {place: broker.stable_end(place) for place in broker.logs}  # noqa: E731
            yield from self.operation("ends", stable, told, isolation="read_committed")
            ends = lambda: {place: len(log) for place, log in broker.logs.items()}  # noqa: E731
            yield from self.operation("ends", ends, told, isolation="read_uncommitted")


class System:
    def __init__(self, choices: Sequence[int], defect: str | None = None) -> None:
        topics = (INPUT, OUTPUT, STATE, ORDERS, PAYMENTS)
        self.broker = TinyBroker([(topic, number) for topic in topics for number in range(PARTITIONS)], defect)
        self.on_their_way: list[Request] = []
        self._choices = list(reversed(choices))
        self._chance = random.Random(0)
        """For what is left to do when there are no more choices."""
        self._now = 0.0
        self._begun: dict[str, tuple[str, float, dict[str, Any]]] = {}
        self._ended: dict[str, tuple[float, Outcome, dict[str, Any]]] = {}
        self._lives: Counter[str] = Counter()
        self.lives = {worker: self._new_life(worker) for worker in WORKERS}
        self._zombies: list[Life] = []
        self._rebalance()

    def history(self) -> History:
        while self._choices:
            self._step()
        self._drain()
        final = [
            Seen(*place, offset, entry.record)
            for place, log in self.broker.logs.items()
            for offset, entry in enumerate(log)
            if entry.record is not None and entry.is_visible
        ]
        return History(self._operations(), final, derivations=[Derivation(INPUT, OUTPUT)])

    def pick(self, most: int) -> int:
        return self._choices.pop() % most if self._choices else self._chance.randrange(most)

    def begin(self, op: str, f: str, asked: dict[str, Any]) -> str:
        self._begun[op] = (f, self._tick(), asked)
        return op

    def end(self, op: str, outcome: Outcome, told: dict[str, Any]) -> None:
        self._ended[op] = (self._tick(), outcome, told)

    def _tick(self) -> float:
        self._now += 1
        return self._now

    def _operations(self) -> list[Operation]:
        never = (NEVER, UNKNOWN, {})
        return [
            Operation(id=op, f=f, began=began, ended=ended, outcome=outcome, asked=asked, told=told)
            for op, (f, began, asked) in self._begun.items()
            for ended, outcome, told in [self._ended.get(op, never)]
        ]

    def _new_life(self, worker: str) -> Life:
        self._lives[worker] += 1
        return Life(self, worker, self._lives[worker])

    # --- what happens

    def _step(self) -> None:
        """Mostly work; each accident is rare enough for something to be done in between."""
        kind = self.pick(64)
        if kind < 28:
            self._a_worker().go_on()
        elif kind < 50:
            self._network(self.pick(24))
        elif kind < 57:
            self._markers()
        elif kind < 61:
            if self._zombies:
                self._zombies[self.pick(len(self._zombies))].go_on()
        else:
            accidents = (self._kill, self._replace, self._rebalance, self._expire)
            accidents[self.pick(len(accidents))](self._a_worker().worker)

    def _a_worker(self) -> Life:
        return self.lives[WORKERS[self.pick(len(WORKERS))]]

    def _network(self, fate: int) -> None:
        if not self.on_their_way:
            return
        index = self.pick(len(self.on_their_way))
        request = self.on_their_way[index]
        if fate == 0:
            request.settle(is_lost=True)  # given up, but still on its way
            return
        del self.on_their_way[index]
        if fate == 1:
            request.settle(is_lost=True)
        else:
            request.arrive(is_answered=fate > 2)

    def _markers(self) -> None:
        undecided = [each for each in self.broker.current.values() if each.is_commit is not None and not each.is_over]
        if undecided:
            self.broker.write_a_marker(undecided[self.pick(len(undecided))], self.pick(4))

    def _kill(self, worker: str) -> None:
        self.lives[worker].is_running = False  # what it has on its way arrives all the same
        self.lives[worker] = self._new_life(worker)

    def _replace(self, worker: str) -> None:
        """The present life sleeps while its successor takes over; it may wake up again at any time."""
        self._zombies.append(self.lives[worker])
        self.lives[worker] = self._new_life(worker)

    def _expire(self, worker: str) -> None:
        self.broker.expire(worker)

    def _rebalance(self, _: str = "") -> None:
        members = [life.name for worker, life in self.lives.items() if worker.startswith("copier")]
        places = [(INPUT, number) for number in range(PARTITIONS)]
        self.broker.rebalance({place: members[self.pick(len(members))] for place in places})

    # --- the end

    def _drain(self) -> None:
        for request in self.on_their_way:
            request.arrive(is_answered=False)
        self.on_their_way.clear()
        for worker in WORKERS:
            self._kill(worker)
            self.broker.expire(worker)
        self._zombies.clear()
        self._decide_everything()
        copier = self.lives["copier-1"]
        self.broker.rebalance({(INPUT, number): copier.name for number in range(PARTITIONS)})
        for _ in range(DRAIN_STEPS_MAX):
            if not copier.is_running or not self._is_behind():
                break
            copier.go_on()
            self._answer_everything()
            self._decide_everything()

    def _is_behind(self) -> bool:
        broker = self.broker
        return any(broker.committed.get(place, 0) < broker.stable_end(place) for place in broker.owners)

    def _answer_everything(self) -> None:
        for request in self.on_their_way:
            request.arrive(is_answered=True)
        self.on_their_way.clear()

    def _decide_everything(self) -> None:
        for each in self.broker.current.values():
            while each.is_commit is not None and not each.is_over:
                self.broker.write_a_marker(each, 0)

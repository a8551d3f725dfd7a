"""The workers of a simulated run: who writes, who copies, who looks on.

Producers write to the input; a copier per input partition moves what is committed there to the output, with a count per
key in the state topic and its offset in the group, all in one transaction; readers and observers look on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.errors import ErrorCode
from onceflow.verify.history import Outcome, Place, Record, Seen
from onceflow.verify.simulation import requests
from onceflow.verify.simulation.network import Network
from onceflow.verify.simulation.processes import Life, Recorder, Steps, Worker
from onceflow.verify.simulation.producing import Abortable, Producer
from onceflow.verify.simulation.world import World

__all__ = ["Copier", "IdempotentProducer", "Layout", "Observer", "Reader", "Settings", "TransactionalProducer"]

GROUP: Final = "copiers"
INPUT, OUTPUT, STATE = "in", "out", "state"
THINKING_S: Final = (0.0, 0.04)
POLL_S: Final = (0.01, 0.08)
LOOK_S: Final = (0.02, 0.2)
IDLE_MAX: Final = 10
"""How many times longer than at first one waits who has found nothing for a while."""
KEYS: Final = 2


@dataclass(frozen=True)
class Layout:
    """Topics with their numbers of partitions."""

    inputs: int = 2
    outputs: int = 2

    @property
    def topics(self) -> dict[str, int]:
        return {INPUT: self.inputs, OUTPUT: self.outputs, STATE: self.inputs}

    @property
    def places(self) -> list[Place]:
        return [(topic, index) for topic, count in self.topics.items() for index in range(count)]

    @property
    def input_places(self) -> list[Place]:
        return [(INPUT, index) for index in range(self.inputs)]


@dataclass
class Settings:
    """What all workers of a run share."""

    world: World
    network: Network
    recorder: Recorder
    layout: Layout
    producers: list[Worker] = field(default_factory=list)
    is_closing: bool = False
    """Nothing more is to come: who only looks on may go."""

    @property
    def input_is_complete(self) -> bool:
        """A late request may still write, when its client has long given up."""
        return all(worker.is_at_rest for worker in self.producers) and not self.network.late_on_their_way


class _Worker(Worker):
    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings.world, settings.network, settings.recorder, name)
        self.settings = settings


class _Source(_Worker):
    """One that writes to the input."""

    def __init__(self, settings: Settings, name: str, work: int) -> None:
        super().__init__(settings, name)
        self._left = work
        self._ids = 0

    @property
    def is_done(self) -> bool:
        return self._left <= 0

    def windows(self, life: Life, place: Place, transaction: str | None) -> list[list[Record]]:
        chance = self.world.chance
        return [
            [self._record(place, transaction) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
            for _ in range(chance.choice((1, 1, 1, 2, 4)))
        ]

    def _record(self, place: Place, transaction: str | None) -> Record:
        self._ids += 1
        key = f"k{place[1]}-{self.world.chance.randrange(KEYS)}"
        return Record(id=f"{self.name}-{self._ids}", transaction=transaction, key=key)

    def somewhere(self) -> Place:
        return INPUT, self.world.chance.randrange(self.settings.layout.inputs)


class IdempotentProducer(_Source):
    def new_life(self, number: int) -> Life:
        return Producer(self, number)

    def steps(self, life: Life) -> Steps:
        assert isinstance(life, Producer)
        yield from life.identify()
        try:
            while not self.is_done:
                self._left -= 1
                place = self.somewhere()
                yield from life.write(place, self.windows(life, place, None))
                yield from life.sleep(*THINKING_S)
        except Abortable:
            return  # the next life has a new identity: what is on its way of this one cannot disturb it


class TransactionalProducer(_Source):
    def __init__(self, settings: Settings, name: str, work: int, *, v2: bool, timeout_ms: int) -> None:
        super().__init__(settings, name, work)
        self._v2 = v2
        self._timeout_ms = timeout_ms

    def new_life(self, number: int) -> Life:
        return Producer(self, number, transactional_id=self.name, v2=self._v2, timeout_ms=self._timeout_ms)

    def steps(self, life: Life) -> Steps:
        assert isinstance(life, Producer)
        yield from life.take()
        while not self.is_done:
            self._left -= 1
            transaction = life.begin_transaction()
            try:
                yield from self._fill(life, transaction)
            except Abortable:
                yield from life.abort()
            else:
                if self.world.chance.random() < 0.25:
                    yield from life.abort()
                else:
                    yield from life.commit()
            yield from life.sleep(*THINKING_S)

    def _fill(self, life: Producer, transaction: str) -> Steps:
        for _ in range(self.world.chance.choice((1, 2, 2))):
            place = self.somewhere()
            yield from life.add(place)
            yield from life.write(place, self.windows(life, place, transaction))
            if self.world.chance.random() < 0.3:
                yield from life.sleep(*THINKING_S)


class Copier(_Worker):
    """From one input partition to the output."""

    def __init__(self, settings: Settings, index: int, *, v2: bool, timeout_ms: int) -> None:
        super().__init__(settings, f"copier-{index}")
        self._input: Place = (INPUT, index)
        self._state: Place = (STATE, index)
        self._v2 = v2
        self._timeout_ms = timeout_ms
        self._is_done = False

    @property
    def is_done(self) -> bool:
        return self._is_done

    def new_life(self, number: int) -> Life:
        return Producer(self, number, transactional_id=self.name, v2=self._v2, timeout_ms=self._timeout_ms)

    def steps(self, life: Life) -> Steps:
        assert isinstance(life, Producer)
        yield from life.take()
        while not self._is_done:
            position = yield from self._committed(life)
            counts = yield from self._restored(life)
            try:
                yield from self._copy_from(life, position, counts)
            except Abortable:
                yield from life.abort()

    def _committed(self, life: Life) -> Steps:
        """Where to begin: after what the group has committed, once nothing is pending any more."""
        request = requests.fetch_offsets(GROUP, [self._input], stable=True)
        while True:
            answer = yield from life.ask(request, requests.OFFSET_FETCH_VERSION)
            if answer is not None and not answer.groups[0].error_code:
                found = answer.groups[0].topics[0].partitions[0]
                if not found.error_code:
                    return max(0, found.committed_offset)
            yield from life.sleep(*POLL_S)

    def _restored(self, life: Life) -> Steps:
        """The state as it was committed last: everything below the high watermark."""
        counts: dict[str, int] = {}
        position = 0
        while True:
            found = yield from self._fetched(life, self._state, position)
            counts.update((seen.record.state, seen.record.n) for seen in found.seen)
            position = found.position
            if position >= found.high_watermark:
                return counts
            if not found.seen:
                yield from life.sleep(*POLL_S)

    def _fetched(self, life: Life, place: Place, position: int) -> Steps:
        while True:
            request = requests.fetch([(place, position)], self.world.chance.choice((1, 500, 5000, 5000)))
            answer = yield from life.ask(request, requests.FETCH_VERSION)
            if answer is not None:
                [(_, partition)] = requests.partitions_of(answer)
                found = requests.fetched(place, position, partition)
                if not found.error:
                    return found
                self.world.say(f"{life.name}: fetch at {position}: {ErrorCode(found.error).name}")
            yield from life.sleep(*POLL_S)

    def _copy_from(self, life: Producer, position: int, counts: dict[str, int]) -> Steps:
        idle = 0
        while True:
            was_complete = self.settings.input_is_complete
            found = yield from self._fetched(life, self._input, position)
            if found.seen:
                yield from self._copy(life, found.seen, found.position, counts)
            elif was_complete and found.position >= found.high_watermark:
                self._is_done = True
                return
            elif found.position == position:
                idle = min(idle + 1, IDLE_MAX)
                yield from life.sleep(POLL_S[0], POLL_S[1] * idle)
            position = found.position

    def _copy(self, life: Producer, seen: Sequence[Seen], position: int, counts: dict[str, int]) -> Steps:
        """One transaction: outputs, state and offset."""
        transaction = life.begin_transaction()
        after = dict(counts)
        for each in seen:
            after[each.record.key or ""] = after.get(each.record.key or "", 0) + 1
        touched = sorted({each.record.key or "" for each in seen})
        for place, records in self._outputs(seen, transaction).items():
            yield from life.add(place)
            yield from life.write(place, records)
        yield from life.add(self._state)
        states = [Record(state=key, n=after[key], transaction=transaction) for key in touched]
        yield from life.write(self._state, [states], is_recorded=False)
        yield from life.send_offset(GROUP, self._input, position)
        if self.world.chance.random() < 0.1:
            raise Abortable("by chance")
        yield from life.commit(GROUP, [[*self._input, position]])
        counts.update(after)

    def _outputs(self, seen: Sequence[Seen], transaction: str) -> dict[Place, list[list[Record]]]:
        chance, outputs = self.world.chance, self.settings.layout.outputs
        found: dict[Place, list[list[Record]]] = {}
        for each in seen:
            record = Record(id=each.record.id, transaction=transaction, key=each.record.key)
            windows = found.setdefault((OUTPUT, chance.randrange(outputs)), [[]])
            if len(windows[-1]) >= 2 and chance.random() < 0.5 and len(windows) < 5:
                windows.append([])
            windows[-1].append(record)
        return found


class _Onlooker(_Worker):
    @property
    def is_done(self) -> bool:
        return self.settings.is_closing

    def new_life(self, number: int) -> Life:
        return Life(self, number)


class Reader(_Onlooker):
    """Reads everything that is committed, from the start."""

    def steps(self, life: Life) -> Steps:
        positions = dict.fromkeys(self.settings.layout.places, 0)
        idle = 1
        while not self.is_done:
            has_moved = yield from self._poll(life, positions)
            idle = 1 if has_moved else min(idle + 1, IDLE_MAX)
            yield from life.sleep(LOOK_S[0], LOOK_S[1] * idle)

    def _poll(self, life: Life, positions: dict[Place, int]) -> Steps:
        """Whether there was anything new."""
        op = life.begin("read", reader=life.name, isolation="read_committed")
        request = requests.fetch(positions.items(), self.world.chance.choice((1, 500, 2000, 10_000)))
        answer = yield from life.ask(request, requests.FETCH_VERSION)
        if answer is None:
            life.end(op, Outcome.FAILED)
            return False
        records: list[list[Any]] = []
        moved: list[list[Any]] = []
        for place, partition in requests.partitions_of(answer):
            found = requests.fetched(place, positions[place], partition)
            if found.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.world.problem(f"{life.name} has read {place} up to {positions[place]}, which is out of range now")
            records += [[*each[:3], each.record.to_json()] for each in found.seen]
            if found.position > positions[place]:
                moved.append([*place, positions[place], found.position])
                positions[place] = found.position
        life.end(op, Outcome.OK, records=records, moved=moved)
        return bool(moved)


class Observer(_Onlooker):
    """Asks for the ends of partitions and for the offsets of the group."""

    def steps(self, life: Life) -> Steps:
        asked = 0
        while not self.is_done:
            if self.world.chance.random() < 0.5:
                yield from self._ask_offsets(life)
            else:
                yield from self._ask_ends(life)
            asked += 1
            yield from life.sleep(LOOK_S[0], LOOK_S[1] * min(IDLE_MAX, 1 + asked // 8))

    def _ask_offsets(self, life: Life) -> Steps:
        op = life.begin("offsets", group=GROUP)
        request = requests.fetch_offsets(GROUP, self.settings.layout.input_places, stable=False)
        answer = yield from life.ask(request, requests.OFFSET_FETCH_VERSION)
        if answer is None or answer.groups[0].error_code:
            life.end(op, Outcome.FAILED)
            return
        offsets = [
            [topic.name, each.partition_index, each.committed_offset]
            for topic in answer.groups[0].topics
            for each in topic.partitions
            if each.committed_offset >= 0
        ]
        life.end(op, Outcome.OK, offsets=offsets)

    def _ask_ends(self, life: Life) -> Steps:
        name, isolation = self.world.chance.choice(
            (("read_committed", requests.READ_COMMITTED), ("read_uncommitted", requests.READ_UNCOMMITTED))
        )
        op = life.begin("ends", isolation=name)
        request = requests.list_ends(self.settings.layout.places, isolation)
        answer = yield from life.ask(request, requests.LIST_OFFSETS_VERSION)
        if answer is None or any(each.error_code for topic in answer.topics for each in topic.partitions):
            life.end(op, Outcome.FAILED)
            return
        offsets = [
            [topic.name, each.partition_index, each.offset] for topic in answer.topics for each in topic.partitions
        ]
        life.end(op, Outcome.OK, offsets=offsets)

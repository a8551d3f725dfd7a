"""Producers, zombies, timeouts, failing disks and restarts in any order, against a simple model.

A history is a list of steps `(name, a, b)`; the two numbers say who, where, which seed. Any history makes sense, so
Hypothesis can leave out steps of one that fails until the few that matter remain. The broker is the real one on a disk
in memory; its answers come when the disk has worked, and that is a step, too.

Instances behave as clients do: one batch at a time per partition, EndTxn only when all writes are acknowledged, what
the broker asks to repeat is repeated, and after a crash everything that was not answered is sent again. An instance
that is told of an error that is not to be repeated does nothing more: somebody has taken its place, or the timeout has.

What must hold, at any time and at the end:

- atomicity    of a transaction everything is visible, or nothing, also the offset of its group;
- durability   an acknowledged commit is visible, an acknowledged abort is not; what was visible stays so, in its place;
- isolation    nothing is visible that nobody asked to commit;
- fencing      once a new instance has its epoch, an older one gets nothing more done;
- order        a partition shows the transactions of an application in their order, and their records too, each once;
- liveness     when everybody has gone, no partition is held back by anybody.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import ErrorCode
from tests.support.effort import examples
from tests.support.memory_broker import MemoryBroker, Reply
from tests.support.memory_transactions import MemoryProducer, committed, committed_offset, create_topic, ends

Step = tuple[str, int, int]

APPS = ("a", "b")
PARTITIONS = 3
TIMEOUT_MS = 10_000
REPEATED = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
}


@dataclass
class Attempt:
    """One transaction of one instance, as its client sees it."""

    app: str
    number: int
    values: dict[int, list[str]] = field(default_factory=dict)
    """Acknowledged values, by partition."""
    has_offset: bool = False
    asked: str | None = None
    """"commit" or "abort", once it was asked for."""
    answered: bool = False
    was_repeated: bool = False
    """The end was asked for more than once: a refusal may be about the second time."""

    @property
    def may_be_visible(self) -> bool:
        return self.asked == "commit"

    @property
    def must_be_visible(self) -> bool:
        return self.asked == "commit" and self.answered


@dataclass
class Pending:
    """A request without an answer."""

    send: Callable[[], Reply]
    done: Callable[[Reply], ErrorCode]
    """Takes in an answer; what it returns says whether to repeat."""
    reply: Reply
    partition: int | None = None
    was_fenced: bool = False
    """It was sent when a newer instance had its epoch."""


class Instance:
    def __init__(self, model: Model, app: str, v2: bool) -> None:
        self.model = model
        self.app = app
        self.producer = MemoryProducer(model.broker, app, v2=v2, timeout_ms=TIMEOUT_MS)
        self.is_dead = False
        self.is_fenced = False
        self.attempt: Attempt | None = None
        self.pending: list[Pending] = []
        self.added: set[int | str] = set()
        self._ask(self.producer.send_init, self._took_init)

    @property
    def is_ready(self) -> bool:
        return not self.is_dead and self.producer.epoch >= 0

    def _ask(self, send: Callable[[], Reply], done: Callable[[Reply], ErrorCode], partition: int | None = None) -> None:
        self.pending.append(Pending(send, done, send(), partition, self.is_fenced))

    # Steps

    def write(self, partition: int) -> None:
        if not self.is_ready or any(p.partition in (partition, None) for p in self.pending):
            return
        attempt = self._current()
        value = self.model.new_value(attempt)
        if self.producer.v2 or partition in self.added:
            self._produce(partition, value)
            return

        def took_add(reply: Reply) -> ErrorCode:
            [[result]] = [each.results_by_partition for each in reply.message.results_by_topic_v3_and_below]
            if result.partition_error_code == ErrorCode.NONE:
                self.added.add(partition)
                self._produce(partition, value)
            return ErrorCode(result.partition_error_code)

        self._ask(lambda: self.producer.send_add("t", partition), took_add, partition)

    def _produce(self, partition: int, value: str) -> None:
        attempt = self.attempt
        assert attempt is not None
        sequence = self.producer.sequences.get(("t", partition), 0)

        def send() -> Reply:
            self.producer.sequences["t", partition] = sequence
            return self.producer.send("t", partition, value)

        def took(reply: Reply) -> ErrorCode:
            [[answer]] = [each.partition_responses for each in reply.message.responses]
            if answer.error_code == ErrorCode.NONE:
                attempt.values.setdefault(partition, []).append(value)
            return ErrorCode(answer.error_code)

        self._ask(send, took, partition)

    def commit_offset(self) -> None:
        if not self.is_ready or self.pending:
            return
        attempt = self._current()
        if self.producer.v2 or "offsets" in self.added:
            self._send_offset(attempt)
            return

        def took_add(reply: Reply) -> ErrorCode:
            if reply.message.error_code == ErrorCode.NONE:
                self.added.add("offsets")
                self._send_offset(attempt)
            return ErrorCode(reply.message.error_code)

        self._ask(lambda: self.producer.send_add_offsets(self.app), took_add)

    def _send_offset(self, attempt: Attempt) -> None:
        def took(reply: Reply) -> ErrorCode:
            [[answer]] = [each.partitions for each in reply.message.topics]
            if answer.error_code == ErrorCode.NONE:
                attempt.has_offset = True
            return ErrorCode(answer.error_code)

        self._ask(lambda: self.producer.send_offset(self.app, "t", 0, attempt.number), took)

    def end(self, commit: bool) -> None:
        attempt = self.attempt
        if not self.is_ready or self.pending or attempt is None:
            return
        attempt.asked = "commit" if commit else "abort"
        times = 0

        def send() -> Reply:
            nonlocal times
            times += 1
            attempt.was_repeated = times > 1
            return self.producer.send_end(commit=commit)

        def took(reply: Reply) -> ErrorCode:
            error = ErrorCode(reply.message.error_code)
            if error == ErrorCode.NONE:
                attempt.answered = True
                self.producer.took_end(reply)
                self.attempt = None
                self.added.clear()
            elif error not in REPEATED and not attempt.was_repeated:
                attempt.asked = None  # refused: it cannot have been committed
            return error

        self._ask(send, took)

    def _current(self) -> Attempt:
        if self.attempt is None:
            self.attempt = self.model.new_attempt(self.app)
        return self.attempt

    def _took_init(self, reply: Reply) -> ErrorCode:
        answer = reply.message
        if answer.error_code == ErrorCode.NONE:
            self.producer.become(answer.producer_id, answer.producer_epoch)
            self.model.fence_older(self)
        return ErrorCode(answer.error_code)

    # Answers

    def look(self) -> None:
        """Take in what has been answered."""
        for pending in [pending for pending in self.pending if pending.reply.is_there]:
            self.pending.remove(pending)
            error = pending.done(pending.reply)
            assert not (pending.was_fenced and error == ErrorCode.NONE), "a fenced instance got something done"
            if error in REPEATED and not self.is_dead:
                pending.was_fenced = self.is_fenced
                pending.reply = pending.send()
                self.pending.append(pending)
            elif error != ErrorCode.NONE:
                self.is_dead = True
                self.pending.clear()
                return

    def meet(self, broker: MemoryBroker) -> None:
        """The broker has started again: whatever was not answered is sent once more."""
        self.producer.broker = broker
        for pending in self.pending:
            pending.was_fenced = self.is_fenced
            pending.reply = pending.send()


class Model:
    def __init__(self, *, fsync: bool) -> None:
        self.fsync = fsync
        self.broker = MemoryBroker(fsync=fsync, settings={"transaction.max.timeout.ms": str(TIMEOUT_MS)})
        create_topic(self.broker, "t", PARTITIONS)
        self.instances: list[Instance] = []
        self.attempts: list[Attempt] = []
        self.owner: dict[str, Attempt] = {}
        """The transaction of each value."""
        self.seen: list[list[str]] = [[] for _ in range(PARTITIONS)]

    def new_attempt(self, app: str) -> Attempt:
        attempt = Attempt(app, len(self.attempts) + 1)
        self.attempts.append(attempt)
        return attempt

    def new_value(self, attempt: Attempt) -> str:
        value = f"{attempt.app}-{attempt.number}-{len(self.owner)}"
        self.owner[value] = attempt
        return value

    def fence_older(self, newer: Instance) -> None:
        mine = (newer.producer.id, newer.producer.epoch)
        for other in self.instances:
            theirs = (other.producer.id, other.producer.epoch)
            if other.app == newer.app and (-1, -1) < theirs < mine:
                other.is_fenced = True

    # Steps

    def take(self, step: Step) -> None:
        name, a, b = step
        getattr(self, f"do_{name}")(a, b)
        for instance in self.instances:
            instance.look()
        self.check_visible()

    def _instance(self, a: int) -> Instance | None:
        return self.instances[a % len(self.instances)] if self.instances else None

    def do_begin(self, a: int, b: int) -> None:
        self.instances.append(Instance(self, APPS[a % len(APPS)], v2=b % 2 == 0))

    def do_write(self, a: int, b: int) -> None:
        instance = self._instance(a)
        if instance is not None:
            instance.write(b % PARTITIONS)

    def do_offset(self, a: int, b: int) -> None:
        instance = self._instance(a)
        if instance is not None:
            instance.commit_offset()

    def do_end(self, a: int, b: int) -> None:
        instance = self._instance(a)
        if instance is not None:
            instance.end(commit=b % 3 > 0)

    def do_flush_all(self, a: int, b: int) -> None:
        self.broker.flush()

    def do_flush_one(self, a: int, b: int) -> None:
        unsynced = self.broker.unsynced
        if unsynced:
            self.broker.flush([unsynced[a % len(unsynced)]])

    def do_fail_sync(self, a: int, b: int) -> None:
        self.broker.files.sync_failures = 1 + a % 2

    def do_fail_write(self, a: int, b: int) -> None:
        self.broker.files.write_failure = (a % 3, b % 50)

    def do_checkpoint(self, a: int, b: int) -> None:
        self._mend()
        self.broker.checkpoint()

    def do_time(self, a: int, b: int) -> None:
        self.broker.pass_time(1 + TIMEOUT_MS * (a % 3) // 2)

    def do_kill(self, a: int, b: int) -> None:
        self._restart(self.broker.killed())

    def do_crash(self, a: int, b: int) -> None:
        self._restart(self.broker.crashed(random.Random(a)) if self.fsync else self.broker.killed())

    def _restart(self, broker: MemoryBroker) -> None:
        self.broker = broker
        for instance in self.instances:
            instance.meet(broker)

    def _mend(self) -> None:
        self.broker.files.sync_failures = 0
        self.broker.files.write_failure = None

    # What must hold

    def check_visible(self) -> None:
        for partition in range(PARTITIONS):
            values = committed(self.broker, "t", partition) if self.fsync else self.seen[partition]
            before = self.seen[partition]
            assert values[: len(before)] == before, "what was visible is not any more"
            for value in values[len(before) :]:
                assert self.owner[value].may_be_visible, f"{value} is visible, and nobody asked for it"
            self.seen[partition] = values

    def finish(self) -> None:
        """Everybody goes; then nothing may be left open."""
        self._mend()
        for _ in range(3):
            self.broker.settle()
            for instance in self.instances:
                instance.look()
        for instance in self.instances:
            instance.is_dead = True
        for _ in range(3):
            self.broker.pass_time(TIMEOUT_MS + 1)
            self.broker.settle()
        self._check_end()
        self.broker = self.broker.killed()
        self.broker.settle()
        self._check_end()

    def _check_end(self) -> None:
        found = [committed(self.broker, "t", partition) for partition in range(PARTITIONS)]
        for partition, values in enumerate(found):
            last_stable, high_watermark = ends(self.broker, "t", partition)
            assert last_stable == high_watermark, f"partition {partition} is held back"
            assert values[: len(self.seen[partition])] == self.seen[partition]
            assert len(set(values)) == len(values), "a record is there twice"
        visible = {value for values in found for value in values}
        for attempt in self.attempts:
            self._check_attempt(attempt, visible)
        for partition, values in enumerate(found):
            self._check_order(partition, values)
        for app in APPS:
            self._check_offset(app, visible)

    def _check_attempt(self, attempt: Attempt, visible: set[str]) -> None:
        mine = {value for values in attempt.values.values() for value in values}
        shown = {value for value in visible if self.owner[value] is attempt}
        assert shown in (set(), mine), f"transaction {attempt.number} is torn"
        if attempt.must_be_visible:
            assert shown == mine, f"transaction {attempt.number} was committed and is gone"
        if not attempt.may_be_visible:
            assert not shown, f"transaction {attempt.number} was never committed"

    def _check_order(self, partition: int, values: list[str]) -> None:
        for app in APPS:
            mine = [value for value in values if self.owner[value].app == app]
            numbers = [self.owner[value].number for value in mine]
            assert numbers == sorted(numbers), "transactions are out of order"
            for attempt in self.attempts:
                if attempt.app == app and attempt.number in numbers:
                    assert [v for v in mine if self.owner[v] is attempt] == attempt.values[partition]

    def _check_offset(self, app: str, visible: set[str]) -> None:
        """The offset of the last commit; a transaction that shows nothing else may be the one."""
        stored = committed_offset(self.broker, app, "t", 0)
        mine = [attempt for attempt in self.attempts if attempt.app == app and attempt.has_offset]
        shown = [a.number for a in mine if any(v in visible for vs in a.values.values() for v in vs)]
        must = [a.number for a in mine if a.must_be_visible]
        assert stored == -1 or any(a.number == stored and a.may_be_visible for a in mine)
        assert stored >= max([*shown, *must], default=-1)
        hidden = [a for a in mine if a.number == stored and any(a.values.values()) and stored not in shown]
        assert not hidden, "an offset was committed without its records"


STEPS = (
    *("begin",) * 3,
    *("write",) * 8,
    *("offset",) * 2,
    *("end",) * 5,
    *("flush_all",) * 6,
    *("flush_one",) * 3,
    *("time", "kill", "crash", "fail_sync", "fail_write", "checkpoint"),
)
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40), st.integers(0, 40)), min_size=5, max_size=60)


def run(history: list[Step], *, fsync: bool) -> Model:
    model = Model(fsync=fsync)
    for step in history:
        model.take(step)
    model.finish()
    return model


@examples(50, soak=15_000)
@given(HISTORIES)
def test_whatever_happens_transactions_are_all_or_nothing(history: list[Step]) -> None:
    run(history, fsync=True)


@examples(20, soak=6_000)
@given(HISTORIES)
def test_also_when_the_kernel_flushes_when_it_likes(history: list[Step]) -> None:
    run(history, fsync=False)


def test_histories_get_somewhere() -> None:
    """The steps do what they say: of random histories, many commit, many abort, many are fenced or die."""
    commits = aborts = fenced = dead = 0
    for seed in range(20):
        chance = random.Random(seed)
        history = [(chance.choice(STEPS), chance.randrange(40), chance.randrange(40)) for _ in range(120)]
        model = Model(fsync=True)
        for step in history:
            model.take(step)
        commits += sum(attempt.must_be_visible for attempt in model.attempts)
        aborts += sum(attempt.asked == "abort" and attempt.answered for attempt in model.attempts)
        fenced += sum(instance.is_fenced for instance in model.instances)
        dead += sum(instance.is_dead for instance in model.instances)
        model.finish()
    assert min(commits, aborts, fenced, dead) > 10, (commits, aborts, fenced, dead)

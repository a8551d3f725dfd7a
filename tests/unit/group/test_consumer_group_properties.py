"""Members come, go, die and lag behind, topics change, the broker restarts: whatever happens, in any order.

always        no partition is used by two members: who is told to have one has it alone, until it reports that it
              has let go (or is removed)
              a restart finds the group as it was
in the end    when all members have reported for a while, all that is wanted is assigned, and evenly so
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onceflow.errors import ErrorCode, ProtocolError
from tests.support.effort import examples
from tests.unit.group.consumer_support import GROUP, Bench, Consumer, settle, snapshot

NAMES = ["a", "b", "c"]
WISHES = st.sets(st.sampled_from(NAMES))
PICK = st.integers(0, 100)
REMOVED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_INSTANCE_ID)


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.consumers: list[Consumer] = []
        self.using: dict[str, dict[UUID, set[int]]] = {}
        """What each living member reads from. It goes on doing so until it hears otherwise, and then reports it."""
        self.instances = 0

    def pick(self, number: int) -> Consumer:
        return self.consumers[number % len(self.consumers)]

    def _hear(self, consumer: Consumer) -> None:
        self.using[consumer.id] = {topic: set(partitions) for topic, partitions in consumer.owned.items()}

    def _drop(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            del self.using[consumer.id]

    @contextmanager
    def _unless_removed(self, consumer: Consumer) -> Iterator[None]:
        """A member that the group has removed hears so, and stops."""
        try:
            yield
        except ProtocolError as error:
            if error.code not in REMOVED:
                raise
            self._drop(consumer)

    # Members

    @precondition(lambda self: len(self.consumers) < 5)
    @rule(names=WISHES, regex=st.sampled_from([None, "a|b", ".*"]), static=st.booleans())
    def join(self, names: set[str], regex: str | None, static: bool) -> None:
        self.instances += static
        instance = f"instance-{self.instances}" if static else None
        consumer = self.bench.join(*sorted(names), subscribed_topic_regex=regex, instance_id=instance)
        self.consumers.append(consumer)
        self._hear(consumer)

    @precondition(lambda self: self.consumers)
    @rule(number=PICK, silent=st.booleans())
    def heartbeat(self, number: int, silent: bool) -> None:
        consumer = self.pick(number)
        with self._unless_removed(consumer):
            if silent:
                consumer.say()
            else:
                consumer.beat()
            self._hear(consumer)

    @precondition(lambda self: self.consumers)
    @rule(number=PICK)
    def lose_the_answer_to_a_heartbeat(self, number: int) -> None:
        consumer = self.pick(number)
        before = consumer.epoch, consumer.owned
        with self._unless_removed(consumer):
            consumer.beat()
            consumer.epoch, consumer.owned = before
            consumer.has_missed_an_answer = True

    @precondition(lambda self: self.consumers)
    @rule(number=PICK, names=WISHES)
    def want_other_topics(self, number: int, names: set[str]) -> None:
        consumer = self.pick(number)
        with self._unless_removed(consumer):
            consumer.say(subscribed_topic_names=sorted(names))
            self._hear(consumer)

    @precondition(lambda self: self.consumers)
    @rule(number=PICK)
    def leave(self, number: int) -> None:
        consumer = self.pick(number)
        self._drop(consumer)
        with self._unless_removed(consumer):
            consumer.leave()

    @precondition(lambda self: any(consumer.instance_id for consumer in self.consumers))
    @rule(number=PICK, names=WISHES)
    def a_static_member_is_replaced(self, number: int, names: set[str]) -> None:
        static = [consumer for consumer in self.consumers if consumer.instance_id]
        consumer = static[number % len(static)]
        self._drop(consumer)
        with self._unless_removed(consumer):
            consumer.leave(-2)
        heir = self.bench.join(*sorted(names), instance_id=consumer.instance_id)
        self.consumers.append(heir)
        self._hear(heir)

    @precondition(lambda self: self.consumers)
    @rule(number=PICK)
    def die(self, number: int) -> None:
        """A member that is heard of no more does not read any more either, long before its session is over."""
        self._drop(self.pick(number))

    # The world

    @rule(ms=st.sampled_from([1, 5_000, 11_000, 30_000]))
    def time_passes(self, ms: int) -> None:
        """All living members report meanwhile, in a way that changes nothing but their sessions."""
        self.bench.wait(ms)
        for consumer in list(self.consumers):
            self.heartbeat(self.consumers.index(consumer), silent=True)

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 4))
    def topics_change(self, name: str, partitions: int) -> None:
        found = self.bench.topics.named(name)
        if found is None:
            self.bench.topics.create(name, partitions)
        elif partitions > found.partitions:
            self.bench.topics.grow(name, partitions)
        else:
            self.bench.topics.delete(name)

    @rule()
    def restart(self) -> None:
        if GROUP not in self.bench.coordinator.groups:
            return
        before = snapshot(self.bench.group)
        self.bench.restart()
        assert snapshot(self.bench.group) == before

    # What must hold

    @invariant()
    def no_partition_is_used_by_two(self) -> None:
        used = Counter(
            (topic, partition)
            for topics in self.using.values()
            for topic, partitions in topics.items()
            for partition in partitions
        )
        assert not [partition for partition, users in used.items() if users > 1]

    def teardown(self) -> None:
        """Who is alive reports for a while, the others' sessions end: then all is assigned, and evenly."""
        for _ in range(10):
            self.time_passes(11_000)
            for consumer in list(self.consumers):
                self.heartbeat(self.consumers.index(consumer), silent=False)
        settle(*self.consumers)
        if not self.consumers:
            return
        group = self.bench.group
        assert group.state_name == "Stable"
        assert group.members.keys() == {consumer.id for consumer in self.consumers}
        self.no_partition_is_used_by_two()
        owned = {(topic, at) for topics in self.using.values() for topic, given in topics.items() for at in given}
        infos = [self.bench.topics.named(name) for name in group.topics_of(group.members.values())]
        assert owned == {(info.id, at) for info in infos if info is not None for at in range(info.partitions)}


ConsumerGroupMachine.TestCase.settings = examples(20, soak=600, stateful_step_count=40)
TestConsumerGroup = ConsumerGroupMachine.TestCase

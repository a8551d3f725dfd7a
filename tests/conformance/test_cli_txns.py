"""`onceflow txns`, as a process, against both brokers; hanging transactions against a Kafka that allows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.conformance.conftest import RunningBroker, started
from tests.conformance.test_cli import Shell
from tests.support.apache_kafka import ApacheKafka
from tests.support.raw import Wire, batch, produce_request, rewrite
from tests.support.waiting import eventually

TIMEOUT_MS = 45_000
TRANSACTIONAL = 0x10  # in the attributes of a batch
LATEST = -1


@pytest.fixture
def shell(broker: RunningBroker) -> Shell:
    return Shell(broker.bootstrap)


@pytest.fixture
def topic(wire: Wire, new_name: Callable[[], str]) -> str:
    """An empty topic with two partitions."""
    name = new_name()
    wire.create_topic(name, 2)
    return name


@pytest.fixture
def producer(shell: Shell, new_name: Callable[[], str]) -> Iterator[TransactionalProducer]:
    with TransactionalProducer(shell.bootstrap, new_name()) as producer:
        yield producer


class TransactionalProducer:
    """A producer with an id of its own; it aborts what is open when it goes."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.id = transactional_id
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(30)
        self._is_open = False

    def __enter__(self) -> TransactionalProducer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            self._producer.abort_transaction(30)

    def write(self, topic: str, *partitions: int) -> None:
        """Begins a transaction with one message in each of these partitions."""
        self._producer.begin_transaction()
        self._is_open = True
        for partition in partitions:
            self._producer.produce(topic, b"v", partition=partition)
        assert self._producer.flush(30) == 0

    def commit(self) -> None:
        self._is_open = False
        self._producer.commit_transaction(30)

    def abort(self) -> None:
        self._is_open = False
        self._producer.abort_transaction(30)


def described(shell: Shell, transactional_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell.ok("txns", "describe", transactional_id, "--json"))
    return found


def settled(shell: Shell, transactional_id: str, state: str) -> dict[str, Any]:
    """The description, once it is in this state: the end is answered before the markers are written."""

    def look() -> dict[str, Any] | None:
        found = described(shell, transactional_id)
        return found if found["state"] == state else None

    return eventually(look, f"{transactional_id} is {state}")


def listed(shell: Shell, *options: str) -> dict[str, dict[str, Any]]:
    found = json.loads(shell.ok("txns", "list", *options, "--json"))
    return {each["transactional_id"]: each for each in found}


def last_stable_offset(wire: Wire, topic: str, partition: int = 0) -> int:
    at = ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
    topics = [ListOffsetsTopic(name=topic, partitions=[at])]
    answer = wire.ask(ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=topics, timeout_ms=5000))
    assert answer.topics[0].partitions[0].error_code == 0
    return int(answer.topics[0].partitions[0].offset)


def test_an_open_transaction_is_described_with_what_happens_next(
    shell: Shell, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, 0, 1)
    found = described(shell, producer.id)
    assert (found["state"], found["state_in_words"]) == ("Ongoing", "open")
    assert found["partitions"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
    assert found["producer_id"] >= 0
    assert found["producer_epoch"] >= 0
    assert found["timeout_ms"] == TIMEOUT_MS
    assert 0 <= found["open_for_ms"] <= TIMEOUT_MS
    assert found["open_for_ms"] + found["timeout_left_ms"] == TIMEOUT_MS
    assert found["next"].startswith("will be aborted by the coordinator in ")
    assert found["next"].endswith(" s unless it commits")
    assert found["coordinator"]["address"] == shell.bootstrap

    lines = shell.ok("txns", "describe", producer.id).splitlines()
    assert lines[0] == f"{producer.id}  open"
    assert lines[1].startswith("  next         will be aborted by the coordinator in ")
    assert f"  producer     id {found['producer_id']}, epoch {found['producer_epoch']}" in lines
    assert [row.split() for row in lines[-2:]] == [[topic, "0"], [topic, "1"]]


def test_a_transaction_is_listed_as_what_it_is(shell: Shell, topic: str, producer: TransactionalProducer) -> None:
    assert listed(shell)[producer.id]["state_in_words"] == "idle"
    producer.write(topic, 0)
    assert listed(shell)[producer.id]["state"] == "Ongoing"
    (row,) = [row for row in shell.ok("txns", "list").splitlines() if row.startswith(producer.id)]
    assert row.split()[1] == "open"
    assert row.split()[-2:] == ["s", str(listed(shell)[producer.id]["coordinator"]["id"])]

    producer.commit()
    done = settled(shell, producer.id, "CompleteCommit")
    assert done["state_in_words"] == "committed"
    assert done["next"] == "has nothing open; the last transaction was committed"
    assert (done["open_for_ms"], done["started_ms"], done["partitions"]) == (None, None, [])

    producer.write(topic, 0)
    producer.abort()
    assert settled(shell, producer.id, "CompleteAbort")["state_in_words"] == "aborted"


def test_the_list_can_be_narrowed(shell: Shell, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, 0)
    for options in (
        ["--state", "Ongoing"],
        ["--state", "open", "--state", "Empty"],
        ["--older-than", "0s"],
        ["--id-pattern", f"{producer.id[:-3]}..."],
    ):
        assert producer.id in listed(shell, *options), options
    for options in (
        ["--state", "Empty"],
        ["--older-than", "1h"],
        ["--id-pattern", producer.id[:-1]],
        ["--state", "Ongoing", "--id-pattern", "no such id"],
    ):
        assert producer.id not in listed(shell, *options), options
    nothing = shell.run("txns", "list", "--id-pattern", "no such id")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, b"", b"No transactional id fits.\n")


@pytest.mark.parametrize("action", ["describe", "abort"])
def test_an_unknown_id_is_one_sentence_and_stays_unknown(
    shell: Shell, new_name: Callable[[], str], action: str
) -> None:
    name = new_name()
    assert shell.fails("txns", action, name) == f"onceflow: there is no transactional id '{name}'\n"
    assert name not in listed(shell)


def test_aborting_fences_the_producer_and_lets_readers_go_on(
    shell: Shell, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, 0, 1)
    before = described(shell, producer.id)
    assert last_stable_offset(wire, topic) == 0

    said = shell.ok("txns", "abort", producer.id)
    assert said.startswith(f"Aborted the transaction of {producer.id}, open for ")
    assert said.endswith(" on 2 partitions. Its producer is fenced.\n")

    after = described(shell, producer.id)
    assert (after["state"], after["timeout_ms"]) == ("Empty", TIMEOUT_MS)
    assert (after["producer_id"], after["producer_epoch"]) > (before["producer_id"], before["producer_epoch"])
    assert last_stable_offset(wire, topic) == wire.end(topic) == 2, "the message and the marker that ends it"
    assert shell.ok("consume", topic) == ""
    with pytest.raises(KafkaException, match=r"fenced|newer"):
        producer.commit()


def test_aborting_says_so_in_json(shell: Shell, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, 0)
    outcome = json.loads(shell.ok("txns", "abort", producer.id, "--yes", "--json"))
    assert outcome == {"transactional_id": producer.id, "aborted": True, "producer_fenced": True}
    with pytest.raises(KafkaException):
        producer.commit()


def test_aborting_nothing_does_nothing(shell: Shell, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, 0)
    producer.commit()
    before = settled(shell, producer.id, "CompleteCommit")
    complaint = shell.fails("txns", "abort", producer.id)
    assert complaint == (
        f"onceflow: nothing was done: '{producer.id}' has nothing open; the last transaction was committed\n"
    )
    assert described(shell, producer.id) == before
    producer.write(topic, 0)
    producer.commit()


def test_a_transaction_that_its_coordinator_knows_does_not_hang_and_is_not_torn_apart(
    shell: Shell, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, 0, 1)
    assert json.loads(shell.ok("txns", "find-hanging", "--topic", topic, "--older-than", "0s", "--json")) == []
    complaint = shell.fails("txns", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert f"it belongs to '{producer.id}', and broker " in complaint
    assert complaint.endswith(
        f"knows it as Ongoing. Nothing was done; to abort all of it: onceflow txns abort {producer.id}\n"
    )
    producer.commit()
    settled(shell, producer.id, "CompleteCommit")
    assert shell.ok("consume", topic) == "v\nv\n"


def test_what_is_not_there_cannot_be_aborted(shell: Shell, topic: str, new_name: Callable[[], str]) -> None:
    at = ["--partition", "0", "--start-offset", "5"]
    assert shell.fails("txns", "abort", "--topic", topic, *at) == (
        f"onceflow: no open transaction begins at offset 5 of {topic}-0\n"
    )
    assert f"topic '{topic}' has 2 partitions: there is no 2" in shell.fails(
        "txns", "abort", "--topic", topic, "--partition", "2", "--start-offset", "5", code=2
    )
    missing = new_name()
    assert f"there is no topic '{missing}'" in shell.fails("txns", "abort", "--topic", missing, *at)
    assert f"there is no topic '{missing}'" in shell.fails("txns", "find-hanging", "--topic", missing)
    assert missing not in shell.ok("topics", "list")


def test_looking_everywhere_for_hanging_transactions_goes_by_the_brokers_longest_timeout(shell: Shell) -> None:
    done = shell.run("txns", "find-hanging")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.endswith(b" for open ones without a write for 15 min.\n")


@pytest.fixture(scope="module")
def careless_kafka(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """One that takes transactional writes without asking the coordinator, as all did before 3.6."""
    if request.config.getoption("broker", default=None) == "onceflow":
        pytest.skip("Onceflow always asks its coordinator: there is no way to make a transaction hang")
    with ExitStack() as stack:
        settings = {"transaction.partition.verification.enable": "false"}
        yield started(lambda: stack.enter_context(ApacheKafka(settings)))


def hang(wire: Wire, topic: str, transactional_id: str) -> tuple[int, int]:
    """Writes in the name of a transaction that the coordinator is never told of; returns producer id and epoch."""

    def init() -> Any:
        answer = wire.ask(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000))
        return answer if answer.error_code == 0 else None

    identity = eventually(init, "there is a producer id")
    producer = (identity.producer_id, identity.producer_epoch)
    request = produce_request(topic, rewrite(batch("lost", producer=producer), attributes=TRANSACTIONAL))
    request.transactional_id = transactional_id
    (result,) = wire.ask(request, 11).responses[0].partition_responses
    assert result.error_code == 0
    return producer


@pytest.mark.faults
def test_a_hanging_transaction_is_found_and_aborted(careless_kafka: ApacheKafka, new_name: Callable[[], str]) -> None:
    shell, topic, transactional_id = Shell(careless_kafka.bootstrap), new_name(), new_name()
    # The coordinator is found, and its topic made, before anything else is asked of it.
    shell.run("txns", "describe", transactional_id)
    with Wire(careless_kafka.bootstrap) as wire:
        wire.create_topic(topic)
        shell.ok("produce", topic, stdin="before\n")
        producer_id, epoch = hang(wire, topic, transactional_id)
        shell.ok("produce", topic, stdin="behind\n")
        assert shell.ok("consume", topic) == "before\n", "readers of committed messages wait"

        assert json.loads(shell.ok("txns", "find-hanging", "--json")) == [], "it may still be a slow one"
        (found,) = json.loads(shell.ok("txns", "find-hanging", "--older-than", "0s", "--json"))
        assert (found["topic"], found["partition"], found["start_offset"]) == (topic, 0, 1)
        assert (found["producer_id"], found["producer_epoch"]) == (producer_id, epoch)
        assert (found["transactional_id"], found["coordinator_state"]) == (transactional_id, "Empty")
        shown = shell.run("txns", "find-hanging", "--topic", topic, "--partition", "0", "--older-than", "0s")
        assert f"{transactional_id} is idle, without this partition" in shown.stdout.decode()
        command = f"onceflow txns abort --topic {topic} --partition 0 --start-offset 1"
        assert shown.stderr.decode() == f"End the first one with: {command}\n"

        said = shell.ok(*command.split()[1:])
        assert said == (
            f"Aborted the hanging transaction at offset 1 of {topic}-0 (producer id {producer_id}, epoch {epoch}).\n"
        )
        assert last_stable_offset(wire, topic) == wire.end(topic) == 4
    assert shell.ok("consume", topic) == "before\nbehind\n"
    assert json.loads(shell.ok("txns", "find-hanging", "--older-than", "0s", "--json")) == []
    assert "no open transaction begins at offset 1" in shell.fails(*command.split()[1:])

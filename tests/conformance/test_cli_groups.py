"""`onceflow groups`, as a process, against both brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from onceflow.client.groups import GroupAdmin
from onceflow.client.settings import ClientSettings
from tests.conformance.conftest import RunningBroker
from tests.conformance.test_cli import Shell
from tests.support.raw import Wire, batch

PROTOCOLS = ["classic", "consumer"]


@pytest.fixture
def shell(broker: RunningBroker) -> Shell:
    return Shell(broker.bootstrap)


@pytest.fixture
def topic(wire: Wire, new_name: Callable[[], str]) -> str:
    """Two partitions, with ten messages in the first and four in the second."""
    name = new_name()
    wire.create_topic(name, 2)
    for partition, count in enumerate((10, 4)):
        assert wire.produce(name, batch(*["x"] * count), partition=partition).error_code == 0
    return name


@pytest.fixture
def group(new_name: Callable[[], str]) -> str:
    return f"g-{new_name()}"


@contextmanager
def consumer(shell: Shell, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A member of a group that has got its partitions."""
    settings = {
        "bootstrap.servers": shell.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "client.id": "reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    member = Consumer(settings)
    try:
        member.subscribe([topic])
        deadline = time.monotonic() + 30
        while not member.assignment():
            member.poll(0.1)
            assert time.monotonic() < deadline, "the member got no partitions"
        yield member
    finally:
        member.close()


def commit(shell: Shell, group: str, topic: str, *offsets: int) -> None:
    """As a member-less group: one offset per partition."""
    places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    with_group = Consumer({"bootstrap.servers": shell.bootstrap, "group.id": group, "log_level": 0})
    with_group.commit(offsets=places, asynchronous=False)
    with_group.close()


def described(shell: Shell, group: str, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell.ok("groups", "describe", group, *options, "--json"))
    return found


def committed(shell: Shell, group: str, topic: str) -> list[int | None]:
    """The offsets of both partitions, asked for without the command."""
    offsets = GroupAdmin(ClientSettings(bootstrap=shell.bootstrap)).committed(group)
    return [offsets.get((topic, partition)) for partition in (0, 1)]


def listed(shell: Shell, *options: str) -> dict[str, dict[str, Any]]:
    return {each["group"]: each for each in json.loads(shell.ok("groups", "list", *options, "--json"))}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_active_group_shows_who_has_what_and_how_far_it_is(
    shell: Shell, topic: str, group: str, protocol: str
) -> None:
    with consumer(shell, group, topic, protocol) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
        found = described(shell, group)
        assert (found["group"], found["protocol"], found["state_in_words"]) == (group, protocol, "stable")
        assert found["coordinator"]["address"] == shell.bootstrap
        assert found["assignor"]
        (reader,) = found["members"]
        assert (reader["client_id"], reader["host"], reader["instance_id"]) == ("reader", "127.0.0.1", None)
        both = [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        assert reader["partitions"] == both
        shared = {"topic": topic, "earliest": 0, "member_id": reader["member_id"]}
        assert found["partitions"] == [
            shared | {"partition": 0, "committed": 7, "end": 10, "lag": 3},
            shared | {"partition": 1, "committed": None, "end": 4, "lag": None},
        ]

        lines = shell.ok("groups", "describe", group).splitlines()
        assert lines[0] == f"{group}  stable  1 member  lag 3"
        assert lines[-2].split() == [topic, "0", "7", "10", "3", "reader", "at", "127.0.0.1"]
        assert "nothing committed, 4 there" in lines[-1]

        assert listed(shell)[group]["members"] == 1
        assert listed(shell)[group]["protocol"] == protocol
        assert group in listed(shell, "--state", "stable")
        assert group not in listed(shell, "--state", "Empty")
        (row,) = [row for row in shell.ok("groups", "list").splitlines() if row.startswith(f"{group} ")]
        assert row.split()[1:4] == [protocol, "stable", "1"]


def test_a_group_without_members_keeps_its_offsets(shell: Shell, topic: str, group: str) -> None:
    commit(shell, group, topic, 10, 1)
    found = described(shell, group)
    assert (found["state"], found["state_in_words"], found["members"]) == ("Empty", "empty", [])
    assert [(each["lag"], each["member_id"]) for each in found["partitions"]] == [(0, None), (3, None)]
    assert group in listed(shell, "--state", "empty")
    last = shell.ok("groups", "describe", group).splitlines()[-1]
    assert last.split() == [topic, "1", "1", "4", "3", "nobody"]


def test_offsets_that_were_deleted_or_never_were_are_said_in_words(shell: Shell, topic: str, group: str) -> None:
    commit(shell, group, topic, 12, 4)
    assert "committed 2 beyond the end" in shell.ok("groups", "describe", group)
    assert described(shell, group)["partitions"][0]["lag"] == -2


def test_the_end_may_be_where_the_first_open_transaction_begins(
    shell: Shell, topic: str, group: str, new_name: Callable[[], str]
) -> None:
    commit(shell, group, topic, 10, 4)
    settings = {"bootstrap.servers": shell.bootstrap, "transactional.id": new_name(), "linger.ms": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(30) == 0
    assert [each["lag"] for each in described(shell, group)["partitions"]] == [1, 0]
    stable = described(shell, group, "--isolation", "read_committed")
    assert stable["isolation"] == "read_committed"
    assert [each["lag"] for each in stable["partitions"]] == [0, 0]
    producer.abort_transaction(30)


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 4]),
        (["--to-offset", "3"], [3, 3]),
        (["--to-offset", "7"], [7, 4]),
        (["--shift-by", "-2"], [4, 0]),
        (["--shift-by", "2"], [8, 4]),
        (["--by-duration", "PT1H"], [0, 0]),
        (["--by-duration", "0s"], [10, 4]),
    ],
)
def test_a_reset_is_shown_first_and_done_on_demand(
    shell: Shell, topic: str, group: str, wish: list[str], expected: list[int]
) -> None:
    before = [6, 2]
    commit(shell, group, topic, *before)
    arguments = ["groups", "reset-offsets", group, "--topic", topic, *wish]
    shared = {"topic": topic, "error": None}
    steps = [
        shared | {"partition": number, "before": old, "after": new}
        for number, (old, new) in enumerate(zip(before, expected, strict=True))
    ]
    assert json.loads(shell.ok(*arguments, "--json")) == {"group": group, "executed": False, "partitions": steps}
    assert committed(shell, group, topic) == before
    assert json.loads(shell.ok(*arguments, "--execute", "--json"))["executed"] is True
    assert committed(shell, group, topic) == expected


def test_a_reset_by_time_goes_to_the_first_message_from_then_on(shell: Shell, topic: str, group: str) -> None:
    then = datetime.now(UTC)
    late = int(then.timestamp() * 1000) + 60_000
    shell.ok("produce", topic, "--json", stdin=json.dumps({"value": "later", "partition": 0, "timestamp": late}))
    arguments = ["groups", "reset-offsets", group, "--topic", topic, "--to-datetime", then.isoformat()]
    done = shell.run(*arguments, "--execute")
    assert done.returncode == 0
    assert done.stderr.decode() == f"Moved 2 offsets of group {group}.\n"
    assert committed(shell, group, topic) == [10, 4]


def test_a_reset_may_be_of_some_partitions_or_of_all_that_have_offsets(shell: Shell, topic: str, group: str) -> None:
    commit(shell, group, topic, 6, 2)
    shell.ok("groups", "reset-offsets", group, "--topic", f"{topic}:1", "--to-latest", "--execute")
    assert committed(shell, group, topic) == [6, 4]
    done = shell.run("groups", "reset-offsets", group, "--all-topics", "--shift-by", "-5")
    assert done.stderr == b"Nothing was changed: this is the plan, and --execute carries it out.\n"
    rows = [row.split() for row in done.stdout.decode().splitlines()[-2:]]
    assert rows == [[topic, "0", "6", "1", "-5"], [topic, "1", "4", "0", "-4", "-1", "is", "before", "the", "first"]]
    assert committed(shell, group, topic) == [6, 4]


def test_a_reset_of_a_new_group_makes_it(shell: Shell, topic: str, group: str) -> None:
    arguments = ["groups", "reset-offsets", group, "--topic", topic, "--to-latest"]
    shell.ok(*arguments)
    assert group not in listed(shell)
    shell.ok(*arguments, "--execute")
    assert committed(shell, group, topic) == [10, 4]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_active_group_is_neither_moved_nor_deleted(shell: Shell, topic: str, group: str, protocol: str) -> None:
    with consumer(shell, group, topic, protocol) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        complaint = shell.fails("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
        assert complaint == (
            f"onceflow: group '{group}' has 1 member, and its offsets can only be moved while it has none: "
            f"stop its consumers first\n"
        )
        assert "it has members; stop its consumers first" in shell.fails("groups", "delete", group)
        assert committed(shell, group, topic) == [5, None]
    assert shell.ok("groups", "delete", group) == f"Deleted group {group}.\n"
    assert group not in listed(shell)


def test_deleting_several_goes_on_after_a_missing_one(shell: Shell, topic: str, group: str) -> None:
    commit(shell, group, topic, 1)
    done = shell.run("groups", "delete", f"{group}-missing", group, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == [
        {"group": f"{group}-missing", "deleted": False},
        {"group": group, "deleted": True},
    ]
    assert shell.ok("groups", "delete", group, "--if-exists") == f"There was no group {group}.\n"


def test_what_is_not_there_is_one_sentence(shell: Shell, topic: str, group: str, new_name: Callable[[], str]) -> None:
    missing = f"onceflow: there is no group '{group}' at {shell.bootstrap}\n"
    assert shell.fails("groups", "describe", group) == missing
    assert shell.fails("groups", "delete", group) == missing
    reset = ["groups", "reset-offsets", group]
    assert "has not committed anything: name a --topic" in shell.fails(*reset, "--all-topics", "--to-latest")
    assert f"nothing is committed for {topic}-0" in shell.fails(*reset, "--topic", topic, "--shift-by", "1")
    nowhere = new_name()
    assert f"there is no topic '{nowhere}'" in shell.fails(*reset, "--topic", nowhere, "--to-latest")
    words = f"topic '{topic}' has 2 partitions: there is no 7"
    assert words in shell.fails(*reset, "--topic", f"{topic}:0,7", "--to-latest", code=2)
    assert group not in listed(shell)

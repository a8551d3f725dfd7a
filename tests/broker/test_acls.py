"""ACLs with users who log in, real clients, and Kafka's own tool; the rules are made with `onceflow acls`."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from onceflow.cli import main
from onceflow.config import STANDARD_AUTHORIZER
from onceflow.errors import ErrorCode
from tests.support.broker_process import run_broker_command
from tests.support.kafka_jars import JarsMissing, JavaMissing, classpath, java
from tests.support.raw import batch, fetch_request, produce_request
from tests.support.raw_client import frame_of
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import eventually

LISTENER = "SASL_PLAINTEXT"
RESET = struct.pack("ii", 1, 0)
"""As SO_LINGER: closing does not say goodbye."""
SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("acls"), SETTINGS) as broker:
        yield broker


class Command:
    """`onceflow acls` as the administrator."""

    def __init__(self, broker: SecuredBroker, printed: pytest.CaptureFixture[str]) -> None:
        login = broker.client(LISTENER, "admin")
        settings = [word for name, value in login.items() for word in ("--client-config", f"{name}={value}")]
        self._connection = ["--bootstrap", broker.addresses[LISTENER], *settings]
        self._printed = printed

    def __call__(self, *words: str) -> Any:
        code = main(["acls", *words, "--json", *self._connection])
        out, err = self._printed.readouterr()
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def acls(broker: SecuredBroker, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    command = Command(broker, capsys)
    yield command
    command("delete", "--principal", "User:alice")


@pytest.fixture
def name() -> str:
    return f"n-{uuid4()}"


def settings(broker: SecuredBroker, user: str = "alice", **more: Any) -> dict[str, Any]:
    login = broker.client(LISTENER, user)
    return {**login, "bootstrap.servers": broker.addresses[LISTENER], "log_level": 0, **more}


def admin(broker: SecuredBroker, user: str = "admin") -> AdminClient:
    return AdminClient(settings(broker, user))


def produce(broker: SecuredBroker, topic: str, user: str = "alice", *, idempotence: bool = False) -> int | None:
    """The error code of a delivery, None for success."""
    outcomes: list[int | None] = []
    producer = Producer(settings(broker, user, **{"enable.idempotence": idempotence}))
    producer.produce(topic, b"value", on_delivery=lambda error, _: outcomes.append(error and error.code()))
    assert producer.flush(15) == 0
    return outcomes[0]


def consume(broker: SecuredBroker, topic: str, group: str) -> bytes | int:
    """The first value, or the code of the error that comes in its place."""
    consumer = Consumer(settings(broker, **{"group.id": group, "auto.offset.reset": "earliest"}))
    consumer.subscribe([topic])
    try:
        message = eventually(lambda: consumer.poll(0.2), "something arrives")
        error = message.error()
        return message.value() if error is None else error.code()
    finally:
        consumer.close()


def test_a_producer_may_write_with_its_shorthand_and_not_without(
    broker: SecuredBroker, acls: Command, name: str
) -> None:
    assert produce(broker, name) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert len(acls("add", "--principal", "User:alice", "--producer", "--topic", name)) == 3
    assert produce(broker, name, idempotence=True) is None


def test_a_consumer_may_read_with_its_shorthand_and_not_without(
    broker: SecuredBroker, acls: Command, name: str
) -> None:
    assert produce(broker, name, "admin") is None
    assert consume(broker, name, name) == KafkaError.GROUP_AUTHORIZATION_FAILED
    acls("add", "--principal", "User:alice", "--consumer", "--prefixed", "--topic", name[:10], "--group", name[:10])
    assert consume(broker, name, name) == b"value"


def test_exactly_once_takes_its_shorthand_and_nothing_less(broker: SecuredBroker, acls: Command, name: str) -> None:
    assert produce(broker, name, "admin") is None
    words = ["--principal", "User:alice", "--topic", name, "--group", name, "--transactional-id", name]
    acls("add", "--exactly-once", *words)
    copy(broker, name)
    acls("delete", "--principal", "User:alice", "--transactional-id", name)
    with pytest.raises(KafkaException) as refused:
        copy(broker, name)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    acls("delete", "--exactly-once", *words)
    assert acls("list", "--principal", "User:alice") == []


def copy(broker: SecuredBroker, name: str) -> None:
    """One transaction that reads, writes and commits the offset."""
    reading = {"group.id": name, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer(settings(broker, **reading, **{"enable.auto.commit": False}))
    producer = Producer(settings(broker, **{"transactional.id": name}))
    try:
        producer.init_transactions(15)
        consumer.subscribe([name])
        message = eventually(lambda: consumer.poll(0.2), "a record arrives")
        assert message.error() is None, message.error()
        producer.begin_transaction()
        producer.produce(name, message.value())
        place = [TopicPartition(name, 0, message.offset() + 1)]
        producer.send_offsets_to_transaction(place, consumer.consumer_group_metadata(), 15)
        producer.commit_transaction(15)
    finally:
        consumer.close()


def test_whoever_has_no_rules_sees_nothing(broker: SecuredBroker, acls: Command, name: str) -> None:
    assert produce(broker, name, "admin") is None
    assert name not in admin(broker, "alice").list_topics(timeout=10).topics
    acls("add", "--principal", "User:alice", "--operation", "describe", "--topic", name)
    assert name in admin(broker, "alice").list_topics(timeout=10).topics


def test_a_denial_wins_over_everything_but_a_super_user(broker: SecuredBroker, acls: Command, name: str) -> None:
    acls("add", "--principal", "User:alice", "--producer", "--topic", name)
    acls("add", "--principal", "User:*", "--deny", "--operation", "write", "--topic", name)
    assert produce(broker, name, "admin") is None
    assert produce(broker, name) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    acls("delete", "--principal", "User:*", "--deny")
    assert produce(broker, name) is None


def test_librdkafka_creates_describes_and_deletes_rules(broker: SecuredBroker, acls: Command, name: str) -> None:
    rule = AclBinding(
        ResourceType.TOPIC,
        name,
        ResourcePatternType.PREFIXED,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    about = AclBindingFilter(
        ResourceType.TOPIC,
        name,
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    chief = admin(broker)
    for future in chief.create_acls([rule]).values():
        future.result(15)
    assert chief.describe_acls(about).result(15) == [rule]
    [listed] = acls("list", "--topic", name)
    assert (listed["operation"], listed["pattern"], listed["permission"]) == ("read", "prefixed", "allow")
    [deleting] = chief.delete_acls([about]).values()
    assert deleting.result(15) == [rule]
    assert chief.describe_acls(about).result(15) == []
    alice = admin(broker, "alice")
    [creating] = alice.create_acls([rule]).values()
    with pytest.raises(KafkaException) as refused:
        creating.result(15)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert acls("list", "--topic", name) == []


def test_who_may_not_change_rules_is_told_in_one_sentence(
    broker: SecuredBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["add", "--principal", "User:alice", "--operation", "all", "--topic", "*"]
    assert main(["acls", *words, "--bootstrap", broker.addresses["PLAINTEXT"]]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "takes ALTER" in err


def test_a_fetch_that_waits_gives_nothing_once_the_right_to_read_is_taken_away(
    broker: SecuredBroker, acls: Command, name: str
) -> None:
    everybody = ("--principal", "User:ANONYMOUS", "--topic", name)
    acls("add", *everybody, "--operation", "all")
    with broker.raw() as reader, broker.raw() as writer:
        assert reader.make_topic(name) == 0
        reader.send_all([fetch_request(name, 0, max_wait_ms=15_000)])
        assert not reader.is_answered(0.1)
        acls("delete", *everybody, "--operation", "all")
        acls("add", *everybody, "--operation", "write")
        assert writer.produce(name, batch("secret")).error_code == 0
        answer = reader.receive_fetched()
    assert (answer.error_code, answer.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")


def test_who_resets_the_connection_is_still_judged_by_where_it_came_from(
    broker: SecuredBroker, acls: Command, name: str
) -> None:
    """The broker is made to accept the connection only when it is reset, and the socket knows no address any more."""
    acls("add", "--principal", "User:ANONYMOUS", "--topic", name, "--operation", "all", "--host", "127.0.0.1")
    host, port = broker.addresses["PLAINTEXT"].rsplit(":", 1)
    with broker.raw() as honest:
        assert honest.make_topic(name) == 0
        assert honest.produce(name, batch("honest")).base_offset == 0
        denied_before = broker.log.count("is Denied")
        os.kill(broker.broker.pid, signal.SIGSTOP)
        try:
            with socket.create_connection((host, int(port)), 10, source_address=("127.0.0.2", 0)) as stranger:
                stranger.sendall(frame_of(produce_request(name, batch("forged"), acks=0), 7))
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        finally:
            os.kill(broker.broker.pid, signal.SIGCONT)
        assert eventually(lambda: broker.log.count("is Denied") > denied_before, "it is refused")
        assert honest.produce(name, batch("honest")).base_offset == 1


@pytest.mark.tried("kafka-acls", "add, list and remove rules")
@pytest.mark.faults
def test_the_tool_of_apache_kafka_makes_lists_and_removes_rules(
    broker: SecuredBroker, acls: Command, name: str, tmp_path: Path
) -> None:
    login = broker.client(LISTENER, "admin")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="{login["sasl.username"]}" password="{login["sasl.password"]}";'
    config = tmp_path / "admin.properties"
    config.write_text(f"security.protocol={LISTENER}\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={jaas}\n")

    def tool(*words: str) -> str:
        try:
            command = [java(), "-cp", classpath(), "org.apache.kafka.tools.AclCommand"]
        except (JavaMissing, JarsMissing) as error:
            pytest.fail(str(error), pytrace=False)
        command += ["--bootstrap-server", broker.addresses[LISTENER], "--command-config", str(config), *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tool("--add", "--allow-principal", "User:alice", "--consumer", "--topic", name, "--group", name)
    made = {(rule["resource"], rule["operation"]) for rule in acls("list", "--principal", "User:alice")}
    assert made == {("topic", "read"), ("topic", "describe"), ("group", "read")}
    assert f"resourceType=TOPIC, name={name}" in tool("--list", "--topic", name)
    tool("--remove", "--force", "--topic", name)
    assert [rule["resource"] for rule in acls("list", "--principal", "User:alice")] == ["group"]


def test_rules_survive_the_death_of_the_broker_and_a_damaged_file_keeps_it_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SETTINGS, "super.users": "User:ANONYMOUS"}
    with SecuredBroker(tmp_path, settings) as secured:
        bootstrap = ["--bootstrap", secured.addresses["PLAINTEXT"]]
        rule = ["--principal", "User:alice", "--operation", "read", "--topic", "a"]
        assert main(["acls", "add", *rule, *bootstrap]) == 0
        secured.broker.kill()
        secured.broker.start()
        capsys.readouterr()
        assert main(["acls", "list", "--json", *bootstrap]) == 0
        assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["a"]
    path = tmp_path / "data" / "acls.json"
    path.write_bytes(path.read_bytes()[:-3])
    done = run_broker_command(tmp_path / "data", "--listen", "127.0.0.1:0", "--acls")
    assert done.returncode == 1
    assert "acls.json is damaged" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("messages", [2, 20_000])
def test_produce_says_in_a_sentence_that_it_may_not_write(
    broker: SecuredBroker, acls: Command, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], messages: int
) -> None:
    owner = admin(broker)
    owner.create_topics([NewTopic(name, 1)])[name].result()
    acls("add", "--principal", "User:alice", "--operation", "describe", "--topic", name)
    login = tmp_path / "alice.properties"
    login.write_text("".join(f"{key}={value}\n" for key, value in broker.client(LISTENER, "alice").items()))
    lines = tmp_path / "lines"
    lines.write_text("line\n" * messages)
    connection = ["--bootstrap", broker.addresses[LISTENER], "--command-config", str(login)]
    assert main(["produce", name, "--file", str(lines), *connection]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if "acknowledged" in line]
    assert told[0].startswith("0 messages acknowledged")
    assert [line.partition(": ")[0] for line in told[1:]] == [f"{messages:,} messages not acknowledged"]
    assert "uthorization failed" in told[1]

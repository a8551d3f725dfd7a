"""Where doctor says that a client does not start, librdkafka does not; and it starts with what doctor finds good."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from onceflow.doctor.facts import Case, ClientFacts
from onceflow.doctor.findings import Verdict
from onceflow.doctor.registry import examine_case

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
PRODUCER = {**NOWHERE, "transactional.id": "billing-0", "enable.idempotence": "true", "acks": "all"}
CONSUMER = {**NOWHERE, "group.id": "billing", "enable.auto.commit": "false", "auto.offset.reset": "error"}


def faults(role: str, values: dict[str, str]) -> list[str]:
    client = ClientFacts(name="file", role=role, flavor="librdkafka", values=values)
    return [line.check for line in examine_case(Case(clients=(client,))) if line.verdict is Verdict.FAULT]


def start(role: str, values: dict[str, str]) -> None:
    client: Any = (Producer if role == "producer" else Consumer)(values)
    if role == "consumer":
        client.close()


@pytest.mark.parametrize(("role", "values"), [("producer", PRODUCER), ("consumer", CONSUMER)])
def test_what_has_no_fault_starts(role: str, values: dict[str, str]) -> None:
    assert faults(role, values) == []
    start(role, values)


@pytest.mark.parametrize(
    ("role", "name", "value", "check"),
    [
        ("producer", "enable.idempotence", "false", "producer.idempotence"),
        ("producer", "acks", "1", "producer.acks"),
        ("producer", "max.in.flight", "6", "producer.in-flight"),
        ("producer", "retries", "0", "producer.retries"),
        ("producer", "message.timeout.ms", "60001", "producer.delivery-timeout"),
        ("producer", "transaction.timeout.ms", "1m", "client.values"),
        ("consumer", "isolation.level", "committed", "client.values"),
    ],
)
def test_what_is_a_fault_for_librdkafka_does_not_start(role: str, name: str, value: str, check: str) -> None:
    good = PRODUCER if role == "producer" else CONSUMER
    values = {**good, name: value}
    assert faults(role, values) == [check]
    with pytest.raises((KafkaException, ValueError, TypeError)):
        start(role, values)


def test_the_new_group_protocol_takes_no_session_timeout() -> None:
    values = {**CONSUMER, "group.protocol": "consumer", "session.timeout.ms": "45000"}
    assert faults("consumer", values) == ["consumer.session"]
    with pytest.raises(KafkaException):
        start("consumer", values)

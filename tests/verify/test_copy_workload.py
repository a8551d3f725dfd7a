"""Short runs of consume-transform-produce under real faults, on our broker and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.verify.brokers import Brokers, EmbeddedBrokers
from onceflow.verify.history import History
from onceflow.verify.programs.copier import is_of_a_member
from onceflow.verify.runner import RunSettings, run
from onceflow.verify.workloads.copy import MEMBERSHIPS
from tests.support.brokers import Shared, running_broker
from tests.support.waiting import eventually

FAULTS = 8


DAILY = "cooperative"
"""The kind of group of every day; the others are in `make faults`."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == DAILY else pytest.mark.faults) for kind in MEMBERSHIPS]
)
def test_copying_under_faults_is_clean(brokers: Brokers, tmp_path: Path, kind: str) -> None:
    settings = RunSettings(
        workload="copy", seed=7, faults=FAULTS, folder=tmp_path, brokers=brokers, options={"group": kind}
    )
    verdict, history = run(settings)
    assert verdict.is_clean, verdict.to_json()
    assert len(verdict.faults) >= FAULTS
    assert verdict.counts["commit ok"] > 3
    assert copied(history) > 300
    assert counted(history) == copied(history)


def test_a_kind_of_group_that_does_not_exist_is_named(tmp_path: Path) -> None:
    brokers = EmbeddedBrokers(tmp_path / "broker")
    options = {"group": "sticky"}
    with pytest.raises(ConfigError, match="'sticky'; there is eager, cooperative, consumer"):
        run(RunSettings(workload="copy", seed=1, folder=tmp_path, brokers=brokers, options=options))


def copied(history: History) -> int:
    return sum(seen.topic.endswith("output") for seen in history.final)


def counted(history: History) -> int:
    """By the last state of every key."""
    return sum({seen.record.state: seen.record.n or 0 for seen in history.final if seen.record.state}.values())


@pytest.fixture
def joined(shared: Shared, new_name: Callable[[], str]) -> Iterator[Any]:
    """A consumer that is a member of its group."""
    broker = running_broker("onceflow", shared)
    topic = new_name()
    Admin(ClientSettings(bootstrap=broker.bootstrap)).create(topic, partitions=1)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "log_level": 0})
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.1) is None and consumer.assignment(), "it has a partition")
    yield consumer
    consumer.close()


class TestGroupMetadata:
    """What librdkafka writes is not documented, so it is asked."""

    def test_before_joining_names_nobody(self) -> None:
        consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
        assert not is_of_a_member(consumer.consumer_group_metadata())
        consumer.close()

    def test_of_a_member_names_it(self, joined: Any) -> None:
        assert is_of_a_member(joined.consumer_group_metadata())

    def test_without_its_member_id_names_nobody(self, joined: Any) -> None:
        metadata = joined.consumer_group_metadata()
        member = joined.memberid()
        assert not is_of_a_member(metadata.replace(member.encode(), b""))

    def test_in_another_form_is_not_guessed_at(self) -> None:
        with pytest.raises(ValueError, match="not known"):
            is_of_a_member(b"CGMDv9:whatever")

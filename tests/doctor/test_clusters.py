"""Doctor finds each fault in a cluster that was made to have it, and says nothing against a good one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onceflow
import onceflow.cli.txns  # before there are threads: CPython 3.11 compiles badly in two at once
from onceflow.cli import main
from onceflow.client.cluster import Refused
from onceflow.config import STANDARD_AUTHORIZER
from onceflow.doctor import gathering
from onceflow.errors import ErrorCode
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.metadata import MetadataRequest
from tests.doctor.conftest import Doctor
from tests.support.brokers import RunningBroker
from tests.support.kafka_cluster import ThreeBrokers
from tests.support.raw import Wire, batch, now_ms
from tests.support.raw_groups import commit
from tests.support.raw_transactions import V2, TransactionalProducer, find_coordinator
from tests.support.waiting import eventually


def delete_before(wire: Wire, topic: str, offset: int) -> None:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=10_000)
    [answer] = wire.ask(request).topics[0].partitions
    assert answer.error_code == ErrorCode.NONE


class TestOnAGoodBroker:
    def test_nothing_is_said_against_it(
        self, broker: RunningBroker, wire: Wire, topic: str, doctor: Doctor, new_name: Callable[[], str]
    ) -> None:
        wire.produce(topic, batch("a", "b"))
        commit(wire, new_name(), topic, 1)
        answer = doctor("--bootstrap", broker.bootstrap, "--topic", topic)
        assert (answer.code, answer.troubles) == (0, set())
        assert answer.verdicts("broker.single") == ["note"], "replication of a single node is a note"

    def test_an_unclean_topic_is_a_warning_and_counts_if_strict(
        self, broker: RunningBroker, wire: Wire, new_name: Callable[[], str], doctor: Doctor
    ) -> None:
        topic = new_name()
        wire.create_topic(topic, unclean_leader_election_enable="true")
        where = ("--bootstrap", broker.bootstrap, "--topic", topic)
        answer = doctor(*where)
        assert (answer.code, answer.troubles) == (0, {"topics.unclean"})
        assert doctor(*where, "--strict").code == 1

    def test_more_replicas_in_sync_than_there_are_is_a_fault_where_it_has_an_effect(
        self, broker: RunningBroker, wire: Wire, new_name: Callable[[], str], doctor: Doctor
    ) -> None:
        topic = new_name()
        wire.create_topic(topic, min_insync_replicas="2")
        answer = doctor("--bootstrap", broker.bootstrap, "--topic", topic)
        is_kafka = broker.name == "kafka"
        assert answer.verdicts("topics.min-insync") == ["fault" if is_kafka else "note"]
        assert answer.code == (1 if is_kafka else 0)

    def test_a_group_whose_records_were_deleted_has_lost_them(
        self, broker: RunningBroker, wire: Wire, topic: str, new_name: Callable[[], str], doctor: Doctor
    ) -> None:
        group = new_name()
        wire.produce(topic, batch("a", "b", "c", "d"))
        commit(wire, group, topic, 1)
        delete_before(wire, topic, 3)
        answer = doctor("--bootstrap", broker.bootstrap, "--topic", topic)
        assert (answer.code, answer.troubles) == (1, {"groups.lost"})
        said = f"{group}: what it has not read is deleted already: {topic}-0 (committed 1, "
        assert said in answer.found("groups.lost")

    def test_a_topic_that_keeps_minutes_is_too_short_for_those_who_read_it(
        self, broker: RunningBroker, wire: Wire, new_name: Callable[[], str], doctor: Doctor
    ) -> None:
        topic = new_name()
        wire.create_topic(topic, retention_ms="600000")
        assert doctor("--bootstrap", broker.bootstrap, "--topic", topic).troubles == set(), "nobody reads it"
        commit(wire, new_name(), topic, 0)
        assert doctor("--bootstrap", broker.bootstrap, "--topic", topic).troubles == {"topics.retention"}

    def test_settings_of_a_client_are_compared_with_those_of_the_broker(
        self, broker: RunningBroker, wire: Wire, topic: str, new_name: Callable[[], str], doctor: Doctor, tmp_path: Path
    ) -> None:
        name = new_name()
        producer = TransactionalProducer(wire, name, V2).init()
        producer.write(topic, "a")
        file = tmp_path / "producer.properties"
        file.write_text(f"acks=all\ntransactional.id={name}\ntransaction.timeout.ms=900001\nkey.serializer=x\n")
        answer = doctor("--bootstrap", broker.bootstrap, "--topic", topic, "--client", str(file))
        producer.abort()
        assert (answer.code, answer.troubles) == (1, {"producer.transaction-timeout"})
        assert "transaction.max.timeout.ms is 900000" in answer.found("producer.transaction-timeout")
        assert answer.verdicts("producer.in-use") == ["note"]

    def test_what_may_not_be_asked_is_unknown_and_has_an_exit_code_of_its_own(
        self, broker: RunningBroker, topic: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: Any, **__: Any) -> Any:
            raise Refused("listing transactions", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        monkeypatch.setattr(gathering, "list_transactions", refused)
        answer = doctor("--bootstrap", broker.bootstrap, "--topic", topic)
        assert answer.code == 3
        assert answer.verdicts("transactions.stuck") == ["unknown"]
        assert answer.verdicts("groups.lost") == ["ok"], "the rest is looked at"


class TestOnASpoiltBroker:
    def test_looking_changes_nothing(self, spoilt: Any, doctor: Doctor) -> None:
        """To ask for a coordinator would create its topic."""
        with Wire(spoilt.bootstrap) as wire:
            before = {each.name for each in wire.ask(MetadataRequest(topics=None)).topics}
            doctor("--bootstrap", spoilt.bootstrap)
            assert {each.name for each in wire.ask(MetadataRequest(topics=None)).topics} == before

    def test_every_setting_that_is_wrong_is_named(self, spoilt: Any, doctor: Doctor) -> None:
        answer = doctor("--bootstrap", spoilt.bootstrap)
        wrong = {
            "broker.max-timeout",
            "broker.id-expiration",
            "broker.producer-expiration",
            "broker.offsets-retention",
            "broker.unclean",
        }
        if not isinstance(spoilt, onceflow.Broker):
            wrong |= {"broker.verification", "topics.internal-replication"}
            assert "cannot be created" in answer.found("topics.internal-replication")
        assert (answer.code, answer.troubles) == (1, wrong)

    def test_progress_that_is_deleted_after_a_week_is_a_fault(self, spoilt: Any, doctor: Doctor) -> None:
        with Wire(spoilt.bootstrap) as wire:
            wire.create_topic("_onceflow_progress", 2, cleanup_policy="delete")
        answer = doctor("--bootstrap", spoilt.bootstrap, "--topic", "_onceflow_progress")
        assert answer.verdicts("topics.progress") == ["fault", "warning"]
        assert "cleanup.policy=delete" in answer.found("topics.progress")

    @pytest.mark.faults
    @pytest.mark.parametrize("spoilt", ["kafka"], indirect=True)
    def test_a_transaction_that_hangs_is_a_fault_with_the_command_that_ends_it(
        self, spoilt: Any, doctor: Doctor
    ) -> None:
        with Wire(spoilt.bootstrap) as wire:
            wire.create_topic("held")
            hang(wire, "held", "nobody")
        answer = doctor("--bootstrap", spoilt.bootstrap, "--topic", "held")
        [line] = [line for line in answer.lines if line["check"] == "transactions.hanging"]
        assert line["verdict"] == "fault"
        assert line["fix"] == "onceflow txns abort --topic held --partition 0 --start-offset 0"


def test_a_transaction_whose_coordinator_has_lost_its_state_hangs_on_our_broker(
    tmp_path: Path, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our partitions always ask the coordinator, so its state has to be taken away on disk."""
    with onceflow.Broker(tmp_path / "data", settings={"transaction.max.timeout.ms": 30_000}) as running:
        with Wire(running.bootstrap) as wire:
            wire.create_topic("held")
            hang(wire, "held", "nobody", version=12)
        running.stop()
        shutil.rmtree(tmp_path / "data" / "__transaction_state-0")
        (tmp_path / "data" / "topics" / "__transaction_state.json").unlink()
        running.start()
        answer = doctor("--bootstrap", running.bootstrap, "--topic", "held")
        assert answer.verdicts("transactions.hanging") == ["fault"]
        assert main(["txns", "find-hanging", "--bootstrap", running.bootstrap, "--json"]) == 0
        [found] = json.loads(capsys.readouterr().out)
        assert (found["topic"], found["start_offset"]) == ("held", 0)
        [line] = [line for line in answer.lines if line["check"] == "transactions.hanging"]
        assert main([*line["fix"].split()[1:], "--yes", "--bootstrap", running.bootstrap]) == 0
        capsys.readouterr()
        assert doctor("--bootstrap", running.bootstrap, "--topic", "held").verdicts("transactions.hanging") == ["ok"]


def test_our_broker_tells_whether_the_disk_has_what_it_acknowledges(doctor: Doctor) -> None:
    with onceflow.Broker(data_dir=None) as synced:
        assert doctor("--bootstrap", synced.bootstrap).verdicts("broker.durability") == ["ok"]
    pretending = {"log.flush.interval.messages": 1}  # is taken, as Kafka would, and changes nothing
    with onceflow.Broker(data_dir=None, durability="os", settings=pretending) as unsynced:
        assert doctor("--bootstrap", unsynced.bootstrap).verdicts("broker.durability") == ["warning"]


def test_what_is_hidden_from_a_login_without_rights_is_unknown_and_not_well(doctor: Doctor) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
    with onceflow.Broker(data_dir=None, settings=settings) as running:
        answer = doctor("--bootstrap", running.bootstrap)
    assert answer.code == 3
    assert "User:ANONYMOUS has no DESCRIBE_CONFIGS" in answer.found("broker.unclean"), "this is refused"
    for check in ("topics.replication", "transactions.stuck", "transactions.hanging", "groups.lost"):
        assert answer.verdicts(check) == ["unknown"]
        assert "has no DESCRIBE on the cluster" in answer.found(check), "these look as if there were none"
    assert answer.verdicts("broker.version") == ["ok"]


def hang(wire: Wire, topic: str, transactional_id: str, version: int = 11) -> None:
    """Writes, with the time of a minute ago. Up to version 11 the coordinator is never told of the transaction."""
    find_coordinator(wire, transactional_id)
    question = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=10_000)

    def init() -> Any:
        answer = wire.ask(question)
        return answer if answer.error_code == ErrorCode.NONE else None

    identity = eventually(init, "there is a producer id")
    producer = (identity.producer_id, identity.producer_epoch)
    records = batch("lost", timestamps=[now_ms() - 60_000], producer=producer, transactional=True)
    answer = wire.produce(topic, records, version=version, transactional_id=transactional_id)
    assert answer.error_code == ErrorCode.NONE


class TestTheCommand:
    def test_nobody_there_is_one_line_and_exit_code_three(self) -> None:
        command = [sys.executable, "-m", "onceflow", "doctor", "--bootstrap", "127.0.0.1:1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (3, "")
        assert done.stdout.count("cannot reach a broker at 127.0.0.1:1") == 1
        assert done.stdout.splitlines()[-1].startswith("Not everything could be looked at: ")

    def test_a_broker_that_advertises_an_address_where_it_is_not_is_a_fault(self, doctor: Doctor) -> None:
        with onceflow.Broker(data_dir=None, settings={"advertised.listeners": "PLAINTEXT://127.0.0.1:1"}) as running:
            answer = doctor("--bootstrap", running.bootstrap)
        assert answer.code == 1
        assert answer.verdicts("broker.reachable") == ["fault"]
        assert answer.verdicts("broker.version") == ["unknown"]

    def test_a_topic_that_is_not_there_is_a_mistake(self, capsys: pytest.CaptureFixture[str]) -> None:
        with onceflow.Broker(data_dir=None) as running:
            assert onceflow.cli.main(["doctor", "--bootstrap", running.bootstrap, "--topic", "nowhere"]) == 2
        assert capsys.readouterr().err == "onceflow: there is no topic 'nowhere' in this cluster\n"


@pytest.mark.faults
def test_three_brokers_are_held_to_more(doctor: Doctor) -> None:
    with ThreeBrokers({"auto.create.topics.enable": "false"}) as cluster:
        cluster.create_topic("good")
        find_in(cluster)
        answer = doctor("--bootstrap", cluster.bootstrap)
        assert (answer.code, answer.troubles) == (0, set())
        assert [line for line in answer.lines if line["verdict"] == "note"] == []

        cluster.create_topic("one-in-sync", min_insync_replicas="1")
        cluster.create_topic("unclean", unclean_leader_election_enable="true")
        cluster.create_topic("all-in-sync", min_insync_replicas="3")
        create_with_one_replica(cluster, "lonely")
        answer = doctor("--bootstrap", cluster.bootstrap)
        assert answer.troubles == {"topics.min-insync", "topics.unclean", "topics.replication"}
        assert sorted(answer.verdicts("topics.min-insync")) == ["fault", "warning"]
        assert answer.verdicts("topics.unclean") == ["fault"]
        assert answer.found("topics.replication") == "one replica: lonely"

        cluster.kill(cluster.leader("good", 0))
        cluster.leader("good", 0)  # another one, by now
        answer = doctor("--bootstrap", cluster.bootstrap)
        assert answer.verdicts("topics.under-replicated") == ["fault", "warning"], "one needs all three replicas"
        assert "good-0" in answer.found("topics.under-replicated")
        assert answer.verdicts("broker.single") == ["warning"]


def create_with_one_replica(cluster: ThreeBrokers, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    topic.configs = [CreatableTopicConfig(name="min.insync.replicas", value="1")]
    with Wire(cluster.nodes[1].bootstrap) as wire:
        [created] = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
        assert created.error_code == ErrorCode.NONE
        eventually(lambda: wire.metadata(name=name).error_code == ErrorCode.NONE, f"{name} is known")


def find_in(cluster: ThreeBrokers) -> None:
    """Has the coordinators create their topics."""
    cluster.transaction_coordinator("any")
    cluster.group_coordinator("any")
